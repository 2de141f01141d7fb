"""A trial of methods that enforce the constraints themselves, on equations without a formulation.

Half-explicit Runge-Kutta methods of index 2 [BraseyHairer1993]: stages are explicit, and the
multipliers of each are such that the next one, the last of them the end of the step, satisfies the
constraints at velocity level.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import MassOnCircle
from jaxdae import solvers
from jaxdae.solvers import ConstrainedTerm
from jaxdae.solvers.base import AbstractTracedSolver


class HalfExplicit(diffrax.AbstractSolver):
    """Half-explicit steps: Euler's, of order 1, or those of the midpoint, of order 2."""

    stages: int = 1
    term_structure: ClassVar = ConstrainedTerm
    interpolation_cls: ClassVar[Callable] = diffrax.LocalLinearInterpolation

    def order(self, terms):
        return self.stages

    def init(self, terms, t0, t1, y0, args):
        del terms, t0, t1, y0, args

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        h, t, y = terms.contr(t0, t1), t0, y0
        changes: list = []
        for row in (((1.0,),), ((0.5,), (0.0, 1.0)))[self.stages - 1]:
            here, before = terms.vf(t, y, args), total(y0, row, changes)
            t = t0 + sum(row) * h
            change, y = self.stage(terms, t, here, before, row[-1], h, args)
            changes.append(change)
        return y, None, {"y0": y0, "y1": y}, None, diffrax.RESULTS.successful

    def stage(self, terms, t, here, before, weight, h, args):
        """Change in a step with the acceleration of a stage, and the state to which it leads."""

        def reached(acceleration):
            change = terms.prod(here.rate(acceleration), h)
            return change, total(before, (weight,), [change])

        def lacking(acceleration):
            return terms.vf(t, reached(acceleration)[1], args).dynamics.phi_dot

        return reached(constrained(here.dynamics, lacking))


class Traced(HalfExplicit, AbstractTracedSolver):
    """The same, whose steps kernels trace."""


def total(y0, weights, changes):
    """`y0 + sum_j a_j h f_j`."""
    for a, change in zip(weights, changes, strict=False):
        y0 = jax.tree.map(lambda y, x, a=a: y + a * x, y0, change)
    return y0


def constrained(d, residual):
    """`M a + J^T lam = f` with the multipliers for which a residual vanishes that is affine."""
    free, spread = jnp.linalg.solve(d.mass, d.force), jnp.linalg.solve(d.mass, d.jac.T)
    off = lambda lam: residual(free - spread @ lam)  # noqa: E731
    none = jnp.zeros(d.gamma.size)
    return free + spread @ jnp.linalg.solve(jax.jacfwd(off)(none), off(none))


def run(solver, dt, formulation=None, **options):
    """From `(1, 0)` with a velocity of 1 m/s along the circle."""
    state = MassOnCircle().start()
    formulation = jaxdae.Multipliers() if formulation is None else formulation
    settings: dict[str, Any] = {"t1": 1.0} | options
    return jaxdae.simulate(MassOnCircle(), formulation, state, dt=dt, solver=solver, **settings)


@pytest.mark.parametrize("stages", [1, 2])
def test_order_and_constraints(stages):
    angle = 2 * (1 - np.exp(-0.5))  # of a speed that falls as exp(-t / 2)
    exact = np.array([np.cos(angle), np.sin(angle)])
    runs = [run(HalfExplicit(stages), dt) for dt in (1 / 20, 1 / 40)]
    errors = [np.abs(x.q[-1] - exact).max() for x in runs]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(stages, abs=0.25)
    # At velocity level they hold to round-off, at position level to the order of the method.
    assert np.abs(runs[1].violation.phi_dot).max() < 1e-14
    assert np.abs(runs[1].violation.phi).max() > 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"controller": lambda t, q, v, w: -0.3 * v + t},
        pytest.param(
            {"t1": 0.0, "t0": 1.0, "saveat": diffrax.SaveAt(ts=jnp.linspace(1, 0, 7))},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["controlled", "backward"],
)
def test_kernels_make_its_steps(options):
    dt = -0.05 if "t0" in options else 0.05
    native, plain, chosen = (
        run(Traced(2), dt, backend=x, **options) for x in ("native", "plain", "auto")
    )
    assert chosen.backend == native.backend == "native"
    # Round-off of twenty steps.
    np.testing.assert_allclose(native.q, plain.q, atol=1e-14)
    np.testing.assert_allclose(native.v, plain.v, atol=1e-14)
    np.testing.assert_allclose(native.multipliers, plain.multipliers, atol=1e-13)


