"""Runs with impacts, against the parabola of a bouncing ball and laws of restitution."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipk

import jaxdae
from helpers.bouncing import BALL, Ball, bounced, GRAVITY, impacts, parabolas
from helpers.exported import Pendulum
from jaxdae.models.four_bar import FourBar
from jaxdae.solvers import HalfExplicit, Rattle, RK4
from jaxdae.systems import constraint_residuals, generalized_energy

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("native", {}),
        pytest.param("plain", {}, marks=pytest.mark.slow),
        pytest.param("native", {"dt": 0.07, "solver": RK4()}, marks=pytest.mark.slow),
        pytest.param("native", {"dt": 2.9}, marks=pytest.mark.slow),
    ],
)
def test_a_ball_bounces_at_the_times_of_its_parabolas(backend, how):
    """Adaptive steps, fixed ones, and one that is longer than all flights.

    Of a parabola both methods are exact but for round-off.
    """
    run = bounced(backend=backend, **how)
    times, speeds = impacts(1.0, 0.8, 6)
    events = run.events
    assert run.backend == backend
    assert len(events) == 6
    assert events.names == ("impact",)
    np.testing.assert_allclose(events.times[:6], times, rtol=0, atol=1e-12)
    np.testing.assert_allclose(events.before.v[:6, 0], -speeds, rtol=0, atol=1e-11)
    np.testing.assert_allclose(events.after.v[:6, 0], 0.8 * speeds, rtol=0, atol=1e-11)
    np.testing.assert_allclose(events.before.q[:6, 0], 0.0, rtol=0, atol=1e-13)
    np.testing.assert_allclose(run.q[:, 0], parabolas(run.ts, 1.0, 0.8), rtol=0, atol=1e-11)
    # Places without an event.
    assert jnp.isinf(events.times[6:]).all()
    assert (events.indices[6:] == -1).all()
    assert jnp.isnan(events.after.q[6:]).all()
    assert "impact × 6" in repr(run)


@pytest.mark.slow
def test_a_ball_bounces_backward_in_time():
    """Upward forward in time, downward backward: the same parabola, and the same impacts."""
    state = jaxdae.State(jnp.array([1.0]), jnp.zeros(1))
    run = jaxdae.simulate(
        BALL, jaxdae.Multipliers(), state, t1=-2.0, max_events=5,
        events=[jaxdae.impact(BALL, BALL.gap, 0.8)],
    )  # fmt: skip
    times, _ = impacts(1.0, 0.8, 4)
    np.testing.assert_allclose(abs(run.events.times[:4]), [*times[:3], np.inf], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_single_precision():
    state = jaxdae.State(jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32))
    run = jaxdae.simulate(
        BALL, jaxdae.Multipliers(), state, t1=2.0, max_events=5,
        events=[jaxdae.impact(BALL, BALL.gap, 0.8)],
    )  # fmt: skip
    assert run.events.times.dtype == np.float32
    # Steps of a tolerance of 1e-5, on a parabola.
    np.testing.assert_allclose(run.events.times[:3], impacts(1.0, 0.8, 3)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "saveat",
    [
        diffrax.SaveAt(t1=True),
        diffrax.SaveAt(t0=True, t1=True, ts=jnp.array([0.3, 1.0])),
        diffrax.SaveAt(ts=jnp.array([0.0, 0.3, 1.0, 3.0])),
    ],
)
def test_rows_are_those_that_are_asked_for(saveat):
    run = bounced(saveat=saveat)
    sub = saveat.subs
    wanted = [0.0] * sub.t0 + ([] if sub.ts is None else sub.ts.tolist()) + [3.0] * sub.t1
    assert run.ts.tolist() == wanted
    np.testing.assert_allclose(run.q[:, 0], parabolas(run.ts, 1.0, 0.8), rtol=0, atol=1e-11)


def test_fixed_steps_are_saved_at_their_own_ends():
    run = bounced(dt=0.3, saveat=diffrax.SaveAt(t0=True, steps=2))
    np.testing.assert_allclose(run.ts, np.arange(0, 3.1, 0.6), rtol=0, atol=1e-14)
    np.testing.assert_allclose(run.q[:, 0], parabolas(run.ts, 1.0, 0.8), rtol=0, atol=1e-11)


def test_a_row_at_an_impact_has_the_state_behind_it():
    """Dropped such that the impact is at a time that is a sum of powers of two."""
    run = bounced(GRAVITY / 8, t1=1.0, saveat=diffrax.SaveAt(ts=jnp.array([0.25, 0.5, 0.75])))
    assert abs(run.events.times[0] - 0.5) < 1e-14
    behind = run.ts >= run.events.times[0]
    assert ((run.v[:, 0] > 0) == behind).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formulation", "solver"),
    [
        (jaxdae.Multipliers(), jaxdae.Projected(diffrax.Dopri8())),
        (jaxdae.Hamiltonian(jaxdae.Baumgarte(K_D=20.0, K_P=100.0)), None),
    ],
)
def test_the_energy_of_a_pendulum_falls_by_the_square_of_restitution(formulation, solver):
    """A wall below the pivot, in Cartesian coordinates with a constraint, fifty times.

    All energy over the lowest point is kinetic at the wall. Steps of a tolerance of 1e-12.
    """
    restitution, count = 0.97, 50
    system = Pendulum()
    wall = jaxdae.impact(system, lambda t, q: q[0], restitution, name="wall")
    angle = 0.9
    state = jaxdae.State(jnp.array([np.sin(angle), -np.cos(angle)]), jnp.zeros(2))
    run = jaxdae.simulate(
        system, formulation, state, t1=52.0, events=[wall], max_events=60, solver=solver,
        stepsize_controller=TIGHT,
    )  # fmt: skip
    assert len(run.events) >= count
    energy = jax.vmap(lambda t, s: generalized_energy(system, t, s.q, s.v))
    weight = system.mass * 9.81
    start = weight * (1 - np.cos(angle))
    after = energy(run.events.times[:count], jax.tree.map(lambda x: x[:count], run.events.after))
    expected = start * restitution ** (2 * np.arange(1, count + 1))
    np.testing.assert_allclose(after + weight, expected, rtol=0, atol=1e-8)
    residual = jax.vmap(lambda t, s: constraint_residuals(system, t, s.q, s.v))
    off = residual(run.events.times[:count], jax.tree.map(lambda x: x[:count], run.events.after))
    assert abs(off.phi).max() < 1e-8
    assert abs(off.phi_dot).max() < 1e-8


@pytest.mark.slow
def test_a_four_bar_bounces_off_the_ground():
    """With one degree of freedom Newton's law and the loops leave `v+ = -e v-` alone.

    Kinetic energy at the floor falls by the square of restitution, fifty times. Energy is kept in
    between, by steps of a tolerance of 1e-12 that end on the constraints.
    """
    system, restitution = FourBar(), 0.99
    gap = lambda t, q: system.tracer(q)[1] - 0.2  # noqa: E731
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), jaxdae.State(*system.start()), t1=16.0, backend="native",
        events=[jaxdae.impact(system, gap, restitution, name="floor")], max_events=60,
        stepsize_controller=TIGHT, solver=jaxdae.Projected(diffrax.Dopri8()),
    )  # fmt: skip
    events, count = run.events, len(run.events)
    assert count >= 50
    before, after = (jax.tree.map(lambda x: x[:count], s) for s in (events.before, events.after))
    np.testing.assert_allclose(after.v, -restitution * before.v, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(after.q, before.q)
    np.testing.assert_allclose(jax.vmap(gap)(events.times[:count], after.q), 0, rtol=0, atol=1e-13)
    energy = jax.vmap(lambda t, s: generalized_energy(system, t, s.q, s.v))
    start = energy(jnp.zeros(1), jax.tree.map(lambda x: x[None], jaxdae.State(*system.start())))
    lows, highs = (energy(events.times[:count], x) for x in (before, after))
    np.testing.assert_allclose(lows, jnp.concatenate([start, highs[:-1]]), rtol=0, atol=1e-11)
    at_rest = energy(events.times[:count], jaxdae.State(after.q, 0 * after.v, after.w))
    law = (start - at_rest) * restitution ** (2 * np.arange(1, count + 1))
    np.testing.assert_allclose(highs - at_rest, law, rtol=0, atol=1e-11)
    assert float(run.energy_error) < 1e-8
    assert float(jax.vmap(gap)(run.ts, run.q).min()) > -1e-9


@pytest.mark.slow
def test_4096_members_have_as_many_impacts_as_their_parabolas():
    """From one to ten; times to round-off, and a member without a start beside them."""
    heights = jnp.linspace(0.3, 3.0, 4096).at[1000].set(jnp.nan)

    def run(height):
        found = bounced(height, max_events=20, t1=2.0, throw=False, saveat=diffrax.SaveAt(t1=True))
        return found.events.times, found.success

    times, success = jax.vmap(run)(heights)
    # A flight of a ball lasts twice its speed by gravity.
    first = np.sqrt(2 * np.asarray(heights) / GRAVITY)
    powers = np.concatenate([[0.0], np.cumsum(0.8 ** np.arange(1, 20))])
    expected = first[:, None] * (1 + 2 * powers)
    expected = np.where(expected < 2.0, expected, np.inf)
    counts = np.isfinite(expected).sum(axis=1)
    assert counts.min() == 0  # of the one without a start
    assert counts.max() == 10
    np.testing.assert_array_equal(success, np.isfinite(first))
    np.testing.assert_allclose(times, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_works_go_on_behind_an_impact():
    """A ball in a wind: its work and the energy, but for what impacts take."""
    state = jaxdae.State(jnp.array([1.0]), jnp.zeros(1))
    run = jaxdae.simulate(
        Windy(), jaxdae.Multipliers(), state, t1=2.0, max_events=5, work=True,
        events=[jaxdae.impact(BALL, BALL.gap, 0.8)],
    )  # fmt: skip
    taken = sum(
        np.where(np.asarray(run.ts) >= t, 0.5 * (b @ b - a @ a), 0.0)
        for t, a, b in zip(
            run.events.times[:3], run.events.before.v[:3], run.events.after.v[:3], strict=True
        )
        if np.isfinite(t)
    )
    change = run.energy - run.energy[0] - taken
    # Of the tolerance of the steps, 1e-8.
    np.testing.assert_allclose(run.work.force, change, rtol=0, atol=1e-6)
    assert float(run.energy_error) < 1e-6


class Windy(Ball):
    """A force that changes with time."""

    def force(self, t, q, v, w, u):
        return 2.0 * jnp.cos(3 * t) * jnp.ones_like(v)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [HalfExplicit(), Rattle()])
def test_methods_that_enforce_constraints_have_impacts(solver):
    """A pendulum against a wall, by its period and the law of energy; steps of 5 ms."""
    system, angle = Pendulum(), 0.5
    state = jaxdae.State(jnp.array([np.sin(angle), -np.cos(angle)]), jnp.zeros(2))
    wall = jaxdae.impact(system, lambda t, q: q[0], 0.9, name="wall")
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), state, t1=2.0, dt=0.005, solver=solver, events=[wall],
        max_events=4,
    )  # fmt: skip
    quarter = ellipk(np.sin(angle / 2) ** 2) / np.sqrt(9.81)
    low = 2 * np.arcsin(0.9 * np.sin(angle / 2))
    half = 2 * ellipk(np.sin(low / 2) ** 2) / np.sqrt(9.81)
    tolerance = 1e-9 if isinstance(solver, HalfExplicit) else 1e-4
    np.testing.assert_allclose(run.events.times[:2], [quarter, quarter + half], atol=tolerance)
    residual = jax.vmap(lambda t, s: constraint_residuals(system, t, s.q, s.v))(run.ts, run.states)
    assert abs(residual.phi).max() < 1e-12
    assert abs(residual.phi_dot).max() < 1e-11
