"""What parameters alone decide is computed once, and products with the sums they are part of."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, State
from jaxdae.kernels import native, scalarize
from jaxdae.kernels.tracing.invariants import split_invariants
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.models import TwoLinkManipulator


def count(program, name, varying_only=False):
    """How often an operation is needed."""
    graph = program.graph
    needed = graph.needed(program.outputs)
    return sum(
        graph.nodes[x].operation == name and not (varying_only and graph.fixed(x)) for x in needed
    )


def together(parts, in_numpy, varying, fixed):
    (values,) = in_numpy(parts.first, *fixed)
    return in_numpy(parts.rest, *varying, *fixed, values)


# What is the same in all calls.


def pendulum(t, q, mass, length):
    """Inertia, weight and a choice by parameters, of which two are used nowhere else."""
    heavy = jnp.where(mass[0] * mass[1] > 1.0, mass[0], -mass[1])
    return jnp.sin(q * t) * jnp.sqrt(mass[0] * length**2) + heavy * jnp.cos(q)


PENDULUM = (jnp.array(0.3), jnp.array([0.2, 1.1])), (jnp.array([2.0, 3.0]), jnp.array(0.7))


def test_what_parameters_decide_is_computed_apart(in_numpy):
    varying, fixed = PENDULUM
    program = scalarize(pendulum, *varying, *fixed, varying=2)
    parts = split_invariants(program, varying=2)
    found = together(parts, in_numpy, varying, fixed)
    np.testing.assert_array_equal(found[0], in_numpy(program, *varying, *fixed)[0])
    assert count(parts.first, "sqrt") == 1
    assert count(parts.rest, "sqrt") == 0
    assert count(parts.rest, "lt") == count(parts.rest, "select") == 0
    assert count(parts.rest, "mul") == 6


def test_a_program_knows_what_varies():
    program = scalarize(pendulum, *PENDULUM[0], *PENDULUM[1], varying=2)
    with pytest.raises(ValueError, match="the program has 3 varying inputs, not 1"):
        split_invariants(program, varying=1)


def test_truth_values_and_empty_parameters(in_numpy):
    """A condition on parameters between varying values stays where it is used."""

    def function(t, empty, p):
        return jnp.where(p * p > 2.0, t, -t) + jnp.sum(empty)

    given = jnp.array(1.5), jnp.zeros(0), jnp.array(3.0)
    program = scalarize(function, *given, varying=1)
    parts = split_invariants(program, varying=1)
    assert [x.shape for x in parts.first.inputs] == [(0,), ()]
    assert not any(parts.first.graph.is_boolean(x) for x in parts.first.outputs)
    assert float(together(parts, in_numpy, given[:1], given[1:])[0]) == 1.5


@pytest.mark.parametrize("first", [0, 1])
def test_constant_pivots_come_first(first, in_numpy):
    """Of a matrix of which one pivot is known beforehand, one division is left."""

    def solution(t, p):
        rows = jnp.array([[p, jnp.sin(t)], [jnp.sin(t), 3.0 + t**2]])
        order = jnp.array([first, 1 - first])
        return solve_positive_definite(rows[order][:, order], jnp.stack([t, p]))

    given = jnp.array(0.4), jnp.array(2.0)
    parts = split_invariants(scalarize(solution, *given, varying=1), varying=1)
    assert count(parts.first, "div") == count(parts.rest, "div") == 1
    found = together(parts, in_numpy, given[:1], given[1:])
    np.testing.assert_allclose(found[0], jax.jit(solution)(*given), rtol=1e-14)


# Sums of products.

SIGNS = {
    "a b + c": lambda a, b, c: a * b + c,
    "c + a b": lambda a, b, c: c + a * b,
    "a b - c": lambda a, b, c: a * b - c,
    "c - a b": lambda a, b, c: c - a * b,
    "-a b - c": lambda a, b, c: -(a * b) - c,
    "-a b + c": lambda a, b, c: -(a * b) + c,
    "c - (-a b)": lambda a, b, c: c - (-(a * b)),
    "a b + b c": lambda a, b, c: a * b + b * c,
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_product_and_a_sum_are_rounded_once_or_twice(name):
    """Exact in rational numbers; a processor without the instruction rounds the product too."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 64))
    c = -a * b * (1 + 1e-9 * rng.normal(size=64))
    found = jax.vmap(native(SIGNS[name], *[jnp.zeros(())] * 3))(a, b, c)
    for i in range(64):
        exact = SIGNS[name](*(Fraction(float(x[i])) for x in (a, b, c)))
        parts = SIGNS[name](*(float(x[i]) for x in (a, b, c)))
        size = 2.0**-53 * (abs(exact) + max(abs(a[i] * b[i]), abs(b[i] * c[i])))
        assert abs(Fraction(float(found[i])) - exact) <= size
        if name != "a b + b c":
            assert float(found[i]) in (float(exact), parts)


# Marks of what is not finite.


def test_only_what_is_not_finite_becomes_nan():
    values = np.array([0.0, -0.0, 1.5, -2.0, 5e-324, 1.7e308, np.inf, -np.inf, np.nan])
    kernel = native(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), jnp.zeros(()))
    found = np.asarray(jax.vmap(kernel)(values))
    expected = np.where(np.isfinite(values), values, np.nan)
    # XLA takes subnormal numbers as zero; kernels in its threads do as well.
    expected[4] = found[4] if abs(found[4]) <= 5e-324 else np.inf
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[:4]), np.signbit(expected[:4]))


# All of it, for the equations of motion of a mechanism.


@pytest.mark.slow
def test_the_two_link_manipulator_needs_few_operations(in_numpy):
    """Of four pivots one is known beforehand, and a fifth of the products."""
    system = TwoLinkManipulator()
    formulation = Multipliers(Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0])))
    arrays, static = eqx.partition((system, formulation), eqx.is_inexact_array_like)
    leaves, structure = jax.tree.flatten(arrays)

    def rates(t, y, *leaves):
        system, formulation = eqx.combine(jax.tree.unflatten(structure, leaves), static)
        found = formulation.vector_field(system, t, State(y[:2], y[2:], jnp.zeros(0)), None)
        return jnp.concatenate([found.q, found.v])

    given = jnp.array(0.1), jnp.concatenate(system.start())
    leaves = [jnp.asarray(x, float) for x in leaves]
    program = scalarize(rates, *given, *leaves, varying=2)
    parts = split_invariants(program, varying=2)
    assert count(parts.rest, "div") == 3
    assert count(parts.rest, "mul") < 0.8 * count(program, "mul")
    found = together(parts, in_numpy, given, leaves)[0]
    np.testing.assert_allclose(found, jax.jit(rates)(*given, *leaves), rtol=1e-12)
