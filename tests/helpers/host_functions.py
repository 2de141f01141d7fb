"""Operations of kernels as functions of arrays, without XLA, which takes small numbers for zero."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from jaxdae.kernels.emission.elementary_functions import BOTH, call, function
from jaxdae.kernels.export.fused_products import fused_double, fused_single
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.module import Definition, LlvmModule
from jaxdae.kernels.llvm.registers import Condition, Number
from jaxdae.kernels.llvm.writer import Writer

# Code that is loaded stays.
_ENGINES = []


def array_function(
    name: str, count: int, body: Callable[..., Sequence[Any]], width: int, dtype: Any
) -> Definition:
    """`@NAME(pointers of arguments, pointers of two results, how many)`, a loop over vectors."""
    w = Writer(width, dtype)
    inputs = [f"%a{i}" for i in range(count)]
    with w.turns(0, "%n", width) as turns:
        places = [w.place(w.scalar, x, turns.index) for x in inputs]
        given = [Number(w, w.load(w.vector, x, w.bits // 8)) for x in places]
        for pointer, x in zip(("%b0", "%b1"), body(*given), strict=False):
            value = x.choose(1.0, given[0].constant(0.0)) if isinstance(x, Condition) else x
            w.store(w.vector, value, w.place(w.scalar, pointer, turns.index), w.bits // 8)
    w.line("  ret void")
    pointers = ", ".join(f"ptr {x}" for x in [*inputs, "%b0", "%b1"])
    return w.returned("void", name, f"{pointers}, i64 %n", "")


def arguments(name: str) -> int:
    """How many an operation has."""
    counts = {BOTH: 1, "select": 3}
    return counts[name] if name in counts else OPERATIONS[name].arguments


def definitions(names: Iterable[str], width: int, dtype: Any) -> list[Definition]:
    """Functions of arrays by the names of operations, and what they need."""
    result = []
    for name in names:
        if name == BOTH or OPERATIONS[name].function:
            result += function(name, width, dtype)
        result.append(array_function(f"of_{name}", arguments(name), _body(name), width, dtype))
    return result


def _body(name: str) -> Callable[..., Sequence[Any]]:
    if name == BOTH or OPERATIONS[name].function:
        return lambda *x: call(name, *x)
    row = OPERATIONS[name]
    if name == "select":
        return lambda x, y, z: [row.vector(x > 0.0, y, z)]
    if name in ("and", "or", "xor", "not"):
        return lambda *x: [row.vector(*(a > 0.0 for a in x))]
    return lambda *x: [row.vector(*x)]


def without_fma(definitions: Iterable[Definition]) -> str:
    """Text for a processor that has no instructions for fused products."""
    fused = [*fused_double(), *fused_single()]
    each = [f"ptr @{x.name}" for x in fused]
    kept = f"@llvm.compiler.used = appending global [{len(each)} x ptr] [{', '.join(each)}]"
    return f'{LlvmModule([*definitions, *fused]).text}\n\n{kept}, section "llvm.metadata"'


def on_host(names: Sequence[str], width: int, dtype: Any) -> dict[str, Callable[..., Any]]:
    """Functions of arrays by the names of operations, compiled for this machine."""
    counts = {f"of_{x}": arguments(x) for x in names}
    functions = loaded(LlvmModule(definitions(names, width, dtype)).text, counts, width)
    return {x: functions[f"of_{x}"] for x in names}


def loaded(
    text: str, counts: dict[str, int], width: int, features: str = ""
) -> dict[str, Callable[..., Any]]:
    """Functions of arrays from those that `array_function` wrote.

    Args:
        text: those, and what they need.
        counts: of the arguments of each.
        width: entries of vectors.
        features: what the processor is taken to have beside what it has, or with `-` not to have.
    """
    host = machine_code.host()
    machine_code._llvm()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=host.cpu, features=f"{host.features},{features}", opt=2, jit=True
    )
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    _ENGINES.append(engine)
    return {x: _called(engine.get_function_address(x), counts[x], width) for x in counts}


def _called(address: int, arguments: int, width: int) -> Callable[..., Any]:
    kinds = [ctypes.c_void_p] * (arguments + 2)
    function = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_int64)(address)

    def of_arrays(*x: np.ndarray) -> np.ndarray:
        """Both results, of which most functions have but the first."""
        full = -(-len(x[0]) // width) * width
        given = [np.resize(a, full) for a in x]
        results = np.zeros((2, full), x[0].dtype)
        function(*(a.ctypes.data for a in (*given, *results)), full)
        return results[:, : len(x[0])]

    return of_arrays
