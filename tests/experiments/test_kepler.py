"""Kepler's problem: a hundred orbits show what a thousand do."""

import pytest

from jaxdae.models.kepler import Kepler

ORBITS, STEPS = 100, 60


@pytest.fixture(scope="module")
def kepler(experiment):
    return experiment("kepler")


@pytest.fixture(scope="module")
def results(kepler):
    orbit = Kepler()
    cases = kepler.formulations(orbit, 1.0)
    return {name: kepler.run(orbit, form, ORBITS, STEPS) for name, form in cases.items()}


@pytest.mark.slow
def test_every_claim_of_the_report_holds(kepler, results):
    assert [x.text for x in kepler.claims(results, ORBITS) if not x.holds] == []
    assert all(r["success"] for r in results.values())


@pytest.mark.slow
def test_a_claim_fails_with_its_numbers(kepler, results):
    """Were nothing stabilized, the first claim alone would be left."""
    plain = dict.fromkeys(results, results["plain"])
    assert [x.holds for x in kepler.claims(plain, ORBITS)] == [True, False, False, False]