@pytest.mark.slow
def test_derivatives_of_its_steps_in_kernels():
    """Both modes, differences, and beside a member that fails."""

    def end(scale, backend: Any = "native"):
        state = jaxdae.State(jnp.array([1.0, 0.0]), scale * jnp.array([0.0, 1.0]))
        made = jaxdae.simulate(
            MassOnCircle(), jaxdae.Multipliers(), state, t1=0.2, dt=0.05, solver=Traced(2),
            backend=backend, throw=False,
        )  # fmt: skip
        return made.q[-1, 0]

    plain = jax.grad(lambda x: end(x, "plain"))(1.0)
    for slope in (jax.grad(end)(1.0), jax.jacfwd(end)(1.0)):
        np.testing.assert_allclose(slope, plain, rtol=1e-12)
    # Of second order in the difference.
    np.testing.assert_allclose(plain, (end(1.001) - end(0.999)) / 0.002, rtol=1e-5)
    slopes = jax.vmap(jax.grad(end))(jnp.array([1.0, jnp.nan]))
    np.testing.assert_allclose(slopes[0], plain, rtol=1e-12)


def test_what_does_not_fit_is_refused_by_type():
    stabilized = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=1.0, K_P=1.0))
    for formulation in (stabilized, jaxdae.Penalty(1e-3), jaxdae.Hamiltonian()):
        with pytest.raises(ValueError, match=r"enforces the constraints itself.*Multipliers\(\)"):
            run(HalfExplicit(), 0.1, formulation)
    with pytest.raises(ValueError, match="leave work=True out"):
        run(HalfExplicit(), 0.1, work=True)
    with pytest.raises(ValueError, match="HalfExplicit is no explicit or diagonally implicit"):
        run(HalfExplicit(), 0.1, backend="native")


class Doubles(jaxdae.System):
    """A mass on a circle whose declaration has constants of double precision."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ (jnp.ones(2, np.float64) * v)

    def potential_energy(self, t, q):
        return q @ jnp.array([0.0, 9.81], np.float64)

    def position_constraints(self, t, q):
        return q @ q - jnp.ones(1, np.float64)


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        (solvers.HalfExplicit(), {}),
        (solvers.Rattle(), {"dt": 0.01}),
        pytest.param(solvers.GeneralizedAlpha(0.8), {}, marks=pytest.mark.slow),
        pytest.param(solvers.RadauIIA(), {}, marks=pytest.mark.slow),
        pytest.param(solvers.AdamsBashforth(6), {"dt": 0.01}, marks=pytest.mark.slow),
    ],
    ids=["half-explicit", "rattle", "generalized-alpha", "radau", "adams"],
)
def test_single_precision_of_a_declaration_with_doubles(solver, settings):
    states = [jaxdae.State(np.array([1.0, 0.0], x), np.zeros(2, x)) for x in (np.float32, float)]
    runs = [
        jaxdae.simulate(Doubles(), jaxdae.Multipliers(), x, t1=0.3, solver=solver, **settings)
        for x in states
    ]
    assert runs[0].q.dtype == np.float32
    # Tolerances of 1e-5 in single precision, of methods down to order 2.
    np.testing.assert_allclose(runs[0].q[-1], runs[1].q[-1], atol=3e-4)
