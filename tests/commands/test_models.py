"""Every ready system through the command: it runs, and it has something to tune or says why not."""

import json
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Trajectory
from jaxdae.cli import main
from jaxdae.commands.simulate import departs
from jaxdae.models import get_model, MODELS
from jaxdae.models.studies import studies
from jaxdae.systems.checks import constraint_counts
from jaxdae.tuning import resolve

# One of each kind; other tests of the command run more, and those of the registry and of the
# kernels take the starts, formulations and programs of all.
RUNS = ["circuit", "kepler", "mirror --start phi=0.3", "ball-beam --start r=0.25"]
RUNS += ["ball-beam --uncontrolled"]
CONTROLLERS = {"ball-beam": "RegulatorFeedback", "mirror": "ServoConstraint"}
WITHOUT_POSITION_CONSTRAINTS = {"kepler", "mirror"}
UNTUNED = {"kepler", "ball-beam-simplified", "car-axis", "flexible-slider-crank"}


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_program_that_is_not_followed_is_pointed_out(drawn, tmp_path, capsys):
    """Gains far beyond the limit of the step: the run ends, but its report does not praise it."""
    run = ["simulate", "mirror", "--dt", "0.3", "--t1", "1.5", "--solver", "rk4"]
    assert main([*run, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "WARNING: constraint 'beam on target' is violated by" in said.out
    assert "at program level" in said.out
    assert "jaxdae: warning: the step of 0.3 s is beyond the step limit" in said.err
    assert "violation.png" in drawn


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS)
def test_three_small_steps(words, figures, tmp_path, capsys):
    more = ["--solver", "heun", "--dt", "1e-6", "--t1", "3e-6", "--out", str(tmp_path)]
    assert main(["simulate", *words.split(), *more]) == 0
    drawn, name = figures.keys(), words.split()[0]
    controller = None if "uncontrolled" in words else CONTROLLERS.get(name)
    result = read(tmp_path / "simulation.json")
    assert result["success"] is True
    assert result["steps"] == 3
    # In the units of the constraints. Consistent starts, so that only the errors of three steps are
    # left, below (rate 1e-6)^2 each: the fastest root, of the motors, is 1.4e4 1/s.
    # The penalty form pulls its constraint away from the start by a finite acceleration.
    assert result.get("largest |phi|", 0.0) < 1e-8
    assert result.get("largest |d(phi)/dt|", 0.0) < 1e-4
    assert ("largest |phi|" in result) == (name not in WITHOUT_POSITION_CONSTRAINTS)
    assert result["controller"] == controller
    printed = capsys.readouterr().out
    assert ("under" in printed.splitlines()[1]) == (controller is not None)
    assert (", without its controller" in printed) == ("uncontrolled" in words)
    assert drawn - {"violation.png"} == {"histories.png", "energy.png"}
    assert ("violation.png" in drawn) == (name != "kepler")
    series_are_stored(tmp_path, result)
    if "--start" in words:
        given, _, value = words.split()[-1].partition("=")
        run = Trajectory.load(tmp_path / "trajectory.npz")
        assert run.q[0, run.labels.coordinates.index(given)] == float(value)
    if name == "mirror":
        # Off its program by all of its value there, which is no fault of the run.
        system: Any = get_model(name).system()
        off = np.abs(system.program(0.0, jnp.array([0.3]), jnp.zeros(1)))
        np.testing.assert_allclose(result["largest |f| of the program"], off, rtol=1e-3)
    title = figures["histories.png"].get_suptitle()
    assert title == f"{name}: " + printed.splitlines()[1].rpartition(",")[0]


def series_are_stored(folder, result):
    """Of all rows, in both files; with names, multipliers and works."""
    run = Trajectory.load(folder / "trajectory.npz")
    declared = type(get_model(result["model"]).system()).__name__
    assert (run.about.model, run.success) == (declared, True)
    assert run.final_time == result["final"]["t"]
    np.testing.assert_array_equal(run.final_state.q, result["final"]["q"])
    np.testing.assert_array_equal(run.final_state.q, run.q[-1])
    assert run.multipliers.shape == run.violation.phi_dot.shape
    assert len(run.work) == 4
    lines = (folder / "trajectory.csv").read_text().splitlines()
    assert lines[0].startswith("time [s],")
    assert len(lines) == 1 + run.ts.size == 5


@pytest.mark.parametrize(
    ("name", "program", "given", "expected"),
    [
        ("mirror", ("beam on target",), None, True),
        ("ball-beam", None, None, False),  # its constraint must hold all the time
        ("pendulum", ("some",), {"y": -1.0}, True),
        ("pendulum", ("some",), None, False),
    ],
)
def test_only_a_program_may_be_departed_from(name, program, given, expected):
    assert departs(program, get_model(name), given) is expected


@pytest.mark.parametrize("name", [name for name in MODELS if name not in UNTUNED])
def test_a_study_fits_its_system(name):
    for study in studies(name):
        state = study.start
        m, r = constraint_counts(study.system, state)
        system, formulation, controller = study.build(resolve(study.params))
        assert type(system) is type(study.system)
        formulation.check(system, state)
        assert (controller is None) == (m + r > 0)
        assert ("phi" in study.goal.integrand) == (m > 0)
        assert ("|g|" in study.goal.integrand) == (r > 0)
        if (m, r) == (0, 1):
            # Euler's method makes `1 - Gamma h` of a residual: theory removes it in one step.
            with pytest.warns(RuntimeWarning, match="where the motion turns"):
                gains: Any = study.by_theory(diffrax.Euler())
            np.testing.assert_allclose(gains.stabilization.Gamma * study.dt, 1.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("heun")
def test_the_gains_of_a_servo_constraint_are_tuned_and_stay_hurwitz(drawn, tmp_path, capsys):
    # As many starts as the checks have: one program evaluates all of them.
    words = ["tune", "mirror", "--batch", "64", "--steps", "8", "--t1", "0.2", "--dt", "0.02"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "mean integrated |f|^2 + 1e-06 |u|^2" in printed
    (study,) = read(tmp_path / "result.json")["studies"]
    checks = study["checks"]["as tuned"]
    assert list(checks) == ["first", "one step", "range"]
    assert checks["one step"]["cost"] < checks["first"]["cost"]
    before, after = (np.array(study["gains"][w]["roots (Re, Im)"]) for w in ("first", "range"))
    # Four roots from coefficients up to 1200: ten digits remain.
    np.testing.assert_allclose(before, [[-10, 0], [-8, 0], [-5, 0], [-3, 0]], rtol=1e-9)
    assert after[:, 0].max() < 0
    assert np.abs(after - before).max() > 0.1
    assert drawn == {
        f"servo-{name}.png" for name in ("comparison", "motion", "tuning", "range-tuning")
    }
