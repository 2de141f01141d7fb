"""Traces that programs share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.compiled import shared
from jaxdae.systems import constraint_residuals


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
        del t, q
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
