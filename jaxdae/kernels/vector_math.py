r"""Elementary functions of vectors, as functions of LLVM's intermediate language.

Sine, cosine, exponential, logarithm and hyperbolic tangent are computed for all entries at once, to
2 units in the last place: reduction of the argument by Cody and Waite with fused products, then the
minimax polynomials of fdlibm (Sun Microsystems 1993) and, for the hyperbolic tangent near zero, the
rational function of Cephes (Moshier 1989). Arguments too large for the reduction, and all other
functions, go to the C library entry by entry. In single precision the functions are those of
double precision, rounded.
"""

from collections.abc import Callable

import numpy as np

from jaxdae.kernels.writer import Writer

_PI_2 = (1.5707963267948966, 6.123233995736766e-17)  # pi / 2 and what its double lacks
_LN_2 = (0.6931471803691238, 1.9082149292705877e-10)  # 33 bits, and the rest
_SIN = (
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
)  # fmt: skip
_COS = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip
_LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip
_TANH = (
    (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3),
    (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3),
)
# Beyond, the product of the reduction no longer fits two doubles.
_LARGEST_ANGLE = 2.0**20
# Where exp overflows, and where it vanishes.
_EXP_RANGE = (-745.2, 709.782712893384)

VECTOR_FUNCTIONS = ("sin", "cos", "exp", "log", "tanh")
# Of the C library, by the name of the operation.
LIBRARY = {
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh"), 1),
    **dict.fromkeys(("atanh", "expm1", "log1p", "cbrt", "erf"), 1),
    **dict.fromkeys(("atan2", "pow"), 2),
}


def function(name: str, width: int) -> str:
    """Definition of `@vector_NAME` on `<width x double>`.

    Args:
        name: one of `VECTOR_FUNCTIONS`, or a name of `LIBRARY`.
        width: entries of a vector.

    Returns:
        Text of the function, and of those that it needs.
    """
    w = Writer(width, np.float64)
    count = LIBRARY.get(name, 1)
    arguments = [f"%x{i}" for i in range(count)]
    result = _BODIES[name](w, *arguments) if name in _BODIES else _by_entries(w, name, arguments)
    given = ", ".join(f"{w.vector} {x}" for x in arguments)
    head = f"define internal {w.vector} @vector_{name}({given}) nounwind {{\nentry:"
    scalar = ", ".join(["double"] * count)
    declared = sorted(w.declared | {f"declare double @{name}({scalar})"})
    return "\n".join([*declared, head, *w.lines, f"  ret {w.vector} {result}", "}"])


def _by_entries(w: Writer, name: str, arguments: list[str]) -> str:
    result = "zeroinitializer"
    for i in range(w.width):
        given = ", ".join(f"double {w.entry(x, i)}" for x in arguments)
        result = w.with_entry(result, w.put(f"call double @{name}({given})"), i)
    return result


def _guarded(name: str, limit: float, inside: Callable[[Writer, str], str]):
    """Entry by entry where an argument is beyond a limit, or is not a number."""

    def body(w: Writer, x: str) -> str:
        near = w.compare("ole", w.intrinsic("fabs", x), w.number(limit))
        w.declared.add(f"declare i1 @llvm.vector.reduce.and.v{w.width}i1({w.truths})")
        every = w.put(f"call i1 @llvm.vector.reduce.and.v{w.width}i1({w.truths} {near})")
        w.line(f"  br i1 {every}, label %near, label %far")
        w.line("near:")
        fast = inside(w, x)
        w.line("  br label %end")
        w.line("far:")
        slow = _by_entries(w, name, [x])
        w.line("  br label %end")
        w.line("end:")
        return w.put(f"phi {w.vector} [{fast}, %near], [{slow}, %far]")

    return body


def _turned(w: Writer, x: str) -> tuple[str, str, str]:
    """Quarter turns, and sine and cosine of the rest."""
    turns = w.intrinsic("rint", w.binary("fmul", x, w.number(2 / np.pi)))
    rest = w.fused(turns, w.number(-_PI_2[0]), x)
    rest = w.fused(turns, w.number(-_PI_2[1]), rest)
    z = w.binary("fmul", rest, rest)
    sine = w.fused(w.binary("fmul", w.polynomial(z, _SIN), z), rest, rest)
    half = w.binary("fmul", z, w.number(0.5))
    near_one = w.put(f"fsub {w.vector} {w.number(1.0)}, {half}")
    lost = w.put(f"fsub {w.vector} {w.put(f'fsub {w.vector} {w.number(1.0)}, {near_one}')}, {half}")
    tail = w.fused(w.binary("fmul", z, z), w.polynomial(z, _COS), lost)
    cosine = w.put(f"fadd {w.vector} {near_one}, {tail}")
    return w.put(f"fptosi {w.vector} {turns} to {w.wholes}"), sine, cosine


def _bit(w: Writer, a: str, mask: int) -> str:
    masked = w.on_wholes("and", a, w.integer(mask))
    return w.put(f"icmp ne {w.wholes} {masked}, zeroinitializer")


def _sin(w: Writer, x: str) -> str:
    turns, sine, cosine = _turned(w, x)
    value = w.select(_bit(w, turns, 1), cosine, sine)
    value = w.select(_bit(w, turns, 2), w.put(f"fneg {w.vector} {value}"), value)
    # Of minus zero the rest is plus zero.
    return w.select(w.compare("oeq", x, w.number(0.0)), x, value)


