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


def test_every_constraint_counts_at_its_level_and_at_both_where_a_time_joins_them():
    """Neither the start nor its rate can be changed, and neither counts."""
    ts = jnp.array([0.0, 0.5, 0.7])
    phi, g = jnp.array([[9.0], [0.2], [0.1]]), jnp.array([[9.0], [0.3], [0.4]])
    run = made_up(ts=ts, violation=Violation(phi=phi, phi_dot=jnp.hstack([5.0 * phi, g])))
    expected = 0.5 * (0.2**2 + 0.3**2) + 0.2 * (0.1**2 + 0.4**2)
    np.testing.assert_allclose(IntegratedViolation()(run), expected, rtol=1e-13)
    # With the square of a time of 0.01 s the rates come to the unit of the residuals.
    weighted = IntegratedViolation(velocity=jnp.array([1e-4, 1.0]))(run)
    twice = expected + 1e-4 * 25 * (0.5 * 0.2**2 + 0.2 * 0.1**2)
    np.testing.assert_allclose(weighted, twice, rtol=1e-13)
    # The second constraint has one level.
    at_ends = [x**2 + 0.1**2 * ((5 * x) ** 2 + y**2) for x, y in ((0.2, 0.3), (0.1, 0.4))]
    joined = IntegratedViolation.at_both_levels(0.1)(run)
    np.testing.assert_allclose(joined, 0.5 * at_ends[0] + 0.2 * at_ends[1], rtol=1e-13)


def test_tracking_error_integrates_the_squared_distance(controlled):
    cost = TrackingError(lambda t, _q, _v: t * jnp.ones(1), lambda _t: jnp.zeros(1), weight=2.0)
    # The trapezoidal rule errs by h^2 / 12 times the difference of the end slopes of 2 t^2.
    exact, error = 2 * 0.3**3 / 3, 0.01**2 / 12 * 4 * 0.3
    np.testing.assert_allclose(cost(controlled), exact + error, rtol=1e-12)


@pytest.fixture(scope="module")
def controlled():
    return one_run(controller=lambda *_: jnp.array([3.0, 1.0]))


@pytest.mark.parametrize("weight", [2.0, jnp.array([2.0, 2.0])])
def test_control_effort_integrates_the_weighted_input(weight, controlled):
    # A constant integrand: the trapezoidal rule is exact.
    np.testing.assert_allclose(ControlEffort(weight)(controlled), 2.0 * 10.0 * 0.3, rtol=1e-12)


@pytest.mark.slow
def test_unused_rows_count_nothing_and_failed_runs_cost_nan():
    adaptive = {"dt": None, "solver": diffrax.Tsit5(), "max_steps": 64}
    saved = one_run(saveat=diffrax.SaveAt(t0=True, steps=True), **adaptive)
    used = np.isfinite(saved.ts)
    assert 1 < used.sum() < used.size
    assert np.isnan(IntegratedViolation()(one_run(**adaptive | {"max_steps": 3}, throw=False)))
    phi, phi_dot = (np.asarray(x)[used] for x in (saved.violation.phi, saved.violation.phi_dot))
    density = 2.0 * (phi**2).sum(1) + 3.0 * (phi_dot**2).sum(1)
    expected = np.trapezoid(density, np.asarray(saved.ts)[used])
    # Sums of some positive terms in another order.
    np.testing.assert_allclose(
        IntegratedViolation(2.0, 3.0, from_start=True)(saved), expected, rtol=1e-12
    )


SQUARES: list[Any] = [
    IntegratedViolation(),
    IntegratedViolation(jnp.array([2.0]), 3.0, from_start=True),
    IntegratedViolation.at_both_levels(0.1),
    TrackingError(lambda _t, q, _v: q, lambda t: jnp.array([t, 1.0]), jnp.array([1.0, 4.0])),
    TrackingError(lambda _t, q, _v: q[0], lambda _t: 0.5, 3.0),
    ControlEffort(2.0),
    EnergyDrift(),
    WeightedSum(((2.0, IntegratedViolation()), (0.5, EnergyDrift()), (0.0, ControlEffort()))),
]


def test_a_cost_is_the_sum_of_the_squares_of_its_residuals(controlled):
    for cost in SQUARES:
        residuals = cost.residuals(controlled)
        assert residuals.ndim == 1
        # The same positive terms: round-off of roots and squares, and of sums in another order.
        np.testing.assert_allclose(np.sum(residuals**2), cost(controlled), rtol=1e-11)
    parts = 2.0 * SQUARES[0](controlled) + 0.5 * SQUARES[-2](controlled)
    np.testing.assert_allclose(SQUARES[-1](controlled), parts, rtol=1e-12)


def test_a_weighted_sum_has_residuals_only_where_its_terms_do():
    def largest(run):
        return jnp.max(run.violation.phi)

    parts: Any = ((1.0, EnergyDrift()), (2.0, largest))
    assert not hasattr(WeightedSum(parts), "residuals")
    with pytest.raises(AttributeError, match="its term largest is no sum of squares"):
        _ = WeightedSum(parts).residuals
    with pytest.raises(AttributeError, match=r"a weight is -1\.0"):
        _ = WeightedSum(((-1.0, EnergyDrift()),)).residuals


def rows(count, columns=1, **more):
    """Times of one second, with violations of one in so many columns at velocity level."""
    ones = jnp.ones((count, 1)), jnp.ones((count, columns))
    return made_up(ts=jnp.arange(float(count)), violation=Violation(*ones), **more)


WRONG = [
    (lambda: ControlEffort()(rows(3, u={"torque": jnp.ones(3)})), "returns a dict, not an array"),
    (
        lambda: ControlEffort(jnp.ones(2))(rows(3, u=jnp.ones((3, 3)))),
        "does not fit 3 inputs; give",
    ),
    (lambda: ControlEffort()(rows(3, u=None)), "no controller, so there is no effort"),
    (lambda: ControlEffort(jnp.array([1.0, -2.0])), r"weight has .* -\d.*must not be negative"),
    (
        lambda: IntegratedViolation.at_both_levels(np.nan),
        "time_scale is nan, must be a positive ti",
    ),
    (lambda: IntegratedViolation(jnp.ones(2))(rows(3)), r"shape \(2,\), .* 1 position constraints"),
    (
        lambda: IntegratedViolation(velocity=jnp.ones(1))(rows(3, 2)),
        r"velocity has shape \(1,\), .* 2 residuals at velocity",
    ),
    (lambda: IntegratedViolation()(rows(1)), "has 1 of them, and would always be zero"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_makes_no_cost_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_energy_drift_is_the_square_of_what_has_changed():
    run = rows(3, energy=jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(EnergyDrift()(run), 0.5 * (0 + 1) + 0.5 * (1 + 4), rtol=1e-13)


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
