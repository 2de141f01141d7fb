"""Elementary functions of vectors, as functions of LLVM's intermediate language.

They are computed for all entries at once, in the precision of the vector and to 2 units in its last
place. Only angles too large for the reduction, and remainders of large quotients, are seen to entry
by entry.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.mathematics import trigonometric
from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.limits import Limited
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer

# What a program may call; `sincos` gives both of one angle.
BOTH = "sincos"
VECTOR_FUNCTIONS = (*(name for name, x in OPERATIONS.items() if x.function), BOTH)
# Those that do something else where arguments are large.
_LIMITED: dict[str, Limited] = {
    BOTH: trigonometric.SINCOS,
    **{name: x.vector for name, x in OPERATIONS.items() if isinstance(x.vector, Limited)},
}
# Longer functions are called; shorter ones may become part of what calls them.
_LONG = 60

_Body = Callable[..., Sequence[Number]]


@cache
def function(name: str, width: int, dtype: Any) -> tuple[Definition, ...]:
    """Definition of `@vector_NAME` on `<width x type>`, and of what it needs.

    It is one of `VECTOR_FUNCTIONS`; `sincos` returns a structure of both.
    """
    w, count = Writer(width, dtype), _arguments(name)
    if name not in _LIMITED:
        vector: Any = OPERATIONS[name].vector
        return (_definition(w, f"vector_{name}", count, lambda *x: (vector(*x),)),)
    guarded = _definition(w, f"vector_{name}", count, _guarded(name))
    return guarded, *_far_functions(name, width, dtype), *_LIMITED[name].constants


def call(name: str, *arguments: Number) -> list[Number]:
    """Write a call of `@vector_NAME`: two results of `sincos`, else one."""
    return _called(f"vector_{name}", arguments, _results(name))


def _too_large(size: Number) -> Condition:
    return size > precision(size.dtype).largest_angle


def _arguments(name: str) -> int:
    return 1 if name == BOTH else OPERATIONS[name].arguments


def _results(name: str) -> int:
    return 2 if name == BOTH else 1


def _type(kind: str, results: int) -> str:
    return kind if results == 1 else f"{{{', '.join([kind] * results)}}}"


def _called(name: str, arguments: Sequence[Number], results: int) -> list[Number]:
    """A call of a function whose arguments and results are all of one type."""
    w, kind = arguments[0].writer, arguments[0].kind
    together = _type(kind, results)
    value = w.invoke(together, name, *(f"{kind} {x}" for x in arguments))
    if results == 1:
        return [Number(w, value, kind)]
    parts = [w.put(kind, f"extractvalue {together} {value}, {i}") for i in range(results)]
    return [Number(w, x, kind) for x in parts]


def _definition(
    w: Writer, name: str, count: int, body: _Body, kind: str = "", attributes: str = ""
) -> Definition:
    """A function whose arguments and results are all of one type, of vectors by default."""
    kind = kind or w.vector
    arguments = [Number(w, f"%x{i}", kind) for i in range(count)]
    results = body(*arguments)
    together, value = _type(kind, len(results)), str(results[0])
    if len(results) > 1:
        value = "poison"
        for i, x in enumerate(results):
            value = w.put(together, f"insertvalue {together} {value}, {kind} {x}, {i}")
    if len(w.lines) > _LONG and not attributes:
        attributes = "noinline "
    parameters = ", ".join(f"{kind} {x}" for x in arguments)
    return w.define(name, parameters, together, value, f"{attributes}nounwind ")


def _guarded(name: str) -> _Body:
    """A function of vectors that asks whether any entry is large.

    Each entry by itself, so that no result depends on the company in the vector.
    """

    def body(*arguments: Number) -> Sequence[Number]:
        w, one = arguments[0].writer, _LIMITED[name]
        near = one(*arguments)
        large = _too_large(one.size(*arguments))
        before, any_large = w.block, large.anywhere()
        with w.if_then(any_large):
            far = _called(f"far_{name}", arguments, _results(name))
            mixed = [large.choose(a, b) for a, b in zip(far, near, strict=True)]
            after = w.block
        pairs = zip(near, mixed, strict=True)
        return [Number(w, w.phi(w.vector, (a, before), (b, after))) for a, b in pairs]

    return body


def _far_functions(name: str, width: int, dtype: Any) -> list[Definition]:
    """What is called for vectors with large arguments, which are rare."""
    one, count = _LIMITED[name], _arguments(name)
    w, rare = Writer(1, dtype), "noinline cold "
    entry = _definition(w, f"entry_{one.name}", count, one.far, w.scalar, rare)

    def body(*arguments: Number) -> Sequence[Number]:
        return one.result(arguments[0], _by_entries(one, arguments))

    w = Writer(width, dtype)
    return [entry, _definition(w, f"far_{name}", count, body, w.vector, rare)]


def _by_entries(one: Limited, arguments: Sequence[Number]) -> list[Number]:
    """The first step of a function for each entry of vectors."""
    w = arguments[0].writer
    if w.width == 1:
        return _with_entry(one, arguments, ["poison"] * one.parts, 0)
    with w.turns(0, w.width) as turns:
        held = [turns.carried(w.vector, "poison") for _ in range(one.parts)]
        entry = Integer(w, turns.index).resized("i32")
        results = _with_entry(one, arguments, held, entry)
        for register, x in zip(held, results, strict=True):
            turns.hand_on(register, x)
    return [Number(w, x) for x in held]


def _with_entry(one: Limited, arguments: Sequence[Number], held: list[str], i: Any) -> list[Number]:
    """Vectors of which one more entry is computed."""
    w = arguments[0].writer
    entries = [Number(w, w.entry(x, i), w.scalar) for x in arguments]
    results = zip(held, _called(f"entry_{one.name}", entries, one.parts), strict=True)
    return [Number(w, w.with_entry(before, x, i)) for before, x in results]
