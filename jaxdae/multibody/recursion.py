r"""Dynamics of trees of bodies by recursion from joint to joint [Featherstone2008].

A link is a frame that one velocity moves: a body behind its last joint, and frames without mass
between several velocities in a row. Links have the axes of the body of their joint, and its anchor
as their origin. A twist is a velocity and an angular velocity, a wrench a force and a moment; an
inertia maps a twist to a momentum,

    p = H^T omega + N v,        L = K omega + H v

The recursions are loops over links, parents first or last, so that programs do not grow with their
number. The algorithms are Featherstone's: recursive Newton-Euler (chapter 5), composite rigid
bodies (chapter 6), articulated bodies (chapter 7).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known
from jaxdae.multibody import rotations
from jaxdae.multibody.bodies import Body
from jaxdae.multibody.joints import Pose, Twist, Wrench

# Entries of a matrix on and above its diagonal.
_UPPER = np.triu(np.ones((3, 3), bool))


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

    def momentum(self, twist: Twist) -> Wrench:
        """Momentum and angular momentum about the origin; of an acceleration the wrench."""
        return Wrench(
            self.coupling.T @ twist.spin + self.translation @ twist.velocity,
            self.rotation @ twist.spin + self.coupling @ twist.velocity,
        )

    def without(self, momentum: Wrench, size) -> "Inertia":
        """Less what a direction with a momentum gives way, the inverse of its inertia `size`."""
        force, moment = momentum
        return Inertia(
            self.rotation - _symmetric(jnp.outer(moment, moment * size)),
            self.coupling - jnp.outer(moment * size, force),
            self.translation - _symmetric(jnp.outer(force, force * size)),
        )

    def on_parent(self, pose: Pose) -> "Inertia":
        """The same in a frame in which its own has a pose."""
        turn, place = pose.turn, rotations.cross_matrix(pose.place)
        coupling = turn @ self.coupling @ turn.T
        translation = _symmetric(turn @ self.translation @ turn.T)
        moved = coupling + place @ translation
        rotation = turn @ self.rotation @ turn.T + place @ coupling.T - moved @ place
        return Inertia(_symmetric(rotation), moved, translation)

    def gyroscopic(self, twist: Twist) -> Wrench:
        """What a body asks for at a twist that is constant in its own axes."""
        force, moment = self.momentum(twist)
        return Wrench(
            rotations.cross(twist.spin, force),
            rotations.cross(twist.spin, moment) + rotations.cross(twist.velocity, force),
        )


def _symmetric(a):
    """A matrix known to be symmetric: kernels do not compute entries below the diagonal."""
    return jax.lax.select(_UPPER, a, a.T)


class Tree:
    """The links of a tree of bodies, and what does not change along a motion.

    Links are numbered from 1 on, parents first; 0 is the ground. Arrays of links have no row for
    the ground.

    Args:
        bodies: each after its parent.
    """

    def __init__(self, bodies: Sequence[Body]):
        self.bodies = tuple(bodies)
        self.dtype = self.bodies[0].position.dtype
        self.joints: list[Any] = [joint for body in bodies for joint in body.joints]
        self.kinds = _by_kind(self.joints, self.dtype)
        freedoms = [x.step_freedoms for x in self.joints]
        # Number of the step that moves a link, and of the joint that the step belongs to.
        self.joint_of = np.repeat(np.arange(len(freedoms)), [len(x) for x in freedoms])
        step_of = np.repeat(np.arange(len(self.joint_of)), list(itertools.chain(*freedoms)))
        first = np.flatnonzero(np.diff(step_of, prepend=-1))
        # Links that steps move; others of a step only turn with it.
        self.moved = first.astype(np.int32)
        self.begins = np.diff(self.joint_of, prepend=-1) != 0  # steps that begin a joint
        # Links whose axes turn with those behind them of the same step.
        same = np.equal.outer(step_of, step_of)
        self.behind = np.triu(same, 1)
        self.parents, self.link_of = self._numbered(np.bincount(self.joint_of[step_of]))

    def _numbered(self, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parents of links, and the link that each body is part of; numbers of links of joints."""
        link_of: dict[str | None, int] = {None: 0}
        parents: list[int] = []
        numbers = iter(links)
        for body in self.bodies:
            parent = link_of[body.parent]
            for count in (next(numbers) for _ in body.joints):
                for _ in range(count):
                    parents.append(parent)
                    parent = len(parents)
            link_of[body.name] = parent
        return np.array(parents, np.int32), np.array([link_of[x.name] for x in self.bodies], int)

    @cached_property
    def paths(self) -> np.ndarray:
        """Whether the velocity of a column moves the link of a row, shape `(links, links)`."""
        found = np.eye(len(self.parents), dtype=bool)
        for i, parent in enumerate(self.parents):
            if parent:
                found[i] |= found[parent - 1]
        return found

    @cached_property
    def at_rest(self) -> tuple[Pose, Pose]:
        """Poses of bodies in their links, and of joints in the links that bear them."""
        none, straight = jnp.zeros(3, self.dtype), rotations.none(self.dtype)
        number = {None: 0, **{body.name: 1 + i for i, body in enumerate(self.bodies)}}
        bearing = np.array([number[x.parent] for x in self.bodies])
        ends = np.cumsum([len(x.joints) for x in self.bodies])
        moving = np.array([bool(x.joints) for x in self.bodies])
        anchors = jnp.stack([none, *(none if x.at is None else x.at for x in self.joints)])
        places = jnp.stack([x.position for x in self.bodies])
        turns = _each(rotations.from_quaternion)(jnp.stack([x.orientation for x in self.bodies]))
        # Of the ground, then of bodies: behind a joint these have its axes.
        behind = np.concatenate([[0], np.where(moving, ends, 0)])
        offsets = Pose(-_taken(anchors, behind), _repeated(straight, behind.size))
        # Bodies without joints are where they are fixed; those that others bear come first.
        fixed = np.concatenate([[False], ~moving])
        level = np.zeros(behind.size, int)
        for i in np.flatnonzero(~moving):
            level[1 + i] = 1 + level[bearing[i]]
        for depth in range(1, level.max(initial=0) + 1):
            rows = np.flatnonzero(fixed & (level == depth))
            own = _taken(Pose(places, turns), rows - 1)
            poses = _each(Pose.then)(_taken(offsets, bearing[rows - 1]), own)
            order = np.arange(behind.size)
            order[rows] = behind.size + np.arange(rows.size)
            both = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), offsets, poses)
            offsets = _taken(both, order)
        poses = _each(Pose.then)(_taken(offsets, bearing), Pose(places, turns))
        # A free body is where its coordinates say, whatever pose it was declared with.
        free = np.array([x.free() for x in self.bodies])[:, None]
        poses = Pose(
            jnp.where(free, 0.0, poses.place), jnp.where(free[..., None], straight, poses.turn)
        )
        of_body = np.repeat(np.arange(len(moving)), [len(x.joints) for x in self.bodies])
        begins = np.diff(of_body, prepend=-1) != 0
        # Behind the first joint of a body the next ones have its axes.
        own = _each(Pose.point)(_taken(poses, of_body), anchors[1:])
        rest = Pose(
            jnp.where(begins[:, None], own, anchors[1:] - anchors[:-1]),
            jnp.where(begins[:, None, None], _taken(poses.turn, of_body), straight),
        )
        return _links(offsets), rest

    @cached_property
    def inertias(self) -> Inertia:
        """Of links, of the bodies that are parts of them."""
        offsets, _ = self.at_rest
        masses, centres = self._masses()
        own = jnp.stack([x.inertia for x in self.bodies])

        def in_link(offset, mass, centre, inertia):
            cross = rotations.cross_matrix(offset.point(centre))
            turned = offset.turn @ inertia @ offset.turn.T
            return turned - mass * cross @ cross, mass * cross, mass * rotations.none(self.dtype)

        own, moments, translations = _each(in_link)(offsets, masses, centres, own)
        # Bodies that are fixed to the ground are part of no link, and most links have one body.
        parts = self.link_of == 1 + np.arange(len(self.parents))[:, None]
        first = np.where(parts.any(axis=1), 1 + np.argmax(parts, axis=1), 0)
        more = parts & (np.cumsum(parts, axis=1) > 1)

        def summed(x):
            sums = _taken(_with_ground(x), first)
            return sums + jnp.tensordot(more.astype(self.dtype), x, 1) if more.any() else sums

        return Inertia(*map(summed, (own, moments, translations)))

    @cached_property
    def axes(self) -> Twist:
        """Twists of links at velocities 1, in their own axes, rows of shape `(3,)`."""
        found = []
        for numbers, joints in self.kinds:
            steps = _each(lambda joint: joint.axes(self.dtype))(joints)
            rows = zip(*self._velocities(numbers), strict=True)
            found += zip(rows, itertools.chain(*steps), strict=True)
        return _in_order(found)

    def _velocities(self, numbers: list[int]) -> list[range]:
        """Numbers of the velocities of joints."""
        ends = np.cumsum([0, *(x.freedoms for x in self.joints)]).tolist()
        return [range(ends[j], ends[j + 1]) for j in numbers]

    def _coordinates(self, numbers: list[int]) -> list[range]:
        """Numbers of the coordinates of joints."""
        ends = np.cumsum([0, *(x.size for x in self.joints)]).tolist()
        return [range(ends[j], ends[j + 1]) for j in numbers]

    def of_velocities(self, field: str) -> Float[Array, " links"]:
        """A field of the joints, a number for each velocity."""
        found = []
        for numbers, joints in self.kinds:
            values, rows = getattr(joints, field), np.array(self._velocities(numbers))
            values = values if values.ndim == 2 else values[:, None]
            found.append((rows.ravel(), jnp.broadcast_to(values, rows.shape).ravel()))
        return _in_order(found)

    def rates(self, q, v) -> Float[Array, " n"]:
        """Rates of the coordinates."""
        found = []
        for numbers, joints in self.kinds:
            places = np.array(self._coordinates(numbers))
            own = _rows_of(q, places), _rows_of(v, self._velocities(numbers))
            rates = _each(lambda joint, values, speeds: joint.rate(values, speeds))(joints, *own)
            found.append((places.ravel(), rates.ravel()))
        return _in_order(found)

    def spring_energy(self, q) -> Float[Array, ""]:
        """Of the springs of joints [J]."""
        found = jnp.zeros((), q.dtype)
        for numbers, joints in self.kinds:
            values = _rows_of(q, self._coordinates(numbers))
            found += jnp.sum(_each(lambda joint, x: joint.energy(x))(joints, values))
        return found

    def poses(self, q) -> Pose:
        """Of links in the frames of their parents, places `(links, 3)`, turns `(links, 3, 3)`."""
        moved = self._steps(q)
        straight = rotations.none(q.dtype)
        _, rest = self.at_rest
        begins = self.begins[:, None, None]
        turn = jnp.where(begins, _taken(rest.turn, self.joint_of), straight)
        place = jnp.where(begins[..., 0], _taken(rest.place, self.joint_of), 0.0)

        def step(rest, moved):
            # Sums of products: XLA's programs for processors abort the process where a batched
            # product of matrices, transposed, goes into a loop, as its derivatives do here.
            return Pose(
                rest.place + jnp.sum(rest.turn * moved.place, axis=1),
                jnp.sum(rest.turn[:, :, None] * moved.turn, axis=1),
            )

        poses = _each(step)(Pose(place, turn), moved)
        count = len(self.parents)
        if len(self.moved) == count:
            return poses
        still = np.setdiff1d(np.arange(count), self.moved)
        rest = Pose(jnp.zeros((still.size, 3), q.dtype), _repeated(straight, still.size))
        return _in_order([(self.moved, poses), (still, rest)])

    def _steps(self, q) -> Pose:
        """Poses of steps of joints, each relative to the one before or to the joint at rest."""
        found = []
        first = np.cumsum([0, *np.bincount(self.joint_of)])
        for numbers, joints in self.kinds:
            values = _rows_of(q, self._coordinates(numbers))
            steps = _each(lambda joint, x: joint.steps(x))(joints, values)
            found += [([first[j] + k for j in numbers], step) for k, step in enumerate(steps)]
        return _in_order(found)

    def body_poses(self, q) -> Pose:
        """Of bodies in space, places `(bodies, 3)` and turns `(bodies, 3, 3)`."""
        links = self._in_space(self.poses(q))
        return _each(Pose.then)(_taken(links, self.link_of), self.at_rest[0])

    def body_twists(self, q, v) -> Twist:
        """Of bodies in their own axes, velocities and angular velocities `(bodies, 3)`."""
        twists, _ = self._twists(self.poses(q), v)
        of_bodies = _taken(jax.tree.map(_with_ground, twists), self.link_of)
        return _each(Twist.seen)(of_bodies, self.at_rest[0])

    def kinetic_energy(self, q, v) -> Float[Array, ""]:
        """Of bodies and armatures [J]."""
        twists, _ = self._twists(self.poses(q), v)
        powers = _each(lambda inertia, twist: inertia.momentum(twist).power(twist))(
            self.inertias, twists
        )
        return 0.5 * (jnp.sum(powers) + self.of_velocities("armature") @ v**2)

    def weight_energy(self, q, gravity) -> Float[Array, ""]:
        """Potential energy of weights [J]."""
        poses, masses, centres = self.body_poses(q), *self._masses()
        return -masses @ (_each(Pose.point)(poses, centres) @ gravity)

    def _masses(self) -> tuple[Float[Array, " bodies"], Float[Array, "bodies 3"]]:
        """Masses of bodies, and their centres in the bodies."""
        masses = jnp.stack([jnp.asarray(x.mass, self.dtype) for x in self.bodies])
        return masses, jnp.stack([x.centre for x in self.bodies])

    def _in_space(self, poses: Pose) -> Pose:
        """Of the ground and of links in space."""
        ground = Pose(jnp.zeros(3, self.dtype), rotations.none(self.dtype))

        return self._down(ground, lambda parent, row: (parent.then(row), None), poses)[0]

    def _twists(self, poses: Pose, v) -> tuple[Twist, Twist]:
        """Of links in their own frames, and their accelerations at constant velocities.

        The latter relative to those of their parents.
        """
        still = Twist(jnp.zeros(3, v.dtype), jnp.zeros(3, v.dtype))

        def turn(parent, row):
            pose, axis, speed = row
            relative = axis.times(speed)
            twist = parent.seen(pose).plus(relative)
            return twist, (relative, twist.changes(relative))

        twists, (relative, convective) = self._down(still, turn, (poses, self.axes, v))
        if self.behind.any():
            later = jax.tree.map(self._later, relative)
            convective = convective.plus(_each(Twist.changes)(later, relative))
        return _links(twists), convective

    def _later(self, x):
        """Sums over links behind each one in the same step, which follow it."""
        total = jnp.zeros_like(x)
        for k in range(1, int(np.max(np.sum(self.behind, axis=1))) + 1):
            follows = np.append(np.diagonal(self.behind, k), np.zeros(k, bool))
            total = total + jnp.where(follows[:, None], jnp.roll(x, -k, axis=0), 0.0)
        return total

    # Recursions.

    def _down(self, ground, turn: Callable, rows):
        """From parents to children: `turn(of_parent, row)` gives that of the link, and a row.

        Returns:
            What the ground and all links have, and the rows.
        """
        count = len(self.parents)
        table = jax.tree.map(
            lambda x: jnp.concatenate([x[None], jnp.zeros((count, *x.shape), x.dtype)]), ground
        )

        def step(table, row):
            i, parent, own = row
            found, kept = turn(_row(table, parent), own)
            return jax.tree.map(lambda x, y: _replaced(x, y, i), table, found), kept

        return jax.lax.scan(step, table, (_numbers(count), self.parents, rows))

    def _up(self, table, turn: Callable, rows):
        """From children to parents: `turn(of_link, row)` gives what is added to that of the parent.

        Args:
            table: of the links by themselves.
            turn: returns what the parent has of it, and a row that is kept.
            rows: of links.

        Returns:
            Sums by link, and the rows.
        """

        def step(table, row):
            i, parent, own = row
            more, kept = turn(_row(table, i), own)
            sums = jax.tree.map(jnp.add, _row(table, parent), more)
            return jax.tree.map(lambda x, y: _replaced(x, y, parent), table, sums), kept

        table = jax.tree.map(_with_ground, table)
        rows = _numbers(len(self.parents)), self.parents, rows
        table, kept = jax.lax.scan(step, table, rows, reverse=True)
        return _links(table), kept

    def bias_force(self, q, v, gravity) -> Float[Array, " links"]:
        """Inertial forces and weights at constant velocities, by Newton and Euler."""
        poses = self.poses(q)
        twists, convective = self._twists(poses, v)

        def accelerated(parent, row):
            pose, change = row
            return parent.seen(pose).plus(change), None

        rows = poses, convective
        accelerations = _links(self._down(_rising(gravity), accelerated, rows)[0])

        def asked_for(inertia, acceleration, twist):
            wrench = inertia.momentum(acceleration)
            return jax.tree.map(jnp.add, wrench, inertia.gyroscopic(twist))

        wrenches = _each(asked_for)(self.inertias, accelerations, twists)

        def carried(wrench, row):
            pose, axis = row
            return wrench.at(pose), wrench.power(axis)

        return self._up(wrenches, carried, (poses, self.axes))[1] + self._of_armatures(v)

    def _of_armatures(self, v) -> Float[Array, " links"]:
        """Inertial forces of armatures that belong to angular velocities in a turning body."""
        found = []
        for numbers, joints in self.kinds:
            rows = np.array(self._velocities(numbers))
            forces = _each(lambda joint, x: joint.gyroscopic_force(x))(joints, _rows_of(v, rows))
            found.append((rows.ravel(), forces.ravel()))
        return _in_order(found)

    def mass_matrix(self, q) -> Float[Array, "links links"]:
        """By composite rigid bodies."""
        poses = self.poses(q)

        def carried(inertia, pose):
            return inertia.on_parent(pose), None

        composite, _ = self._up(self.inertias, carried, poses)
        momenta = _each(Inertia.momentum)(composite, self.axes)
        # In axes of space, about the first link of each tree, which may be far from the origin.
        in_space = _links(self._in_space(poses))
        roots = np.argmax(self.paths, axis=1)
        in_space = Pose(in_space.place - _taken(in_space.place, roots), in_space.turn)
        momenta = _each(Wrench.at)(momenta, in_space)
        axes = _each(Twist.on_parent)(self.axes, in_space)
        products = momenta.force @ axes.velocity.T + momenta.torque @ axes.spin.T
        lower = jnp.where(self.paths, products, 0.0)
        diagonal = jnp.diagonal(products)
        return lower + lower.T + jnp.diag(self.of_velocities("armature") - diagonal)

    def articulated(self, poses: Pose) -> "Articulated":
        """Factor the mass matrix, by articulated bodies."""

        def eliminated(inertia, row):
            pose, axis, armature = row
            momentum = inertia.momentum(axis)
            pivot = momentum.power(axis) + armature
            # Not positive, such as for a mass that is tuned to below zero, is no mass matrix.
            size = 1.0 / jnp.where(pivot > 0, pivot, jnp.nan)
            left = inertia.without(momentum, size)
            return left.on_parent(pose), (momentum, size, left)

        rows = poses, self.axes, self.of_velocities("armature")
        _, (momenta, sizes, left) = self._up(self.inertias, eliminated, rows)
        return Articulated(self, poses, momenta, sizes, left)

    def forward_dynamics(self, q, v, forces, gravity):
        """Accelerations at forces on the velocities, and the factored mass matrix."""
        poses = self.poses(q)
        twists, convective = self._twists(poses, v)
        factored = self.articulated(poses)
        wrenches = _each(Inertia.gyroscopic)(self.inertias, twists)
        forces = forces - self._of_armatures(v)
        a = factored.accelerations(forces, wrenches, convective, _rising(gravity))
        return a, factored


