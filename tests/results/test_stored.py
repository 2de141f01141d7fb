"""Trajectories in files, drawings among them: read back bit for bit as saved, or refused."""

import dataclasses
import json
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import RESULTS

import jaxdae
from helpers.moving import Turning
from helpers.stored_runs import LABELS, released, stored
from jaxdae import Trajectory
from jaxdae.models import CartesianPendulum
from jaxdae.plotting import plot_mechanism, shapes
from jaxdae.solvers import RK4
from jaxdae.storage.runs import TrajectoryFileError

LENGTHS = np.array([0.5, 1.5, np.nan])


@pytest.fixture(scope="module")
def batch():
    """Three lengths, the last of which fails; with its work."""
    release = lambda length: released(length, throw=False, work=True)  # noqa: E731
    return jax.vmap(release)(jnp.asarray(LENGTHS)).varying(("length",), length=LENGTHS)


def same_bits(one, other):
    """Names, types, shapes and every bit."""
    assert one.known.keys() == other.known.keys()
    for name, x in one.known.items():
        y = other.known[name]
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name
    assert one.about == other.about


def test_a_stored_run_has_what_the_run_has(batch, tmp_path):
    """Quantities, ends, results, statistics, parameters, names: of a batch with a failed member.

    What was saved comes bit for bit; what is computed from it, all in one program, to round-off.
    """
    path = batch.save(tmp_path / "made" / "runs")
    assert path == tmp_path / "made" / "runs.npz"
    loaded = Trajectory.load(tmp_path / "made" / "runs")
    same_bits(loaded, batch.stored())
    for read in (
        lambda run: (run.ts, run.q, run.v, run.w, run.work, run.states),
        lambda run: (run.final_time, run.final_state, run.success, run.batch_shape),
    ):
        jax.tree.map(np.testing.assert_array_equal, read(loaded), read(batch))
    energies = lambda run: (run.energy, run.kinetic_energy, run.potential_energy)  # noqa: E731
    computed = lambda run: (*energies(run), run.multipliers, run.violation)  # noqa: E731
    # Sums of some numbers below 100 in another order.
    equal = partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-13)
    jax.tree.map(equal, computed(loaded), computed(batch))
    assert (type(loaded.q), loaded.u, loaded.held_rank) == (np.ndarray, None, None)
    np.testing.assert_array_equal(loaded.success, [True, True, False])
    np.testing.assert_array_equal(loaded.result == RESULTS.nonfinite, [False, False, True])
    np.testing.assert_array_equal(loaded.stats["num_steps"], batch.stats["num_steps"])
    np.testing.assert_array_equal(loaded.parameters["system.length"], LENGTHS)
    np.testing.assert_array_equal(loaded.parameters["formulation.stabilization.K_P"], [25.0] * 3)
    np.testing.assert_array_equal(loaded.known["varied.length"], LENGTHS)
    assert (loaded.about.model, loaded.labels) == ("CartesianPendulum", batch.labels)
    assert (loaded.backend, loaded.why_not_native) == (batch.backend, batch.why_not_native)
    assert loaded.about.versions == {"jaxdae": jaxdae.__version__, "jax": jax.__version__}
    assert np.isinf(loaded.ts[2]).all()
    assert np.isnan(loaded.q[2]).all()


def test_a_failed_run_is_stored_with_the_reason(batch, tmp_path):
    """A member by itself; the words are those of the error that `throw=True` raises."""
    loaded = Trajectory.load(batch[2].save(tmp_path / "failed"))
    assert not loaded.success
    assert "the run stopped at t = 0 s (Nonfinite" in str(loaded.about.failure)
    assert Trajectory.load(batch[0].save(tmp_path / "good.npz")).about.failure is None


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_every_bit_of_any_shape_comes_back(tmp_path, dtype, shape):
    """Signs of zeros, subnormal numbers, infinities and the bits of NaN."""
    run = stored(shape, dtype=dtype)
    if run.q.size:
        run.q.flat[:6] = [-0.0, np.finfo(dtype).smallest_subnormal, -np.inf, np.nan, 0.0, np.inf]
        run.q.view(f"u{dtype[1]}").flat[3] += 5  # another NaN
    loaded = Trajectory.load(run.save(tmp_path / "run"))
    same_bits(loaded, run)
    assert (loaded.q.dtype, loaded.batch_shape) == (dtype, shape)


