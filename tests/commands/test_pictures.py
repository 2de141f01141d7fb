"""What the command adds to the pictures of the library, and pages that cannot be shown."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxdae.cli import main
from jaxdae.commands import simulate
from jaxdae.commands.simulate import Outcome
from jaxdae.diagnosis.findings import Findings
from jaxdae.results.trajectory import Trajectory
from jaxdae.storage.runs import About


def test_the_first_row_of_a_program_does_not_take_the_axis():
    """The start is as far off as was asked for; what the control leaves of it is to be seen."""
    program = np.array([0.05, 3e-9, 2e-9, 1e-9, 2e-9])[:, None]
    ts, empty = np.arange(5.0), np.zeros((5, 0))
    rows = {"phi": empty, "phi_dot": empty, "ts": ts, "q": np.ones((5, 1))}
    run = Trajectory.from_arrays(rows, About(labels={}))
    outcome = Outcome(run, Findings(), program, ("beam",), departs=True, uncontrolled=False)
    figure = simulate._off(outcome, "mirror")
    (ax,) = figure.axes
    assert ax.get_ylabel() == "|f| of the program"
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[1] < 1e-7
    assert [x.get_text() for x in ax.texts] == ["start above the axis: 5.0e-02"]


def test_a_page_without_plotly_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "plotly", None)
    for option in ("--page", "--open"):
        assert main(["simulate", "pendulum", option, "--out", str(tmp_path)]) == 2
        said = capsys.readouterr()
        assert said.err == "jaxdae: a page of the run needs plotly: pip install 'jaxdae[page]'.\n"
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shown", [True, False])
def test_where_no_browser_is_the_page_is_named(shown, monkeypatch, tmp_path, capsys):
    opened, page = [], tmp_path / "page.html"
    monkeypatch.setattr("jaxdae.plotting.save_page", lambda *_, **__: page)
    monkeypatch.setattr(simulate.webbrowser, "open", lambda uri: opened.append(uri) or shown)
    options = SimpleNamespace(model="pendulum", open=True)
    run: Any = SimpleNamespace(with_system=lambda _: None)
    simulate._show(run, options, tmp_path)
    printed = capsys.readouterr().out
    assert opened == [page.as_uri()]
    assert page.as_uri() in printed
    assert ("no browser was found to show it" in printed) == (not shown)
