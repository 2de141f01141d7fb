"""Pictures of batches: quantiles, final values, failures, members with different times."""

from typing import Any

import numpy as np
import pytest

from helpers.figures import legend, xy
from helpers.stored_runs import stored
from jaxdae import StoredTrajectory
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
    return StoredTrajectory({**run.arrays, "ts": ts}, run.about)


def test_bands_are_quantiles_over_the_members():
    """Of 21 members, multiples 1, …, 21 of one curve, they are members themselves."""
    run = stored((21,), rows=9)
    ax = drawn(run).axes[0]
    x = np.cos(run.ts[0])
    outer, inner = band(ax, 0), band(ax, 1)
    np.testing.assert_allclose(outer, np.sort([2.0 * x, 20.0 * x], axis=0), atol=1e-12)
    np.testing.assert_allclose(inner, np.sort([6.0 * x, 16.0 * x], axis=0), atol=1e-12)
    np.testing.assert_allclose(xy(ax, "median")[1], 11.0 * x, atol=1e-12)
    assert legend(ax) == ["5–95 % of the members", "25–75 % of the members", "median"]
    assert ax.get_title(loc="left") == "21 members"


def test_two_batch_axes_are_one_batch():
    one, two = stored((6,)), stored((2, 3))
    a, b = (drawn(run).axes[0] for run in (one, two))
    np.testing.assert_array_equal(band(a, 0), band(b, 0))


def test_last_values_are_counted():
    """At t = 2, of 1, …, 40 times cos 2."""
    run = stored((40,))
    last = drawn(run).axes[1]
    counts = [patch.get_width() for patch in last.patches]
    assert sum(counts) == 40
    assert last.get_ylabel() == "r [m] at the end"
    assert last.patches[0].get_y() == pytest.approx(40 * np.cos(2.0))


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


def test_where_all_fail_there_are_no_last_values():
    fan, last = drawn(stored((2,), failed=[0, 1])).axes[:2]
    assert fan.get_title(loc="left").startswith("2 of 2 failed after t = 0.5 s")
    assert last.texts[0].get_text() == "no member reached its end"


def test_members_with_different_times_are_on_cubics_through_q_and_v():
    """Of a cubic motion they are exact; what has no rate is on straight lines."""
    ts = np.linspace(0.0, [1.0, 1.5, 2.0], 5, axis=1)
    q = np.stack([ts**3 - ts, 1.0 + ts], axis=-1)
    v = np.stack([3.0 * ts**2 - 1.0, np.ones_like(ts)], axis=-1)
    run = stored((3,), ts=ts)
    arrays = {**run.arrays, "q": q, "v": v, "energy": 2.0 * ts}
    figure = drawn(StoredTrajectory(arrays, run.about), quantities=("q", "v", "energy"))
    for i, exact in ((0, lambda t: t**3 - t), (4, lambda t: 3 * t**2 - 1), (8, lambda t: 2 * t)):
        curve = figure.axes[i].get_lines()[-1]
        t, median = curve.get_data()
        assert (t[0], t[-1]) == (0.0, 2.0)
        np.testing.assert_allclose(median, exact(t), atol=1e-12)
    assert figure.axes[0].get_title(loc="left") == (
        "3 members; times differ: interpolated q and v by cubic Hermite polynomials, the rest "
        "linearly between rows"
    )
    # Nobody is drawn beyond the last time of it.
    assert np.isnan(figure.axes[0].get_lines()[0].get_ydata()[-1])


@pytest.mark.parametrize("backwards", [False, True])
def test_times_may_run_backwards(backwards):
    ts = np.linspace(0.0, [[1.0], [2.0]], 5, axis=1)[..., 0]
    run = with_times(stored((2,)), -ts if backwards else ts)
    t = drawn(run).axes[0].get_lines()[-1].get_xdata()
    assert (t[0], t[-1]) == ((-2.0, 0.0) if backwards else (0.0, 2.0))


def test_few_members_are_drawn_each():
    assert "each member" in legend(drawn(stored((3,))).axes[0])
    assert "each member" not in legend(drawn(stored((13,))).axes[0])


def test_one_member_is_a_batch():
    fan, last = drawn(stored((1,))).axes[:2]
    np.testing.assert_array_equal(*band(fan, 0))
    assert last.texts[0].get_text() == f"1 × {np.cos(2.0):.6g}"


def test_rows_of_too_many_steps_are_pointed_out():
    run = stored((2,))
    run.arrays["stats.num_steps"][:] = [3, 70]
    title = drawn(run).axes[0].get_title(loc="left")
    assert title == "2 members; 5 rows of runs of up to 70 steps"


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


def test_values_that_blew_up_are_left_out():
    """Above 1e30, where squares overflow; and the rows behind them."""
    run = stored((3,))
    run.q[1, 2] = 1e200
    curve = drawn(run).axes[0].get_lines()[1].get_ydata()
    assert np.isfinite(curve).tolist() == [True, True, False, False, False]


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
