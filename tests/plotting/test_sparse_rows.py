"""Histories of runs with too few rows, and marks of near-singular positions."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.figures import legend
from jaxdae.models import MODELS
from jaxdae.plotting import plot_histories
from jaxdae.plotting.readout import at, moving


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
    figure, rows = plot_histories(run), moving(run)
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
