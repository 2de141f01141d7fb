"""Numbers that are not those of the kernel: rounded as their type says, or refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.kernels import native, scalarize, UnsupportedOperationError

X = np.array([0.1, -0.7, 1.3, 1e-3, 3e30, 1e39, 1e-42])
SHORT = X[:4]


def single(x):
    """Single precision by NumPy; XLA has no subnormal numbers."""
    with np.errstate(over="ignore"):
        x = np.float32(x)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


# Each with what NumPy makes of it.
ROUNDED = {
    "cast": (lambda x: x.astype(jnp.float32).astype(float), lambda x: single(x)),
    "reduced precision": (lambda x: jax.lax.reduce_precision(x, 8, 23), lambda x: single(x)),
    "a product": (
        lambda x: x.astype(jnp.float32) * jnp.float32(0.1),
        lambda x: single(single(x) * np.float32(0.1)),
    ),
    "a difference of nearly equal numbers": (
        lambda x: x - x.astype(jnp.float32),
        lambda x: x - single(x),
    ),
    "a sum": (
        lambda x: (x.astype(jnp.float32) + jnp.float32(1)).astype(float) - 1,
        lambda x: single(single(x) + np.float32(1)).astype(float) - 1,
    ),
    "chosen": (
        lambda x: jnp.where(x > 0, x.astype(jnp.float32), jnp.float32(0.1)).astype(float),
        lambda x: np.where(x > 0, single(x), np.float32(0.1)),
    ),
    "integers": (
        lambda x: jnp.clip(10 * x, -5, 5).astype(jnp.int8).astype(float),
        lambda x: np.clip(10 * x, -5, 5).astype(np.int8).astype(float),
    ),
}


def doubles(function):
    return lambda x: function(x).astype(float)


@pytest.fixture(scope="module")
def found():
    """By the kernel and by JAX, of all functions at once."""

    def everything(x):
        return {name: doubles(own)(x) for name, (own, _) in ROUNDED.items()}

    return native(everything, X)(jnp.asarray(X)), jax.jit(everything)(X)


@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_of_single_precision_are_rounded_to_it(name, found):
    with np.errstate(over="ignore"):
        expected = ROUNDED[name][1](X)
    for one in found:
        # One operation each: all are rounded the same way, to the last bit.
        np.testing.assert_array_equal(np.asarray(one[name]), expected)


def test_functions_of_single_precision_agree_to_its_rounding():
    """Where kernels compute in double precision and round, JAX has functions of its own."""

    def function(x):
        y = x.astype(jnp.float32)
        return (jnp.sin(y) * jnp.exp(-y) + y @ y).astype(float)

    # A few roundings of numbers of size one.
    np.testing.assert_allclose(native(function, SHORT)(SHORT), jax.jit(function)(SHORT), rtol=5e-7)
    exact = np.sin(SHORT) * np.exp(-SHORT) + SHORT @ SHORT
    off = np.abs(native(function, SHORT)(SHORT) - exact).max()
    assert 1e-10 < off < 5e-7, "rounded, but not more than single precision rounds"


COMPLEX = {
    "cast": lambda x: jnp.nan_to_num(jnp.abs(jnp.sqrt(x.astype(complex)))),
    "branch": lambda x: jax.lax.cond(x[0] > 0, lambda x: x * 1j, lambda x: x + 0j, x).real,
    "loop": lambda x: jax.lax.scan(lambda c, y: (c * y, c.real), 1j, x)[1],
    "roots": lambda x: jnp.roots(x, strip_zeros=False).real,
}
OTHERS = {
    "half": (lambda x: x.astype(jnp.float16).astype(float), "no numbers of type float16"),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16).astype(float), "no numbers of type bfloat16"),
    "half, by bits": (lambda x: jax.lax.reduce_precision(x, 5, 10), "numbers of 5 and 10 bits"),
    "overflow": (lambda x: jnp.clip(1000 * x, -500, 500).astype(jnp.int8), "int8 could overflow"),
    "negative": (lambda x: jnp.clip(x, -5, 5).astype(jnp.uint8), "uint8 could overflow"),
    "key": (
        lambda x: jax.random.normal(jax.random.split(jax.random.key(1))[jnp.argmax(x[:2])]),
        r"no numbers of type key<fry>",
    ),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_refused_wherever_they_stand(name):
    with pytest.raises(UnsupportedOperationError, match=r"complex .* part of|complex numbers|eig"):
        scalarize(COMPLEX[name], SHORT)


@pytest.mark.parametrize("name", OTHERS)
def test_other_types_are_refused_by_name(name):
    function, message = OTHERS[name]
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(lambda x: function(x).astype(float), SHORT)


def test_complex_constants_are_none_of_the_kernels_business():
    def function(x):
        return jnp.abs(jnp.array([3 + 4j, 2])).sum() * x

    np.testing.assert_array_equal(native(function, SHORT)(SHORT), 7 * SHORT)


def test_known_numbers_of_double_precision_are_rounded_where_jax_rounds_them():
    """Constants take the type of what they stand beside before a kernel is made."""
    x = SHORT.astype(np.float32)
    found = native(lambda x: x * jnp.asarray(np.float64(0.1), x.dtype) + 0.3, x)(x)
    np.testing.assert_allclose(found, x * np.float32(0.1) + np.float32(0.3), rtol=2e-7)  # an ulp
    with pytest.raises(UnsupportedOperationError, match="numbers of double precision stand"):
        scalarize(lambda x: (x * np.array([0.1] * 4)).astype(x.dtype), x)
