"""Exported runs: programs without Python give the numbers of `simulate`."""

import dataclasses
import struct
import subprocess

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.exported import (
    COMPILER,
    executed,
    HERE,
    in_node,
    MEMBERS,
    with_compiler,
    with_node,
)
from jaxdae.kernels.export import objects
from jaxdae.kernels.export.symbols import undefined_symbols
from jaxdae.solvers import RK4

BAUMGARTE = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))


class Pendulum(jaxdae.System):
    """A point on a rod, in Cartesian coordinates."""

    length: float = 1.0
    mass: float = 1.3

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        del t
        return self.mass * 9.81 * q[1]

    def position_constraints(self, t, q):
        del t
        return jnp.array([q @ q - self.length**2])

    def force(self, t, q, v, w, u):
        del t, q, w
        return jnp.zeros_like(v) if u is None else jnp.stack([u, 0 * u])


PENDULUM, HANGING = Pendulum(), jaxdae.State([0.6, -0.8], [0.4, 0.3])


def members(system, state, field, run):
    """`simulate` of the members that the program makes."""
    return [
        run(
            dataclasses.replace(system, **{field: getattr(system, field) * (1 + 0.25 * i)}),
            jaxdae.State(state.q, state.v.at[0].add(0.125 * i), state.w),
        )
        for i in range(MEMBERS)
    ]


def assert_same(outputs, run, atol):
    """All numbers of a run, to round-off of its steps."""
    states = np.concatenate([run.q, run.v, run.w], axis=1)
    end = run.final_state
    assert outputs.result == int(run.result._value)
    assert outputs.steps == int(run.stats["num_steps"])
    assert outputs.accepted == int(run.stats["num_accepted_steps"])
    np.testing.assert_allclose(outputs.ts, run.ts, rtol=0, atol=atol)
    reached = np.isfinite(run.ts)
    assert outputs.rows == reached.sum()
    assert np.isinf(outputs.states[~reached]).all()
    np.testing.assert_allclose(outputs.states[reached], states[reached], rtol=0, atol=atol)
    final = np.concatenate([end.q, end.v, end.w])
    np.testing.assert_allclose(outputs.final, final, rtol=0, atol=atol)


# Starts of members are off the constraints.
ANY = {"start_tolerance": None}
FIXED = {"t1": 0.5, "dt": 0.02, "solver": RK4(), **ANY}


@with_compiler
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_c_program_gives_the_numbers_of_simulate(tmp_path, dtype):
    """Fixed steps, one run and a batch: 25 steps of numbers of about one, a rounding each."""
    start = jaxdae.State(HANGING.q.astype(dtype), HANGING.v.astype(dtype))
    files = jaxdae.export(
        PENDULUM, BAUMGARTE, start, directory=tmp_path, name="step", target=HERE, **FIXED
    )
    assert files.undefined == ()
    result = executed(files, "system_mass", 0.0, 0.5, dtype)
    assert (result.status, result.failed) == (0, 0)
    np.testing.assert_array_equal(result.one.states, result.members[0].states)

    def run(system, state):
        return jaxdae.simulate(system, BAUMGARTE, state, **FIXED)

    atol = 200 * float(np.finfo(dtype).eps)
    for outputs, one in zip(result.members, members(PENDULUM, start, "mass", run), strict=True):
        assert_same(outputs, one, atol)
        assert outputs.time == 0.5


@with_compiler
@pytest.mark.slow
def test_adaptive_steps_and_angles(tmp_path, double_pendulum):
    """Sines, steps that are chosen, times between them; each member has steps of its own."""
    start = jaxdae.State([0.7, 1.9], [0.1, -0.2])
    formulation, asked = jaxdae.Multipliers(), diffrax.SaveAt(t0=True, ts=jnp.linspace(0.1, 1, 7))
    settings = {"t1": 1.0, "solver": diffrax.Dopri5(), "saveat": asked}
    files = jaxdae.export(
        double_pendulum, formulation, start, directory=tmp_path, name="double_pendulum",
        target=HERE, **settings,
    )  # fmt: skip
    assert files.undefined == ()
    result = executed(files, "system_m2", 0.0, 1.0)

    def run(system, state):
        return jaxdae.simulate(system, formulation, state, **settings)

    # Round-off in the lengths of steps moves rows by as much of their errors, 1e-8.
    for outputs, one in zip(
        result.members, members(double_pendulum, start, "m2", run), strict=True
    ):
        assert_same(outputs, one, 1e-11)


