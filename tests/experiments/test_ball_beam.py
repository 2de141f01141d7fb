"""Ball and beam: the report's numbers in a run with fewer starts."""

import pytest

import jaxdae


@pytest.fixture(scope="module")
def ball_beam(experiment):
    return experiment("ball_beam")


@pytest.fixture(scope="module")
def values(ball_beam):
    # The same motion as Shulgin's equations, in a program that compiles in a third of the time.
    formulation = jaxdae.Multipliers()
    return ball_beam.numbers(ball_beam.study(formulation, 2, shifts=(-0.005, 0.0, 0.005)))


@pytest.mark.slow
def test_every_claim_of_the_report_holds(ball_beam, values):
    assert [x.text for x in ball_beam.claims(values) if not x.holds] == []


@pytest.mark.slow
def test_a_claim_fails_with_its_numbers(ball_beam, values):
    lost = values | {"returned": 1}
    (failed,) = [x for x in ball_beam.claims(lost) if not x.holds]
    assert "1 of 2 perturbed starts" in failed.text
