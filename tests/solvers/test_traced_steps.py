"""A trial of an implicit method: its own steps, traced into kernels, and the same by diffrax.

It is declared in the two lines of `Trial`, and nowhere else.
"""

from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import jaxdae
from jaxdae.kernels.tracing.trace import scalarize, UnsupportedOperationError
from jaxdae.solvers.base import AbstractTracedSolver
from jaxdae.solvers.kernel_steps import step_method
from jaxdae.stability.stability_functions import amplification


class Trial(diffrax.Kvaerno3, AbstractTracedSolver):
    """The ESDIRK method of order 3 [Kvaerno2004], traced as it is."""


class VanDerPol(jaxdae.System):
    """`x'' = mu (1 - x^2) x' - x`, stiff where `mu` is large."""

    mu: float = 10.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 0.5 * q @ q

    def force(self, t, q, v, w, u):
        del t, w, u
        return self.mu * (1 - q**2) * v


class Decay(jaxdae.System):
    """`v' = -rate v`: the test equation, in the velocity."""

    decay: float = 1.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def dissipation(self, t, q, v):
        del t, q
        return 0.5 * self.decay * v @ v


def method(tolerance: float = 1e-7):
    return Trial(root_finder=diffrax.VeryChord(rtol=tolerance, atol=1e-2 * tolerance))


def positions(backend, starts, t1=1.0, **options):
    def one(q):
        state = jaxdae.State(q[None], jnp.zeros(1))
        run = jaxdae.simulate(
            VanDerPol(), jaxdae.Multipliers(), state, t1=t1, backend=backend, solver=method(),
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


def velocity(rate, dt, steps, backend: Any = "native"):
    state = jaxdae.State(jnp.zeros(1), jnp.ones(1))
    run = jaxdae.simulate(
        Decay(rate), jaxdae.Multipliers(), state, t1=dt * steps, dt=dt, solver=method(1e-9),
        backend=backend,
    )  # fmt: skip
    return run.v[-1, 0]


def test_it_multiplies_by_its_stability_function():
    for z in (-0.5, -3.0, -40.0):
        # The iteration stops at a tolerance of 1e-9.
        size = amplification(diffrax.Kvaerno3(), z)
        np.testing.assert_allclose(abs(velocity(-z, 1.0, 1)), size, atol=1e-8)


@pytest.mark.slow
def test_its_error_falls_with_the_third_power_of_the_step():
    steps = np.array([8, 16])
    errors = [abs(velocity(1.0, 1.0 / k, int(k)) - np.exp(-1.0)) for k in steps]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(3.0, abs=0.2)


@pytest.mark.slow
def test_derivatives_of_such_steps_are_those_of_the_plain_program():
    with pytest.raises(jaxdae.BackendError, match="Trial have no derivative along directions"):
        jax.jvp(lambda x: velocity(x, 0.1, 2), (1.0,), (1.0,))
    found = jax.grad(velocity)(1.0, 0.1, 2, "auto")
    # The iteration stops at a tolerance of 1e-9, which the difference divides by 1e-3.
    difference = (velocity(1.001, 0.1, 2) - velocity(0.999, 0.1, 2)) / 0.002
    np.testing.assert_allclose(found, difference, atol=1e-5)


def test_other_implicit_methods_stay_with_diffrax():
    assert "is no explicit or diagonally implicit" in str(step_method(diffrax.ImplicitEuler()))


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


class TwoSteps(AbstractTracedSolver):
    """The explicit Adams-Bashforth method of order 2: what the last step leaves is part of it."""

    term_structure: ClassVar = diffrax.ODETerm
    interpolation_cls: ClassVar = diffrax.LocalLinearInterpolation

    def order(self, terms):
        del terms
        return 2

    def init(self, terms, t0, t1, y0, args):
        del t1
        return terms.vf(t0, y0, args)

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        del made_jump
        new, h = terms.vf(t0, y0, args), terms.contr(t0, t1)
        y1 = jax.tree.map(lambda y, a, b: y + h * (1.5 * a - 0.5 * b), y0, new, solver_state)
        return y1, None, {"y0": y0, "y1": y1}, new, diffrax.RESULTS.successful


def test_steps_that_remember_are_not_differentiated_one_by_one():
    def end(rate, backend: Any):
        state = jaxdae.State(jnp.zeros(1), jnp.ones(1))
        run = jaxdae.simulate(
            Decay(rate), jaxdae.Multipliers(), state, t1=0.5, dt=0.1, solver=TwoSteps(),
            backend=backend,
        )  # fmt: skip
        return run.v[-1, 0]

    np.testing.assert_allclose(end(1.0, "native"), end(1.0, "plain"), rtol=1e-14)
    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises(jaxdae.BackendError, match="hand a state from one to the next"):
            derivative(end)(1.0, "native")
    h = 1e-5
    difference = (end(1 + h, "plain") - end(1 - h, "plain")) / (2 * h)
    np.testing.assert_allclose(jax.grad(end)(1.0, "auto"), difference, rtol=1e-9)