class Filtered(jaxdae.control.AbstractDynamicController):
    """A force that follows the position with a lag."""

    gain: float = 2.0

    def initial(self, t, state):
        del t
        return state.q[:1]

    def rate(self, t, q, v, w, c):
        del t, v, w
        return 5.0 * (q[:1] - c)

    def output(self, t, q, v, w, c):
        del t, q, v, w
        return -self.gain * c[0]


@with_compiler
@pytest.mark.parametrize(
    ("formulation", "settings", "more"),
    [
        (jaxdae.Hamiltonian(jaxdae.Baumgarte(K_D=20.0, K_P=100.0)), FIXED, 0),
        pytest.param(jaxdae.NullSpace(), FIXED, 0, marks=pytest.mark.slow),
        (BAUMGARTE, {**FIXED, "controller": Filtered()}, 1),
        pytest.param(
            jaxdae.Multipliers(),
            {"t0": 0.5, "t1": 0.0, "dt": -0.02, "solver": RK4(), **ANY},
            0,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            BAUMGARTE,
            {
                "t1": 0.5,
                "dt": 0.05,
                "solver": jaxdae.Projected(diffrax.Dopri5()),
                "saveat": diffrax.SaveAt(ts=jnp.array([0.11, 0.5])),
                **ANY,
            },
            0,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["momenta", "null space", "controller", "backward", "projected"],
)
def test_what_surrounds_an_integration(tmp_path, formulation, settings, more):
    """Own states of formulations and controllers, the direction of time, projected rows."""
    files = jaxdae.export(
        PENDULUM, formulation, HANGING, directory=tmp_path, name="run", target=HERE, **settings
    )
    result = executed(files, "system_mass", settings.get("t0", 0.0), settings["t1"])

    def run(system, state):
        return jaxdae.simulate(system, formulation, state, **settings)

    for outputs, one in zip(result.members, members(PENDULUM, HANGING, "mass", run), strict=True):
        assert_same(outputs, one, 1e-12)
        assert outputs.final.size == 4 + more
    text = files.header.read_text()
    assert text.count("controller_gain") == more


@with_compiler
def test_a_failed_run_has_a_status(tmp_path):
    """Steps that are too long break; the end is the last row that was reached."""
    settings = {"t1": 40.0, "dt": 0.4, "solver": RK4()}
    with pytest.warns(RuntimeWarning, match="step"):
        files = jaxdae.export(
            PENDULUM, BAUMGARTE, HANGING, directory=tmp_path, name="far", target=HERE, **settings
        )
    result = executed(files, "system_mass", 0.0, 40.0)
    with pytest.warns(RuntimeWarning, match="step"):
        run = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, throw=False, **settings)
    assert result.status == result.one.result == int(run.result._value) == 9
    assert result.failed == MEMBERS
    reached = int(np.isfinite(run.ts).sum())
    assert result.one.rows == reached < 100
    assert result.one.time == run.ts[reached - 1]
    np.testing.assert_array_equal(result.one.final, result.one.states[reached - 1])
    assert np.isinf(result.one.states[reached:]).all()
    assert "FAR_NONFINITE = 9" in files.header.read_text()


@with_compiler
@pytest.mark.slow
def test_too_few_steps_have_a_status(tmp_path):
    settings = {"t1": 1.0, "max_steps": 3, "solver": diffrax.Dopri5()}
    files = jaxdae.export(
        PENDULUM, BAUMGARTE, HANGING, directory=tmp_path, name="few", target=HERE, **settings
    )
    result = executed(files, "system_mass", 0.0, 1.0)
    run = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, throw=False, **settings)
    assert result.status == int(run.result._value) == 1
    assert_same(result.one, run, 1e-10)


