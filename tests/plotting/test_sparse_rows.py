"""Histories of runs with too few rows, and marks of near-singular positions."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.figures import legend
from jaxdae.models import MODELS
from jaxdae.plotting import plot_histories
from jaxdae.plotting.between_rows import at, Moving, rows_of
from jaxdae.plotting.missed import missed_extrema, sparse
from jaxdae.results.readings import accelerations


def oscillation(rows, frequency=40.0, t1=10.0):
    """Sine and a slow cosine in rows, with their derivatives."""
    ts = np.sort(np.random.default_rng(5).uniform(0.0, t1, rows))
    q = np.stack([np.cos(0.3 * ts), np.sin(frequency * ts)], axis=1)
    v = np.stack([-0.3 * np.sin(0.3 * ts), frequency * np.cos(frequency * ts)], axis=1)
    a = -q * np.array([0.09, frequency**2])
    return Moving(ts, q, v), a


def test_rows_that_follow_a_motion_miss_nothing():
    """Sixty rows in a period, of a sine and of a pulse."""
    rows, a = oscillation(4000)
    assert not sparse(rows).any()
    assert missed_extrema(rows, a) is None


def test_missed_extrema_of_a_sine_are_counted():
    """A sine of 40 rad/s has 127 extrema in 10 s; a row in half a period shows about half."""
    rows, a = oscillation(130)
    found = missed_extrema(rows, a)
    assert found is not None
    assert found.coordinate == 1
    assert found.seen < 120
    # A mean over eight rows on either side is off by some tenth.
    assert found.expected == pytest.approx(127, rel=0.15)


def test_what_cannot_be_judged_is_not():
    rows, a = oscillation(130)
    assert missed_extrema(Moving(*(x[:1] for x in rows)), a[:1]) is None
    assert missed_extrema(rows, np.full_like(a, np.nan)) is None
    still = rows._replace(q=np.zeros_like(rows.q), v=np.zeros_like(rows.v))
    assert missed_extrema(still, np.zeros_like(a)) is None


@pytest.fixture(scope="module")
def run():
    """The arm that follows its target through the folded position once."""
    system = MODELS["two-link-reachable"].system()
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 6.0, 61))
    state, formulation = jaxdae.State(*system.start()), MODELS["two-link-reachable"].formulation()
    with pytest.warns(RuntimeWarning, match="passed 1 near-singular position"):
        return jaxdae.simulate(system, formulation, state, t1=6.0, saveat=saveat)


@pytest.mark.slow
def test_singular_positions_are_marked_where_they_are_passed(run):
    figure, rows = plot_histories(run), rows_of(run)
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
    # At the start, from rest: nothing is missed there that could be counted.
    said = "1 of 60 intervals between rows are too long for the motion; save more rows"
    assert figure.axes[0].get_title(loc="left") == said
    plain = plot_histories(run, singular=False)
    assert not any(x.get_linestyle() == "--" for ax in plain.axes for x in ax.get_lines())


@pytest.mark.slow
def test_too_few_rows_are_said_with_a_number():
    """A chain that swings for 5 s: its rows half a second apart are too few."""
    system = MODELS["chain"].system()
    state, formulation = jaxdae.State(*system.start()), MODELS["chain"].formulation()
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 5))
    few = jaxdae.simulate(system, formulation, state, t1=2.0, saveat=saveat)
    said = plot_histories(few, singular=False).axes[0].get_title(loc="left")
    assert "of 4 intervals between rows are too long for the motion" in said
    assert said.endswith("save more rows")


@pytest.mark.slow
def test_accelerations_are_those_of_the_motion(run):
    """Central differences of the velocities of close rows; 1e-6 is their error and round-off's."""
    system, h = run.system, 1e-4
    saveat = diffrax.SaveAt(ts=jnp.array([1.0 - h, 1.0, 1.0 + h]))
    state = jaxdae.State(*system.start())
    close = jaxdae.simulate(
        system, run.formulation, state, t1=1.1, saveat=saveat,
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
    )  # fmt: skip
    wanted = (close.v[2] - close.v[0]) / (2 * h)
    np.testing.assert_allclose(accelerations(close)[1], wanted, rtol=1e-5, atol=1e-5)
