"""Studies of one command run two at a time: same order of reports, same ends."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdae.commands import tune as command


@pytest.fixture
def both(monkeypatch):
    """`both(first, second)` runs studies that are such functions of the event that ends them."""
    monkeypatch.setattr(command, "_tune", lambda study, _, __, ending: study(ending))
    monkeypatch.setattr(command, "report", lambda found: f"report of {found}")
    return lambda *studies: command._in_pairs(list(studies), None, Path())


def test_both_run_at_once_and_are_reported_in_order(both, capsys):
    later_is_done = threading.Event()

    def first(_):
        assert later_is_done.wait(30)
        return "first"

    def second(_):
        later_is_done.set()
        return "second"

    assert both(first, second) == ["first", "second"]
    assert capsys.readouterr().out.split("\n")[:2] == ["report of first", "report of second"]


@pytest.mark.parametrize("failure", [ValueError("no such thing"), KeyboardInterrupt()])
def test_the_end_of_one_ends_the_other(both, failure):
    begun, ended = threading.Event(), []

    def first(_):
        assert begun.wait(30)
        raise failure

    def second(ending):
        begun.set()
        ended.append(ending.wait(30))

    with pytest.raises(type(failure)):
        both(first, second)
    assert ended == [True]


def test_one_study_alone_stays_in_the_thread_of_the_command(both):
    """An interruption reaches no other thread."""
    assert both(lambda _: threading.current_thread()) == [threading.main_thread()]


def test_a_tuning_run_ends_after_the_step_in_which_it_is_asked_to(monkeypatch, capsys):
    ending, asked = threading.Event(), []

    def tune(*_, callback, **__):
        asked.append(callback(SimpleNamespace(params=None)))
        ending.set()
        asked.append(callback(SimpleNamespace(params=None)))

    monkeypatch.setattr(command, "tune", tune)
    study: Any = SimpleNamespace(name="some", deviation=1.0)
    objective: Any = SimpleNamespace(budget="h = 1 s")
    options = SimpleNamespace(optimizer=None, steps=1, resume=False, progress=False)
    with pytest.raises(KeyboardInterrupt):
        command._descend(study, objective, None, ("native", None), options, Path(), ending)
    assert asked == [False, True]
    assert capsys.readouterr().out.startswith("some: h = 1 s; starts off by 1")
