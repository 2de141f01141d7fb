"""Checkpoints of the command: kept, refused, resumed."""

import json
import os
import signal
import subprocess
import sys

import diffrax
import jax
import numpy as np
import pytest

from jaxdae.cli import main
from jaxdae.commands import tune as command

STEPS, KILLED = 24, 17
WORDS = ["tune", "pendulum", "--no-progress", "--t1", "0.1", "--batch", "2", "--out"]
ADAM = ["--optimizer", "adam", "--steps", str(STEPS)]


def tune_quickly(out, *more):
    return main([*WORDS, str(out), *ADAM, *more])


def make_quick(patch):
    """Two stages for four, and no pictures, which have tests of their own."""
    patch.setattr(command, "RK4", diffrax.Heun)
    patch.setattr(command, "draw", lambda *_: None)


@pytest.fixture
def quick(monkeypatch):
    make_quick(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder of a run from its beginning to its end."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        assert tune_quickly(out) == 0
    return out


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_checkpoint_of_other_settings_or_damaged_is_left_and_a_new_run_keeps_it(
    whole, tmp_path, capsys, monkeypatch
):
    """A finished run: resumed with other settings, with its checkpoint cut off, and run anew."""
    path = tmp_path / "multipliers.checkpoint"
    first = (whole / path.name).read_bytes()
    path.write_bytes(first)
    assert tune_quickly(tmp_path, "--resume", "--batch", "3") == 2
    assert "checkpoint" in capsys.readouterr().err
    assert path.read_bytes() == first
    damaged = first[:-20]
    path.write_bytes(damaged)
    assert tune_quickly(tmp_path, "--resume") == 2
    errors = capsys.readouterr().err
    assert "multipliers.checkpoint" in errors
    # What a command can do; `overwrite=True` is of the function.
    assert "Start again without --resume" in errors
    assert "overwrite" not in errors
    assert path.read_bytes() == damaged
    assert [x.name for x in tmp_path.iterdir()] == [path.name]
    path.write_bytes(first)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_tune", stopped)
    assert tune_quickly(tmp_path, "--seed", "1") == 130
    assert "is kept as multipliers.checkpoint.old1" in capsys.readouterr().out
    assert (tmp_path / "multipliers.checkpoint.old1").read_bytes() == first


def study_numbers(out):
    (study,) = json.loads((out / "result.json").read_text())["studies"]
    tunings = {name: (x["history"], x["skipped"]) for name, x in study["tunings"].items()}
    return {k: study[k] for k in ("gains", "checks", "certificates")} | {"tunings": tunings}


# The process that kills itself does not evaluate before it tunes: that compiles a program more.
TO_BE_KILLED = f"""
import os, signal, sys
import diffrax
from jaxdae.cli import main
from jaxdae.commands import tune as command

def descend(*args, callback, tune=command.tune, **options):
    def killing(step):
        if step.step == {KILLED}:
            os.kill(os.getpid(), signal.SIGKILL)
        return callback(step)
    return tune(*args, callback=killing, **options)

command.RK4, command.tune = diffrax.Heun, descend
command._held = lambda *_: ((1.0,), ())
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_killed_run_resumes_to_the_same_numbers(whole, tmp_path):
    """SIGKILL in the middle, then the same command with --resume: bit for bit the same result."""
    # The process compiles as this one does, so that its numbers are the same.
    quick = {
        name.upper(): str(jax.config.values[name])
        for name in ("jax_disable_most_optimizations", "jax_compilation_cache_dir")
    }
    killed = subprocess.run(
        [sys.executable, "-c", TO_BE_KILLED, *WORDS, str(tmp_path), *ADAM],
        stdout=subprocess.DEVNULL, env=os.environ | quick, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "result.json").exists()
    content = (tmp_path / "multipliers.checkpoint").read_bytes()
    # Every step is kept, after the first evaluation.
    assert json.loads(content.partition(b"\n")[0])["rows"] == KILLED + 1
    assert tune_quickly(tmp_path, "--resume") == 0
    assert study_numbers(tmp_path) == study_numbers(whole)


@pytest.mark.slow
def test_the_main_job(tmp_path, capsys, monkeypatch):
    """`jaxdae tune two-link`: four columns, and what is promised of them."""
    # Of the planes of gains, which others test, a few cells: all are nine thousand runs.
    monkeypatch.setattr("jaxdae.commands.tuning_pictures._CELLS", 3)
    assert main(["tune", "two-link", "--no-progress", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    baumgarte, lagrange = result["studies"]
    assert (baumgarte["t1"], lagrange["t1"]) == (0.45, 2.5)
    for study in (baumgarte, lagrange):
        assert list(study["gains"]) == ["first", "theory", "one step", "range"]
        assert study["theory_difference"] < 0.03
        assert max(x["evaluations"] for x in study["tunings"].values()) < 40
        checks = study["checks"]
        steps = ("half the step", "other starts", "1.5 times the step", "twice the step")
        others = ("starts twice as far off", "longer horizon")
        for name in (*steps, *others):
            assert checks[name]["range"]["failed"] == checks[name]["first"]["failed"] == 0
            assert checks[name]["range"]["cost"] < checks[name]["first"]["cost"]
        cuts = [checks[x]["first"]["cost"] / checks[x]["range"]["cost"] for x in steps]
        assert max(cuts) > 100
        # What is made for one step ends at twice that step, as its certificate says.
        assert checks["twice the step"]["one step"]["failed"] == 64
        assert study["certificates"]["one step"]["step_margin"] < 1
        assert study["certificates"]["range"]["step_margin"] > 1
        assert {"|phi|^2", "|phi_dot|^2"} == checks["other starts"]["range"]["parts"].keys()
    assert printed.count("finds the gains of theory") == 2
    assert printed.count("better than the paper's at each") == 2
    # Perturbed starts break at the singular configuration, and the command says so.
    broken = baumgarte["beyond"]["first"]
    assert broken["failed"] > 0
    assert np.all(np.abs(np.array(broken["times"]) - 0.4933) < 0.05)
    assert "starts break, at t = 0.4" in printed
    assert "nan" not in printed.lower()
