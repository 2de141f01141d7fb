"""Mechanisms at random: trees and loops from a seed, assembled from rough guesses and simulated.

    python experiments/random_mechanisms.py [--draws 16] [--out results/random_mechanisms]

    python experiments/random_mechanisms.py --compare 0 3 6 11 12 20 22
    python experiments/random_mechanisms.py --summary results/trials

A kind is a structure (bodies, joints, closing joints, forces); each draw of it has other numbers.
Records are appended to a file, and those that are there are not made again.
"""

import argparse
import importlib
import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, finish, listed
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae import multibody as mb
from jaxdae.compiled import BRIEFLY, jit

# Structures: their family, and what closes loops, rolls or drives.
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("planar trees", ()),
    ("spatial trees", ()),
    ("planar loops", ("connection",)),
    ("spatial loops", ("connection",)),
    ("two loops", ("rod", "point on plane")),
    ("redundant loops", ("hinge",)),
    ("gears and drives", ("gears",)),
    ("rolling", ("sphere",)),
    ("four-bars that fold", ("parallelogram",)),
    ("spatial loops", ("hinge",)),
    ("spatial loops", ("slide",)),
    ("planar trees", ("springs",)),
    ("spatial trees", ("springs",)),
    ("planar loops", ("rod",)),
    ("spatial loops", ("cylindrical",)),
    ("two loops", ("line", "surface")),
    ("redundant loops", ("twice",)),
    ("gears and drives", ("rack",)),
    ("rolling", ("wheel",)),
    ("four-bars that fold", ("kite",)),
    ("spatial loops", ("plane",)),
    ("spatial loops", ("universal",)),
    ("spatial trees", ("free",)),
    ("planar loops", ("point on plane", "springs")),
    ("spatial loops", ("screw",)),
    ("two loops", ("perpendicular", "connection")),
    ("gears and drives", ("prescribed",)),
    ("rolling", ("skate",)),
    ("four-bars that fold", ("equal sums",)),
    ("spatial loops", ("weld",)),
    ("two loops", ("curve", "prescribed point")),
    ("gears and drives", ("polynomial",)),
)
LAW = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
FOLDING = jaxdae.Multipliers(solve=jaxdae.SingularityRobust())
DURATION = 1.0
# Of motions in two kinds of coordinates [s].
MOVED = 0.5
# Residuals of positions that the stabilization leaves of errors of 1e-8 in each step, and the part
# of the largest energy that a balance may be off by; a run beyond them that says nothing is wrong.
RESIDUAL, BALANCE = 1e-6, 1e-6
# One of so many draws of a kind of loops was not built to close.
_OPEN = 8
# Of accelerations of one mechanism in two sets of coordinates: round-off in its equations.
AGREEMENT = 1e-8


class Mechanism(NamedTuple):
    """A mechanism to be assembled.

    Args:
        family: a name of `KINDS`.
        system: it.
        guess: rough coordinates.
        law: its formulation.
        controller: of its motor, or `None`.
        speeds: velocities before they are made consistent.
        closable: whether it was built so that its loops close.
    """

    family: str
    system: mb.Multibody
    guess: np.ndarray
    law: Any
    controller: Any
    speeds: np.ndarray
    closable: bool


class Sine(eqx.Module):
    """A value that oscillates in time."""

    middle: Any
    size: Any
    rate: Any

    def __call__(self, t, *state):
        return self.middle + self.size * jnp.sin(self.rate * t)


class Torque(eqx.Module):
    """The input of a motor."""

    size: Any
    rate: Any

    def __call__(self, t, q, v, w):
        return jnp.sin(self.rate * t)[None] * self.size


class Sphere(eqx.Module):
    """Distance from a sphere."""

    radius: Any

    def __call__(self, x):
        return jnp.sqrt(x @ x) - self.radius


class Parabola(eqx.Module):
    """A curve in space, through a place, by its distance along two directions."""

    place: Any
    bend: Any

    def __call__(self, x):
        apart = x - self.place
        return apart[1:] - self.bend * apart[0] ** 2


def unit(rng) -> np.ndarray:
    """A direction."""
    x = rng.normal(size=3)
    return x / np.linalg.norm(x)


def quaternion(turn) -> np.ndarray:
    """Scalar part first."""
    return Rotation.from_matrix(np.asarray(turn)).as_quat(scalar_first=True)


