from types import SimpleNamespace
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, simulate, State, System
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import Projected, RK4
from jaxdae.systems import Violation
from jaxdae.tuning import (
    ControlEffort,
    EnergyDrift,
    IntegratedViolation,
    Logarithm,
    perturbed_states,
    Positive,
    SimulationObjective,
    TrackingError,
    tune,
    WeightedSum,
)

PENDULUM = CartesianPendulum()
START = State(*PENDULUM.start())
FIXED: dict[str, Any] = {"t1": 0.3, "dt": 0.01, "solver": RK4()}


@pytest.fixture(scope="module")
def starts():
    return perturbed_states(START, jax.random.key(0), 4, 1e-2, 1e-2)


def gains(x):
    return Multipliers(Baumgarte(K_D=x[0], K_P=x[1]))


def objective(starts, cost=None, **settings):
    usual: dict[str, Any] = {"system": PENDULUM} | FIXED
    cost = IntegratedViolation() if cost is None else cost
    return SimulationObjective(cost, starts, **(usual | settings))


def one_run(**settings):
    run: dict[str, Any] = FIXED | {"start_tolerance": None} | settings
    return simulate(PENDULUM, gains([5.0, 20.0]), START, **run)


@pytest.mark.slow
def test_integrated_violation_is_the_trapezoidal_rule():
    run = one_run()
    phi, phi_dot = np.asarray(run.violation.phi), np.asarray(run.violation.phi_dot)
    density = 2.0 * (phi**2).sum(1) + 3.0 * (phi_dot**2).sum(1)
    expected = np.trapezoid(density, run.ts)
    # Sums of thirty positive terms in another order.
    np.testing.assert_allclose(
        IntegratedViolation(2.0, 3.0, from_start=True)(run), expected, rtol=1e-12
    )


def made_up(**columns) -> Any:
    """A trajectory of given columns."""
    return SimpleNamespace(success=jnp.array(True), **columns)


@pytest.mark.parametrize("from_start", [True, False])
def test_integrated_violation_from_the_start_or_after_it(from_start):
    h, n = 0.1, 10
    ts = h * jnp.arange(n + 1)
    violation = Violation(phi=(ts - 2.0)[:, None], phi_dot=jnp.zeros((n + 1, 1)))
    run = made_up(ts=ts, violation=violation)
    # Sums of squares: of (k h)^2 with k = 11..20 for the right ends, which run from -1.9 to -1.
    right = h**3 * (19 * 20 * 39 - 9 * 10 * 19) / 6
    # The trapezoidal rule has half of the first term, (-2)^2, and half of the last, (-1)^2.
    expected = right + 0.5 * h * (2.0**2 - 1.0**2) if from_start else right
    # Eleven positive terms in another order.
    np.testing.assert_allclose(IntegratedViolation(from_start=from_start)(run), expected, 1e-13)


def test_by_default_every_constraint_counts_at_the_level_at_which_it_is_declared():
    """A user means that residuals shall be small, and can change neither the start nor its rate."""
    ts = jnp.array([0.0, 0.5, 0.7])
    phi, g = jnp.array([[9.0], [0.2], [0.1]]), jnp.array([[9.0], [0.3], [0.4]])
    run = made_up(ts=ts, violation=Violation(phi=phi, phi_dot=jnp.hstack([100 * phi, g])))
    expected = 0.5 * (0.2**2 + 0.3**2) + 0.2 * (0.1**2 + 0.4**2)
    np.testing.assert_allclose(IntegratedViolation()(run), expected, rtol=1e-13)
    # With the square of a time of 0.01 s the rates come to the unit of the residuals.
    weighted = IntegratedViolation(velocity=jnp.array([1e-4, 1.0]))(run)
    twice = expected + 0.5 * 0.2**2 + 0.2 * 0.1**2
    np.testing.assert_allclose(weighted, twice, rtol=1e-13)


def test_without_the_start_an_offset_there_does_not_count():
    def cost(offset):
        phi = jnp.array([[offset], [0.2], [0.1]])
        violation = Violation(phi=phi, phi_dot=0.0 * phi)
        run = made_up(ts=jnp.array([0.0, 0.5, 0.7]), violation=violation)
        return IntegratedViolation(from_start=False)(run)

    # Steps of 0.5 and 0.2 times the squares at their right ends.
    np.testing.assert_allclose(cost(7.0), 0.5 * 0.04 + 0.2 * 0.01, rtol=1e-13)
    assert cost(7.0) == cost(0.0)


