"""A module of LLVM's intermediate language that XLA can call: a batch loop, threads, a handler."""

import re
from functools import cache
from pathlib import Path

import jax
import numpy as np

from jaxdae.kernels import vector_math
from jaxdae.kernels.axes import Axes
from jaxdae.kernels.emission import emit, functions
from jaxdae.kernels.trace import ScalarProgram
from jaxdae.kernels.writer import Writer

# Offsets in the structures of XLA's foreign-function interface (xla/ffi/api/c_api.h), in bytes.
_EXTENSION, _ARGUMENTS, _RESULTS = 8, 72, 112
DATA, DIMENSIONS = 24, 40
_KIND, _METADATA, _MAJOR, _MINOR, _TRAITS, _STATE = 8, 24, 24, 28, 32, 40
# Parts of a batch for each thread, if they have so many times the least size: a lane of controlled
# steps that is done takes the next member of its part, and the last ones of a part wait.
_PARTS, _LEAST = 8, 16


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
    return _with_declarations_once("\n\n".join([*parts, _threads(threads, least), _handler(rank)]))


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


def _threads(count: int, least: int) -> str:
    """`@share(arguments, results, members)`: parts of a batch to threads.

    There are some parts for each thread, in multiples of a least size. Whoever is done takes the
    next one, so that a slow processor does not hold up the others.
    """
    return f"""
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)

; Arguments, results, the first member that nobody has taken, members, members of a part.
%task = type {{ ptr, ptr, i64, i64, i64 }}

define internal ptr @work(ptr %p) {{
entry:
  %a = load ptr, ptr %p
  %rp = getelementptr %task, ptr %p, i32 0, i32 1
  %r = load ptr, ptr %rp
  %np = getelementptr %task, ptr %p, i32 0, i32 2
  %mp = getelementptr %task, ptr %p, i32 0, i32 3
  %members = load i64, ptr %mp
  %sp = getelementptr %task, ptr %p, i32 0, i32 4
  %size = load i64, ptr %sp
  br label %take
take:
  %from = atomicrmw add ptr %np, i64 %size monotonic
  %more = icmp slt i64 %from, %members
  br i1 %more, label %run, label %done
run:
  %next = add i64 %from, %size
  %whole = icmp slt i64 %next, %members
  %to = select i1 %whole, i64 %next, i64 %members
  call void @run(ptr %a, ptr %r, i64 %from, i64 %to)
  br label %take
done:
  ret ptr null
}}

define internal void @share(ptr %a, ptr %r, i64 %members) {{
entry:
  %p = alloca %task
  %ids = alloca ptr, i64 {count}
  %most = udiv i64 %members, {least}
  %few = icmp ult i64 %most, {count}
  %some = select i1 %few, i64 %most, i64 {count}
  %none = icmp eq i64 %some, 0
  %n = select i1 %none, i64 1, i64 %some
  %alone = icmp eq i64 %n, 1
  %each0 = add i64 %members, %n
  %each1 = sub i64 %each0, 1
  %each = udiv i64 %each1, %n
  %small = udiv i64 %each, {_PARTS}
  %enough = icmp ugt i64 %small, {_LEAST * least}
  %part = select i1 %enough, i64 %small, i64 {_LEAST * least}
  %fewer = icmp ult i64 %part, %each
  %size0 = select i1 %fewer, i64 %part, i64 %each
  %up = add i64 %size0, {least - 1}
  %multiple = udiv i64 %up, {least}
  %size1 = mul i64 %multiple, {least}
  %size = select i1 %alone, i64 %members, i64 %size1
  store ptr %a, ptr %p
  %rp = getelementptr %task, ptr %p, i32 0, i32 1
  store ptr %r, ptr %rp
  %np = getelementptr %task, ptr %p, i32 0, i32 2
  store i64 0, ptr %np
  %mp = getelementptr %task, ptr %p, i32 0, i32 3
  store i64 %members, ptr %mp
  %sp = getelementptr %task, ptr %p, i32 0, i32 4
  store i64 %size, ptr %sp
  br label %start
start:
  %i = phi i64 [1, %entry], [%i2, %started]
  %i2 = add i64 %i, 1
  %another = icmp slt i64 %i, %n
  br i1 %another, label %there, label %here
there:
  %id = getelementptr ptr, ptr %ids, i64 %i
  %failed = call i32 @pthread_create(ptr %id, ptr null, ptr @work, ptr %p)
  %fails = icmp ne i32 %failed, 0
  br i1 %fails, label %here, label %started
started:
  br label %start
here:
  call ptr @work(ptr %p)
  br label %join
join:
  %j = phi i64 [1, %here], [%j2, %wait]
  %j2 = add i64 %j, 1
  %last = icmp sge i64 %j, %i
  br i1 %last, label %end, label %wait
wait:
  %jd = getelementptr ptr, ptr %ids, i64 %j
  %thread = load ptr, ptr %jd
  call i32 @pthread_join(ptr %thread, ptr null)
  br label %join
end:
  ret void
}}
"""


def _handler(rank: int) -> str:
    """`@handler(call frame)`, as XLA's foreign-function interface wants it."""
    major, minor = _version()
    dimensions = "\n".join(
        f"""  %d{i}p = getelementptr i64, ptr %dims, i64 {i}
  %d{i} = load i64, ptr %d{i}p
  %n{i + 1} = mul i64 %n{i}, %d{i}"""
        for i in range(rank)
    )
    return f"""
define ptr @handler(ptr %frame) {{
entry:
  %xp = getelementptr i8, ptr %frame, i64 {_EXTENSION}
  %x = load ptr, ptr %xp
  %asked = icmp ne ptr %x, null
  br i1 %asked, label %extension, label %execute
extension:
  %kp = getelementptr i8, ptr %x, i64 {_KIND}
  %k = load i32, ptr %kp
  %about = icmp eq i32 %k, 1
  br i1 %about, label %metadata, label %execute
metadata:
  %mp = getelementptr i8, ptr %x, i64 {_METADATA}
  %m = load ptr, ptr %mp
  %majorp = getelementptr i8, ptr %m, i64 {_MAJOR}
  store i32 {major}, ptr %majorp
  %minorp = getelementptr i8, ptr %m, i64 {_MINOR}
  store i32 {minor}, ptr %minorp
  %traits = getelementptr i8, ptr %m, i64 {_TRAITS}
  store i32 0, ptr %traits
  ret ptr null
execute:
  %ap = getelementptr i8, ptr %frame, i64 {_ARGUMENTS}
  %a = load ptr, ptr %ap
  %rp = getelementptr i8, ptr %frame, i64 {_RESULTS}
  %r = load ptr, ptr %rp
  %r0 = load ptr, ptr %r
  %dimsp = getelementptr i8, ptr %r0, i64 {DIMENSIONS}
  %dims = load ptr, ptr %dimsp
  %n0 = add i64 0, 1
{dimensions}
  %empty = icmp eq i64 %n{rank}, 0
  br i1 %empty, label %return, label %go
go:
  call void @share(ptr %a, ptr %r, i64 %n{rank})
  br label %return
return:
  ret ptr null
}}
"""


@cache
def _version() -> tuple[int, int]:
    """Version of the interface, from the header that came with jaxlib."""
    header = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()
    found = {
        name: int(re.search(rf"#define XLA_FFI_API_{name} (\d+)", header).group(1))  # pyright: ignore[reportOptionalMemberAccess]
        for name in ("MAJOR", "MINOR")
    }
    return found["MAJOR"], found["MINOR"]
