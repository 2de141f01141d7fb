"""Checkpoints of the command: kept, refused, resumed."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxdae.cli import main

QUICK = ["--no-progress", "--t1", "0.1", "--batch", "2"]


def tune_quickly(out, *more):
    return main(["tune", "pendulum", *QUICK, "--steps", "3", "--out", str(out), *more])


@pytest.mark.slow
@pytest.mark.usefixtures("heun")
def test_a_checkpoint_of_other_settings_or_damaged_is_left_and_a_new_run_keeps_it(tmp_path, capsys):
    """One finished run: resumed with other settings, with its checkpoint cut off, and run anew."""
    tune_quickly(tmp_path)
    path = tmp_path / "multipliers.checkpoint"
    first, result = path.read_bytes(), (tmp_path / "result.json").read_bytes()
    capsys.readouterr()
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
    assert (tmp_path / "result.json").read_bytes() == result
    path.write_bytes(first)
    tune_quickly(tmp_path, "--seed", "1")
    assert "is kept as multipliers.checkpoint.old1" in capsys.readouterr().out
    assert (tmp_path / "multipliers.checkpoint.old1").read_bytes() == first


def study_numbers(out):
    (study,) = json.loads((out / "result.json").read_text())["studies"]
    tunings = {name: (x["history"], x["skipped"]) for name, x in study["tunings"].items()}
    return {k: study[k] for k in ("gains", "checks", "certificates")} | {"tunings": tunings}


TO_BE_KILLED = """
import sys
import diffrax
from jaxdae.cli import main
from jaxdae.commands import tune

tune.RK4 = diffrax.Heun
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("heun")
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path):
    """SIGKILL in the middle, then the same command with --resume: bit for bit the same result."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = ["tune", "pendulum", *QUICK, "--optimizer", "adam", "--steps", "600", "--out"]
    command = [sys.executable, "-c", TO_BE_KILLED, *words, str(broken)]
    # The process compiles as this one does, so that its numbers are the same.
    quick = {
        name.upper(): str(jax.config.values[name])
        for name in ("jax_disable_most_optimizations", "jax_compilation_cache_dir")
    }
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | quick)
    checkpoint = broken / "multipliers.checkpoint"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert checkpoint.exists()
    assert not (broken / "result.json").exists()
    assert main([*words, str(broken), "--resume"]) == 0
    assert main([*words, str(whole)]) == 0
    assert study_numbers(broken) == study_numbers(whole)


@pytest.mark.slow
def test_the_main_job(tmp_path, capsys):
    """`jaxdae tune two-link`: four columns, and what is promised of them."""
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
