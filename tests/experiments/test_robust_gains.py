"""Robust gains: tuned on some starts and steps, judged on others; what contradicts its claims."""

import dataclasses

import diffrax
import numpy as np
import pytest

from jaxdae.models.studies import studies


@pytest.fixture(scope="module")
def robust(experiment):
    return experiment("robust_gains")


@pytest.mark.slow
def test_gains_of_a_range_are_better_at_steps_they_were_not_tuned_on(robust):
    """Velocity constraints by Euler's method: `(1 - Gamma h)^2` of a square is left by a step."""
    (study,) = studies("sleigh")
    study = dataclasses.replace(study, t1=0.1)
    case = robust.judged(study, starts=4, solver=diffrax.Euler())
    assert not case.worse
    assert min(case.cuts) > 1
    assert case.failed == (0, 0)
    assert case.margin > 1
    assert not {*robust.STEPS} & {*robust.RANGE}
    row = robust.report([dataclasses.replace(case, name="sleigh")]).splitlines()[-1]
    assert row.startswith("sleigh")
    assert row.count("-fold") == len(robust.STEPS)


def test_a_case_that_is_worse_contradicts_its_claim(robust):
    good = robust.Case("a", (2.0, np.nan, 3.0), (5, 0), 10, None, None, 1.0)
    for change in ({"cuts": (2.0, 0.9, 3.0)}, {"failed": (0, 1)}):
        worse = dataclasses.replace(good, name="b", **change)
        assert [x.holds for x in robust.claims([good, worse])] == [True, False]
    assert "no run before" in robust.report([good])