def body(name, joints, parent, rng, position, turn=None, planar=False) -> mb.Body:
    """A box of random sides, with its centre beside the origin of its axes."""
    sides, mass = rng.uniform(0.05, 0.6, 3), rng.uniform(0.5, 3.0)
    inertia = mass / 12 * np.diag((sides @ sides) - sides**2)
    centre = rng.uniform(-0.3, 0.3, 3)
    if planar:
        centre[1] = 0.0
    else:
        about = Rotation.from_rotvec(rng.normal(size=3)).as_matrix()
        inertia = about @ inertia @ about.T
    orientation = (1.0, 0.0, 0.0, 0.0) if turn is None else quaternion(turn)
    return mb.Body(
        name, joints, parent, position, orientation, mass=mass, centre=centre, inertia=inertia
    )


def passive(rng, with_springs: bool) -> dict[str, float]:
    """Spring and damper of a joint."""
    if not with_springs:
        return {}
    return {"stiffness": rng.uniform(1.0, 30.0), "damping": rng.uniform(0.01, 0.5)}


def tree_joint(kind: str, name: str, rng, springs: bool):
    """A joint of a tree."""
    axis = unit(rng)
    anchor = rng.uniform(-0.2, 0.2, 3)
    if kind == "hinge":
        return mb.Hinge(name, axis, anchor=anchor, **passive(rng, springs))
    if kind == "slide":
        return mb.Slide(name, axis, **passive(rng, springs))
    if kind == "screw":
        return mb.Screw(name, axis, anchor=anchor, pitch=rng.uniform(0.05, 0.3))
    if kind == "ball":
        return mb.Ball(name, anchor)
    if kind == "universal":
        other = np.cross(axis, unit(rng))
        return mb.universal(name, axis, other, anchor)
    if kind == "cylindrical":
        return mb.cylindrical(name, axis, anchor)
    if kind == "planar":
        return mb.planar(name, axis)
    return mb.Free(name)


SPATIAL = ("hinge", "hinge", "ball", "slide", "screw", "universal", "cylindrical", "planar")
FREEDOMS = {"hinge": 1, "slide": 1, "screw": 1, "ball": 3, "universal": 2, "cylindrical": 2,
            "planar": 3, "free": 6}  # fmt: skip


def spatial_tree(shape, rng, least: int, most: int, chain=False, free=False, springs=False):
    """Bodies on joints in space; a chain has each on the one before."""
    count = shape.integers(least, most + 1)
    bodies: list[mb.Body] = []
    for i in range(count):
        kind = shape.choice(SPATIAL)
        parent = None if i == 0 else (f"b{i - 1}" if chain else f"b{shape.integers(i)}")
        if free and i == 0:
            kind = "free"
        turn = Rotation.from_rotvec(rng.normal(size=3)).as_matrix()
        joints = tree_joint(kind, f"j{i}", rng, springs)
        bodies.append(body(f"b{i}", joints, parent, rng, rng.uniform(-0.6, 0.6, 3), turn))
    return bodies


def planar_tree(shape, rng, least: int, most: int, chain=False, springs=False):
    """Bars on pins and guides in the plane of x and z."""
    bodies: list[mb.Body] = []
    for i in range(shape.integers(least, most + 1)):
        parent = None if i == 0 else (f"b{i - 1}" if chain else f"b{shape.integers(i)}")
        angle = rng.uniform(-3, 3)
        if shape.random() < 0.25 and i:
            along = (np.cos(angle), 0, np.sin(angle))
            joint = mb.Slide(f"j{i}", along, **passive(rng, springs))
        else:
            joint = mb.Hinge(f"j{i}", (0, -1, 0), **passive(rng, springs))
        place = rng.uniform(0.3, 0.8) * np.array([np.cos(angle), 0, np.sin(angle)])
        bodies.append(body(f"b{i}", joint, parent, rng, place, planar=True))
    return bodies


