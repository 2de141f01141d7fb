"""Pictures of batches: quantiles, final values, failures, members with different times."""

from typing import Any

import numpy as np
import pytest

from helpers.figures import legend, xy
from helpers.stored_runs import stored
from jaxdae import Trajectory
from jaxdae.plotting import plot_batch, style


def drawn(run, **how) -> Any:
    return plot_batch(run, **how)


def band(ax, i):
    """Lower and upper edge of a band, by time."""
    points = ax.collections[i].get_paths()[0].vertices
    times = np.unique(points[:, 0])
    return np.array([[f(points[points[:, 0] == t, 1]) for t in times] for f in (np.min, np.max)])


def with_times(run, ts):
    """The same rows at other times."""
    return Trajectory.from_arrays({**run.known, "ts": ts}, run.about)


def test_bands_are_quantiles_over_the_members():
    """Of 21 members, multiples 1, …, 21 of one curve, they are members themselves."""
    run = stored((21,), rows=9)
    ax = drawn(run).axes[0]
    t, median = xy(ax, "median")
    np.testing.assert_array_equal(t, run.ts[0])
    x, exact = np.cos(t), {"rtol": 0, "atol": 1e-12}
    outer, inner = band(ax, 0), band(ax, 1)
    np.testing.assert_allclose(outer, np.sort([2.0 * x, 20.0 * x], axis=0), **exact)
    np.testing.assert_allclose(inner, np.sort([6.0 * x, 16.0 * x], axis=0), **exact)
    np.testing.assert_allclose(median, 11.0 * x, **exact)
    assert legend(ax) == ["5–95 % of the members", "25–75 % of the members", "median"]
    assert ax.get_title(loc="left") == "21 members"


def test_failures_are_counted_and_marked():
    """They belong to the bands up to their failure, and not to the last values."""
    run = stored((21,), rows=9, failed=[18, 19, 20])
    fan, last = drawn(run).axes[:2]
    assert fan.get_title(loc="left") == (
        "3 of 21 failed after t = 0.5 s, bands are of the others from there on"
    )
    np.testing.assert_array_equal(xy(fan, "failures")[0], [0.5] * 3)
    assert fan.get_lines()[-1].get_color() == style.FAILURE
    x = np.cos(run.ts[0])
    expected = np.where(np.arange(9) < 2, 11.0, 9.5) * x
    np.testing.assert_allclose(xy(fan, "median")[1], expected, atol=1e-12)
    assert sum(patch.get_width() for patch in last.patches) == 18

    fan, last = drawn(stored((2,), failed=[0, 1])).axes[:2]
    assert fan.get_title(loc="left").startswith("2 of 2 failed after t = 0.5 s")
    assert last.texts[0].get_text() == "no member reached its end"


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_members_with_different_times_are_on_lines_between_rows(way):
    """Of a linear motion they are exact, also backwards in time; none goes on behind its end."""
    ts = way * np.linspace(0.0, [1.0, 1.2, 1.5, 1.7, 2.0], 9, axis=1)
    run = stored((5,), rows=9, ts=ts)
    arrays = {**run.known, "q": np.stack([3.0 * ts, ts], -1), "v": np.ones((5, 9, 2)) * [3.0, 1.0]}
    ax = drawn(Trajectory.from_arrays(arrays, run.about)).axes[0]
    t, median = np.asarray(ax.get_lines()[-1].get_data())
    assert (t[0], t[-1]) == ((0.0, 2.0) if way > 0 else (-2.0, 0.0))
    np.testing.assert_allclose(median, 3.0 * t, atol=1e-12)
    assert ax.get_title(loc="left") == (
        "5 members; times differ: interpolated linearly between rows"
    )
    ends = np.asarray(ax.get_lines()[0].get_ydata())
    assert np.isnan(ends[[0, -1]]).sum() == 1


def test_few_members_are_drawn_each():
    """With dots for their last values, a cross where there is none."""
    fan, last = drawn(stored((12,), failed=[7])).axes[:2]
    assert "each member" in legend(fan)
    dots = [x for x in last.get_lines() if x.get_marker() == "o"]
    values = np.arange(1, 13) * np.cos(2.0)
    values[7] = np.nan
    np.testing.assert_allclose(np.ravel([x.get_ydata() for x in dots]), values)
    (cross,) = [x for x in last.get_lines() if x.get_marker() == "x"]
    np.testing.assert_array_equal(cross.get_xdata(), [7])
    assert not last.patches
    assert "each member" not in legend(drawn(stored((13,))).axes[0])


