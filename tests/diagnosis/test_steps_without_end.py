"""Steps that have no end, and starts that no step leads away from, fail with their reason."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import pytest

import jaxdae
from jaxdae.models import CartesianPendulum
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator
from jaxdae.solvers import GeneralizedAlpha, HalfExplicit, RadauIIA, Rattle

START = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
ENFORCING = [RadauIIA(), HalfExplicit(), GeneralizedAlpha()]


def run(state=START, system=None, **settings):
    given: dict[str, Any] = {"t1": 1.0, "solver": RadauIIA()} | settings
    system = CartesianPendulum() if system is None else system
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **given)


def ids(solvers):
    return [type(x).__name__ for x in solvers]


@pytest.mark.parametrize("solver", ENFORCING, ids=ids(ENFORCING))
def test_a_start_with_velocities_beside_the_constraints_is_named(solver):
    with pytest.raises(
        jaxdae.SimulationError,
        match=rf"{type(solver).__name__} enforces .* 'rod' is violated by 2e-05 at velocity level "
        r"at t = 0 s.* Begin at jaxdae.consistent_state",
    ):
        run(jaxdae.State(START.q, START.q * 1e-5), solver=solver)


def test_a_start_with_coordinates_beside_the_constraints_is_named_too():
    # Others end their first step on the constraints, and see no error in it.
    with pytest.raises(
        jaxdae.SimulationError, match=r"'rod' is violated by 2e-05 at position level at t = 0 s"
    ):
        run(jaxdae.State(START.q * (1 + 1e-5), START.v))


@pytest.mark.slow
def test_the_start_of_the_paper_as_printed_is_named_and_can_be_mended():
    system = TwoLinkManipulator()
    q, v = jnp.asarray(PAPER_START_Q), jnp.asarray(PAPER_START_V)
    with pytest.raises(jaxdae.SimulationError, match=r"'tip x' is violated by 1.25e-05 at posit"):
        run(jaxdae.State(q, v), system, t1=0.1)
    assert bool(run(jaxdae.consistent_state(system, q, v), system, t1=0.1).success)


@pytest.mark.slow
def test_in_a_batch_only_the_member_beside_the_constraints_fails():
    def reached(off):
        state = jaxdae.State(START.q * (1 + off), START.v)
        found = run(state, throw=False, t1=0.2)
        return found.success, found.final_time, found.final.q

    success, times, q = jax.vmap(reached)(jnp.array([0.0, 1e-5, 1e-14]))
    assert success.tolist() == [True, False, True]
    assert times.tolist() == [0.2, 0.0, 0.2]
    assert jnp.abs(q[0] - q[2]).max() < 1e-10  # as the starts differ by 1e-14


@pytest.mark.parametrize(
    "solver",
    [RadauIIA(), pytest.param(Rattle(), marks=pytest.mark.slow), GeneralizedAlpha()],
    ids=["RadauIIA", "Rattle", "GeneralizedAlpha"],
)
def test_a_fixed_step_for_which_newton_does_not_converge_is_named(solver):
    with pytest.raises(
        jaxdae.SimulationError,
        match=rf"after t = 0 s .* iteration of {type(solver).__name__} found no end of the step",
    ):
        run(solver=solver, t1=40.0, dt=20.0)


def test_a_step_below_the_least_one_is_named():
    control = diffrax.PIDController(rtol=1e-10, atol=1e-10, dtmin=0.2, force_dtmin=False)
    with pytest.raises(
        jaxdae.SimulationError,
        match=r"stopped at t = 0 s .*'rod' = .*a step shorter than dtmin = 0.2 s there: give a sm",
    ):
        run(solver=diffrax.Dopri5(), stepsize_controller=control)
