"""Constraints that are released and caught again, against exact motions."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae import SimulationError
from jaxdae.formulations import SparseSolve
from jaxdae.solvers import Projected, Rattle
from jaxdae.systems import constraint_residuals, Labels

TIGHT = diffrax.PIDController(rtol=1e-11, atol=1e-11)
GRAVITY = 9.81
GAINS = jaxdae.Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
LAW = jaxdae.Multipliers(GAINS)


def moved(system, state, *, t1, formulation=LAW, run=None, **switched):
    """A run with tight tolerances."""
    made = jaxdae.switching(system, formulation, state, **switched)
    # As many places for all: runs of a system share its program.
    settings = {"max_events": 80, "stepsize_controller": TIGHT} | (run or {})
    return jaxdae.simulate(
        made.system, made.formulation, made.state, t1=t1, events=made.events, **settings
    )


# A mass on a rope.


class Rope(jaxdae.System):
    """A mass of 1 kg on a rope, which pulls where it is tight."""

    length: jax.Array = eqx.field(converter=jnp.asarray)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return GRAVITY * q[1]

    def position_constraints(self, t, q):
        return jnp.array([self.length - jnp.sqrt(q @ q)])

    def labels(self):
        return Labels(("x", "y"), ("m", "m"), ("rope",), ("m",))


def swung(length, speed, *, t1, **how):
    """From the lowest point on."""
    state = jaxdae.State(
        jnp.stack([jnp.zeros(()), -jnp.asarray(length, float)]),
        jnp.stack([jnp.asarray(speed, float), jnp.zeros(())]),
    )
    return moved(Rope(length), state, t1=t1, unilateral="rope", run=how)


def thrown(length, speed):
    """Place and velocity where the rope goes slack, and how long the throw lasts [s].

    At the angle `theta` from hanging the rope pulls with `v^2 / L + g cos theta`, and the speed is
    `v^2 = v0^2 - 2 g L (1 - cos theta)`: it is zero at `cos theta = (2 - v0^2 / (g L)) / 3`. On the
    parabola `|r|^2 - L^2 = tau^3 (g^2 tau / 4 - g v_y)`: three roots where it is left, as there the
    second derivative is zero, too, and `tau = 4 v_y / g`.
    """
    cosine = (2 - speed**2 / (GRAVITY * length)) / 3
    sine = np.sqrt(1 - cosine**2)
    place = length * np.array([sine, -cosine])
    velocity = np.sqrt(-GRAVITY * length * cosine) * np.array([cosine, sine])
    return place, velocity, 4 * velocity[1] / GRAVITY


def test_a_rope_goes_slack_and_is_caught_at_exact_times_and_places():
    """To the errors of the steps, 1e-9; behind the catch only the speed along the circle is left.

    Energy is kept in between, and changes at the catch by that of the radial speed.
    """
    run = swung(1.0, 6.0, t1=3.0)
    place, velocity, throw = thrown(1.0, 6.0)
    assert run.backend == "native"
    assert len(run.events) == 2
    assert run.events.names == ("rope",)
    slack, caught = np.asarray(run.events.times[:2])
    before, after = (
        jax.tree.map(lambda x: np.asarray(x[:2]), x) for x in (run.events.before, run.events.after)
    )
    np.testing.assert_allclose(before.q[0, :2], place, rtol=0, atol=1e-9)
    np.testing.assert_allclose(after.v[0], velocity, rtol=0, atol=1e-8)
    np.testing.assert_allclose(caught - slack, throw, rtol=0, atol=1e-9)
    there = place + throw * velocity - [0, GRAVITY / 2 * throw**2]
    np.testing.assert_allclose(after.q[1, :2], there, rtol=0, atol=1e-8)
    falling = velocity - [0, GRAVITY * throw]
    np.testing.assert_allclose(after.v[1], falling - (falling @ there) * there, rtol=0, atol=1e-8)
    assert after.q[:, 2].tolist() == [0.0, 1.0]
    # Energy, from the start to the catch, and from there.
    energy, ts = np.asarray(run.energy), np.asarray(run.ts)
    np.testing.assert_allclose(energy[ts < caught], 18.0 - GRAVITY, rtol=0, atol=1e-8)
    lost = (falling @ there) ** 2 / 2
    np.testing.assert_allclose(energy[ts > caught], 18.0 - GRAVITY - lost, rtol=0, atol=1e-7)
    # The rope never pushes, and lets the mass nowhere beyond its length.
    modes, pull = np.asarray(run.q[:, 2]), -np.asarray(run.multipliers[:, 0])
    assert (pull[modes == 1] > 0).all()
    assert (pull[modes == 0] == 0).all()
    np.testing.assert_array_equal(modes == 0, (ts > slack) & (ts < caught))
    assert (np.linalg.norm(run.q[:, :2], axis=1) < 1 + 1e-9).all()
    # Violation counts what holds.
    assert (np.abs(run.violation.phi) < 1e-9).all()
    assert run.labels.coordinates == ("x", "y", "rope holds")


@pytest.mark.slow
def test_members_of_a_batch_switch_each_by_itself():
    """64 speeds: some swing, some are thrown once or twice, some go round."""

    def end(speed):
        run = swung(1.0, speed, t1=2.5, throw=False, saveat=diffrax.SaveAt(t1=True), max_events=12)
        return run.final_state.q, run.final_state.v, run.events.times, run.events.count

    speeds = jnp.linspace(3.0, 8.0, 64)
    together = jax.jit(jax.vmap(end))(speeds)
    one = jax.jit(end)
    each = [one(x) for x in speeds]
    apart = jax.tree.map(lambda *x: np.stack(x), *each)
    assert {0, 2} <= {*apart[3].tolist()}
    assert len({*apart[3].tolist()}) >= 3
    np.testing.assert_array_equal(together[3], apart[3])
    # Round-off of sums in another order, and what a motion of 2.5 s makes of it.
    for found, expected in zip(together[:3], apart[:3], strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


# A bead that a force presses to a wall, or off it.


class Bead(jaxdae.System):
    """A bead of 1 kg at `q >= 0`, with a force that changes in time."""

    force_at_start: float = 0.0
    slope: float = 0.0
    curvature: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        force = self.force_at_start + self.slope * t + self.curvature * t**2
        return force * jnp.ones_like(v)

    def position_constraints(self, t, q):
        return q


@pytest.mark.parametrize(
    ("force", "slope", "x", "v", "holds"),
    [
        (-1.0, 0.0, 0.0, 0.0, 1),
        (1.0, 0.0, 0.0, 0.0, 0),
        (0.0, -1.0, 0.0, 0.0, 1),
        (0.0, 1.0, 0.0, 0.0, 0),
        (0.0, 0.0, 0.0, 0.0, 0),
        (-1.0, 0.0, 0.0, 1.0, 0),
        (-1.0, 0.0, 0.5, 0.0, 0),
    ],
    ids=["pressed", "pulled", "begins to press", "begins to pull", "neither", "leaves", "apart"],
)
def test_a_start_is_held_or_free_as_forces_have_it(force, slope, x, v, holds):
    state = jaxdae.State(jnp.array([x]), jnp.array([v]))
    made = jaxdae.switching(Bead(force, slope), LAW, state, unilateral=0)
    assert made.state.q.tolist() == [x, holds]
    assert made.state.v.tolist() == [v]


@pytest.mark.slow
def test_a_bead_is_lifted_off():
    """A force `t - 1` lifts it off at 1 s, from where it is at `(t - 1)^3 / 6`."""
    state = jaxdae.State(jnp.zeros(1), jnp.zeros(1))
    run = moved(Bead(-1.0, 1.0), state, t1=3.0, unilateral=0)
    assert len(run.events) == 1
    np.testing.assert_allclose(run.events.times[0], 1.0, rtol=0, atol=1e-12)
    since = np.maximum(np.asarray(run.ts) - 1.0, 0.0)
    np.testing.assert_allclose(run.q[:, 0], since**3 / 6, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        -run.multipliers[:, 0], np.maximum(1.0 - np.asarray(run.ts), 0.0), rtol=0, atol=1e-10
    )


@pytest.mark.slow
def test_a_bead_at_the_boundary_of_both_leaves_and_comes_back():
    """From `t` on it is at `t^3 / 6 - t^4 / 24` under `t - t^2 / 2`: back at 4 s, to stay."""
    state = jaxdae.State(jnp.zeros(1), jnp.zeros(1))
    run = moved(Bead(0.0, 1.0, -0.5), state, t1=5.0, unilateral=0)
    assert run.q[0].tolist() == [0.0, 0.0]
    assert len(run.events) == 1
    np.testing.assert_allclose(run.events.times[0], 4.0, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.final_state.q, [0.0, 1.0], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_single_precision_and_projected_steps_give_the_same():
    """A bead leaves at 1 s and is back at 5 s."""
    steps = diffrax.PIDController(rtol=1e-5, atol=1e-6)
    single = {"solver": diffrax.Dopri5(), "stepsize_controller": steps}
    for dtype, how, tolerance in (
        (jnp.float32, single, 1e-3),
        (jnp.float64, {"solver": Projected(diffrax.Dopri5())}, 1e-8),
    ):
        state = jaxdae.State(jnp.zeros(1, dtype), jnp.zeros(1, dtype))
        run = moved(Bead(-3.0, 4.0, -1.0), state, t1=6.0, unilateral=0, run=how)
        assert run.q.dtype == dtype
        assert len(run.events) == 2
        np.testing.assert_allclose(run.events.times[:2], [1.0, 5.0], rtol=0, atol=tolerance)
        np.testing.assert_allclose(run.final_state.q, [0.0, 1.0], rtol=0, atol=tolerance)


def flight(force):
    """When a bead leaves and is back, and with which velocity, under `f + s t + c t^2`.

    From where the force is zero, with the slope `d`, it is at `d tau^3 / 6 + c tau^4 / 12`.
    """
    f, s, c = force
    leaves = (-s + jnp.sqrt(s**2 - 4 * f * c)) / (2 * c)
    d = s + 2 * c * leaves
    lasts = -2 * d / c
    return jnp.stack([leaves, leaves + lasts, d * lasts**2 / 2 + c * lasts**3 / 3])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_behind_both_switches_are_the_exact_ones(mode):
    """By the numbers of the force; the steps have no error there."""

    def found(force):
        state = jaxdae.State(jnp.zeros(1), jnp.zeros(1))
        how = {"throw": False, "max_events": 3, "saveat": diffrax.SaveAt(t1=True)}
        run = moved(Bead(*force), state, t1=6.0, unilateral=0, run=how)
        return jnp.append(run.events.times[:2], run.events.before.v[1]), run.final_state.q

    force = jnp.array([-3.0, 4.0, -1.0])
    slopes, q = jax.jit(mode(found, has_aux=True))(force)
    np.testing.assert_allclose(q, [0.0, 1.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(slopes, jax.jacfwd(flight)(force), rtol=0, atol=1e-8)


def test_starts_that_overlap_or_close_are_refused():
    made = lambda x, v: jaxdae.switching(  # noqa: E731
        Bead(-1.0), LAW, jaxdae.State(jnp.array([x]), jnp.array([v])), unilateral=0
    )
    with pytest.raises(ValueError, match=r"gap 'f1' is -0\.1 at the start .* is not negative"):
        made(-0.1, 0.0)
    with pytest.raises(ValueError, match=r"is zero at the start .* and closes, its rate is -2"):
        made(0.0, -2.0)
    # Where numbers are not known.
    traced = jax.jit(lambda x, v: made(x, v).state.q)
    assert np.isnan(traced(-0.1, 0.0)).all()
    assert np.isnan(traced(0.0, -2.0)).all()
    assert traced(0.0, 0.0).tolist() == [0.0, 1.0]


@pytest.mark.slow
def test_a_bouncing_ball_comes_to_rest_at_the_time_of_the_sum():
    """`e = 0.25`: falls of `sqrt(2 h / g)` and flights that are `e` times shorter each.

    It is at rest where it would leave with less than about 1e-6 m/s: flights of as many seconds.
    """
    state = jaxdae.State(jnp.array([0.5]), jnp.zeros(1))
    run = moved(Bead(-1.0), state, t1=3.0, unilateral=0, restitution=0.25)
    assert run.success
    np.testing.assert_allclose(
        run.events.times[len(run.events) - 1], 1 + 2 * 0.25 / 0.75, rtol=0, atol=2e-6
    )
    np.testing.assert_allclose(run.final_state.q, [0.0, 1.0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.multipliers[-1], [-1.0], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_chattering_is_told_in_words():
    state = jaxdae.State(jnp.array([0.5]), jnp.zeros(1))
    with pytest.raises(SimulationError, match=r"accumulate at about that time .*restitution=0"):
        moved(Bead(-1.0), state, t1=50.0, unilateral=0, restitution=0.8, run={"max_events": 45})


@pytest.mark.slow
def test_a_gap_that_another_reset_makes_negative_ends_the_run_in_words():
    state = jaxdae.State(jnp.array([2.0]), jnp.zeros(1))
    made = jaxdae.switching(Bead(), LAW, state, unilateral=0)
    jump = jaxdae.Event(
        lambda t, q, v, w: t - 1.0,
        direction=1,
        reset=lambda t, q, v, w: (q.at[0].set(-0.2), v, w),
        name="jump",
    )
    with pytest.raises(SimulationError, match=r"'f1' is -0\.2 .* jaxdae\.switching"):
        jaxdae.simulate(
            made.system, made.formulation, made.state, t1=2.0, events=[*made.events, jump]
        )


@pytest.mark.slow
def test_a_run_backward_in_time_ends_at_an_impact_as_a_failure():
    state = jaxdae.State(jnp.array([0.5]), jnp.ones(1))
    with pytest.raises(SimulationError, match=r"stopped at t = 0\.5 s.* 'f1'"):
        moved(Bead(), state, t1=0.0, t0=1.0, unilateral=0, run={"t0": 1.0})


# Rows that close together.


class Bar(jaxdae.System):
    """A bar of 1 kg over two supports at `±1`: height `y` and slope `s`, with its inertia."""

    inertia: float = 0.5

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + self.inertia * v[1] ** 2)

    def potential_energy(self, t, q):
        return q[0]

    def position_constraints(self, t, q):
        return jnp.array([q[0] - q[1], q[0] + q[1]])

    def labels(self):
        return Labels(("y", "s"), ("m", "rad"), ("left", "right"), ("m", "m"))


@pytest.mark.slow
def test_rows_that_close_in_one_instant_are_caught_together():
    """A bar falls flat: at rest from then on, half the weight on each support."""
    state = jaxdae.State(jnp.array([0.5, 0.0]), jnp.zeros(2))
    run = moved(Bar(), state, t1=2.0, unilateral=("left", "right"))
    assert len(run.events) == 1
    np.testing.assert_allclose(run.events.times[0], 1.0, rtol=0, atol=1e-10)
    assert run.events.after.q[0, 2:].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(run.events.after.v[0], 0.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.multipliers[-1], [-0.5, -0.5], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("inertia", "holds"), [(0.5, 1.0), (2.0, 0.0)])
def test_an_impulse_that_would_pull_releases(inertia, holds):
    """A bar turns about its left support, until the right one is hit.

    An impulse of one there changes the speed of the left end by `1 - 1 / inertia`. Where that is
    negative both stay; else the left end is lifted off. Where only the right end holds the speed of
    the bar is that of `[[1, 1], [1, 1 / inertia]]`.
    """
    state = jaxdae.State(jnp.array([0.1, 0.1]), jnp.array([-0.2, -0.2]))
    run = moved(Bar(inertia), state, t1=0.5, unilateral=("left", "right"))
    hit = run.events.after
    assert run.events.counts["right"] >= 1
    v = np.asarray(run.events.before.v[0])
    assert hit.q[0, 2:].tolist() == [holds, 1.0]
    if holds:
        expected = np.zeros(2)
    else:
        impulse = -(v[0] + v[1]) / (1 + 1 / inertia)
        expected = v + impulse * np.array([1.0, 1 / inertia])
        assert expected[0] - expected[1] > 0
    np.testing.assert_allclose(hit.v[0], expected, rtol=0, atol=1e-12)
    energy = lambda v: v[0] ** 2 + inertia * v[1] ** 2  # noqa: E731
    assert energy(hit.v[0]) < energy(v)


@pytest.mark.slow
@pytest.mark.parametrize("restitution", [0.0, 0.3])
def test_a_bar_rocks_to_rest(restitution):
    """Impacts of one end lift the other, each time less: in the end both hold.

    Nowhere is there a gap or a reaction below zero, or energy from nothing.
    """
    state = jaxdae.State(jnp.array([0.1, 0.1]), jnp.array([-0.2, -0.2]))
    run = moved(Bar(2.0), state, t1=4.0, unilateral=("left", "right"), restitution=restitution)
    assert len(run.events) > 10
    y, s = np.asarray(run.q[:, :2]).T
    assert (y - np.abs(s) > -1e-9).all()
    assert (np.asarray(run.multipliers) < 1e-9).all()
    # To the errors of the steps.
    assert (np.diff(run.energy) < 1e-9).all()
    np.testing.assert_allclose(run.final_state.q, [0.0, 0.0, 1.0, 1.0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.multipliers[-1], [-0.5, -0.5], rtol=0, atol=1e-9)


# Rows that events of the user's switch.


class Wagons(jaxdae.System):
    """Two wagons of 1 and 3 kg on a track, coupled where they meet."""

    pull: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + 3 * v[1] ** 2)

    def force(self, t, q, v, w, u):
        return jnp.array([self.pull, 0.0]) + (0.0 if u is None else u) * jnp.ones_like(v)

    def position_constraints(self, t, q):
        return q[1:] - q[:1]

    def labels(self):
        return Labels(constraints=("coupling",))


def meet(t, q, v, w):
    return q[1] - q[0]


def late(t, q, v, w):
    return t - 2.0


COUPLED: dict[str, Any] = {
    "hold": {"coupling": jaxdae.Event(meet, name="meet")},
    "release": {"coupling": jaxdae.Event(late, direction=1, name="part")},
}


class Dropped(jaxdae.System):
    """A body on a quaternion and angular velocities, with a corner above the ground.

    Args:
        corner: in axes of the body, from its centre of mass.
    """

    corner: tuple[float, ...] = (0.3, 0.1, -0.5)

    def rate(self, t, q, v):
        e, u, w = q[3], q[4:], v[3:]
        return jnp.concatenate([v[:3], -(u @ w)[None] / 2, (e * w + jnp.cross(u, w)) / 2])

    def kinetic_energy(self, t, q, v):
        return 0.75 * v[:3] @ v[:3] + 0.5 * jnp.array(INERTIA) @ v[3:] ** 2

    def potential_energy(self, t, q):
        return 1.5 * 9.81 * q[2]

    def position_constraints(self, t, q):
        e, u, x = q[3], q[4:], jnp.array(self.corner)
        return (q[:3] + x + 2 * jnp.cross(u, jnp.cross(u, x) + e * x))[2:]


INERTIA = (0.1, 0.2, 0.25)


@pytest.mark.slow
def test_a_corner_of_a_tumbling_body_hits_the_ground():
    """Newton's law for a body by hand, in axes of space, where velocities are no rates."""
    tilt = np.array([np.cos(0.3), np.sin(0.3), 0.0, 0.0])
    v = np.array([0.3, 0.0, -2.5, 0.4, -0.3, 2.0])
    made = jaxdae.switching(
        Dropped(), LAW, jaxdae.State([0.0, 0.0, 1.0, *tilt], v), unilateral=0, restitution=0.5
    )
    turn = Rotation.from_quat(np.roll(tilt, -1))
    arm, turned, up = turn.apply(Dropped().corner), turn.as_matrix(), np.array([0.0, 0.0, 1.0])
    q = jnp.array([0.0, 0.0, -arm[2], *tilt, 0.0])
    reset: Any = made.events[0].reset
    _, after, _ = eqx.filter_jit(reset)(jnp.array(0.2), q, jnp.array(v), jnp.zeros(0))
    mobility = turned @ np.diag(1 / np.array(INERTIA)) @ turned.T
    give = 1 / 1.5 + up @ np.cross(mobility @ np.cross(arm, up), arm)
    rate = v[2] + np.cross(turn.apply(v[3:]), arm)[2]
    push = -1.5 * rate / give * up
    np.testing.assert_allclose(after[:3], v[:3] + push / 1.5, atol=1e-12)
    spun = turn.inv().apply(mobility @ np.cross(arm, push))
    np.testing.assert_allclose(after[3:], v[3:] + spun, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "plain"])
