"""Four-bars by design: a known linkage and its cognate come back; torques balance the energy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(scope="module")
def four_bar(experiment):
    return experiment("four_bar_design")


@pytest.fixture(scope="module")
def given(four_bar):
    known = four_bar.known_linkage()
    path = four_bar.interpolated(lambda x: known.tracer(known.at_crank(x)), 2 * np.pi)
    return four_bar.Fitter(path.function).fit(jax.random.key(0), 96, (0.0,))


@pytest.mark.slow
def test_a_known_path_is_given_back_up_to_the_cognate(four_bar, given):
    counts = four_bar.recovered(four_bar.known_linkage(), given)
    assert counts["known"]["starts"] > 0
    assert counts["cognate"]["starts"] > 0
    assert counts["known"]["starts"] + counts["cognate"]["starts"] == counts["exact"]["starts"]
    # The same curve at the same speed, by other masses.
    assert counts["cognate"]["torque"] < 0.8 * counts["known"]["torque"]


@pytest.mark.slow
def test_all_designs_turn_all_round_on_their_branch(four_bar, given):
    slack, sines = four_bar.margins(given.designs, jnp.asarray(given.branch))
    assert slack.min() > 0
    assert sines.min() > 0


@pytest.mark.slow
def test_the_torque_is_that_of_energy_and_simulation(four_bar, given):
    best = int(np.argmin(given.path))
    off = four_bar.balance(four_bar.Result.of(given, best))
    # Thirty-two harmonics of the torque; a thousand steps of fourth order.
    assert off["power"] < 1e-6
    assert off["speed"] < 1e-6


@pytest.mark.slow
def test_a_rerun_with_the_torque_in_the_objective_finds_lighter_designs(
    four_bar,
):
    path = four_bar.interpolated(four_bar.leg_path, 2 * np.pi)
    fits = four_bar.Fitter(path.function).fit(jax.random.key(1), 96, (0.0, four_bar.CHOSEN))
    light = four_bar.chosen(fits, four_bar.CHOSEN)
    near = (fits.weight == 0) & (fits.path < 2 * fits.path[light])
    assert near.sum() > 3
    assert fits.torque[light] < 0.7 * np.median(fits.torque[near])
