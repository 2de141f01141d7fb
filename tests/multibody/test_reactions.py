"""Reactions in joints, against Newton and Euler written by hand without JAX."""

import itertools
import re

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from helpers.bricard import bricard
from jaxdae.models import FourBar
from jaxdae.multibody import (
    Body,
    Connection,
    Free,
    Hinge,
    Motor,
    Multibody,
    reactions,
    reactions_at,
    RollingWheel,
    Slide,
)
from jaxdae.solvers import RK4

GRAVITY = np.array([0.3, -0.2, -9.81])
UP = np.array([0.0, 0.0, 1.0])


def _turn(axis, angle):
    return Rotation.from_rotvec(angle * np.asarray(axis) / np.linalg.norm(axis)).as_matrix()


def test_a_fast_chain_in_space():
    """A body on a skew hinge, and on it one that slides and turns: Newton and Euler by hand.

    Round-off of some hundred products of numbers up to 1000.
    """
    n, h1 = np.array([1.0, 2.0, -2.0]) / 3, np.array([0.1, 0.2, -0.1])
    s, b, h2 = np.array([0.0, 3.0, 4.0]) / 5, np.array([2.0, 1.0, 2.0]) / 3, np.array([0.2, 0, 0.1])
    foot, place = np.array([0.5, 0.0, 1.0]), np.array([0.0, 0.7, 0.2])
    one = Body("one", Hinge("n", n, anchor=h1), position=foot, mass=2.0, centre=(0.3, 0.4, 0.1),
               inertia=(0.2, 0.3, 0.4))  # fmt: skip
    skew = [[0.1, 0.02, 0], [0.02, 0.15, 0], [0, 0, 0.2]]
    two = Body("two", (Slide("s", s), Hinge("b", b, anchor=h2)), "one", place, mass=1.5,
               centre=(0.1, -0.5, 0.2), inertia=skew)  # fmt: skip
    q, v, a = np.array([[0.7, 0.4, -1.2], [9.0, -3.0, 14.0], [20.0, -7.0, 5.0]])
    found = reactions_at(Multibody([one, two], gravity=GRAVITY), 0.0, q, v, a, np.zeros(0))

    R1 = _turn(n, q[0])
    R2 = R1 @ _turn(b, q[2])
    w1, e1 = n * v[0], n * a[0]
    w2 = w1 + R1 @ b * v[2]
    e2 = e1 + R1 @ b * a[2] + np.cross(w1, R1 @ b) * v[2]
    rigid = lambda w, e, r: np.cross(e, r) + np.cross(w, np.cross(w, r))  # noqa: E731
    c1 = R1 @ (np.asarray(one.centre) - h1)
    origin = R1 @ (place + s * q[1] - h1)  # of the second body's frame behind the slide
    knee = origin + R1 @ h2
    slides = 2 * np.cross(w1, R1 @ s) * v[1] + R1 @ s * a[1]
    arm = R2 @ (np.asarray(two.centre) - h2)
    force2 = 1.5 * (rigid(w1, e1, knee) + slides + rigid(w2, e2, arm) - GRAVITY)
    I2 = R2 @ np.asarray(two.inertia) @ R2.T
    knee_moment = I2 @ e2 + np.cross(w2, I2 @ w2) + np.cross(arm, force2)
    force1 = 2.0 * (rigid(w1, e1, c1) - GRAVITY)
    I1 = R1 @ np.asarray(one.inertia) @ R1.T
    moment = I1 @ e1 + np.cross(w1, I1 @ w1) + np.cross(c1, force1)
    moment += knee_moment + np.cross(knee, force2)
    close = {"rtol": 0, "atol": 1e-10}
    np.testing.assert_allclose(found.joints["b"].force, force2, **close)
    np.testing.assert_allclose(found.joints["b"].moment, knee_moment, **close)
    np.testing.assert_allclose(found.joints["s"].force, force2, **close)
    slide_moment = knee_moment + np.cross(knee - origin, force2)
    np.testing.assert_allclose(found.joints["s"].moment, slide_moment, **close)
    np.testing.assert_allclose(found.joints["n"].force, force1 + force2, **close)
    np.testing.assert_allclose(found.joints["n"].moment, moment, **close)
    assert found.indeterminate == ()


LENGTHS, MASSES = (0.3, 0.9, 0.5), (0.4, 1.1, 0.6)
PIVOT = np.array([0.8, 0.1, 0.0])


