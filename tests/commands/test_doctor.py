"""`jaxdae doctor FILE`: what it prints, what it writes, and with which status it ends."""

import sys
from pathlib import Path

import pytest

from jaxdae.cli import main
from jaxdae.multibody import examination

FILE = str(Path(__file__).parents[1] / "data" / "four_bar.xml")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Without the exact mechanism, which is what takes long."""
    for name in ("mobility", "_state"):
        monkeypatch.setattr(examination, name, lambda *_: None)
    monkeypatch.setattr(examination, "_with_motion", lambda report, *_: report)


def test_a_file_is_examined_and_written(capsys, tmp_path):
    out = tmp_path / "out.xml"
    assert main(["doctor", FILE, "--end", "0.1", "--write", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "four_bar.xml: 1 equality constraint; euler, step 0.002 s, motion of 0.1 s" in printed
    assert f"written to {out}" in printed
    assert 'solref="0.004 0.5"' in out.read_text()
    # The suggestion cannot be bettered by itself: nothing is written.
    again = tmp_path / "again.xml"
    assert main(["doctor", str(out), "--end", "0.1", "--write", str(again)]) == 1
    assert "No suggestion" in capsys.readouterr().out
    assert not again.exists()
    assert main(["doctor", str(out), "--end", "0.1"]) == 0


def test_what_it_refuses_is_one_line(capsys, monkeypatch):
    assert main(["doctor", "nowhere.xml"]) == 2
    assert capsys.readouterr().err.startswith("jaxdae: read_mujoco: got 'nowhere.xml', which is no")
    assert main(["doctor", FILE, "--key", "run"]) == 2
    assert "no keyframe is called 'run'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "mujoco", None)
    assert main(["doctor", FILE]) == 2
    assert "pip install 'jaxdae[import]'" in capsys.readouterr().err
