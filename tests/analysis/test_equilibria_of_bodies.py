"""Static equilibria of mechanisms of bodies, with loops and with balls, against statics by hand."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.analysis import EquilibriumError
from jaxdae.multibody import (
    Ball,
    Body,
    Connection,
    Distance,
    Free,
    Hinge,
    Marker,
    Motor,
    Multibody,
    PointForce,
    reactions_at,
    Rod,
    RollingSphere,
    Site,
    SpringDamper,
)

UP = (0.0, 0.0, 1.0)


def test_a_loop_with_a_spring_rests_where_its_one_equation_says():
    """A parallelogram of uniform bars: `3 g cos(x) + k x = 0`; its pin has a row that is zero."""
    bars = (("crank", 1.0, None, 0.0), ("coupler", 2.0, "crank", 1.0), ("rocker", 1.0, None, 2.0))
    system = Multibody(
        [
            Body(name, Hinge(name, UP, stiffness=20.0 * (name == "crank")), parent, (at, 0, 0),
                 mass=x, centre=(x / 2, 0, 0), inertia=(0, x**3 / 12, x**3 / 12))
            for name, x, parent, at in bars
        ],
        [Connection("pin", "coupler", "rocker", (2, 0, 0), (1, 0, 0))],
        gravity=(0.0, -9.81, 0.0),
    )  # fmt: skip
    angle: Any = brentq(lambda x: 3 * 9.81 * np.cos(x) + 20.0 * x, -1.5, 0.0, xtol=1e-15)
    found = jaxdae.equilibrium(system, [-0.6, 0.65, -0.7])
    np.testing.assert_allclose(found.q, angle * np.array([1.0, -1.0, 1.0]), atol=1e-10)
    # Each pivot bears its crank's half and half of the coupler, the first one all that is sideways.
    acting = reactions_at(system, 0.0, found.q, jnp.zeros(3), jnp.zeros(3), found.multipliers)
    up = [acting.joints[x].force[1] for x in ("crank", "rocker")]
    assert sum(up) == pytest.approx(4 * 9.81, rel=1e-9)
    assert float(acting.joints["crank"].moment[2]) == pytest.approx(-20.0 * angle, rel=1e-9)


def hanging(stiffness=5.0) -> Multibody:
    """A body on a ball, and on it an arm on a hinge with a spring."""
    return Multibody(
        [
            Body("body", Ball("ball", anchor=(0.1, 0.0, 0.2)), mass=2.0, centre=(0.1, 0.0, -0.5),
                 inertia=(0.3, 0.2, 0.1)),
            Body("arm", Hinge("hinge", (0, 1, 0), stiffness=stiffness, relaxed=0.4), "body",
                 (0.1, 0.0, -0.8), mass=0.5, centre=(0.6, 0.0, 0.0)),
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def rest():
    system = hanging()
    tilted = jnp.array([0.99, 0.08, -0.06, 0.02, 0.3])
    return system, tilted, jaxdae.equilibrium(system, tilted)


def test_bodies_on_a_ball_hang_below_it(rest):
    """The common centre of mass is below the ball, the spring bears the arm about the hinge."""
    system, _, found = rest
    assert found.state.v.shape == (4,)
    poses = system.poses(found.q)
    centres = {x.name: np.asarray(poses[x.name].point(x.centre)) for x in system.bodies}
    pivot = np.asarray(poses["body"].point(jnp.array([0.1, 0.0, 0.2])))
    lever = 2.0 * (centres["body"] - pivot) + 0.5 * (centres["arm"] - pivot)
    np.testing.assert_allclose(np.cross(lever, [0, 0, -9.81]), 0.0, atol=1e-10)
    assert lever[2] < 0
    hinge = centres["arm"] - np.asarray(poses["arm"].place)
    axis = np.asarray(poses["arm"].turn)[:, 1]
    about = np.cross(hinge, [0, 0, -0.5 * 9.81]) @ axis
    assert about == pytest.approx(5.0 * (float(found.q[4]) - 0.4), abs=1e-10)
    # It hangs in its ball with all of its weight.
    acting = reactions_at(system, 0.0, found.q, jnp.zeros(4), jnp.zeros(4), found.multipliers)
    np.testing.assert_allclose(acting.joints["ball"].force, [0, 0, 2.5 * 9.81], atol=1e-10)
    np.testing.assert_allclose(acting.joints["ball"].moment, 0.0, atol=1e-10)


@pytest.mark.slow
def test_derivatives_follow_in_both_modes(rest):
    """Of the hinge's angle by the stiffness, against central differences of 1e-4: 1e-8."""
    system, guess, _ = rest

    def angle(stiffness):
        moved = eqx.tree_at(lambda s: s.bodies[1].joints[0].stiffness, system, stiffness)
        return jaxdae.equilibrium(moved, guess).q[4]

    difference = (angle(5.0 + 1e-4) - angle(5.0 - 1e-4)) / 2e-4
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(angle)(5.0), difference, rtol=1e-6)
    members = jax.vmap(lambda q: jaxdae.equilibrium(system, q).q)(
        jnp.stack([guess, guess * np.nan])
    )
    np.testing.assert_allclose(members[0], jaxdae.equilibrium(system, guess).q, atol=1e-9)
    assert np.isnan(members[1]).all()


