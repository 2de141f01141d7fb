"""Figures: labels, scales, the data of the lines, legends, marks of failures."""

import subprocess
import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest

from helpers.figures import FAILURE_TIME, legend, line, stub, texts, TIMES, xy, ylabels
from jaxdae.plotting import (
    plot_comparison,
    plot_energy,
    plot_histories,
    plot_roots,
    plot_series,
    plot_tuning,
    plot_violation,
    save_figure,
)
from jaxdae.plotting.style import power_of_ten

NO_LABELS = SimpleNamespace(coordinates=(), units=(), constraints=(), constraint_units=())


def test_histories_have_one_axes_per_quantity_and_unit():
    figure = plot_histories(stub(), title="A beam")
    assert ylabels(figure) == [
        "coordinates q [m]",
        "coordinates q [rad]",
        "velocities v [m/s]",
        "velocities v [rad/s]",
    ]
    assert [legend(ax) for ax in figure.axes] == [["r"], ["angle"], ["d(r)/dt"], ["d(angle)/dt"]]
    assert figure.axes[-1].get_xlabel() == "time t [s]"
    assert figure.get_suptitle() == "A beam"


def test_between_rows_histories_are_hermites_cubics():
    """q = (cos t, 3 + sin t) in eight intervals of 0.25: h^4 / 384 of the fourth derivative."""
    figure = plot_histories(stub())
    ts, angle = xy(figure.axes[1], "angle")
    assert ts.size == 8 * 8 + 1
    np.testing.assert_allclose(angle, 3.0 + np.sin(ts), atol=0.25**4 / 384)
    # The slopes of the cubics lose an order: sqrt(3) h^3 / 216.
    _, speed = xy(figure.axes[3], "d(angle)/dt")
    np.testing.assert_allclose(speed, np.cos(ts), atol=3**0.5 * 0.25**3 / 216)


def test_histories_of_many_rows_are_their_rows():
    run = stub()
    ts = np.linspace(0.0, 2.0, 1001)
    run.ts, run.q, run.v = ts, np.stack([ts, ts], 1), np.ones((1001, 2))
    np.testing.assert_array_equal(xy(plot_histories(run).axes[0], "r")[0], ts)


def test_a_run_of_more_steps_than_rows_says_what_its_histories_cannot_show():
    run = stub()
    run.stats = {"num_steps": 40}
    said = plot_histories(run).axes[0].get_title(loc="left")
    assert said == "9 rows of a run of 40 steps: motions between rows may be missing"
    run.stats = {"num_steps": 9}
    assert plot_histories(run).axes[0].get_title(loc="left") == ""


@pytest.mark.parametrize(("start", "said"), [(1.0, "above"), (1e-17, "below")])
def test_a_start_far_from_the_rest_does_not_take_the_logarithmic_axis(start, said):
    run = stub(m=1)
    run.violation.phi = np.concatenate([[[start]], np.geomspace(1e-6, 1e-8, 8)[:, None]])
    ax = plot_violation(run).axes[0]
    low, high = ax.get_ylim()
    assert 1e-9 < low < 1e-8 < 1e-6 < high < 1e-5
    assert texts(ax) == [f"start {said} the axis: {start:.1e}"]


def test_coordinates_without_labels_are_numbered_and_share_axes():
    figure = plot_histories(stub(labels=NO_LABELS), quantities=["q"])
    assert ylabels(figure) == ["coordinates q"]
    assert legend(figure.axes[0]) == ["q1", "q2"]


def test_given_labels_replace_those_of_the_system():
    other = SimpleNamespace(coordinates=("x", "y"), units=("m", "m"))
    figure = plot_histories(stub(), labels=other, quantities=["q"])
    assert legend(figure.axes[0]) == ["x", "y"]


def test_multipliers_carry_the_names_of_their_constraints():
    assert legend(plot_histories(stub(), quantities=["multipliers"]).axes[0]) == ["rod", "rail"]


@pytest.mark.parametrize("quantity", ["w", "u"])
def test_a_quantity_the_system_does_not_have_is_said_to_be_none(quantity):
    figure = plot_histories(stub(), quantities=[quantity])
    assert texts(figure.axes[0]) == ["none"]


