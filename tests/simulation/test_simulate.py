"""`simulate`: orders, agreement of formulations, power balance, failing lanes, no recompilation."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    simulate,
    SingularMassSolve,
    State,
)
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4, Rodas5P

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
TIGHTEST = diffrax.PIDController(rtol=1e-13, atol=1e-13)
END = diffrax.SaveAt(t1=True)


@pytest.fixture(scope="module")
def pendulum():
    """A unit pendulum and its start: rod horizontal, at rest."""
    system = CartesianPendulum()
    return system, State(*system.start())


@pytest.fixture(scope="module")
def rich(everything):
    """The system with everything in it, its consistent start, and its exact end state."""
    state = jaxdae.consistent_state(everything, [0.9, -1.2, 0.1], [0.5, 0.3, 0.2], w=[0.4])
    run = simulate(everything, Multipliers(GAINS), state, t1=1.0, stepsize_controller=TIGHT)
    return everything, state, run


class Oscillator(UnitMass):
    """A nonlinear oscillator in the plane, without constraints."""

    def potential_energy(self, t, q):
        return 2 * q @ q + q[0] ** 2 * q[1]


def _swing():
    system = CartesianPendulum()
    return system, State(*system.released_from(0.5))


def _oscillation():
    return Oscillator(), State([0.5, 0.2], [0.0, 0.3])


# solver, nominal order, motion, numbers of steps in 2 s. The steps are where the leading term of
# the error dominates and round-off (1e-14) does not matter. That of Dopri8 is so small on the
# pendulum that the next one hides it down to round-off; hence another motion. Tableaux of Bosh3 and
# Dopri5 have the published order and error constant in stability/test_stationary.py.
ORDERS = [
    (diffrax.Heun(), 2, _swing, (200, 400, 800)),
    (RK4(), 4, _swing, (100, 200, 400)),
    (diffrax.Tsit5(), 5, _swing, (80, 160, 320)),
    (diffrax.Dopri8(), 8, _oscillation, (8, 12, 16)),
    (Rodas5P(), 5, _swing, (80, 160, 320)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "order", "motion", "steps"), ORDERS, ids=[type(case[0]).__name__ for case in ORDERS]
)
def test_fixed_step_solvers_converge_with_their_nominal_order(solver, order, motion, steps):
    """The slope of the error over the step, twice in a row, is the nominal order within 0.15."""
    system, state = motion()
    exact = simulate(
        system, Multipliers(), state, t1=2.0, stepsize_controller=TIGHTEST, saveat=END
    ).final_state

    @jax.jit
    @jax.vmap
    def error(dt):
        run = simulate(system, Multipliers(), state, t1=2.0, dt=dt, solver=solver, saveat=END)
        end = run.final_state
        return jnp.hypot(jnp.linalg.norm(end.q - exact.q), jnp.linalg.norm(end.v - exact.v))

    errors = error(2.0 / np.array(steps))
    slopes = -np.diff(np.log(errors)) / np.diff(np.log(steps))
    np.testing.assert_allclose(slopes, order, atol=0.15)


def test_default_run_returns_after_the_exact_period(pendulum):
    """With all defaults 201 equally spaced times, and 1e-6-class answers after one period."""
    system, state = pendulum
    period = float(system.period(np.pi / 2))
    run = simulate(system, Multipliers(GAINS), state, t1=period)
    np.testing.assert_allclose(run.ts, np.linspace(0, period, 201), rtol=1e-14)
    np.testing.assert_allclose(run.q[-1], state.q, atol=1e-6)
    np.testing.assert_allclose(run.v[-1], 0, atol=1e-6)
    # Energy is conserved and the multiplier is the rod force along the way.
    np.testing.assert_allclose(run.energy, run.energy[0], atol=1e-6)
    exact = jax.vmap(system.multiplier)(run.q, run.v)
    np.testing.assert_allclose(run.multipliers, exact, atol=1e-5)
    assert run.success


EXACT = [
    Multipliers(GAINS),
    Multipliers(GAINS, solve=MinimumNormSolve()),
    Multipliers(GAINS, solve=SingularMassSolve(MinimumNormSolve())),
    AugmentedLagrangian(100.0, GAINS, iterations=8),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "formulation", EXACT, ids=["full rank", "minimum norm", "singular mass", "augmented"]
)
def test_formulations_agree_on_one_motion(formulation, rich):
    """All exact formulations give the motion of the richest system at all 201 times."""
    system, state, reference = rich
    run = simulate(system, formulation, state, t1=1.0)
    # The default tolerance is 1e-8 a step, on about a hundred steps.
    for got, expected in ((run.q, reference.q), (run.v, reference.v), (run.w, reference.w)):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(run.multipliers, reference.multipliers, atol=1e-5)


@pytest.mark.slow
def test_penalty_motion_approaches_the_exact_one_like_one_over_alpha(rich):
    """Ten times the weight, a tenth of the error, for the whole motion."""
    system, state, reference = rich

    @jax.jit
    @jax.vmap
    def end(alpha):
        run = simulate(
            system, Penalty(alpha, GAINS), state, t1=1.0, dt=1e-3, solver=RK4(), saveat=END
        )
        return run.final_state.q

    error = np.linalg.norm(end(np.array([1e3, 1e4, 1e5])) - reference.final_state.q, axis=1)
    # Next order: one per cent at alpha = 1e3.
    np.testing.assert_allclose(np.diff(np.log10(error)), -1, atol=0.02)


class Lag(UnitMass):
    """A unit mass pushed by an actuator of first order: `x'' = w`, `w' = u - w`."""

    def force(self, t, q, v, w, u):
        return w

    def actuator_rate(self, t, q, v, w, u):
        return u - w


class Constant(eqx.Module):
    """A controller with a weight."""

    level: float = 1.0

    def __call__(self, t, q, v, w):
        return self.level * jnp.ones_like(w)


def test_actuator_state_follows_its_own_equation():
    """u = 1 from rest: w = 1 - exp(-t), x = t^2 / 2 - t + 1 - exp(-t)."""
    state = State(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    run = simulate(Lag(), Multipliers(), state, t1=2.0, controller=Constant())
    t = np.asarray(run.ts)
    # Steps are good to 1e-8; they are long here, and between them the interpolant to 2e-7.
    np.testing.assert_allclose(run.w[:, 0], 1 - np.exp(-t), atol=1e-6)
    np.testing.assert_allclose(run.q[:, 0], 0.5 * t**2 - t + 1 - np.exp(-t), atol=1e-6)
    np.testing.assert_array_equal(run.u, np.ones((201, 1)))


ADJOINTS = [diffrax.DirectAdjoint(), diffrax.ForwardMode()]


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=["direct", "forward"])
def test_the_adjoint_changes_no_value(adjoint, pendulum):
    """Adjoints change how derivatives are found, not the motion."""
    system, state = pendulum
    run = lambda **how: simulate(system, Multipliers(), state, t1=0.5, dt=0.05, solver=RK4(), **how)  # noqa: E731
    np.testing.assert_allclose(run(adjoint=adjoint).q, run().q, rtol=1e-14, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("progress", [True, diffrax.TextProgressMeter()], ids=["bar", "text"])
def test_progress_is_shown_to_the_end(progress, pendulum, capfd):
    """A progress meter reaches 100 per cent and the result is as usual."""
    system, state = pendulum
    run = simulate(system, Multipliers(), state, t1=0.5, dt=0.05, solver=RK4(), progress=progress)
    jax.block_until_ready(run.ts)
    jax.effects_barrier()
    out, err = capfd.readouterr()
    assert "100.00%" in out + err
    assert run.success


@pytest.mark.slow
def test_single_precision_stays_single(pendulum):
    """A float32 state is simulated in float32 from end to end, at float32 accuracy."""
    system, _ = pendulum
    state = State(jnp.array([1.0, 0.0], jnp.float32), jnp.zeros(2, jnp.float32))
    run = simulate(system, Multipliers(GAINS), state, t1=1.0, work=True)
    values = (run.ts, run.q, run.v, run.multipliers, run.energy, run.work, run.violation)
    assert {str(x.dtype) for x in jax.tree.leaves(values)} == {"float32"}
    # Tolerance 1e-5 a step on about thirty steps.
    double = simulate(system, Multipliers(GAINS), State(*system.start()), t1=1.0)
    np.testing.assert_allclose(run.q, double.q, atol=5e-4)


def _led(led_point, speed):
    system = led_point(speed)
    gains = Multipliers(Baumgarte(20.0, 100.0))
    return simulate(system, gains, system.start(), t1=1.5, throw=False)


@pytest.mark.slow
def test_a_failing_lane_is_marked_and_the_others_are_right(led_point):
    """Under vmap the lane whose target leaves the circle at t = 1 fails there, and alone."""
    speeds = jnp.array([0.5, 1.0, 0.25])
    runs = jax.vmap(lambda s: _led(led_point, s))(speeds)
    np.testing.assert_array_equal(runs.success, [True, False, True])
    # Near the end y = sqrt(1 - t^2): the run comes as near as the smallest step allows.
    np.testing.assert_allclose(runs.final_time, [1.5, 1.0, 1.5], atol=1e-4)
    reached = np.isfinite(runs.ts)
    np.testing.assert_array_equal(reached.sum(axis=1), [201, 134, 201])
    assert np.isinf(runs.ts[1, 134:]).all()
    assert np.isnan(runs.q[1, 134:]).all()
    assert np.isnan(runs.multipliers[1, 134:]).all()
    assert np.isnan(runs.energy[1, 134:]).all()
    grid = np.linspace(0, 1.5, 201)
    for lane, speed in enumerate(np.asarray(speeds)):
        rows = reached[lane] & (speed * grid < 0.99)
        x = speed * grid[rows]
        exact = np.stack([x, np.sqrt(1 - x**2)], axis=1)
        # Baumgarte keeps the error of both constraints near the tolerance of 1e-8.
        np.testing.assert_allclose(runs.q[lane, rows], exact, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the step of .* is beyond the step limit:RuntimeWarning")
def test_a_fixed_step_blow_up_is_a_failure(pendulum):
    """Gains far too large for the step end in NaN, which is not success."""
    system, state = pendulum
    gains = Multipliers(Baumgarte(1e4, 1e6))
    how = {"t1": 5.0, "dt": 0.1, "solver": RK4()}
    run = simulate(system, gains, state, throw=False, **how)
    assert not run.success
    assert run.result == diffrax.RESULTS.nonfinite
    last = np.isfinite(run.ts).sum()
    assert 0 < last < run.ts.size
    assert np.isfinite(run.q[:last]).all()
    assert np.isnan(run.q[last:]).all()
    # The last state is the last finite row.
    assert run.final_time == run.ts[last - 1]
    np.testing.assert_array_equal(run.last_state.q, run.q[last - 1])
    np.testing.assert_array_equal(run.last_state.v, run.v[last - 1])
    with pytest.raises(jaxdae.SimulationError, match=r"no longer finite after t = .*reduce dt"):
        simulate(system, gains, state, **how)