def configuration(system: mb.Multibody, rng, size: float) -> np.ndarray:
    """Coordinates around those of the declaration."""
    q = []
    for joint in system.joints():
        if joint.size == 7:
            turn = Rotation.from_rotvec(size * rng.normal(size=3)).as_quat(scalar_first=True)
            q += [*(np.asarray(joint.place) + size * rng.normal(size=3)), *turn]
        elif joint.size == 4:
            q += [*Rotation.from_rotvec(size * rng.normal(size=3)).as_quat(scalar_first=True)]
        else:
            slide = isinstance(joint, mb.Slide)
            q.append(size * (0.3 if slide else 1.0) * rng.normal())
    return np.asarray(q)


def near(system: mb.Multibody, q, rng, size: float) -> np.ndarray:
    """A rough guess beside coordinates."""
    found = q + size * rng.normal(size=q.size)
    i = 0
    for joint in system.joints():
        if joint.size >= 4:
            turn = slice(i + joint.size - 4, i + joint.size)
            found[turn] /= np.linalg.norm(found[turn])
        i += joint.size
    return found


# Closing joints, and how many freedoms each takes.
CLOSING = {
    "connection": 3, "hinge": 5, "slide": 5, "cylindrical": 4, "plane": 3, "universal": 4,
    "screw": 5, "weld": 6, "rod": 1, "line": 2, "point on plane": 1, "surface": 1, "curve": 2,
    "perpendicular": 1, "prescribed point": 1,
}  # fmt: skip


def closing(kind: str, name: str, first, second, poses, rng, gap=0.0):
    """A closing joint that holds where the bodies have these poses, but for a gap."""
    one, two = (jax.tree.map(np.asarray, poses[x]) for x in (first, second))
    relative = one.turn.T @ two.turn
    anchor, axis = rng.uniform(-0.3, 0.3, 3), unit(rng)
    other = two.turn.T @ (one.turn @ anchor + one.place - two.place) + gap * unit(rng)
    pair = (name, first, second, anchor, other)
    across = np.cross(axis, unit(rng))
    across /= np.linalg.norm(across)
    image = relative.T @ axis
    if kind == "connection":
        return mb.Connection(*pair)
    if kind == "hinge":
        return mb.HingeLoop(*pair, axis, image)
    if kind == "slide":
        return mb.SlideLoop(*pair, axis, quaternion(relative))
    if kind == "cylindrical":
        return mb.CylindricalLoop(*pair, axis, image)
    if kind == "plane":
        return mb.PlanarLoop(*pair, axis, image)
    if kind == "universal":
        return mb.UniversalLoop(*pair, axis, relative.T @ across)
    if kind == "screw":
        return mb.ScrewLoop(*pair, axis, rng.uniform(0.05, 0.3), quaternion(relative))
    if kind == "weld":
        return mb.Weld(*pair, quaternion(relative))
    if kind == "line":
        return mb.PointOnLine(*pair, axis)
    if kind == "point on plane":
        return mb.PointOnPlane(*pair, axis)
    if kind == "perpendicular":
        return mb.Perpendicular(name, first, second, axis, relative.T @ across)
    far = rng.uniform(-0.4, 0.4, 3)
    apart = one.turn.T @ (two.place + two.turn @ far - one.place) - anchor
    if kind == "rod":
        return mb.Rod(name, first, second, anchor, far, np.linalg.norm(apart) + gap)
    if kind == "surface":
        surface = Sphere(jnp.asarray(np.linalg.norm(apart) + gap))
        return mb.PointOnSurface(name, first, second, anchor, far, function=surface)
    if kind == "curve":
        curve = Parabola(jnp.asarray(apart), jnp.asarray(rng.normal(size=2)))
        return mb.PointOnCurve(name, first, second, anchor, far, function=curve)
    place = float((two.place + two.turn @ far)[2])
    path = Heave(jnp.asarray(place + gap), jnp.asarray(0.05), jnp.asarray(3.0))
    return mb.PrescribedPoint(name, second, path, far, "z")


class Heave(eqx.Module):
    """A place whose height oscillates."""

    middle: Any
    size: Any
    rate: Any

    def __call__(self, t):
        height = self.middle + self.size * jnp.sin(self.rate * t)
        return jnp.stack([0.0 * height, 0.0 * height, height])


