"""Pictures of mechanisms: where points are drawn, with which names, and what is refused."""

import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

import jaxdae
from helpers.figures import legend, line, stub, texts, xy
from helpers.moving import Spiral, Turning, turning_run
from jaxdae.plotting import plot_histories, plot_mechanism, plot_path


@pytest.fixture
def backwards():
    """From t = 0 to -2 s."""
    run = turning_run()
    run.ts, run.q = 0.0 - run.ts, 0.0 - run.q
    return run


def test_positions_are_drawn_at_their_times_early_ones_light():
    (ax,) = plot_mechanism(turning_run(), times=[0.0, 1.0, 2.0], title="rod").axes
    assert ax.get_title() == "rod"
    assert legend(ax)[2:] == ["t = 0 s", "t = 1 s", "t = 2 s"]
    for text, end in (("t = 0 s", (2, 0)), ("t = 1 s", (0, 2)), ("t = 2 s", (-2, 0))):
        x, y = xy(ax, text)
        np.testing.assert_allclose((x[0], y[0]), 0.0)
        np.testing.assert_allclose((x[-1], y[-1]), end, atol=1e-15)
    # Weights of the three colours in what eyes call light.
    light = [to_rgb(line(ax, f"t = {i} s").get_color()) @ np.array([0.3, 0.6, 0.1]) for i in "012"]
    assert light[0] > light[1] + 0.2 > light[2] + 0.4


def test_between_rows_positions_are_those_of_the_cubics():
    """Rows of a uniform rotation: its cubic is the rotation itself, in between too."""
    (ax,) = plot_mechanism(turning_run(rows=2), times=[0.5]).axes
    x, y = xy(ax, "t = 0.5 s")
    np.testing.assert_allclose((x[-1], y[-1]), [2**0.5, 2**0.5], rtol=1e-14)


def test_times_are_spread_from_start_to_end():
    found = plot_mechanism(turning_run(), times=5).axes[0]
    assert legend(found)[2:] == ["t = 0 s", "t = 0.5 s", "t = 1 s", "t = 1.5 s", "t = 2 s"]
    assert legend(plot_mechanism(turning_run(), times=1).axes[0])[2:] == ["t = 2 s"]
    assert legend(plot_mechanism(turning_run(), times=17).axes[0])[2:] == legend(found)[2:]


def test_axes_have_one_scale_units_and_room_for_everything():
    (ax,) = plot_mechanism(turning_run()).axes
    assert ax.get_aspect() == 1.0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x [m]", "y [m]")
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    assert left < -2.5 < 2.5 < right  # the rod's end and the radius of the wheel
    assert low < -0.5
    assert high > 2.5


def test_names_are_written_once_where_points_are():
    """Points of one place share a text; names with an underscore are not written."""
    run = turning_run()
    assert texts(plot_mechanism(run).axes[0]) == ["end, same", "pivot"]
    assert texts(plot_mechanism(run, names=False).axes[0]) == []
    end = plot_mechanism(run, times=[1.0]).axes[0].texts[0]
    assert getattr(end, "xy") == pytest.approx((0.0, 2.0))  # noqa: B009


def test_ground_lines_and_bodies_are_drawn():
    ax = plot_mechanism(turning_run(), times=[0.0]).axes[0]
    styles = {(x.get_marker(), x.get_linestyle()) for x in ax.get_lines()}
    assert ("^", "None") in styles  # the ground
    assert ("None", "--") in styles  # what is no rigid link
    triangle, wheel = (np.asarray(x.get_path().vertices) for x in ax.patches)
    np.testing.assert_allclose(triangle[:3], [(0, 0), (1, 0), (2, 0)])
    np.testing.assert_allclose(np.hypot(*(wheel - [2.0, 0.0]).T), 0.5)


def test_paths_are_the_curves_of_the_points_with_start_and_end():
    (ax,) = plot_path(turning_run(rows=3)).axes
    assert legend(ax) == ["path of end", "path of _hidden"]
    x, y = xy(ax, "path of end")
    assert x.size == 17  # eight from row to row
    np.testing.assert_allclose(np.hypot(x, y), 2.0, rtol=1e-14)
    marks = [x for x in ax.get_lines() if x.get_marker() == "o" and x.get_alpha() is None]
    starts = [x for x in marks if x.get_markerfacecolor() == "white"]
    np.testing.assert_allclose(np.concatenate(starts[0].get_data()), [2.0, 0.0], atol=1e-15)
    ends = [x for x in marks if x.get_markerfacecolor() != "white"]
    np.testing.assert_allclose(np.concatenate(ends[0].get_data()), [-2.0, 0.0], atol=1e-15)


def test_a_mechanism_in_space_is_drawn_in_space_or_projected():
    run = turning_run(Spiral())
    (ax,) = plot_mechanism(run, title="spiral").axes
    assert ax.name == "3d"
    assert getattr(ax, "get_zlabel")() == "z [m]"  # noqa: B009
    (flat,) = plot_path(run, plane="xz").axes
    assert flat.name == "rectilinear"
    assert (flat.get_xlabel(), flat.get_ylabel()) == ("x [m]", "z [m]")
    x, z = xy(flat, "path of point")
    np.testing.assert_allclose(x, np.cos(z), atol=1e-14)
    (above,) = plot_mechanism(run, plane="yx").axes
    assert (above.get_xlabel(), above.get_ylabel()) == ("y [m]", "x [m]")


@pytest.mark.parametrize("draw", [plot_mechanism, plot_path])
def test_a_failed_run_ends_where_it_failed(draw):
    for system in (Turning(), Spiral()):
        (ax,) = draw(turning_run(system, failed=True)).axes
        assert "failed after t = 1.5 s" in texts(ax)


