"""Axes of histories: what shares one, and what none enlarges."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.figures import legend, stub, TIMES, ylabels
from jaxdae.plotting import plot_histories

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
