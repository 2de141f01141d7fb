"""The arm in Hamiltonian form: the report's numbers in short runs."""

import numpy as np
import pytest

from jaxdae import Hamiltonian
from jaxdae.models.arm import perturbation_equations, PointMassArm


@pytest.fixture(scope="module")
def hamilton(experiment):
    return experiment("hamilton")


@pytest.mark.slow
def test_residuals_satisfy_the_perturbation_equations(hamilton):
    # Of residuals of some 1e-2 m^2; interpolated rows are less accurate than steps (1e-11).
    assert hamilton.perturbations(PointMassArm(forces=hamilton.WEIGHTS))["difference"] < 1e-7


@pytest.mark.slow
def test_the_equations_as_printed_lose_the_constraints(hamilton):
    found = hamilton.printed(PointMassArm(forces=hamilton.WEIGHTS))
    lost = {
        name: [hamilton._lost(found["ts"], y) for y in phi.T] for name, phi in found["phi"].items()
    }
    assert hamilton.printed_claim(lost).holds
    derived = next(iter(found["phi"].values()))
    assert derived.max() < 1e-9
    kept = dict.fromkeys(lost, (None, None))
    assert not hamilton.printed_claim(kept).holds


def test_the_best_damped_factor_is_a_zero_of_the_stability_polynomial(hamilton):
    damping, stiffness = hamilton.deadbeat()
    for z in np.roots([1, damping, stiffness]):
        assert abs(1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24) < 1e-12
    assert (round(damping, 2), round(stiffness, 2)) == (3.46, 3.78)


@pytest.mark.slow
def test_deadbeat_coefficients_do_harm_on_the_constraints_and_momenta_are_velocities(hamilton):
    damping, stiffness = hamilton.deadbeat()
    link = (-stiffness / hamilton.STEP**2, -damping / hamilton.STEP)
    best = Hamiltonian(perturbation_equations(*link, *link))
    runs = hamilton.drift(PointMassArm(), {hamilton.OFF: best}, end=20.0)
    largest = {name: run["phi"].max() for name, run in runs.items()}
    assert largest[f"c tuned on {hamilton.OFF}"] > largest[hamilton.CRITICAL]
    assert largest[hamilton.PLAIN] > largest[hamilton.CRITICAL]
    second = round(1 / hamilton.STEP)
    plain, other = (runs[name]["q"][:second] for name in (hamilton.PLAIN, hamilton.VELOCITIES))
    # Round-off of a hundred steps.
    np.testing.assert_allclose(plain, other, atol=1e-12)


@pytest.mark.slow
def test_the_claims_are_what_the_numbers_say(hamilton):
    """Numbers of a run, and the same with one of them spoilt."""
    same = {"dq": 0.0, "dlam": 0.0, "balance": 3.5e-9, "phi": 2.5e-10, "changes": None}
    off, drift = hamilton.OFF, hamilton.DRIFT
    motor = {"current": 1.2e-9, "speed": 9.5e-12, "torque": 1.7e-10}
    values = {
        "agreement": {"arm": {"Multipliers": same, "Hamiltonian": same | {"dq": 1.7e-10}}},
        "perturbation_difference": 6.0e-9,
        "printed_lost_after": {"as derived": [None, None], "sign": [0.5, 0.08], "P": [0.3, 0.06]},
        "tuned": {
            off: {"c": [-3.963e4, -342.8, -4.0e4, -341.1], "judged": [1.1e-5, 2.7e-8]},
            drift: {"c": [-11.71, -4.536, -12.78, -3.551], "judged": [3.6e-13, 2.2e-15]},
        },
        "drift": {f"c tuned on {off}": {"phi": 2.4e-4}, hamilton.CRITICAL: {"phi": 3.3e-7}},
        "momenta_or_velocities": 2.1e-15,
        "motor": {"charge": motor, "actuator": dict.fromkeys(motor, 0.0)},
    }
    assert [x.text for x in hamilton.claims(values) if not x.holds] == []
    for spoilt, names in (
        ({"perturbation_difference": 1e-3}, "perturbation equations"),
        ({"motor": {"charge": motor | {"current": 0.1}}}, "another physical nature"),
    ):
        (failed,) = [x for x in hamilton.claims(values | spoilt) if not x.holds]
        assert names in failed.text
