"""Pages of runs: what moves on them, what they hold, and what is refused."""

import base64
import json
import re
import sys
import webbrowser
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.figures import stub
from helpers.moving import Spiral, turning_run
from jaxdae import cli
from jaxdae.plotting import save_page


def _numbers(x):
    """A list, or plotly's typed array."""
    if isinstance(x, dict):
        return np.frombuffer(base64.b64decode(x["bdata"]), x["dtype"])
    return np.asarray(x)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Curves, layout and frames of the page of a run, and its text."""

    def page_of(run, **more):
        path = tmp_path_factory.mktemp("pages") / "new" / "run.html"
        text = save_page(run, path, **more).read_text()
        decoder, found = json.JSONDecoder(), []
        start = text.rindex("Plotly.newPlot(")
        for mark in (text.index("[{", start), text.index('{"template"', start)):
            found += [decoder.raw_decode(text, mark)[0]]
        frames = decoder.raw_decode(text, text.index("[{", text.rindex("Plotly.addFrames(")))[0]
        return SimpleNamespace(curves=found[0], layout=found[1], frames=frames, text=text)

    return page_of


@pytest.fixture(scope="module")
def page(read):
    """Of the rod that makes half a turn in 2 s."""
    return read(turning_run(), title="rod <1>")


def test_mechanism_and_cursors_move_with_the_slider(page):
    """Half of the run's 2 s is half a turn of the rod, and the cursors stand at 1 s."""
    assert [x["name"] for x in page.frames] == [str(i) for i in range(151)]
    frame = page.frames[75]
    moved = [page.curves[i] for i in frame["traces"]]
    assert [x.get("name") for x in moved[:4]] == ["bodies", "lines", "links", "points"]
    ends = frame["data"][2]
    assert (_numbers(ends["x"])[-1], _numbers(ends["y"])[-1]) == pytest.approx((0, 2), abs=1e-7)
    for cursor in frame["data"][4:]:
        np.testing.assert_allclose(_numbers(cursor["x"]), 1.0)
    steps = page.layout["sliders"][0]["steps"]
    assert [x["args"][0] for x in steps] == [[str(i)] for i in range(151)]
    assert steps[75]["label"] == "1.00"
    # Names of one place are written once, those with an underscore not at all.
    assert frame["data"][3]["text"] == ["end, same", "pivot", ""]
    assert "<title>rod &lt;1&gt;</title>" in page.text


def test_histories_are_drawn_with_names_and_units(page):
    drawn = {x["name"]: _numbers(x["y"]) for x in page.curves if x.get("meta") == "history"}
    assert {*drawn} == {"angle", "d(angle)/dt"}
    np.testing.assert_allclose(drawn["angle"][::8], np.pi / 2 * turning_run().ts, rtol=1e-6)
    assert "coordinates q [rad]" in page.text
    assert page.layout["xaxis"]["title"]["text"] == "x [m]"
    assert page.layout["yaxis"]["scaleanchor"] == "x"


def test_the_page_is_one_file(page):
    """Nothing is fetched: no script, style or image has an address."""
    text = page.text
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", text) == []
    assert "plotly.js v" in text[:200_000]


@pytest.mark.slow
def test_speed_and_failure_are_said(read):
    assert read(turning_run(failed=True)).layout["title"]["text"] == (
        "played at speed ×0.2, failed after t = 1.5 s"
    )
    assert read(turning_run(t1=4.0), title="rod").layout["title"]["text"] == "rod"


@pytest.mark.slow
def test_a_mechanism_in_space_is_in_a_scene(read):
    page = read(turning_run(Spiral()))
    assert page.layout["scene"]["aspectmode"] == "data"
    assert page.layout["scene"]["zaxis"]["title"]["text"] == "z [m]"
    (place,) = _numbers(page.frames[-1]["data"][3]["z"])
    assert place == pytest.approx(np.pi, rel=1e-6)


def test_a_system_without_points_has_its_histories_alone(read):
    page = read(stub())
    assert len(page.frames[0]["traces"]) == 4  # the cursors of two quantities in two units
    assert {x.get("meta") for x in page.curves} == {"history", None}


def test_without_plotly_the_page_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxdae\[page\]'"):
        save_page(turning_run(), tmp_path / "rod.html")


@pytest.mark.slow
def test_the_command_writes_and_opens_a_page(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    words = ["simulate", "pendulum", "--t1", "0.2", "--dt", "0.02", "--out", str(tmp_path)]
    assert cli.main([*words, "--page"]) == 0
    assert opened == []
    text = (tmp_path / "page.html").read_text()
    assert "<title>pendulum</title>" in text
    assert cli.main([*words, "--open"]) == 0
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert opened[0] in capsys.readouterr().out


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a page is a file \.html; got '.*rod\.gif'\."):
        save_page(turning_run(), tmp_path / "rod.gif")
