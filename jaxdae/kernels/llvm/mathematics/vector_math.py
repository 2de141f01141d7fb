"""Elementary functions of vectors, as functions of LLVM's intermediate language.

They are computed for all entries at once, in the precision of the vector and to 2 units in its last
place. Only angles too large for the reduction, and remainders of large quotients, go to the C
library entry by entry, in double precision.
"""

import math
from collections.abc import Callable, Sequence

from jaxdae.kernels.llvm.mathematics import (
    exponential,
    inverse_trigonometric,
    logarithmic,
    powers,
    trigonometric,
)
from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.vectors import is_double, Truths, Vector
from jaxdae.kernels.llvm.writer import Writer

_Body = Callable[..., list[Vector]]

_OWN: dict[str, _Body] = {
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "sincos": trigonometric.sincos,
    "exp": exponential.exp,
    "expm1": exponential.expm1,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "tanh": exponential.tanh,
    "erf": exponential.erf,
    "log": logarithmic.log,
    "log1p": logarithmic.log1p,
    "asinh": logarithmic.asinh,
    "acosh": logarithmic.acosh,
    "atanh": logarithmic.atanh,
    "atan": inverse_trigonometric.atan,
    "asin": inverse_trigonometric.asin,
    "acos": inverse_trigonometric.acos,
    "atan2": inverse_trigonometric.atan2,
    "pow": powers.pow,
    "cbrt": powers.cbrt,
    "rem": powers.rem,
}
# Functions of the C library that take over where arguments are too large.
_FAR = {
    "sin": ("sin",),
    "cos": ("cos",),
    "tan": ("tan",),
    "sincos": ("sin", "cos"),
    "rem": ("fmod",),
}
_ARGUMENTS = {"atan2": 2, "pow": 2, "rem": 2}
# Longer functions are called; shorter ones may become part of what calls them.
_LONG = 60

# What a program may call; `sincos` gives both of one angle.
VECTOR_FUNCTIONS = tuple(_OWN)
# Those that large arguments are far for.
LIMITED = tuple(_FAR)


def body(name: str) -> Callable[[Vector], list[Vector]]:
    """What one of `STRAIGHT_LINES` does to a vector, to be written where it is wanted."""
    return _OWN[name]


def function(name: str, width: int, dtype) -> str:
    """Definition of `@vector_NAME` on `<width x type>`.

    Args:
        name: one of `VECTOR_FUNCTIONS`.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Text of the function, and of those that it needs. `sincos` returns a structure of both.
    """
    count, w = _ARGUMENTS.get(name, 1), Writer(width, dtype)
    if name not in _FAR:
        return _definition(w, f"vector_{name}", count, _OWN[name])
    own = _definition(w, f"vector_{name}", count, _guarded(name))
    library = _by_library(*_FAR[name])
    far = _definition(Writer(width, dtype), f"far_{name}", count, library, "noinline cold ")
    return f"{own}\n{far}"


def near_function(name: str, width: int, dtype) -> str:
    """Definition of `@near_NAME`, which is wrong where arguments are too large.

    Args:
        name: one of `LIMITED`.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Text of the function. It returns what `@vector_NAME` does, and is equal to it elsewhere.
    """
    return _definition(Writer(width, dtype), f"near_{name}", _ARGUMENTS.get(name, 1), _OWN[name])


def near_call(w: Writer, name: str, *arguments: str) -> tuple[list[str], str]:
    """Write a call of `@near_NAME`.

    Args:
        w: where to.
        name: of the function.
        arguments: registers.

    Returns:
        Registers of its results, and of how far its arguments are: `is_far` tells of the
        `farthest` whether any of the results is wrong.
    """
    given = [Vector(w, x) for x in arguments]
    size = _is_far(name, given).choose(math.inf, 0.0) if name == "rem" else abs(given[0])
    return _called(w, f"near_{name}", arguments, 2 if name == "sincos" else 1), size.register


def farthest(w: Writer, sizes: Sequence[str]) -> str:
    """The largest of how far arguments are. NaN is not far, and does not hide what is.

    Arguments that are made of wrong results may well be NaN.
    """
    largest = Vector(w, w.number(0.0))
    for size in sizes:
        own = Vector(w, size)
        largest = (own > largest).choose(own, largest)
    return largest.register