def test_tracking_error_integrates_the_squared_distance():
    cost = TrackingError(lambda t, _q, _v: t * jnp.ones(1), lambda _t: jnp.zeros(1), weight=2.0)
    # The trapezoidal rule errs by h^2 / 12 times the difference of the end slopes of 2 t^2.
    exact, error = 2 * 0.3**3 / 3, 0.01**2 / 12 * 4 * 0.3
    np.testing.assert_allclose(cost(one_run()), exact + error, rtol=1e-12)


def constant_input(*_):
    return jnp.array([3.0, 1.0])


@pytest.mark.parametrize("weight", [2.0, jnp.array([2.0, 2.0]), 2.0 * jnp.eye(2)])
def test_control_effort_integrates_the_weighted_input(weight):
    run = one_run(controller=constant_input)
    # A constant integrand: the trapezoidal rule is exact.
    np.testing.assert_allclose(ControlEffort(weight)(run), 2.0 * 10.0 * 0.3, rtol=1e-12)


def input_run(u):
    """Two seconds under inputs given at 0, 1 and 2."""
    return made_up(ts=jnp.arange(3.0), u=u)


def test_control_effort_of_a_scalar_input():
    # Trapezoidal rule of 2 (1, 4, 9), at steps of one: 2 (1 / 2 + 4 + 9 / 2).
    np.testing.assert_allclose(ControlEffort(2.0)(input_run(jnp.array([1.0, 2.0, 3.0]))), 18.0)
    run = one_run(controller=lambda t, *_: 3.0 + 0.0 * t)
    np.testing.assert_allclose(ControlEffort(2.0)(run), 2.0 * 9.0 * 0.3, rtol=1e-12)


def test_control_effort_of_an_input_matrix_is_that_of_its_entries():
    u = jnp.arange(12.0).reshape(3, 2, 2)
    weight = jnp.array([1.0, 2.0, 3.0, 4.0])
    expected = ControlEffort(weight)(input_run(u.reshape(3, 4)))
    np.testing.assert_array_equal(ControlEffort(weight)(input_run(u)), expected)


def test_control_effort_needs_an_array_and_a_weight_that_fits():
    with pytest.raises(ValueError, match=r"controller returns a dict, not an array; let it return"):
        ControlEffort()(input_run({"torque": jnp.ones(3)}))
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), which does not fit 3 inputs"):
        ControlEffort(jnp.ones(2))(input_run(jnp.ones((3, 3))))
    with pytest.raises(ValueError, match=r"does not fit 1 inputs; give a scalar, a vector of 1"):
        ControlEffort(jnp.ones(2))(input_run(jnp.ones(3)))


def test_control_effort_needs_a_controller():
    with pytest.raises(ValueError, match="no controller, so there is no effort"):
        ControlEffort()(one_run())


@pytest.mark.slow
def test_energy_drift_falls_with_the_step():
    # A drift of order 4 or 5 is squared: halving the step divides the cost by 2^8 or more.
    coarse, fine = (EnergyDrift()(one_run(dt=dt)) for dt in (0.02, 0.01))
    assert 0 < fine < coarse / 2**7


def test_a_weighted_sum_is_the_sum():
    run, parts = one_run(), (IntegratedViolation(), EnergyDrift())
    total = WeightedSum(((2.0, parts[0]), (0.5, parts[1])))(run)
    np.testing.assert_allclose(total, 2.0 * parts[0](run) + 0.5 * parts[1](run), rtol=1e-12)


@pytest.mark.slow
def test_the_cost_of_a_failed_run_is_nan():
    cost = IntegratedViolation()
    assert np.isnan(cost(one_run(dt=None, solver=None, max_steps=3, throw=False)))


@pytest.mark.slow
def test_unused_rows_count_nothing():
    adaptive = {"dt": None, "solver": diffrax.Tsit5(), "max_steps": 64}
    saved = one_run(saveat=diffrax.SaveAt(t0=True, steps=True), **adaptive)
    used = np.isfinite(saved.ts)
    assert 1 < used.sum() < used.size
    phi, phi_dot = (np.asarray(x)[used] for x in (saved.violation.phi, saved.violation.phi_dot))
    density = 2.0 * (phi**2).sum(1) + 3.0 * (phi_dot**2).sum(1)
    expected = np.trapezoid(density, np.asarray(saved.ts)[used])
    # Sums of some positive terms in another order.
    np.testing.assert_allclose(
        IntegratedViolation(2.0, 3.0, from_start=True)(saved), expected, rtol=1e-12
    )


