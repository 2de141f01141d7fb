"""Closed mechanisms in absolute coordinates: known kinematics, and the same in relative ones.

Each has one freedom.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.analysis import mobility
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


def accelerations(system, q, v):
    """By Gauss's principle, of the joints or of the bodies."""
    terms = jaxdae.evaluate(system, 0.0, q, v)
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-14)
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-13)
    rows = terms.jac.shape[0]
    assert np.linalg.matrix_rank(terms.jac, 1e-2) == rows == len(v) - 1
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, np.zeros((rows, rows))]])
    return np.linalg.solve(matrix, [*terms.force, *-terms.gamma])[: len(v)]


@pytest.mark.slow
def test_a_slider_crank_in_space_and_in_a_plane():
    """`x = a cos(phi) + sqrt(l^2 - a^2 sin^2(phi))`; in a plane there are two equations."""
    a, length = 0.2, 0.5
    down, phi, rate = (0, -1, 0), 0.7, 3.0

    def rod(phi):
        return -jnp.arcsin(a * jnp.sin(phi) / length)

    def reach(phi):
        return a * jnp.cos(phi) + length * jnp.cos(rod(phi))

    plane = Multibody(
        [bar("crank", Hinge("phi", down), a),
         bar("rod", Hinge("psi", down), length, (a, 0, 0), "crank"),
         bar("piston", Hinge("chi", down), 0, (length, 0, 0), "rod")],
        [PointOnPlane("guide", None, "piston"),
         Perpendicular("level", None, "piston", (0, 0, 1), (1, 0, 0))],
    )  # fmt: skip
    psi, turning = (float(x) for x in jax.jvp(rod, (phi,), (rate,)))
    q, v = jnp.array([phi, psi - phi, -psi]), jnp.array([rate, turning - rate, -turning])
    crank, *others = accelerations(plane, q, v)

    space = Multibody(
        [bar("crank", Free("crank"), a), bar("rod", Free("rod"), length),
         bar("piston", Free("piston"), 0)],
        [HingeLoop("bearing", None, "crank", axis=(0, 1, 0)),
         Connection("pin", "crank", "rod", (a, 0, 0)),
         UniversalLoop("wrist", "rod", "piston", (length, 0, 0), axis=(0, 1, 0),
                       other_axis=(0, 0, 1)),
         SlideLoop("guide", None, "piston")],
    )  # fmt: skip
    turns = [about(down, phi), about(down, psi), about(down, 0.0)]
    pin = turns[0].apply([a, 0, 0])
    x, speed = jax.jvp(reach, (phi,), (rate,))
    q = [*pose([0, 0, 0], turns[0]), *pose(pin, turns[1]), *pose([x, 0, 0], turns[2])]
    velocity = np.cross([0, -rate, 0], pin)
    v = [0, 0, 0, 0, -rate, 0, *velocity, 0, -turning, 0, speed, 0, 0, 0, 0, 0]
    found = accelerations(space, jnp.asarray(q), jnp.asarray(v, float))
    np.testing.assert_allclose(found[4], -crank, rtol=1e-11)
    np.testing.assert_allclose(found[10], -(crank + others[0]), rtol=1e-11)
    # x'' = (dx/dphi) phi'' + (d2x/dphi2) phi'^2
    slope, curvature = jax.grad(reach)(phi), jax.grad(jax.grad(reach))(phi)
    np.testing.assert_allclose(found[12], slope * crank + curvature * rate**2, rtol=1e-11)


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
    flat = Multibody(
        [bar(name, planar(name, down, (1, 0, 0)), x) for name, x in lengths.items()], pins
    )
    chain = Multibody(
        [bar("crank", Hinge("a", down), 0.3),
         bar("coupler", Hinge("b", down), 0.9, (0.3, 0, 0), "crank"),
         bar("rocker", Hinge("c", down), 0.3, pivot)],
        [Connection("pin", "coupler", "rocker", pivot, (0.3, 0, 0), "xz")],
    )  # fmt: skip
    # A parallelogram: the coupler does not turn.
    rate, cos, sin = 2.0, 0.3 * np.cos(1.0), 0.3 * np.sin(1.0)
    q = jnp.array([0, 0, 1.0, cos, sin, 0, 0.9, 0, 1.0])
    v = rate * jnp.array([0, 0, 1.0, -sin, cos, 0, 0, 0, 1.0])
    found = accelerations(flat, q, v)
    expected = accelerations(chain, jnp.array([1.0, -1.0, 1.0]), rate * jnp.array([1.0, -1.0, 1.0]))
    np.testing.assert_allclose(found[[2, 5, 8]], [expected[0], 0.0, expected[2]], atol=1e-12)


