"""Costs of single runs."""

from types import SimpleNamespace
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.systems import Violation
from jaxdae.tuning import (
    ControlEffort,
    EnergyDrift,
    IntegratedViolation,
    TrackingError,
    WeightedSum,
)

PENDULUM = CartesianPendulum()


START = State(*PENDULUM.start())


FIXED: dict[str, Any] = {"t1": 0.3, "dt": 0.01, "solver": RK4()}


def gains(x):
    return Multipliers(Baumgarte(K_D=x[0], K_P=x[1]))


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


def test_tracking_error_integrates_the_squared_distance():
    cost = TrackingError(lambda t, _q, _v: t * jnp.ones(1), lambda _t: jnp.zeros(1), weight=2.0)
    # The trapezoidal rule errs by h^2 / 12 times the difference of the end slopes of 2 t^2.
    exact, error = 2 * 0.3**3 / 3, 0.01**2 / 12 * 4 * 0.3
    np.testing.assert_allclose(cost(one_run()), exact + error, rtol=1e-12)


def constant_input(*_):
    return jnp.array([3.0, 1.0])


@pytest.mark.parametrize("weight", [2.0, jnp.array([2.0, 2.0])])
def test_control_effort_integrates_the_weighted_input(weight):
    run = one_run(controller=constant_input)
    # A constant integrand: the trapezoidal rule is exact.
    np.testing.assert_allclose(ControlEffort(weight)(run), 2.0 * 10.0 * 0.3, rtol=1e-12)


def input_run(u):
    """Two seconds under inputs given at 0, 1 and 2."""
    return made_up(ts=jnp.arange(3.0), u=u)


def test_control_effort_needs_an_array_and_a_weight_that_fits():
    with pytest.raises(ValueError, match=r"controller returns a dict, not an array; let it return"):
        ControlEffort()(input_run({"torque": jnp.ones(3)}))
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), which does not fit 3 inputs"):
        ControlEffort(jnp.ones(2))(input_run(jnp.ones((3, 3))))
    with pytest.raises(ValueError, match=r"does not fit 1 inputs; give a scalar or a vector of 1"):
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


SQUARES = [
    IntegratedViolation(),
    IntegratedViolation(jnp.array([2.0]), 3.0, from_start=True),
    IntegratedViolation.at_both_levels(0.1),
    TrackingError(lambda _t, q, _v: q, lambda t: jnp.array([t, 1.0]), jnp.array([1.0, 4.0])),
    TrackingError(lambda _t, q, _v: q[0], lambda _t: 0.5, 3.0),
    ControlEffort(2.0),
    EnergyDrift(),
    WeightedSum(((2.0, IntegratedViolation()), (0.5, EnergyDrift()), (0.0, ControlEffort()))),
]


@pytest.fixture(scope="module")
def controlled():
    return one_run(controller=constant_input)


@pytest.mark.parametrize("cost", SQUARES)
def test_a_cost_is_the_sum_of_the_squares_of_its_residuals(cost: Any, controlled):
    residuals = cost.residuals(controlled)
    assert residuals.ndim == 1
    # The same positive terms: round-off of roots and squares, and of sums in another order.
    np.testing.assert_allclose(np.sum(residuals**2), cost(controlled), rtol=1e-11)


def test_a_weighted_sum_has_residuals_only_where_its_terms_do():
    def largest(run):
        return jnp.max(run.violation.phi)

    parts: Any = ((1.0, EnergyDrift()), (2.0, largest))
    assert not hasattr(WeightedSum(parts), "residuals")
    with pytest.raises(AttributeError, match="its term largest is no sum of squares"):
        _ = WeightedSum(parts).residuals
    with pytest.raises(AttributeError, match=r"a weight is -1\.0"):
        _ = WeightedSum(((-1.0, EnergyDrift()),)).residuals


def test_both_levels_are_joined_by_a_time():
    ts = jnp.array([0.0, 0.5, 0.7])
    phi, g = jnp.array([[9.0], [0.2], [0.1]]), jnp.array([[9.0], [0.3], [0.4]])
    run = made_up(ts=ts, violation=Violation(phi=phi, phi_dot=jnp.hstack([5.0 * phi, g])))
    cost = IntegratedViolation.at_both_levels(0.1)
    # The second constraint has one level.
    at_ends = [x**2 + 0.1**2 * ((5 * x) ** 2 + y**2) for x, y in ((0.2, 0.3), (0.1, 0.4))]
    np.testing.assert_allclose(cost(run), 0.5 * at_ends[0] + 0.2 * at_ends[1], rtol=1e-13)


@pytest.mark.parametrize("time_scale", [0.0, -1.0, np.inf, np.nan])
def test_a_time_scale_is_a_positive_time(time_scale):
    with pytest.raises(ValueError, match=r"time_scale is .*, must be a positive time"):
        IntegratedViolation.at_both_levels(time_scale)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"position": jnp.ones(2)}, r"position has shape \(2,\), .* 1 position constraints"),
        ({"velocity": jnp.ones(1)}, r"velocity has shape \(1,\), .* 2 residuals at velocity"),
    ],
)
def test_weights_fit_the_constraints(weights, message):
    violation = Violation(phi=jnp.ones((3, 1)), phi_dot=jnp.ones((3, 2)))
    with pytest.raises(ValueError, match=message):
        IntegratedViolation(**weights)(made_up(ts=jnp.arange(3.0), violation=violation))


@pytest.mark.parametrize("weight", [-1.0, jnp.array([1.0, -2.0])])
def test_effort_cannot_be_a_gain(weight):
    with pytest.raises(ValueError, match=r"weight has .* -\d.*must not be negative"):
        ControlEffort(weight)


def test_one_saved_time_makes_no_integral():
    violation = Violation(phi=jnp.ones((1, 1)), phi_dot=jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="has 1 of them, and would always be zero"):
        IntegratedViolation()(made_up(ts=jnp.ones(1), violation=violation))


def test_a_run_backward_in_time_costs_as_much():
    ts, violation = jnp.arange(4.0), Violation(jnp.ones((4, 1)), jnp.zeros((4, 1)))
    forward, backward = (made_up(ts=x, violation=violation) for x in (ts, -ts))
    assert IntegratedViolation()(backward) == IntegratedViolation()(forward) == 3.0


@pytest.mark.slow
def test_costs_of_single_precision_are_of_single_precision():
    ts, phi = jnp.arange(4, dtype=jnp.float32), jnp.ones((4, 1), jnp.float32)
    run = made_up(ts=ts, violation=Violation(phi, phi), u=phi, energy=phi[:, 0])
    for cost in (IntegratedViolation.at_both_levels(0.1), ControlEffort(2.0), EnergyDrift()):
        assert cost(run).dtype == cost.residuals(run).dtype == jnp.float32
