"""Certificates of parameters: rates, margins of the step, worst cases, failures."""

import dataclasses
import json
import re
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import HarmonicOscillator
from jaxdae import Baumgarte, LinearStabilization, Multipliers, State
from jaxdae.analysis.stability_certificate import StabilityCertificate
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import Projected, RK4
from jaxdae.tuning import (
    Certificate,
    Conditions,
    IntegratedViolation,
    Logarithm,
    perturbed_states,
    SimulationObjective,
    TrackingError,
)

PENDULUM = CartesianPendulum()
STARTS = perturbed_states(State(*PENDULUM.start()), jax.random.key(0), 2, 1e-2, 1e-2)
STEPS = Conditions(dt=(0.02, 0.05))


def objective(**settings):
    usual: dict[str, Any] = {"system": PENDULUM, "solver": RK4(), "conditions": STEPS, "t1": 0.2}
    return SimulationObjective(IntegratedViolation(), STARTS, **(usual | settings))


def gains(K_D, K_P):
    return Multipliers(Baumgarte(jnp.asarray(K_D), jnp.asarray(K_P)))


@pytest.fixture(scope="module")
def good() -> Any:
    return objective().certificate(gains(20.0, 100.0))


def test_rate_and_limit_are_those_of_the_analysis(good):
    """A double root of -10: RK4 damps it for steps below 2.7853 / 10."""
    baumgarte = Baumgarte(20.0, 100.0)
    assert good.lyapunov_rate == jaxdae.lyapunov_certificate(20.0, 100.0).rate
    limit = jaxdae.step_limit(baumgarte, RK4()).limit
    # Roots that coincide are known to the root of round-off, 1e-8.
    np.testing.assert_allclose(good.step_margin, limit / 0.05, rtol=1e-6)
    np.testing.assert_allclose(good.step_margin, 0.27853 / 0.05, rtol=1e-4)
    # The shorter step damps less.
    z = -0.2
    factor = 1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24
    np.testing.assert_allclose(good.stability[0].factor, factor, rtol=1e-6)
    np.testing.assert_allclose(good.stability[0].slowest_root, -10.0, rtol=1e-6)


def test_a_summary_is_one_line_and_the_rest_is_json(good):
    text = good.summary()
    assert text == str(good)
    assert "\n" not in text
    assert text.startswith("constraint violations decay by exp(-")
    assert "= 5.57 steps, modes times at most 0.819 in each; worst cost" in text
    assert " of 4 runs (dt = " in text
    read = json.loads(json.dumps(good.to_json(), allow_nan=False))
    assert read["lyapunov_rate"] == good.lyapunov_rate
    assert read["stability"][0]["slowest_root"] == [good.stability[0].slowest_root.real, 0.0]
    assert read["budget"] == objective().budget
    assert read["stability"][0]["states"] is None
    assert "states" not in text


def test_a_step_that_amplifies_is_the_first_that_is_said():
    known = StabilityCertificate("constraint", 931.0, -2.0 + 0j, 8e-4, 0.02, 0.04, 6.4e5, 1)
    text = Certificate((known,), 1.0, "start 0", 1, 0, (), "", ()).summary()
    assert text.startswith(
        "UNSTABLE: a step of up to 0.02 s multiplies constraint violations by 6.4e+05, the step "
        "limit is 0.0008 s (constraint violations decay by exp(-931 t) under exact integration "
        "alone); take smaller gains or shorter steps; worst cost"
    )


def test_a_logarithm_has_the_certificate_of_its_objective(good):
    assert Logarithm(objective()).certificate(gains(20.0, 100.0)) == good
    assert not hasattr(Logarithm(abs), "certificate")


@pytest.mark.slow
def test_a_step_beyond_the_limit_and_failures_are_seen():
    found: Any = objective().certificate(gains(5e12, 1e12))
    assert found.step_margin < 1e-2
    assert found.failed == 4
    assert np.isnan(found.worst_cost)
    assert "no run reached its end; 4 of 4 failed: dt = 0.02 s, start 0 first" in found.summary()
    assert found.to_json()["worst_cost"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formulation", "text"),
    [
        (Multipliers(), "no stabilization to certify; .* no constraint gains: violations neither"),
        (
            Multipliers(LinearStabilization(K10=4.0, K11=-1.0)),
            r"constraint violations do not decay: root 1\.56",
        ),
    ],
)
def test_what_does_not_decay_is_told(formulation, text):
    found = objective().certificate(formulation)
    assert found.lyapunov_rate is None
    assert found.step_margin is None
    assert re.search(text, found.summary())


ONE: dict[str, Any] = {"conditions": Conditions(), "t1": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"solver": None, "max_steps": 50, **ONE}, "steps are adaptive: their limit is kept"),
        ({"solver": Projected(RK4()), "dt": 0.05, **ONE}, "every step is projected"),
        (
            {"solver": diffrax.LeapfrogMidpoint(), "dt": 0.01, **ONE},
            "LeapfrogMidpoint has no stability function: no step limit is known",
        ),
    ],
)
def test_what_is_not_known_is_stated(settings, text):
    assert text in objective(**settings).certificate(gains(20.0, 100.0)).summary()


