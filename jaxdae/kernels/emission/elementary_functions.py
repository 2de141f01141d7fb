"""Elementary functions of vectors, as functions of LLVM's intermediate language.

They are computed for all entries at once, in the precision of the vector and to 2 units in its last
place. Only angles too large for the reduction, and remainders of large quotients, are seen to entry
by entry.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.mathematics import large_angles, trigonometric
from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer

# What a program may call; `sincos` gives both of one angle.
BOTH = "sincos"
VECTOR_FUNCTIONS = (*(name for name, x in OPERATIONS.items() if x.function), BOTH)
# Those that others take over where arguments are too large.
LIMITED = (BOTH, *(name for name, x in OPERATIONS.items() if x.far))
# Longer functions are called; shorter ones may become part of what calls them.
_LONG = 60

_Body = Callable[..., Sequence[Number]]


def _results(name: str) -> int:
    return 2 if name == BOTH else 1


def _body(name: str) -> _Body:
    """What a function does to vectors."""
    if name == BOTH:
        return trigonometric.sincos
    return lambda *arguments: (OPERATIONS[name].vector(*arguments),)


def _far_body(name: str) -> _Body:
    """What a function does to large arguments, one entry of each."""
    if name == BOTH:
        return trigonometric.large_sincos
    far: Any = OPERATIONS[name].far
    return lambda *arguments: (far(*arguments),)


@cache
def function(name: str, width: int, dtype: Any) -> tuple[Definition, ...]:
    """Definition of `@vector_NAME` on `<width x type>`, and of what it needs.

    Args:
        name: one of `VECTOR_FUNCTIONS`. `sincos` returns a structure of both.
        width: entries of a vector.
        dtype: float64 or float32.
    """
    if name not in LIMITED:
        return (_definition(name, "vector", width, dtype, _body(name)),)
    far = _definition(name, "far", width, dtype, _by_entries(name), "noinline cold ")
    return _definition(name, "vector", width, dtype, _guarded(name)), far, large_angles.table()


@cache
def near_function(name: str, width: int, dtype: Any) -> Definition:
    """Definition of `@near_NAME`, which is wrong where arguments are too large.

    Args:
        name: one of `LIMITED`.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        The function. It returns what `@vector_NAME` does, and is equal to it elsewhere.
    """
    return _definition(name, "near", width, dtype, _body(name))


def call(name: str, *arguments: Number) -> list[Number]:
    """Write a call of `@vector_NAME`: two results of `sincos`, else one."""
    return _called(name, "vector", arguments)


def near_call(name: str, *arguments: Number) -> tuple[list[Number], Number]:
    """Write a call of `@near_NAME`.

    Returns:
        Its results, and how far its arguments are: `is_far` tells of the `farthest` whether any of
        the results is wrong.
    """
    angle = name != "rem"
    size = abs(arguments[0]) if angle else _is_far(name, arguments).choose(math.inf, 0.0)
    return _called(name, "near", arguments), size


def farthest(w: Writer, sizes: Sequence[Number]) -> Number:
    """The largest of how far arguments are. NaN is not far, and does not hide what is.

    Arguments that are made of wrong results may well be NaN.
    """
    largest = Number(w, w.number(0.0))
    for size in sizes:
        largest = (size > largest).choose(size, largest)
    return largest


def is_far(size: Number) -> Condition:
    """Whether results of near functions are wrong in any entry."""
    return (size > precision(size.dtype).largest_angle).anywhere()


def _type(w: Writer, results: int) -> str:
    return w.vector if results == 1 else f"{{{', '.join([w.vector] * results)}}}"


def _called(name: str, version: str, arguments: Sequence[Number]) -> list[Number]:
    w = arguments[0].writer
    kind = _type(w, _results(name))
    result = w.invoke(kind, f"{version}_{name}", *(f"{w.vector} {x}" for x in arguments))
    if _results(name) == 1:
        return [Number(w, result)]
    return [Number(w, w.put(w.vector, f"extractvalue {kind} {result}, {i}")) for i in range(2)]


def _definition(
    name: str, version: str, width: int, dtype: Any, body: _Body, attributes: str = ""
) -> Definition:
    w, count = Writer(width, dtype), 1 if name == BOTH else OPERATIONS[name].arguments
    arguments = [Number(w, f"%x{i}") for i in range(count)]
    results = body(*arguments)
    kind, result = _type(w, len(results)), str(results[0])
    if len(results) > 1:
        result = "poison"
        for i, x in enumerate(results):
            result = w.put(kind, f"insertvalue {kind} {result}, {w.vector} {x}, {i}")
    if len(w.lines) > _LONG and not attributes:
        attributes = "noinline "
    parameters = ", ".join(f"{w.vector} {x}" for x in arguments)
    return w.define(f"{version}_{name}", parameters, kind, result, f"{attributes}nounwind ")


def _by_entries(name: str) -> _Body:
    """A function of large arguments, in a loop over the entries of vectors."""

    def body(*arguments: Number) -> list[Number]:
        w = arguments[0].writer
        zeros = [w.number(0.0)] * _results(name)
        if w.width == 1:
            return _with_entry(name, arguments, zeros, 0)
        with w.turns(0, w.width) as turns:
            held = [turns.carried(w.vector, x) for x in zeros]
            entry = Integer(w, turns.index).resized("i32")
            results = _with_entry(name, arguments, held, entry)
            for register, x in zip(held, results, strict=True):
                turns.hand_on(register, x)
        return [Number(w, x) for x in held]

    return body


def _with_entry(name: str, arguments: Sequence[Number], held: list[str], i: Any) -> list[Number]:
    """Results of which one more entry is computed."""
    w = arguments[0].writer
    entries = [Number(w, w.entry(x, i), w.scalar) for x in arguments]
    results = zip(held, _far_body(name)(*entries), strict=True)
    return [Number(w, w.with_entry(before, x, i)) for before, x in results]


def _is_far(name: str, arguments: Sequence[Number]) -> Condition:
    p = precision(arguments[0].dtype)
    if name == "rem":
        x, y = arguments
        # Remainders by small numbers may be subnormal on the way.
        return (abs(x / y) >= 2.0**p.mantissa) | (abs(y) < p.tiny * 2.0**p.mantissa)
    return abs(arguments[0]) > p.largest_angle


def _guarded(name: str) -> _Body:
    """A function of arguments that are not too large, and the other one for those that are.

    Each entry by itself, so that no result depends on the company in the vector.
    """

    def body(*arguments: Number) -> list[Number]:
        w, near = arguments[0].writer, _body(name)(*arguments)
        large = _is_far(name, arguments)
        before, any_large = w.block, large.anywhere()
        with w.if_then(any_large):
            far = _called(name, "far", arguments)
            mixed = [large.choose(a, b) for a, b in zip(far, near, strict=True)]
            after = w.block
        pairs = zip(near, mixed, strict=True)
        return [Number(w, w.phi(w.vector, (a, before), (b, after))) for a, b in pairs]

    return body