def test_precision_does_not_depend_on_jax(tmp_path):
    """Double precision stays where JAX has single only; and no class has the name of the model."""
    path = stored().save(tmp_path / "run")
    with jax.enable_x64(False):
        run = Trajectory.load(path)
        assert {x.dtype.name for x in jax.tree.leaves((run.final_state, run.states))} == {"float64"}
        same_bits(run, stored())


def test_times_are_stored_once_where_members_share_them(tmp_path):
    """Also where members fail; and in full where they differ."""
    for run, shape in (
        (stored((2, 3), failed=[(1, 1)]), (5,)),
        (stored((3,), ts=np.linspace(0.0, [[1.0], [1.0], [2.0]], 5, axis=1)[..., 0]), (3, 5)),
        (stored(), (5,)),
    ):
        path = run.save(tmp_path / "run")
        with np.load(path, allow_pickle=False) as file:
            assert file["ts"].shape == shape
        same_bits(Trajectory.load(path), run)


def test_files_are_read_without_this_package(tmp_path):
    """By NumPy alone, without pickle, with names and units in JSON."""
    run = stored()
    with np.load(run.save(tmp_path / "run"), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["q"], run.q)
        about = json.loads(str(file["about"]))
    assert about["labels"]["units"] == list(LABELS.units)
    assert (about["format"], about["version"]) == ("jaxdae trajectory", 1)
    assert about["arrays"]["q"] == ["<f8", [5, 2]]


def test_what_needs_the_system_says_so():
    run: Any = stored()
    with pytest.raises(AttributeError, match="has no system, from which jacobian comes: read it"):
        _ = run.jacobian
    assert getattr(run, "system", None) is None
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = run.colour
    with pytest.raises(ValueError, match=r"run simulate\(..., work=True\)"):
        _ = run.work
    run = Trajectory.from_arrays({name: run.known[name] for name in ("ts", "q")}, run.about)
    with pytest.raises(ValueError, match="energy was not stored with this trajectory; it has: ts"):
        _ = run.energy


def test_a_system_may_be_given_back(batch):
    """Of the parameters that were stored; a member keeps it."""
    run = batch.stored()
    member = run[1].with_system(CartesianPendulum(length=1.5))
    assert float(member.system.length) == 1.5
    with pytest.raises(AttributeError, match=r"has no system: give it a system, run.with_sys"):
        _ = run[1].system
    text = r"system.length is 1.0 here, and 1.5 in the stored run; make one that agrees"
    with pytest.raises(ValueError, match=text):
        run[1].with_system(CartesianPendulum())
    with pytest.raises(ValueError, match=r"in the stored run; choose a member first, run\[i\]"):
        run.with_system(CartesianPendulum())
    several = stored((2,)).with_system(CartesianPendulum())
    assert eqx.tree_equal(several[1].system, several.varying("side").system)