@pytest.mark.slow
def test_a_shaft_with_a_universal_joint_has_cardans_ratio():
    """`tan(c) = cos(b) tan(a)` with the bend `b` and the angles `a`, `c` of both shafts."""
    bend, spin = 0.6, 6.0
    bent = about((1, 0, 0), bend)
    cross = {"axis": (1, 0, 0), "other_axis": (0, 1, 0)}
    bush = PointOnLine("bush", None, "out", other=(0, 0, 0.4), axis=bent.apply([0, 0, 1]))

    space = Multibody(
        [Body("in", Free("in"), mass=1.0, inertia=(0.1, 0.1, 0.05)),
         Body("out", Free("out"), mass=1.0, centre=(0, 0, 0.2), inertia=(0.1, 0.1, 0.03))],
        [HingeLoop("bearing", None, "in"), UniversalLoop("cross", "in", "out", **cross), bush],
    )  # fmt: skip
    q = jnp.asarray([*pose([0, 0, 0], about((1, 0, 0), 0.0)), *pose([0, 0, 0], bent)])
    v = spin * jnp.array([0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, np.cos(bend)])
    found = run(space, q, v)
    one, two = (Rotation.from_quat(found.q[:, i : i + 4], scalar_first=True) for i in (3, 10))
    cos_a, sin_a, _ = one.apply([1.0, 0.0, 0.0]).T
    sin_c, cos_c, _ = (bent.inv() * two).apply([0.0, 1.0, 0.0]).T * [[-1.0], [1.0], [1.0]]
    np.testing.assert_allclose(sin_c * cos_a, np.cos(bend) * sin_a * cos_c, atol=EXACT)
    angle = np.unwrap(np.arctan2(sin_a, cos_a))
    assert angle[-1] > 1.5


@pytest.mark.parametrize("angle", [0.4, 1.7, -2.5])
def test_bennetts_linkage_moves_where_the_count_says_it_does_not(angle):
    """Four hinges on skew axes, with `a / sin(alpha) = b / sin(beta)`: three of five equations are
    redundant, and `tan(x / 2) tan(y / 2) = sin((beta + alpha) / 2) / sin((beta - alpha) / 2)`.
    """
    alpha, beta, a = 0.6, 1.4, 0.5
    b = a * np.sin(beta) / np.sin(alpha)

    def link(name, length, twist, parent):
        hinge, half = Hinge(name, (0, 0, 1)), twist / 2
        return Body(name, hinge, parent, (length, 0, 0), (np.cos(half), np.sin(half), 0, 0),
                    mass=1.0, inertia=(1.0, 1.0, 1.0))  # fmt: skip

    last = HingeLoop(
        "last", "three", None, (a, 0, 0), (-b, 0, 0),
        (0, -np.sin(alpha), np.cos(alpha)), (0, np.sin(beta), np.cos(beta)),
    )  # fmt: skip
    bodies = [link("one", 0, 0, None), link("two", a, alpha, "one"), link("three", b, beta, "two")]
    system = Multibody(bodies, [last])
    ratio = np.sin((beta + alpha) / 2) / np.sin((beta - alpha) / 2)
    q = jnp.array([angle, 2 * np.arctan(ratio / np.tan(angle / 2)), -angle])
    np.testing.assert_allclose(system.position_constraints(0.0, q), 0.0, atol=1e-14)
    found = mobility(system, jaxdae.State(q, jnp.zeros(3)))
    assert (found.counted, found.degrees_of_freedom, found.regular) == (-2, 1, True)


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
def test_derivatives_by_a_rod_and_an_axis():
    """Of an acceleration, in both modes as central differences, beside a rod without length."""
    q, v = jnp.array(START), jnp.array([2.0, -1.0])

    def acceleration(parameters):
        radius, tilt, length = parameters
        system = eqx.tree_at(
            lambda x: (x.loops[-1].anchor, x.bodies[1].joints[0].axis, x.loops[-1].length),
            RELATIVE,
            (jnp.stack([radius, 0.0, 0.0]), jnp.stack([tilt, 1.0, 0.0]), length),
        )
        terms = jaxdae.evaluate(system, 0.0, q, v)
        matrix = jnp.block([[terms.mass, terms.jac.T], [terms.jac, jnp.zeros((1, 1))]])
        return jnp.linalg.solve(matrix, jnp.concatenate([terms.force, -terms.gamma]))[0]

    point, h = jnp.array([CRANK, 0.0, LENGTH]), 1e-5
    none = point.at[2].set(0.0)
    beside = [point + h * e for e in np.concatenate([np.eye(3), -np.eye(3)])]
    values = jax.jit(jax.vmap(acceleration))(jnp.stack([*beside, none]))
    forward, reverse = (
        jax.jit(jax.vmap(x(acceleration)))(jnp.stack([point, none])) for x in (jax.jacfwd, jax.grad)
    )
    differences = (values[:3] - values[3:6]) / (2 * h)
    np.testing.assert_allclose(forward[0], differences, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(reverse[0], forward[0], rtol=1e-11, atol=1e-12)
    assert not np.isfinite(values[-1])