def test_of_very_few_members_each_has_its_name():
    """Quantiles of two or three numbers would be their interpolation; no bands, no median."""
    run = stored((2, 2))
    fan, last = drawn(run).axes[:2]
    names = ["member 0, 0", "member 0, 1", "member 1, 0", "member 1, 1"]
    assert legend(fan) == names
    assert not fan.collections
    for i, name in enumerate(names):
        np.testing.assert_array_equal(xy(fan, name)[1], run.q[i // 2, i % 2, :, 0])
    assert [x.get_text() for x in last.get_xticklabels()] == ["0, 0", "0, 1", "1, 0", "1, 1"]
    named = stored((2,)).varying(length=[0.5, 1.25], side=["left", "right"])
    assert legend(drawn(named).axes[0]) == [
        "length = 0.5, side = left", "length = 1.25, side = right"
    ]  # fmt: skip


def test_one_member_is_drawn_and_compared_with_nobody():
    """No legend, no band, no histogram of one bar."""
    run = stored((1,))
    figure = drawn(run)
    assert [ax.get_ylabel() for ax in figure.axes] == ["r [m]", "angle [rad]"]
    (curve,) = figure.axes[0].get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), run.q[0, :, 0])
    assert figure.axes[0].get_legend() is None
    assert figure.axes[0].get_title(loc="left") == "1 member"
    lost = drawn(stored((1,), failed=[0])).axes[0]
    assert lost.get_title(loc="left") == "1 member, failed after t = 0.5 s"
    assert legend(lost) == ["failures"]


def test_equal_last_values_are_not_spread_over_an_axis():
    """Differences of round-off alone."""
    for count in (4, 20):
        run = stored((count,))
        run.q[...] = run.q[:1] * (1.0 + 1e-15 * np.arange(count))[:, None, None]
        low, high = drawn(run).axes[1].get_ylim()
        assert high - low > 0.05 * abs(np.cos(2.0))


def test_curves_that_rows_do_not_show_are_pointed_out():
    """Rows a second apart of oscillations of 40 rad/s; and steps that straight lines leave out."""
    run = stored((2,))
    run.known["stats.num_steps"][:] = [3, 70]
    title = drawn(run, quantities=("q", "energy")).axes[0].get_title(loc="left")
    assert title == "2 members; 5 rows of runs of up to 70 steps"
    run.q[1, :, 0], run.v[1, :, 0] = np.sin(40 * run.ts[1]), 40 * np.cos(40 * run.ts[1])
    title = drawn(run).axes[0].get_title(loc="left")
    assert title == "2 members; rows of 1 of 2 are too far apart for the motion: save more"


def test_violations_are_norms_on_logarithmic_axes():
    run = stored((20,), rows=9)
    fan, last = drawn(run, quantities=("phi_dot",)).axes
    assert fan.get_yscale() == "log"
    assert last.get_yscale() == "log"
    size = 10.5 * np.hypot(2e-3, 3e-3) * np.abs(np.cos(run.ts[0]))
    np.testing.assert_allclose(fan.get_lines()[-1].get_ydata(), size)


def test_every_quantity_has_its_name_and_unit():
    quantities = ("q", "v", "u", "multipliers", "energy", "phi")
    figure = drawn(stored((2,)), quantities=quantities)
    assert [ax.get_ylabel() for ax in figure.axes[::2]] == [
        "r [m]", "angle [rad]", "d(r)/dt [m/s]", "d(angle)/dt [rad/s]", "torque [N m]",
        "λ of rod", "λ of rolling", "energy E [J]", "‖φ‖",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "quantities", "words"),
    [
        (stored(), ("q",), "this is one run, not a batch; draw it with plot_histories"),
        (stored((0,)), ("q",), r"the batch of shape \(0,\) has no rows to draw"),
        (stored((2,)), ("heat",), r"cannot draw the quantities 'heat'; choose from 'q', 'v'"),
        (stored((2,)), (), r"cannot draw the quantities \(\)"),
        (stored((2,)), ("w",), "the runs have no actuator states w; leave 'w' out"),
        (with_times(stored((2,)), np.full((2, 5), np.inf)), ("q",), "none of the 2 members has"),
    ],
)
def test_what_cannot_be_drawn_is_refused(run, quantities, words):
    with pytest.raises(ValueError, match=words):
        drawn(run, quantities=quantities)
