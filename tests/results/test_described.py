"""Trajectories at the prompt: what is known of them, without a computation."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.stored_runs import released, stored
from jaxdae import Trajectory
from jaxdae.plotting import plot_histories
from jaxdae.results import derived_quantities
from jaxdae.storage.runs import About


@pytest.fixture(scope="module")
def alone():
    return released(1.0)


@pytest.fixture(scope="module")
def batch():
    release = lambda length: released(length, throw=False)  # noqa: E731
    return jax.vmap(release)(jnp.array([0.5, 1.5, jnp.nan])).varying("length")


@pytest.fixture
def no_computation(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("computed")

    for name in ("at_rows", "over_run", "final_state"):
        monkeypatch.setattr(derived_quantities, name, refuse)


@pytest.mark.usefixtures("no_computation")
def test_a_run_says_what_it_is_of_and_what_drifted(alone):
    """Drift and energy are those that its review has read."""
    lines = repr(alone).splitlines()
    assert lines[:4] == [
        "Trajectory(CartesianPendulum, Multipliers, native backend",
        "  coordinates  x [m], y [m]",
        "  constraints  rod",
        "  times        5 rows, t = 0 … 0.5 s, 4 steps",
    ]
    assert lines[6:] == ["  result       reached t = 0.5 s", ")"]


def test_what_drifted_is_the_largest_of_the_rows(alone):
    violation = max(np.abs(x).max() for x in (alone.violation.phi, alone.violation.phi_dot))
    change = np.abs(np.asarray(alone.energy - alone.energy[0])).max()
    for run in (alone, alone.stored()):
        assert f"  residuals    |phi|, |d(phi)/dt| at most {violation:.3g}\n" in repr(run)
        assert f"  energy       changes by at most {change:.3g} J\n" in repr(run)


@pytest.mark.usefixtures("no_computation")
def test_a_batch_says_how_many_failed(batch):
    assert repr(batch) == (
        "Trajectory(CartesianPendulum, Multipliers, native backend\n"
        "  batch        length (3)\n"
        "  coordinates  x [m], y [m]\n"
        "  constraints  rod\n"
        "  times        5 rows, until t = 0.5 s, 4 steps\n"
        "  result       1 of 3 failed: member 2 after t = 0 s\n)"
    )
    assert "result       all reached the end" in repr(batch[:2])
    assert repr(dataclasses.replace(batch, varied=None)).splitlines()[1].endswith("3 members")
    failed = repr(batch[2]).splitlines()
    assert failed[3] == "  times        none of 5 rows reached"
    assert failed[4].startswith("  result       FAILED after t = 0 s: Nonfinite")


def test_failed_members_are_named():
    run = stored((3, 3), failed=[(0, 1), (2, 0)])
    run.known["final_time"][2, 0] = 0.25
    assert repr(run).splitlines()[-2] == (
        "  result       2 of 9 failed: members [0, 1], [2, 0], the first after t = 0.25 s"
    )
    with pytest.raises(ValueError, match=r"trajectory\[0, 0\], or draw all of it with plot_batch"):
        plot_histories(run)
    many = stored((9,), failed=range(7))
    assert "7 of 9 failed: members 0, 1, 2, 3, 4, …, the first after t = 0.5 s" in repr(many)


def test_a_traced_run_has_shapes():
    text = "traced: 5 rows of x [m], y [m])"
    assert repr(eqx.filter_eval_shape(released, 1.0)).endswith(text)
    said = []

    def inside(length):
        said.append(repr(released(length)))
        return length

    jax.eval_shape(inside, 1.0)
    assert said[0].endswith(text)


def test_trees_of_other_leaves_are_printed_as_trees(alone):
    arrays, _ = eqx.partition(alone, lambda _: False)
    for tree in (arrays, jax.tree.map(lambda _: "leaf", alone)):
        assert repr(tree).startswith("Trajectory(\n")


def test_a_stored_run_knows_what_is_in_its_arrays():
    run = stored((2, 3), failed=[(1, 1)])
    assert repr(run) == (
        "Trajectory(Made up\n"
        "  batch        2 × 3 members\n"
        "  coordinates  r [m], angle [rad]\n"
        "  constraints  rod, rolling\n"
        "  times        5 rows, until t = 2 s, 4 steps\n"
        "  result       1 of 6 failed: member [1, 1] after t = 0.5 s\n)"
    )
    failed = repr(run[1, 1])
    assert "  times        2 of 5 rows, t = 0 … 0.5 s, 4 steps\n" in failed
    assert "  result       FAILED after t = 0.5 s: nonfinite\n" in failed


def test_without_names_it_says_how_many():
    run = stored()
    arrays = {name: run.known[name] for name in ("ts", "q", "v", "w", "final_time", "result")}
    assert repr(Trajectory.from_arrays(arrays, About())) == (
        "Trajectory(unknown model\n"
        "  coordinates  2\n"
        "  times        5 rows, t = 0 … 2 s\n"
        "  result       reached t = 2 s\n)"
    )
    assert "0 members" in repr(stored((0,)))
    assert "1 member\n" in repr(stored((1,)))
