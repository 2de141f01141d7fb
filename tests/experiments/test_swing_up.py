"""The swing-up by a crank: stored parameters bring plants upright; what contradicts the claims."""

import json

import jax
import numpy as np
import pytest


@pytest.fixture(scope="module")
def swing_up(experiment):
    return experiment("swing_up")


def stored(swing_up):
    return json.loads(swing_up.DATA.read_text())


def test_states_are_on_the_constraints_and_have_the_angles_they_are_made_of(swing_up):
    scales, z = swing_up.drawn(jax.random.key(0), 1)
    system = swing_up.plant(scales[0])
    state = system.state(z[0])
    # A few operations of numbers of order one.
    np.testing.assert_allclose(system.position_constraints(0.0, state.q), 0.0, atol=1e-14)
    back = swing_up.angles(state.q, state.v)
    np.testing.assert_allclose(np.sin(back - z[0]), 0.0, atol=1e-14)


@pytest.mark.slow
def test_stored_parameters_bring_held_out_plants_upright_within_the_torque(swing_up):
    scales, z = swing_up.drawn(jax.random.key(7), 4)
    found = swing_up.judged(swing_up.stored_policy_of(stored(swing_up)), scales, z)
    assert found.success.all()
    assert 0.5 * swing_up.TORQUE < found.torque.max() <= swing_up.TORQUE
    assert (found.cost < 10).all()  # hanging for all of the run costs more than 16


@pytest.mark.slow
def test_the_plan_is_followed_by_the_plant_it_was_made_for(swing_up):
    data = stored(swing_up)
    policy = swing_up.planned(data["inputs"], data["nodes"])
    found = swing_up.judged(policy, np.ones((1, 6)), swing_up.HANGING[None])
    assert found.success.all()
    assert found.torque.max() <= swing_up.TORQUE


def test_a_run_that_contradicts_a_claim_says_so(swing_up):
    def runs(angle, torque=4.0, milliseconds=0.1):
        angle = np.array(angle)
        same = np.zeros_like(angle)
        return swing_up.Judged(angle, same, same, same + 5.0, same + torque, milliseconds)

    known = {name: runs([0.0, 0.0]) for name in ("trained", "planned")}
    known["predictive"] = runs([0.0, 0.0], milliseconds=2.0)
    lost = runs([3.0, np.nan])
    unknown = known | {"planned": lost}
    first, last = swing_up.SPREADS[0], swing_up.SPREADS[-1]
    assert all(x.holds for x in swing_up.claims({first: known, last: unknown}))
    worse = (
        (0, known | {"trained": lost}, unknown),
        (1, known, unknown | {"predictive": lost}),
        (2, known, known),
        (3, known | {"planned": runs([0.0, 0.0], torque=4.1)}, unknown),
        (4, known | {"trained": runs([0.0, 0.0], milliseconds=3.0)}, unknown),
    )
    for place, *both in worse:
        holds = [x.holds for x in swing_up.claims(dict(zip((first, last), both, strict=True)))]
        assert holds == [i != place for i in range(len(holds))]
    assert "1 of 2" in "\n".join(swing_up.report({0.2: {"trained": runs([0.0, np.nan])}}))


def test_a_run_that_reaches_a_dead_centre_is_no_success(swing_up):
    zero = np.zeros(2)
    found = swing_up.Judged(zero, zero, np.array([1.0, 1.6]), zero, zero, 1.0)
    assert found.success.tolist() == [True, False]
