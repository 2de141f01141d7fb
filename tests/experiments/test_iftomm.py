"""Benchmark problems of the IFToMM library: coupled four-bars that fold, and a stiff governor."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae

DATA = Path(__file__).parents[2] / "docs" / "data"


@pytest.fixture(scope="module")
def iftomm(experiment):
    return experiment("iftomm")


def test_both_declarations_of_coupled_four_bars_are_one_mechanism(iftomm):
    """Energies and speeds on the branch; natural coordinates and joints."""
    angle, rate = 0.7, -2.0
    for system, at in (
        (iftomm.FourBars(2), iftomm.FourBars(2).parallel(angle, rate)),
        (iftomm.jointed_four_bars(2), iftomm.parallel(2, angle, rate)),
    ):
        zero = jnp.zeros(())
        # Of three cranks about their pivots and two couplers that do not turn.
        kinetic = 0.5 * (3 / 3 + 2) * rate**2
        np.testing.assert_allclose(system.kinetic_energy(zero, at.q, at.v), kinetic, rtol=1e-14)
        height = iftomm.GRAVITY * (3 / 2 + 2) * np.sin(angle)
        np.testing.assert_allclose(system.potential_energy(zero, at.q), height, rtol=1e-14)
        np.testing.assert_allclose(system.position_constraints(zero, at.q), 0.0, atol=1e-15)


def test_two_four_bars_stay_parallelograms_with_nothing_chosen(iftomm):
    """Past four positions in which both may fold another way; the first run stops at one."""
    found = iftomm.folded(2, jointed=False, t1=4.0)
    assert found["turns"] > 1.0
    # Errors of a tolerance of 1e-8 in some fifty steps.
    assert found["branch"] < 1e-6
    assert found["motion"] < 1e-5
    assert found["energy"] < 1e-4
    assert found["solver"] == "Projected(Dopri8)"
    assert "; made again by SingularityRobust(), as the run stopped at a near-s" in found["why"]
    assert found["warnings"] == []


@pytest.mark.slow
def test_two_four_bars_of_bodies_stay_parallelograms_with_nothing_chosen(iftomm):
    found = iftomm.folded(2, jointed=True, t1=4.0)
    assert found["branch"] < 1e-6
    assert "; made again by SingularityRobust(), as the run passed a near-sing" in found["why"]


def test_accelerations_of_the_governor_are_those_by_hand(iftomm):
    turn, height, opening = 0.4, 0.47, 1.1
    spin, rise, opens = 5.0, -0.3, 0.2
    q = jnp.array([turn, height, opening, opening])
    v = jnp.array([spin, rise, opens, opens])
    terms = jax.jit(lambda q, v: jaxdae.evaluate(iftomm.governor(), 0.0, q, v))(q, v)
    found = np.linalg.solve(terms.mass, terms.force)
    wanted = iftomm.governor_rates(0.0, [turn, height, opening, spin, rise, opens])[3:]
    np.testing.assert_allclose(found, [*wanted, wanted[2]], rtol=1e-10)


@pytest.mark.slow
def test_a_stiff_governor_by_the_automatic_choice(iftomm):
    found = iftomm.governed("auto")
    assert found["solver"] == "Rodas5P"
    # Sixty radians of turn at a tolerance of 1e-8 in each of two thousand steps.
    assert max(found["turn"], found["height"], found["opening"]) < 1e-6


def test_claims_are_held_against_the_numbers(iftomm):
    rows = json.loads((DATA / "iftomm.json").read_text())["rows"]
    assert all(x.holds for x in iftomm.claims(rows))
    off = [x | {"branch": 1e-5} if "branch" in x else x | {"turn": 1e-5} for x in rows]
    assert not any(x.holds for x in iftomm.claims(off))
