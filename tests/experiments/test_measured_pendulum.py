"""The measured double pendulum: its records, its model, what contradicts the claims."""

import json

import numpy as np
import pytest

import jaxdae


@pytest.fixture(scope="module")
def pendulum(experiment):
    return experiment("measured_pendulum")


def test_the_records_are_those_of_the_laboratory_and_small(pendulum):
    found = pendulum.records()
    assert len(found) == 10
    assert sum(x.stat().st_size for x in pendulum.FOLDER.iterdir()) < 300_000
    assert "BSD 3-Clause License" in (pendulum.FOLDER / "LICENSE").read_text()
    for record in found.values():
        # Every tenth sample of about 2 ms, and times that are not equidistant.
        assert 0.019 < np.median(np.diff(record.ts)) < 0.021
        assert np.ptp(np.diff(record.ts)) > 1e-4
        assert record.inputs.shape == (record.ts.size, 2)
    largest = {n: max(np.abs(y).max() for y in x.outputs.values()) for n, x in found.items()}
    assert all((largest[n] > 2.5) == (n in pendulum.OVER_THE_TOP) for n in largest)


def test_the_declaration_is_that_of_two_links_and_a_rotor(pendulum):
    """Kinetic and potential energy from places of two bodies, by hand."""
    mass, center, inertia, rotor = (0.5, 0.6), (0.15, 0.25), (0.01, 0.02), 0.003
    system = pendulum.DoublePendulum(
        inertia_1=inertia[0] + mass[0] * center[0] ** 2 + mass[1] * 0.2**2,
        inertia_2=inertia[1] + mass[1] * center[1] ** 2,
        rotor=rotor,
        moment_1=mass[0] * center[0] + mass[1] * 0.2,
        moment_2=mass[1] * center[1],
    )
    q, v = np.array([0.7, -1.1]), np.array([1.3, -0.4])
    angle, rate = q.sum(), v.sum()
    place = 0.2 * np.array([np.cos(q[0]), np.sin(q[0])]) * v[0]
    place = place + center[1] * np.array([np.cos(angle), np.sin(angle)]) * rate
    kinetic = 0.5 * (inertia[0] + mass[0] * center[0] ** 2) * v[0] ** 2
    kinetic += 0.5 * (mass[1] * place @ place + inertia[1] * rate**2 + rotor * v[1] ** 2)
    height = -mass[0] * center[0] * np.cos(q[0])
    height -= mass[1] * (0.2 * np.cos(q[0]) + center[1] * np.cos(angle))
    np.testing.assert_allclose(system.kinetic_energy(0.0, q, v), kinetic, rtol=1e-12)
    np.testing.assert_allclose(system.potential_energy(0.0, q), 9.81 * height, rtol=1e-12)


def stored(pendulum):
    return json.loads(pendulum.DATA.read_text())


def test_the_numbers_of_the_page_bear_out_its_sentences(pendulum):
    data = stored(pendulum)
    assert all(x["holds"] for x in data["claims"])
    again = pendulum.claims(data["errors"], ["a"], data)
    assert all(x.holds for x in again)
    known = dict(zip(data["names"], data["values"], strict=True))
    assert data["model_1.1"] == pendulum.MODEL_1_1
    assert known.keys() == pendulum.MODEL_1_1.keys()


@pytest.mark.slow
def test_kept_parameters_predict_better_than_the_laboratorys(pendulum):
    """A second from every second of one record that was held out."""
    data = stored(pendulum)
    params = dict(zip(data["names"], data["values"], strict=True))
    record = pendulum.experiment(pendulum.records()["143601"].between(0.0, 3.0))
    own, other = (
        pendulum.validate(
            pendulum.build, x, record, channels=pendulum.channels(zeros=False), horizon=1.0,
            past=0.1, dt=0.01, solver=pendulum.RK4(),
        )
        for x in (params, pendulum.MODEL_1_1)
    )  # fmt: skip
    for name in own.channels:
        assert own.rms(name)[0] < 0.5 * other.rms(name)[0]


def test_a_run_that_contradicts_a_claim_says_so(pendulum):
    def errors(own, plain, rubbed):
        rows = dict(zip(pendulum.MODELS, (own, plain, rubbed), strict=True))
        return {name: {"shoulder": x, "elbow": x} for name, x in rows.items()}

    good = ([0.1] * 4, [0.5] * 4, [0.2] * 4)
    ended = {"stop_reason": "converged", "evaluations": 39}
    assert all(x.holds for x in pendulum.claims(errors(*good), ["a"], ended))
    worse = (
        (0, errors(*good), ["a"], ended | {"stop_reason": "steps"}),
        (0, errors(*good), ["a"], ended | {"evaluations": 40}),
        (1, errors(good[0], [0.05, *good[1][1:]], good[2]), ["a"], ended),
        (1, errors(good[0], [*good[1][:3], 0.05], good[2]), ["a"], ended),
        (2, errors(good[0], good[1], [0.2, 0.05, 0.2, 0.2]), ["a"], ended),
        (2, errors(good[0], good[1], [0.2, 0.2, 0.2, 0.05]), ["a"], ended),
        (3, errors(*good), [], ended),
    )
    for place, *arguments in worse:
        holds = [x.holds for x in pendulum.claims(*arguments)]
        assert holds == [i != place for i in range(4)]


def test_models_differ_by_what_their_names_say(pendulum):
    own = dict.fromkeys(pendulum.MODEL_1_1, 2.0)
    made = pendulum.models(own)
    assert made["fitted"] == own
    rubbed = made["model_1.1 with friction"]
    assert {n for n in rubbed if rubbed[n] == 2.0} == {*pendulum.FRICTION}
    assert isinstance(pendulum.build(own)[0], jaxdae.System)


@pytest.mark.slow
def test_the_fit_ends_by_its_rule(pendulum):
    """Friction that sticks makes the sum of squares rough; elsewhere rounding takes other steps."""
    result = pendulum.fitted(pendulum.records(), 100).result
    assert result.stop_reason == "converged"
    assert result.evaluations < 80  # on the machine of the page fewer than 40
    assert (result.robust_errors > result.classical_errors).mean() > 0.5
