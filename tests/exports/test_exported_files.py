"""Exported runs: files for other machines and for pages, and what is refused."""

import math
import re
import shutil
import struct
import subprocess
from pathlib import Path

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.exported import (
    BAUMGARTE,
    COMPILER,
    executed,
    export_pendulum,
    Filtered,
    FIXED,
    HANGING,
    HERE,
    in_node,
    PENDULUM,
    Pendulum,
    with_compiler,
    with_node,
)
from jaxdae.kernels.export import objects
from jaxdae.kernels.export.interface import identifiers
from jaxdae.solvers import RK4

# Files for machines that are not here.


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The pendulum for a target."""
    folder = tmp_path_factory.mktemp("exported")
    return lambda target: export_pendulum(folder / target, target=target)


# Of ELF files: processors, and the kind of those that are loaded.
ARM, X86 = 183, 62


@pytest.mark.parametrize(("target", "machine"), [("x86-64-v4", X86), ("aarch64", ARM)])
def test_object_files_of_processors(exported, target, machine):
    files = exported(target)
    code = files.code.read_bytes()
    assert code[:6] == b"\x7fELF\x02\x01"  # 64 bits, little-endian
    assert struct.unpack_from("<H", code, 18) == (machine,)
    assert re.search(r"Of the stack it takes \d+ kB at most\.", files.header.read_text())


# Pages.


@with_node
def test_a_page_gives_the_numbers_of_simulate(exported):
    files = exported("wasm32")
    first, second, names = in_node(
        files,
        "print([run(), batch([{}, {system_mass: 2.6, v: [0.5, 0.3]}])[1], Object.keys(inputs)])",
    )
    assert names == [
        "q", "v", "system_length", "system_mass", "system_ceiling", "formulation_stabilization_K_D",
        "formulation_stabilization_K_P",
    ]  # fmt: skip
    varied = jaxdae.State(HANGING.q, HANGING.v.at[0].add(0.1))
    starts = (PENDULUM, HANGING), (Pendulum(mass=2.6), varied)
    for result, (system, state) in zip((first, second), starts, strict=True):
        run = jaxdae.simulate(system, BAUMGARTE, state, **FIXED)
        assert result["status"] == "successful"
        # 25 steps of numbers of about one, a rounding each.
        for name in ("ts", "q", "v"):
            np.testing.assert_allclose(result[name], getattr(run, name), rtol=0, atol=4e-14)
        np.testing.assert_allclose(result["final"]["q"], run.final_state.q, rtol=0, atol=4e-14)


@with_node
@pytest.mark.slow
def test_a_page_with_sines_in_single_precision_and_other_times(tmp_path, double_pendulum):
    """Without instructions for fused products; a run over half the time."""
    start = jaxdae.State(jnp.array([0.7, 1.9], jnp.float32), jnp.zeros(2, jnp.float32))
    formulation = jaxdae.Multipliers()
    files = jaxdae.export(
        double_pendulum, formulation, start, directory=tmp_path, name="sines", target="wasm32",
        t1=1.0, dt=0.02, solver=RK4(),
    )  # fmt: skip
    result = in_node(files, "print(run({}, {t1: 0.5}))")
    run = jaxdae.simulate(double_pendulum, formulation, start, t1=0.5, dt=0.01, solver=RK4())
    assert result["time"] == 0.5
    np.testing.assert_allclose(result["q"], run.q, rtol=0, atol=2e-5)  # of 50 steps


@with_node
def test_inputs_of_a_page_that_are_not_finite(tmp_path):
    """JSON has none; a run from there breaks, and says so."""
    files = export_pendulum(tmp_path, target="wasm32", system=Pendulum(ceiling=math.inf))
    script = "const x = run({system_mass: NaN}); print([inputs.system_ceiling > 1e308, x.status])"
    assert in_node(files, script) == [True, "nonfinite"]


@with_node
def test_a_page_knows_its_inputs(exported):
    script = """
    const said = (f) => { try { f(); } catch (error) { return error.message; } };
    print([said(() => run({mass: 1})), said(() => run({q: [1, 2, 3]}))]);
    """
    unknown, wrong = in_node(exported("wasm32"), script)
    assert unknown.startswith("no input is named mass; there are q, v, system_length")
    assert wrong == "q has 2 numbers, got 3"


# The page of the documentation.

GUIDE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@with_compiler
def test_the_program_of_the_documentation(tmp_path):
    """Also under a name that functions inside have."""
    members = executed(
        export_pendulum(tmp_path, name="members", target=HERE), "system_mass", 0, 0.5
    )
    assert (members.status, members.failed, members.one.steps) == (0, 0, 25)
    files = export_pendulum(tmp_path, target=HERE)
    program, _ = re.findall(r"```c\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "main.c").write_text(program)
    command = [str(COMPILER), "-Wall", "-Werror", "main.c", files.code.name]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "a.out"], capture_output=True, text=True, check=True)
    run = jaxdae.simulate(Pendulum(mass=2.0), BAUMGARTE, HANGING, t1=1.0, dt=0.04, solver=RK4())
    q = run.final_state.q
    assert done.stdout == f"q = {q[0]:g}, {q[1]:g}\n"


@with_compiler
def test_the_loop_of_the_documentation(tmp_path):
    """A control input for each period, against a sampled controller; without a function."""
    settings = {"t1": 0.02, "dt": 0.01, "saveat": diffrax.SaveAt(t1=True)}
    files = export_pendulum(tmp_path, name="plant", target=HERE, inputs=0.0, **settings)
    _, program = re.findall(r"```c\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "loop.c").write_text(program)
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command = [str(COMPILER), *options, "loop.c", files.code.name]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "a.out"], capture_output=True, text=True, check=True)
    law = jaxdae.Sampled(lambda t, q, v, w, c: (-2.0 * v[0] - 5.0 * q[0], c), 0.02)
    run = jaxdae.simulate(
        PENDULUM, BAUMGARTE, HANGING, t1=2.0, dt=0.01, solver=RK4(), controller=law
    )
    np.testing.assert_allclose(np.fromstring(done.stdout, sep=" "), run.q[-1], atol=1e-9)
    nm = shutil.which("nm")
    if nm is not None:  # code that calls nothing takes no memory
        undefined = subprocess.run([nm, "-u", files.code], capture_output=True, text=True)
        assert undefined.stdout.strip() == ""


class Labelled(Filtered):
    """A force by the speed that follows with a lag.

    Args:
        gain: of the force /* in a comment */ [N s/m].
    """


def test_the_header_says_units_and_which_states_are_the_controllers(tmp_path):
    class Known(Pendulum):
        """A bob.

        Args:
            mass: of the bob [kg].
            length: of the rod [m], fixed
                at its end.
        """

        def labels(self):
            return jaxdae.Labels(coordinates=("x", "y"), units=("m", "m"))

    text = export_pendulum(tmp_path, Known(), controller=Labelled()).header.read_text()
    assert "double q[2]; /* q, coordinates at the start: x [m], y [m] */" in text
    assert "double v[2]; /* velocities: x [m/s], y [m/s] */" in text
    assert "double w[1]; /* actuator states; the last 1 are those of the controller */" in text
    assert "double system_mass; /* system.mass: of the bob [kg] */" in text
    assert "double system_length; /* system.length: of the rod, fixed at its end [m] */" in text
    gain = "controller_gain; /* controller.gain: of the force / * in a comment * / [N s/m] */"
    assert f"double {gain}" in text
    assert re.search(r"stabilization_K_D; /\* formulation.stabilization.K_D: .* \[1/s\] \*/", text)
    assert "A run of Known, Multipliers, with 25 fixed steps of RK4" in text


@with_node
def test_the_page_of_the_documentation(exported):
    (script,) = re.findall(r"```js\n(.*?)```", GUIDE, re.DOTALL)
    lines = [x for x in script.splitlines() if "import" not in x and "load()" not in x]
    result = in_node(exported("wasm32"), "\n".join([*lines, "print([status, ts.length, many])"]))
    assert result[:2] == ["successful", 26]
    assert [x["status"] for x in result[2]] == ["successful"] * 2


# Refusals.


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        *(
            ({"name": x}, ValueError, "a function of C has letters")
            for x in ("two words", "double", "memcpy", "größe")
        ),
        ({"target": "x86"}, ValueError, "No target is named 'x86'.*x86-64-v2, x86-64-v3"),
        ({"quantities": ("lam",)}, ValueError, "No quantity is named 'lam'.*multipliers, phi"),
        ({"quantities": ("u",)}, ValueError, "no control input u without a controller"),
        (
            {"saveat": diffrax.SaveAt(dense=True)},
            jaxdae.BackendError,
            "cannot be exported.* SaveAt asks for more than",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, changes, error, words):
    with pytest.raises(error, match=words):
        export_pendulum(tmp_path, **changes)


def test_a_start_that_cannot_be_a_kernel(tmp_path):
    """Eigenvalues of a matrix that need not be symmetric."""

    class Sorted(jaxdae.control.AbstractDynamicController):
        def initial(self, t, state):
            return jnp.linalg.eigvals(jnp.outer(state.q, state.q)).real

        def rate(self, t, q, v, w, c):
            return -c

        def output(self, t, q, v, w, c):
            return c[0]

    with pytest.raises(jaxdae.BackendError, match="cannot be computed by a kernel"):
        export_pendulum(tmp_path, controller=Sorted())


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        export_pendulum(tmp_path / "file")


def test_without_a_linker(tmp_path, monkeypatch):
    monkeypatch.setattr(objects.importlib.util, "find_spec", {}.get)
    with pytest.raises(ImportError, match=r"pip install 'jaxdae\[export\]'"):
        export_pendulum(tmp_path, target="wasm32")
    assert not list(tmp_path.iterdir())


def test_arrays_are_named_by_their_places_and_numbered(tmp_path):
    assert identifiers(["system.a.b", "system.a_b"]) == ["system_a_b", "system_a_b_2"]

    class Masses(jaxdae.System):
        masses: dict
        points: eqx.field(default=None)  # pyright: ignore

        def kinetic_energy(self, t, q, v):
            return 0.5 * (self.masses["left"] + self.masses["right"][1]) * v @ v

        def potential_energy(self, t, q):
            return 9.81 * q[0]

    system = Masses({"left": 1.5, "right": jnp.array([1.0, 2.0])}, None)
    files = jaxdae.export(
        system, jaxdae.Multipliers(), jaxdae.State([1.0], [0.0]), directory=tmp_path,
        name="masses", target="aarch64", t1=0.1, dt=0.1, solver=RK4(),
    )  # fmt: skip
    text = files.header.read_text()
    assert "double system_masses_left; /* system.masses['left'] */" in text
    assert "double system_masses_right[2]; /* system.masses['right'] */" in text
    assert "{1.0},\n  {0.0},\n  1.5,\n  {1.0, 2.0}\n" in text