def is_far(w: Writer, size: str) -> str:
    """Register of the one truth value whether results of near functions are wrong in any lane."""
    return (Vector(w, size) > precision(w.dtype).largest_angle).anywhere()


def call(w: Writer, name: str, *arguments: str) -> list[str]:
    """Write a call of `@vector_NAME`.

    Args:
        w: where to.
        name: of the function.
        arguments: registers.

    Returns:
        Registers of its results: two of `sincos`, else one.
    """
    return _called(w, f"vector_{name}", arguments, 2 if name == "sincos" else 1)


def _type(w: Writer, results: int) -> str:
    return w.vector if results == 1 else f"{{{', '.join([w.vector] * results)}}}"


def _called(w: Writer, title: str, arguments: Sequence[str], results: int) -> list[str]:
    given = ", ".join(f"{w.vector} {x}" for x in arguments)
    kind = _type(w, results)
    found = w.put(f"call {kind} @{title}({given})")
    if results == 1:
        return [found]
    return [w.put(f"extractvalue {kind} {found}, {i}") for i in range(results)]


def _definition(w: Writer, title: str, count: int, body: _Body, attributes: str = "") -> str:
    names = [f"%x{i}" for i in range(count)]
    results = [x.register for x in body(*(Vector(w, x) for x in names))]
    kind, found = _type(w, len(results)), results[0]
    if len(results) > 1:
        found = "poison"
        for i, result in enumerate(results):
            found = w.put(f"insertvalue {kind} {found}, {w.vector} {result}, {i}")
    given = ", ".join(f"{w.vector} {x}" for x in names)
    if len(w.lines) > _LONG and not attributes:
        attributes = "noinline "
    head = f"define internal {kind} @{title}({given}) {attributes}nounwind {{\nentry:"
    return "\n".join([*sorted(w.declared), head, *w.lines, f"  ret {kind} {found}", "}"])


def _by_library(*names: str) -> _Body:
    """Functions of the C library, entry by entry, in double precision."""

    def body(*arguments: Vector) -> list[Vector]:
        return [_by_entries(name, arguments) for name in names]

    return body


def _by_entries(name: str, arguments: Sequence[Vector]) -> Vector:
    w, result = arguments[0].writer, "zeroinitializer"
    w.declared.add(f"declare double @{name}({', '.join(['double'] * len(arguments))})")
    for i in range(w.width):
        given = ", ".join(f"double {_wide_entry(w, x.register, i)}" for x in arguments)
        found = w.put(f"call double @{name}({given})")
        if not is_double(w):
            found = w.put(f"fptrunc double {found} to float")
        result = w.with_entry(result, found, i)
    return Vector(w, result)


def _wide_entry(w: Writer, register: str, i: int) -> str:
    entry = w.entry(register, i)
    return entry if is_double(w) else w.put(f"fpext float {entry} to double")


def _is_far(name: str, arguments: Sequence[Vector]) -> Truths:
    p = precision(arguments[0].writer.dtype)
    if name == "rem":
        x, y = arguments
        # Remainders by small numbers may be subnormal on the way.
        return (abs(x / y) >= 2.0**p.mantissa) | (abs(y) < p.tiny * 2.0**p.mantissa)
    return abs(arguments[0]) > p.largest_angle


def _guarded(name: str) -> _Body:
    """A function of arguments that are not too large, and the C library for those that are.

    Each entry by itself, so that no result depends on the company in the vector.
    """

    def body(*arguments: Vector) -> list[Vector]:
        w, near = arguments[0].writer, _OWN[name](*arguments)
        large = _is_far(name, arguments)
        w.line(f"  br i1 {large.anywhere()}, label %far, label %end")
        w.line("far:")
        far = _called(w, f"far_{name}", [x.register for x in arguments], len(near))
        mixed = [large.choose(Vector(w, a), b) for a, b in zip(far, near, strict=True)]
        w.line("  br label %end")
        w.line("end:")
        return [
            Vector(w, w.put(f"phi {w.vector} [{a.register}, %entry], [{b.register}, %far]"))
            for a, b in zip(near, mixed, strict=True)
        ]

    return body
