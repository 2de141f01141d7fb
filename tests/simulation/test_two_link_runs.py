"""Runs of the two-link manipulator up to, through and past its singular configuration."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import (
    Multipliers,
    simulate,
    SingularityRobust,
    State,
)
from jaxdae.models import PAPER_RUNS, TwoLinkManipulator
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V


@pytest.fixture(scope="module")
def two_link():
    """The paper's manipulator, its printed start, and the consistent one."""
    system = TwoLinkManipulator()
    printed = State(jnp.array(PAPER_START_Q), jnp.array(PAPER_START_V))
    return system, printed, jaxdae.consistent_state(system, printed.q, printed.v)


@pytest.mark.slow
def test_two_link_multipliers_stop_where_the_target_leaves_the_workspace(two_link):
    """From the consistent start the run ends at t = 2.850, past the singular t = 0.4933.

    At the default tolerance: nothing guards the crossing (see the next test).
    """
    system, _, state = two_link
    run = simulate(system, PAPER_RUNS[0].formulation(), state, t1=20.0, throw=False)
    assert not run.success
    assert abs(float(run.final_time) - 2.850) < 0.005
    np.testing.assert_allclose(float(run.final_time), system.exit_time(), atol=1e-4)


@pytest.mark.slow
def test_two_link_multipliers_cross_the_singular_configuration_by_the_steps_they_take(two_link):
    """With smaller steps one of them may come too near, and the run ends there; by rounding."""
    system, _, state = two_link
    law = PAPER_RUNS[0].formulation()
    for tolerance in (1e-10, 1e-11, 1e-12):
        careful = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        run = simulate(
            system, law, state, t1=1.0, dt=1e-3, stepsize_controller=careful, throw=False
        )  # fmt: skip
        if not run.success:
            assert abs(float(run.final_time) - 0.4933) < 5e-4
        # What it passed, or came to.
        assert float(run.least_singular_value) < 1e-2


@pytest.mark.slow
def test_the_remedy_for_a_singular_configuration_passes_it(two_link):
    """What the failure recommends, from the printed start that breaks there otherwise."""
    system, state, _ = two_link
    gains = PAPER_RUNS[0].formulation().stabilization
    run = simulate(system, Multipliers(gains, solve=SingularityRobust()), state, t1=1.0)
    assert bool(run.success)
    # No more than the start itself is off by.
    assert float(jnp.abs(run.violation.phi).max()) < 1.3e-5


def test_two_link_multipliers_break_at_the_singular_configuration_from_the_printed_start(two_link):
    """The printed digits are off the constraints by 1.2e-5 m.

    At the folded configuration the motion that the perturbed constraints ask for has no velocity.
    """
    system, state, _ = two_link
    offset = np.abs(jax.jit(system.position_constraints)(0.0, state.q)).max()
    np.testing.assert_allclose(offset, 1.25e-5, rtol=0.01)
    run = simulate(system, PAPER_RUNS[0].formulation(), state, t1=20.0, throw=False)
    assert not run.success
    assert abs(float(run.final_time) - 0.4931) < 5e-4


def test_two_link_penalty_runs_through_and_beyond(two_link):
    """The penalty form (alpha = 10) runs all 20 s; beyond reach it stretches to the target."""
    system, _, state = two_link
    # Stretched to the target at 2.8503 s; rows are 0.1 s apart, with 16 places between them.
    beyond = r"cannot all be satisfied from t = 2\.85\d+ s on: .* 'tip x'"
    with (
        pytest.warns(RuntimeWarning, match=r"passed \d+ near-singular .* at t = 0\.39"),
        pytest.warns(RuntimeWarning, match=beyond),
    ):
        run = simulate(system, PAPER_RUNS[1].formulation(), state, t1=20.0)
    assert run.success
    # The target is at x0 - 12 m, the stretched arm reaches 1.5 m: 10.2 m are missing.
    np.testing.assert_allclose(np.abs(run.violation.phi[-1, 1]), 10.2, atol=0.1)
    before = np.asarray(run.ts) < 2.8
    assert np.abs(run.violation.phi[before]).max() < 0.2