class Articulated(NamedTuple):
    """A mass matrix that is factored by articulated bodies.

    Args:
        tree: the links.
        poses: of links in the frames of their parents.
        momenta: of links at accelerations 1 of their velocities.
        sizes: inverses of inertias there.
        inertias: of links whose velocities are free.
    """

    tree: Tree
    poses: Pose
    momenta: Wrench
    sizes: Float[Array, " links"]
    inertias: Inertia

    def solve(self, forces: Float[Array, " links"]) -> Float[Array, " links"]:
        """The accelerations that forces give: `M a = f`."""
        none = jnp.zeros((forces.size, 3), forces.dtype)
        still = Twist(none[0], none[0])
        return self.accelerations(forces, Wrench(none, none), Twist(none, none), still)

    def accelerations(self, forces, wrenches: Wrench, convective: Twist, ground: Twist):
        """Accelerations of the velocities.

        Args:
            forces: on them, shape `(links,)`.
            wrenches: what links ask for at constant velocities.
            convective: accelerations of links relative to their parents at constant velocities.
            ground: acceleration of the ground.
        """
        tree = self.tree

        def driven(wrench, row):
            pose, axis, force, momentum, size, inertia, change = row
            value = (force - wrench.power(axis)) * size
            sums = (wrench, momentum.times(value), inertia.momentum(change))
            left = jax.tree.map(lambda a, b, c: a + b + c, *sums)
            return left.at(pose), value

        rows = (
            self.poses, tree.axes, forces, self.momenta, self.sizes, self.inertias, convective
        )  # fmt: skip
        _, values = tree._up(wrenches, driven, rows)

        def moved(parent, row):
            pose, axis, value, momentum, size, change = row
            acceleration = parent.seen(pose).plus(change)
            value = value - momentum.power(acceleration) * size
            return acceleration.plus(axis.times(value)), value

        rows = self.poses, tree.axes, values, self.momenta, self.sizes, convective
        return tree._down(ground, moved, rows)[1]


