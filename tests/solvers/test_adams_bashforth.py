"""Adams-Bashforth: order from the start on, steps of any length, step limits, derivatives."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import MassOnCircle
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.simulation.choices import make_solver
from jaxdae.solvers import AdamsBashforth, Projected
from jaxdae.solvers.adams_bashforth import _weights
from jaxdae.solvers.grid import Grid

END = diffrax.SaveAt(t1=True)
BACKENDS = ["plain", "native"]


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "steps", [2, 5, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 3, 4, 6))]
)
def test_positions_velocities_and_multipliers_have_its_order(steps, backend):
    errors, solver = [], AdamsBashforth(steps)
    # Until powers of the step that are next to the first count less; errors of 1e-12 at least.
    for count in (120, 160) if steps == 6 else (160, 320):
        found = run(dt=1 / count, solver=solver, backend=backend)
        assert found.backend == backend
        errors.append(error(found))
    orders = np.log(np.divide(*errors)) / np.log(160 / 120 if steps == 6 else 2.0)
    np.testing.assert_allclose(orders, steps, atol=0.15 if steps < 6 else 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_may_be_of_different_lengths(backend):
    """Of a length that grows and falls, with one of no length; the order is kept."""
    errors = []
    for count in (400, 800):
        phase = np.linspace(0.0, 1.0, count + 1)
        ends = phase + 0.1 * np.sin(2 * np.pi * phase) / (2 * np.pi) * 5
        ends = np.sort(np.append(ends, ends[count // 2]))
        control = Grid(jnp.asarray(ends))
        made = run(
            dt=None, solver=AdamsBashforth(4), stepsize_controller=control, backend=backend,
        )  # fmt: skip
        errors.append(error(made))
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 4.0, atol=0.15)


class Damped(jaxdae.System):
    """A violation that decays: a free mass held to a line, at a distance, by gains alone."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        del t
        return q[:1]


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.filterwarnings(
    "ignore:the steps? of", "ignore:the constraints cannot all be satisfied"
)
def test_runs_decay_below_the_step_limit_and_grow_above_it(steps):
    solver, gains = AdamsBashforth(steps), jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_in_time_single_precision_and_rows_between(backend):
    options: dict[str, Any] = {"dt": 0.01, "solver": AdamsBashforth(4), "backend": backend}
    there = run(**options)
    back = run(there.last_state, **options | {"t0": 1.0, "t1": 0.0, "dt": -0.01})
    np.testing.assert_allclose(back.q[-1], START.q, atol=1e-7)  # 0.01^4 times some
    single = run(jax.tree.map(lambda x: x.astype(jnp.float32), START), **options)
    assert single.q.dtype == jnp.float32
    np.testing.assert_allclose(single.q[-1], there.q[-1], atol=2e-5)
    times = jnp.linspace(0.0, 1.0, 37)
    rows = run(START, **options, saveat=diffrax.SaveAt(ts=times))
    angle = 2 * (1 - np.exp(-0.5 * np.asarray(times)))
    np.testing.assert_allclose(rows.q[:, 0], np.cos(angle), atol=1e-7)


def test_other_formulations_and_the_command_take_it():
    made = jaxdae.simulate(
        CartesianPendulum(), jaxdae.NullSpace(), jaxdae.State(*CartesianPendulum().start()),
        t1=0.2, dt=0.01, solver=make_solver("adams-bashforth"),
    )  # fmt: skip
    assert made.success


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="AdamsBashforth has 1 to 6 steps; got 7"):
        AdamsBashforth(7)
    with pytest.raises(ValueError, match="give AdamsBashforth by itself"):
        Projected(AdamsBashforth(2))
    with pytest.raises(ValueError, match="AdamsBashforth has no error estimate"):
        run(solver=AdamsBashforth(2))


class Relay(jaxdae.control.AbstractSampledController):
    """Nothing but a period."""

    period: float = 0.1

    def memory(self, t, state):
        del t, state
        return jnp.zeros(1)

    def sample(self, t, q, v, w, c):
        del t, q, v, w
        return c

    def output(self, t, q, v, w, c):
        del t, q, v, w
        return c


def test_a_controller_that_is_sampled_is_refused():
    with pytest.raises(ValueError, match="A controller that is sampled changes the ends of steps"):
        run(dt=0.01, solver=AdamsBashforth(2), controller=Relay())


@pytest.mark.slow
def test_the_gradient_of_a_batch_leaves_a_member_that_is_no_number_alone():
    def end(speed):
        state = eqx.tree_at(lambda x: x.v, START, speed * START.v)
        made = run(state, dt=0.1, solver=AdamsBashforth(4), throw=False, start_tolerance=None)
        return made.q[-1, 0]

    def finite(speeds):
        ends = jax.vmap(end)(speeds)
        return jnp.sum(jnp.where(jnp.isfinite(ends), ends, 0.0))

    found = jax.grad(finite)(jnp.array([1.0, jnp.nan, 1.3]))
    assert found[1] == 0
    np.testing.assert_allclose(found[2], jax.grad(end)(1.3), rtol=1e-12)