def _altered(path, **changes):
    """The same file with other entries of its description."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays.pop("about"))) | changes
    np.savez(path, about=np.array(json.dumps(about)), **arrays)


def _damaged(path):
    """Files that hold no run, by how they came to be so, and what is said of them."""
    run = stored((4,))
    run.save(path)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[flipped.index(run.q.tobytes()) + 11] ^= 1
    later = {"version": 2, "versions": {"jaxdae": "9.1"}}
    yield b"t, x", r"run\.npz holds no trajectory"
    yield b"", r"run\.npz holds no trajectory"
    yield content[: len(content) // 2], "or a damaged one"
    yield content[:-1], "or a damaged one"
    yield bytes(flipped), r"damaged one \(.*q\.npy"
    yield later, "was written by jaxdae 9.1 in format 2, and this release reads formats up to 1"
    yield {"arrays": {"ts": ["<f8", [5]]}}, "it has no q"
    yield {"arrays": {"ts": ["<f4", [5]]}}, "ts is float64"
    yield {"labels": 3}, "damaged"
    yield {"axes": None}, "damaged"


def test_files_that_hold_no_run_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.npz"):
        Trajectory.load(tmp_path / "nothing")
    path = tmp_path / "run.npz"
    for content, words in _damaged(path):
        if isinstance(content, dict):
            stored((4,)).save(path)
            _altered(path, **content)
        else:
            path.write_bytes(content)
        with pytest.raises(TrajectoryFileError, match=words):
            Trajectory.load(path)
    # Nothing in a file is executed.
    np.savez(path, about=np.array({"format": 1}, dtype=object))
    with pytest.raises(TrajectoryFileError, match=r"run\.npz holds no trajectory"):
        Trajectory.load(path)


def test_what_has_no_numbers_is_not_saved(batch, tmp_path):
    """Inside a transformation; a run that saved no rows, as by SaveAt(dense=True) alone."""
    save = lambda length: released(length, throw=False).save(tmp_path / "run")  # noqa: E731
    with pytest.raises(ValueError, match=r"inside jax\.jit, .* a trajectory has no numbers"):
        jax.eval_shape(save, 1.0)
    with pytest.raises(ValueError, match="this run saved no states at times"):
        dataclasses.replace(batch[0], plain=False).save(tmp_path / "run")


def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path):
    """Before they are written, and when they are read."""
    run = stored((3,))
    other = Trajectory.from_arrays({**run.known, "v": run.v[:2]}, run.about)
    words = r"v has shape \(2, 5, 2\), times \(3, 5\) and members \(3,\)"
    with pytest.raises(ValueError, match=words):
        other.save(tmp_path / "run")
    assert not (tmp_path / "run.npz").exists()
    path = run.save(tmp_path / "run")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(str(arrays["about"]))
    about["arrays"]["v"][1] = [2, 5, 2]
    np.savez(path, **{**arrays, "v": run.v[:2], "about": np.array(json.dumps(about))})
    with pytest.raises(TrajectoryFileError, match=words):
        Trajectory.load(path)


def test_a_stored_run_is_drawn_without_its_system(batch, tmp_path):
    """Places, outlines and what joins them; between rows to the fourth order."""
    turn = jaxdae.State([0.0], [np.pi / 2])
    run = jaxdae.simulate(Turning(), jaxdae.Multipliers(), turn, t1=2.0, dt=0.25, solver=RK4())
    path = run.save(tmp_path / "run")
    loaded, t = Trajectory.load(path), np.array([0.3])
    found, exact = shapes.along(loaded, t), shapes.along(run, t)
    for name, places in (exact.places | exact.outlines).items():
        # h^4 / 384 of the fourth derivative, (2 + 0.5) (pi/2)^4.
        atol = 0.25**4 / 384 * 2.5 * 6.1
        np.testing.assert_allclose((found.places | found.outlines)[name], places, atol=atol)
    for field in ("links", "lines", "bodies", "trace", "fixed", "unit"):
        assert getattr(found.points, field) == getattr(exact.points, field)
    assert plot_mechanism(loaded).axes
    with pytest.raises(ValueError, match="the run failed before its first row"):
        plot_mechanism(batch.stored()[2])
    # A file of an earlier release has none, and says what to do.
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("drawing.")}
    about = json.loads(str(arrays.pop("about")))
    del about["drawing"]
    about["arrays"] = {name: x for name, x in about["arrays"].items() if name in arrays}
    np.savez(path, about=np.array(json.dumps(about)), **arrays)
    old = Trajectory.load(path)
    with pytest.raises(ValueError, match=r"has no points .* earlier release.*with_system\(system"):
        plot_mechanism(old)
    assert plot_mechanism(old.with_system(Turning())).axes


class _Unseen(CartesianPendulum):
    """A pendulum whose points fail, or are of another kind."""

    points_are: Any = eqx.field(static=True, default=None)

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        return q["heat"] if self.points_are == "wrong" else self.points_are


def test_points_that_fail_do_not_lose_a_run(batch):
    for points, words in (("wrong", "failed \\(TypeError"), (3, "ndarray: .* without a drawing")):
        parts = _Unseen(points_are=points), batch[1].formulation, None
        arrays, skeleton = eqx.partition(parts, eqx.is_array)
        with pytest.warns(RuntimeWarning, match=rf"_Unseen\.points .*{words}"):
            run = dataclasses.replace(batch[1], arrays=arrays, skeleton=skeleton).stored()
        assert run.about.drawing is None
