"""Operations on each of many numbers as loops of vector instructions."""

from typing import Any

from jaxdae.kernels.emission.entry_loops import EntryWriter
from jaxdae.kernels.graph.maps import Map
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Number


def map_name(one: Map, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"map_{one.operation}_{'_'.join(one.kinds(shared))}"


def map_function(
    one: Map, shared: tuple[bool, ...], width: int, dtype: Any, register_width: int
) -> Definition:
    """The function `@name(pointer to each argument, pointer to the values, how many)`.

    Args:
        one: the operation.
        shared: for each argument, whether it is numbers that all lanes share, and not vectors.
        width: entries of a vector.
        dtype: float64 or float32.
        register_width: numbers of a vector register.
    """
    kinds = one.kinds(shared)
    w = EntryWriter(width, dtype, register_width)

    def entry() -> None:
        registers = (Number(w, w.read(f"%a{i}_", kind)) for i, kind in enumerate(kinds))
        w.write("%r_", OPERATIONS[one.operation].vector(*registers))

    w.for_each("%count", entry)
    parameters = "".join(f"ptr noalias %a{i}_, " for i in range(len(kinds)))
    return w.define(
        map_name(one, shared), f"{parameters}ptr noalias %r_, i64 %count", attributes="noinline "
    )