# Times of steps are beside the computed ends of the steps by round-off. A backward pass that
# repeats steps may put such a row on the other side and lose it: 5 % of the gradient in this case.
STEP_TIMES = (0.01 * jnp.arange(46)).at[-1].set(0.45)


@pytest.mark.slow
@pytest.mark.parametrize("ts", [STEP_TIMES, jnp.array([0.0, 0.095, 0.2])])
def test_gradients_agree_in_forward_and_reverse_mode_and_with_differences(starts, ts):
    x = jnp.array([8.0, 30.0])
    cost = TrackingError(lambda _t, q, _v: q, lambda _t: jnp.array([2.0, 1.0]))
    saveat = diffrax.SaveAt(ts=ts)
    forward, reverse = (
        objective(starts, cost, saveat=saveat, mode=m, t1=0.45) for m in ("forward", "reverse")
    )
    by_forward = jax.jit(jax.jacfwd(lambda x: forward(gains(x))))(x)
    by_reverse = jax.jit(jax.grad(lambda x: reverse(gains(x))))(x)
    loss = jax.jit(lambda x: forward(gains(x)))
    steps = 1e-4 * jnp.diag(x)
    differences = jnp.stack([(loss(x + s) - loss(x - s)) / (2 * s.sum()) for s in steps])
    # Round-off of two orders of evaluation of the same sums.
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-9)
    # Central differences: truncation (1e-4)^2 and round-off 1e-16 / 1e-4 over the derivative.
    np.testing.assert_allclose(differences, by_forward, rtol=1e-5)


def weak_gains(dtype) -> Multipliers:
    start: list[Any] = [Positive(jnp.array(x, dtype)) for x in (2.0, 4.0)]
    return Multipliers(Baumgarte(*start))


@pytest.fixture(scope="module")
def results(starts):
    """Tuned in forward and in reverse mode."""
    params = weak_gains(jnp.float64)
    # With rates and the start counted, as much of the loss is left as gains can change.
    cost = IntegratedViolation(velocity=1.0, from_start=True)
    modes = ("forward", "reverse")
    return [tune(objective(starts, cost, mode=m), params, steps=25) for m in modes]


@pytest.mark.slow
def test_tuned_gains_violate_less_in_both_modes(results):
    for result in results:
        assert result.loss < 0.7 * result.initial_loss
        assert result.budget == "RK4, h = 0.01 s, 30 steps, 4 starts"
        assert result.budget in result.summary()
    # The same gradients up to round-off, twenty-five steps of Adam.
    np.testing.assert_allclose(results[0].history.loss, results[1].history.loss, rtol=1e-7)
    tuned = results[0].params.stabilization
    assert tuned.K_D > 2.0


@pytest.mark.slow
def test_a_loss_is_the_mean_over_the_starts(starts):
    made = objective(starts)
    costs = made.costs(gains([5.0, 20.0]))
    one = simulate(
        PENDULUM,
        gains([5.0, 20.0]),
        jax.tree.map(lambda x: x[2], starts),
        **FIXED,
        start_tolerance=None,
    )
    np.testing.assert_allclose(costs[2], IntegratedViolation()(one), rtol=1e-9)
    np.testing.assert_allclose(made(gains([5.0, 20.0])), np.mean(costs), rtol=1e-12)


@pytest.mark.slow
def test_a_logarithm_makes_gradients_relative(starts):
    plain = objective(starts)
    logarithm = Logarithm(plain)
    x = jnp.array([8.0, 30.0])
    loss, gradient = jax.jit(jax.jacfwd(lambda x: 2 * (plain(gains(x)),), has_aux=True))(x)[::-1]
    value, slope = jax.jit(jax.jacfwd(lambda x: 2 * (logarithm(gains(x)),), has_aux=True))(x)[::-1]
    np.testing.assert_allclose(value, np.log(loss), rtol=1e-12)
    # The same tangents, divided by the loss: round-off of the sums over the steps.
    np.testing.assert_allclose(slope, gradient / loss, rtol=1e-9)


