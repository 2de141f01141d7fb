"""Elementary functions of kernels: exact to 2 units in the last place, special values of JAX."""

import decimal
import platform
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from helpers.host_functions import arguments, definitions, loaded, without_fma
from jaxdae.kernels import native, scalarize
from jaxdae.kernels.emission.elementary_functions import VECTOR_FUNCTIONS
from jaxdae.kernels.emission.instructions import elementary_calls

# By the name of the operation: JAX's function, and NumPy's for the exact value.
FUNCTIONS = {
    "sin": (jnp.sin, np.sin),
    "cos": (jnp.cos, np.cos),
    "tan": (jnp.tan, np.tan),
    "exp": (jnp.exp, np.exp),
    "expm1": (jnp.expm1, np.expm1),
    "log": (jnp.log, np.log),
    "log1p": (jnp.log1p, np.log1p),
    "sinh": (jnp.sinh, np.sinh),
    "cosh": (jnp.cosh, np.cosh),
    "tanh": (jnp.tanh, np.tanh),
    "asinh": (jnp.arcsinh, np.arcsinh),
    "acosh": (jnp.arccosh, np.arccosh),
    "atanh": (jnp.arctanh, np.arctanh),
    "asin": (jnp.arcsin, np.arcsin),
    "acos": (jnp.arccos, np.arccos),
    "atan": (jnp.arctan, np.arctan),
    "cbrt": (jnp.cbrt, np.cbrt),
    "sqrt": (jnp.sqrt, np.sqrt),
    "atan2": (jnp.arctan2, np.arctan2),
    "pow": (jnp.power, np.power),
    "rem": (jax.lax.rem, np.fmod),
    "erf": (jax.scipy.special.erf, scipy.special.erf),
}
OF_TWO = ("atan2", "pow", "rem")
OF_ONE = tuple(x for x in FUNCTIONS if x not in OF_TWO)
PI = "3.14159265358979323846264338327950288419716939937510582097494459"
# What processors of this kind that have it must be taken not to have.
WITHOUT_FMA = "-fma,-fma4,-avx512f" if platform.machine() in ("x86_64", "AMD64") else ""
PRECISIONS = [np.float64, np.float32]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e-45, -1e-40]
SPECIAL += [1.0, -1.0, 0.5, -0.5, 1.5, 2.0, 3.0, -3.0, 1e22, -1e22, 1e300, -1e300, 2.0**31]
SPECIAL += [710.0, -746.0, 89.0, -104.0, 1e-300, 1e-30, 7e5]


# Functions of one program each: with the sine of the same angle the cosine would be another one.
PROGRAMS = tuple(x for x in OF_ONE if x != "cos"), ("cos",), OF_TWO


@cache
def kernel(names, dtype):
    """One compiled program for all batches of a size."""
    functions = [FUNCTIONS[name][0] for name in names]
    examples = [jnp.zeros((), dtype)] * (2 if names == OF_TWO else 1)
    return jax.jit(jax.vmap(native(lambda *x: [f(*x) for f in functions], *examples)))


def computed(name, *x):
    names = next(y for y in PROGRAMS if name in y)
    return np.asarray(kernel(names, x[0].dtype.type)(*x)[names.index(name)])


def everywhere(dtype, rng, count=20_000):
    """Numbers of all sizes by their bits, of the size of one, and close to multiples of pi / 2."""
    whole = {np.float64: np.int64, np.float32: np.int32}[dtype]
    bits = rng.integers(np.iinfo(whole).min, np.iinfo(whole).max, count, dtype=whole)
    half_pi = np.longdouble(np.pi) / 2 + 6.123233995736766e-17
    near = rng.integers(-20_000, 20_000, count) * half_pi
    normal = rng.normal(size=count)
    sizes = [normal, 30 * normal, 300 * normal, 1 + 1e-3 * normal, 1e-5 * normal]
    powers = 2.0 ** rng.uniform(-30, 30, count)
    return np.concatenate(
        [bits.view(dtype), *(np.asarray(x, dtype) for x in [*sizes, near, powers])]
    )