@pytest.mark.slow
def test_without_constraints_the_worst_case_is_all_that_is_known():
    cost = TrackingError(lambda _t, q, _v: q, lambda _t: 0.0)
    start = State(jnp.ones((3, 1)), jnp.zeros((3, 1)))
    made = SimulationObjective(
        cost,
        start,
        build=lambda k: (HarmonicOscillator(k), Multipliers(), None),
        t1=0.2,
        dt=0.1,
        solver=RK4(),
    )
    found = made.certificate(jnp.array(4.0))
    assert found.stability == ()
    assert "no constraints: the worst case seen is all that is known" in found.summary()
    assert (found.members, found.failed) == (3, 0)


@pytest.mark.slow
def test_the_slowest_of_all_variations_counts():
    factors = jnp.array([1.0, 0.5, 2.0])
    made = objective(
        system=None,
        build=lambda p, factor: (PENDULUM, gains(p * factor, (p * factor / 2) ** 2), None),
        conditions=Conditions(dt=0.05, variations=factors),
    )
    found: Any = made.certificate(20.0)
    alone = jaxdae.lyapunov_certificate(10.0, 25.0)
    np.testing.assert_allclose(found.lyapunov_rate, alone.rate, rtol=1e-6)
    np.testing.assert_allclose(found.stability[0].slowest_root, -5.0, rtol=1e-6)
    # The limit is that of the fastest.
    np.testing.assert_allclose(found.stability[0].step_limit, 2.7853 / 20, rtol=1e-4)


class Slider(jaxdae.System):
    """A bead on the line `q[1] = 0` whose mass grows along it, so that mobilities change."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * (1.0 + 4.0 * q[0] ** 2) * v @ v

    def position_constraints(self, t, q):
        return q[1:]


def penalty(K_D, K_P, alpha=2.0):
    return jaxdae.Penalty(alpha, Baumgarte(K_D, K_P))


def along_a_line(formulation, **settings) -> Certificate:
    start = State(jnp.array([[0.0, 0.0], [0.5, 0.0]]), jnp.array([[4.0, 0.0], [1.0, 0.0]]))
    usual: dict[str, Any] = {"system": Slider(), "solver": RK4(), "t1": 0.4, "dt": 0.05}
    made = SimulationObjective(IntegratedViolation(), start, **(usual | settings))
    return made.certificate(formulation)


@pytest.mark.slow
def test_gains_that_depend_on_the_state_are_certified_along_the_motions():
    """`phi_ddot = P Phi` with `P = W alpha / (1 + W alpha)`, least where the mass is largest."""
    found: Any = along_a_line(penalty(20.0, 100.0))
    run = jaxdae.simulate(
        Slider(),
        penalty(20.0, 100.0),
        State(jnp.zeros(2), jnp.array([4.0, 0.0])),
        t1=0.4,
        dt=0.05,
        solver=RK4(),
    )
    W = 1 / (1 + 4 * np.asarray(run.q)[:, 0] ** 2)
    least = np.min(2 * W / (1 + 2 * W))
    lone = jaxdae.lyapunov_certificate(20.0 * least, 100.0 * least)
    np.testing.assert_allclose(found.lyapunov_rate, lone.rate, rtol=1e-6)
    # Two starts, and nine states of each of their motions.
    assert found.stability[0].states == found.states == 2 + 2 * 9
    assert "at the worst of 20 states of the motions, step limit" in found.summary()
    assert json.loads(json.dumps(found.to_json()))["stability"][0]["states"] == 20
    # At the starts alone the rate would be that of the second one.
    assert found.lyapunov_rate < 0.7 * jaxdae.lyapunov_certificate(10.0, 50.0).rate


def test_the_certificate_of_a_fit_is_that_of_new_runs(good):
    """Its residuals tell the costs: no member runs again, and a failure among them is seen."""
    made, params = objective(), gains(20.0, 100.0)
    residuals = np.array(jax.jit(lambda x: made.residuals(x))(params))
    costs = np.sum(residuals.reshape(4, -1) ** 2, axis=1) * 4
    assert good.worst_member == made.members.name(int(np.argmax(costs)))
    assert (good.members, good.failed, good.failed_members) == (4, 0, ())
    by_fit = made.certificate_of_fit(params, residuals)
    np.testing.assert_allclose(by_fit.worst_cost, good.worst_cost, rtol=1e-12)  # round-off
    assert dataclasses.replace(by_fit, worst_cost=good.worst_cost) == good
    rows = residuals.reshape(made.members.shape[0] * made.members.shape[-1], -1)
    rows[2] = np.nan
    assert made.certificate_of_fit(params, rows.ravel()).failed_members == (made.members.name(2),)
