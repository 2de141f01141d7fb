"""What mechanisms look like, kept with stored runs."""

import dataclasses
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.moving import Turning
from helpers.stored_runs import stored
from jaxdae import Baumgarte, Multipliers, simulate, State, Trajectory
from jaxdae.models import CartesianPendulum
from jaxdae.plotting import plot_mechanism, shapes
from jaxdae.results.stored import _joined, _words, Drawing, drawing_of, points_of
from jaxdae.solvers import RK4


@pytest.fixture(scope="module")
def batch():
    """Four steps of three lengths, the last of which fails."""

    def release(length):
        system = CartesianPendulum(length=length)
        state = State(*system.released_from(0.3))
        formulation = Multipliers(Baumgarte(10.0, 25.0))
        return simulate(system, formulation, state, t1=0.5, dt=0.125, solver=RK4(), throw=False)

    return jax.vmap(release)(jnp.array([0.5, 1.5, jnp.nan]))


def _without_drawing(path):
    """The file as an earlier release wrote it."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if not name.startswith("drawing.")}
    about = json.loads(str(arrays.pop("about")))
    del about["drawing"]
    about["arrays"] = {name: x for name, x in about["arrays"].items() if name in arrays}
    np.savez(path, about=np.array(json.dumps(about)), **arrays)


def test_a_stored_run_is_drawn_without_its_system(batch, tmp_path):
    """A mass at its coordinates: its places and rates are those of the run, to the last bit.

    A file of an earlier release has none, and says what to do.
    """
    loaded = Trajectory.load(batch.save(tmp_path / "runs"))
    drawing = loaded.known["drawing.places"], loaded.known["drawing.rates"]
    mass = (loaded.about.drawing or {})["places"].index("mass")
    np.testing.assert_array_equal(drawing[0][:, :, mass], loaded.q)
    np.testing.assert_array_equal(drawing[1][:, :, mass], loaded.v)
    found, exact = shapes.along(loaded[1]), shapes.along(batch[1])
    np.testing.assert_array_equal(found.places["mass"], exact.places["mass"])
    assert (found.points.links, found.points.trace, found.points.fixed) == (
        exact.points.links, exact.points.trace, exact.points.fixed
    )  # fmt: skip
    assert plot_mechanism(loaded[1]).axes
    with pytest.raises(ValueError, match="the run failed before its first row"):
        plot_mechanism(loaded[2])
    path = loaded.save(tmp_path / "old.npz")
    _without_drawing(path)
    old = Trajectory.load(path)
    with pytest.raises(ValueError, match=r"has no points .* earlier release.*with_system\(system"):
        plot_mechanism(old[1])
    assert plot_mechanism(old[1].with_system(CartesianPendulum(length=1.5))).axes


class _Unseen(CartesianPendulum):
    """A pendulum whose points fail, are of another kind, or are none."""

    points_are: Any = eqx.field(static=True, default=None)

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        del t
        return q["heat"] if self.points_are == "wrong" else self.points_are


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ("wrong", r"_Unseen.points failed \(TypeError"),
        (3, r"returned ndarray: .* without a drawing"),
    ],
)
def test_points_that_fail_do_not_lose_a_run(batch, points, words):
    system = _Unseen(points_are=points)
    arrays, skeleton = eqx.partition((system, batch[1].formulation, None), eqx.is_array)
    run = dataclasses.replace(batch[1], arrays=arrays, skeleton=skeleton)
    with pytest.warns(RuntimeWarning, match=words):
        assert drawing_of(run) is None


def test_outlines_and_bodies_of_a_drawing_come_back():
    """Places, corners of circles, chains of names; between rows to the fourth order."""
    system, ts = Turning(), np.linspace(0.0, 2.0, 9)
    q = np.pi / 2 * ts[:, None]
    points, rates = jax.vmap(
        lambda t, q: jax.jvp(system.points, (t, q), (1.0, jnp.full(1, np.pi / 2)))
    )(jnp.asarray(ts), jnp.asarray(q))
    drawing = Drawing(_joined(points, 1), _joined(rates, 1), _words(points))
    again = points_of(drawing.places, drawing.words)
    assert jax.tree.structure(again) == jax.tree.structure(points)
    jax.tree.map(np.testing.assert_array_equal, again, points)
    run = stored(rows=9)
    arrays = {**run.known, "drawing.places": drawing.places, "drawing.rates": drawing.rates}
    about = dataclasses.replace(run.about, drawing=drawing.words)
    found = shapes.along(Trajectory.from_arrays(arrays, about), np.array([0.3]))
    angle = np.pi / 2 * 0.3
    # h^4 / 384 of the fourth derivative, 2 (pi/2)^4.
    end = [[2 * np.cos(angle), 2 * np.sin(angle)]]
    np.testing.assert_allclose(found.places["end"], end, atol=0.25**4 / 384 * 2 * 6.1)
    assert found.outlines["wheel"].shape == (1, 32, 2)
