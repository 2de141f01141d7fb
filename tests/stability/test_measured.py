"""Gains from a motion: what runs it takes, which it refuses, and that steps are those of runs."""

from dataclasses import replace
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import jaxdae
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import AdamsBashforth, RK4
from jaxdae.stability import motion_frequency, step_gains

SLEIGH = ChaplyginSleigh()
CRITICAL = jaxdae.Baumgarte.critical(1.0)
IMPLICIT = diffrax.Kvaerno3(root_finder=optx.Newton(rtol=1e-10, atol=1e-10))


def motion(formulation=None, **options) -> Any:
    start = jaxdae.consistent_state(SLEIGH, *SLEIGH.start())
    usual: dict[str, Any] = {"t1": 2.0, "dt": 0.1, "solver": RK4()}
    chosen = jaxdae.Multipliers(CRITICAL) if formulation is None else formulation
    return jaxdae.simulate(SLEIGH, chosen, start, **usual | options)


@pytest.fixture(scope="module")
def run() -> Any:
    return motion()


@pytest.mark.slow
def test_every_stabilization_has_the_same_gains_from_a_motion(run):
    gains = step_gains(RK4(), 0.1, regime="steps", motion=run)
    options: dict[str, Any] = {"regime": "steps", "motion": run}
    law: Any = jaxdae.Baumgarte.for_step(RK4(), 0.1, **options)
    blocks: Any = jaxdae.LinearStabilization.for_step(RK4(), 0.1, **options)
    assert law.Gamma == gains.Gamma == -blocks.K22
    # Of position constraints, which the sleigh has not, those for a given violation.
    given = step_gains(RK4(), 0.1)
    assert (gains.K_D, gains.K_P) == (given.K_D, given.K_P)
    assert gains.Gamma < 0.5 * given.Gamma
    # All steps of a range are within the limit.
    wide = step_gains(RK4(), 0.1, margin=4.0, **options)
    assert (wide.velocity_factor <= 1.0, wide.margin) == (True, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        (jaxdae.Multipliers, IMPLICIT),
        (jaxdae.Hamiltonian, diffrax.Tsit5()),
    ],
)
def test_the_violation_is_that_of_a_run(kind, solver):
    """By solvers and formulations as they are used: the root mean square of a run by the gains."""
    system = jaxdae.models.CartesianPendulum()
    start = jaxdae.State(*system.start())
    options: dict[str, Any] = {"t1": 1.2, "dt": 0.03, "solver": solver, "throw": True}
    first = jaxdae.simulate(system, kind(jaxdae.Baumgarte.critical(3.0)), start, **options)
    gains = step_gains(solver, 0.03, regime="steps", motion=first)
    law = jaxdae.Baumgarte(gains.K_D, gains.K_P)
    run = jaxdae.simulate(system, kind(law), start, **options)
    phi, phi_dot = (np.asarray(x)[1:] for x in (run.violation.phi, run.violation.phi_dot))
    measured = np.sqrt(np.mean(phi**2 + (phi_dot / motion_frequency(system, first)) ** 2))
    # What is left is the first run's own violation.
    np.testing.assert_allclose(gains.violation, measured, rtol=0.05)


@pytest.mark.slow
def test_a_motion_of_single_precision_serves():
    start = jaxdae.consistent_state(SLEIGH, *SLEIGH.start())
    single = jax.tree.map(lambda x: x.astype(jnp.float32), start)
    law = jaxdae.Multipliers(CRITICAL)
    found = jaxdae.simulate(SLEIGH, law, single, t1=2.0, dt=0.1, solver=diffrax.Heun())
    gains = step_gains(diffrax.Heun(), 0.1, regime="steps", motion=found)
    double = step_gains(diffrax.Heun(), 0.1, regime="steps", motion=motion(solver=diffrax.Heun()))
    # Errors of this method are far above round-off.
    np.testing.assert_allclose(gains.Gamma, double.Gamma, rtol=0.05)


@pytest.mark.slow
def test_a_motion_that_does_not_serve_is_refused(run):
    def refused(words, solver=None, dt: Any = 0.1, **options):
        options = {"regime": "steps", "motion": run} | options
        with pytest.raises(ValueError, match=words):
            step_gains(RK4() if solver is None else solver, dt, **options)

    refused("motion is for the regime 'steps', not for 'violation'", regime="violation")
    refused(r"motion lasts less than one step of 2\.5 s", dt=2.5)
    refused("is for Runge-Kutta methods", AdamsBashforth(2))
    refused("Kvaerno3 has no tolerance for its Newton iteration", diffrax.Kvaerno3())
    with pytest.raises(ValueError, match="dt is being traced, so that no steps of it"):
        jax.jit(lambda dt: step_gains(RK4(), dt, regime="steps", motion=run).K_D)(0.1)

    def refused_run(words, record):
        refused(words, motion=record)

    weighted = motion(jaxdae.Penalty(1e6, CRITICAL))
    refused_run("motion is a run by Penalty, of whose gains a part remains", weighted)
    elimination = motion(jaxdae.VelocityElimination(), t1=0.5)
    refused_run("by VelocityElimination, which takes no gains", elimination)
    backward = motion(jaxdae.Multipliers(), t1=-2.0, dt=-0.1)
    refused_run("motion must have times that increase", backward)
    robust = jaxdae.Multipliers(solve=jaxdae.SingularityRobust())
    refused_run("every step of which is projected onto the constraints", motion(robust))
    lost = replace(run, saved=jax.tree.map(lambda x: x.at[15:].set(jnp.nan), run.saved))
    refused_run("the motion is not finite at 6 of 21 saved times: did its run fail", lost)
    batch = replace(run, ts=jnp.stack([run.ts, run.ts]))
    refused_run("at least 3 saved times; this one has shape", batch)