def four_bar(axes: str, drive: float = 0.0) -> Multibody:
    """Crank, coupler, rocker as uniform bars with a spring and a damper, in a plane."""
    parts = (("crank", None, (0, 0, 0)), ("coupler", "crank", (LENGTHS[0], 0, 0)),
             ("rocker", None, PIVOT))  # fmt: skip
    return Multibody(
        [
            Body(name, Hinge(f"{name}'s", UP, stiffness=2.0, damping=0.3, armature=0.01), parent,
                 place, mass=m, centre=(x / 2, 0, 0), inertia=(0.0, m * x**2 / 12, m * x**2 / 12))
            for (name, parent, place), m, x in zip(parts, MASSES, LENGTHS, strict=True)
        ],
        [Connection("pin", "coupler", "rocker", (LENGTHS[1], 0, 0), (LENGTHS[2], 0, 0), axes)],
        [Motor("torque", "crank's", gear=drive)],
        gravity=(0.0, -9.81, 0.0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def driven():
    """The linkage in motion by a motor: coordinates, velocities, accelerations, multipliers."""
    system = four_bar("xy", 3.0)
    guess = system.start().q + jnp.array([0.9, -0.5, 1.2])
    state = jaxdae.consistent_state(system, guess, jnp.array([12.0, -9.0, 4.0]))
    return (system, state, *_solved(system, state.q, state.v, jnp.ones(1)))


def _solved(system, q, v, u=None):
    d = jaxdae.evaluate(system, 0.0, q, v, u=u)
    c, n = d.jac.shape
    matrix = np.block([[d.mass, d.jac.T], [d.jac, np.zeros((c, c))]])
    x = np.linalg.lstsq(matrix, np.concatenate([d.force, -d.gamma]))[0]
    return x[:n], x[n:]


def textbook(q, v, a):
    """Forces in the pins and the torques on three bars, by their 9 equations in the plane.

    Unknowns: at crank's and rocker's pivots, the knee, the pin, and the resultant torque on each
    of the three hinges.
    """
    angles, rates, turns = ([x[0], x[0] + x[1], x[2]] for x in (q, v, a))
    unit = [np.array([np.cos(x), np.sin(x)]) for x in angles]
    cross = [np.array([-x[1], x[0]]) for x in unit]
    swing = [e * c - w**2 * u for u, c, w, e in zip(unit, cross, rates, turns, strict=True)]
    centres = [LENGTHS[0] / 2 * swing[0], LENGTHS[0] * swing[0] + LENGTHS[1] / 2 * swing[1],
               LENGTHS[2] / 2 * swing[2]]  # fmt: skip
    # Forces: A at the crank's pivot, K on the coupler at the knee, P on the coupler at the pin,
    # D at the rocker's pivot; each bar: sum of forces, moments about its centre.
    matrix, right = np.zeros((9, 11)), np.zeros(9)
    on = [{0: (1, -0.5), 2: (-1, 0.5)}, {2: (1, -0.5), 4: (1, 0.5)}, {4: (-1, 0.5), 6: (1, -0.5)}]
    for i, acting in enumerate(on):
        for column, (sign, part) in acting.items():
            matrix[3 * i : 3 * i + 2, column : column + 2] = sign * np.eye(2)
            arm = part * LENGTHS[i] * unit[i]
            matrix[3 * i + 2, column : column + 2] = sign * np.array([-arm[1], arm[0]])
        right[3 * i : 3 * i + 2] = MASSES[i] * (centres[i] + np.array([0.0, 9.81]))
        right[3 * i + 2] = MASSES[i] * LENGTHS[i] ** 2 / 12 * turns[i]
    return matrix, right


def test_a_driven_four_bar_by_the_equations_of_its_bars(driven):
    """Springs, dampers, rotors and the motor act in the hinges; the pin has forces alone."""
    system, state, a, lam = driven
    q, v = np.asarray(state.q), np.asarray(state.v)
    found = reactions_at(system, 0.0, q, v, a, lam)
    matrix, right = textbook(q, v, a)
    torques = -2.0 * q - 0.3 * v - 0.01 * a + np.array([3.0, 0.0, 0.0])
    # Each hinge's torque acts on its bar, and back on the one that bears it.
    right[[2, 5, 8]] -= [torques[0] - torques[1], torques[1], torques[2]]
    # Nine equations for the eight forces: they agree.
    forces, *_ = np.linalg.lstsq(matrix[:, :8], right)
    np.testing.assert_allclose(matrix[:, :8] @ forces, right, rtol=0, atol=1e-10)
    joints, pin = found.joints, found.loops["pin"]
    for reaction, force, torque in (
        (joints["crank's"], forces[:2], torques[0]),
        (joints["coupler's"], forces[2:4], torques[1]),
        (joints["rocker's"], forces[6:8], torques[2]),
        (pin, forces[4:6], 0.0),
    ):
        np.testing.assert_allclose(reaction.force, [*force, 0.0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(reaction.moment, [0.0, 0.0, torque], rtol=0, atol=1e-10)
    assert found.indeterminate == ()


def test_axes_of_the_bodies(driven):
    system, state, a, lam = driven
    space = reactions_at(system, 0.0, state.q, state.v, a, lam)
    body = reactions_at(system, 0.0, state.q, state.v, a, lam, axes="body")
    for name, angle in (("crank's", state.q[0]), ("coupler's", state.q[0] + state.q[1])):
        turn = _turn(UP, float(angle))
        np.testing.assert_allclose(turn @ body.joints[name].force, space.joints[name].force)
    turn = _turn(UP, float(state.q[0] + state.q[1]))
    np.testing.assert_allclose(turn @ body.loops["pin"].force, space.loops["pin"].force)


def test_redundant_equations_leave_what_is_out_of_the_plane_open(driven):
    """With a ball in place of the pin its force along the axis is not unique; others are."""
    _, state, a, lam = driven
    found = reactions_at(four_bar("xyz"), 0.0, state.q, state.v, a, np.append(lam, 0.0))
    assert found.indeterminate == ("crank's", "coupler's", "rocker's", "pin")
    for reaction in found.joints.values():
        assert reaction.unique_force.tolist() == [True, True, False]
        assert reaction.unique_moment.tolist() == [False, False, True]
    assert found.loops["pin"].unique_moment.all()  # a ball has none


@pytest.mark.slow
def test_derivatives_in_both_modes(driven):
    """Of a force by a length, against central differences of 1e-6 (errors of 1e-9 of 100 N)."""
    system, state, a, lam = driven

    def force(x):
        moved = eqx.tree_at(
            lambda s: s.loops[0].anchor, system, system.loops[0].anchor.at[0].add(x)
        )
        return reactions_at(moved, 0.0, state.q, state.v, a + x, lam).joints["crank's"].moment[2]

    at, step = jnp.asarray(0.0), 1e-6
    difference = (force(at + step) - force(at - step)) / (2 * step)
    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(force)(at), difference, rtol=1e-6)


@pytest.mark.slow
def test_bricards_linkage_over_ten_seconds():
    """Newton's law for each body of its reactions; none is unique; the energy stays."""
    system, law = bricard(), jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
    run = jaxdae.simulate(
        system, law, system.start(), t1=10.0, dt=0.005, solver=diffrax.Dopri8(),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 10.0, 21)),
    )  # fmt: skip
    assert np.ptp(run.energy) < 1e-8
    assert np.ptp(run.q[:, 0]) > 1.0
    found = reactions(run)
    assert found.indeterminate == tuple(f"hinge {i + 1}" for i in range(6))
    row = 7
    q, v, lam = run.q[row], run.v[row], run.multipliers[row]
    d = jaxdae.evaluate(system, 0.0, q, v)
    a = jnp.linalg.solve(d.mass, d.force - d.jac.T @ lam)

    def centres(s):
        poses = system.poses(q + v * s + 0.5 * a * s**2)
        return jnp.stack([poses[x.name].point(x.centre) for x in system.bodies])

    accelerations = jax.jacfwd(jax.jacfwd(centres))(0.0)
    forces = [found.joints[f"hinge {i + 1}"].force[row] for i in range(5)]
    on = [one - other for one, other in itertools.pairwise(forces)]
    on.append(forces[-1] + found.loops["hinge 6"].force[row])
    expected = np.asarray(accelerations) - np.asarray(system.gravity)
    np.testing.assert_allclose(on, expected, rtol=0, atol=1e-9)


def test_a_free_body_has_no_joint_and_needs_no_reaction():
    """It falls; a point of it is held by a connection that bears its weight at rest."""
    ball = Body("ball", Free("ball"), mass=2.0, inertia=(1.0, 1.0, 1.0))
    system = Multibody([ball], [Connection("rope", "ball")])
    state = system.start()
    d = jaxdae.evaluate(system, 0.0, state.q, state.v)
    a, lam = _solved(system, state.q, state.v)
    found = reactions_at(system, 0.0, state.q, state.v, a, lam)
    assert found.joints == {}
    np.testing.assert_allclose(found.loops["rope"].force, [0.0, 0.0, 2.0 * 9.81], atol=1e-12)
    assert d.jac.shape[0] >= 3
    assert found.indeterminate == ()


def test_a_wheel_rolls_down_a_slope():
    """Uniform rim: friction `m g sin(a) / (1 + m r^2 / I)`, the slope bears `m g cos(a)`."""
    mass, radius, moment, slope = 1.2, 0.4, 0.15, 0.3
    wheel = Body("wheel", Free("w", place=(0, 0, radius)), mass=mass,
                 inertia=(0.6 * moment, moment, 0.6 * moment))  # fmt: skip
    rolls = RollingWheel("ground", "wheel", None, radius=radius, axis=(0.0, 1.0, 0.0))
    down = 9.81 * np.array([np.sin(slope), 0.0, -np.cos(slope)])
    system = Multibody([wheel], [rolls], gravity=down)
    q = system.start().q
    v = jnp.array([2.0, 0.0, 0.0, 0.0, 2.0 / radius, 0.0])
    np.testing.assert_allclose(system.velocity_constraints(0.0, q, v), 0.0, atol=1e-14)
    found = reactions_at(system, 0.0, q, v, *_solved(system, q, v)).loops["ground"]
    friction = mass * 9.81 * np.sin(slope) / (1 + mass * radius**2 / moment)
    expected = [-friction, 0.0, mass * 9.81 * np.cos(slope)]
    np.testing.assert_allclose(found.force, expected, atol=1e-12)
    # About the centre the friction turns the wheel.
    np.testing.assert_allclose(found.moment, [0.0, friction * radius, 0.0], atol=1e-12)


@pytest.mark.slow
def test_a_batch_with_a_member_that_fails():
    rod = Body("rod", Hinge("h", (0, 1, 0)), mass=2.0, centre=(0.5, 0, 0), inertia=(0.1, 0.1, 0.1))
    system, law = Multibody([rod]), jaxdae.Multipliers()

    def one(v):
        start = jaxdae.State(jnp.zeros(1), v)
        return jaxdae.simulate(
            system, law, start, t1=0.02, dt=0.01, solver=RK4(), throw=False, backend="plain",
            saveat=diffrax.SaveAt(ts=jnp.array([0.0, 0.02])),
        )  # fmt: skip

    runs = jax.vmap(one)(jnp.array([[1.0], [jnp.nan]]))
    force = reactions(runs).joints["h"].force
    # At rest but for the rate 1: 2 kg on a radius of 0.5 m, and the drop of the centre.
    drop = 2.0 * 9.81 * 0.25 * 2.0 / (0.1 + 2.0 * 0.25)
    np.testing.assert_allclose(force[0, 0], [-1.0, 0.0, 2.0 * 9.81 - drop], atol=1e-12)
    assert np.isnan(force[1]).all()
    # At 0.02 s the rod has turned by a part of a radian about y.
    own = reactions(runs, axes="body").joints["h"].force[0, 1]
    turn = _turn([0, 1, 0], float(runs.q[0, 1, 0]))
    np.testing.assert_allclose(turn @ own, force[0, 1], atol=1e-12)


@pytest.mark.slow
def test_what_has_no_reactions_is_refused(driven, tmp_path):
    system, state, a, lam = driven
    with pytest.raises(ValueError, match=re.escape('axes are "space" or "body"; got \'world\'')):
        reactions_at(system, 0.0, state.q, state.v, a, lam, axes="world")  # pyright: ignore
    declared = FourBar()
    start = jaxdae.State(declared.start()[0], jnp.zeros(3))
    run = jaxdae.simulate(
        declared, jaxdae.Multipliers(), start, t1=0.01, dt=0.01, solver=RK4(), backend="plain"
    )
    with pytest.raises(TypeError, match=r"FourBar has no joints\. Its multipliers are"):
        reactions(run)
    run.save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="reactions need the formulation of a run"):
        reactions(jaxdae.Trajectory.load(tmp_path / "run.npz"))
