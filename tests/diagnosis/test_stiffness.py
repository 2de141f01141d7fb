"""Steps that are short for the sake of stability are pointed out, and no others."""

import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import pytest

import jaxdae
from helpers.stiff import ElasticRod, Follower, SpringJoints
from helpers.systems import UnitMass
from jaxdae.diagnosis.steps import FEWEST_STEPS, is_explicit
from jaxdae.formulations import (
    Baumgarte,
    Hamiltonian,
    LinearLaw,
    Multipliers,
    Penalty,
    RealizingForces,
)
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import Projected, RadauIIA, Rodas5P

STIFF = "stability and not accuracy kept the steps short"
ON_ROD = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
BENT = jaxdae.State(jnp.array([0.5, 0.0]), jnp.zeros(2))
PENDULUM = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))


def _run(system, formulation, state, **settings):
    """A run and what is said of it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        given: Any = {"t1": 5.0} | settings
        run = jaxdae.simulate(system, formulation, state, **given)
    return run, [str(x.message) for x in said]


def _tolerance(x):
    return diffrax.PIDController(rtol=x, atol=x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "formulation", "state", "root"),
    [
        (ElasticRod(), Multipliers(), ON_ROD, r"-500 ± 3122i"),
        (CartesianPendulum(), Hamiltonian(Baumgarte.critical(1e4)), PENDULUM, r"-1e\+04"),
    ],
    ids=["rod", "momenta"],
)
def test_a_stiff_run_names_its_root_and_the_limit_of_the_method(system, formulation, state, root):
    with pytest.warns(
        RuntimeWarning,
        match=rf"{STIFF}: there were \d+ of them, \d+ rejected, and the mean step times the "
        rf"fastest root {root} 1/s .* where Dopri8 is stable up to 5\.\d+; .*solvers.Rodas5P",
    ):
        jaxdae.simulate(system, formulation, state, t1=5.0)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-8, 1e-3])
def test_the_remedy_takes_less_than_a_twentieth_of_the_steps(tolerance):
    """And the run by it has nothing to say."""
    joints, control = (SpringJoints(), Multipliers(), BENT), _tolerance(tolerance)
    explicit, said = _run(*joints, stepsize_controller=control)
    assert any(STIFF in x for x in said)
    remedy, said = _run(*joints, solver=Rodas5P(), stepsize_controller=control)
    assert not said
    assert 20 * int(remedy.stats["num_steps"]) < int(explicit.stats["num_steps"])


def test_what_follows_a_slow_input_fast_is_stiff():
    """The example of [ProtheroRobinson1974]: the motion depends on time, not on other states."""
    start = jaxdae.State(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
    _, said = _run(Follower(), Multipliers(), start, t1=0.5)
    assert any(f"{STIFF}" in x and r"root -1e+05 1/s" in x for x in said)


def test_the_remedy_of_gains_is_a_lower_gain_as_well():
    """Of a projected run, which is examined by its method; other motions have no gains."""
    law, solver = Multipliers(Baumgarte.critical(1e4)), Projected(diffrax.Tsit5())
    _, said = _run(CartesianPendulum(), law, PENDULUM, solver=solver, t1=3.0)
    assert any("where Tsit5 is stable" in x and "or lower the gains" in x for x in said)
    _, said = _run(ElasticRod(), Multipliers(), ON_ROD)
    assert any("Rodas5P() or RadauIIA()" in x and "gains" not in x for x in said)


@pytest.mark.slow
def test_what_a_trial_has_found_too_dear_is_not_advised():
    run, said = _run(ElasticRod(), Multipliers(), ON_ROD, solver="auto")
    assert "a method for stiff equations would not cost less" in str(run.why_solver)
    (message,) = (x for x in said if STIFF in x)
    assert "A trial has spoken against solvers for stiff equations" in message
    assert "Rodas5P" not in message


@pytest.mark.slow
def test_a_run_backward_in_time_is_examined_in_its_direction():
    """Stabilizations act toward its end, so that their root is of the other sign there."""
    law = Multipliers(Baumgarte.critical(1e4))
    _, said = _run(CartesianPendulum(), law, PENDULUM, t0=3.0, t1=0.0)
    assert any(STIFF in x and "root 1e+04 1/s" in x for x in said)


def test_a_vibration_that_a_run_follows_is_no_stiffness():
    """As many steps as the stiff rod takes, each needed: the rod swings in length by a tenth."""
    stretched = jaxdae.State(jnp.array([0.66, -0.88]), jnp.zeros(2))
    run, said = _run(ElasticRod(1e6, 0.0), Multipliers(), stretched)
    assert int(run.stats["num_steps"]) > FEWEST_STEPS
    assert not said


@pytest.mark.parametrize(
    ("solver", "tolerance", "t1"),
    [
        (diffrax.Dopri8(), 1e-3, 1000.0),
        (diffrax.Tsit5(), 1e-8, 90),
    ],
    ids=["loose", "low order"],
)
def test_a_long_run_of_many_steps_is_no_stiffness(solver, tolerance, t1):
    """The gains are faster than the motion, but within what accuracy asks of the steps."""
    settings = {"t1": t1, "solver": solver, "stepsize_controller": _tolerance(tolerance)}
    law = Baumgarte.critical(10.0)
    run, said = _run(CartesianPendulum(), Multipliers(law), PENDULUM, **settings)
    assert int(run.stats["num_steps"]) > FEWEST_STEPS
    assert not said


def test_a_large_constraint_mass_alone_is_not_stiff():
    """Its gains are the roots, whatever the mass: eq. 28 of [MukharlyamovDeressa2015]."""
    run, said = _run(CartesianPendulum(), Penalty(1e6, Baumgarte.critical(10.0)), PENDULUM)
    assert int(run.stats["num_steps"]) < 200
    assert not said


def test_steps_that_the_user_has_chosen_are_not_questioned():
    run, said = _run(SpringJoints(), Multipliers(), BENT, dt=5e-4)
    assert int(run.stats["num_steps"]) > FEWEST_STEPS
    assert not said


def test_a_run_that_stiffness_has_stopped_says_so():
    formulation = RealizingForces(LinearLaw(1e6))
    with pytest.raises(
        jaxdae.SimulationError,
        match=rf"number of solver steps was reached.*There, {STIFF}: there were 5000 .* root "
        r"-4e\+06 1/s",
    ):
        jaxdae.simulate(CartesianPendulum(), formulation, PENDULUM, t1=5.0, max_steps=5000)


def test_a_run_without_throw_reads_no_rows():
    _, said = _run(SpringJoints(), Multipliers(), BENT, throw=False)
    assert not said


@pytest.mark.parametrize(
    ("solver", "expected"),
    [
        (diffrax.Dopri8(), True),
        (Projected(diffrax.Tsit5()), True),
        (Rodas5P(), False),
        (diffrax.Kvaerno5(), False),
        (RadauIIA(), False),
    ],
)
def test_explicit_methods_are_told_by_their_coefficients(solver, expected):
    assert is_explicit(solver) is expected


@jax.custom_vjp
def _reverse_alone(x):
    return -20.0 * x


_reverse_alone.defvjp(lambda x: (_reverse_alone(x), None), lambda _, g: (-20.0 * g,))


class OneWay(UnitMass):
    """A vibration whose force has no derivative in forward mode."""

    def force(self, t, q, v, w, u):
        return _reverse_alone(10.0 * q)


def test_forces_without_a_derivative_in_forward_mode_are_not_examined():
    start = jaxdae.State(jnp.ones(1), jnp.zeros(1))
    settings = {"solver": diffrax.Tsit5(), "stepsize_controller": _tolerance(1e-11)}
    run, said = _run(OneWay(), Multipliers(), start, t1=80.0, **settings)
    assert int(run.stats["num_steps"]) > FEWEST_STEPS
    assert not any(STIFF in x for x in said)