# Files for machines that are not here.


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The pendulum for a target."""
    folder = tmp_path_factory.mktemp("exported")

    def made(target):
        return jaxdae.export(
            PENDULUM, BAUMGARTE, HANGING, directory=folder / target, name="pendulum",
            target=target, **FIXED,
        )  # fmt: skip

    return made


# Of ELF files: processor, flags of the GPU.
ARM, AMD, X86 = 183, 224, 62


@pytest.mark.parametrize(
    ("target", "machine"), [("x86-64-v3", X86), ("x86-64-v4", X86), ("aarch64", ARM)]
)
def test_object_files_of_processors(exported, target, machine):
    files = exported(target)
    code = files.code.read_bytes()
    assert code[:6] == b"\x7fELF\x02\x01"  # 64 bits, little-endian
    assert struct.unpack_from("<H", code, 18) == (machine,)
    assert files.undefined == ()
    assert "expects functions from elsewhere: none" in files.header.read_text()


@pytest.mark.parametrize("target", ["gfx90a", "gfx942"])
def test_code_objects_of_amd_gpus(exported, target):
    """With a kernel's descriptor; that no GPU has run them is said in both files."""
    files = exported(target)
    code = files.code.read_bytes()
    assert struct.unpack_from("<H", code, 18) == (AMD,)
    assert b"pendulum.kd\0" in code
    assert files.undefined == ()
    assert b"Untested" in code
    assert "Untested" in files.header.read_text()
    assert "Untested" not in exported("aarch64").header.read_text()


@with_compiler
def test_undefined_symbols_of_an_object_file(tmp_path):
    source, code = tmp_path / "calls.c", tmp_path / "calls.o"
    source.write_text("int other(int); int here(int x) { return other(x); }")
    subprocess.run([str(COMPILER), "-c", str(source), "-o", str(code)], check=True)
    named = undefined_symbols(code.read_bytes())
    assert "other" in named
    assert "here" not in named


# Pages.


@with_node
def test_a_page_gives_the_numbers_of_simulate(exported):
    files = exported("wasm32")
    first, second, names = in_node(
        files,
        "print([run(), batch([{}, {system_mass: 2.6, v: [0.5, 0.3]}])[1], Object.keys(inputs)])",
    )
    assert names == [
        "q", "v", "system_length", "system_mass", "formulation_stabilization_K_D",
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
def test_a_page_knows_its_inputs(exported):
    script = """
    const said = (f) => { try { f(); } catch (error) { return error.message; } };
    print([said(() => run({mass: 1})), said(() => run({q: [1, 2, 3]}))]);
    """
    unknown, wrong = in_node(exported("wasm32"), script)
    assert unknown.startswith("no input is named mass; there are q, v, system_length")
    assert wrong == "q has 2 numbers, got 3"


# Refusals.


def export_pendulum(folder, **changed):
    given = {"directory": folder, "name": "pendulum", "target": "aarch64", **FIXED, **changed}
    return jaxdae.export(PENDULUM, BAUMGARTE, HANGING, **given)


@pytest.mark.parametrize("name", ["two words", "2d", "", "double", "memcpy", "größe"])
def test_names_are_those_of_c(tmp_path, name):
    with pytest.raises(ValueError, match="a function of C has letters"):
        export_pendulum(tmp_path, name=name)


@pytest.mark.parametrize("target", ["x86", "gfx1", "riscv64"])
def test_targets_that_do_not_exist(tmp_path, target):
    with pytest.raises(ValueError, match=f"No target is named '{target}'.*x86-64-v2, x86-64-v3"):
        export_pendulum(tmp_path, target=target)


def test_a_run_that_cannot_be_a_kernel(tmp_path):
    with pytest.raises(jaxdae.BackendError, match="SaveAt asks for more than plain states"):
        export_pendulum(tmp_path, saveat=diffrax.SaveAt(dense=True))


def test_a_start_that_cannot_be_a_kernel(tmp_path):
    """Which velocities are independent is decided by comparisons of many subsets."""

    class Sorted(jaxdae.control.AbstractDynamicController):
        def initial(self, t, state):
            del t
            return jnp.linalg.eigvals(jnp.outer(state.q, state.q)).real

        def rate(self, t, q, v, w, c):
            del t, q, v, w
            return -c

        def output(self, t, q, v, w, c):
            del t, q, v, w
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


def test_inputs_of_the_same_name_are_numbered():
    from jaxdae.kernels.export.interface import identifiers

    assert identifiers(["system.a.b", "system.a_b", "system['a b']"]) == [
        "system_a_b", "system_a_b_2", "system_a_b_3",
    ]  # fmt: skip


def test_arrays_are_named_by_their_places(tmp_path):
    class Masses(jaxdae.System):
        masses: dict
        points: eqx.field(default=None)  # pyright: ignore

        def kinetic_energy(self, t, q, v):
            del t, q
            return 0.5 * (self.masses["left"] + self.masses["right"][1]) * v @ v

        def potential_energy(self, t, q):
            del t
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
