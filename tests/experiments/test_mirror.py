"""The mirror's step limits, held against runs of all three methods."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import relative_degree
from jaxdae.models.mirror import AdaptiveMirror

METHODS = ("Euler", "Heun", "RK4")
STEPS, SAMPLES = 300, 40


@pytest.fixture(scope="module")
def mirror(experiment):
    return experiment("mirror")


@pytest.fixture(scope="module")
def found(mirror):
    return mirror.study(STEPS, 200.0, SAMPLES)


@pytest.mark.slow
def test_inside_the_limit_the_theorem_applies_and_its_bound_holds(found):
    inside = [x for x in found["rows"] if x["part"] < 1]
    assert [(x["method"], x["part"]) for x in inside] == [*product(METHODS, (0.9, 0.95))]
    for x in inside:
        assert x["theta"] < 1
        # The condition on remainders, at random states as far off as the bound allows.
        assert x["used"] <= 1
        assert x["largest"] <= x["bound"]
        # A bound that says something: a run that breaks comes to several m^2.
        assert x["bound"] < 0.01
        assert x["rows"] == STEPS + 1


@pytest.mark.slow
def test_just_outside_the_limit_the_run_breaks_and_was_warned_of(found):
    outside = [x for x in found["rows"] if x["part"] > 1]
    assert [(x["method"], x["part"]) for x in outside] == [(x, 1.03) for x in METHODS]
    for x in outside:
        assert (x["warned"], x["broken"]) == (True, True)
        # It leaves the bound of the runs inside by far before it does.
        assert x["largest"] > 1.0


@pytest.mark.slow
def test_with_equal_roots_only_the_norm_guarantees_anything(found):
    for x in found["equals"]:
        if x["version"] == "Lyapunov norm":
            assert x["theta"] < 1
            assert x["used"] <= 1
            assert x["largest"] <= x["bound"] < 0.01
        else:
            # Inside the spectral limit, the powers of the step matrix reach a thousand and more.
            assert x["part"] < 1
            assert x["power"] > 1000
    broken = {x["method"] for x in found["equals"] if x["broken"]}
    assert broken >= {"RK4"}
    assert not any(x["broken"] for x in found["equals"] if x["version"] == "Lyapunov norm")


@pytest.mark.slow
def test_every_claim_of_the_report_holds(mirror, found):
    sentences = mirror.claims(found)
    assert [x.text for x in sentences if not x.holds] == []
    assert "NOT IN THIS RUN" not in mirror.report(found, 200.0)


@pytest.mark.slow
def test_a_claim_fails_with_its_numbers(mirror, found):
    worse = [x | {"largest": 1.1 * x["bound"]} for x in found["rows"]]
    failed = [x for x in mirror.claims(found | {"rows": worse}) if not x.holds]
    assert len(failed) == 1
    assert "the violation stays under its bound" in failed[0].text


@pytest.mark.slow
def test_the_remainders_are_those_of_the_steps_that_are_simulated(mirror, found):
    """From the program motion the violation after the first step is the first remainder."""
    loop = mirror.closed_loop(200.0, mirror.APART)
    (x,) = [x for x in found["rows"] if x["method"] == "RK4" and x["part"] == 0.9]
    ts = jnp.linspace(0.0, 2 * jnp.pi, SAMPLES)
    after = mirror.after_one_step(
        loop, mirror.METHODS["RK4"], jnp.asarray(x["dt"]), ts, jnp.zeros((SAMPLES, 4))
    )
    # The difference of two squared lengths of order one, in double precision.
    np.testing.assert_allclose(abs(after[0, 0]), x["f"][1], atol=1e-13)


class TorqueByCurrent(AdaptiveMirror):
    """The torque of the motor proportional to its current, as it is in a motor."""

    def actuator_rate(self, t, q, v, w, u):
        return super().actuator_rate(t, q, v, jnp.stack([w[0], w[0]]), u)[1:]


def test_with_a_torque_proportional_to_the_current_the_degree_would_be_three():
    system = TorqueByCurrent()
    sample = system.program_state(0.0)
    state = jaxdae.State(sample.q, sample.v, sample.w[:1])
    free = jaxdae.Multipliers()
    assert relative_degree(system, free, system.program, state, controls=1).degrees == (3,)