def forces(shape, rng, bodies):
    """A spring with a damper between two bodies, and at times a bushing, a stop or a motor."""
    found: list[Any] = []
    ends = [mb.Marker(x, rng.uniform(-0.3, 0.3, 3)) for x in (None, bodies[-1].name)]
    spring = {"stiffness": rng.uniform(5, 100), "relaxed": rng.uniform(0.1, 1.0)}
    if shape.random() < 0.6:
        found.append(
            mb.SpringDamper("spring", mb.Distance(*ends), **spring, damping=rng.uniform(0.1, 3))
        )
    if shape.random() < 0.2:
        found.append(mb.Bushing("bushing", ends[0], ends[1], 30.0, 1.0, 1.0, 0.1))
    if shape.random() < 0.2 and len(bodies) > 1:
        found.append(mb.GravityCompensation("balance", bodies[0].name, 0.5))
    return found


def driven(shape, rng, bodies):
    """A motor along the first hinge or slide, or none."""
    joints = [x for b in bodies for x in b.joints if x.size == 1]
    if not joints or shape.random() < 0.6:
        return (), None
    motor = mb.Motor("motor", joints[0].name)
    return (motor,), Torque(jnp.asarray(rng.uniform(0.5, 3)), jnp.asarray(rng.uniform(1, 9)))


def freedoms(bodies) -> int:
    """Of the joints of a tree."""
    return sum(x.freedoms for b in bodies for x in b.joints)


def _closed(shape, rng, bodies, closings, gap, planar=False):
    """A tree with these closing joints, with which it has a rough guess."""
    tree = mb.Multibody(bodies)
    reference = configuration(tree, rng, 0.5)
    poses = tree.poses(jnp.asarray(reference))
    loops = []
    for i, kind in enumerate(closings):
        second = bodies[-1 - i].name
        if planar:
            loops.append(_planar_closing(kind, f"c{i}", second, poses, rng, gap))
        else:
            above = [x.name for x in bodies[: max(len(bodies) - 2 - i, 0)]]
            first = str(shape.choice(above)) if above and shape.random() < 0.4 else None
            loops.append(closing(kind, f"c{i}", first, second, poses, rng, gap))
    motors, controller = driven(shape, rng, bodies)
    system = mb.Multibody(bodies, loops, motors, forces=forces(shape, rng, bodies))
    return system, near(system, reference, rng, 0.15), controller


def _planar_closing(kind, name, second, poses, rng, gap):
    """Joints of a plane, to the ground."""
    two = jax.tree.map(np.asarray, poses[second])
    other = rng.uniform(-0.4, 0.4, 3) * [1, 0, 1]
    place = two.place + two.turn @ other
    angle = rng.uniform(-3, 3)
    along = np.array([np.cos(angle), 0, np.sin(angle)])
    if kind == "connection":
        return mb.Connection(name, None, second, place + gap * along, other, "xz")
    if kind == "point on plane":
        return mb.PointOnPlane(name, None, second, place + gap * along, other, along)
    far = place + rng.uniform(0.3, 1.0) * along
    length = np.linalg.norm(far - place) * (1 + gap)
    return mb.Rod(name, None, second, far, other, length)


def _redundant(shape, rng, variant):
    """A planar chain in space, closed by joints that have more equations than the plane."""
    bodies = planar_tree(shape, rng, 3, 4, chain=True)
    bodies = [
        mb.Body(x.name, mb.Hinge(f"j{i}", (0, -1, 0)), x.parent, x.position, mass=x.mass,
                centre=x.centre, inertia=x.inertia)
        for i, x in enumerate(bodies)
    ]  # fmt: skip
    tree = mb.Multibody(bodies)
    reference = configuration(tree, rng, 0.6)
    two = jax.tree.map(np.asarray, tree.poses(jnp.asarray(reference))[bodies[-1].name])
    other = np.array([rng.uniform(0.2, 0.5), 0.0, 0.0])
    anchor = two.place + two.turn @ other
    pair = ("c0", None, bodies[-1].name, anchor, other)
    loops: list[Any] = [mb.HingeLoop(*pair, (0, 1, 0))]
    if variant == "twice":
        loops.append(mb.Connection("c1", *pair[1:]))
    # Springs pull it out of its plane, which costs nothing but reactions.
    system = mb.Multibody(bodies, loops, forces=forces(shape, rng, bodies))
    return system, near(system, reference, rng, 0.15), None


