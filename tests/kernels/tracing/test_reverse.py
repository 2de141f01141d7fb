"""Reverse mode by scalars: the derivatives of JAX, and hardly more operations than the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Multipliers
from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.kernels.graph import expressions
from jaxdae.kernels.graph.expressions import CONSTANT, INPUT
from jaxdae.kernels.tracing.reverse import reverse
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.multibody import Body, Hinge, Multibody
from jaxdae.systems import State


@jax.custom_vjp
def twice(x):
    """The identity with a derivative of two."""
    return x


twice.defvjp(lambda x: (x, None), lambda _, bar: (2.0 * bar,))


@jax.custom_jvp
def slope_alone(x):
    """Zero, with a derivative of three."""
    return jnp.zeros_like(x)


slope_alone.defjvp(lambda x, x_dot: (slope_alone(*x), 3.0 * x_dot[0]))


def solved(t, y, p):
    factor = jnp.tril(jnp.outer(p, y) + t)
    return solve_positive_definite(factor @ factor.T + jnp.eye(3), jnp.sin(y))


def looped(t, y, p):
    turn = lambda carry, row: (carry * row + jnp.sin(carry), carry[0])  # noqa: E731
    last, rows = jax.lax.scan(turn, y, jnp.stack([p, t * p, p + 1.0]))
    return last + rows


def chosen(t, y, p):
    inner = jax.lax.cond(y[0] > 0, lambda: jnp.exp(p), lambda: jnp.log(p))
    place = jnp.where(y[1] > 0, 1, 2)
    return jnp.where(y > 0.2, inner, t * y) + jnp.abs(y) * y[place] + p.at[place].set(y[0])


FUNCTIONS = {
    "operations": lambda t, y, p: jnp.sin(y) * jnp.sqrt(p) / (2.0 + jnp.cos(t * y)) - y / p,
    "inverse": lambda t, y, p: (1.0 / p) * jax.lax.rsqrt(p + y**2) + 1.0 / (t + p),
    "ties": lambda t, y, p: jnp.maximum(y, y[0]) + jnp.minimum(p, jnp.max(p)) * jnp.max(y),
    "by rules of JAX": lambda t, y, p: jnp.tanh(y) + jax.nn.relu(p) ** 1.7 + jax.nn.sigmoid(t * y),
    "large": lambda t, y, p: jax.nn.sigmoid(-800.0 * p) + jnp.clip(y, -0.1, y[2]),
    "solved": solved,
    "looped": looped,
    "chosen": chosen,
    "a rule of its own": lambda t, y, p: twice(jnp.sin(y)) * p + twice(t * y)[::-1],
    "a slope of a constant": lambda t, y, p: slope_alone(y) * p + slope_alone(p) * y,
    "kinks": lambda t, y, p: jnp.abs(y - y[0]) * p + jnp.abs(t * (p - p[2])),
    "constant": lambda t, y, p: jnp.array([1.0, 0.0, 0.0]),
    "unused": lambda t, y, p: jnp.stack([t, y[1], t]) + jax.lax.stop_gradient(p * y),
    "known": lambda t, y, p: jnp.diag(jnp.arange(3.0)) @ y + twice(jnp.array([0.0, 1.0, 2.0])) * p,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_jax(in_numpy, name):
    """At a generic place, and where two arguments of `max` are equal."""
    function = FUNCTIONS[name]
    t, y, p = np.array(0.7), np.array([0.3, -0.8, 0.3]), np.array([1.4, 0.6, 1.4])
    bar = np.array([0.5, -1.3, 0.9])
    program = reverse(function, [jax.typeof(jnp.asarray(x)) for x in (t, y, p)], (0,))
    found = in_numpy(program, t, y, bar, p)
    expected = jax.vjp(lambda y, p: function(t, y, p), y, p)[1](jnp.asarray(bar))
    for one, other in zip(found, expected, strict=True):
        # Sums in another order.
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_by_some_parameters_alone(in_numpy):
    function = lambda t, y, p, k: t * y * p + k * jnp.sum(y)  # noqa: E731
    shapes = [jax.ShapeDtypeStruct(x, float) for x in ((), (2,), (2,), ())]
    t, y, p, k = np.array(2.0), np.array([3.0, 5.0]), np.array([7.0, 11.0]), np.array(13.0)
    bar = np.array([1.0, -2.0])
    by_y, by_k = in_numpy(reverse(function, shapes, (1,)), t, y, bar, p, k)
    np.testing.assert_allclose(by_y, [14.0 - 13.0, -44.0 - 13.0])
    assert by_k == -8.0


def test_a_plane_chain_takes_no_more_than_three_times_its_operations():
    """JAX's reverse mode takes nine times as many, for cotangents of motions out of the plane."""
    rods = [
        Body(
            f"rod {i}", Hinge(f"angle {i}", axis=(0, 1, 0)), parent=f"rod {i - 1}" if i else None,
            position=(0.2 if i else 0.0, 0.0, 0.0), mass=1.0, centre=(0.1, 0.0, 0.0),
            inertia=(0.01, 0.02, 0.02),
        )
        for i in range(3)
    ]  # fmt: skip
    system, n = Multibody(rods), 3

    def rate(t, y, gravity):
        del gravity
        none = jnp.zeros(0)
        state = State(y[:n], y[n:], none)
        found = Multipliers().rate_and_multipliers(system, t, state, none)[0]
        return jnp.concatenate([found.q, found.v])

    shapes = [jax.ShapeDtypeStruct(x, float) for x in ((), (2 * n,), (3,))]

    def operations(program):
        nodes = (program.graph.nodes[x] for x in program.graph.needed(program.outputs))
        return sum(x.operation not in (INPUT, CONSTANT) for x in nodes)

    forward = operations(scalarize(rate, *shapes))
    assert operations(reverse(rate, shapes, ())) < 3 * forward


def test_what_it_leaves_to_jax():
    shapes = [jax.ShapeDtypeStruct(x, float) for x in ((), (12,), (12, 12))]

    def long(t, y, p):
        del t, p
        turn = lambda carry, _: (jnp.sin(carry) * carry[::-1] + 1.0, None)  # noqa: E731
        return jax.lax.scan(turn, y, None, 400)[0]

    with pytest.raises(UnsupportedOperationError, match="it has a loop that stays one"):
        reverse(long, shapes, (0,))
    read_twice = lambda t, y, p: jnp.tanh(p @ jnp.tanh(p @ y))  # noqa: E731
    with pytest.raises(UnsupportedOperationError, match="a large array are sums of products"):
        reverse(read_twice, shapes, (0,))


def test_what_is_a_kernel_has_a_gradient_that_is_one(monkeypatch):
    """Three times its operations; a function that may not have so many has none either."""

    def powers(t, y, p):
        for _ in range(50):
            y = jnp.sin(y * p) + t
        return y

    shapes = [jax.ShapeDtypeStruct(x, jnp.float64) for x in ((), (1,), (1,))]
    operations = 3 * 50
    monkeypatch.setattr(expressions, "MOST_OPERATIONS", operations)
    program = reverse(powers, shapes, (0,))
    made = (program.graph.nodes[x].operation for x in program.graph.needed(program.outputs))
    assert sum(x not in (CONSTANT, INPUT) for x in made) > operations
    monkeypatch.setattr(expressions, "MOST_OPERATIONS", operations // 3)
    with pytest.raises(UnsupportedOperationError, match="scalar operations are more than"):
        reverse(powers, shapes, (0,))
