"""Roots by the implicit function theorem: to every order, in both modes, traced where needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from jaxdae.derivatives.implicit import implicit_root


def cube_root(a, asked=None):
    """Of `a`, by Newton's iteration, and its number of turns; `asked` grows with each tangent."""

    def solve(function, guess):
        def improved(state):
            x, turns = state
            return x - function(x) / jax.jacfwd(function)(x), turns + 1

        return jax.lax.fori_loop(0, 40, lambda _, state: improved(state), (guess, 0.0))

    def tangent(linear, right, scale):
        if asked is not None:
            asked.append(None)
        return right / linear(scale) * scale

    by_one = Partial(tangent, scale=jnp.ones_like(a))
    return implicit_root(lambda x: x**3 - a, jnp.ones_like(a), solve, by_one)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_first_and_second_order(derivative):
    root = lambda a: cube_root(a)[0]  # noqa: E731
    a = jnp.asarray(8.0)
    # a^(1/3) / (3 a), and so on; to round-off.
    np.testing.assert_allclose(derivative(root)(a), 1 / 12, rtol=1e-14)
    np.testing.assert_allclose(derivative(jax.jacrev(root))(a), -1 / 144, rtol=1e-13)
    several = jax.vmap(derivative(root))(jnp.array([1.0, 8.0, 27.0]))
    np.testing.assert_allclose(several, [1 / 3, 1 / 12, 1 / 27], rtol=1e-14)


def test_in_a_loop_what_surrounds_it_is_differentiated():
    def ends(a):
        return jax.lax.scan(lambda x, _: (cube_root(a * x)[0], None), a, length=3)[0]

    # a^(1/3 + 1/9 + 1/27 + 1/27) of a start with a itself.
    power = 1 / 3 + 1 / 9 + 1 / 27 + 1 / 27
    slope = power * 2.0 ** (power - 1)
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(ends)(2.0), slope, rtol=1e-13)


def test_what_is_said_beside_the_root_has_no_derivative():
    assert cube_root(8.0)[1] == 40
    assert jax.grad(lambda a: cube_root(a)[1])(8.0) == 0


def test_without_derivatives_no_tangent_is_traced():
    asked = []
    jax.jit(lambda a: cube_root(a, asked)[0]).trace(8.0)
    assert not asked
    jax.jit(jax.grad(lambda a: cube_root(a, asked)[0])).trace(8.0)
    assert asked
