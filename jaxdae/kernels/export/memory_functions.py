"""Functions that LLVM calls by the C library's names to move memory, as part of a module."""

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.writer import Writer


def memory_functions(pointer: int) -> list[Definition]:
    """`memcpy` and `memset`, byte by byte: what kernels move is short.

    Args:
        pointer: bits of an address.
    """
    return [
        _each("memcpy", "ptr %from", pointer, lambda w, i: w.load("i8", w.place("i8", "%from", i))),
        _each("memset", "i32 %byte", pointer, lambda w, i: w.put("i8", "trunc i32 %byte to i8")),  # noqa: ARG005
    ]


def _each(name: str, source: str, pointer: int, value) -> Definition:
    w, size = Writer(), "%size"
    if pointer != 64:
        size = w.put("i64", f"zext i{pointer} %size to i64")
    with w.turns(0, size) as turns:
        w.store("i8", value(w, turns.index), w.place("i8", "%to", turns.index))
    # Without the attribute LLVM makes the loop a call of the same function.
    attributes = '"no-builtins" noinline nounwind '
    return w.define(name, f"ptr %to, {source}, i{pointer} %size", "ptr", "%to", attributes)
