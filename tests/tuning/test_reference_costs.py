"""Errors against fine runs, and the work of the control."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from jaxdae import Baumgarte, Multipliers, State, System
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.tuning import (
    Conditions,
    ControlWork,
    CoordinateError,
    EnergyDrift,
    EnergyError,
    fine_runs,
    MultiplierError,
    PerStart,
    perturbed_states,
    SimulationObjective,
    Spline,
    TrackingError,
    WeightedSum,
)

PENDULUM = CartesianPendulum()
START = State(*PENDULUM.start())
STEPS = Conditions(dt=(0.05, 0.1), t1=0.4)


def gains(x) -> Any:
    return Multipliers(Baumgarte(K_D=x[0], K_P=x[1]))


GAINS = jnp.array([8.0, 30.0])
MIDDLE = jnp.array([0.2])


@cache
def starts() -> State:
    return perturbed_states(START, jax.random.key(0), 2, 1e-2, 1e-2, system=PENDULUM)


def objective(cost: Any, **settings: Any):
    usual: dict[str, Any] = {"system": PENDULUM, "solver": RK4(), "conditions": STEPS}
    return SimulationObjective(cost, starts(), **(usual | settings))


@pytest.fixture(scope="module")
def fine():
    return fine_runs(objective(EnergyDrift()), gains(GAINS))


@pytest.mark.slow
def test_fine_runs_begin_where_those_of_the_objective_do(fine):
    """Here all from one place, whatever the batch says."""
    first = jax.tree.map(lambda x: x[0], starts())
    made = fine_runs(objective(EnergyDrift(), start=lambda _p, _s: first), gains(GAINS))
    one, other = (made.coordinates.pick(0, i)(MIDDLE) for i in (0, 1))
    np.testing.assert_array_equal(one, other)
    assert (fine.coordinates.pick(0, 0)(MIDDLE) != fine.coordinates.pick(0, 1)(MIDDLE)).any()


@pytest.fixture(scope="module")
def errors(fine):
    """Integrated squared errors, with the axes (quantities, steps, starts)."""
    kinds = (
        EnergyError(fine.energy), MultiplierError(fine.multipliers),
        CoordinateError(fine.coordinates), EnergyDrift(),
    )  # fmt: skip

    def costs(x):
        return jnp.stack([objective(cost).costs(gains(x)).reshape(2, 2) for cost in kinds])

    return jax.jit(costs)(GAINS)


def test_errors_fall_with_the_fourth_power_of_the_step(errors):
    # Squares: 2^8 for each halving, of which the next order takes some.
    ratios = errors[:3, 1] / errors[:3, 0]
    assert np.all((ratios > 2**7) & (ratios < 2**9.5))


def test_of_a_conservative_motion_the_error_of_the_energy_is_its_drift(errors, fine):
    # Both square differences of some 1e-6 of an energy of one: the fine run's own drift is 1e-13.
    np.testing.assert_allclose(errors[0], errors[3], rtol=1e-6)
    assert fine.uncertainty["energy"] < 1e-12


def test_the_fine_run_is_that_of_the_angle(fine):
    """Of SciPy: x'' of a pendulum of unit length in its angle, and the force in the rod."""
    q, v = starts().q[1], starts().v[1]
    gravity = float(PENDULUM.gravity)
    angle, rate = np.arctan2(q[0], -q[1]), v[0] * -q[1] + v[1] * q[0]
    sol = solve_ivp(
        lambda _t, y: [y[1], -gravity * np.sin(y[0])], (0, 0.4), [angle, rate],
        method="DOP853", rtol=1e-12, atol=1e-12, dense_output=True,
    )  # fmt: skip
    ts = jnp.linspace(0.0, 0.4, 23)
    theta, omega = sol.sol(np.asarray(ts))
    found = fine.coordinates.pick(0, 1)(ts)
    # The tolerance of the oracle over some steps, and an interpolation to 1e-11.
    np.testing.assert_allclose(found, np.stack([np.sin(theta), -np.cos(theta)], 1), atol=1e-10)
    # The reaction -J^T lam, with J a multiple of q, is the tension along the rod.
    tension = omega**2 + gravity * np.cos(theta)
    lam = fine.multipliers.pick(0, 1)(ts)[:, 0]
    np.testing.assert_allclose(lam / lam[0], tension / tension[0], rtol=1e-9)


@pytest.mark.slow
def test_gradients_agree_three_ways(fine):
    kinds = (
        (1e6, EnergyError(fine.energy)), (1e5, MultiplierError(fine.multipliers)),
        (1e8, CoordinateError(fine.coordinates)),
    )  # fmt: skip
    forward, reverse = (
        objective(WeightedSum(kinds), conditions=Conditions(dt=0.1, t1=0.4), mode=mode)
        for mode in ("forward", "reverse")
    )
    by_forward = jax.jit(jax.jacfwd(lambda x: forward(gains(x))))(GAINS)
    by_reverse = jax.jit(jax.grad(lambda x: reverse(gains(x))))(GAINS)
    steps = 1e-4 * jnp.diag(GAINS)
    values = jax.jit(jax.vmap(lambda x: forward(gains(x))))(
        jnp.concatenate([GAINS + steps, GAINS - steps])
    )
    differences = (values[:2] - values[2:]) / (2 * jnp.diag(steps))
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-8)
    # Truncation (1e-4)^2, and round-off of squares of differences of 1e-7 of the quantities.
    np.testing.assert_allclose(differences, by_forward, rtol=1e-5)


def test_starts_off_the_constraints_have_no_fine_run():
    off = perturbed_states(START, jax.random.key(0), 2, 1e-2)
    made = SimulationObjective(EnergyDrift(), off, system=PENDULUM, t1=0.4, dt=0.1, solver=RK4())
    with pytest.raises(ValueError, match=r"start \d is off the constraints by 0\.0"):
        fine_runs(made, gains(GAINS))


@pytest.mark.slow
def test_runs_that_do_not_converge_are_refused():
    with pytest.raises(ValueError, match=r"known to .* more than 1e-30 of it, though the step was"):
        fine_runs(objective(EnergyDrift()), gains(GAINS), accepted=1e-30)


class Drive(System):
    """A mass on a rail with a motor."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, q, v, w
        return 3.0 + u