# More rows are gone through one after the other, so that programs do not grow with their number.
_MOST_AT_ONCE = 48


def _each(function: Callable) -> Callable:
    """The function for each row of tables, as `jax.vmap`; of many in a loop."""

    def of_all(*tables):
        if len(jax.tree.leaves(tables)[0]) <= _MOST_AT_ONCE:
            return jax.vmap(function)(*tables)
        return jax.lax.scan(lambda _, rows: (None, function(*rows)), None, tables)[1]

    return of_all


def _rising(gravity) -> Twist:
    """The acceleration of a ground on which what is at rest has its weight."""
    return Twist(-gravity, jnp.zeros_like(gravity))


def _numbers(count: int) -> np.ndarray:
    """Of links, from 1 on, in a type that both precisions have."""
    return np.arange(1, count + 1, dtype=np.int32)


def _with_ground(x):
    """Rows of links behind one of zeros, for the ground."""
    return jnp.concatenate([jnp.zeros((1, *x.shape[1:]), x.dtype), x])


def _links(table):
    """Rows of links alone."""
    return jax.tree.map(lambda x: x[1:], table)


def _taken(table, rows):
    """Rows of a table, shape `(rows,)`; the numbers are known, and none is negative."""
    rows = np.asarray(rows, np.int32)

    def take(x):
        if np.array_equal(rows, np.arange(len(x))):
            return x
        layout = jax.lax.GatherDimensionNumbers(tuple(range(1, x.ndim)), (0,), (0,))
        sizes = (1, *x.shape[1:])
        return jax.lax.gather(x, rows[:, None], layout, sizes, mode="promise_in_bounds")

    return jax.tree.map(take, table)