def test_a_failed_run_ends_at_a_marked_time():
    figure = plot_histories(stub(failed=True))
    for ax in figure.axes:
        mark = line(ax, "failed after t = 1 s")
        np.testing.assert_array_equal(mark.get_xdata(), [FAILURE_TIME, FAILURE_TIME])
    ts, values = xy(figure.axes[0], "r")
    assert ts[-1] == FAILURE_TIME
    assert np.isfinite(values).all()


def test_a_run_that_succeeded_has_no_mark_even_with_unused_rows():
    run = stub(failed=True)  # a save of every step pads with inf beyond the last one
    run.success = np.array(True)
    assert legend(plot_histories(run).axes[0]) == ["r"]


def test_values_that_are_not_finite_at_finite_times_count_as_a_failure():
    run = stub(failed=True)
    run.ts, run.success = TIMES, True
    assert "failed after t = 1 s" in legend(plot_histories(run).axes[0])


def test_a_run_without_a_finished_row_is_said_to_have_failed():
    run = stub(failed=True)
    run.ts, run.q = np.full_like(TIMES, np.inf), np.full_like(run.q, np.nan)
    for figure in (plot_histories(run), plot_violation(run), plot_energy(run)):
        assert "failed before the first row" in legend(figure.axes[0])


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


def test_skipped_steps_are_marked_and_counted():
    loss = np.array([1.0, np.nan, 0.5, np.nan, 0.2])
    ax = plot_tuning(SimpleNamespace(loss=loss, skipped=np.isnan(loss))).axes[0]
    np.testing.assert_array_equal(xy(ax, "skipped steps (2)")[0], [1, 3])


def test_steps_are_counted_in_whole_numbers_and_infinite_losses_leave_gaps():
    figure = plot_tuning({"loss": [np.inf, 1.0, 0.5, 0.25]})
    figure.draw_without_rendering()
    ax = figure.axes[0]
    assert all(tick == round(tick) for tick in ax.get_xticks())
    assert ax.get_yscale() == "log"
    assert np.isfinite(ax.get_ylim()).all()


def test_several_starts_have_a_line_each():
    assert legend(plot_tuning({"loss": np.ones((4, 2))}).axes[0]) == ["start 1", "start 2"]


def test_series_have_a_panel_each_with_its_scale():
    sigma = np.stack([1.0 + TIMES, 2.0 - 0.5 * TIMES], axis=1)
    panels = {"singular values": sigma, "distance [m]": {"to the boundary": 1.5 - TIMES}}
    figure = plot_series(TIMES, panels, log=["singular values"])
    assert ylabels(figure) == ["singular values", "distance [m]"]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "linear"]
    assert [legend(ax) for ax in figure.axes] == [["1", "2"], ["to the boundary"]]
    np.testing.assert_array_equal(xy(figure.axes[0], "2")[1], sigma[:, 1])


def test_events_are_marked_in_every_panel_and_named_once():
    figure = plot_series(TIMES, {"a": TIMES, "b": TIMES}, events={"singular": 0.5})
    for ax in figure.axes:
        np.testing.assert_array_equal(ax.get_lines()[-1].get_xdata(), [0.5, 0.5])
    assert [texts(ax) for ax in figure.axes] == [["singular"], []]


def test_series_leave_out_rows_without_a_finite_time():
    run = stub(failed=True)
    ax = plot_series(run.ts, {"r": {"r": run.q[:, 0]}}).axes[0]
    np.testing.assert_array_equal(xy(ax, "r")[0], TIMES[TIMES <= FAILURE_TIME])


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-11, "10⁻¹¹"),
        (1.0, "10⁰"),
        (1.105, "1.105"),
        (1e3, "10³"),
        (2e-5, "2·10⁻⁵"),
        (1.25e2, "1.25·10²"),
        (0.0, ""),
    ],
)
def test_ticks_of_logarithmic_axes_are_plain_text(value, text):
    assert power_of_ten(value) == text


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