@pytest.mark.slow
def test_a_failing_fine_run_is_refused():
    bad = State(jnp.zeros((2, 1)), jnp.array([[0.0], [1e200]]))

    class Steep(Drive):
        def force(self, t, q, v, w, u):
            del t, q, w, u
            return v**2

    made = SimulationObjective(EnergyDrift(), bad, system=Steep(), t1=0.5, dt=0.1, solver=RK4())
    with pytest.raises(ValueError, match="the run of start 1, variation 0, failed"):
        fine_runs(made, Multipliers())


class Target(eqx.Module):
    value: Any

    def __call__(self, t):
        del t
        return self.value


class Damper(eqx.Module):
    gain: Any

    def __call__(self, t, q, v, w):
        del t, q, w
        return -self.gain * v - 3.0


def damped(gain):
    return Drive(), Multipliers(), Damper(gain)


@pytest.mark.slow
def test_data_of_all_starts_are_those_of_each_member():
    """A target of its own for each start; without constraints multipliers are none."""
    states = State(jnp.array([[1.0], [2.0]]), jnp.zeros((2, 1)))
    cost = TrackingError(lambda _t, q, _v: q, Target(PerStart(jnp.array([[1.0, 2.5]]))))
    made = SimulationObjective(
        cost, states, system=Drive(), controller=lambda *_: jnp.full(1, -3.0), t1=0.2, dt=0.1,
        solver=RK4(),
    )  # fmt: skip
    # The mass stays: only the second is off, by a half.
    np.testing.assert_allclose(made.costs(Multipliers()), [0.0, 0.25 * 0.2], atol=1e-15)
    found = fine_runs(made, Multipliers())
    assert found.multipliers.pick(0, 1)(jnp.zeros(3)).shape == (3, 0)


def test_data_of_other_starts_are_refused():
    cost = TrackingError(lambda _t, q, _v: q, Target(PerStart(jnp.zeros((1, 5)))))
    with pytest.raises(
        ValueError, match=r"leading axes \(1, 5\), but there are 1 variations and 2"
    ):
        objective(cost)


def test_data_of_all_starts_serve_no_single_run(fine):
    run: Any = SimpleNamespace(ts=jnp.arange(3.0))
    with pytest.raises(ValueError, match="holds data of all starts, and only SimulationObjective"):
        EnergyError(fine.energy)(run)


def test_a_spline_is_exact_for_polynomials_of_degree_five():
    ts = np.linspace(0.0, 2.0, 12)
    powers = np.arange(6)
    spline = Spline.through(ts, np.stack([(ts[:, None] ** powers).sum(1), ts], 1))
    at = jnp.array([-1.0, 0.0, 0.37, 1.999, 2.0, 3.0])
    inside = np.clip(at, 0.0, 2.0)
    np.testing.assert_allclose(spline(at)[:, 0], (inside[:, None] ** powers).sum(1), rtol=1e-12)
    back = Spline.through(ts[::-1], ts[::-1, None])
    np.testing.assert_allclose(back(at)[:, 0], inside, atol=1e-14)


@pytest.mark.parametrize(("kind", "work"), [("absolute", 1.0), ("positive", 0.5), ("net", 0.0)])
def test_work_of_a_force_that_brakes_and_drives(kind, work):
    # Against a constant force of 3 the control of 2 takes v from -1 to 1: P = 2 (2 t - 1).
    ts = jnp.linspace(0.0, 1.0, 11)
    v = (2 * ts - 1)[:, None]
    states = State(0 * v, v, jnp.zeros((11, 0)))
    run: Any = SimpleNamespace(
        ts=ts, states=states, u=jnp.full((11, 1), 2.0), system=Drive(), success=jnp.array(True),
        final_time=ts[-1], last_state=jax.tree.map(lambda x: x[-1], states),
    )  # fmt: skip
    # The power is linear on both sides of a saved time: the trapezoidal rule is exact.
    np.testing.assert_allclose(ControlWork(kind)(run), work, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["absolute", "positive", "net"])
def test_gradients_of_work_agree_three_ways(kind):
    states = State(jnp.zeros((1, 1)), jnp.ones((1, 1)))
    forward, reverse = (
        SimulationObjective(
            ControlWork(kind), states, build=damped, t1=0.4, dt=0.1, solver=RK4(), mode=mode
        )
        for mode in ("forward", "reverse")
    )
    x, h = jnp.array(2.0), 1e-5
    slopes = [
        jax.jit(lambda x: jax.jacfwd(forward)(x))(x),
        jax.jit(lambda x: jax.grad(reverse)(x))(x),
    ]
    one = jax.jit(lambda x: forward(x))
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-12)
    np.testing.assert_allclose((one(x + h) - one(x - h)) / (2 * h), slopes[0], rtol=1e-8)


def test_work_needs_a_control_and_a_known_kind():
    with pytest.raises(ValueError, match="no controller, so it does no work"):
        ControlWork()(SimpleNamespace(u=None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r'kind is .gross., must be "absolute", "positive" or'):
        ControlWork("gross")  # pyright: ignore[reportArgumentType]
