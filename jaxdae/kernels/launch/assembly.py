"""A module of LLVM's intermediate language that XLA can call: a batch loop, threads, a handler."""

import re

import numpy as np

from jaxdae.kernels.launch.batch_axes import Axes
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.emission import emit, functions
from jaxdae.kernels.llvm.mathematics import vector_math
from jaxdae.kernels.llvm.threads import share, stack_need
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.llvm.xla_interface import DATA, handler
from jaxdae.kernels.tracing.trace import ScalarProgram


def module(program: ScalarProgram, axes: Axes, dtype, threads: int) -> str:
    """Text of the module, with the function `@handler`.

    Args:
        program: what is computed for each member of a batch.
        axes: leading axes of every result, and of the arguments that members do not share.
        dtype: float64 or float32.
        threads: threads that share a batch.

    Returns:
        The module.
    """
    width = axes.width(dtype)
    elementary = [vector_math.function(name, width, dtype) for name in functions(program)]
    run = _run(program, width, dtype, axes.batched)
    return assembled([*elementary, run], axes.rank, threads, 8 * width)


def assembled(parts: list[str], rank: int, threads: int, least: int) -> str:
    """A module from the parts that define `@run`.

    Args:
        parts: definitions.
        rank: number of leading axes of every result, which are the batch.
        threads: threads that share a batch.
        least: members that are worth a thread; parts of a batch are multiples of it.

    Returns:
        The module, with the function `@handler`.
    """
    need = stack_need("\n".join(parts), machine_code.quickly())
    return _with_declarations_once(
        "\n\n".join([*parts, share(threads, least, need), handler(rank)])
    )


def _with_declarations_once(text: str) -> str:
    declared = sorted(set(re.findall(r"^declare .*$", text, re.M)))
    return "\n".join([*declared, re.sub(r"^declare .*\n?", "", text, flags=re.M)])


def _run(program: ScalarProgram, width: int, dtype, batched: tuple[bool, ...]) -> str:
    """`@run(arguments, results, begin, end)`: members `begin` to `end - 1` of the batch.

    Blocks of `width` members; the last one begins early enough to be full, and where there are
    fewer members than that, the last is taken again.
    """
    w = Writer(width, dtype)
    sizes = [int(np.prod(x.shape)) for x in program.inputs]
    w.line("define internal void @run(ptr %arguments, ptr %results, i64 %begin, i64 %end) {")
    w.line("entry:")
    data = [_pointer(w, "%arguments", i) for i in range(len(sizes))]
    out = [_pointer(w, "%results", i) for i in range(len(program.results))]
    w.line(f"  %last = sub i64 %end, {width}")
    w.line("  %top = sub i64 %end, 1")
    w.line("  br label %block")
    w.line("block:")
    w.line("  %k = phi i64 [%begin, %entry], [%next, %done]")
    w.line("  %fits = icmp sle i64 %k, %last")
    w.line("  %early = icmp sge i64 %last, %begin")
    w.line("  %moved = select i1 %early, i64 %last, i64 %begin")
    w.line("  %first = select i1 %fits, i64 %k, i64 %moved")
    members = [_member(w, i) for i in range(width)]
    registers = [
        _gathered(w, data[i], members, size, j) if batched[i] else _everywhere(w, data[i], j)
        for i, size in enumerate(sizes)
        for j in range(size)
    ]
    found = emit(w, program, registers.__getitem__)
    at = 0
    for pointer, result in zip(out, program.results, strict=True):
        size = int(np.prod(result.shape))
        for j in range(size):
            _scattered(w, found[at], pointer, members, size, j)
            at += 1
    w.line("  br label %done")
    w.line("done:")
    w.line(f"  %next = add i64 %k, {width}")
    w.line("  %more = icmp slt i64 %next, %end")
    w.line("  br i1 %more, label %block, label %return")
    w.line("return:")
    w.line("  ret void")
    w.line("}")
    return "\n".join([*sorted(w.declared), *w.lines])


def _pointer(w: Writer, table: str, i: int) -> str:
    """Data of an argument or result."""
    slot = w.put(f"getelementptr ptr, ptr {table}, i64 {i}")
    buffer = w.put(f"load ptr, ptr {slot}")
    return w.put(f"load ptr, ptr {w.put(f'getelementptr i8, ptr {buffer}, i64 {DATA}')}")


def _member(w: Writer, i: int) -> str:
    wanted = w.put(f"add i64 %first, {i}")
    inside = w.put(f"icmp slt i64 {wanted}, %top")
    return w.put(f"select i1 {inside}, i64 {wanted}, i64 %top")


def _entry(w: Writer, pointer: str, member: str, size: int, j: int) -> str:
    start = w.put(f"mul i64 {member}, {size}")
    index = w.put(f"add i64 {start}, {j}")
    return w.put(f"getelementptr {w.scalar}, ptr {pointer}, i64 {index}")


def _gathered(w: Writer, pointer: str, members: list[str], size: int, j: int) -> str:
    vector = "poison"
    for i, member in enumerate(members):
        value = w.put(f"load {w.scalar}, ptr {_entry(w, pointer, member, size, j)}")
        vector = w.with_entry(vector, value, i)
    return vector


def _everywhere(w: Writer, pointer: str, j: int) -> str:
    """A number that all members share."""
    value = w.put(
        f"load {w.scalar}, ptr {w.put(f'getelementptr {w.scalar}, ptr {pointer}, i64 {j}')}"
    )
    return w.repeated(value)


def _scattered(w: Writer, vector: str, pointer: str, members: list[str], size: int, j: int) -> None:
    for i, member in enumerate(members):
        value, place = w.entry(vector, i), _entry(w, pointer, member, size, j)
        w.line(f"  store {w.scalar} {value}, ptr {place}")