def _by_kind(joints: list[Any], dtype) -> list[tuple[list[int], Any]]:
    """Joints of one class, settings and shapes together: their numbers, and arrays of all."""
    groups: dict[Any, list[int]] = {}
    for j, joint in enumerate(joints):
        fixed = [
            getattr(joint, x.name)
            for x in dataclasses.fields(joint)
            if x.metadata.get("static") and x.name != "name"
        ]
        key = (type(joint), repr(fixed), *(np.shape(x) for x in jax.tree.leaves(joint)))
        groups.setdefault(key, []).append(j)

    def stacked(*leaves):
        return jnp.asarray((np if are_known(leaves) else jnp).stack(leaves), dtype)

    kinds = []
    for numbers in groups.values():
        leaves = zip(*(jax.tree.leaves(joints[j]) for j in numbers), strict=True)
        structure = jax.tree.structure(joints[numbers[0]])
        kinds.append((numbers, jax.tree.unflatten(structure, [stacked(*x) for x in leaves])))
    return kinds


def _in_order(parts: list[tuple[Any, Any]]):
    """Tables together, each with the numbers of its rows, in the order of these."""
    together = jax.tree.map(lambda *x: jnp.concatenate(x), *(rows for _, rows in parts))
    return _taken(together, np.argsort(np.concatenate([x for x, _ in parts])))


def _rows_of(x, numbers):
    """Entries of a vector, of numbers in rows."""
    numbers = np.array(numbers, int)
    return _taken(x, numbers.ravel()).reshape(numbers.shape)


def _repeated(x, count: int):
    return jnp.broadcast_to(x, (count, *x.shape))


def _row(table, i):
    at = functools.partial(
        jax.lax.dynamic_index_in_dim, index=i, keepdims=False, allow_negative_indices=False
    )
    return jax.tree.map(at, table)


def _replaced(rows, row, i):
    return jax.lax.dynamic_update_index_in_dim(rows, row, i, 0, allow_negative_indices=False)


def _stacked(parts: list):
    return jax.tree.map(lambda *x: jnp.stack(x), *parts)