def test_what_cannot_be_held_is_refused(rest):
    system, guess, _ = rest
    with pytest.raises(EquilibriumError, match=re.escape("hold all coordinates of its rotation")):
        jaxdae.equilibrium(system, guess, fixed=("ball e1",))
    with pytest.raises(EquilibriumError, match="out of balance: the force on 'ball e"):
        jaxdae.equilibrium(system, guess, fixed=tuple(f"ball e{i}" for i in range(4)))


def drag(t, pose, twist):
    return -jnp.array([0.3, 0.2, 0.1]) * twist.spin


def pushed(joints, loops=()):
    """A body that gravity, a spring, drag and a force that turns with it hold aslant."""
    spring = Distance(Marker("body", (0.3, 0, -0.3)), Marker(None, (1.0, 0.2, -0.1)))
    push = PointForce("push", Marker("body", (0, 0.2, -0.5)), (3.0, 1.0, 0.5), drag, follows=True)
    sites = [Motor(f"turn {i}", Site(Marker("body"), np.eye(6)[3 + i])) for i in (0, 1)]
    return Multibody(
        [Body("body", joints, mass=2.0, centre=(0.1, 0.05, -0.4), inertia=(0.2, 0.3, 0.15))],
        loops, motors=sites, forces=[push, SpringDamper("spring", spring, 30.0, 0.3)],
    )  # fmt: skip


@pytest.mark.slow
def test_bodies_on_balls_are_linearized_as_those_on_three_hinges():
    """Roots of the same body, and of it under a regulator, whose feedback acts on quaternions."""
    rod = Rod("rod", "body", None, (0, 0.3, -0.2), (0.1, 0.6, -0.3), 0.4)
    axes = (("a", (0, 0, 1)), ("b", (0, 1, 0)), ("c", (1, 0, 0)))
    guess, roots = np.array([0.1, 0.1, 0.1]), []
    for joints in ([Hinge(*x) for x in axes], Ball("ball")):
        system = pushed(joints, [rod])
        rest = jaxdae.equilibrium(system, guess, u=jnp.zeros(2))
        # Under the rod it may rest elsewhere, too: from the same position.
        turn = Rotation.from_matrix(system.poses(rest.q)["body"].turn)
        guess = np.roll(turn.as_quat(), 1)
        linear = jaxdae.linearize(system, rest)
        roots.append(np.sort_complex(jaxdae.spectrum(linear).roots))
        regulator = jaxdae.lqr(linear, Q=np.eye(len(linear.A)), R=np.eye(2))
        closed = jaxdae.linearize(system, rest, controller=regulator.feedback)
        found = np.sort_complex(np.linalg.eigvals(np.asarray(closed.A)))
        np.testing.assert_allclose(found, np.sort_complex(np.asarray(regulator.roots)), atol=1e-9)
    np.testing.assert_allclose(roots[0], roots[1], atol=1e-9)


