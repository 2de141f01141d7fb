"""The five-bar's contest: claims are held against the numbers; its plants and starts."""

from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def results(experiment):
    """Numbers of a run that bears its claims out."""
    Row = experiment("contest").Row
    costs = {"LQR": 1.0, "PD": 0.8, "LQR, weights tuned": 0.75, "LQR + network": 0.6}
    rows = {name: Row(name, 3, {}, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    return {"rows": rows, "course": SimpleNamespace(error=1e-12)}


def holding(experiment, results):
    return [x.holds for x in experiment("five_bar").claims(results)]


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("PD", {}, [True, True, True]),
        ("PD", {"held_out": np.append(np.full(19, 0.8), np.nan)}, [True, False, True]),
        # Learnt by heart: much better on the plants it was tuned on.
        ("LQR + network", {"training": np.full(20, 0.4)}, [True, True, False]),
    ],
)
def test_a_spoilt_number_contradicts_a_claim(experiment, results, name, change, expected):
    results["rows"][name] = results["rows"][name]._replace(**change)
    assert holding(experiment, results) == expected


@pytest.mark.slow
def test_a_rerun_beats_the_regulator_on_plants_held_out(experiment):
    size = experiment("contest").Size(4, 6)
    law = "PD, inverse dynamics"
    rows = experiment("five_bar").study(6, size, ("LQR", law), brief=True)["rows"]
    assert [x.lost for x in rows.values()] == [0, 0]
    assert rows[law].mean < 0.95 * rows["LQR"].mean
    assert rows[law].worst < rows["LQR"].worst
