"""Functions that a file of an exported run has for others to call."""

from typing import Any

from jaxdae.kernels.export.entry import MEMBERS, RESULT
from jaxdae.kernels.export.interface import Interface
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer, Number
from jaxdae.kernels.llvm.writer import Writer

# Where the packet of a launch has the threads of a block and of all [bytes].
_BLOCK, _ALL = 4, 12
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


def kernel_function(name: str, interface: Interface) -> Definition:
    """`NAME(count, inputs, times, outputs)` of an AMD GPU: a thread takes every so many members.

    Args:
        name: of the kernel.
        interface: what it takes and gives.
    """
    w = Writer()
    packet = w.invoke("ptr addrspace(4)", "llvm.amdgcn.dispatch.ptr", declared="")
    block = _size(w, packet, "i16", _BLOCK)
    stride: Any = _size(w, packet, "i32", _ALL)
    thread = block * _special(w, "workgroup.id.x") + _special(w, "workitem.id.x")
    for x in ("inputs", "times", "outputs"):
        w.line(f"  %{x} = addrspacecast ptr addrspace(1) %{x}_ to ptr")
    with w.turns(thread, "%count", stride) as turns:
        _members(w, interface, MEMBERS, Integer(w, turns.index), Integer(w, "1"))
    w.line("  ret void")
    pointers = ", ".join(f"ptr addrspace(1) %{x}_" for x in ("inputs", "times", "outputs"))
    return w.returned("amdgpu_kernel void", name, f"i64 %count, {pointers}", "nounwind ")


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


def _size(w: Writer, packet: str, kind: str, offset: int) -> Integer:
    place = w.put("ptr", f"getelementptr i8, ptr addrspace(4) {packet}, i64 {offset}")
    value = w.put(kind, f"load {kind}, ptr addrspace(4) {place}")
    return Integer(w, w.put("i64", f"zext {kind} {value} to i64"))


def _special(w: Writer, name: str) -> Integer:
    """A number that the GPU gives to each thread."""
    value = w.invoke("i32", f"llvm.amdgcn.{name}", declared="")
    return Integer(w, w.put("i64", f"zext i32 {value} to i64"))