def test_a_run_backwards_in_time_is_drawn_from_its_start(backwards):
    """A quarter turn back in each second; in between on its cubics, which are the rotation."""
    (ax,) = plot_mechanism(backwards, times=[0.0, -1.5, -1.0]).axes
    assert legend(ax)[2:] == ["t = 0 s", "t = -1 s", "t = -1.5 s"]
    x, y = xy(ax, "t = -1.5 s")
    np.testing.assert_allclose((x[-1], y[-1]), [-(2**0.5), -(2**0.5)], rtol=1e-14)
    assert legend(plot_mechanism(backwards, times=3).axes[0])[2:] == [
        "t = 0 s", "t = -1 s", "t = -2 s"
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"no position at t = 0\.5 s: .* from t = 0 s to -2 s"):
        plot_mechanism(backwards, times=[0.5])
    ts, angle = xy(plot_histories(backwards).axes[0], "angle")
    assert (ts[0], ts[-1], ts.size) == (0.0, -2.0, 33)
    np.testing.assert_allclose(angle, np.pi / 2 * ts, rtol=1e-14)


class Other(Turning):
    """Points of another kind, none, no traces, or places that are not finite from 2 rad on."""

    kind: str = eqx.field(static=True, default="dict")

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        far = jnp.where((q[0] > 2.0) & (self.kind == "lost"), jnp.nan, q[0])
        places = {"a": jnp.zeros(2), "b": jnp.stack([far, far])}
        return {"dict": places, "none": None}.get(self.kind, jaxdae.Points(places))


def changed(**values):
    run = turning_run(rows=3)
    vars(run).update(values)
    return run


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: plot_mechanism(stub()),
            "SimpleNamespace has no shape to draw: its points(t, q) is not declared",
        ),
        (
            lambda: plot_mechanism(turning_run(Other(kind="none"))),
            "Other has no shape to draw: its points(t, q) is not declared, or returns None. Declare"
            " a method `points(self, t, q)` that returns jaxdae.Points",
        ),
        (
            lambda: plot_mechanism(turning_run(Other(kind="lost"))),
            "the point 'b' has no finite position at t = 1.3125 s, and 11 more of the 33 times",
        ),
        (
            lambda: plot_path(turning_run(Other(kind="untraced"))),
            "there is no path to draw: give points=…, or name points in jaxdae.Points(…, trace=…). "
            "There are: a, b.",
        ),
        (
            lambda: plot_path(turning_run(Other(kind="untraced")), points=["b", "c"]),
            "no point is called 'c'; there are: a, b.",
        ),
        (
            lambda: plot_path(turning_run(Spiral()), plane="xx"),
            "plane='xx' is not a pair of the axes x, y, z; give one such as 'xy'",
        ),
        (lambda: plot_path(turning_run(), plane="xz"), "plane='xz' is not a pair of the axes x, y"),
        (
            lambda: plot_mechanism(turning_run(), times=0.5),
            "times=0.5 must be a number of positions, 1 or more, or their times [s]",
        ),
        (
            lambda: plot_mechanism(turning_run(), times=[]),
            "times must be one list of times [s]; got shape (0,).",
        ),
        (
            lambda: plot_mechanism(turning_run(), times=[0.0, 2.5]),
            "there is no position at t = 2.5 s: the run has rows from t = 0 s to 2 s.",
        ),
        (
            lambda: plot_mechanism(turning_run(), times=[np.nan]),
            "there is no position at t = nan s",
        ),
        (
            lambda: plot_mechanism(changed(ts=np.full(3, np.inf))),
            "the run failed before its first row",
        ),
        (lambda: plot_path(changed(ts=np.zeros((3, 2)))), "one trajectory is drawn at a time"),
        (
            lambda: plot_path(changed(ts=np.array([0.0, 1.0, 0.5]))),
            "times that only increase or only decrease",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draw()


def test_points_of_another_kind_are_refused():
    with pytest.raises(TypeError, match=r"Other.points must return jaxdae.Points, .* dict"):
        plot_path(turning_run(Other()))


class Fan(Turning):
    """Two rods from a hub, with a second name at the end of one; it turns with `q`."""

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        angles = q[0] + jnp.array([0.0, 2.0])
        one, other = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        places = {"hub": jnp.zeros(2), "one": one, "other": other, "same": other, "_not": one}
        return jaxdae.Points(places, links=(("one", "hub", "other"),))


@pytest.mark.parametrize("time", [0.0, 0.9])
def test_names_stand_in_the_widest_angle_between_links(time):
    """Beyond the ends of rods, and across from both at their hub."""
    figure = plot_mechanism(turning_run(Fan()), times=[time])
    FigureCanvasAgg(figure).draw()
    q = 0.5 * np.pi * time  # a quarter of a turn in each second
    ends = {"one": q, "other, same": q + 2.0, "hub": q + 1.0 + np.pi}
    texts: dict[str, Any] = {x.get_text(): x for x in figure.axes[0].texts}
    assert texts.keys() == ends.keys()
    for name, text in texts.items():
        box = text.get_window_extent()
        point = figure.axes[0].transData.transform(text.xy)
        assert not box.contains(*point)
        beside = np.asarray(text.xyann) / np.linalg.norm(text.xyann)
        wanted = np.array([np.cos(ends[name]), np.sin(ends[name])])
        np.testing.assert_allclose(beside, wanted, rtol=0, atol=1e-6)
        # The nearest corner or side is towards the point.
        assert (0.5 * (box.min + box.max) - point) @ wanted > 0
