"""Threads that share a batch, with stacks that are large enough for what they run."""

import re

# Parts of a batch for each thread, if they have so many times the least size: a lane of controlled
# steps that is done takes the next member of its part, and the last ones of a part wait.
_PARTS, _LEAST = 8, 16
_MEGABYTE = 2**20
# What a thread that we have not made may be trusted to have left [bytes]: some systems give 512
# kilobytes to all but the first.
_ANYWHERE = 3 * _MEGABYTE // 8
# Beside what a kernel needs: the C library's functions, and variables of threads, which lie there.
_MARGIN = _MEGABYTE // 2
_SIZES = {"i1": 1, "i8": 1, "i32": 4, "float": 4}
# Of the registers of optimized code, those that wait in memory at once, at most.
_WAITING = 1 / 4


def stack_need(text: str, quickly: bool) -> int:
    """What the stack of a thread must hold to run a module, at most [bytes].

    Args:
        text: the module, none of whose functions calls itself.
        quickly: whether its code is made without optimization.
    """
    need = 0.0
    for function in re.split(r"^(?=define )", text, flags=re.M)[1:]:
        (name,) = re.findall(r"^define .*?@([\w.\"]+)\(", function)
        # Where a function becomes part of another, each place has room of its own.
        places = max(1, text.count(f"@{name}(") - 1)
        rooms = re.findall(r"= alloca (<.*?>|\[.*?\]|\S+?)(?:, i64 (\d+))?(?:,|$)", function, re.M)
        need += places * sum(_size(kind) * int(count or 1) for kind, count in rooms)
        made = re.findall(r"^  %\S+ = (?!alloca).*?(<\d+ x \w+>|$)", function, re.M)
        need += (1.0 if quickly else _WAITING) * sum(map(_size, made))
    return int(need)


def _size(kind: str) -> int:
    """Bytes of a type, rounded up for types that are not known."""
    found = re.fullmatch(r"[<\[](\d+) x (\w+)[>\]]", kind)
    if found is not None:
        return int(found[1]) * _SIZES.get(found[2], 8)
    return 64 if kind.startswith("%") else 8


_WORK = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)

; Arguments, results, the first member that nobody has taken, members, members of a part.
%task = type { ptr, ptr, i64, i64, i64 }

define internal ptr @work(ptr %p) {
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
  %inside = icmp slt i64 %next, %members
  %to = select i1 %inside, i64 %next, i64 %members
  call void @run(ptr %a, ptr %r, i64 %from, i64 %to)
  br label %take
done:
  ret ptr null
}

"""


def share(count: int, least: int, need: int) -> str:
    """Text of `@share(arguments, results, members)`: threads take and `@run` parts of a batch.

    There are some parts for each thread, in multiples of a least size. Whoever is done takes the
    next one, so that a slow processor does not hold up the others. The calling thread takes part,
    unless its stack may be too small: then as many others do as can be made.

    Args:
        count: threads.
        least: members that are worth a thread; parts of a batch are multiples of it.
        need: of the stack of a thread, from `stack_need`.
    """
    first = 1 if need <= _ANYWHERE else 0
    stack = -(-(need + _MARGIN) // _MEGABYTE) * _MEGABYTE
    return f"{_WORK}{_divided(count, least)}{_joined(first, stack)}"


def _divided(count: int, least: int) -> str:
    """How many threads, and members of a part for each."""
    return f"""define internal void @share(ptr %a, ptr %r, i64 %members) {{
entry:
  %p = alloca %task
  %ids = alloca ptr, i64 {count}
  ; No system's attributes of a thread are larger.
  %attributes = alloca i8, i64 256, align 16
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
"""


def _joined(first: int, stack: int) -> str:
    """Threads from the first that is not this one, and what it does itself."""
    return f"""  %helped = icmp sgt i64 %n, {first}
  br i1 %helped, label %prepare, label %own
prepare:
  call i32 @pthread_attr_init(ptr %attributes)
  call i32 @pthread_attr_setstacksize(ptr %attributes, i64 {stack})
  br label %start
start:
  %i = phi i64 [{first}, %prepare], [%i2, %started]
  %i2 = add i64 %i, 1
  %another = icmp slt i64 %i, %n
  br i1 %another, label %there, label %here
there:
  %id = getelementptr ptr, ptr %ids, i64 %i
  %failed = call i32 @pthread_create(ptr %id, ptr %attributes, ptr @work, ptr %p)
  %fails = icmp ne i32 %failed, 0
  br i1 %fails, label %here, label %started
started:
  br label %start
here:
  call i32 @pthread_attr_destroy(ptr %attributes)
  ; Where no thread could be made, there is only this one.
  %shared = icmp eq i64 %i, 0
  %helps = icmp eq i64 {first}, 1
  %works = or i1 %shared, %helps
  br i1 %works, label %own, label %join
own:
  %made = phi i64 [%i, %here], [{first}, %entry]
  call ptr @work(ptr %p)
  br label %join
join:
  %j = phi i64 [{first}, %here], [{first}, %own], [%j2, %wait]
  %end = phi i64 [%i, %here], [%made, %own], [%end, %wait]
  %last = icmp sge i64 %j, %end
  br i1 %last, label %return, label %wait
wait:
  %j2 = add i64 %j, 1
  %jd = getelementptr ptr, ptr %ids, i64 %j
  %thread = load ptr, ptr %jd
  call i32 @pthread_join(ptr %thread, ptr null)
  br label %join
return:
  ret void
}}
"""
