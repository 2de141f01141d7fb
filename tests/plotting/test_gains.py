"""Pictures of gains: what is drawn, and what cannot be."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxdae.plotting import save_figure
from jaxdae.plotting.gains import CostPlane, plot_levels, plot_planes, StabilityLimit


def run(decay: float, rows: int = 5):
    """A violation that decays, in rows of which the last may not have been reached."""
    ts = np.where(np.arange(5) < rows, 0.1 * np.arange(5), np.inf)
    size = np.where(np.isfinite(ts), np.exp(-decay * np.arange(5)), np.nan)[:, None]
    return SimpleNamespace(ts=ts, violation=SimpleNamespace(phi=size, phi_dot=3 * size))


def test_every_condition_has_both_levels_of_all_gains():
    runs = {
        "h": {"slow": run(0.1), "fast": run(5.0)},
        "2 h": {"slow": run(0.1), "fast": run(-9, 3)},
    }
    figure = plot_levels(runs, title="one start")
    upper, lower = figure.axes[:2], figure.axes[2:]
    assert [ax.get_title() for ax in upper] == ["h", "2 h"]
    assert [len(ax.get_lines()) for ax in figure.axes] == [2] * 4
    assert (upper[0].get_ylabel(), lower[0].get_ylabel()) == ("|phi|", "|d(phi)/dt|")
    # A run that fails ends where it fails, and does not take the scale for itself.
    assert np.size(upper[1].get_lines()[1].get_xdata()) == 3
    assert upper[0].get_ylim() == upper[1].get_ylim()
    assert upper[1].get_ylim()[1] < 1e4
    # Which gains fail is said where they do.
    assert [[x.get_text() for x in ax.texts] for ax in upper] == [[], ["fails: fast"]]


def plane(cost):
    x, y = np.geomspace(0.1, 5, 4), np.geomspace(0.01, 10, 3)
    fine = np.geomspace(0.1, 5, 9), np.geomspace(0.01, 10, 8)
    limit = StabilityLimit(*fine, fine[0][:, None] + 0 * fine[1])
    path = np.array([[0.2, 0.02], [1.0, 1.0]])
    return CostPlane("tuned", x, y, cost, limit, {"first": (0.2, 0.02), "by theory": (3, 4)}, path)


def test_the_plane_shows_costs_gains_limit_and_path():
    cost = np.arange(1.0, 13.0).reshape(4, 3)
    cost[3, 2] = np.nan
    figure = plot_planes([plane(cost), plane(2 * cost)], heading="cost", title="gains")
    first, second, colors = figure.axes
    (mesh, _) = (x for x in first.collections)
    assert np.ma.count_masked(mesh.get_array()) == 1  # runs that fail have no colour
    assert mesh.norm.vmax == 22  # one scale for both
    path = first.get_lines()[2]
    np.testing.assert_array_equal(path.get_xydata(), [[0.2, 0.02], [1.0, 1.0]])
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["stability limit", "runs fail", "the tuner's path", "first", "by theory"]
    assert second.get_xscale() == second.get_yscale() == "log"
    assert colors.get_ylabel() == "cost"


def test_costs_of_runs_that_blow_up_do_not_take_the_scale(tmp_path):
    cost = np.geomspace(1e-9, 1e300, 12).reshape(4, 3)
    figure = plot_planes([plane(cost)], heading="cost")
    mesh: Any = figure.axes[0].collections[0]
    assert mesh.norm.vmax < 1
    # Neither does one cell among hundreds; the bar says that there is more.
    cost = np.geomspace(1e-9, 1e-5, 1200).reshape(40, 30)
    cost[7, 7] = 1e-3
    x, y = np.geomspace(0.1, 5, 40), np.geomspace(0.01, 10, 30)
    figure = plot_planes([plane(cost)._replace(x=x, y=y)], heading="cost")
    mesh, bar = figure.axes[0].collections[0], figure.axes[1]
    assert 1e-6 < mesh.norm.vmax < 1e-5
    assert mesh.colorbar.extend == "max"
    assert bar.get_ylabel() == "cost"
    assert save_figure(figure, tmp_path / "plane.png", dpi=40).exists()
