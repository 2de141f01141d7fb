"""Slider-crank drive: the closed loop's power and gradients, the textbook's flywheel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(scope="module")
def drive(experiment):
    return experiment("slider_crank_drive")


@pytest.fixture(scope="module")
def hand(drive):
    return jax.tree.map(jnp.asarray, drive.by_hand())


def test_the_start_closes_the_loop_at_both_levels(drive, hand):
    system = hand.mechanism()
    q, v = jnp.zeros(3), drive.SPEED * jnp.array([1.0, -1 - drive.CRANK / drive.ROD, 0.0])
    residuals, rates = jax.jvp(lambda q: system.position_constraints(0.0, q), (q,), (v,))
    np.testing.assert_allclose(residuals, 0.0, atol=1e-15)
    np.testing.assert_allclose(rates, 0.0, atol=1e-14)


def test_gains_by_hand_place_the_poles(drive, hand):
    """Of current without inductance and a constant inertia."""
    k = drive.CONSTANT * drive.GEAR
    scale = float(hand.inertia) * drive.RESISTANCE
    found = np.roots([1.0, k * (k + float(hand.K_P)) / scale, k * float(hand.K_I) / scale])
    np.testing.assert_allclose(found, -drive.POLES, rtol=1e-6)  # a double root


def test_the_flywheel_by_hand_has_the_fluctuation_of_the_textbook(drive, hand):
    """The controller and the masses of rod and piston change it a little."""
    found = drive.measured(hand)
    assert abs(found.fluctuation - drive.FLUCTUATION) < 0.1 * drive.FLUCTUATION
    assert found.cost == pytest.approx(
        (found.deviation / drive.DEVIATION) ** 2
        + (found.current / drive.CURRENT) ** 2
        + found.mass / drive.MASS
    )


@pytest.mark.slow
def test_electrical_work_is_heat_stored_energy_and_work_against_the_load(drive, hand):
    assert drive.power_balance(hand) < 1e-5  # trapezoids of a thousandth of a second


@pytest.mark.slow
def test_the_gradient_is_one_in_three_ways(drive, hand):
    found = drive.gradients(hand)
    np.testing.assert_allclose(found["reverse"], found["forward"], rtol=1e-10)
    # Of the second order at steps of 1e-4.
    np.testing.assert_allclose(found["differences"], found["forward"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_some_steps_improve_the_design_by_hand(drive):
    found = drive.tuned(1.0, 8)
    assert found.loss < 0.95 * found.initial_loss


def test_claims_that_a_run_contradicts_do_not_hold(drive):
    hand = drive.Measured(33.0, 0.23, 0.04, 0.6, 7.0, 24.0, 4.2)
    best = hand._replace(cost=3.8)
    slope = np.array([1.0, 0.5, 0.2])
    known = {
        "drives": {"tuned": drive.Drive(33.0, 1.0, 10.0)},
        "measured": {"by hand": hand, "tuned": best},
        "front": {1.0: best, 2.0: best._replace(mass=30.0, deviation=0.3)},
        "gradients": {"forward": slope, "reverse": slope, "differences": slope + 1e-9},
        "slope": 1e-5 * slope,
        "balance": 1e-6,
    }
    assert all(x.holds for x in drive.claims(known))
    worse = (
        {"slope": slope},
        {"measured": {"by hand": hand, "tuned": hand}},
        {"front": {1.0: best, 2.0: best._replace(mass=40.0, deviation=0.3)}},
        {"balance": 0.1},
    )
    for i, change in enumerate(worse):
        assert [x.holds for x in drive.claims(known | change)] == [j != i for j in range(4)]