def _geared(shape, rng, kind):
    """Two wheels on hinges, with a pendulum on one of them, coupled or driven."""
    hinge = lambda i, **more: mb.Hinge(f"j{i}", (0, 0, 1), **more)  # noqa: E731
    bodies = [
        body("b0", hinge(0), None, rng, (0, 0, 0)),
        body("b1", hinge(1), None, rng, (0.8, 0, 0)),
        body("b2", mb.Hinge("j2", unit(rng)), "b0", rng, rng.uniform(-0.3, 0.3, 3)),
    ]
    if kind == "rack":
        bodies[1] = body("b1", mb.planar("j1", (0, 0, 1), (1, 0, 0)), None, rng, (0, 0.5, 0))
    tree = mb.Multibody(bodies)
    q = configuration(tree, rng, 0.4)
    if kind == "gears":
        teeth = (int(shape.integers(8, 30)), -int(shape.integers(8, 30)))
        phase = teeth[0] * q[0] + teeth[1] * q[1]
        loops = [mb.GearPair("c0", "b0", "b1", None, teeth=teeth, phase=phase)]
    elif kind == "polynomial":
        loops = [mb.Coupling("c0", "j0", "j1", 0.3 * rng.normal(size=4))]
    elif kind == "rack":
        q[1], q[2] = 0.3 * q[1], 0.0
        loops = [
            mb.RackAndPinion("c0", None, "b1", (0, 0.5, 0), radius=rng.uniform(0.1, 0.4)),
            mb.PointOnPlane("c1", None, "b1", (0, 0.5, 0), normal=(0, 1, 0)),
        ]
    else:
        middle, size, rate = map(jnp.asarray, (rng.normal(), rng.normal(), rng.uniform(1, 6)))
        loops = [mb.PrescribedJoint("c0", "j0", Sine(middle, size, rate))]
    system = mb.Multibody(bodies, loops, forces=forces(shape, rng, bodies))
    # Teeth mesh in many places; a guess is within half a tooth.
    return system, near(system, q, rng, 0.002 if kind == "gears" else 0.1), None


def _rolling(shape, rng, kind):
    """A ball, wheel or blade on the ground, with a pendulum on it."""
    radius = rng.uniform(0.2, 0.5)
    if kind == "skate":
        joints = mb.planar("j0", (0, 0, 1))
        loops = [mb.Skate("c0", "b0", None)]
        q0 = [0.1, -0.2, rng.normal()]
    else:
        joints = mb.Free("j0")
        one = mb.RollingSphere if kind == "sphere" else mb.RollingWheel
        loops = [one("c0", "b0", None, radius=radius)]
        turn = Rotation.from_rotvec(0.2 * rng.normal(size=3)).as_quat(scalar_first=True)
        q0 = [0, 0, radius, *turn]
    base = body("b0", joints, None, rng, (0, 0, 0))
    base = mb.Body("b0", base.joints, mass=base.mass, inertia=base.inertia)
    bodies = [base, body("b1", mb.Hinge("j1", unit(rng)), "b0", rng, (0.05, 0.02, 0.03))]
    system = mb.Multibody(bodies, loops, forces=forces(shape, rng, bodies[:1]))
    return system, np.array([*q0, 0.3 * rng.normal()]), None


def _folding(shape, rng, kind):
    """A four-bar whose two sums of lengths are equal: all bars come to lie in one line."""
    a, b = rng.uniform(0.3, 0.6), rng.uniform(0.8, 1.2)
    if kind == "parallelogram":
        crank, coupler, rocker, ground = a, b, a, b
    elif kind == "kite":
        crank, coupler, rocker, ground = a, b, b, a
    else:
        crank, ground, rocker = a, a + 0.3 * b, b
        coupler = crank + ground - rocker if crank + ground - rocker > 0.2 else rocker
        ground = coupler + rocker - crank
    down = (0, -1, 0)
    bar = lambda x: {"mass": rng.uniform(0.5, 2.0), "centre": (0.5 * x, 0, 0),  # noqa: E731
                     "inertia": (0.0, 0.05 * x**2, 0.05 * x**2)}  # fmt: skip
    bodies = [
        mb.Body("crank", mb.Hinge("crank", down), **bar(crank)),
        mb.Body("coupler", mb.Hinge("coupler", down), "crank", (crank, 0, 0), **bar(coupler)),
        mb.Body("rocker", mb.Hinge("rocker", down), None, (ground, 0, 0), **bar(rocker)),
    ]
    pin = mb.Connection("pin", "coupler", "rocker", (coupler, 0, 0), (rocker, 0, 0), "xz")
    angle = rng.uniform(0.5, 1.2)
    system = mb.Multibody(bodies, [pin])
    diagonal = np.array([ground - crank * np.cos(angle), -crank * np.sin(angle)])
    reach = np.linalg.norm(diagonal)
    cosine = np.clip((coupler**2 + reach**2 - rocker**2) / (2 * coupler * reach), -1, 1)
    second = np.arctan2(diagonal[1], diagonal[0]) + np.arccos(cosine)
    end = crank * np.array([np.cos(angle), np.sin(angle)]) + coupler * np.array(
        [np.cos(second), np.sin(second)]
    )
    third = np.arctan2(end[1], end[0] - ground)
    guess = np.array([angle, second - angle, third]) + 0.05 * rng.normal(size=3)
    return system, guess, None