def without_subnormals(x):
    """XLA computes with subnormal numbers taken for zeros."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def units_off(name, found, *x):
    """Error in units of the last place; infinite where one is finite and the other is not."""
    # The functions of the C library for x87 have eleven bits more than double precision.
    exact = FUNCTIONS[name][1](*(a.astype(np.longdouble) for a in x))
    rounded = exact.astype(found.dtype)
    unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(found.dtype).tiny))
    off = np.abs((found - exact) / unit).astype(float)
    finite = np.isfinite(rounded)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    off = np.where(finite, np.where(np.isnan(off), np.inf, off), np.where(same, 0.0, np.inf))
    # What is subnormal may be taken for zero.
    small = finite & (np.abs(rounded) < np.finfo(found.dtype).tiny) & (found == 0)
    return np.where(small, 0.0, off)


def assert_exact(name, *x):
    found = computed(name, *x)
    with np.errstate(all="ignore"):
        off = units_off(name, found, *x)
        as_zero = units_off(name, found, *map(without_subnormals, x))
    worst = np.minimum(off, as_zero)
    i = np.argmax(worst)
    assert worst[i] <= 2.0, (name, worst[i], [a[i] for a in x], found[i])


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", [x for x in OF_ONE if x != "erf"])
def test_functions_are_exact_to_two_units_in_the_last_place(name, dtype, rng):
    assert_exact(name, everywhere(dtype, rng))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_processors_without_fused_products_are_as_exact(dtype, rng):
    names = [x for x in VECTOR_FUNCTIONS if x not in ("sincos", "erf")]
    made, counts = (
        without_fma(definitions(names, 4, dtype)),
        {f"of_{x}": arguments(x) for x in names},
    )
    functions = loaded(made, counts, 4, WITHOUT_FMA)
    x = everywhere(dtype, rng, 2000)
    for name in names:
        y = np.abs(x) if name == "pow" else x
        given = (y, rng.permutation(x)) if name in OF_TWO else (y,)
        with np.errstate(all="ignore"):
            off = units_off(name, functions[f"of_{name}"](*given)[0], *given)
        assert off.max() <= (0.0 if name == "rem" else 2.0), (
            name,
            off.max(),
            [a[np.argmax(off)] for a in given],
        )


def error_function(x):
    """By its series, in 60 digits."""
    with decimal.localcontext(prec=60):
        x = decimal.Decimal(float(x))
        term, total = x, x
        for k in range(1, 250):
            term *= -x * x / k
            total += term / (2 * k + 1)
        return total * 2 / decimal.Decimal(PI).sqrt()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_error_function_is_exact_to_two_units_in_the_last_place(dtype, rng):
    """The C library has none of extended precision that NumPy knows."""
    x = np.concatenate([rng.uniform(-6.5, 6.5, 200), 0.2 * rng.normal(size=50), [1e-9, 1.0, 6.0]])
    x = x.astype(dtype)
    found = computed("erf", x)
    exact = [error_function(a) for a in x]
    unit = np.spacing(np.abs(np.array(exact, dtype)))
    off = [
        abs(decimal.Decimal(float(a)) - b) / decimal.Decimal(float(c))
        for a, b, c in zip(found, exact, unit, strict=True)
    ]
    assert max(off) <= 2


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_angles_of_points_are_exact_in_all_directions_and_sizes(dtype, rng):
    x = everywhere(dtype, rng)
    with np.errstate(over="ignore", invalid="ignore"):
        beside = (x * (1 + 0.5 * rng.normal(size=x.size))).astype(dtype)
    assert_exact("atan2", np.concatenate([x, x]), np.concatenate([rng.permutation(x), beside]))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_powers_are_exact_up_to_overflow(dtype, rng):
    """Most exponents at random overflow: here also those for results of all sizes."""
    x = everywhere(dtype, rng)
    size = np.abs(x[np.isfinite(x) & (x != 0)])
    reach = 1.05 * np.log(float(np.finfo(dtype).max))
    with np.errstate(all="ignore"):
        logarithm = np.log(size.astype(np.longdouble))
        sized = (rng.uniform(-reach, reach, size.size) / logarithm).astype(dtype)
    whole = rng.integers(-30, 30, size.size).astype(dtype)
    base = np.concatenate([x, size, -size])
    assert_exact("pow", base, np.concatenate([rng.permutation(x), sized, whole]))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_remainders_are_exact(dtype, rng):
    """Also where the quotient is rounded up to an integer, or has more digits than a number."""
    x = everywhere(dtype, rng)
    y = rng.permutation(x)
    with np.errstate(all="ignore"):
        multiple = (rng.integers(1, 9999, x.size) * y.astype(np.longdouble)).astype(dtype)
        multiple = np.nextafter(multiple, rng.choice([-np.inf, np.inf], x.size).astype(dtype))
        x, y = np.concatenate([x, multiple]), np.concatenate([y, y])
        # Where a remainder is subnormal, JAX takes it for zero.
        found, expected = computed("rem", x, y), np.fmod(x, y)
    regular = (without_subnormals(x) == x) & (without_subnormals(y) == y)
    regular &= (np.abs(expected) >= np.finfo(dtype).tiny) | (expected == 0)
    np.testing.assert_array_equal(found[regular], expected[regular])


def same(found, expected, tolerance):
    """Equal with the sign of zeros, both NaN, or close."""
    with np.errstate(all="ignore"):
        close = (np.abs(found - expected) <= tolerance * np.abs(expected)) & (expected != 0)
    equal = (found == expected) & (np.signbit(found) == np.signbit(expected))
    return equal | (np.isnan(found) & np.isnan(expected)) | close


def assert_as_jax(name, function, *x):
    """Of a subnormal argument, a result is that of JAX, or of the number, or of a zero."""
    found = computed(name, *x)
    plain = jax.jit(function)
    # XLA's own hyperbolic and binary exponential functions lose some digits far from zero.
    tolerance = 1e-13 if x[0].dtype == np.float64 else 1e-5
    good = same(found, np.asarray(plain(*x)), tolerance)
    good |= same(found, np.asarray(plain(*map(without_subnormals, x))), tolerance)
    if name in FUNCTIONS:
        with np.errstate(all="ignore"):
            good |= same(found, FUNCTIONS[name][1](*x), tolerance)
    wrong = [(*(a[i] for a in x), found[i]) for i in np.flatnonzero(~good)]
    assert not wrong


def special(dtype):
    with np.errstate(over="ignore"):
        return np.asarray(SPECIAL, dtype)


OTHERS = {
    "abs": jnp.abs,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "negative": jnp.negative,
    "exp2": jnp.exp2,
}
OTHERS_OF_TWO = {
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "mod": jnp.mod,
    "less": lambda x, y: (x < y).astype(x.dtype),
    "differs": lambda x, y: (x != y).astype(x.dtype),
    "same truth": lambda x, y: ((x < 0) == (y < 0)).astype(x.dtype),
    "quotient": lambda x, y: x / y,
    "finite": lambda x, y: jnp.where(jnp.isfinite(x), y, x),
}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", OF_ONE)
def test_special_values_are_those_of_jax(name, dtype):
    assert_as_jax(name, FUNCTIONS[name][0], special(dtype))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_arguments_have_the_special_values_of_jax(name, dtype):
    x, y = (a.ravel() for a in np.meshgrid(special(dtype), special(dtype)))
    assert_as_jax(name, FUNCTIONS[name][0], x, y)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_operations_have_the_special_values_of_jax(dtype):
    """Signs of zeros, NaN, infinities, and subnormal numbers in all operations at once."""
    x, y = (a.ravel() for a in np.meshgrid(special(dtype), special(dtype)))

    def all_of_them(x, y):
        return [f(x) for f in OTHERS.values()] + [f(x, y) for f in OTHERS_OF_TWO.values()]

    example = jnp.zeros((), dtype)
    found = jax.jit(jax.vmap(native(all_of_them, example, example)))(x, y)
    plain = jax.jit(all_of_them)
    flushed = plain(without_subnormals(x), without_subnormals(y))
    names = [*OTHERS, *OTHERS_OF_TWO]
    for name, a, *cases in zip(names, found, plain(x, y), flushed, strict=True):
        # XLA's binary exponential in single precision is off by 4e-6.
        good = [same(np.asarray(a), np.asarray(b), 1e-5 if name == "exp2" else 0) for b in cases]
        wrong = [(name, x[i], y[i], a[i]) for i in np.flatnonzero(~(good[0] | good[1]))]
        assert not wrong


def test_sine_and_cosine_of_one_angle_are_computed_together():
    def both(x, y):
        return jnp.sin(x) * jnp.cos(y), jnp.cos(x), jnp.sin(x)

    example = jnp.zeros(())
    assert elementary_calls(scalarize(both, example, example)) == ("cos", "sincos")
    x = np.linspace(-40, 40, 999)
    _, cosine, sine = jax.vmap(native(both, example, example))(x, x)
    np.testing.assert_array_equal(sine, computed("sin", x))
    np.testing.assert_array_equal(cosine, computed("cos", x))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_one_member_gets_the_digits_of_many(dtype):
    """The width of a vector makes no difference."""

    def all_of_them(x, y):
        return [FUNCTIONS[k][0](x, y) if k in OF_TWO else FUNCTIONS[k][0](x) for k in FUNCTIONS]

    example = jnp.zeros((), dtype)
    kernel = native(all_of_them, example, example)
    x, y = np.linspace(0.1, 0.9, 40, dtype=dtype), np.linspace(1.7, -3.1, 40, dtype=dtype)
    many, one = jax.vmap(kernel)(x, y), kernel(x[7], y[7])
    np.testing.assert_array_equal([float(a[7]) for a in many], [float(a) for a in one])


def test_all_functions_are_looked_at_here():
    assert {*VECTOR_FUNCTIONS, "sqrt"} - {"sincos"} == set(FUNCTIONS)