def test_a_body_on_a_ball_swings_about_both_axes():
    """Frequencies of a pendulum about each of them, and none about the vertical."""
    body = Body("body", Ball("ball"), mass=2.0, centre=(0, 0, -0.5), inertia=(0.3, 0.1, 0.2))
    system = Multibody([body])
    linear = jaxdae.linearize(system, jaxdae.equilibrium(system, [1.0, 0.0, 0.0, 0.0]))
    assert linear.coordinates == ("ball about x", "ball about y", "ball about z")
    frequencies = [np.sqrt(2.0 * 9.81 * 0.5 / (x + 2.0 * 0.25)) for x in (0.1, 0.3)]
    found = np.sort(np.abs(np.linalg.eigvals(np.asarray(linear.A))))
    # Twice the round-off of a double root at zero, its square root.
    np.testing.assert_allclose(found[:2], 0.0, atol=1e-7)
    np.testing.assert_allclose(found[2:], np.sort(np.repeat(frequencies, 2)), rtol=1e-9)
    frame = np.asarray(linear.frame)
    np.testing.assert_allclose(frame @ linear.positions[:, :3], np.eye(3), atol=1e-12)


@pytest.mark.slow
def test_a_sphere_rolls_between_springs_as_a_mass_and_a_wheel():
    """With the frequency `sqrt(k / (m + I / r^2))` both ways, and about the vertical freely."""
    m, r, k, inertia = 2.0, 0.3, 50.0, 0.1
    springs = [
        SpringDamper(name, Distance(Marker("ball"), Marker(None, (*end, r))), k, 5.0)
        for name, end in (("x", (5.0, 0.0)), ("y", (0.0, 5.0)))
    ]
    ball = Body("ball", Free("free"), mass=m, inertia=(inertia,) * 3)
    system = Multibody([ball], [RollingSphere("roll", "ball", radius=r)], forces=springs)
    rest = jaxdae.equilibrium(system, [0.0, 0.0, r, 1.0, 0.0, 0.0, 0.0])
    linear = jaxdae.linearize(system, rest)
    assert (linear.position_constraints, linear.velocity_constraints) == (1, 2)
    found = np.sort(np.abs(np.linalg.eigvals(np.asarray(linear.A))))
    # Of zeros of higher order, roots of the round-off.
    np.testing.assert_allclose(found[:4], 0.0, atol=1e-4)
    np.testing.assert_allclose(found[4:], np.sqrt(k / (m + inertia / r**2)), rtol=1e-9)

    # In a program that varies the mass: the height alone determines z, which comes third.
    @jax.jit
    def matrix(mass):
        heavier = eqx.tree_at(lambda s: s.bodies[0].mass, system, mass)
        named = [linear.coordinates[i] for i in linear.partition.independent]
        return jaxdae.linearize(heavier, rest, independent=named).A

    np.testing.assert_allclose(matrix(m), linear.A, atol=1e-12)


def test_bodies_on_hinges_alone_are_linearized():
    """Their velocities are rates of coordinates: a pendulum of period `2 pi sqrt(I / (m g l))`."""
    rod = Body("rod", Hinge("h", (0, 1, 0)), mass=2.0, centre=(0, 0, -0.5), inertia=(0.1, 0.1, 0))
    system = Multibody([rod])
    linear = jaxdae.linearize(system, jaxdae.equilibrium(system, [0.2]))
    roots = jaxdae.spectrum(linear).roots
    frequency = np.sqrt(2.0 * 9.81 * 0.5 / (0.1 + 2.0 * 0.25))
    np.testing.assert_allclose(np.sort(np.imag(roots)), [-frequency, frequency], rtol=1e-9)
