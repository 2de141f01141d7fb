"""Axes of histories: what shares one, and what none enlarges."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.figures import legend, stub, TIMES, ylabels
from jaxdae.diagnosis.singularities import NearSingularity
from jaxdae.plotting import plot_histories, style

NO_LABELS = SimpleNamespace(coordinates=(), units=(), constraints=(), constraint_units=())


def test_curves_that_would_be_flat_have_axes_of_their_own():
    """A thousandth of the others; what is as small as round-off, or zero, stays with them."""
    labels = SimpleNamespace(coordinates=("big", "small", "noise", "none"), units=("m",) * 4)
    run = stub(labels=labels)
    run.q = np.stack([np.cos(TIMES), 1e-3 * np.sin(TIMES), 1e-14 * TIMES, 0.0 * TIMES], axis=1)
    for scale, kind in ((1.0, float), (1e9, float), (1e-12, float), (1.0, np.float32)):
        run.v, drawn = 0.0 * run.q, run.q.copy()
        run.q = (scale * run.q).astype(kind)
        figure = plot_histories(run, quantities=["q"])
        assert [legend(ax) for ax in figure.axes] == [["big", "noise", "none"], ["small"]]
        assert ylabels(figure) == ["coordinates q [m]"] * 2
        said = figure.axes[1].get_title(loc="right")
        assert said == f"small ones, at most {1e-3 * scale * np.sin(1.5):.3g}"
        run.q = drawn


def test_round_off_of_a_constant_is_not_enlarged():
    """One unit in the last place; a change of a millionth is a change."""
    for kind in (np.float32, np.float64):
        run = stub(labels=NO_LABELS)
        run.ts, run.q = TIMES.astype(kind), np.full((9, 1), 2.0, kind)
        run.q[4] += 2 * np.finfo(kind).eps
        run.v = 0.0 * run.q
        low, high = plot_histories(run, quantities=["q"]).axes[0].get_ylim()
        assert (low, high) == pytest.approx((1.8, 2.2), rel=1e-6)
        run.q[4] = 2.0 + 1e3 * np.finfo(kind).eps
        low, high = plot_histories(run, quantities=["q"]).axes[0].get_ylim()
        assert high - low < 1e-3


@pytest.mark.parametrize("size", [2.0, -2.0, 1e-8])
def test_errors_of_a_constant_are_not_enlarged(size):
    """Its axes reach a tenth of the value to both sides; those of a motion stay as they are."""
    figure = Figure()
    constant, moving = figure.subplots(2)
    ts = np.linspace(0.0, 1.0, 9)
    constant.plot(ts, size * (1.0 + 1e-12 * np.cos(9 * ts)))
    moving.plot(ts, size * (1.0 + 1e-3 * np.cos(9 * ts)))
    before = moving.get_ylim()
    style.show_constants(figure)
    low, high = constant.get_ylim()
    np.testing.assert_allclose([low, high], size + np.array([-0.1, 0.1]) * abs(size), rtol=1e-9)
    assert moving.get_ylim() == before


@pytest.mark.parametrize(("count", "named"), [(8, 8), (10, 10), (37, 10)])
def test_many_coordinates_have_names_as_far_as_there_is_room(count, named):
    """All of them up to ten; else as many at equal distances, the first and the last included."""
    names = tuple(f"x{i}" for i in range(count))
    run = stub(labels=SimpleNamespace(coordinates=names, units=("m",) * count))
    run.q = np.cos(TIMES)[:, None] * np.linspace(1.0, 2.0, count)
    run.v = -np.sin(TIMES)[:, None] * np.linspace(1.0, 2.0, count)
    (ax,) = plot_histories(run, quantities=["q"]).axes
    assert len(ax.get_lines()) == count
    shown = legend(ax)
    assert len(shown) == named
    assert (shown[0], shown[-1]) == ("x0", f"x{count - 1}")
    gaps = np.diff([int(x[1:]) for x in shown])
    assert gaps.max() - gaps.min() <= 1


def test_many_singular_positions_hide_no_curve():
    """Lines through all axes for a few, along the edge for more; how many, and the closest."""
    for count, height in ((1, 1.0), (10, 1.0), (33, 0.08)):
        singularities = [NearSingularity(0.05 * (i + 1), 1e-7 * i) for i in range(count)]
        figure = plot_histories(stub(), singular=singularities)
        for ax in figure.axes:
            marks = [x for x in ax.get_lines() if x.get_linestyle() == "--"]
            assert [np.ravel(x.get_xdata())[0] for x in marks] == [x.time for x in singularities]
            assert all(np.ravel(x.get_ydata()).tolist() == [0.0, height] for x in marks)
            curves = [x for x in ax.get_lines() if x.get_linestyle() == "-"]
            assert max(x.zorder for x in marks) < min(x.zorder for x in curves)
        times = f" {count} times" if count > 1 else ""
        assert f"near-singular{times}, least σ = 0" in legend(figure.axes[0])


def test_dollars_in_names_make_no_formula():
    """Two of them are read as one by matplotlib, which fails where it is none."""
    labels = SimpleNamespace(coordinates=("$x_$", r"a$\frac$"), units=(r"$\m$", r"$\m$"))
    figure = plot_histories(stub(labels=labels), title="prices")
    figure.draw_without_rendering()
    assert legend(figure.axes[0]) == ["$x_$", r"a$\frac$"]
