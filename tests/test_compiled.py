"""Programs that are compiled ahead, and traces that they share."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.compiled import jit, shared
from jaxdae.systems import constraint_residuals


@pytest.fixture
def cubes():
    """A function that is compiled, and a list that grows whenever it is traced."""
    traced = []

    @jit
    def cube(x, *, power=3):
        traced.append(1)
        return {"cube": x**power, "same": x, "power": power}

    return cube, traced


def test_programs_serve_what_is_of_the_same_kind(cubes):
    """Other numbers, NumPy's, other threads; another shape, type or setting is another program."""
    cube, traced = cubes
    xs = [jnp.full(3, k, float) for k in range(4)]
    with ThreadPoolExecutor(4) as threads:
        first = cube(xs[0])
        found = list(threads.map(lambda x: cube(x)["cube"], [*xs, np.full(3, 2.0)]))
    np.testing.assert_array_equal(found, np.array([0, 1, 8, 27, 8.0])[:, None] * np.ones(3))
    # What is handed on is the argument itself.
    assert first["same"] is xs[0]
    assert first["power"] == 3
    assert len(traced) == 1
    assert cube(xs[2].astype(jnp.float32))["cube"].dtype == jnp.float32
    assert cube(jnp.asarray(2.0), power=2)["cube"] == 4
    assert len(traced) == 3
    with jax.default_matmul_precision("float32"):  # what it is compiled by
        cube(xs[0])
    assert len(traced) == 4
    cube(xs[0])
    assert len(traced) == 4
    jax.clear_caches()
    cube(xs[0])
    assert len(traced) == 5


def test_precision_may_be_switched(cubes):
    """An array of double precision is one of single precision where JAX has no other."""
    cube, _ = cubes
    bound = cube.bind(np.full(2, 0.1))
    for enabled, dtype in ((True, np.float64), (False, np.float32), (True, np.float64)):
        with jax.enable_x64(enabled):
            found = cube(np.full(2, 0.1))["cube"], bound()["cube"]
        assert found[0].dtype == dtype
        # One rounding for each product.
        np.testing.assert_allclose(found, 1e-3, rtol=float(8 * np.finfo(dtype).eps))


def test_programs_are_traced_inside_of_transformations(cubes):
    cube, _ = cubes
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(cube(x)["cube"], [0, 1, 8])
    f = lambda x: cube(x)["cube"]  # noqa: E731
    np.testing.assert_array_equal(jax.jit(f)(x), [0, 1, 8])
    np.testing.assert_array_equal(jax.vmap(f)(x), [0, 1, 8])
    np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(x), [0, 3, 12])
    np.testing.assert_array_equal(jax.jvp(f, (x,), (x,))[1], [0, 3, 24])
    with jax.disable_jit():
        np.testing.assert_array_equal(f(x), [0, 1, 8])


def test_what_looks_into_programs_still_does():
    """NaNs that JAX is asked to find; errors that are raised in a program."""

    @jit
    def root(x):
        return eqx.error_if(jnp.sqrt(x), x > 4, "beyond four")

    assert root(jnp.asarray(4.0)) == 2
    assert np.isnan(root(jnp.asarray(-1.0)))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        root(jnp.asarray(-1.0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="beyond four"):
        root(jnp.asarray(5.0))
    assert root(jnp.asarray(1.0)) == 1


def test_no_trace_outlives_its_program():
    """Of functions that are met one after the other, as of systems: their programs stay alone."""

    def traces():
        gc.collect()
        return sum(isinstance(x, jex.Jaxpr) for x in gc.get_objects())

    def meet(k):
        f = jit(lambda x: jnp.where(x > k, jnp.sin(x), jax.lax.fori_loop(0, 3, jnp.add, k * x)))
        return f, f(jnp.ones(2))

    kept = [meet(k) for k in (0.0, 0.5)]  # JAX keeps its own functions, which are the same in all
    before = traces()
    kept += [meet(k) for k in (2.0, 3.0)]
    assert traces() == before
    assert [float(x[0]) for _, x in kept[2:]] == [5.0, 6.0]


@pytest.fixture
def counted():
    """A function that is shared, and a list that grows whenever it is traced."""
    traced = []

    @shared
    def squares(scale, x):
        traced.append(1)
        return {"squares": scale * x**2, "none": None}

    return (lambda scale, x: squares(scale, x)["squares"]), traced


def test_programs_share_a_trace(counted):
    """And their derivatives, batches and single operations; another shape is another trace."""
    squares, traced = counted
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.jit(lambda x: squares(2.0, x))(x), [0, 2, 8])
    slopes = jax.jit(jax.jacfwd(lambda x: 1 + squares(3.0, x)))(x)
    np.testing.assert_array_equal(jnp.diagonal(slopes), [0, 6, 12])
    np.testing.assert_array_equal(jax.grad(lambda x: squares(1.5, x).sum())(x), [0, 3, 6])
    np.testing.assert_array_equal(jax.vmap(squares)(x, x), [0, 1, 8])
    assert len(traced) == 2  # a float is another kind than the number of a batch
    jax.jit(lambda x: squares(2.0, x))(jnp.arange(4.0))
    assert len(traced) == 3


def test_numbers_vary_and_whole_numbers_do_not(counted):
    """Floats compile nothing anew; 2 and 2.0 are different programs, as they give other types."""
    squares, traced = counted
    ones = jnp.ones(2, int)
    assert [squares(float(x), ones)[0] for x in range(4)] == [0, 1, 2, 3]
    assert len(traced) == 1
    assert squares(2.0, ones).dtype != squares(2, ones).dtype
    assert len(traced) == 2


def test_traces_last_until_jax_forgets(counted):
    squares, traced = counted
    for _ in range(2):
        squares(1.0, jnp.ones(2))
    jax.clear_caches()
    squares(1.0, jnp.ones(2))
    assert len(traced) == 2


def test_arguments_that_cannot_be_compared_are_not_shared():
    """Sets as an example: the function is called."""

    @shared
    def total(numbers, x):
        return sum(numbers) * x

    assert total({1, 2}, jnp.ones(())) == 3


class Driven(jaxdae.System):
    """A point on a circle whose radius is a function of time."""

    radius: Callable

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.radius(t) ** 2])


@pytest.mark.slow
def test_functions_may_close_over_traced_numbers():
    """The derivative by a number that only a function in the system knows."""
    q, v = jnp.array([0.6, 0.8]), jnp.zeros(2)

    def residual(rate, t):
        system = Driven(lambda t: 1 + rate * t)
        return constraint_residuals(system, t, q, v).phi[0]

    for rate in (0.5, 1.5):
        for slope in (jax.grad(residual), jax.jit(jax.grad(residual))):
            assert slope(rate, 2.0) == pytest.approx(-2 * 2.0 * (1 + 2 * rate), rel=1e-12)


def test_a_program_is_compiled_without_an_option_that_xla_does_not_know():
    """Options come and go with releases; a result has those of its shapes."""
    seen = []

    def options(result):
        seen.append(result.shape)
        return {"xla_no_such_option": True, "xla_backend_optimization_level": 0, "xla_none": 1}

    double = jit(lambda x: jnp.stack([x, x]), options=options)
    np.testing.assert_array_equal(double(jnp.asarray(1.5)), [1.5, 1.5])
    assert seen == [(2,)]
