"""Threads that share a batch, with stacks that are large enough for what they run."""

import ctypes

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Variable
from jaxdae.kernels.llvm.writer import Writer

# Parts of a batch for each thread, if they have so many times the least size: a lane of controlled
# steps that is done takes the next member of its part, and the last ones of a part wait.
_PARTS, _LEAST = 8, 16
_MEGABYTE = 2**20
# What a thread that we have not made may be trusted to have left [bytes]: some systems give 512
# kilobytes to all but the first.
_ANYWHERE = 3 * _MEGABYTE // 8
# Beside what a kernel needs: the C library's functions, and variables of threads, which lie there.
_MARGIN = _MEGABYTE // 2
# No system's attributes of a thread are larger [bytes].
_ATTRIBUTES = 256


class _ThreadWork(ctypes.Structure):
    """What threads share: the first member that nobody has taken, and members of a part."""

    _fields_ = (
        ("arguments", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("next", ctypes.c_int64),
        ("members", ctypes.c_int64),
        ("part", ctypes.c_int64),
    )


def share(count: int, least: int, need: int) -> list[Definition]:
    """`@share(arguments, results, members)`: threads take and `@run` parts of a batch.

    There are some parts for each thread, in multiples of the `least` members that are worth one.
    Whoever is done takes the next part, so that a slow processor does not hold up the others. The
    calling thread takes part, unless its stack may be too small for what they need: then as many
    others do as can be made.
    """
    first = 1 if need <= _ANYWHERE else 0
    stack = -(-(need + _MARGIN) // _MEGABYTE) * _MEGABYTE
    w = Writer()
    members = Integer(w, "%members")
    threads, part = _divided(members, count, least)
    task = w.room(ctypes.sizeof(_ThreadWork), "i8")
    values = {"arguments": "%a", "results": "%r", "next": 0, "members": members, "part": part}
    for name, value in values.items():
        kind = "ptr" if name in ("arguments", "results") else "i64"
        w.store(kind, value, w.field(task, getattr(_ThreadWork, name)))
    _run_all(w, task, threads, count, first, stack)
    return [_work(), w.define("share", "ptr %a, ptr %r, i64 %members")]


def _work() -> Definition:
    """`@work(task)`: what a thread does."""
    w, task = Writer(), "%task"

    def read(field, kind: str = "i64") -> str:
        return w.load(kind, w.field(task, field))

    arguments, results = read(_ThreadWork.arguments, "ptr"), read(_ThreadWork.results, "ptr")
    members, part = Integer(w, read(_ThreadWork.members)), Integer(w, read(_ThreadWork.part))
    taken = w.field(task, _ThreadWork.next)
    begin = Integer(w, w.name())

    def more() -> Condition:
        w.line(f"  {begin} = atomicrmw add ptr {taken}, i64 {part} monotonic")
        return begin < members

    with w.while_(more):
        end = begin + part
        end = (end < members).choose(end, members)
        w.invoke("void", "run", f"ptr {arguments}", f"ptr {results}", f"i64 {begin}", f"i64 {end}")
    return w.define("work", "ptr %task", "ptr", "null")


def _divided(members: Integer, count: int, least: int) -> tuple[Integer, Integer]:
    """How many threads, and members of a part for each."""
    threads = _at_most(members // least, count)
    threads = threads.equals(0).choose(members.constant(1), threads)
    each = (members + threads - 1) // threads
    small = each // _PARTS
    part = (small > _LEAST * least).choose(small, small.constant(_LEAST * least))
    part = _at_most(part, each)
    part = (part + (least - 1)) // least * least
    return threads, threads.equals(1).choose(members, part)


def _at_most(x: Integer, limit: Integer | int) -> Integer:
    return (x < limit).choose(x, limit)


def _run_all(w: Writer, task: str, threads: Integer, count: int, first: int, stack: int) -> None:
    """Threads from the first that is not this one, and what it does itself."""
    identities, attributes = w.room(count, "ptr"), w.room(_ATTRIBUTES, "i8")
    made = Variable(w, first)

    def one_more() -> str:
        """Whether one more thread is wanted, and could be made."""
        before, start, tried = w.block, w.label("start"), w.label("tried")
        number = made.get()
        w.branch(number < threads, start, tried)
        w.start_block(start)
        arguments = w.place("ptr", identities, number), attributes, "@work", task
        failed = _c(w, "pthread_create", *(f"ptr {x}" for x in arguments))
        started = Integer(w, failed, "i32").equals(0)
        w.jump(tried)
        w.start_block(tried)
        return w.phi("i1", ("false", before), (started, start))

    with w.if_then(threads > first):
        _c(w, "pthread_attr_init", f"ptr {attributes}")
        _c(w, "pthread_attr_setstacksize", f"ptr {attributes}", f"i64 {stack}")
        with w.while_(one_more):
            made.set(made.get() + 1)
        _c(w, "pthread_attr_destroy", f"ptr {attributes}")
    # Where no thread could be made, there is only this one.
    with w.if_then("true" if first else made.get().equals(0)):
        w.invoke("ptr", "work", f"ptr {task}")
    with w.turns(first, made.get()) as turns:
        thread = w.load("ptr", w.place("ptr", identities, turns.index))
        _c(w, "pthread_join", f"ptr {thread}", "ptr null")


def _c(w: Writer, name: str, *arguments: str) -> str:
    """Call a function of the C library."""
    declared = ", ".join(x.split()[0] for x in arguments)
    return w.invoke("i32", name, *arguments, declared=declared)
