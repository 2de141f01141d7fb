"""Figures of violations, energies and their comparison."""

from types import SimpleNamespace

import numpy as np

from helpers.figures import legend, line, stub, texts, TIMES, xy, ylabels
from jaxdae.plotting import plot_comparison, plot_energy, plot_violation


def test_violation_is_drawn_on_logarithmic_axes_with_units():
    figure = plot_violation(stub())
    assert ylabels(figure) == ["‖φ‖ [m²]", "‖dφ/dt‖ [m²/s]"]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "log"]


def test_violation_of_one_run_shows_the_norm_and_each_constraint():
    figure = plot_violation(stub())
    assert legend(figure.axes[0]) == ["rod", "rail", "norm (max 5.0e+00)"]
    # 3-4-5 and 6-8-10 triangles; three roundings of relative size 1e-16 each.
    np.testing.assert_allclose(xy(figure.axes[0], "norm")[1], 5 * np.exp(-TIMES), rtol=1e-15)
    np.testing.assert_allclose(xy(figure.axes[1], "norm")[1], 10 * np.exp(-2 * TIMES), rtol=1e-15)
    np.testing.assert_array_equal(xy(figure.axes[0], "rail")[1], 4 * np.exp(-TIMES))


def test_velocity_constraints_keep_their_unit_at_velocity_level():
    run = stub(m=1)
    run.violation.phi = np.zeros((TIMES.size, 0))
    labels = SimpleNamespace(constraint_units=("m/s",))
    assert ylabels(plot_violation(run, labels=labels)) == ["‖g‖ [m/s]"]
    drawn = plot_comparison({"a": run, "b": run}, labels=labels)
    assert ylabels(drawn) == ["‖g‖ [m/s]", "|E − E₀| [J]"]


def test_a_system_without_constraints_gets_a_remark_instead_of_lines():
    figure = plot_violation(stub(m=0))
    assert [texts(ax) for ax in figure.axes] == [["no constraints"]]
    assert [ax.get_lines()[:] for ax in figure.axes] == [[]]


def test_exact_zeros_are_left_out_and_said_to_be_zero():
    ax = plot_violation(stub(scale=0.0, m=1)).axes[0]
    assert legend(ax) == ["exactly zero"]
    assert np.isnan(xy(ax, "exactly zero")[1]).all()


def test_energy_shows_its_parts_and_the_drift_on_a_logarithmic_axis():
    figure = plot_energy(stub())
    upper, lower = figure.axes
    assert legend(upper) == ["kinetic", "potential", "total"]
    assert [ax.get_yscale() for ax in figure.axes] == ["linear", "log"]
    assert ylabels(figure) == ["energy E [J]", "|E − E₀| [J]"]
    drift = xy(lower, "max 2.0e+00")[1]
    assert np.isnan(drift[0])  # the drift of the first row is zero
    np.testing.assert_array_equal(drift[1:], TIMES[1:])  # sums of eighths are exact


def test_comparison_has_both_levels_and_the_energy_drift():
    figure = plot_comparison({"before": stub(), "after": stub(scale=0.25)}, title="Gains")
    assert ylabels(figure) == ["‖φ‖ [m²]", "‖dφ/dt‖ [m²/s]", "|E − E₀| [J]"]
    assert {ax.get_yscale() for ax in figure.axes} == {"log"}
    assert legend(figure.axes[1]) == ["before (max 1.0e+01)", "after (max 2.5e+00)"]
    assert line(figure.axes[0], "before").get_color() != line(figure.axes[0], "after").get_color()
