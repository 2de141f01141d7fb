"""A trial of an implicit method: its own steps, traced into kernels, and the same by diffrax.

It is declared in the two lines of `Trial`, and nowhere else.
"""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae.kernels.tracing.trace import scalarize, UnsupportedOperationError
from jaxdae.solvers.base import AbstractTracedSolver


class Trial(diffrax.Kvaerno3, AbstractTracedSolver):
    """The ESDIRK method of order 3 [Kvaerno2004], traced as it is."""


class VanDerPol(UnitMass):
    """`x'' = mu (1 - x^2) x' - x`, stiff where `mu` is large."""

    mu: float = 10.0

    def potential_energy(self, t, q):
        return 0.5 * q @ q

    def force(self, t, q, v, w, u):
        return self.mu * (1 - q**2) * v


def positions(backend, starts, t1=1.0, **options):
    def one(q):
        state = jaxdae.State(q[None], jnp.zeros(1))
        run = jaxdae.simulate(
            VanDerPol(), jaxdae.Multipliers(), state, t1=t1, backend=backend,
            solver=Trial(root_finder=diffrax.VeryChord(rtol=1e-7, atol=1e-9)),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8), dt=0.01, **options,
        )  # fmt: skip
        return run.q[:, 0], run.stats["num_steps"]

    return jax.vmap(one)(starts)


@pytest.mark.slow
def test_a_kernel_makes_the_steps_of_an_implicit_method():
    """Members of one batch take different steps, and different numbers of turns for each.

    Each solves for its stages until it has converged, however long its neighbours in the same
    vector go on: what they have computed in the end is what each does alone.
    """
    starts, saveat = jnp.array([0.01, 1.0, 2.0, 3.0, 5.0]), diffrax.SaveAt(ts=jnp.linspace(0, 1, 7))
    found, steps = positions("native", starts, saveat=saveat)
    plain, plain_steps = positions("plain", starts, saveat=saveat)
    assert len(set(np.asarray(steps).tolist())) > 2
    np.testing.assert_array_equal(steps, plain_steps)
    # Turns of an iteration end at a tolerance of 1e-7, mostly far below it: both end at the same
    # turn, so that only round-off, grown along the motion, is left.
    np.testing.assert_allclose(found, plain, atol=1e-10)
    alone, _ = positions("native", starts[3:4], saveat=saveat)
    # Sums of products may be fused otherwise in vectors of another width.
    np.testing.assert_allclose(alone[0], found[3], atol=1e-12)


@pytest.mark.slow
def test_kernels_have_no_derivative_along_directions_of_such_steps():
    """Of loops that a library differentiates in reverse mode alone."""
    ones = jnp.ones(1)
    with pytest.raises(jaxdae.BackendError, match="Trial have no derivative along directions"):
        jax.jvp(lambda x: positions("native", x, t1=0.1)[0], (ones,), (ones,))


def newton(x):
    """A root of two equations by a library's iteration, and how often it turned."""

    def equations(y, x):
        return jnp.stack([y[0] ** 2 - x[0], y[0] * y[1] - 1.0])

    solver = optx.Newton(rtol=1e-10, atol=1e-12)
    found = optx.root_find(equations, solver, jnp.ones(2), x, throw=False, max_steps=30)
    return found.value, found.stats["num_steps"].astype(x.dtype)


def halved(x):
    return jax.lax.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, x[0])


@pytest.mark.parametrize("function", [newton, halved])
def test_loops_are_open_only_where_they_are_asked_for(function):
    shape = jax.ShapeDtypeStruct((1,), np.float64)
    with pytest.raises(UnsupportedOperationError, match=r"how often its loop turns|unvmap_any"):
        scalarize(function, shape, loops=True)
    assert scalarize(function, shape, loops=True, open_ended=True).graph.nodes


def test_integers_of_an_open_loop_count_turns_or_have_limits():
    def doubled(x):
        turns = lambda c: (c[0] * 2 + 1, 0.5 * c[1])  # noqa: E731
        return jax.lax.while_loop(lambda c: c[1] > 1.0, turns, (1, x[0]))[1]

    shape = jax.ShapeDtypeStruct((1,), np.float64)
    with pytest.raises(UnsupportedOperationError, match="integers beyond"):
        scalarize(doubled, shape, loops=True, open_ended=True)


def test_long_sides_of_conditions_are_left_out_where_they_are_not_taken():
    def long(x):
        for _ in range(300):
            x = jnp.sin(x)
        return x

    def sides(x):
        return jax.lax.cond(x[0] > 1.0, long, lambda x: 2 * x, x)

    shape = jax.ShapeDtypeStruct((1,), np.float64)
    always, where_taken = (scalarize(sides, shape, loops=True, open_ended=x) for x in (False, True))
    outside = [len(x.graph.needed(x.outputs)) for x in (always, where_taken)]
    assert outside[0] > 300 > 30 > outside[1]