def _cos(w: Writer, x: str) -> str:
    turns, sine, cosine = _turned(w, x)
    value = w.select(_bit(w, turns, 1), sine, cosine)
    turns = w.on_wholes("add", turns, w.integer(1))
    return w.select(_bit(w, turns, 2), w.put(f"fneg {w.vector} {value}"), value)


def _exp(w: Writer, x: str) -> str:
    low, high = (w.number(x) for x in _EXP_RANGE)
    inside = w.select(w.compare("olt", x, low), low, x)
    inside = w.select(w.compare("ogt", inside, high), high, inside)
    inside = w.select(w.compare("uno", x, x), w.number(0.0), inside)
    power = w.intrinsic("rint", w.binary("fmul", inside, w.number(1 / np.log(2))))
    rest = w.fused(power, w.number(-_LN_2[0]), inside)
    rest = w.fused(power, w.number(-_LN_2[1]), rest)
    # The Taylor series to 1e-18 for |rest| <= ln(2) / 2.
    factors = np.cumprod([1.0, *range(1, 14)])
    value = w.polynomial(rest, 1 / factors[:1:-1])
    value = w.fused(w.binary("fmul", rest, rest), value, rest)
    value = w.put(f"fadd {w.vector} {value}, {w.number(1.0)}")
    whole = w.put(f"fptosi {w.vector} {power} to {w.wholes}")
    # In two steps, because 2^power itself may not be a normal number.
    half = w.on_wholes("ashr", whole, w.integer(1))
    for part in (half, w.on_wholes("sub", whole, half)):
        biased = w.on_wholes("add", part, w.integer(1023))
        scale = w.from_bits(w.on_wholes("shl", biased, w.integer(52)))
        value = w.put(f"fmul {w.vector} {value}, {scale}")
    value = w.select(w.compare("ogt", x, high), w.number(np.inf), value)
    value = w.select(w.compare("olt", x, low), w.number(0.0), value)
    return w.select(w.compare("uno", x, x), x, value)


def _log(w: Writer, x: str) -> str:
    tiny = w.compare("olt", x, w.number(np.finfo(float).tiny))
    normal = w.select(tiny, w.binary("fmul", x, w.number(2.0**54)), x)
    bits = w.to_bits(normal)
    # Mantissa in [sqrt(1/2), sqrt(2)): the bits of sqrt(1/2) are taken as those of 1.
    root = 0x3FE6A09E667F3BCD
    moved = w.on_wholes("sub", bits, w.integer(root))
    exponent = w.on_wholes("ashr", moved, w.integer(52))
    back = w.on_wholes("shl", exponent, w.integer(52))
    mantissa = w.from_bits(w.on_wholes("sub", bits, back))
    power = w.put(f"sitofp {w.wholes} {exponent} to {w.vector}")
    power = w.select(tiny, w.binary("fsub", power, w.number(54.0)), power)
    f = w.put(f"fsub {w.vector} {mantissa}, {w.number(1.0)}")
    s = w.binary("fdiv", f, w.put(f"fadd {w.vector} {f}, {w.number(2.0)}"))
    z = w.put(f"fmul {w.vector} {s}, {s}")
    series = w.put(f"fmul {w.vector} {z}, {w.polynomial(z, _LOG)}")
    half = w.put(f"fmul {w.vector} {w.put(f'fmul {w.vector} {f}, {w.number(0.5)}')}, {f}")
    inner = w.fused(s, w.put(f"fadd {w.vector} {half}, {series}"), w.put(
        f"fmul {w.vector} {power}, {w.number(_LN_2[1])}"
    ))  # fmt: skip
    inner = w.put(f"fsub {w.vector} {half}, {inner}")
    inner = w.put(f"fsub {w.vector} {inner}, {f}")
    value = w.fused(power, w.number(_LN_2[0]), w.put(f"fneg {w.vector} {inner}"))
    value = w.select(w.compare("oeq", x, w.number(np.inf)), x, value)
    value = w.select(w.compare("oeq", x, w.number(0.0)), w.number(-np.inf), value)
    return w.select(w.compare("ult", x, w.number(0.0)), w.number(np.nan), value)


def _tanh(w: Writer, x: str) -> str:
    size = w.intrinsic("fabs", x)
    doubled = w.put(f"fmul {w.vector} {size}, {w.number(2.0)}")
    grown = w.put(f"call {w.vector} @vector_exp({w.vector} {doubled})")
    grown = w.put(f"fadd {w.vector} {grown}, {w.number(1.0)}")
    share = w.put(f"fdiv {w.vector} {w.number(2.0)}, {grown}")
    far = w.put(f"fsub {w.vector} {w.number(1.0)}, {share}")
    far = w.intrinsic("copysign", far, x)
    z = w.put(f"fmul {w.vector} {x}, {x}")
    ratio = w.binary("fdiv", w.polynomial(z, _TANH[0]), w.polynomial(z, _TANH[1]))
    near = w.fused(w.put(f"fmul {w.vector} {z}, {ratio}"), x, x)
    value = w.select(w.compare("olt", size, w.number(0.625)), near, far)
    # Of minus zero the product is plus zero.
    same = w.compare("ueq", x, w.number(0.0))
    return w.select(same, x, value)


_BODIES: dict[str, Callable[..., str]] = {
    "sin": _guarded("sin", _LARGEST_ANGLE, _sin),
    "cos": _guarded("cos", _LARGEST_ANGLE, _cos),
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
}
# Functions of this file that a function calls.
NEEDS = {"tanh": ("exp",)}
