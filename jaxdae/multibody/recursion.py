r"""Dynamics of trees of bodies by recursion from joint to joint [Featherstone2008].

Links are what joints move: a body behind its last joint, and frames without mass between several
joints in a row. Everything of a link is in the frame of its joint. Twists are pairs of velocity and
angular velocity, wrenches of force and moment; an inertia maps a twist to a momentum,

    p = H^T omega + N v,        L = K omega + H v

The algorithms are Featherstone's: recursive Newton-Euler (chapter 5), composite rigid bodies
(chapter 6), articulated bodies (chapter 7). A joint of several velocities is eliminated velocity by
velocity.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.multibody import rotations
from jaxdae.multibody.bodies import Body
from jaxdae.multibody.joints import Free, Pose, Twist

# Entries of a symmetric matrix on and above the diagonal, and where each entry is among them.
_ROWS, _COLUMNS = np.triu_indices(3)
_PLACES = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])


class Wrench(NamedTuple):
    """A force and a moment about the origin of a frame, in its axes.

    Args:
        force: [N], shape `(3,)`.
        moment: [N m], shape `(3,)`.
    """

    force: Float[Array, " 3"]
    moment: Float[Array, " 3"]

    def plus(self, other: "Wrench") -> "Wrench":
        """Both together."""
        return Wrench(self.force + other.force, self.moment + other.moment)

    def times(self, factor) -> "Wrench":
        """A multiple."""
        return Wrench(self.force * factor, self.moment * factor)

    def power(self, twist: Twist) -> Float[Array, ""]:
        """Of the wrench at a twist [W]."""
        return self.force @ twist.velocity + self.moment @ twist.spin

    def on_parent(self, pose: Pose) -> "Wrench":
        """The same in a frame in which its own has a pose."""
        force = pose.turn @ self.force
        return Wrench(force, pose.turn @ self.moment + rotations.cross(pose.place, force))


class Inertia(NamedTuple):
    """The inertia of a body, or of several on joints, in a frame.

    Args:
        rotation: `K`, shape `(3, 3)`, symmetric.
        coupling: `H`, shape `(3, 3)`.
        translation: `N`, shape `(3, 3)`, symmetric.
    """

    rotation: Float[Array, "3 3"]
    coupling: Float[Array, "3 3"]
    translation: Float[Array, "3 3"]

    @classmethod
    def of(cls, body: Body, pose: Pose) -> "Inertia":
        """Of a body that has a pose in the frame."""
        centre, inertia = pose.point(body.centre), pose.turn @ body.inertia @ pose.turn.T
        moment = rotations.cross_matrix(body.mass * centre)
        rotation = inertia - moment @ rotations.cross_matrix(centre)
        return cls(rotation, moment, body.mass * rotations.none(centre.dtype))

    def plus(self, other: "Inertia") -> "Inertia":
        """Both together."""
        return Inertia(*(a + b for a, b in zip(self, other, strict=True)))

    def momentum(self, twist: Twist) -> Wrench:
        """Momentum and angular momentum about the origin; of an acceleration the wrench."""
        return Wrench(
            self.coupling.T @ twist.spin + self.translation @ twist.velocity,
            self.rotation @ twist.spin + self.coupling @ twist.velocity,
        )

    def without(self, momentum: Wrench, size) -> "Inertia":
        """Less what a direction with a momentum gives way, its inertia being `1 / size`."""
        force, moment = momentum
        return Inertia(
            self.rotation - _square(moment, moment * size),
            self.coupling - jnp.outer(moment * size, force),
            self.translation - _square(force, force * size),
        )

    def on_parent(self, pose: Pose) -> "Inertia":
        """The same in a frame in which its own has a pose."""
        turn, place = pose.turn, rotations.cross_matrix(pose.place)
        rotation, coupling, translation = (
            _turned(turn, self.rotation), turn @ self.coupling @ turn.T,
            _turned(turn, self.translation),
        )  # fmt: skip
        moved = coupling + place @ translation
        return Inertia(
            _symmetric(rotation + place @ coupling.T - moved @ place), moved, translation
        )


def _symmetric(matrix):
    """A symmetric matrix from its upper triangle: the rest need not be computed."""
    return matrix[_ROWS, _COLUMNS][_PLACES]


def _square(a, b):
    """`a b^T`, known to be symmetric."""
    return (a[_ROWS] * b[_COLUMNS])[_PLACES]


def _turned(turn, matrix):
    """`R A R^T` of a symmetric `A`."""
    half = turn @ matrix
    return jnp.sum(half[_ROWS] * turn[_COLUMNS], axis=1)[_PLACES]


def _together(new, known):
    """The sum of two twists, wrenches or inertias of one frame, of which one may be missing."""
    if known is None or new is None:
        return new if known is None else known
    return known.plus(new)


def _stacked(parts: list):
    return jax.tree.map(lambda *x: jnp.stack(x), *parts)


class Link(NamedTuple):
    """A frame that a joint moves.

    Args:
        joint: what moves it, an `AbstractJoint`.
        parent: number of the link that bears it; `None` is the ground.
        rest: its pose in that link's frame with the joint at rest.
        inertia: of what is fixed to it, or `None`.
        first: number of its first velocity.
        values: its coordinates among those of the tree.
    """

    joint: Any
    parent: int | None
    rest: Pose
    inertia: Inertia | None
    first: int
    values: slice

    @property
    def speeds(self) -> slice:
        """Its velocities among those of the tree."""
        return slice(self.first, self.first + self.joint.freedoms)


def links(bodies: Sequence[Body]) -> list[Link]:
    """The links of a tree, parents first. Bodies without joints are parts of what bears them."""
    found: list[Link] = []
    dtype = bodies[0].position.dtype
    origin = Pose(jnp.zeros(3, dtype), rotations.none(dtype))
    # Of each body the link that it is part of, and its pose there.
    parts: dict[str | None, tuple[int | None, Pose]] = {None: (None, origin)}
    coordinates = velocities = 0
    for body in bodies:
        parent, pose = parts[body.parent]
        # A free body is where its coordinates say, whatever pose it was declared with.
        pose = pose if body.free() else pose.then(body.at_rest())
        for joint in body.joints:
            at = joint.at
            rest = pose if at is None else Pose(pose.point(at), pose.turn)
            values = slice(coordinates, coordinates + joint.size)
            found.append(Link(joint, parent, rest, None, velocities, values))
            coordinates, velocities = coordinates + joint.size, velocities + joint.freedoms
            parent = len(found) - 1
            # Of the body, and of its next joint, in the frame of this one.
            pose = origin if at is None else Pose(-at, origin.turn)
        parts[body.name] = parent, pose
        if parent is not None:
            own, known = Inertia.of(body, pose), found[parent].inertia
            found[parent] = found[parent]._replace(inertia=_together(own, known))
    return found


class Motion(NamedTuple):
    """How the links of a tree move.

    Args:
        poses: of each in the frame of its parent.
        axes: of each, how it moves relative to its parent at each velocity 1.
        twists: of each, in its own frame.
        convective: of each, its acceleration relative to that of its parent at constant velocities.
    """

    poses: list[Pose]
    axes: list[tuple[Twist, ...]]
    twists: list[Twist]
    convective: list[Twist | None]


def configuration(tree: list[Link], q) -> tuple[list[Pose], list[tuple[Twist, ...]]]:
    """Poses of links in the frames of their parents, and the axes of their joints."""
    poses, axes = [], []
    for link in tree:
        values = q[link.values]
        poses.append(link.rest.then(link.joint.displacement(values)))
        axes.append(link.joint.axes(values))
    return poses, axes


def motion(tree: list[Link], q, v) -> Motion:
    """Twists of all links, and what of their accelerations the velocities alone make."""
    poses, axes = configuration(tree, q)
    twists: list[Twist] = []
    convective: list[Twist | None] = []
    for link, pose in zip(tree, poses, strict=True):
        relative = link.joint.relative(q[link.values], v[link.speeds])
        if isinstance(link.joint, Free):
            # Its velocity belongs to axes that stand still.
            twists.append(relative)
            turned = -rotations.cross(relative.spin, relative.velocity)
            convective.append(Twist(turned, jnp.zeros_like(turned)))
        elif link.parent is None:
            # Along axes that are fixed in space and in the body.
            twists.append(relative)
            convective.append(None)
        else:
            moved = twists[link.parent].seen(pose).plus(relative)
            twists.append(moved)
            convective.append(moved.changes(relative))
    return Motion(poses, axes, twists, convective)


def bias_force(tree: list[Link], q, v, gravity) -> Float[Array, " n"]:
    """Inertial forces and weights at constant velocities, by Newton and Euler: `M a + h = f`."""
    moves = motion(tree, q, v)
    accelerations: list[Twist] = []
    wrenches: list[Wrench | None] = []
    for i, link in enumerate(tree):
        # The ground rises against gravity.
        below = _rising(gravity) if link.parent is None else accelerations[link.parent]
        acceleration = _together(below.seen(moves.poses[i]), moves.convective[i])
        accelerations.append(acceleration)
        wrenches.append(
            None if link.inertia is None
            else link.inertia.momentum(acceleration).plus(
                _gyroscopic(link.inertia, moves.twists[i])
            )
        )  # fmt: skip
    forces: list = [None] * len(tree)
    for i in reversed(range(len(tree))):
        link, wrench = tree[i], wrenches[i]
        assert wrench is not None
        own = link.joint.gyroscopic_force(v[link.speeds])
        forces[i] = own + jnp.stack([wrench.power(axis) for axis in moves.axes[i]])
        if link.parent is not None:
            carried = wrench.on_parent(moves.poses[i])
            wrenches[link.parent] = _together(carried, wrenches[link.parent])
    return jnp.concatenate(forces)


def mass_matrix(tree: list[Link], q) -> Float[Array, "n n"]:
    """Mass matrix by composite rigid bodies."""
    poses, axes = configuration(tree, q)
    n = tree[-1].speeds.stop
    inertias = [link.inertia for link in tree]
    # Of each link the momenta, in its frame, at each velocity of the links that it bears.
    momenta: list[list[tuple[np.ndarray, Wrench]]] = [[] for _ in tree]
    mass = jnp.zeros((n, n), q.dtype)
    for i in reversed(range(len(tree))):
        link, inertia = tree[i], inertias[i]
        assert inertia is not None
        own = _stacked([inertia.momentum(x) for x in axes[i]])
        momenta[i].append((np.arange(link.first, link.speeds.stop), own))
        # Its own velocities are the last of them.
        numbers = np.concatenate([x for x, _ in momenta[i]])
        borne: Wrench = jax.tree.map(lambda *x: jnp.concatenate(x), *(x for _, x in momenta[i]))
        block = jnp.stack([borne.force @ x.velocity + borne.moment @ x.spin for x in axes[i]])
        columns, below = link.speeds, numbers[: -link.joint.freedoms]
        mass = mass.at[columns, numbers].set(block)
        mass = mass.at[below, columns].set(block[:, : below.size].T)
        armature = jnp.asarray(link.joint.armature, q.dtype)
        diagonal = np.arange(columns.start, columns.stop)
        mass = mass.at[diagonal, diagonal].add(armature)
        if link.parent is not None:
            up = jax.vmap(lambda wrench, pose=poses[i]: wrench.on_parent(pose))(borne)
            momenta[link.parent].append((numbers, up))
            inertias[link.parent] = _together(inertia.on_parent(poses[i]), inertias[link.parent])
    return mass


class Articulated(NamedTuple):
    """A tree that is factored for solutions with its mass matrix.

    Args:
        tree: its links.
        poses: of links in the frames of their parents.
        axes: of joints.
        eliminated: of each link and velocity the momentum at the acceleration 1 and `1 / d`, the
            inverse of the inertia there.
        inertias: of the articulated bodies, with the link's own velocities free.
    """

    tree: list[Link]
    poses: list[Pose]
    axes: list[tuple[Twist, ...]]
    eliminated: list[list[tuple[Wrench, Array]]]
    inertias: list[Inertia]

    def solve(self, forces) -> Float[Array, " n"]:
        """The accelerations that forces `(n,)` give: `M a = f`."""
        return self.accelerations(forces, [None] * len(self.tree), [None] * len(self.tree), None)

    def accelerations(self, forces, wrenches, convective, ground: Twist | None):
        """Accelerations `(n,)`.

        Args:
            forces: on the velocities, shape `(n,)`.
            wrenches: of each link, what its own velocity asks for, or `None`.
            convective: of each link, its acceleration at constant velocities, or `None`.
            ground: acceleration of the ground; `None` where it stands still.
        """
        needed: list[Wrench | None] = list(wrenches)
        driven: list[list] = [[] for _ in self.tree]
        for i in reversed(range(len(self.tree))):
            link, wrench = self.tree[i], needed[i]
            for k, (momentum, size) in enumerate(self.eliminated[i]):
                force = forces[link.first + k]
                if wrench is not None:
                    force = force - wrench.power(self.axes[i][k])
                driven[i].append(force * size)
                wrench = _together(momentum.times(force * size), wrench)
            if link.parent is not None and wrench is not None:
                change = convective[i]
                if change is not None:
                    wrench = wrench.plus(self.inertias[i].momentum(change))
                needed[link.parent] = _together(
                    wrench.on_parent(self.poses[i]), needed[link.parent]
                )
        moved: list[Twist | None] = []
        found: list = []
        for i, link in enumerate(self.tree):
            below = ground if link.parent is None else moved[link.parent]
            acceleration = None if below is None else below.seen(self.poses[i])
            change = convective[i]
            if change is not None:
                acceleration = _together(change, acceleration)
            own = []
            for k in reversed(range(link.joint.freedoms)):
                momentum, size = self.eliminated[i][k]
                value = driven[i][k]
                if acceleration is not None:
                    value = value - momentum.power(acceleration) * size
                acceleration = _together(self.axes[i][k].times(value), acceleration)
                own.append(value)
            moved.append(acceleration)
            found += own[::-1]
        return jnp.stack(found)


def articulated(tree: list[Link], poses, axes) -> Articulated:
    """Factor the mass matrix of a tree by articulated bodies."""
    inertias: list[Any] = [link.inertia for link in tree]
    eliminated: list = [None] * len(tree)
    for i in reversed(range(len(tree))):
        link, inertia = tree[i], inertias[i]
        assert inertia is not None
        armature = jnp.asarray(link.joint.armature, inertia.rotation.dtype)
        of_each = jnp.broadcast_to(armature, (link.joint.freedoms,))
        own = []
        for k, axis in enumerate(axes[i]):
            momentum = inertia.momentum(axis)
            size = 1.0 / (momentum.power(axis) + of_each[k])
            inertia = inertia.without(momentum, size)
            own.append((momentum, size))
        eliminated[i], inertias[i] = own, inertia
        if link.parent is not None:
            inertias[link.parent] = _together(inertia.on_parent(poses[i]), inertias[link.parent])
    return Articulated(tree, poses, axes, eliminated, inertias)


def forward_dynamics(tree: list[Link], q, v, forces, gravity):
    """Accelerations `(n,)` at forces on the velocities, and the factored tree."""
    moves = motion(tree, q, v)
    factored = articulated(tree, moves.poses, moves.axes)
    wrenches = [
        None if link.inertia is None else _gyroscopic(link.inertia, twist)
        for link, twist in zip(tree, moves.twists, strict=True)
    ]
    own = [link.joint.gyroscopic_force(v[link.speeds]) for link in tree]
    a = factored.accelerations(
        forces - jnp.concatenate(own), wrenches, moves.convective, _rising(gravity)
    )
    return a, factored


def _rising(gravity) -> Twist:
    """The acceleration of a ground on which what is at rest has its weight."""
    return Twist(-gravity, jnp.zeros_like(gravity))


def _gyroscopic(inertia: Inertia, twist: Twist) -> Wrench:
    """What a body asks for at a twist that is constant in its own axes."""
    force, moment = inertia.momentum(twist)
    return Wrench(
        rotations.cross(twist.spin, force),
        rotations.cross(twist.spin, moment) + rotations.cross(twist.velocity, force),
    )
