"""Histories: what shares axes, names, failures, too few rows, near-singular positions."""

from types import SimpleNamespace

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.figures import FAILURE_TIME, legend, line, stub, texts, TIMES, xy, ylabels
from jaxdae.diagnosis.singularities import NearSingularity
from jaxdae.models import MODELS
from jaxdae.plotting import plot_energy, plot_histories, plot_violation
from jaxdae.plotting.readout import at, moving

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


def test_names_are_those_that_are_given_else_numbers():
    other = SimpleNamespace(coordinates=("x", "y"), units=("m", "m"))
    figure = plot_histories(stub(), labels=other, quantities=["q"])
    assert legend(figure.axes[0]) == ["x", "y"]
    figure = plot_histories(stub(labels=NO_LABELS), quantities=["q"])
    assert ylabels(figure) == ["coordinates q"]
    assert legend(figure.axes[0]) == ["q1", "q2"]
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


def test_what_counts_as_a_failure():
    """Values that are not finite at finite times; not rows that a run did not use."""
    run = stub(failed=True)  # a save of every step pads with inf beyond the last one
    run.success = np.array(True)
    assert legend(plot_histories(run).axes[0]) == ["r"]
    run.ts, run.success = TIMES, True
    assert "failed after t = 1 s" in legend(plot_histories(run).axes[0])
    run = stub(failed=True)
    run.ts, run.q = np.full_like(TIMES, np.inf), np.full_like(run.q, np.nan)
    for figure in (plot_histories(run), plot_violation(run), plot_energy(run)):
        assert "failed before the first row" in legend(figure.axes[0])


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


@pytest.mark.parametrize(("count", "named"), [(10, 10), (37, 10)])
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


@pytest.fixture(scope="module")
def folding():
    """The arm that follows its target through the folded position once."""
    system = MODELS["two-link-reachable"].system()
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 6.0, 61))
    state, formulation = jaxdae.State(*system.start()), MODELS["two-link-reachable"].formulation()
    with pytest.warns(RuntimeWarning, match="passed 1 near-singular position"):
        return jaxdae.simulate(system, formulation, state, t1=6.0, saveat=saveat)


@pytest.mark.slow
def test_singular_positions_are_marked_where_they_are_passed(folding):
    figure, rows = plot_histories(folding), moving(folding)
    assert rows is not None
    for ax in figure.axes:
        (mark,) = [x for x in ax.get_lines() if x.get_linestyle() == "--"]
        time = np.ravel(mark.get_xdata())[:1]
        # The determinant of J is L1 L2 sin q2.
        angle = at(rows, time).q[0, 1]
        assert abs(np.sin(angle)) < 1e-4
    (text,) = [x for x in legend(figure.axes[0]) if x.startswith("near-singular")]
    assert float(text.rpartition("= ")[2]) < 1e-3
    assert not any(x.startswith("near") for x in legend(figure.axes[1]))
    said = "1 of 60 intervals between rows are too long for the motion; save more rows"
    assert figure.axes[0].get_title(loc="left") == said
    plain = plot_histories(folding, singular=False)
    assert not any(x.get_linestyle() == "--" for ax in plain.axes for x in ax.get_lines())
