"""Digital controllers against the exact motion of an oscillator between samples, in NumPy.

The mass on a spring, `q'' + k q = u`, moves by a rotation about `u / k` while `u` is held. Samples
and outputs that take effect are put in order by hand, apart from the library's clocks.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import jaxdae
from helpers.spring import Spring
from jaxdae import Multipliers, Sampled, simulate, SimulationError, State

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
START = State(jnp.array([0.3]), jnp.zeros(1))
END = 2.0
# Tolerances of 1e-12 over two seconds.
ERROR = {"rtol": 0, "atol": 1e-10}
BACKENDS = pytest.mark.parametrize("backend", ["plain", "native"])
WITH_SLOW_PLAIN = pytest.mark.parametrize(
    "backend", [pytest.param("plain", marks=pytest.mark.slow), "native"]
)


def integrating(t, q, v, w, memory):
    """A PI law with damping by the velocity; the memory is the sum of the errors."""
    total = memory + 0.1 * (1.0 - q[0])
    return 3.0 * (1.0 - q) - 0.5 * v + 1.5 * total, total


def samples_of(period, start, end):
    if np.ndim(period):
        return [t for t in period if start - 1e-12 <= t <= end + 1e-12]
    first = np.ceil(start / period - 1e-9)
    return [k * period for k in np.arange(first, np.ceil(end / period) + 1) if k * period < end]


def exact(
    period, delay=0.0, start=0.0, end=END, q=0.3, stiffness=4.0, law=integrating, initial=0.0
):
    """Position, velocity, and the control input that is held, at the end."""
    times = samples_of(period, start, end)
    if delay == 0 and not np.ndim(period) and (not times or times[0] > start + 1e-12):
        times = [start, *times]
    # Outputs take effect before the sample of the same time is taken.
    due = sorted([(t, 1) for t in times] + [(t + delay, 0) for t in times if delay])
    x, t, u, memory, waiting = np.array([q, 0.0]), start, initial, 0.0, []
    frequency = stiffness**0.5

    def moved(x, duration):
        c, s = np.cos(frequency * duration), np.sin(frequency * duration)
        a, b = x[0] - u / stiffness, x[1] / frequency
        return np.array([u / stiffness + a * c + b * s, frequency * (b * c - a * s)])

    merged = []
    for when, kind in due:
        if merged and abs(when - merged[-1][0]) < 1e-12:
            merged[-1][1].append(kind)
        else:
            merged.append([when, [kind]])
    for when, kinds in merged:
        if when > end + 1e-12:
            break
        x, t = moved(x, when - t), when
        if 0 in kinds:
            u = waiting.pop(0)
        if 1 in kinds:
            output, memory = law(t, x[:1], x[1:], None, memory)
            if delay:
                waiting.append(float(output[0]))
            else:
                u = float(output[0])
    return np.array([*moved(x, end - t), u])


def moved(controller, backend: Any = "native", *, state=START, stiffness=4.0, **settings):
    default = {} if "dt" in settings else {"stepsize_controller": TIGHT}
    how: dict[str, Any] = {"t1": END} | default | settings
    return simulate(
        Spring(stiffness), Multipliers(), state, controller=controller, backend=backend, **how
    )


def ends(found):
    return np.concatenate([found.q[-1], found.v[-1], found.w[-1, :1]])


TIMES = np.array([0.0, 0.21, 0.3, 0.77, 0.8, 1.6])


CASES = [
    (0.13, 0.0, {"dt": 0.02}),
    (0.13, 0.0, {}),
    (0.13, 0.05, {}),
    (0.13, 0.13, {}),
    (0.13, 0.4, {"dt": 0.02}),
    (0.13, 0.4, {}),
    (0.1, 0.3, {}),
    (TIMES, 0.0, {}),
    (TIMES, 0.06, {}),
    (TIMES, 0.45, {"dt": 0.02}),
    (0.13, 0.0, {"t0": 0.2}),
    (0.13, 0.4, {"t0": 0.2}),
]
# The plain backend compiles each for seconds.
QUICK = 5


@pytest.mark.parametrize(
    ("backend", "period", "delay", "how"),
    [
        *(("native", *x) for x in CASES),
        *(
            pytest.param("plain", *x, marks=() if i == QUICK else pytest.mark.slow)
            for i, x in enumerate(CASES)
        ),
    ],
)
def test_it_is_the_exact_motion_between_samples(backend, period, delay, how):
    controller = Sampled(integrating, period, memory=jnp.zeros(()), delay=delay, initial=0.1)
    found = moved(controller, backend, **how)
    assert found.backend == backend
    wanted = exact(period, delay, how.get("t0", 0.0), initial=0.1 if delay else 0.0)
    np.testing.assert_allclose(ends(found), wanted, **ERROR)


@pytest.mark.slow
def test_implicit_methods_of_diffrax_take_a_memory():
    """They close over their arguments, those that are no arrays too."""
    controller = Sampled(integrating, 0.13, memory=jnp.zeros(()), delay=0.05, initial=0.1)
    found = moved(controller, "plain", solver=diffrax.Kvaerno5())
    np.testing.assert_allclose(ends(found), exact(0.13, 0.05, 0.0, initial=0.1), **ERROR)


@pytest.mark.slow
@BACKENDS
def test_members_with_periods_and_delays_of_their_own_beside_one_that_fails(backend):
    periods = jnp.array([0.13, 0.21, 0.4, 0.13])
    delays = jnp.array([0.05, 0.3, 0.4, 0.05])
    starts = jnp.array([0.3, -0.4, 0.1, 0.2])

    class Law(eqx.Module):
        """Not a number from its third sample on, for one member."""

        broken: jax.Array

        def __call__(self, t, q, v, w, memory):
            u, total = integrating(t, q, v, w, memory)
            return jnp.where((self.broken > 0) & (t > 0.2), jnp.nan, u), total

    def end(period, delay, q, broken):
        controller = Sampled(Law(broken), period, memory=jnp.zeros(()), delay=delay, pending=2)
        found = moved(
            controller, backend, state=State(jnp.reshape(q, 1), jnp.zeros(1)), throw=False,
            max_steps=500,
        )  # fmt: skip
        return jnp.concatenate([found.q[-1], found.v[-1]]), found.success

    broken = jnp.array([0.0, 0.0, 0.0, 1.0])
    values, success = jax.vmap(end)(periods, delays, starts, broken)
    for i in range(3):
        wanted = exact(float(periods[i]), float(delays[i]), q=float(starts[i]))[:2]
        np.testing.assert_allclose(values[i], wanted, **ERROR)
    assert success.tolist() == [True, True, True, False]
    assert not np.isfinite(values[3]).any()


@WITH_SLOW_PLAIN
def test_a_sampled_linear_plant_has_the_roots_of_its_exact_discretization(backend):
    """From one sample to the next, `exp(A T)` and its integral; with a delay of 1.4 periods."""
    K, period, delay, stiffness = np.array([[2.0, 0.7]]), 0.2, 0.28, 4.0

    def policy(t, q, v, w, memory):
        del t, w
        return -jnp.asarray(K) @ jnp.concatenate([q, v]), memory

    def after_a_period(x):
        q, v, late, last = x
        controller = Sampled(policy, period, delay=delay)
        # By the states that `attach` makes: outputs on their way at the start are given.
        state = State(jnp.reshape(q, 1), jnp.reshape(v, 1))
        system, joint, output = jaxdae.control.attach(Spring(stiffness), controller, state, 0.0)
        w = joint.w.at[0].set(late)
        # Newest first: that of now, which takes effect after the period; the last one, on its way.
        u = -jnp.asarray(K) @ jnp.stack([q, v])
        w = w.at[1:3].set(jnp.stack([u[0], last])).at[3:5].set(jnp.array([delay, delay - period]))
        found = simulate(
            system, Multipliers(), State(joint.q, joint.v, w), t1=period, controller=output,
            stepsize_controller=TIGHT, backend=backend, adjoint=diffrax.DirectAdjoint(),
            max_steps=60, saveat=diffrax.SaveAt(t1=True),
        )  # fmt: skip
        return jnp.stack([found.q[-1, 0], found.v[-1, 0], found.w[-1, 0], u[0]])

    found = jax.jacfwd(after_a_period)(jnp.array([0.1, 0.2, 0.3, 0.4]))
    A, B = np.array([[0.0, 1.0], [-stiffness, 0.0]]), np.array([[0.0], [1.0]])

    def held(duration):
        block = np.zeros((3, 3))
        block[:2] = np.hstack([A, B])
        return scipy.linalg.expm(block * duration)[:2]

    first, second = held(delay - period), held(period - (delay - period))
    Ad = second[:, :2] @ first[:, :2]
    wanted = np.zeros((4, 4))
    wanted[:2, :2] = Ad
    wanted[:2, 2] = second[:, :2] @ first[:, 2]
    wanted[:2, 3] = second[:, 2]
    wanted[2, 3] = 1.0
    wanted[3, :2] = -K
    roots = [np.sort_complex(np.linalg.eigvals(x)) for x in (found, wanted)]
    np.testing.assert_allclose(*roots, rtol=0, atol=1e-8)


@WITH_SLOW_PLAIN
def test_measurements_have_the_noise_that_was_drawn(backend):
    noise = 0.1 * jax.random.normal(jax.random.key(3), (20, 1))
    seen = []

    def measure(t, q, v, w, noise):
        del t, v, w
        return q + noise

    def law(t, y, memory):
        del t, memory
        return -2.0 * y, y

    controller = Sampled(law, 0.13, memory=jnp.zeros(1), measure=measure, noise=noise)
    found = moved(controller, backend)
    assert found.backend == backend

    def by_hand(t, q, v, w, memory):
        del t, v, w, memory
        y = q + np.asarray(noise[len(seen)])
        seen.append(y)
        return -2.0 * y, y

    wanted = exact(0.13, law=by_hand)
    np.testing.assert_allclose(ends(found), wanted, **ERROR)
    # 2 s have 16 samples; the memory is the last measurement.
    assert len(seen) == 16
    np.testing.assert_allclose(found.w[-1, -1], seen[-1][0], **ERROR)
    few = Sampled(law, 0.13, memory=jnp.zeros(1), measure=measure, noise=noise[:10])
    failed = moved(few, backend, throw=False)
    assert not failed.success


@pytest.mark.slow
def test_a_memory_is_any_tree_and_comes_back():
    def law(t, q, v, w, memory):
        del t, v, w
        kept = {"count": memory["count"] + 1, "on": q[0] > 0.0, "last": (q, memory["last"][0])}
        return jnp.where(kept["on"], -1.0, 1.0), kept

    first = {"count": jnp.array(0), "on": jnp.array(False), "last": (jnp.zeros(1), jnp.zeros(1))}
    found = moved(Sampled(law, 0.13, memory=first), "plain")
    # Output, number of samples, then the leaves in the order of their names.
    assert found.w.shape[-1] == 1 + 1 + 4
    assert found.w[-1, 1] == found.w[-1, 2] == 16
    np.testing.assert_array_equal(found.u, found.w[:, 0])
    native = moved(Sampled(law, 0.13, memory={**first, "count": 0.0}), "native")
    np.testing.assert_allclose(native.w[-1], found.w[-1], **ERROR)


def test_a_run_goes_on_where_it_ended():
    """Outputs that are on their way, too: attached once, and begun anew from the last row."""
    controller = Sampled(integrating, 0.13, memory=jnp.zeros(()), delay=0.4)
    system, joint, output = jaxdae.control.attach(Spring(4.0), controller, START)
    how: dict[str, Any] = {"controller": output, "stepsize_controller": TIGHT}
    first = simulate(system, Multipliers(), joint, t1=0.7, **how)
    between = State(first.q[-1], first.v[-1], first.w[-1])
    second = simulate(system, Multipliers(), between, t0=0.7, t1=END, **how)
    np.testing.assert_allclose(ends(second), exact(0.13, 0.4), **ERROR)


@pytest.mark.slow
@BACKENDS
def test_an_event_between_samples(backend):
    """The mass is pushed back where it passes 0.6; the samples stay where they were."""

    def turned(t, q, v, w):
        del t
        return q, -0.5 * v, w

    def gap(t, q, v, w):
        del t, v, w
        return 0.6 - q[0]

    wall = jaxdae.Event(gap, direction=-1, reset=turned, name="wall")
    controller = Sampled(integrating, 0.13, memory=jnp.zeros(()), delay=0.05)
    found = moved(controller, backend, events=[wall])
    assert len(found.events.times) > 0
    # By hand: exact motions up to where the distance is zero.
    times = samples_of(0.13, 0.0, END)
    due = sorted([(t, 1) for t in times] + [(t + 0.05, 0) for t in times])
    x, t, u, memory, waiting, hits = np.array([0.3, 0.0]), 0.0, 0.0, 0.0, [], []

    def at(x, s):
        c, z = np.cos(2 * s), np.sin(2 * s)
        a, b = x[0] - u / 4, x[1] / 2
        return np.array([u / 4 + a * c + b * z, 2 * (b * c - a * z)])

    for when, kind in [*due, (END, 2)]:
        if when > END:
            break
        while True:
            grid = np.linspace(0.0, when - t, 200)[1:]
            crossed = [s for s in grid if at(x, s)[0] > 0.6]
            if not crossed:
                break
            beyond = lambda s, x=x: at(x, s)[0] - 0.6  # noqa: E731
            s: Any = scipy.optimize.brentq(beyond, 1e-9, crossed[0], xtol=1e-15)
            x, t = at(x, s), t + s
            hits.append(t)
            x = np.array([0.6, -0.5 * x[1]])
        x, t = at(x, when - t), when
        if kind == 0:
            u = waiting.pop(0)
        elif kind == 1:
            output, memory = integrating(t, x[:1], x[1:], None, memory)
            waiting.append(float(output[0]))
    np.testing.assert_allclose(found.events.times[: len(hits)], hits, rtol=0, atol=1e-9)
    np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], x, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_derivatives_by_the_law_the_memory_and_the_noise():
    class Law(eqx.Module):
        gains: jax.Array

        def __call__(self, t, y, memory):
            del t
            total = memory + 0.1 * (1.0 - y[0])
            return self.gains[0] * (1.0 - y[0]) - self.gains[1] * y[1] + total, total

    def end(x, backend):
        gains, memory, noise = x

        def measure(t, q, v, w, e):
            del t, w
            return jnp.concatenate([q, v]) + e

        controller = Sampled(
            Law(gains), 0.13, memory=memory, delay=0.2, measure=measure, noise=noise
        )
        found = moved(
            controller, backend, dt=0.02, solver=jaxdae.solvers.RK4(),
            adjoint=diffrax.DirectAdjoint(),
        )  # fmt: skip
        return found.q[-1, 0] + found.v[-1, 0]

    at = (jnp.array([3.0, 0.5]), jnp.array(0.2), 0.01 * jnp.cos(jnp.arange(400.0)).reshape(200, 2))
    gradients = [jax.grad(end)(at, x) for x in ("plain", "native")]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *gradients)
    assert np.count_nonzero(gradients[1][2]) == 2 * 14  # those of the last two come too late
    for i in (0, 1, 2):
        along = jax.tree.map(jnp.zeros_like, at)
        along = tuple(jnp.ones_like(x) if j == i else x for j, x in enumerate(along))
        either = [
            end(jax.tree.map(lambda x, d, h=h: x + h * d, at, along), "native")
            for h in (1e-5, -1e-5)
        ]
        slope = sum(
            jnp.sum(x * d)
            for x, d in zip(jax.tree.leaves(gradients[1]), jax.tree.leaves(along), strict=True)
        )
        np.testing.assert_allclose(slope, (either[0] - either[1]) / 2e-5, rtol=1e-6)


@WITH_SLOW_PLAIN
def test_a_delay_that_turns_out_to_be_zero_is_none(backend):
    def end(delay):
        controller = Sampled(integrating, 0.13, memory=jnp.zeros(()), delay=delay)
        run = moved(controller, backend, throw=False)
        return jnp.concatenate([run.q[-1], run.v[-1], run.w[-1, :1]])

    found = jax.vmap(end)(jnp.array([0.0, 0.13]))
    np.testing.assert_allclose(found, [exact(0.13), exact(0.13, 0.13)], **ERROR)


def test_differing_laws_that_cannot_be_sampled_are_refused():
    def refused(error, message, make, **how):
        with pytest.raises(error, match=message):
            moved(make(), **how)

    def law(t, q, v, w, memory):
        del t, q, w
        return -v, memory

    refused(ValueError, "period of Sampled must be a positive", lambda: Sampled(law, -0.1))
    refused(ValueError, "period of Sampled must be a positive", lambda: Sampled(law, np.nan))
    refused(
        ValueError, "times of Sampled must be finite and increasing",
        lambda: Sampled(law, np.array([0.2, 0.1])),
    )  # fmt: skip
    for delay in (-0.1, np.nan):
        refused(
            ValueError, "delay of Sampled must be zero or a positive",
            lambda delay=delay: Sampled(law, 0.1, delay=delay),
        )  # fmt: skip
    refused(ValueError, "is as long as the run", lambda: Sampled(law, 0.1, delay=END))
    refused(ValueError, r"declared with the parameters \(t\)", lambda: Sampled(lambda t: t, 0.1))
    refused(ValueError, "give measure, too", lambda: Sampled(law, 0.1, noise=jnp.ones(3)))
    refused(
        TypeError, "(?s)memory of Sampled has .* no complex ones and no keys",
        lambda: Sampled(law, 0.1, memory=jax.random.key(0)),
    )  # fmt: skip

    def grows(t, q, v, w, memory):
        del t, w
        return -v, jnp.append(memory, q)

    def changes(t, q, v, w, memory):
        del t, w
        return -v, (memory, q)

    refused(
        ValueError, r"memory of shape \(1,\) and returned \(2,\)",
        lambda: Sampled(grows, 0.1, memory=jnp.zeros(1)),
    )  # fmt: skip
    refused(
        ValueError, "a memory keeps its structure",
        lambda: Sampled(changes, 0.1, memory=jnp.zeros(1)),
    )  # fmt: skip
    refused(
        ValueError, "would be rounded; begin with a floating-point number",
        lambda: Sampled(integrating, 0.1, memory=0),
    )  # fmt: skip
    # None may be on its way, though it takes a while.
    for pending in (0, -1, 1.5):
        refused(
            ValueError, "an integer, one at least where there is a delay",
            lambda pending=pending: Sampled(law, 0.1, delay=0.05, pending=pending),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    refused(ValueError, r"must return \(u, memory\)", lambda: Sampled(lambda *x: -x[2], 0.1))


def test_a_policy_that_closes_over_what_is_traced_is_refused():
    def end(gain):
        return moved(Sampled(lambda t, q, v, w, m: (-gain * q, m), 0.1), throw=False).q[-1, 0]

    for transformed in (jax.grad(end), jax.jit(end)):
        with pytest.raises(ValueError, match=r"controller closes over a value .* an eqx.Module"):
            transformed(1.0)


def test_samples_that_single_precision_does_not_tell_apart_are_refused():
    """Far from zero round-off of the time is as long as a period: each step would be a sample."""
    start = jax.tree.map(lambda x: x.astype(jnp.float32), START)

    def count(t, q, v, w, memory):
        return -q, memory + 1

    for controller in (
        Sampled(count, 1e-3, memory=0.0),
        Sampled(count, 100 + 1e-4 * np.arange(5), memory=0.0),
        jaxdae.Held(100 + 1e-4 * np.arange(5), np.ones((5, 1))),
    ):
        with pytest.raises(ValueError, match=r"too close to each other for times up to 100\.1 s"):
            moved(controller, state=start, t0=100.0, t1=100.1, dt=5e-4)
    near = moved(Sampled(count, 1e-3, memory=0.0), state=start, t0=10.0, t1=10.1, dt=5e-4)
    assert float(near.w[-1, -1]) == 101


def test_fixed_steps_inside_of_jit_find_times_of_samples_that_are_known():
    for period in (0.1, 0.1 * np.arange(5)):
        controller = Sampled(integrating, period, memory=0.0)

        def end(q, controller=controller):
            state = State(q, START.v)
            return moved(controller, state=state, t1=0.4, dt=0.05, throw=False).q[-1]

        # The same steps, but for round-off.
        np.testing.assert_allclose(jax.jit(end)(START.q), end(START.q), rtol=1e-13)


def test_a_law_that_is_no_number_is_an_error_before_the_run():
    with pytest.raises((ValueError, SimulationError), match="control"):
        moved(Sampled(lambda *x: (jnp.nan * x[2], x[4]), 0.1))


@pytest.mark.slow
def test_what_only_the_program_finds_out_fails_in_words():
    def end(period, **how):
        return moved(Sampled(integrating, period, memory=jnp.zeros(())), **how).q[-1, 0]

    values = jax.vmap(lambda x: end(x, throw=False))(jnp.array([0.1, -0.1, jnp.nan]))
    assert np.isfinite(values).tolist() == [True, False, False]
    with pytest.raises(RuntimeError, match="period of a controller that is sampled must be"):
        jax.jit(end)(-0.1).block_until_ready()
    # An output that would be lost on its way makes the run fail, not go on with another.
    late = jax.vmap(
        lambda delay: moved(
            Sampled(integrating, 0.13, memory=jnp.zeros(()), delay=delay), throw=False
        ).q[-1, 0]
    )(jnp.array([0.1, 0.3]))
    assert np.isfinite(late).tolist() == [True, False]


def test_the_plain_backend_asks_the_policy_at_its_samples_alone():
    """Not at the other ends of steps, of which there are ten for each sample."""
    asked = []

    def counted(t, q, v, w, memory):
        jax.debug.callback(lambda t: asked.append(float(t)), t)
        return integrating(t, q, v, w, memory)

    controller = Sampled(counted, 0.1, memory=jnp.zeros(()))
    run = simulate(
        Spring(4.0), Multipliers(), START, t1=0.4, dt=0.01, controller=controller, backend="plain"
    )
    jax.block_until_ready(run.q)
    jax.effects_barrier()
    np.testing.assert_allclose(sorted({*asked}), [0.0, 0.1, 0.2, 0.3, 0.4], atol=1e-12)
    assert len(asked) < 10
