"""Five-bar: against arms cut free at the tip, both assembly modes, singular positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from jaxdae import Baumgarte, equilibrium, Multipliers, simulate
from jaxdae.control import Feedforward, inverse_dynamics, motion_derivatives, MotionReference
from jaxdae.models.five_bar import EllipticPath, FiveBar, path_control
from jaxdae.solvers import RK4
from jaxdae.systems import State, System

SYSTEM, PATH = FiveBar(), EllipticPath()
FORMULATION = Multipliers(Baumgarte.critical(10.0))


def at(tip, speed):
    return State(*jax.jvp(lambda x: SYSTEM.at_tip(x), (jnp.array(tip),), (jnp.array(speed),)))


@pytest.mark.slow
@pytest.mark.parametrize("torques", [(0.0, 0.0), (1.3, -0.7)])
def test_accelerations_and_multipliers_are_those_of_arms_cut_free(torques):
    """At random places of the tip; round-off of sums of order ten through matrices of order ten."""
    rng = np.random.default_rng(4)
    for _ in range(5):
        tip, speed = rng.uniform([-0.1, 0.3], [0.25, 0.5]), rng.normal(size=2)
        oracle = oracles.FiveBar(torques=torques, tip=tuple(tip), speed=tuple(speed))
        expected = oracle.read(np.array(oracle.start()))
        state = at(tip, speed)
        np.testing.assert_allclose(state.q, expected.q, atol=1e-14)
        np.testing.assert_allclose(state.v, expected.v, atol=1e-12)
        given, found = jnp.array(torques), Multipliers()
        rate, multipliers = found.rate_and_multipliers(SYSTEM, 0.0, state, given)
        np.testing.assert_allclose(multipliers, expected.lam, rtol=1e-10, atol=1e-10)
        tip_acceleration = jax.jvp(
            lambda q, v: jax.jvp(SYSTEM.tip, (q,), (v,))[1], (state.q, state.v), (rate.q, rate.v)
        )[1]
        np.testing.assert_allclose(tip_acceleration, oracle.push(oracle.start())[0], rtol=1e-10)


@pytest.mark.slow
def test_the_motion_is_that_of_the_tip_by_scipy():
    run = simulate(SYSTEM, FORMULATION, at((0.18, 0.42), (0.0, 0.2)), t1=0.25, dt=0.0025)
    exact = oracles.FiveBar().motion(np.asarray(run.ts))
    # The tolerance of the oracle is 1e-12; a hundred steps of eighth order have less.
    np.testing.assert_allclose(run.q, exact.q, atol=1e-10)
    np.testing.assert_allclose(run.v, exact.v, atol=1e-9)


def test_both_assembly_modes_close_the_loop_and_differ():
    cranks = jnp.array([2.0, 0.5])
    upper, lower = (SYSTEM.at_cranks(cranks, side) for side in (1, -1))
    for q, side in ((upper, 1), (lower, -1)):
        np.testing.assert_allclose(SYSTEM.position_constraints(0.0, q), 0.0, atol=1e-15)
        np.testing.assert_array_equal(q[::2], cranks)
        # Seen from the left elbow to the right one, the tip is on the side of the mode's sign.
        assert np.sign(SYSTEM.sines(q).tip) == -side
    assert SYSTEM.tip(upper)[1] > SYSTEM.tip(lower)[1] + 0.1


def test_the_four_working_modes_reach_a_point():
    point, angles = jnp.array([0.1, 0.4]), set()
    for elbows in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        q = SYSTEM.at_tip(point, elbows)
        np.testing.assert_allclose(SYSTEM.tip(q), point, atol=1e-15)
        np.testing.assert_allclose(SYSTEM.position_constraints(0.0, q), 0.0, atol=1e-15)
        assert (np.sign(SYSTEM.sines(q).left), np.sign(SYSTEM.sines(q).right)) == (
            -elbows[0],
            -elbows[1],
        )
        angles.add(tuple(np.asarray(q).tolist()))
    assert len(angles) == 4


def test_out_of_reach_is_refused_with_the_distance_and_marked_under_jit():
    with pytest.raises(ValueError, match=r"out of reach of a motor at a distance of 0\.94"):
        SYSTEM.at_tip(jnp.array([0.5, 0.8]))
    with pytest.raises(ValueError, match=r"couplers do not meet: elbows at a distance of 0\.2"):
        FiveBar(lengths=(0.1, 0.9, 0.1, 0.2)).at_cranks(jnp.array([1.0, 1.0]))
    assert np.isnan(jax.jit(SYSTEM.at_tip)(jnp.array([0.5, 0.8]))).any()


def test_inverse_dynamics_gives_back_the_torques_and_the_power_is_their_work():
    state, torques = at((0.15, 0.4), (0.3, -0.2)), jnp.array([0.8, -1.1])
    rate, lam = Multipliers().rate_and_multipliers(SYSTEM, 0.0, state, torques)
    found = inverse_dynamics(SYSTEM, 0.0, state.q, state.v, rate.v, controls=2)
    np.testing.assert_allclose(found.u, torques, rtol=1e-12)
    np.testing.assert_allclose(found.multipliers, lam, rtol=1e-11)

    def energy(q, v):
        return SYSTEM.kinetic_energy(0.0, q, v) + SYSTEM.potential_energy(0.0, q)

    power = jax.jvp(energy, (state.q, state.v), (state.v, rate.v))[1]
    losses = 2 * SYSTEM.dissipation(0.0, state.q, state.v)
    np.testing.assert_allclose(found.u @ state.v[::2], power + losses, rtol=1e-12)


@pytest.mark.slow
def test_static_feedforward_holds_the_system_at_rest():
    motion = SYSTEM.motion(PATH)
    held = equilibrium(
        SYSTEM, motion(0.2), u=jnp.zeros(2), free_controls=True, fixed=("left crank", "right crank")
    )
    hold = Feedforward(SYSTEM, motion, 2, static=True)(0.2)
    np.testing.assert_allclose(hold, held.u, rtol=1e-9)


@pytest.mark.slow
def test_with_feedforward_the_tip_stays_on_its_path_and_returns_to_it():
    control = path_control(SYSTEM)
    state = State(*SYSTEM.start())
    run = simulate(SYSTEM, FORMULATION, state, t1=1.5, controller=control)
    tips, wanted = jax.vmap(SYSTEM.tip)(run.q), jax.vmap(PATH)(run.ts)
    # The step control's tolerance is 1e-8; feedback holds what it leaves.
    np.testing.assert_allclose(tips, wanted, atol=1e-8)
    run = simulate(
        SYSTEM, FORMULATION, State(state.q, 0 * state.v), t1=1.5, dt=0.005, solver=RK4(),
        controller=control,
    )  # fmt: skip
    off = np.linalg.norm(jax.vmap(SYSTEM.tip)(run.q) - jax.vmap(PATH)(run.ts), axis=1)
    assert off.max() > 1e-3
    # The slowest of both cranks' roots is some 6 1/s.
    assert off[-1] < 1e-3 * off.max()


def test_the_motion_is_differentiated_as_differences_do():
    motion, t, h = SYSTEM.motion(PATH), 0.3, 1e-4
    q, v, a = motion_derivatives(motion, t)
    before, after = motion(t - h), motion(t + h)
    # h^2 times a fourth derivative of order 1e3, and round-off 1e-16 / h^2.
    np.testing.assert_allclose((after - before) / (2 * h), v, atol=1e-6)
    np.testing.assert_allclose((after - 2 * q + before) / h**2, a, atol=1e-5)
    reference = MotionReference(motion)(t)
    np.testing.assert_array_equal(reference.q, q)
    np.testing.assert_array_equal(reference.v, v)


class Pushed(System):
    """A point on a line whose only force is not affine in its input."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return u**2 + u


def test_what_has_no_inverse_dynamics_says_why():
    q, v, a = motion_derivatives(SYSTEM.motion(PATH), 0.0)
    with pytest.raises(
        ValueError, match=r"is left .* 2 degrees of freedom here, and its inputs \(1\) act on 1"
    ):
        inverse_dynamics(SYSTEM, 0.0, q, v, a, controls=1)
    with pytest.raises(ValueError, match=r"FiveBar do not admit this motion: J a \+ gamma is 0\."):
        inverse_dynamics(SYSTEM, 0.0, q, v, a + 1.0, controls=2)
    with pytest.raises(ValueError, match=r"no inputs give Pushed this motion: 9 is left"):
        inverse_dynamics(Pushed(), 0.0, jnp.zeros(1), jnp.zeros(1), jnp.full(1, 3.0), controls=1)
    drifting = lambda t: q + t * v + t**2  # noqa: E731
    with pytest.raises(ValueError, match="do not admit this motion"):
        Feedforward(SYSTEM, drifting, 2)