def test_a_coupling_closes_where_wagons_meet_and_opens_at_a_time(backend):
    """Momentum is kept where they meet: 3 m/s and none become 0.75 m/s.

    A force of -2 N brakes one of them by 2 m/s^2, and both by 0.5 m/s^2.
    """
    state = jaxdae.State(jnp.array([0.0, 4.0]), jnp.array([5.0, 0.0]))
    run = moved(Wagons(-2.0), state, t1=3.0, run={"backend": backend}, **COUPLED)
    assert run.events.names == ("meet", "part")
    np.testing.assert_allclose(run.events.times[:2], [1.0, 2.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.events.after.v[0], [0.75, 0.75], rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.events.after.q[1], [4.5, 4.5, 0.0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.final_state.q, [3.75, 4.75, 0.0], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_a_controller_may_switch_with_the_modes_and_reactions_know_it():
    """Where they are coupled, each is braked by 0.4 N: together by 0.2 m/s^2 from 1 m/s."""

    def brake(t, q, v, w):
        assert q.shape == (2,)
        return -0.4 * w[0]

    state = jaxdae.State(jnp.array([0.0, 4.0]), jnp.array([4.0, 0.0]))
    run = moved(Wagons(), state, t1=1.5, controller=brake, **COUPLED)
    np.testing.assert_allclose(run.final_state.v, [0.9, 0.9], rtol=0, atol=1e-10)
    # The heavy one is pushed by what its brake does not do: 3 · 0.2 - 0.4.
    np.testing.assert_allclose(np.abs(run.multipliers[-1]), 0.2, rtol=0, atol=1e-9)


def test_held_rows_of_hold_hold_at_the_start():
    state = jaxdae.State(jnp.zeros(2), jnp.ones(2))
    made = jaxdae.switching(Wagons(), LAW, state, held="coupling", **COUPLED)
    assert made.state.q.tolist() == [0.0, 0.0, 1.0]
    free = jaxdae.switching(Wagons(), LAW, state, **COUPLED)
    assert free.state.q.tolist() == [0.0, 0.0, 0.0]
    released = jaxdae.switching(Wagons(), LAW, state, release=COUPLED["release"])
    assert released.state.q.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.slow
def test_a_consistent_state_satisfies_what_holds():
    state = jaxdae.State(jnp.zeros(2), jnp.ones(2))
    made = jaxdae.switching(Wagons(), LAW, state, **COUPLED)
    for mode, q, v in ((0.0, [0.0, 4.0], [4.0, 0.0]), (1.0, [3.0, 3.0], [1.0, 1.0])):
        found = jaxdae.consistent_state(made.system, jnp.array([0.0, 4.0, mode]), [4.0, 0.0])
        np.testing.assert_allclose(found.q, [*q, mode], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.v, v, rtol=0, atol=1e-12)
        residual = constraint_residuals(made.system, jnp.zeros(()), found.q, found.v)
        np.testing.assert_allclose(residual.phi_dot, 0.0, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_row_that_closes_beside_its_constraint_ends_the_run_in_words():
    state = jaxdae.State(jnp.array([0.0, 4.0]), jnp.array([1.0, 0.0]))
    soon = jaxdae.Event(late, direction=1, name="too soon")
    with pytest.raises(SimulationError, match="'too soon' returned a state off the constraints"):
        moved(Wagons(), state, t1=3.0, hold={"coupling": soon})


class Wheel(jaxdae.System):
    """A wheel of 1 kg and radius 1 m on a plane, driven by a torque that grows as `t`."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + v[1] ** 2)

    def force(self, t, q, v, w, u):
        return jnp.array([0.0, 1.0]) * t

    def velocity_constraints(self, t, q, v):
        return v[:1] - v[1:]


@pytest.mark.slow
def test_a_wheel_lets_go_where_its_reaction_says():
    """It rolls by half the torque, and slips from a reaction of 1 N on: at 2 s, 1 m/s fast."""
    wheel = Wheel()

    def grip(t, q, v, w):
        lam = LAW.multipliers(wheel, t, jaxdae.State(q, v, w[:0]), None)
        return 1.0 - jnp.abs(lam[0])

    state = jaxdae.State(jnp.zeros(2), jnp.zeros(2))
    run = moved(wheel, state, t1=3.0, release={0: jaxdae.Event(grip, name="slips")})
    np.testing.assert_allclose(run.events.times[0], 2.0, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.final_state.v, [1.0, 1.0 + 2.5], rtol=0, atol=1e-9)


# What does not fit.


def test_what_does_not_fit_is_refused():
    state = jaxdae.State(jnp.zeros(2), jnp.ones(2))
    switching, wagons, event = jaxdae.switching, Wagons(), COUPLED["hold"]["coupling"]

    def refused(words, kind: Any = ValueError, formulation: Any = LAW, system: Any = wagons, **how):
        with pytest.raises(kind, match=words):
            switching(system, formulation, state, **how)

    refused("no row is switched")
    refused("no constraint is called 'rope'; there are: coupling", unilateral="rope")
    refused("constraint 3 is out of range: there are 1", unilateral=3)
    refused("'coupling' is unilateral, and switched by an event", unilateral=0, hold={0: event})
    refused("is a velocity constraint, which has no gap", system=Wheel(), unilateral=0)
    refused("which has no event in hold", held=0, release={0: event})
    refused(r"restitution is 1\.5; give a number from 0", unilateral=0, restitution=1.5)
    refused("'coupling' is switched by <function", TypeError, hold={0: meet})
    reset = jaxdae.Event(meet, reset=lambda t, q, v, w: (q, v, w), name="own")
    refused("'own', which switches 'coupling', has a reset", hold={0: reset})
    refused(
        r"Penalty keeps all constraints .* give jaxdae\.Multipliers", TypeError,
        jaxdae.Penalty(1e4, GAINS), unilateral=0,
    )  # fmt: skip
    for solve, words in (
        (
            jaxdae.MinimumNormSolve(),
            r"keeps the rank of the start.* MinimumNormSolve\(rcond=1e-9\)",
        ),
        (SparseSolve(), "SparseSolve cannot leave out the rows"),
        (jaxdae.SingularMassSolve(), "needs a regular mass matrix"),
    ):
        refused(words, formulation=jaxdae.Multipliers(GAINS, solve), unilateral=0)
    pid = jaxdae.PID(lambda t, q: -q, 1.0, 1.0, 1.0)
    refused("PID has an internal state", TypeError, unilateral=0, controller=pid)

    class Rubbing(Wagons):
        def reaction_dependent_force(self, t, q, v, w, u, lam):
            return -jnp.abs(lam[0]) * v

    refused("Rubbing declares reaction_dependent_force", system=Rubbing(), unilateral=0)


def test_runs_that_do_not_fit_are_refused():
    state = jaxdae.State(jnp.zeros(2), jnp.ones(2))
    made = jaxdae.switching(Wagons(), jaxdae.Multipliers(), state, **COUPLED)
    run = lambda **how: jaxdae.simulate(  # noqa: E731
        made.system, made.formulation, made.state, t1=1.0, events=made.events, **how
    )
    with pytest.raises(ValueError, match=r"Rattle enforces .* knows none that are switched"):
        run(solver=Rattle(), dt=0.1)
    with pytest.raises(ValueError, match=r"give the controller to jaxdae\.switching"):
        run(controller=lambda t, q, v, w: jnp.zeros(()))
