"""Figures: labels, scales, the data of the lines, legends, marks of failures."""

import subprocess
import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest

from helpers.figures import FAILURE_TIME, legend, stub, texts, TIMES, xy, ylabels
from jaxdae.identification import FittedChannel
from jaxdae.plotting import (
    plot_comparison,
    plot_energy,
    plot_histories,
    plot_residuals,
    plot_roots,
    plot_series,
    plot_tuning,
    plot_violation,
    save_figure,
)
from jaxdae.plotting.style import power_of_ten


@pytest.mark.parametrize(("start", "said"), [(1.0, "above"), (1e-17, "below")])
def test_a_start_far_from_the_rest_does_not_take_the_logarithmic_axis(start, said):
    run = stub(m=1)
    run.violation.phi = np.concatenate([[[start]], np.geomspace(1e-6, 1e-8, 8)[:, None]])
    ax = plot_violation(run).axes[0]
    low, high = ax.get_ylim()
    assert 1e-9 < low < 1e-8 < 1e-6 < high < 1e-5
    assert texts(ax) == [f"start {said} the axis: {start:.1e}"]


def test_each_failed_run_of_a_comparison_is_named():
    figure = plot_comparison({"paper's gains": stub(failed=True), "tuned": stub()})
    for ax in figure.axes:
        entries = legend(ax)
        assert "paper's gains: failed after t = 1 s" in entries
        assert not any(entry.startswith("tuned: failed") for entry in entries)


def test_tuning_shows_loss_and_gradient_norm_on_logarithmic_axes():
    history = {"loss": 2.0 ** -np.arange(6.0), "gradient_norm": 3.0 ** -np.arange(6.0)}
    figure = plot_tuning(history)
    assert ylabels(figure) == ["loss", "gradient norm"]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "log"]
    assert figure.axes[1].get_xlabel() == "step"
    np.testing.assert_array_equal(xy(figure.axes[0], "loss")[1], history["loss"])


def test_validations_stand_beside_the_loss():
    loss, asked = 2.0 ** -np.arange(6.0), np.array([1.0, np.nan, np.nan, 0.5, np.nan, np.nan])
    figure = plot_tuning({"loss": loss, "validation": asked})
    assert ylabels(figure) == ["loss"]
    assert legend(figure.axes[0]) == ["loss", "validation"]
    steps, drawn = xy(figure.axes[0], "validation")
    np.testing.assert_array_equal(steps, [0, 3])
    np.testing.assert_array_equal(drawn, [1.0, 0.5])
    below = plot_tuning({"loss": loss, "validation": asked - 0.7})
    assert below.axes[0].get_yscale() == "linear"
    starts = plot_tuning({"loss": np.ones((6, 2)), "validation": np.stack([asked, asked], axis=1)})
    assert legend(starts.axes[0])[-2:] == ["validation 1", "validation 2"]


def test_series_have_a_panel_each_with_its_scale():
    sigma = np.stack([1.0 + TIMES, 2.0 - 0.5 * TIMES], axis=1)
    panels = {"singular values": sigma, "distance [m]": {"to the boundary": 1.5 - TIMES}}
    figure = plot_series(TIMES, panels, log=["singular values"])
    assert ylabels(figure) == ["singular values", "distance [m]"]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "linear"]
    assert [legend(ax) for ax in figure.axes] == [["1", "2"], ["to the boundary"]]
    np.testing.assert_array_equal(xy(figure.axes[0], "2")[1], sigma[:, 1])


def test_saving_makes_the_folders_and_the_suffix(tmp_path):
    path = save_figure(plot_energy(stub()), tmp_path / "new" / "folder" / "energy")
    assert path == tmp_path / "new" / "folder" / "energy.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(mpl.rcParams)
    plot_comparison({"a": stub(), "b": stub(failed=True)})
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_the_package_imports_no_matplotlib_and_plotting_no_pyplot():
    code = (
        "import sys, jaxdae; assert 'matplotlib' not in sys.modules;"
        "from jaxdae.plotting import plot_energy, plot_histories, plot_violation, save_figure;"
        "assert 'jax' not in sys.modules;"  # stored runs are drawn without it
        "import jaxdae.plotting as p; [getattr(p, x) for x in dir(p)];"
        "assert 'matplotlib.animation' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loss", [[1.05e-2, 9.9e-3, 9.6e-3, 9.3e-3], [1.11, 1.16, 1.14, 1.05]])
def test_a_loss_that_hardly_changes_has_ticks(loss):
    ax = plot_tuning({"loss": np.array(loss)}).axes[0]
    low, high = ax.get_ylim()
    assert sum(low <= x <= high for x in ax.yaxis.get_majorticklocs()) >= 3


def test_the_energy_of_a_driven_run_less_the_work_is_drawn():
    run = stub()
    names = legend(plot_energy(run, work=False).axes[0])
    work = 0.1 * np.asarray(run.energy) * np.linspace(0.0, 1.0, len(run.ts))
    run.work = (work, 0.0 * work)
    figure = plot_energy(run, work=True)
    assert legend(figure.axes[0]) == [*names, "total less work"]
    drawn = figure.axes[0].get_lines()[-1].get_ydata()
    np.testing.assert_array_equal(drawn, np.asarray(run.energy) - work)
    run.work = (1e-12 * work, 0.0 * work)  # round-off of what constraints do
    assert legend(plot_energy(run, work=True).axes[0]) == names
    # Beside the parts of a sum that is zero but for an error, which the work then is, too.
    run.energy = 1e-9 * np.sin(run.ts)
    run.work = (run.energy, 0.0 * work)
    assert legend(plot_energy(run, work=True).axes[0]) == names