MODES: list[tuple[Any, Any]] = [("forward", "reverse"), ("reverse", "forward")]


@pytest.mark.parametrize(("mode", "other"), MODES)
def test_a_logarithm_has_the_budget_and_mode_of_its_objective(starts, mode, other):
    plain = objective(starts, mode=mode)
    assert Logarithm(plain).mode == mode
    assert Logarithm(plain).budget == plain.budget
    with pytest.raises(ValueError, match=f'objective is built for "{mode}"'):
        tune(Logarithm(plain), 1.0, mode=other)


def test_a_logarithm_has_the_same_minimizer():
    def loss(x):
        return 1e-12 + (x - 2.0) ** 2 * (1.0 + x**2)

    plain, logarithm = (tune(f, jnp.array(1.0), steps=150) for f in (loss, Logarithm(loss)))
    assert logarithm.budget == ""
    # Adam at a constant rate of 0.05 comes to within a step of it.
    np.testing.assert_allclose(plain.params, 2.0, atol=0.05)
    np.testing.assert_allclose(logarithm.params, 2.0, atol=0.05)
    np.testing.assert_allclose(logarithm.loss, jnp.log(loss(logarithm.params)), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_step_to_where_an_objective_is_not_positive_is_refused_under_a_logarithm(value):
    def loss(x):
        return jnp.where(x > 1.0, value, 2.0 - x)

    logarithm = Logarithm(loss)
    assert not np.isfinite(logarithm(jnp.array(1.5)))
    # The slope of log(2 - x) at 0 is -1/2: 2 is refused, then 1 is reached.
    result = tune(logarithm, jnp.array(0.0), steps=2, optimizer=optax.sgd(4.0))
    assert result.history.skipped.tolist() == [False, True, False]
    assert result.params == 1.0
    with pytest.raises(ValueError, match="first evaluation failed"):
        tune(logarithm, jnp.array(3.0), steps=2)


@pytest.mark.slow
def test_single_precision_starts_and_parameters_are_tuned_in_single_precision(starts, results):
    narrow = jax.tree.map(lambda x: x.astype(jnp.float32), starts)
    cost = IntegratedViolation(velocity=1.0, from_start=True)
    single, double = tune(objective(narrow, cost), weak_gains(jnp.float32), steps=5), results[0]
    assert all(
        x.dtype == jnp.float32 for x in jax.tree.leaves(eqx.filter(single.params, eqx.is_array))
    )
    assert single.skipped == 0
    assert np.all(single.history.loss == single.history.loss.astype(np.float32))
    assert single.loss == single.history.loss.min()
    # Residuals of 1e-2 are differences of numbers of size 1, known to 6e-8: 1e-5 of them, and
    # twice that of their squares; Adam's first steps depend on the sign of the gradient only.
    np.testing.assert_allclose(single.history.loss, double.history.loss[:6], rtol=1e-4)


def test_gains_too_large_for_the_step_are_refused_and_not_fatal(starts):
    # RK4 is stable for K_D h < 2.785; far beyond, the run overflows.
    params = Multipliers(Baumgarte(K_D=jnp.array(5e4), K_P=100.0))
    made = objective(starts)
    assert np.isnan(made(params))
    with pytest.raises(ValueError, match="first evaluation failed"):
        tune(made, params, steps=2)


def test_the_budget_names_what_a_solver_wraps(starts):
    """A checkpoint is continued where the budget is the same."""
    found = {
        objective(starts, solver=solver).budget.partition(", h")[0]
        for solver in (Projected(RK4()), Projected(diffrax.Tsit5(), 3))
    }
    assert found == {"Projected(RK4, 2 iterations)", "Projected(Tsit5, 3 iterations)"}


@pytest.mark.slow
def test_an_adaptive_run_has_a_work_budget(starts):
    adaptive = {"dt": None, "solver": diffrax.Tsit5()}
    enough, too_few = (objective(starts, **adaptive, max_steps=n) for n in (200, 5))
    assert enough.budget == "Tsit5, adaptive, at most 200 steps in 0.3 s, 4 starts"
    assert np.isfinite(enough(gains([5.0, 20.0])))
    assert np.isnan(too_few.costs(gains([5.0, 20.0]))).all()


class Spring(System):
    """A mass on a spring."""

    stiffness: jax.Array

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 0.5 * self.stiffness * q @ q


@pytest.mark.slow
def test_a_parameter_of_the_system_can_be_tuned():
    # Position cos(3 t) belongs to the stiffness 9.
    cost = TrackingError(lambda _t, q, _v: q[0], lambda t: jnp.cos(3.0 * t))
    start = State(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    made = SimulationObjective(
        cost, start, build=lambda k: (Spring(k), Multipliers(), None), t1=2.0, dt=0.05, solver=RK4()
    )
    result = tune(made, Positive(7.0), steps=60)
    # Adam at a rate of five per cent comes to within a fraction of its steps.
    np.testing.assert_allclose(result.params, 9.0, rtol=0.01)


def test_the_motions_can_be_looked_at(starts):
    motions = objective(starts).trajectories(gains([5.0, 20.0]))
    assert motions.q.shape[0] == 4
    np.testing.assert_array_equal(motions.q[:, 0], starts.q)


def test_perturbed_states_leave_the_constraints_by_the_amount_asked_for():
    states = perturbed_states(START, jax.random.key(1), 4000, 1e-3, jnp.array([1e-2, 0.0]))
    assert states.q.shape == states.v.shape == (4000, 2)
    assert states.w.shape == (4000, 0)
    # The standard deviation of 4000 samples is known to 1 / sqrt(8000) = 1.1 %; five sigma.
    np.testing.assert_allclose(np.std(states.q - START.q, axis=0), 1e-3, rtol=0.056)
    np.testing.assert_allclose(np.std(states.v[:, 0]), 1e-2, rtol=0.056)
    np.testing.assert_array_equal(states.v[:, 1], START.v[1])


@pytest.mark.slow
def test_perturbed_states_of_a_system_are_consistent():
    states = perturbed_states(START, jax.random.key(1), 5, system=PENDULUM)
    phi_dot = lambda s: jaxdae.evaluate(PENDULUM, 0.0, s.q, s.v).phi_dot  # noqa: E731
    residuals = jax.jit(jax.vmap(phi_dot))(states)
    np.testing.assert_allclose(np.sum(states.q**2, axis=1), 1.0, rtol=1e-10)
    np.testing.assert_allclose(residuals, 0.0, atol=1e-10)
    assert np.all(np.abs(states.q - START.q).max(axis=1) > 1e-6)


@pytest.mark.slow
def test_perturbed_states_that_cannot_be_projected_are_an_error(led_point):
    # The leader is at x = speed t = 2, off the unit circle.
    system = led_point(0.5)
    with pytest.raises(ValueError, match=r"3 of 3 starts \(the first is number 0\) could not be"):
        perturbed_states(system.start(), jax.random.key(0), 3, system=system, t=4.0)


REFUSED = [
    ({"build": lambda p: p}, "exactly one of `build` and `system`"),
    ({"dt": 0.0}, r"dt = 0\.0 does not lead from t0 = 0\.0 to t1"),
    ({"system": None}, "exactly one of `build` and `system`"),
    ({"system": None, "build": abs, "controller": abs}, "leave `controller` out"),
    ({"mode": "both"}, 'mode is "both", must be'),
    ({"dt": None}, "adaptive run has no work budget.*give max_steps"),
    ({"stepsize_controller": diffrax.PIDController(rtol=1e-6, atol=1e-6)}, "no work budget"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_an_objective_that_makes_no_sense_is_refused(starts, settings, message):
    with pytest.raises(ValueError, match=message):
        objective(starts, **settings)


def test_starts_that_are_not_finite_are_refused(starts):
    with pytest.raises(ValueError, match="a start is not finite"):
        objective(jax.tree.map(lambda x: x.at[0].set(jnp.nan) if x.size else x, starts))


def test_a_single_state_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2,\), needs \(starts, n\)"):
        objective(START)


def test_no_starts_are_refused():
    with pytest.raises(ValueError, match="count is 0, must be at least 1"):
        perturbed_states(START, jax.random.key(0), 0)


@pytest.mark.slow
def test_an_objective_is_a_pytree_of_its_starts(starts):
    arrays = jax.tree.leaves(eqx.filter(objective(starts), eqx.is_inexact_array))
    assert any(x is starts.q for x in arrays)
