"""Radau IIA on equations that are not mechanics: orders, estimates, diffrax by itself."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import Circle, Cubic, ImplicitRobertson, Pendulum, Robertson
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import DAETerm, RadauIIA
from jaxdae.systems import Variables

BY_ITSELF = DAETerm(), RadauIIA()


def end(dae, y, z, steps):
    """Variables after a time of 1 in equal steps, as the method gives them."""
    args = (dae, None, None)
    start = Variables(jnp.asarray(y), jnp.asarray(z)), None
    made = diffrax.diffeqsolve(*BY_ITSELF, 0.0, 1.0, 1 / steps, start, args=args)
    assert made.ys is not None
    return jax.tree.map(lambda x: np.asarray(x[-1]), made.ys[0])


def orders(dae, y, z, exact, counts):
    """Observed orders of `y` and `z` between two numbers of steps."""
    errors = []
    for count in counts:
        found = end(dae, y, z, count)
        errors.append([np.abs(a - b).max() for a, b in zip(found, exact, strict=True)])
    return np.log2(np.divide(*errors)) / np.log2(counts[1] / counts[0])


def test_at_index_one_both_kinds_of_variables_are_of_order_five():
    found = orders(Cubic(), 0.0, 1.0, (np.sin(1.0), np.exp(0.3)), (4, 8))
    np.testing.assert_allclose(found, 5.0, atol=0.1)


def test_at_index_two_stages_have_order_five_and_three():
    """As Hairer, Lubich and Roche have them: constraints fix y, and z one derivative less."""
    exact = np.array([np.sin(1.0), np.cos(1.0)]), np.exp(-1.0)
    found = orders(Circle(), [0.0, 1.0], 1.0, exact, (8, 16))
    np.testing.assert_allclose(found, [5.0, 3.0], atol=0.1)


@pytest.mark.slow
def test_solved_at_index_two_z_is_computed_anew_and_of_order_five():
    errors = []
    for dt in (1 / 8, 1 / 16):
        run = jaxdae.solve(Circle(), jnp.array([0.0, 1.0]), 1.0, t1=1.0, dt=dt)
        assert run.backend == "native"
        assert run.index == 2
        exact = np.array([np.sin(1.0), np.cos(1.0)]), np.exp(-1.0)
        errors.append([np.abs(a[-1] - b).max() for a, b in zip(run.saved, exact, strict=True)])
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 5.0, atol=0.15)


@pytest.mark.slow
def test_constraints_hold_in_every_row_between_steps_and_of_the_hidden_kind():
    ts = jnp.linspace(0.0, 1.0, 23)
    run = jaxdae.solve(Circle(), jnp.array([0.0, 1.0]), 1.0, t1=1.0, saveat=diffrax.SaveAt(ts=ts))
    assert run.violation_names == ["constraints", "d/dt constraints"]
    assert np.abs(run.violation.residual).max() < 1e-14  # round-off
    # The tolerance of 1e-8 in each step, and of dense output.
    np.testing.assert_allclose(run.y[:, 0], np.sin(ts), atol=1e-7)
    np.testing.assert_allclose(run.z, np.exp(-ts), atol=1e-6)


@pytest.mark.slow
def test_a_pendulum_of_index_two_moves_as_the_mechanism():
    """The same method on a mechanism, whose multipliers are the force in the rod over 2 |q|."""

    start = {"q": jnp.array([1.0, 0.0]), "v": jnp.array([0.0, 0.5])}
    found = jaxdae.solve(Pendulum(), *jaxdae.consistent_start(Pendulum(), start, 0.0), t1=2.0)
    other = jaxdae.simulate(
        CartesianPendulum(), jaxdae.Multipliers(), jaxdae.State(start["q"], start["v"]), t1=2.0,
        solver=RadauIIA(),
    )  # fmt: skip
    # Both to 1e-8 in each step, their errors grow with the time.
    np.testing.assert_allclose(found.y["q"], other.q, atol=3e-6)
    np.testing.assert_allclose(found.y["v"], other.v, atol=3e-6)
    np.testing.assert_allclose(found.z, other.multipliers[:, 0], atol=3e-5)


@pytest.mark.slow
def test_a_step_of_no_length_changes_nothing():
    for dae, y, z in (
        (Robertson(), {"a": 0.9, "b": 1e-5}, {"c": 0.2}),
        (ImplicitRobertson(), jnp.array([0.9, 1e-5, 0.2]), jnp.ones(3)),
    ):
        values = jax.tree.map(jnp.asarray, Variables(y, z)), None
        term, solver = BY_ITSELF
        args = (dae, None, None)
        state = solver.init(term, jnp.array(1.0), jnp.array(1.0), values, args)
        made = solver.step(term, jnp.array(1.0), jnp.array(1.0), values, args, state, False)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), made[0], values))


def test_the_estimate_of_z_at_index_two_counts_times_the_step():
    """The order in h of what the controller is given: z has one power less than y without it."""
    errors = []
    for h in (0.1, 0.05):
        term, solver = BY_ITSELF
        values = Variables(jnp.array([0.0, 1.0]), jnp.array(1.0)), None
        args, t0, t1 = (Circle(), None, None), jnp.array(0.0), jnp.array(h)
        state = solver.init(term, t0, t1, values, args)
        (_, error, *_) = solver.step(term, t0, t1, values, args, state, False)
        errors.append([float(jnp.abs(x).max()) for x in error[0]])
    ratio = np.log2(np.divide(*errors))
    np.testing.assert_allclose(ratio[1], 4.0, atol=0.2)
    assert ratio[0] > 3.8
