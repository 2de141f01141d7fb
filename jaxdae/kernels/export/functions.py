"""Functions that a file of an exported run has for others to call."""

from jaxdae.kernels.export.entry import MEMBERS, RESULT
from jaxdae.kernels.export.interface import Interface
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer, Number
from jaxdae.kernels.llvm.writer import Writer

_MEMBER = "ptr %inputs, ptr %times, ptr %outputs"


def library_functions(name: str, interface: Interface, wide: str, most: int) -> list[Definition]:
    """`NAME(inputs, times, outputs)` and `NAME_batch(count, inputs, times, outputs)`.

    The first returns the status, the second how many members have one that is not zero.

    Args:
        name: of the first.
        interface: what it takes and gives.
        wide: the function for several members.
        most: how many it takes.
    """
    one = Writer()
    _members(one, interface, MEMBERS, Integer(one, "0"), Integer(one, "1"))
    code = _status(one, interface, Integer(one, "0"))
    one.line(f"  ret i32 {one.put('i32', f'fptosi {code.kind} {code} to i32')}")
    batch = Writer()
    failed = batch.room(1, "i64")
    batch.store("i64", 0, failed)
    with batch.turns(0, "%count", most) as turns:
        first = Integer(batch, turns.index)
        rest = Integer(batch, "%count") - first
        _members(batch, interface, wide, first, (rest < most).choose(rest, rest.constant(most)))
    with batch.turns(0, "%count") as turns:
        bad = _status(batch, interface, Integer(batch, turns.index)).differs(0.0).as_integer()
        batch.store("i64", bad + Integer(batch, batch.load("i64", failed)), failed)
    batch.line(f"  ret i64 {batch.load('i64', failed)}")
    return [
        one.returned("i32", name, _MEMBER, "nounwind "),
        batch.returned("i64", f"{name}_batch", f"i64 %count, {_MEMBER}", "nounwind "),
    ]


def _scalar(interface: Interface) -> str:
    """LLVM's name of the type of numbers."""
    return "double" if interface.dtype.itemsize == 8 else "float"


def _members(w: Writer, interface: Interface, called: str, first: Integer, count: Integer) -> None:
    """Run some members of a batch."""
    kind = _scalar(interface)
    inputs = w.place(kind, "%inputs", first * interface.inputs.size)
    outputs = w.place(kind, "%outputs", first * interface.outputs.size)
    words = f"ptr {inputs}", "ptr %times", f"ptr {outputs}", f"i64 {count}"
    w.invoke("void", called, *words)


def _status(w: Writer, interface: Interface, member: Integer) -> Number:
    kind = _scalar(interface)
    place = w.place(kind, "%outputs", member * interface.outputs.size + RESULT)
    return Number(w, w.load(kind, place), kind)
