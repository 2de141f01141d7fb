"""Theorems about the picture of accuracy against work."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxdae.plotting import plot_front


def point(evaluations, cost, *, dominated=False, failed=0):
    return SimpleNamespace(
        evaluations=evaluations, steps=evaluations // 4, dt=1 / evaluations, cost=cost,
        dominated=dominated, failed=failed,
    )  # fmt: skip


POINTS = (
    point(80, 1e-6),
    point(40, 1e-3),
    point(120, 1e-5, dominated=True),
    point(20, np.nan, dominated=True, failed=2),
    point(10, 1e200),
)


def lines_of(figure) -> dict[Any, Any]:
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_the_front_is_joined_and_the_rest_is_beside_it():
    figure = plot_front(SimpleNamespace(points=POINTS), ylabel="error [m]", title="work")
    lines, ax = lines_of(figure), figure.axes[0]
    np.testing.assert_array_equal(lines["not dominated"].get_xydata(), [[40, 1e-3], [80, 1e-6]])
    np.testing.assert_array_equal(lines["dominated"].get_xydata(), [[120, 1e-5]])
    np.testing.assert_array_equal(lines["failed or beyond"].get_xdata(), [10, 20])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_ylabel() == "error [m]"
    assert "evaluations of the right-hand side" in ax.get_xlabel()
    # A run that grew beyond all bounds does not take the axis.
    assert ax.get_ylim()[1] < 1.0


def test_several_fronts_are_named():
    sets = {"theory": SimpleNamespace(points=POINTS[:2]), "tuned": SimpleNamespace(points=POINTS)}
    lines = lines_of(plot_front(sets, x="dt"))
    assert [*lines] == ["theory", "tuned", "tuned, dominated", "tuned, failed or beyond"]
    np.testing.assert_allclose(lines["theory"].get_xdata(), [1 / 80, 1 / 40])


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r'x is .speed.; give "evaluations", "steps" or "dt"'):
        plot_front(SimpleNamespace(points=POINTS), x="speed")
    with pytest.raises(ValueError, match="no points to draw"):
        plot_front(SimpleNamespace(points=()))
