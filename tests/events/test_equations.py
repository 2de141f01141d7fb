"""Events in runs of differential-algebraic equations: times, resets, derivatives, failures."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import Pendulum
from jaxdae import Event

END = diffrax.SaveAt(t1=True)


class Charge(jaxdae.DAE):
    """A capacitor at a source of one volt through a resistor: index 1."""

    speed: Any = 1.0

    def rate(self, t, y, z, u):
        return {"voltage": z["current"]}

    def constraints(self, t, y, z, u):
        return {"resistor": z["current"] - self.speed * (1 - y["voltage"])}


def discharged(t, y, z):
    """The gap behind the spark: a fifth of the voltage is left; the current is not yet right."""
    return {"voltage": jnp.asarray(0.2)}, z


# At four fifths of a volt a gap sparks over.
SPARK = Event(lambda t, y, z: 0.8 - y["voltage"], reset=discharged, name="spark")


def charged(speed: Any = 1.0, events: Any = SPARK, **options):
    settings: dict[str, Any] = {"t1": 4.0, "backend": "native", "saveat": END} | options
    start = {"voltage": 0.0}, {"current": 1.0 * speed}
    return jaxdae.solve(Charge(speed), *start, events=events, **settings)


def exact(t, speed: Any = 1.0):
    """Voltage and number of sparks: from rest to the first, then between a fifth and four."""
    first, period = np.log(5) / speed, np.log(4) / speed
    since = np.maximum(t - first, 0.0) % period
    voltage = np.where(t < first, 1 - np.exp(-speed * t), 1 - 0.8 * np.exp(-speed * since))
    return voltage, np.where(t < first, 0, 1 + np.floor((t - first) / period)).astype(int)


@pytest.mark.parametrize("backend", ["native", pytest.param("plain", marks=pytest.mark.slow)])
def test_sparks_come_at_exact_times_and_the_current_is_consistent_behind_them(backend):
    ts = jnp.linspace(0.0, 5.0, 41)
    run = charged(backend=backend, t1=5.0, saveat=diffrax.SaveAt(ts=ts))
    assert run.backend == backend
    assert len(run.events) == 3
    times = np.log(5) + np.log(4) * np.arange(3)
    # The tolerance of 1e-8 of each step.
    np.testing.assert_allclose(run.events.times[:3], times, atol=1e-7)
    np.testing.assert_allclose(run.events.before.y["voltage"][:3], 0.8, atol=1e-13)
    np.testing.assert_allclose(run.events.before.z["current"][:3], 0.2, atol=1e-13)
    np.testing.assert_allclose(run.events.after.z["current"][:3], 0.8, atol=1e-13)
    np.testing.assert_allclose(run.y["voltage"], exact(np.asarray(ts))[0], atol=1e-7)
    np.testing.assert_allclose(run.z["current"], 1 - run.y["voltage"], atol=1e-13)
    assert np.abs(run.violation.residual).max() < 1e-13


@pytest.mark.slow
def test_an_event_without_a_reset_ends_the_run_told_from_an_algebraic_variable():
    """`exp(-k t)` is a quarter of the current at the start at `log(4) / k`."""
    small = Event(lambda t, y, z: z["current"] - 0.25, name="small")
    run = charged(events=small)
    assert bool(run.success)
    assert len(run.events) == 1
    np.testing.assert_allclose(run.final_time, np.log(4), atol=1e-8)
    np.testing.assert_allclose(run.final.z["current"], 0.25, atol=1e-13)
    np.testing.assert_allclose(run.y["voltage"], [0.75], atol=1e-13)


@pytest.mark.slow
def test_only_what_may_be_wrong_is_warned_of(recwarn):
    """Of a run that ends early nothing; two events at once are pointed out."""
    half = Event(lambda t, y, z: y["voltage"] - 0.5, direction=1, name="half")
    run = charged(events=half, dt=0.1, saveat=None)
    assert not recwarn.list
    assert np.isinf(run.ts[-1])
    same = lambda t, y, z: (y, z)  # noqa: E731
    twice = Event(
        lambda t, y, z: 2 * y["voltage"] - 1, direction=1, reset=same, name="twice"
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="'half' and 'twice' happened at the same time"):
        charged(events=[Event(half.function, direction=1, reset=same, name="half"), twice])


@pytest.mark.slow
def test_directions_count_where_functions_rise_or_fall():
    """A function that rises is none that falls; backward in time it falls."""

    def level(direction):
        return Event(lambda t, y, z: y["voltage"] - 0.5, direction=direction, name="level")

    assert len(charged(events=level(-1)).events) == 0
    found = charged(events=level(1))
    np.testing.assert_allclose(found.final_time, np.log(2), atol=1e-8)
    y, z = charged(events=()).final
    back = jaxdae.solve(Charge(), y, z, t0=4.0, t1=0.0, events=level(-1), saveat=END)
    np.testing.assert_allclose(back.final_time, np.log(2), atol=1e-6)  # errors grow by 50


@pytest.mark.slow
def test_derivatives_know_that_times_of_events_move():
    """Of the voltage, `1 - 0.8 exp(-k (4 - t_2))`, and the time of the second spark."""

    def made(speed, adjoint=None):
        run = charged(speed, adjoint=adjoint, dt=0.1, max_events=4)
        return jnp.stack([run.y["voltage"][0], run.events.times[1]])

    reverse = jax.jacrev(made)(1.0)
    forward = jax.jvp(lambda x: made(x, diffrax.ForwardMode()), (1.0,), (1.0,))[1]
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)
    h = 1e-4
    np.testing.assert_allclose(reverse, (made(1 + h) - made(1 - h)) / (2 * h), rtol=1e-6)
    # Steps of a tenth to order five.
    left = 0.8 * np.exp(-4 + np.log(20))
    np.testing.assert_allclose(reverse, [4 * left, -np.log(20)], rtol=1e-6)


@pytest.mark.slow
def test_members_of_a_batch_have_events_of_their_own():
    """Different numbers of them, one without, one that is no number; and the gradient."""
    speeds = jnp.array([0.3, 1.0, 2.0, jnp.nan])

    def total(speeds):
        runs = jax.vmap(lambda k: charged(k, throw=False, max_events=8))(speeds)
        return jnp.sum(jnp.where(runs.success, runs.y["voltage"][:, 0], 0.0)), runs

    (_, runs), gradient = jax.value_and_grad(total, has_aux=True)(speeds)
    assert runs.success.tolist() == [True, True, True, False]
    voltages, counts = exact(np.full(3, 4.0), np.asarray(speeds[:3]))
    assert runs.events.count.tolist() == [*counts, 0]
    np.testing.assert_allclose(runs.y["voltage"][:3, 0], voltages, atol=1e-6)
    np.testing.assert_allclose(gradient[:3], 4 * (1 - voltages), rtol=1e-5)
    assert gradient[3] == 0


class Back(eqx.Module):
    """A reset that turns velocities, times a factor."""

    e: jax.Array = eqx.field(converter=jnp.asarray)

    def __call__(self, t, y, z):
        return {"q": y["q"], "v": -self.e * y["v"]}, 0 * z


def at_wall(t, y, z):
    return y["q"][0]


def bounced(e=1.0, **options):
    """A pendulum at a wall below its hinge, which throws it back."""
    wall = Event(at_wall, reset=Back(e), name="wall")
    start = jaxdae.consistent_start(
        Pendulum(), {"q": jnp.array([0.6, -0.8]), "v": jnp.zeros(2)}, 1.0
    )
    return jaxdae.solve(Pendulum(), *start, events=wall, **options)


@pytest.mark.slow
def test_at_index_two_a_pendulum_at_a_wall_is_the_free_one_mirrored():
    """Its force in the rod too, which jumps nowhere as the speed keeps its size."""
    settings: dict[str, Any] = {"t1": 3.0, "dt": 0.01}
    run = bounced(**settings)
    start = jax.tree.map(lambda x: x[0], run.saved)
    free = jaxdae.solve(Pendulum(), *start, **settings)
    assert len(run.events) == 3
    # Steps end at the wall, others do not: two times the error of order five.
    np.testing.assert_allclose(run.y["q"][:, 0], jnp.abs(free.y["q"][:, 0]), atol=1e-8)
    np.testing.assert_allclose(run.y["q"][:, 1], free.y["q"][:, 1], atol=1e-8)
    np.testing.assert_allclose(run.z, free.z, rtol=1e-7)
    assert np.abs(run.violation.residual).max() < 1e-12
    lost = bounced(e=0.5, **settings)
    after, before = (lost.events.after, lost.events.before)
    count = len(lost.events)
    energy = lambda x: 0.5 * jnp.sum(x.y["v"][:count] ** 2, axis=1)  # noqa: E731
    np.testing.assert_allclose(energy(after), 0.25 * energy(before), rtol=1e-12)


class Implicit(jaxdae.DAE):
    """The capacitor again, by a residual."""

    def residual(self, t, y, y_dot, u):
        voltage, current = y
        return jnp.stack([y_dot[0] - current, current + voltage - 1])


@pytest.mark.slow
def test_events_of_a_residual_are_told_from_variables_and_rates():
    def back(t, y, y_dot):
        return jnp.array([0.2, 0.8]), y_dot

    event = Event(lambda t, y, y_dot: y_dot[0] - 0.2, reset=back, name="slow")
    start = jaxdae.consistent_start(Implicit(), jnp.array([0.0, 1.0]))
    run = jaxdae.solve(Implicit(), *start, t1=4.0, events=event, saveat=END)
    np.testing.assert_allclose(
        run.events.times[:2], np.log(5) + np.log(4) * np.arange(2), atol=1e-7
    )
    np.testing.assert_allclose(run.events.after.z[:2], [[0.8, -0.8]] * 2, atol=1e-12)
    np.testing.assert_allclose(run.y[0, 0], exact(np.array(4.0))[0], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(SPARK.function, reset=lambda t, y, z: ({"voltage": jnp.nan * t}, z)),
         "is not finite there.*no consistent variables"),
        (SPARK, "more than max_events = 2 events happened, the last, 'spark', 1.39 s after"),
    ],
)  # fmt: skip
def test_resets_that_lead_nowhere_fail_in_words(event, words):
    with pytest.raises(jaxdae.SimulationError, match=words):
        charged(events=event, max_events=2, t1=6.0)


@pytest.mark.slow
def test_a_reset_off_the_constraints_of_index_two_is_refused_with_the_distance():
    off = Event(
        lambda t, y, z: y["q"][0], name="wall",
        reset=lambda t, y, z: ({"q": y["q"], "v": y["v"] + 0.3}, z),
    )  # fmt: skip
    start = jaxdae.consistent_start(
        Pendulum(), {"q": jnp.array([0.6, -0.8]), "v": jnp.zeros(2)}, 1.0
    )
    with pytest.raises(
        jaxdae.SimulationError, match=r"off the constraints: consistent ones are 0\.\d+ away"
    ):
        jaxdae.solve(Pendulum(), *start, t1=1.0, dt=0.05, events=off, backend="plain")


@pytest.mark.parametrize(
    ("events", "error", "words"),
    [
        (Event(lambda t, q, v, w: q[0]), ValueError, r"it must take \(t, y, z\)"),
        (Event(lambda t, y, z: y), ValueError, "must return one real number"),
        (Event(SPARK.function, reset=lambda t, y, z: y), ValueError,
         r"must return \(y, z\) of shapes"),
        (3, TypeError, "'int' object is not iterable|give jaxdae.Event"),
    ],
)  # fmt: skip
def test_events_that_do_not_fit_are_refused_in_words(events, error, words):
    with pytest.raises(error, match=words):
        charged(events=events)


@pytest.mark.slow
def test_with_throw_inside_of_jit_the_reason_is_raised_when_the_program_runs():
    with pytest.raises(Exception, match="more events than max_events"):
        jax.jit(lambda k: charged(k, max_events=1).y)(1.0)
