"""Closed mechanisms in absolute coordinates: known kinematics, and the same in relative ones.

Each has one freedom, so that a conserved energy and exact kinematics determine its motion.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.multibody import (
    Body,
    Connection,
    Free,
    Hinge,
    HingeLoop,
    Multibody,
    Perpendicular,
    planar,
    PointOnLine,
    PointOnPlane,
    Rod,
    SlideLoop,
    universal,
    UniversalLoop,
)
from jaxdae.solvers import RK4

# Errors of a method of order 4 at the step that all runs have.
EXACT = 1e-7


def bar(name, joints, length, place=(0.0, 0.0, 0.0), parent=None):
    centre = (0.5 * length, 0.0, 0.0)
    return Body(name, joints, parent, place, mass=1.0, centre=centre, inertia=(0.01, 0.02, 0.02))


def run(system, q, v=None):
    v = jnp.zeros_like(system.start().v) if v is None else v
    start = jaxdae.consistent_state(system, q, v)
    np.testing.assert_allclose(start.q, q, atol=1e-12)
    found = jaxdae.simulate(
        system, jaxdae.Multipliers(), start, t1=0.3, dt=0.0025, solver=RK4(), backend="native"
    )
    assert found.held_rank is None  # no equation is redundant
    np.testing.assert_allclose(found.energy, found.energy[0], atol=EXACT)
    return found


def pose(place, turn):
    return [*place, *turn.as_quat(scalar_first=True)]


def about(axis, angle):
    return Rotation.from_rotvec(angle * np.asarray(axis, float))


def speeds(system, q, spins):
    """Velocities of free bodies that turn so about their origins, in their own axes."""
    names = [x.name for x in system.bodies]

    def moving(v):
        return jnp.concatenate([jnp.concatenate(system.twists(q, v)[x]) for x in names])

    jac = jax.jacfwd(moving)(jnp.zeros_like(system.start().v))
    wanted = np.concatenate([[0.0, 0.0, 0.0, *spins[x]] for x in names])
    return jnp.asarray(np.linalg.lstsq(jac, wanted)[0])


@pytest.mark.slow
def test_a_slider_crank_in_space_and_in_a_plane():
    """`x = a cos(phi) + sqrt(l^2 - a^2 sin^2(phi))`.

    In the plane there are three hinges and two equations.
    """
    a, length, phi = 0.2, 0.5, 0.7
    psi = -np.arcsin(a * np.sin(phi) / length)
    reach = a * np.cos(phi) + length * np.cos(psi)
    crank, rod = about((0, -1, 0), phi), about((0, -1, 0), psi)
    space = Multibody(
        [bar("crank", Free("crank"), a), bar("rod", Free("rod"), length),
         bar("piston", Free("piston"), 0)],
        [HingeLoop("bearing", None, "crank", axis=(0, 1, 0)),
         Connection("pin", "crank", "rod", (a, 0, 0)),
         UniversalLoop("wrist", "rod", "piston", (length, 0, 0), axis=(0, 1, 0),
                       other_axis=(0, 0, 1)),
         SlideLoop("guide", None, "piston")],
    )  # fmt: skip
    pin, wrist = crank.apply([a, 0, 0]), [reach, 0, 0]
    q = [*pose([0, 0, 0], crank), *pose(pin, rod), *pose(wrist, about((0, 0, 1), 0.0))]
    found = run(space, jnp.asarray(q))
    angles = 2 * np.arctan2(-found.q[:, 5], found.q[:, 3])
    exact = a * np.cos(angles) + np.sqrt(length**2 - (a * np.sin(angles)) ** 2)
    np.testing.assert_allclose(found.q[:, 14], exact, atol=EXACT)
    assert abs(angles[-1] - phi) > 0.3

    down = (0, -1, 0)
    plane = Multibody(
        [bar("crank", Hinge("phi", down), a),
         bar("rod", Hinge("psi", down), length, (a, 0, 0), "crank"),
         bar("piston", Hinge("chi", down), 0, (length, 0, 0), "rod")],
        [PointOnPlane("guide", None, "piston"),
         Perpendicular("level", None, "piston", (0, 0, 1), (1, 0, 0))],
    )  # fmt: skip
    same = run(plane, jnp.array([phi, psi - phi, -psi]))
    np.testing.assert_allclose(same.q[:, 0], angles, atol=EXACT)


@pytest.mark.slow
def test_a_shaft_with_a_universal_joint_has_cardans_ratio():
    """`tan(c) = cos(b) tan(a)` with the bend `b` and the angles `a`, `c` of both shafts."""
    bend, spin = 0.6, 6.0
    bent = about((1, 0, 0), bend)
    cross = {"axis": (1, 0, 0), "other_axis": (0, 1, 0)}
    bush = PointOnLine("bush", None, "out", other=(0, 0, 0.4), axis=bent.apply([0, 0, 1]))

    def shafts(one, two, parent=None):
        return [
            Body("in", one, mass=1.0, inertia=(0.1, 0.1, 0.05)),
            Body("out", two, parent, mass=1.0, centre=(0, 0, 0.2), inertia=(0.1, 0.1, 0.03)),
        ]

    space = Multibody(
        shafts(Free("in"), Free("out")),
        [HingeLoop("bearing", None, "in"), UniversalLoop("cross", "in", "out", **cross), bush],
    )
    q = jnp.asarray([*pose([0, 0, 0], about((1, 0, 0), 0.0)), *pose([0, 0, 0], bent)])
    spins = {"in": [0, 0, spin], "out": [0, 0, spin * np.cos(bend)]}
    found = run(space, q, speeds(space, q, spins))
    one, two = (Rotation.from_quat(found.q[:, i : i + 4], scalar_first=True) for i in (3, 10))
    cos_a, sin_a, _ = one.apply([1.0, 0.0, 0.0]).T
    sin_c, cos_c, _ = (bent.inv() * two).apply([0.0, 1.0, 0.0]).T * [[-1.0], [1.0], [1.0]]
    np.testing.assert_allclose(sin_c * cos_a, np.cos(bend) * sin_a * cos_c, atol=EXACT)
    angle = np.unwrap(np.arctan2(sin_a, cos_a))
    assert angle[-1] > 1.5

    tree = Multibody(shafts(Hinge("a"), universal("cross", **cross), "in"), [bush])
    q = jnp.array([0.0, bend, 0.0])
    jac = jax.jacfwd(lambda q: tree.position_constraints(0.0, q))(q)
    others = -np.linalg.solve(jac[:, 1:], jac[:, 0])
    same = run(tree, q, spin * jnp.array([1.0, *others]))
    np.testing.assert_allclose(same.q[:, 0], angle, atol=EXACT)


# Of a crank about z and a rocker about y, with a rod between them: radii, pivot, angles at start.
CRANK, ROCKER, PIVOT, START = 0.2, 0.5, (0.3, 0.6, 0.1), (0.3, 1.2)
PIN = about((0, 0, 1), START[0]).apply([CRANK, 0, 0])
LENGTH = float(np.linalg.norm(PIN - PIVOT - about((0, 1, 0), START[1]).apply([ROCKER, 0, 0])))


def crank_and_rocker(crank, rocker, *loops):
    """With the rod as it is where they start."""
    bodies = [bar("crank", crank, CRANK), bar("rocker", rocker, ROCKER, PIVOT)]
    rod = Rod("rod", "crank", "rocker", (CRANK, 0, 0), (ROCKER, 0, 0), LENGTH)
    return Multibody(bodies, [*loops, rod])


RELATIVE = crank_and_rocker(Hinge("theta", (0, 0, 1)), Hinge("phi", (0, 1, 0)))


@pytest.mark.slow
def test_a_spatial_four_bar_with_a_rod():
    """Two hinges on axes that do not meet, and a rod between balls: one equation, or eleven."""
    found = run(RELATIVE, jnp.array(START))
    space = crank_and_rocker(
        Free("crank"), Free("rocker"), HingeLoop("pin", None, "crank"),
        HingeLoop("pivot", None, "rocker", PIVOT, axis=(0, 1, 0)),
    )  # fmt: skip
    turns = about((0, 0, 1), START[0]), about((0, 1, 0), START[1])
    same = run(space, jnp.asarray([*pose([0, 0, 0], turns[0]), *pose(PIVOT, turns[1])]))
    angles = 2 * np.arctan2(same.q[:, [6, 12]], same.q[:, [3, 10]])
    np.testing.assert_allclose(found.q, angles, atol=EXACT)
    assert np.ptp(found.q[:, 0]) > 0.05


@pytest.mark.slow
def test_a_four_bar_of_planar_bodies():
    """Three coordinates for each body, and two equations for each of four pins."""
    lengths = {"crank": 0.3, "coupler": 0.9, "rocker": 0.3}
    down, pivot = (0, -1, 0), (0.9, 0, 0)
    pins = [
        Connection("base 1", None, "crank", axes="xz"),
        Connection("pin 1", "crank", "coupler", (0.3, 0, 0), axes="xz"),
        Connection("pin 2", "coupler", "rocker", pivot, (0.3, 0, 0), "xz"),
        Connection("base 2", None, "rocker", pivot, axes="xz"),
    ]
    bodies = [bar(name, planar(name, down, (1, 0, 0)), x) for name, x in lengths.items()]
    tip = 0.3 * np.array([np.cos(1.0), np.sin(1.0)])
    found = run(Multibody(bodies, pins), jnp.array([0, 0, 1.0, *tip, 0, 0.9, 0, 1.0]))
    chain = Multibody(
        [bar("crank", Hinge("a", down), 0.3),
         bar("coupler", Hinge("b", down), 0.9, (0.3, 0, 0), "crank"),
         bar("rocker", Hinge("c", down), 0.3, pivot)],
        [Connection("pin", "coupler", "rocker", pivot, (0.3, 0, 0), "xz")],
    )  # fmt: skip
    same = run(chain, jnp.array([1.0, -1.0, 1.0]))
    np.testing.assert_allclose(found.q[:, [2, 8]], same.q[:, [0, 2]], atol=EXACT)


@pytest.mark.slow
def test_derivatives_by_a_rod_and_an_axis():
    """In both modes as central differences, beside a rod that reaches nowhere."""

    def end(parameters):
        length, tilt = parameters
        system = eqx.tree_at(
            lambda x: (x.loops[-1].length, x.bodies[1].joints[0].axis),
            RELATIVE,
            (length, jnp.stack([tilt, 1.0, 0.0])),
        )
        start = jaxdae.consistent_state(system, jnp.array(START), jnp.zeros(2))
        options = {"solver": RK4(), "backend": "native", "throw": False}
        run = jaxdae.simulate(system, jaxdae.Multipliers(), start, t1=0.1, dt=0.01, **options)
        return run.q[-1, 0]

    point, h = jnp.array([LENGTH, 0.0]), 1e-5
    far = point.at[0].set(7.0)
    beside = [point + h * e for e in np.concatenate([np.eye(2), -np.eye(2)])]
    values = jax.vmap(end)(jnp.stack([*beside, far]))
    forward, reverse = (jax.vmap(x(end))(jnp.stack([point, far])) for x in (jax.jacfwd, jax.grad))
    np.testing.assert_allclose(forward[0], (values[:2] - values[2:4]) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(reverse[0], forward[0], rtol=1e-9)
    assert not np.isfinite(values[-1])
