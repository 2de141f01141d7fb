"""Adams-Bashforth: order from the start on, steps of any length, step limits, derivatives."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import MassOnCircle, UnitMass
from jaxdae.solvers import AdamsBashforth, Projected
from jaxdae.solvers.adams_bashforth import _weights
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.sampled import SampledEnds

END = diffrax.SaveAt(t1=True)
START = MassOnCircle().start()


def run(state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "saveat": END} | options
    return jaxdae.simulate(MassOnCircle(), jaxdae.Multipliers(), state, **settings)


def error(found):
    angle, speed = 2 * (1 - np.exp(-0.5)), np.exp(-0.5)
    direction = np.array([-np.sin(angle), np.cos(angle)])
    exact = [np.cos(angle), np.sin(angle)], speed * direction, [speed**2 / 2]
    each = zip((found.q[-1], found.v[-1], found.multipliers[-1]), exact, strict=True)
    return [np.abs(np.asarray(x) - y).max() for x, y in each]


@pytest.mark.parametrize("steps", [*range(1, 7)])
def test_weights_are_exact_for_polynomials_at_any_times(steps):
    ages, h = np.array([0.3, 0.4, 0.9, 1.0, 1.6])[: steps - 1], 0.7
    weights = np.asarray(_weights(jnp.asarray(ages), jnp.asarray(h)))
    times = -np.concatenate([[0.0], ages])
    for power in range(steps):
        # Weights of five, in differences of times of which some are a tenth.
        np.testing.assert_allclose(weights @ times**power, h**power / (power + 1), atol=1e-10)
    even = _weights(jnp.arange(1.0, steps), jnp.asarray(1.0))
    np.testing.assert_allclose(even, AdamsBashforth(steps).linear_steps, atol=1e-12)


@pytest.mark.parametrize(
    "steps", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)]
)
def test_positions_velocities_and_multipliers_have_its_order(steps):
    solver = AdamsBashforth(steps)
    # Until powers of the step that are next to the first count less; errors of 1e-12 at least.
    counts = (120, 160) if steps == 6 else (160, 320)
    coarse, fine = (error(run(dt=1 / count, solver=solver)) for count in counts)
    orders = np.log(np.divide(coarse, fine)) / np.log(counts[1] / counts[0])
    np.testing.assert_allclose(orders, steps, atol=0.15 if steps < 6 else 0.3)


@pytest.mark.slow
def test_steps_may_be_of_different_lengths():
    """Of a length that grows and falls, with one of no length; the order is kept."""
    errors = []
    for count in (400, 800):
        phase = np.linspace(0.0, 1.0, count + 1)
        ends = phase + 0.1 * np.sin(2 * np.pi * phase) / (2 * np.pi) * 5
        ends = np.sort(np.append(ends, ends[count // 2]))
        control = Grid(jnp.asarray(ends))
        errors.append(error(run(solver=AdamsBashforth(4), stepsize_controller=control)))
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 4.0, atol=0.15)


class Damped(UnitMass):
    """A violation that decays: a free mass held to a line, at a distance, by gains alone."""

    def position_constraints(self, t, q):
        return q[:1]


@pytest.mark.filterwarnings(
    "ignore:the steps? of", "ignore:the constraints cannot all be satisfied"
)
def test_runs_decay_below_the_step_limit_and_grow_above_it():
    solver, gains = AdamsBashforth(4), jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
    limit = jaxdae.step_limit(gains, solver, m=1).limit
    off = jaxdae.State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    sizes = {}
    for part in (0.97, 1.03):
        made = jaxdae.simulate(
            Damped(), jaxdae.Multipliers(gains), off, t1=400 * part * limit, dt=part * limit,
            solver=solver, start_tolerance=None, saveat=diffrax.SaveAt(steps=True),
        )  # fmt: skip
        violation = np.abs(made.violation.phi[:, 0])
        sizes[part] = violation[-20:].max() / violation[100:120].max()
    # Each of 280 steps multiplies by the largest root, at 3 % from the limit.
    assert sizes[0.97] < 0.1
    assert sizes[1.03] > 10.0


def test_gains_for_its_step_damp_a_violation():
    solver, dt = AdamsBashforth(3), 0.01
    gains = jaxdae.Baumgarte.for_step(solver, dt)
    off = jaxdae.State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    made = jaxdae.simulate(
        Damped(), jaxdae.Multipliers(gains), off, t1=60 * dt, dt=dt, solver=solver,
        start_tolerance=None, saveat=END,
    )  # fmt: skip
    factor = jaxdae.stability.step_gains(solver, dt).factor
    assert factor < 1
    assert abs(made.violation.phi[-1, 0]) < 60 * factor**55  # a double root, after the first steps


def test_a_step_beyond_the_limit_is_warned_of():
    with pytest.warns(RuntimeWarning, match="AdamsBashforth multiplies the mode of the root"):
        jaxdae.simulate(
            Damped(), jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0)),
            jaxdae.State(jnp.zeros(2), jnp.zeros(2)), t1=1.0, dt=0.1, solver=AdamsBashforth(4),
        )  # fmt: skip


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="AdamsBashforth has 1 to 6 steps; got 7"):
        AdamsBashforth(7)
    with pytest.raises(ValueError, match="give AdamsBashforth by itself"):
        Projected(AdamsBashforth(2))
    with pytest.raises(ValueError, match="A controller that is sampled changes the ends of steps"):
        SampledEnds(AdamsBashforth(2), 1)
    with pytest.raises(ValueError, match="AdamsBashforth has no error estimate"):
        run(solver=AdamsBashforth(2))
