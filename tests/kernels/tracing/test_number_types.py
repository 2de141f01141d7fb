"""Numbers that are not those of the kernel: rounded as their type says, or refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.kernels import native, scalarize, UnsupportedOperationError
from jaxdae.simulation.backends import BackendError

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


def test_derivatives_are_rounded_where_the_function_is():
    gradient = jax.grad(lambda x: jnp.sum(jnp.float32(0.1) * x.astype(jnp.float32)).astype(float))
    np.testing.assert_array_equal(native(gradient, SHORT)(SHORT), np.full(4, np.float32(0.1)))


COMPLEX = {
    "cast": lambda x: jnp.nan_to_num(jnp.abs(jnp.sqrt(x.astype(complex)))),
    "literal": lambda x: jnp.real(jnp.exp(1j * x)),
    "imaginary part": lambda x: (x + 0j).imag,
    "branch": lambda x: jax.lax.cond(x[0] > 0, lambda x: x * 1j, lambda x: x + 0j, x).real,
    "choice of constants": lambda x: jnp.where(x[0] > 0, 1j, 2.0).real * x,
    "loop": lambda x: jax.lax.scan(lambda c, y: (c * y, c.real), 1j, x)[1],
    "nested": lambda x: jax.vmap(jax.jit(lambda y: jax.lax.complex(y, y).real))(x),
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


class Spring(jaxdae.System):
    """A force that takes the way through complex numbers."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w, u
        return -jnp.nan_to_num(jnp.abs(jnp.sqrt(q.astype(complex))))


@pytest.mark.slow
def test_a_system_of_complex_numbers_is_left_to_jax():
    """`q'' = -sqrt(|q|)`, for which `v^2 / 2 + 2 q^(3/2) / 3` stays the same while q > 0."""
    state = jaxdae.State(jnp.array([0.8]), jnp.array([0.3]))
    settings = {"t1": 0.5, "throw": True}
    run = jaxdae.simulate(Spring(), jaxdae.Multipliers(), state, **settings)
    assert "complex numbers" in str(run.why_not_native)
    q, v = float(run.q[-1, 0]), float(run.v[-1, 0])
    energy = 0.5 * 0.3**2 + 2 * 0.8**1.5 / 3
    # The default tolerance of a run.
    assert 0.5 * v**2 + 2 * q**1.5 / 3 == pytest.approx(energy, abs=1e-5)
    with pytest.raises(BackendError, match="complex numbers depend on the inputs"):
        jaxdae.simulate(Spring(), jaxdae.Multipliers(), state, **settings, backend="native")


class Careful(jaxdae.System):
    """A spring of stiffness one, by a difference that single precision does not have."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w, u
        return -((q.astype(jnp.float64) + 1e7) - 1e7)


@pytest.mark.slow
def test_double_precision_beside_single_is_left_to_jax():
    start = jaxdae.State(jnp.array([0.5], jnp.float32), jnp.zeros(1, jnp.float32))
    settings: dict[str, Any] = {"t1": 0.2, "dt": 0.1}
    run = jaxdae.simulate(Careful(), jaxdae.Multipliers(), start, **settings)
    assert "double precision stand in a kernel of single precision" in str(run.why_not_native)
    assert run.q.dtype == jnp.float32
    # Some ten roundings of 6e-8; what single precision makes of the difference is an integer.
    np.testing.assert_allclose(run.q[:, 0], 0.5 * np.cos([0, 0.1, 0.2]), rtol=1e-6)
    with pytest.raises(BackendError, match="double precision stand in a kernel of single"):
        jaxdae.simulate(Careful(), jaxdae.Multipliers(), start, **settings, backend="native")


def test_known_numbers_of_double_precision_are_rounded_where_jax_rounds_them():
    """Constants take the type of what they stand beside before a kernel is made."""
    x = SHORT.astype(np.float32)
    found = native(lambda x: x * jnp.asarray(np.float64(0.1), x.dtype) + 0.3, x)(x)
    np.testing.assert_allclose(found, x * np.float32(0.1) + np.float32(0.3), rtol=2e-7)  # an ulp
    with pytest.raises(UnsupportedOperationError, match="numbers of double precision stand"):
        scalarize(lambda x: (x * np.array([0.1] * 4)).astype(x.dtype), x)