def test_the_first_change_after_the_start_does_not_take_the_axis():
    run = stub()
    run.energy = 1.0 + np.concatenate([[0.0, 1e-15], np.full(len(run.ts) - 2, 1e-6)])
    axis = plot_energy(run).axes[1]
    assert axis.get_ylim()[0] > 1e-7
    assert any("start below the axis" in text.get_text() for text in axis.texts)


def test_every_root_is_drawn_where_it_lies():
    sets = {"open": [0.5, -1 + 2j, -1 - 2j], "closed": [-1e4, -0.4]}
    ax = plot_roots(sets, title="roots").axes[0]
    for artist, (name, roots) in zip(ax.collections, sets.items(), strict=False):
        assert artist.get_label() == name
        np.testing.assert_allclose(np.asarray(artist.get_offsets()) @ [1, 1j], roots)
    assert (ax.get_xscale(), ax.get_yscale()) == ("symlog", "linear")
    assert ax.get_xlabel() == "real part [1/s]"
    assert ax.get_ylabel() == "imaginary part [1/s]"
    assert ax.get_xlim()[1] > 0.5


BATCH = SimpleNamespace(ts=np.stack([TIMES, TIMES]), q=np.zeros((2, TIMES.size, 2)))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot_histories(stub(), quantities=["q", "x"]), "cannot draw .*x.*choose from 'q'"),
        (lambda: plot_histories(stub(), quantities=[]), "cannot draw .*choose from 'q', 'v'"),
        (lambda: plot_histories(BATCH), r"ts has shape \(2, 9\); pick one of the batch"),
        (lambda: plot_violation({}), "mapping of trajectories is empty"),
        (lambda: plot_tuning({"loss": []}), "no loss to draw"),
        (lambda: plot_series(TIMES, {}), "no panels to draw"),
        (lambda: plot_series(TIMES, {"a": np.zeros(3)}), r"shape \(3,\) at times of shape \(9,\)"),
        (lambda: plot_series(TIMES, {"a": TIMES}, log=["b"]), r"no panel is called \['b'\]; there"),
        (lambda: plot_roots({"none": []}), "no roots to draw"),
        (lambda: plot_roots({"lost": [np.nan]}), "not finite"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_skipped_steps_are_marked_starts_numbered_and_infinite_losses_leave_gaps():
    loss = np.array([1.0, np.nan, 0.5, np.inf, 0.2])
    figure = plot_tuning(SimpleNamespace(loss=loss, skipped=~np.isfinite(loss)))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    np.testing.assert_array_equal(xy(ax, "skipped steps (2)")[0], [1, 3])
    assert all(tick == round(tick) for tick in ax.get_xticks())
    assert np.isfinite(ax.get_ylim()).all()
    assert legend(plot_tuning({"loss": np.ones((4, 2))}).axes[0]) == ["start 1", "start 2"]


def test_events_of_series_are_marked_in_every_panel_and_named_once():
    """Rows without a finite time are left out."""
    ts = np.where(TIMES <= FAILURE_TIME, TIMES, np.inf)
    figure = plot_series(ts, {"a": {"r": TIMES}, "b": TIMES}, events={"singular": 0.5})
    for ax in figure.axes:
        np.testing.assert_array_equal(ax.get_lines()[-1].get_xdata(), [0.5, 0.5])
    assert [texts(ax) for ax in figure.axes] == [["singular"], []]
    np.testing.assert_array_equal(xy(figure.axes[0], "r")[0], TIMES[TIMES <= FAILURE_TIME])


def test_ticks_of_logarithmic_axes_are_plain_text():
    shown = {
        1e-11: "10⁻¹¹",
        1.0: "10⁰",
        1.105: "1.105",
        2e-5: "2·10⁻⁵",
        1.25e2: "1.25·10²",
        0.0: "",
    }
    assert {x: power_of_ten(x) for x in shown} == shown


def fitted(unit, offset):
    measured = np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    return FittedChannel(TIMES[:5], measured, measured - offset, np.full(5, 0.1), unit)


@pytest.mark.parametrize("estimated", [(), ("place",)])
def test_each_channel_has_a_panel_with_its_unit_a_zero_line_and_its_residuals(estimated):
    data = ({"place": fitted("m", 0.3), "speed": fitted("", 0.0)}, {"place": fitted("m", -0.2)})
    result = SimpleNamespace(
        data=data, estimated_noise=estimated, reduced_chi_square=1.25, degrees_of_freedom=12
    )
    figure = plot_residuals(result)
    place, speed = figure.axes
    assert (place.get_ylabel(), speed.get_ylabel()) == ("place [m]", "speed")
    assert speed.get_xlabel() == "time t [s]"
    zero, first, second = place.get_lines()
    np.testing.assert_array_equal(zero.get_ydata(), [0.0, 0.0])
    np.testing.assert_allclose(np.asarray(first.get_ydata())[[0, 2]], 0.3)
    np.testing.assert_allclose(np.asarray(second.get_ydata())[0], -0.2)
    legend = place.get_legend()
    assert legend is not None
    assert [x.get_text() for x in legend.get_texts()] == [
        "experiment 1", "experiment 2"
    ]  # fmt: skip
    heading = figure.get_suptitle()
    assert ("noise levels estimated" in heading) == bool(estimated)
    assert ("1.25 at 12" in heading) == (not estimated)
    assert plot_residuals(result, title="fit").get_suptitle() == "fit"