def mechanism(kind: int, draw: int) -> Mechanism:
    """The mechanism of a kind and a draw, its numbers as arrays, with which nothing compiles anew.

    Args:
        kind: number of the structure in `KINDS`.
        draw: number of its lengths, masses and velocities.
    """
    made = _mechanism(kind, draw)
    array = lambda x: jnp.asarray(x) if isinstance(x, float) else x  # noqa: E731
    return made._replace(system=jax.tree.map(array, made.system))


def _mechanism(kind: int, draw: int) -> Mechanism:
    family, variants = KINDS[kind]
    shape, rng = np.random.default_rng([kind, 0]), np.random.default_rng([kind, 1, draw])
    gap, springs = 0.0, "springs" in variants
    closings = [x for x in variants if x != "springs"]
    if "loops" in family and family != "redundant loops" and draw % _OPEN == _OPEN - 1:
        gap = rng.uniform(0.02, 0.6)
    law = FOLDING if family == "four-bars that fold" else LAW
    if family == "planar trees":
        made = _closed(shape, rng, planar_tree(shape, rng, 2, 5, springs=springs), (), 0.0)
    elif family == "spatial trees":
        free = "free" in variants
        bodies = spatial_tree(shape, rng, 2, 4, free=free, springs=springs)
        made = _closed(shape, rng, bodies, (), 0.0)
    elif family == "planar loops":
        bodies = planar_tree(shape, rng, 3, 4, chain=True, springs=springs)
        made = _closed(shape, rng, bodies, closings, gap, planar=True)
    elif family in ("spatial loops", "two loops"):
        needed = sum(CLOSING[x] for x in closings)
        while not needed < freedoms(bodies := spatial_tree(shape, rng, 2, 4, True)) <= needed + 3:
            pass
        made = _closed(shape, rng, bodies, closings, gap)
    else:
        others = {
            "redundant loops": _redundant, "gears and drives": _geared, "rolling": _rolling,
            "four-bars that fold": _folding,
        }  # fmt: skip
        made = others[family](shape, rng, closings[0])
    system, guess, controller = made
    speeds = rng.normal(size=system.start().v.size)
    if family == "four-bars that fold":
        speeds = np.array([-8.0, 0.0, 0.0]) * rng.uniform(0.7, 1.3)
    return Mechanism(family, system, guess, law, controller, speeds, gap == 0)


