"""The command as a user calls it: exit status, what it prints, what it leaves in the folder."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import diffrax
import jax
import numpy as np
import pytest

from helpers.pictures import singular_positions_are_marked
from jaxdae import Trajectory
from jaxdae.cli import main
from jaxdae.commands import output

QUICK = ["--no-progress", "--t1", "0.1", "--batch", "2"]


def tune_quickly(out, *more):
    return main(["tune", "pendulum", *QUICK, "--steps", "3", "--out", str(out), *more])


def test_a_reader_that_has_enough_ends_the_command_without_a_word():
    """As `jaxdae list | head -1`: nothing can be written any more."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "jaxdae", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_place_that_takes_no_results_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    """A file in the way; a folder that the system refuses, as of one who is no administrator."""
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["tune", "pendulum", "--out", str(file / "below")]) == 2
    assert f"{file} is a file; give another --out" in capsys.readouterr().err
    assert file.read_text() == "mine"

    def full(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(output.tempfile, "TemporaryFile", full)
    assert main(["simulate", "pendulum", "--out", str(tmp_path / "a" / "b")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path} takes no files (Read-only file system); give another --out" in printed.err


@pytest.mark.slow
def test_an_implicit_method_runs_with_fixed_steps(tmp_path):
    words = ["simulate", "pendulum", "--solver", "implicit-euler", "--dt", "0.02", "--t1", "0.2"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "simulation.json").read_text())
    assert (result["solver"], result["steps"], result["success"]) == ("implicit-euler", 10, True)


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_simulate_writes_numbers_and_pictures(tmp_path, capsys):
    words = ["simulate", "pendulum", "--t1", "0.5", "--backend", "plain", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "largest |phi|" in capsys.readouterr().out
    assert Trajectory.load(tmp_path / "trajectory.npz").backend == "plain"
    result = json.loads((tmp_path / "simulation.json").read_text())
    assert result["success"] is True
    assert result["final"]["t"] == 0.5
    # ten times the tolerance of the default controller, 1e-8, for a length of 1 m
    assert result["largest |phi|"] < 1e-7
    assert result["largest error of the power balance [J]"] < 1e-6
    for name in ("histories.png", "violation.png", "energy.png"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Folder and words of a run without options but for its size, pictures included."""
    folder, printed = tmp_path_factory.mktemp("tuned"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr("jaxdae.commands.tune.RK4", diffrax.Heun)
        assert tune_quickly(folder) == 0
    return folder, printed.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("heun")
def test_tuning_says_what_ran_its_simulations_and_how_many(tuned, tmp_path, capsys):
    assert tune_quickly(tmp_path, "--backend", "plain") == 0
    plain, costs = (tmp_path, capsys.readouterr().out), []
    for (folder, printed), backend in ((tuned, "native"), (plain, "plain")):
        assert re.search(
            rf"[1-9]\d* simulations with gradients per second, {backend} backend", printed
        )
        study = json.loads((folder / "result.json").read_text())["studies"][0]
        costs.append(study["checks"]["as tuned"]["range"]["cost"])
    # The same iteration to round-off over three steps.
    np.testing.assert_allclose(*costs, rtol=1e-9)


@pytest.mark.slow
def test_a_run_that_leaves_its_velocity_constraint_is_warned_of(tmp_path, capsys):
    """Steps far beyond the limit 2 / 10 s of Euler's method for the gain 10 1/s."""
    words = ["simulate", "knife-edge", "--solver", "euler", "--dt", "0.25", "--out", str(tmp_path)]
    assert main(words) == 0
    captured = capsys.readouterr()
    printed = " ".join(captured.out.split())
    assert "WARNING: constraint 'blade' is violated by" in printed
    assert "at velocity level" in printed
    # One line, without the place in the code that warns.
    assert captured.err.startswith("jaxdae: warning: the step of 0.25 s is beyond the step limit")
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.slow
def test_simulate_in_single_precision(tmp_path):
    out = str(tmp_path)
    try:
        assert (
            main(["simulate", "pendulum", "--t1", "0.2", "--dtype", "float32", "--out", out]) == 0
        )
    finally:
        jax.config.update("jax_enable_x64", True)  # which the other tests need
    result = json.loads((tmp_path / "simulation.json").read_text())
    # 1e-5 is the tolerance in float32; well above it is the round-off of energies near 10 J
    assert 1e-9 < result["largest |phi|"] < 1e-3


@pytest.mark.slow
def test_a_run_that_stops_early_says_when_and_why(tmp_path, capsys, figures):
    arguments = ["simulate", "two-link", "--formulation", "multipliers", "--t1", "3"]
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: the run stopped at t = 2.85" in printed
    assert "lose independence" in printed
    assert "nan" not in printed.lower()
    result = json.loads((tmp_path / "simulation.json").read_text())
    # the target leaves the workspace at (0.295953 + sqrt 2) / 0.6 s
    assert result["final"]["t"] == pytest.approx(2.8503, abs=5e-3)
    run = Trajectory.load(tmp_path / "trajectory.npz")
    assert (run.about.failure, run.success) == (result["failure"], False)
    assert run.final_time == result["final"]["t"]
    assert not bool(run.result == diffrax.RESULTS.successful)
    singular_positions_are_marked(figures["histories.png"], result)


@pytest.mark.slow
def test_tune_reports_before_and_after(tuned):
    folder, printed = tuned
    assert "Heun, h = 0.01 s, 10 steps, 2 starts" in printed  # the budget
    assert "-fold" in printed
    result = json.loads((folder / "result.json").read_text())
    (study,) = result["studies"]
    tuned_on, history = study["checks"]["as tuned"], study["tunings"]["one step"]["history"]
    assert tuned_on["one step"]["cost"] < tuned_on["first"]["cost"]
    # Of the two starts alone, though one program examines them and the many of the checks; the same
    # sums by another program.
    assert tuned_on["first"]["cost"] == pytest.approx(history[0], rel=1e-9)
    assert tuned_on["one step"]["cost"] == pytest.approx(min(filter(None, history)), rel=1e-9)
    assert study["gains"]["range"]["K_P"] != study["gains"]["first"]["K_P"]
    assert len(history) == 4
    for name in ("comparison", "motion", "tuning", "range-tuning", "plane"):
        assert (folder / f"multipliers-{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_run_that_ends_off_its_constraints_is_pointed_out(tmp_path, capsys, figures):
    """The penalty form runs all 20 s, though the target is out of reach after 2.85 s."""
    assert main(["simulate", "two-link", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "WARNING: constraint 'tip x' is violated by 10.2 at position level at t = 20" in printed
    result = json.loads((tmp_path / "simulation.json").read_text())
    singular_positions_are_marked(figures["histories.png"], result)
    # Consistent to round-off at first: the axes are those of what comes after.
    for ax in figures["violation.png"].axes:
        assert ax.get_ylim()[0] > 1e-10
        assert any("start below the axis" in text.get_text() for text in ax.texts)


def test_choices_of_the_parser_are_those_of_the_library():
    """The parser spells them out, so that help does not wait for JAX."""
    import optax

    from jaxdae import cli
    from jaxdae.simulation.choices import CHOICES
    from jaxdae.tuning.optimizers import OPTIMIZERS

    assert {"models", *CHOICES} == {*cli.LISTS}
    assert {*OPTIMIZERS} <= {*cli.OPTIMIZERS}
    assert all(name in OPTIMIZERS or hasattr(optax, name) for name in cli.OPTIMIZERS)


def test_models_and_what_they_can_be_run_with_are_listed(capsys):
    from jaxdae.simulation.choices import CHOICES

    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in ("pendulum", "chain", "two-link", "slider-crank", "andrews"):
        assert f"\n{name}" in f"\n{printed}"
    for kind, choices in CHOICES.items():
        assert main(["list", kind]) == 0
        lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
        assert [name for name, _ in lines] == [*choices]
        assert all(summary.strip() for _, summary in lines)


@pytest.mark.slow
def test_the_command_switches_on_a_cache_of_compiled_programs(tmp_path):
    """For nobody else: what is in it is run."""
    (tmp_path / "jaxdae").mkdir()
    (tmp_path / "jaxdae").chmod(0o777)
    code = "import jax; from jaxdae.cli import main; main(['analyze', 'none']); "
    code += "print(jax.config.jax_compilation_cache_dir)"
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(str(tmp_path / "jaxdae"))
    assert (tmp_path / "jaxdae").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_run_that_blows_up_quotes_no_figures(tmp_path, capsys):
    arguments = ["simulate", "pendulum", "--solver", "rk4", "--dt", "0.05", "--t1", "3"]
    arguments += ["--K_D", "2000", "--K_P", "1e6", "--out", str(tmp_path)]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "the state is no longer finite after t = 1 s" in printed
    assert "e+" not in printed


@pytest.mark.slow
def test_a_solver_that_is_chosen_is_named_with_the_reason(tmp_path, capsys):
    words = ["simulate", "ball-beam", "--solver", "auto", "--t1", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "Rodas5P: the fastest root -1.44" in capsys.readouterr().out
    (file,) = tmp_path.rglob("simulation.json")
    about = json.loads(file.read_text())
    assert about["solver"] == "Rodas5P"
    assert about["why this solver"].startswith("the fastest root")
