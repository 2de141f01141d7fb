"""Explicit-implicit methods: orders, long steps over stiff parts, what is refused."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae import (
    BackendError,
    Baumgarte,
    Multipliers,
    Penalty,
    RealizingForces,
    simulate,
    State,
)
from jaxdae.formulations import LaggedLaw, LinearLaw
from jaxdae.models import CartesianPendulum
from jaxdae.simulation.field import field
from jaxdae.simulation.split import explicit_field, implicit_field
from jaxdae.solvers import Projected, RK4

PENDULUM = CartesianPendulum(1.3, 0.9)
START = State(*PENDULUM.start())
OFF = State([0.5, 0.3], [0.2, 0.7])
GAINS = Baumgarte(K_D=3.0, K_P=40.0)
END = diffrax.SaveAt(t1=True)


def iterated(kind, tolerance=1e-12) -> Any:
    return kind(root_finder=optx.Newton(rtol=tolerance, atol=tolerance))


def end(solver, formulation: Any = None, system: Any = PENDULUM, start=START, **settings):
    formulation = Multipliers(GAINS) if formulation is None else formulation
    settings = {"t1": 0.5, "saveat": END, **settings}
    return simulate(system, formulation, start, solver=solver, **settings)


class Sprung(UnitMass):
    """A mass on a stiff spring whose other end moves, and one that it drives at its resonance."""

    stiffness: float | jax.Array = 1e8
    damping: float = 2e4

    def potential_energy(self, t, q):
        stiff = 0.5 * self.stiffness * (q[0] - 0.1 * jnp.sin(t)) ** 2
        return stiff + 0.5 * q[1] ** 2 + 0.3 * q[0] * q[1]

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v[0] ** 2

    def stiff_force(self, t, q, v, w, u):
        spring = self.stiffness * (q[0] - 0.1 * jnp.sin(t)) + self.damping * v[0]
        return jnp.stack([-spring, jnp.zeros_like(spring)])


SPRUNG = State([0.0, 1.0], [0.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order"),
    [(diffrax.Sil3, 2), (diffrax.KenCarp4, 4)],
    ids=lambda x: x.__name__ if isinstance(x, type) else str(x),
)
def test_orders_of_the_split(kind, order):
    """Of stabilized multipliers with gains that are not stiff."""
    exact = end(diffrax.Dopri8(), dt=0.5 / 200).last_state.q
    found = [end(iterated(kind), dt=0.5 / n).last_state.q for n in (20, 40)]
    errors = [float(jnp.abs(x - exact).max()) for x in found]
    # Up to the next order.
    np.testing.assert_allclose(np.log2(errors[0] / errors[1]), order, atol=0.2)


@pytest.mark.parametrize(
    ("formulation", "system", "start"),
    [
        (Penalty(10.0, GAINS), PENDULUM, OFF),
        (
            RealizingForces(LaggedLaw(LinearLaw(5.0), 0.1, 2)),
            PENDULUM,
            State([0.5, 0.3], [0.2, 0.7]),
        ),
        (Multipliers(), Sprung(), State([0.1, 1.0], [0.3, 0.2])),
    ],
    ids=["penalty", "late law", "stiff force"],
)
def test_the_parts_add_up_and_the_explicit_one_knows_nothing_stiff(formulation, system, start):
    t, args = jnp.asarray(0.3), (system, formulation, None)
    y = (formulation.init(system, t, start), None)
    whole, explicit, implicit = (
        f(t, y, args)[0] for f in (jax.jit(field), explicit_field, implicit_field)
    )
    for a, b, c in zip(*map(jax.tree.leaves, (explicit, implicit, whole)), strict=True):
        np.testing.assert_allclose(
            a + b, c, rtol=1e-14, atol=1e-14 * float(jnp.abs(c).max(initial=0.0))
        )
    np.testing.assert_array_equal(explicit.q, 0.0)
    # Gravity, or the weak spring: through the penalty of a pendulum what is left of it.
    weak = {Multipliers: [-0.3, -1.03], RealizingForces: [0.0, -9.81]}
    if type(formulation) in weak:
        np.testing.assert_allclose(explicit.v, weak[type(formulation)], atol=1e-7)  # of 1e8
    assert float(jnp.abs(implicit.v).max()) > 1.0


@pytest.mark.slow
def test_steps_are_fifty_times_those_that_an_explicit_method_bears():
    """A penalty of gains `2e4`, `1e8`: both roots near `-1e4`, and RK4 bears `2.79 / 1e4` s."""
    stiff = Penalty(50.0, Baumgarte(K_D=2e4, K_P=1e8))
    limit = 2.79e-4
    settings = {"formulation": stiff, "t1": 1000 * limit, "throw": False}
    exact = end(diffrax.Dopri8(), Multipliers(), t1=1000 * limit).last_state.q
    long = end(iterated(diffrax.KenCarp4, 1e-8), dt=50 * limit, **settings)
    projected = end(Projected(iterated(diffrax.KenCarp4, 1e-8)), dt=50 * limit, **settings)
    with pytest.warns(RuntimeWarning, match="beyond the step limit of the gains"):
        short = end(RK4(), dt=1.25 * limit, **settings)
    assert int(long.stats["num_steps"]) == 20
    for made in (long, projected):
        # The truncation error of steps of 0.014 s, and the penalty's own of some 1e-6.
        np.testing.assert_allclose(made.last_state.q, exact, rtol=0, atol=3e-5)
    assert not short.success


@pytest.mark.slow
def test_a_stiff_force_is_stepped_over():
    """A spring of frequency 1e4: its mass follows its end, and drives the other one by it."""
    solver = iterated(diffrax.KenCarp4, 1e-8)
    start = State([0.0, 1.0], [0.1, 0.0])
    # What steps leave of the spring's length is much of its energy.
    with pytest.warns(RuntimeWarning, match="energy balance"):
        made = end(solver, Multipliers(), Sprung(), start, dt=0.05, t1=1.0)
    # The damper of the stiff mass bends its spring by 0.1 K_D / K_P.
    np.testing.assert_allclose(made.last_state.q[0], 0.1 * np.sin(1.0), rtol=0, atol=5e-5)
    # y'' + y = -0.03 sin t
    driven = 1.015 * np.cos(1.0) - 0.015 * np.sin(1.0)
    np.testing.assert_allclose(made.last_state.q[1], driven, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_adaptive_steps_works_and_runs_backward_in_time():
    choice = diffrax.PIDController(rtol=1e-7, atol=1e-7)
    finder = diffrax.with_stepsize_controller_tols(optx.Newton)()
    settings: Any = {
        "solver": diffrax.KenCarp5(root_finder=finder), "stepsize_controller": choice, "work": True
    }  # fmt: skip
    there = end(**settings)
    assert there.backend == "plain"
    assert "KenCarp5 splits the rate into an explicit and an implicit part" in str(
        there.why_not_native
    )
    np.testing.assert_allclose(there.last_state.q, end(RK4(), dt=1e-3).last_state.q, atol=1e-6)
    work = simulate(PENDULUM, Multipliers(GAINS), START, t1=0.5, solver=RK4(), dt=1e-3, work=True)
    np.testing.assert_allclose(there.work.constraint[-1], work.work.constraint[-1], atol=1e-5)
    back = end(**settings | {"start": there.last_state, "t0": 0.5, "t1": 0.0})
    np.testing.assert_allclose(back.last_state.q, START.q, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_derivatives_by_the_stiffness():
    """Forward and reverse mode, and central differences of the logarithm."""

    def of(power, adjoint):
        system = Sprung(10.0**power, 20.0)
        made = end(
            iterated(diffrax.KenCarp4), Multipliers(), system, SPRUNG, dt=0.05, adjoint=adjoint
        )
        return made.last_state.q[0]

    found = [
        float(jax.jit(derivative(lambda x, a=adjoint: of(x, a)))(2.0))
        for derivative, adjoint in (
            (jax.jacfwd, diffrax.ForwardMode()),
            (jax.grad, diffrax.RecursiveCheckpointAdjoint()),
        )
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    value = jax.jit(lambda x: of(x, diffrax.DirectAdjoint()))
    # Truncation of the difference, step^2 / 6 times the third derivative.
    np.testing.assert_allclose(found[0], (value(2.001) - value(1.999)) / 2e-3, rtol=1e-5)


def test_what_has_no_stiff_part_is_refused():
    solver = iterated(diffrax.KenCarp4)
    with pytest.raises(ValueError, match=r"nothing is stiff here: Multipliers stabilizes nothing"):
        end(solver, Multipliers(), dt=0.1)
    with pytest.raises(BackendError, match="KenCarp4 splits the rate into an explicit and an impl"):
        end(solver, dt=0.1, backend="native")
    with pytest.raises(ValueError, match="KenCarp4 with a fixed step has no tolerance"):
        end(diffrax.KenCarp4(), dt=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("saveat", [None, diffrax.SaveAt(ts=[0.1, 0.25])], ids=["rows", "times"])
def test_single_precision_between_steps(saveat):
    """Dense output of these methods is of double precision, whatever the states are of."""
    single = State(*(np.asarray(x, np.float32) for x in (START.q, START.v)))
    finder = diffrax.with_stepsize_controller_tols(optx.Newton)()
    runs = [
        end(diffrax.KenCarp3(root_finder=finder), start=start, saveat=saveat, t1=0.25)
        for start in (single, START)
    ]
    assert runs[0].q.dtype == np.float32
    # Tolerances of 1e-5 in single precision.
    np.testing.assert_allclose(runs[0].q, runs[1].q, atol=1e-4)


def test_a_stiff_force_that_is_no_number_is_named():
    class Wrong(Sprung):
        def stiff_force(self, t, q, v, w, u):
            return jnp.log(-1.0 - q**2)

    with pytest.raises(jaxdae.SimulationError, match=r"Wrong\.stiff_force is not finite: entry 0"):
        end(diffrax.Sil3(), Multipliers(), Wrong(), SPRUNG)


@pytest.mark.slow
def test_iterations_that_keep_one_jacobian_are_named_where_steps_are_used_up():
    """What shortened the steps is not known; Newton's method itself is not advised again."""
    finder = diffrax.with_stepsize_controller_tols(optx.Newton)()
    with pytest.raises(jaxdae.SimulationError, match=r"stages of KenCarp3 by Newton's method"):
        end(diffrax.KenCarp3(), max_steps=5)
    with pytest.raises(jaxdae.SimulationError, match=r"stiff for the solver[^(]*\(jaxdae\.solve"):
        end(diffrax.KenCarp3(root_finder=finder), max_steps=5)


def test_a_stiff_force_of_another_shape_is_refused():
    class Wrong(Sprung):
        def stiff_force(self, t, q, v, w, u):
            return q[:1]

    with pytest.raises(ValueError, match=r"Wrong.stiff_force returned shape \(1,\); expected shap"):
        end(RK4(), Multipliers(), Wrong(), SPRUNG, dt=0.1)