def examined(kind: int, draw: int) -> dict[str, Any]:
    """What the library makes of a mechanism, as numbers, or in words why there are none."""
    made = mechanism(kind, draw)
    system = made.system
    record: dict[str, Any] = {
        "kind": kind, "draw": draw, "family": made.family, "bodies": len(system.bodies),
        "closing": [type(x).__name__ for x in system.loops], "built_to_close": made.closable,
    }  # fmt: skip
    try:
        state = mb.assemble(system, made.guess)
        state = jaxdae.consistent_state(system, state.q, made.speeds)
    except jaxdae.ConsistencyError as error:
        kind_of = "open" if isinstance(error, mb.AssemblyError) else "velocities"
        return record | {"refused": kind_of, "why": str(error)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = jaxdae.simulate(
                system, made.law, state, t1=DURATION, controller=made.controller, work=True,
                backend=BACKEND,
            )  # fmt: skip
        except (jaxdae.SimulationError, ValueError) as error:
            return record | {"refused": "run", "why": str(error)}
        found = jax.tree.map(np.asarray, _numbers(system, run.ts, run.states, run.work))
    residual = np.abs(found["phi"]).max(initial=0.0)
    scale = 1.0 + np.abs(found["kinetic"]).max()
    off = found["energy"] - found["energy"][0] - found["work"]
    record |= {
        "residual": float(residual),
        "balance": float(np.abs(off).max() / scale),
        "moved": float(np.abs(np.asarray(run.q) - np.asarray(run.q)[0]).max()),
        "steps": int(run.stats["num_steps"]),
        "warnings": sorted({_short(str(x.message)) for x in said}),
    }
    if not record["warnings"] and not (residual <= RESIDUAL and record["balance"] <= BALANCE):
        record["silent"] = True
    return record


@jit(options=BRIEFLY)
def _numbers(system, ts, states, work) -> dict[str, Any]:
    """Residuals, energies and work along a run."""

    def row(t, state):
        q, v = state.q, state.v
        kinetic = system.kinetic_energy(t, q, v)
        return {
            "phi": system.position_constraints(t, q),
            "kinetic": kinetic,
            "energy": kinetic + system.potential_energy(t, q),
        }

    return jax.vmap(row)(ts, states) | {"work": sum(work)}


BACKEND = "plain"


def _short(message: str) -> str:
    """A warning without its numbers."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "#", message)[:120]


def beside_mujoco(kind: int, draw: int) -> float | None:
    """How far accelerations of the tree alone are from MuJoCo's, as a part of the largest.

    Args:
        kind: number of the structure in `KINDS`.
        draw: number of its lengths, masses and velocities.

    Returns:
        The part; `None` for joints that MuJoCo has not.
    """
    mujoco: Any = importlib.import_module("mujoco")
    made = mechanism(kind, draw)
    tree = mb.Multibody(made.system.bodies)
    if any(isinstance(x, mb.Screw) for x in tree.joints()):
        return None
    model = mujoco.MjModel.from_xml_string(tree.to_mjcf())
    data = mujoco.MjData(model)
    q, v = made.guess, made.speeds
    places, velocities = [], []
    values, speeds = tree.values(jnp.arange(q.size)), tree.speeds(jnp.arange(v.size))
    for joint in tree.joints():
        number = model.joint(joint.name).id
        places += [(model.jnt_qposadr[number] + i, j) for i, j in enumerate(values[joint.name])]
        velocities += [(model.jnt_dofadr[number] + i, j) for i, j in enumerate(speeds[joint.name])]
    theirs, own = np.array(places, int).T
    data.qpos[theirs] = q[own]
    theirs, own = np.array(velocities, int).T
    data.qvel[theirs] = v[own]
    mujoco.mj_forward(model, data)
    terms = _terms(tree, jnp.asarray(q), jnp.asarray(v))
    found = np.linalg.solve(terms.mass, terms.force)
    wanted = np.empty_like(found)
    wanted[own] = data.qacc[theirs]
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@jit(options=BRIEFLY)
def _terms(system, q, v):
    return jaxdae.evaluate(system, jnp.zeros(()), q, v)


def records(path: Path) -> list[dict[str, Any]]:
    """Those that were kept."""
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def made(out: Path, draws: int, part: int, parts: int) -> None:
    """Examine those that are not kept yet; one that ends the process is known by its beginning."""
    out.mkdir(parents=True, exist_ok=True)
    kept, begun = out / f"records-{part}.jsonl", out / f"begun-{part}.jsonl"
    done = {(x["kind"], x["draw"]) for x in records(kept)}
    ended = [x for x in records(begun) if (x["kind"], x["draw"]) not in done]
    for one in ended:
        _append(kept, one | {"family": KINDS[one["kind"]][0], "unexplained": "the process ended"})
        done.add((one["kind"], one["draw"]))
    for kind in range(part, len(KINDS), parts):
        for draw in range(draws):
            if (kind, draw) in done:
                continue
            _append(begun, {"kind": kind, "draw": draw})
            try:
                record = examined(kind, draw)
            except Exception as error:  # whatever the library does not say in its own words
                record = {"kind": kind, "draw": draw, "family": KINDS[kind][0]}
                record["unexplained"] = f"{type(error).__name__}: {error}"[:1000]
            _append(kept, record)
        jax.clear_caches()


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def possible(system: mb.Multibody) -> bool:
    """Whether all bodies have inertias about all axes, as free bodies need."""
    return all(np.linalg.eigvalsh(np.asarray(x.inertia))[0] > 0 for x in system.bodies)


def compared(path: Path, kinds, draws: int) -> None:
    """Accelerations beside MuJoCo's and in absolute coordinates, appended to a file; motions, too.

    Args:
        path: of the file.
        kinds: numbers of structures in `KINDS`.
        draws: how many of each.
    """
    import absolute_coordinates

    for kind in kinds:
        for draw in range(draws):
            record = {"kind": kind, "draw": draw, "mujoco": beside_mujoco(kind, draw)}
            made = mechanism(kind, draw)
            if absolute_coordinates.is_suited(made.system):
                state = mb.assemble(made.system, made.guess)
                state = jaxdae.consistent_state(made.system, state.q, made.speeds)
                record["absolute"] = absolute_coordinates.difference(made.system, state)
                if draw == 0 and possible(made.system):
                    apart = absolute_coordinates.difference_in_motion(made.system, state, MOVED)
                    record["motion"] = apart
            _append(path, record)


def summary(found: list[dict[str, Any]], beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts and worst numbers by family, what was refused and why, and the comparisons.

    Args:
        found: records of mechanisms.
        beside: records of comparisons.
    """
    families = []
    for family in dict.fromkeys(x for x, _ in KINDS):
        of = [x for x in found if x["family"] == family]
        moved = [x for x in of if "residual" in x]
        families.append({
            "family": family,
            "kinds": len({x["kind"] for x in of}),
            "number": len(of),
            "moved": len(moved),
            **{x: sum(y.get("refused") == x for y in of) for x in ("open", "velocities", "run")},
            "unexplained": sum("unexplained" in x for x in of),
            "warned": sum(bool(x["warnings"]) for x in moved),
            "silent": sum("silent" in x for x in moved),
            "residual": max((x["residual"] for x in moved), default=None),
            "balance": max((x["balance"] for x in moved), default=None),
        })  # fmt: skip
    words = ("refused", "unexplained", "silent", "warnings")
    said = [x for x in found if any(x.get(y) for y in words)]
    numbers = {
        x: [y[x] for y in beside if y.get(x) is not None] for x in ("mujoco", "absolute", "motion")
    }
    return {
        "versions": {"jaxdae": jaxdae.__version__, "jax": jax.__version__},
        "duration": DURATION,
        "limits": {"residual": RESIDUAL, "balance": BALANCE},
        "families": families,
        "said": [{x: y for x, y in one.items() if x not in ("bodies", "steps")} for one in said],
        "compared": {x: {"number": len(y), "worst": max(y, default=None)} for x, y in
                     numbers.items()},
    }  # fmt: skip


def claims(found: dict[str, Any]) -> list[Claim]:
    """What the records show, from their summary."""
    count = lambda field: sum(x[field] for x in found["families"])  # noqa: E731
    worst = lambda field: max(x[field] or 0.0 for x in found["families"])  # noqa: E731
    return [
        Claim(
            f"Of {count('number')} mechanisms {count('moved')} moved, and every refusal says why.",
            count("unexplained") == 0,
        ),
        Claim(
            "No run is wrong in silence: residuals of positions are at most "
            f"{worst('residual'):.1e}, errors of the power balance {worst('balance'):.1e} of the "
            "kinetic energy.",
            count("silent") == 0,
        ),
    ]


def main() -> None:
    """As the first lines say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/random_mechanisms"))
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--compare", type=int, nargs="+", help="kinds, of which three draws each")
    parser.add_argument("--summary", type=Path, help="a folder for the numbers of the page")
    words = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    beside = words.out / "compared.jsonl"
    if words.compare:
        compared(beside, words.compare, 3)
    elif words.summary is None:
        made(words.out, words.draws, words.part, words.parts)
    else:
        kept = [y for x in sorted(words.out.glob("records-*.jsonl")) for y in records(x)]
        once = list({(x["kind"], x["draw"]): x for x in kept}.values())
        found = summary(once, records(beside))
        said = claims(found)
        finish(words.summary, "\n".join(["# Mechanisms at random", "", listed(said)]), found, said)


if __name__ == "__main__":
    main()
