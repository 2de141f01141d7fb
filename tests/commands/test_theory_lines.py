"""What `jaxdae tune` says of tuned gains beside those of theory."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdae.commands import tuning_report


@pytest.mark.parametrize(
    ("gain", "reason", "words"),
    [
        (159.0, "steps", "finds the gains of theory .*by up to 0.376 %.$"),
        (1.596, "converged", "finds others than theory .*by up to 99 %.$"),
        (1.596, "steps", "by up to 99 %. All steps were made before it converged: give more"),
    ],
)
def test_gains_that_differ_because_steps_ran_out_are_said_to(monkeypatch, gain, reason, words):
    gains = {"theory": 159.6, "one step": gain}
    monkeypatch.setattr(tuning_report, "named_gains", lambda _, x: {"Gamma": gains[x]})
    tuned = {"one step": SimpleNamespace(result=SimpleNamespace(stop_reason=reason))}
    found: Any = SimpleNamespace(
        theory_difference=abs(gain / 159.6 - 1),
        study=SimpleNamespace(dt=0.01),
        sets={x: x for x in gains},
        tuned=tuned,
    )
    (line,) = tuning_report._theory_lines(found)
    assert re.search(words, line)
