"""Programs of runs on disk: the second run traces nothing and gives the same, or is made anew."""

import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxdae.commands import kept, simulate
from jaxdae.commands.record import Record, Words
from jaxdae.kernels.llvm import storage

WORDS = Words(
    "F", "F()", None, False, False, None, {"constraints": ("a",)}, True, True, None, (), ()
)


def command(folder, out, *words):
    """The command in a process of its own; what it printed, and which modules it loaded."""
    code = (
        "import sys\nfrom jaxdae.cli import main\n"
        "sys.argv = ['jaxdae', *sys.argv[1:]]\nmain()\n"
        "print('loaded:', sorted({'diffrax', 'equinox'} & set(sys.modules)))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(folder)
    given = ["simulate", "pendulum", "--dt", "0.5", "--t1", "1", "--solver", "euler", *words]
    done = subprocess.run(
        [sys.executable, "-c", code, *given, "--out", str(out)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads((out / "simulation.json").read_text())
    del result["seconds"]
    lines = done.stdout.splitlines()
    return result, lines[-1], done.stderr


@pytest.mark.slow
def test_a_second_run_is_made_by_the_program_of_the_first(tmp_path):
    """Bit for bit, with its warnings; other options trace again."""
    first, loaded, warned = command(tmp_path, tmp_path / "a")
    assert "diffrax" in loaded
    assert "beyond the step limit of the gains" in warned
    second, loaded, warned_again = command(tmp_path, tmp_path / "b")
    assert (second, warned_again) == (first, warned)
    pictures = ("histories.png", "violation.png", "energy.png")
    for name in (*pictures, "trajectory.npz", "trajectory.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    (folder,) = (tmp_path / "jaxdae").glob("jaxdae-machine-code")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program that doubles its input, kept."""
    monkeypatch.setattr(storage, "folder", lambda: tmp_path)
    x = np.array([1.0, 2.5])
    lowered, compiled = kept.compiled_apart(lambda x: [2 * x], x)
    read = {"rows.q": np.asarray(compiled(x)[0])}
    made = kept.program_of(lowered, compiled, [x], read, {})
    assert made is not None
    kept.keep(options(), made, WORDS)
    return made


def options(**changed):
    given = {"model": "pendulum", "dt": None, "out": "a", "progress": False, "keep": True}
    return SimpleNamespace(**given | changed)


@pytest.mark.usefixtures("program")
def test_a_kept_program_runs_again():
    found = kept.again(options(out="b", progress=True))
    assert found is not None
    np.testing.assert_array_equal(found.rows["q"], [2.0, 5.0])
    assert found.words == WORDS


@pytest.mark.usefixtures("program")
def test_other_options_other_code_and_other_releases_have_other_programs(monkeypatch):
    assert kept.again(options(dt=0.1)) is None
    monkeypatch.setattr(kept, "_sources", lambda: "other")
    assert kept.again(options()) is None
    monkeypatch.undo()


def test_a_program_that_gives_other_numbers_is_not_believed(program):
    """Its words were said of others."""
    other = program._replace(inputs=[np.array([1.0, 2.5000000000000004])])
    kept.keep(options(), other, WORDS)
    assert kept.again(options()) is None


@pytest.mark.usefixtures("program")
def test_a_damaged_file_is_not_read(tmp_path):
    """Of a disk that loses the end of files."""
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="is not what was written there"):
        assert kept.again(options()) is None


def test_a_program_that_does_not_load_is_said_to_be_of_no_use(program):
    kept.keep(options(), program._replace(executable=pickle.dumps(b"none")), WORDS)
    with pytest.warns(RuntimeWarning, match="a kept program is of no use here"):
        assert kept.again(options()) is None


def test_what_was_warned_of_is_warned_of_again(program):
    kept.keep(options(), program, WORDS._replace(announced=("the step is too long",)))
    with pytest.warns(RuntimeWarning, match="the step is too long"):
        assert kept.again(options()) is not None


def test_programs_that_another_process_could_not_run_are_not_kept():
    import jax.numpy as jnp

    def host(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x = np.ones(2)
    lowered = jax.jit(lambda x: [host(x)]).lower(x)
    assert kept.program_of(lowered, lowered.compile(), [x], {"rows.q": x}, {}) is None
    solve = jax.jit(lambda x: [jnp.linalg.inv(x)]).lower(np.eye(2))
    made = kept.program_of(solve, solve.compile(), [np.eye(2)], {"rows.q": np.eye(2)}, {})
    assert made is not None
    assert made.lapack


def test_a_program_that_cannot_be_written_is_not_kept(monkeypatch):
    """Such as one that sorts, in some releases; the run has been made all the same."""

    def refused(_):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: `LessThan` is not serializable.")

    monkeypatch.setattr(kept.serialize_executable, "serialize", refused)
    x = np.ones(2)
    lowered = jax.jit(lambda x: [2 * x]).lower(x)
    assert kept.program_of(lowered, lowered.compile(), [x], {"rows.q": x}, {}) is None


def test_folders_that_others_may_write_keep_nothing(program, tmp_path, monkeypatch):
    """The rule is that of machine code, which has its own tests; here only that it is asked."""
    monkeypatch.setattr(storage, "folder", lambda: None)
    assert kept.again(options()) is None
    before = len(list(tmp_path.iterdir()))
    kept.keep(options(dt=0.3), program, WORDS)
    assert len(list(tmp_path.iterdir())) == before


def test_constraints_that_a_model_does_not_have_are_left_out_of_the_figures():
    rows = {"phi": np.zeros((2, 0)), "phi_dot": np.full((2, 1), 1e-9), "ts": np.arange(2.0)}
    rows |= {"energy": np.ones(2), "work": np.zeros((2, 4))}
    end = {"t": np.array(1.0), "steps": np.array(1)}
    figures = simulate._figures(Record(rows, end, WORDS))
    assert "largest |phi|" not in figures
    assert figures["largest |d(phi)/dt|"] == 1e-9
    assert not [name for name in figures if name.startswith("work of")]


def test_work_that_changes_the_energy_is_in_the_figures():
    """And none that is round-off beside it: of constraints, here."""
    rows = {"phi": np.zeros((2, 0)), "phi_dot": np.zeros((2, 0)), "ts": np.arange(2.0)}
    work = np.array([[0.0] * 4, [3.0, -1.0, 1e-16, 0.0]])
    rows |= {"energy": np.array([1.0, 3.0]), "work": work}
    end = {"t": np.array(1.0), "steps": np.array(1)}
    figures = simulate._figures(Record(rows, end, WORDS))
    done = {name: x for name, x in figures.items() if name.startswith("work of")}
    assert done == {"work of forces and inputs [J]": 3.0, "work of dissipation [J]": -1.0}
    assert figures["largest error of the power balance [J]"] < 1e-15
