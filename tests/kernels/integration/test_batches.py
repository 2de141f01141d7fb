"""Batches of native integrations: of every size, over any arguments, with members that fail."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.oscillator import (
    ADAPTIVE,
    AT_STEPS,
    AT_TIMES,
    FIXED,
    Oscillator,
    PID,
    QUICK,
    run,
    SAME_STEPS,
    SaveAt,
    START,
    TIMES,
)
from helpers.systems import Blowup
from jaxdae import State
from jaxdae.solvers import RK4
from jaxdae.solvers.grid import Grid

RISE = State([0.0], [1.0], jnp.zeros(0))


def batch_of(count, seed=1):
    noise = jax.random.normal(jax.random.key(seed), (count, 2))
    return START.q + 0.1 * noise, 2.0 + jnp.abs(noise[:, 0])


@eqx.filter_jit
def lanes(settings, q, stiffness, in_axes: Any = 0, backend="native"):
    """Everything numeric of runs from many starts, of many systems."""

    def one(q, stiffness):
        start = State(q, START.v, START.w)
        found = run(backend, system=Oscillator(stiffness), start=start, **settings)
        return found.ts, found.q, found.final_state.v, found.stats["num_steps"], found.success

    return jax.vmap(one, in_axes)(q, stiffness)


SETTINGS = [FIXED, ADAPTIVE | {"saveat": SaveAt(ts=TIMES)}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "counts"),
    [(SETTINGS[0], (1, 9, 1000)), (SETTINGS[1], (2, 17, 1000))],
    ids=["fixed", "adaptive"],
)
def test_batches_of_every_size(settings, counts):
    """Whole and broken blocks of lanes; lanes of adaptive steps change places."""
    q, stiffness = batch_of(1000)
    expected = lanes(settings, q, stiffness, backend="plain")
    for count in counts:
        found = lanes(settings, q[-count:], stiffness[-count:])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b[-count:] if b.ndim else b, **AT_TIMES)


@pytest.mark.slow
def test_nested_batches_over_different_arguments():
    """Rank 2, the start along one axis only and the stiffness along the other, or along both."""
    (q, stiffness), settings = batch_of(6), SETTINGS[1]
    grid = jax.vmap(lambda s: lanes(settings, q[:3], s, (0, None)))(stiffness[:2])
    square = jax.vmap(lambda s: lanes(settings, q[:3], s))(stiffness.reshape(2, 3))
    for i in range(2):
        row = lanes(settings, q[:3], jnp.repeat(stiffness[i], 3))
        other = lanes(settings, q[:3], stiffness[3 * i : 3 * i + 3])
        for a, b, c, d in zip(grid, row, square, other, strict=True):
            # Compiled for another rank, sums may be fused differently.
            np.testing.assert_allclose(a[i], b, **AT_TIMES)
            np.testing.assert_allclose(c[i], d, **AT_TIMES)


class Suspended(jaxdae.System):
    """A damped pendulum whose inertia and weight are products of its parameters."""

    mass: Any
    length: Any

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * self.length**2 * v @ v

    def potential_energy(self, t, q):
        return -9.81 * self.mass * self.length * jnp.cos(q[0])

    def dissipation(self, t, q, v):
        return 0.1 * jnp.sqrt(self.mass * self.length) * v @ v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "some_axes"),
    [(SETTINGS[0], [(0, None)]), (SETTINGS[1], [(None, None), (0, 0)])],
    ids=["fixed", "adaptive"],
)
def test_what_parameters_decide_belongs_to_each_member(settings, some_axes):
    """Lanes take members of other masses and lengths, and of other numbers of steps."""
    count = 41
    values = np.linspace(0.5, 2.0, count), np.linspace(0.15, 1.5, count)[::-1].copy()
    angles = jnp.linspace(0.1, 2.5, count)

    def ends(backend, in_axes):
        def one(angle, mass, length):
            system, start = Suspended(mass, length), State([angle], [0.3])
            found = run(backend, system=system, start=start, **settings)
            return found.final_state.q[0], found.stats["num_steps"]

        return jax.jit(jax.vmap(one, (0, *in_axes)))

    plain = ends("plain", (0, 0))
    for in_axes in some_axes:
        pairs = [(a, x) for a, x in zip(in_axes, values, strict=True)]
        given = [x if a == 0 else x[7] for a, x in pairs]
        full = [x if a == 0 else np.full(count, x[7]) for a, x in pairs]
        found = ends("native", in_axes)(angles, *given)
        for one, other in zip(found, plain(angles, *full), strict=True):
            np.testing.assert_allclose(one, other, **AT_STEPS)


def ends(backend, t0, t1, ts=None, **settings):
    saveat = SaveAt(t1=True, ts=ts, t0=True)
    found = run(backend, t0=t0, t1=t1, saveat=saveat, **ADAPTIVE, **settings)
    return found.ts, found.q, found.final_time, found.stats["num_steps"], found.success


@pytest.mark.slow
def test_batches_of_times_with_lanes_of_very_different_lengths():
    """Forward, backward, and of no length, in one kernel; the direction is known in it alone."""
    t1 = jnp.array([0.5, 4.0, -1.0, 0.0, 1e-3, 2.0, -2.0, 0.5, 0.0, 3.0, 0.1])
    ts = t1[:, None] * jnp.array([0.0, 0.3, 0.3, 1.0])
    alone = jax.jit(lambda *x: ends("plain", 0.0, *x))
    found = jax.jit(jax.vmap(lambda *x: ends("native", 0.0, *x)))(t1, ts)
    for i in range(t1.size):
        for a, b in zip(found, alone(t1[i], ts[i]), strict=True):
            np.testing.assert_allclose(a[i], b, **AT_TIMES)
    assert found[3][1] > 5 * found[3][0] > 5 * found[3][3]


# Ends of four, three and one steps; the last ones have no length.
OWN_STEPS = jnp.array([[0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.4, 0.8, 1.2, 1.2], [0.0] + 4 * [0.3]])


def on_own_steps(saveat):
    """Runs of members with steps of their own: states and times, on both backends and alone."""

    def of(backend, stiffness, grid):
        t1 = grid[-1]
        more: dict[str, Any] = {"solver": RK4(), "stepsize_controller": Grid(grid), "t1": t1}
        found = run(backend, system=Oscillator(stiffness), saveat=saveat(t1), **more)
        # Rows behind the end are repeated in kernels and left out of plain runs.
        steps = jnp.diff(jnp.where(jnp.isfinite(found.ts), found.ts, t1), append=t1)
        kept = jnp.where(steps[:, None] > 0, found.q, 0.0)
        assert found.backend == backend
        return jnp.sum(jnp.sin(kept)) + jnp.sum(found.final_state.q), found.success

    return of


@pytest.mark.slow
@QUICK
def test_members_of_a_batch_may_have_steps_of_their_own():
    """A kernel makes the steps of each member, and derivatives in both modes."""
    of, h = on_own_steps(lambda t1: SaveAt(ts=t1 * jnp.linspace(0, 1, 8), t0=True)), 1e-5
    stiffness = jnp.concatenate([x + jnp.array([2.0, 3.0, 4.0]) for x in (0.0, h, -h)])
    grids = jnp.concatenate(3 * [OWN_STEPS])

    def values(backend):
        return jax.jit(jax.vmap(lambda *x: of(backend, *x)))(stiffness, grids)

    def slopes(derivative):
        one = derivative(lambda k, grid: of("native", k, grid)[0])
        return jax.jit(jax.vmap(one))(stiffness[:3], OWN_STEPS)

    (found, success), (plain, _) = values("native"), values("plain")
    assert success.all()
    np.testing.assert_allclose(found, plain, **SAME_STEPS)
    by_forward, by_reverse = slopes(jax.jacfwd), slopes(jax.grad)
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-10)
    # Central differences: truncation h^2 = 1e-10, round-off 1e-16 / 1e-5, relative to about 0.1.
    np.testing.assert_allclose((found[3:6] - found[6:]) / (2 * h), by_forward, atol=1e-9, rtol=1e-7)


def failing(backend, growth, **settings):
    found = run(backend, system=Blowup(growth), start=RISE, **settings)
    return (
        found.ts, found.q, found.final_time, found.final_state.v, found.success,
        found.result._value, found.stats["num_accepted_steps"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"dt": 1 / 64, "solver": RK4()},
        {"saveat": SaveAt(ts=TIMES, t1=True), **ADAPTIVE, "max_steps": 16},
        {
            "saveat": SaveAt(ts=TIMES, t1=True, t0=True),
            "solver": diffrax.Tsit5(),
            "stepsize_controller": PID(1e-5, 1e-7, dtmin=1e-2, force_dtmin=False),
        },
    ],
    ids=["NaN", "max_steps", "dt_min"],
)
def test_failing_lanes_tell_so_and_leave_the_others_alone(settings):
    growth = jnp.array([0.1, 0.2, 2.0, 0.3, jnp.nan, 4.0, 0.1, 0.2, 0.3, 50.0, 0.4])
    found = jax.jit(jax.vmap(lambda x: failing("native", x, **settings)))(growth)
    expected = jax.jit(jax.vmap(lambda x: failing("plain", x, **settings)))(growth)
    good = np.asarray(growth) < 1
    np.testing.assert_array_equal(found[4], good)
    np.testing.assert_array_equal(found[5], expected[5])
    for a, b in zip(found[:4], expected[:4], strict=True):
        # Before infinity numbers, and their round-off, grow without bounds.
        np.testing.assert_allclose(a, b, rtol=1e-6)
        np.testing.assert_allclose(a[good], b[good], **AT_TIMES)
    assert np.isinf(found[0][~good]).any(axis=1).all()
    # The exact solution, to the error of the methods: v = 1 / (1 - growth t).
    np.testing.assert_allclose(found[3][good, 0], 1 / (1 - growth[good]), rtol=1e-4)


@pytest.mark.slow
@QUICK
def test_failures_raise_the_same_errors_as_with_diffrax():
    settings = {**ADAPTIVE, "max_steps": 16, "throw": True, "system": Blowup(), "start": RISE}
    with pytest.raises(jaxdae.SimulationError, match=r"(?s)run stopped at t = .*maximum number"):
        run("native", **settings)
    with pytest.raises(Exception, match="maximum number of solver steps"):
        jax.block_until_ready(jax.jit(lambda: run("native", **settings).q)())
    settings |= {"dt": 1 / 64, "stepsize_controller": None, "max_steps": 200}
    with pytest.raises(jaxdae.SimulationError, match=r"state is no longer finite after t = 0\.5"):
        run("native", **settings)
