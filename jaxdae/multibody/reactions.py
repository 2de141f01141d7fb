"""Reactions: forces and moments in joints and closed loops, by Newton and Euler on subtrees."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import control_input
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.linalg.held_rank import rank_tolerance, unit_rows
from jaxdae.multibody import rotations
from jaxdae.multibody.forces import joint_frames
from jaxdae.multibody.joints import Free, Pose, Twist
from jaxdae.multibody.system import Multibody
from jaxdae.reprs import shown
from jaxdae.results.derived_quantities import at_rows
from jaxdae.systems import constraint_residuals, evaluate
from jaxdae.systems.kinematics import coordinate_rate
from jaxdae.systems.precision import as_floats, in_dtype

# A component that redundant constraints change by less than this part of the largest is unique;
# off the constraints by a distance, by less than so many times that.
_NO_CHANGE, _PER_DISTANCE = 1e-6, 100.0


class Reaction(NamedTuple):
    """What acts in one joint.

    Args:
        force: [N], shape `(3,)`.
        moment: about the joint's anchor [N m], without one about the body's origin, shape `(3,)`.
        unique_force: which components are the same for all multipliers that satisfy the equations
            of motion, shape `(3,)`. Redundant constraints leave others open: how stiff bodies are
            decides on them, and those of least multipliers are given.
        unique_moment: the same of the moment, shape `(3,)`.
    """

    force: Float[Array, "*times 3"]
    moment: Float[Array, "*times 3"]
    unique_force: Bool[Array, "*times 3"]
    unique_moment: Bool[Array, "*times 3"]

    def __repr__(self) -> str:
        return shown(self)


class Reactions(NamedTuple):
    """What acts in all joints.

    Args:
        joints: by joint, on the body that it moves, by its parent. Along the directions in which a
            joint is free it is what its spring, damper, motor and coupling give, and other forces
            on joints such as fixed tendons, less what its armature takes.
        loops: by loop between two bodies, on the first one, by the second, about the anchor there.
    """

    joints: dict[str, Reaction]
    loops: dict[str, Reaction]

    def __repr__(self) -> str:
        return shown(self)

    @property
    def indeterminate(self) -> tuple[str, ...]:
        """Names of joints, then of loops, of which a component is not unique at some time."""
        both = [*self.joints.items(), *self.loops.items()]
        return tuple(k for k, x in both if not bool(x.unique_force.all() & x.unique_moment.all()))


def reactions(run: Any, *, axes: Literal["space", "body"] = "space") -> Reactions:
    """Reactions in all joints at the saved times of a run of a `Multibody`.

    Args:
        run: a `Trajectory`, or a batch of them.
        axes: `"space"`, or `"body"` for those of the body that a joint moves, of a loop the first.

    Returns:
        `Reactions`, each array with times first.

    Raises:
        ValueError: for a run from a file, or other axes.
        TypeError: for a run of another system.
    """
    if run.about is not None:
        raise ValueError(
            "reactions need the formulation of a run, and a trajectory from a file has none: read "
            "them of the run before it is saved, or of a state by reactions_at."
        )
    if not isinstance(run.system, Multibody):
        raise TypeError(
            f"reactions are those of the joints of a Multibody; {type(run.system).__name__} has no "
            "joints. Its multipliers are run.multipliers; the reaction is -J^T lam."
        )
    _check_axes(axes)
    found = _of_rows(dataclasses.replace(run, varied=None), axes == "space")
    is_unique = lambda x: x._replace(  # noqa: E731
        unique_force=x.unique_force > 0, unique_moment=x.unique_moment > 0
    )
    marked = Reactions(*({k: is_unique(x) for k, x in part.items()} for part in found))
    return _in_order(run.system, marked)


def reactions_at(
    system: Multibody,
    t,
    q,
    v,
    a,
    multipliers,
    *,
    w=None,
    u=None,
    axes: Literal["space", "body"] = "space",
) -> Reactions:
    r"""Reactions in all joints at one state, from accelerations and multipliers.

    By Newton and Euler on the bodies `b` that a joint carries, directly or not,

        F = sum (m c'' - m g - F_loops - F_forces)
        N = sum (c x (m c'' - m g) + L' - N_loops - N_forces)

    with `L` the angular momentum about the centre of mass, moments about the origin of space, what
    force elements exert on bodies, and what loops do by virtual power, `-lam . d(phi)` for all
    displacements of both bodies. Where constraints are redundant, not all components are unique
    [Wojtyra2005]: those that a change of the multipliers in the kernel of `J^T` changes are marked.

    Args:
        system: the mechanism.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities.
        a: accelerations, of the shape of `v`; at rest zeros.
        multipliers: `lam` of `M a + J^T lam = f`, shape `(m+r,)`, as those of an `Equilibrium`.
        w: actuator state, zeros by default.
        u: control input, zeros by default.
        axes: `"space"`, or `"body"` for those of the body that a joint moves, of a loop the first.

    Returns:
        `Reactions`.

    Raises:
        ValueError: for other axes.
    """
    _check_axes(axes)
    q, v, a, lam = as_floats(q, v, a, multipliers)
    system, t = in_dtype(system, q.dtype), jnp.asarray(t, q.dtype)
    w, u = (None if x is None else jnp.asarray(x, q.dtype) for x in (w, u))
    return _in_order(system, _at(system, t, q, v, a, lam, w, u, axes == "space"))


@jit(options=BRIEFLY)
def _at(system: Multibody, t, q, v, a, lam, w, u, in_space: bool) -> Reactions:
    poses = system.poses(q)
    applied = system.applied_wrenches(t, q, v, w, u)
    loops = _effects(system, t, q, v, lam.size)
    inertial = _inertial_wrenches(system, t, q, v, a)
    # Of each body and all that it carries: what is needed, and what loops give for each multiplier.
    needed, given = {}, {}
    for body in system.bodies:
        weight = body.mass * system.gravity
        centre = poses[body.name].point(body.centre)
        needed[body.name] = inertial[body.name] - _about_origin(centre, weight)
        if body.name in applied:
            turn, place = poses[body.name].turn, poses[body.name].place
            force, torque = (turn @ x for x in applied[body.name])
            needed[body.name] -= _about_origin(place, force).at[3:].add(torque)
        given[body.name] = sum(
            (x[body.name] for x in loops.values()), jnp.zeros((6, lam.size), q.dtype)
        )
    for body in reversed(system.bodies):  # children before their parents
        if body.parent is not None:
            needed[body.parent] = needed[body.parent] + needed[body.name]
            given[body.parent] = given[body.parent] + given[body.name]
    joints, closures = {}, {}
    for body in system.bodies:
        for joint, frame in joint_frames(body, poses, system.values(q)):
            if not isinstance(joint, Free):
                joints[joint.name] = _JointLoad(frame, needed[body.name], -given[body.name])
    for loop in system.loops:
        first: Any = getattr(loop, "first", loop)
        if first is not loop:  # others are between joints
            anchor = getattr(loop, "anchor", jnp.zeros(3, q.dtype))
            frame = Pose(poses[first].point(anchor), poses[first].turn)
            closures[loop.name] = _JointLoad(frame, jnp.zeros(6, q.dtype), loops[loop.name][first])
    parts = [
        {k: x.local(rotations.none(q.dtype) if in_space else x.frame.turn.T)
         for k, x in part.items()}
        for part in (joints, closures)
    ]  # fmt: skip
    unique = _uniqueness(system, t, q, v, [x for part in parts for x in part.values()])
    return Reactions(
        *({k: Reaction(*_halves(x.force + x.by_multiplier @ lam), *_halves(unique(x)))
           for k, x in part.items()} for part in parts)
    )  # fmt: skip


class _JointLoad(NamedTuple):
    """What acts in a joint.

    Args:
        frame: its anchor, and axes of the body.
        force: force and moment without multipliers, shape `(6,)`.
        by_multiplier: those of each multiplier 1, shape `(6, c)`.
    """

    frame: Pose
    force: Float[Array, " 6"]
    by_multiplier: Float[Array, "6 c"]

    def local(self, turn: Float[Array, "3 3"]) -> "_JointLoad":
        """Of moments about the origin of space, those about the anchor, in other axes."""
        lever = -turn @ rotations.cross_matrix(self.frame.place)
        at = jnp.block([[turn, jnp.zeros_like(turn)], [lever, turn]])
        return _JointLoad(self.frame, at @ self.force, at @ self.by_multiplier)


def _halves(six):
    return six[:3], six[3:]


def _in_order(system: Multibody, found: Reactions) -> Reactions:
    """In the order of the declaration: programs have names in order of the alphabet."""
    names = [x.name for x in system.joints()], [x.name for x in system.loops]
    return Reactions(
        *(
            {k: part[k] for k in order if k in part}
            for part, order in zip(found, names, strict=True)
        )
    )


def _check_axes(axes: str) -> None:
    if axes not in ("space", "body"):
        raise ValueError(f'reactions: axes are "space" or "body"; got {axes!r}.')


def _of_row(axes: Literal["space", "body"], run, t, y) -> Reactions:
    formulation: AbstractFormulation = run.formulation
    state = formulation.recover(run.system, t, y)
    u = control_input(run.controller, t, state)
    rate, lam = formulation.rate_and_multipliers(run.system, t, y, u)
    if formulation.capabilities.plain_state:
        a = rate.v
    else:
        d = evaluate(run.system, t, state.q, state.v, state.w, u)
        a = jnp.linalg.solve(d.mass, d.force - d.jac.T @ lam)
    found = reactions_at(run.system, t, state.q, state.v, a, lam, w=state.w, u=u, axes=axes)
    # Rows that were not reached are marked by values that are no numbers.
    return jax.tree.map(lambda x: x.astype(state.q.dtype), found)


def _in_space(run, t, y) -> Reactions:
    return _of_row("space", run, t, y)


def _in_bodies(run, t, y) -> Reactions:
    return _of_row("body", run, t, y)


@jit(options=BRIEFLY)
def _of_rows(run, in_space: bool) -> Reactions:
    return at_rows(run, _in_space if in_space else _in_bodies)


def _about_origin(place, force) -> Float[Array, " 6"]:
    """A force at a place, as force and moment about the origin of space."""
    return jnp.concatenate([force, rotations.cross(place, force)])


def _inertial_wrenches(system: Multibody, t, q, v, a) -> dict[str, Float[Array, " 6"]]:
    """Rates of momentum and of angular momentum about the origin of space, by body."""

    def momenta(q, v):
        poses, twists = system.poses(q), system.twists(q, v)
        found = {}
        for body in system.bodies:
            turn, twist = poses[body.name].turn, twists[body.name]
            momentum = body.mass * (turn @ twist.at(body.centre))
            found[body.name] = momentum, turn @ (body.inertia @ twist.spin)
        return found

    _, rates = jax.jvp(momenta, (q, v), (coordinate_rate(system, t, q, v), a))
    poses, wrenches = system.poses(q), {}
    for body in system.bodies:
        force, turning = rates[body.name]
        at_centre = _about_origin(poses[body.name].point(body.centre), force)
        wrenches[body.name] = at_centre.at[3:].add(turning)
    return wrenches


def _displaced(pose: Pose, change) -> Pose:
    """A pose after a small displacement and rotation, in axes of the body, to first order."""
    place = pose.place + pose.turn @ change[:3]
    return Pose(place, pose.turn + pose.turn @ rotations.cross_matrix(change[3:]))


def _effects(system: Multibody, t, q, v, count: int) -> dict[str, dict[str | None, Any]]:
    """By loop and body: force and moment about the origin of space of each multiplier, `(6, c)`."""
    poses, twists, values = system.poses(q), system.twists(q, v), system.values(q)
    names, nothing = [*poses], jnp.zeros((len(poses), 6), q.dtype)

    def residuals(loop):
        def at(changes):
            moved = {k: _displaced(poses[k], x) for k, x in zip(names, changes, strict=True)}
            return loop.residuals(t, moved, values)

        return at

    def velocity_residuals(loop):
        def at(changes):
            more = {k: Twist(*_halves(x)) for k, x in zip(names, changes, strict=True)}
            faster = {k: twists[k].plus(x) for k, x in more.items()}
            return loop.velocity_residuals(t, poses, faster)

        return at

    first = 0
    found = {x.name: {k: jnp.zeros((6, count), q.dtype) for k in names} for x in system.loops}
    rolling = [x for x in system.loops if x.velocity_constraints()]
    levels = ((system.loops, residuals), (rolling, velocity_residuals))
    for loops, work in levels:
        for loop in loops:
            slopes = jax.jacrev(work(loop))(nothing)
            rows = slice(first, first + len(slopes))
            for i, name in enumerate(names):
                turn, place = poses[name].turn, poses[name].place
                force, moment = (-turn @ x.T for x in (slopes[:, i, :3], slopes[:, i, 3:]))
                lever = rotations.cross_matrix(place) @ force
                column = jnp.concatenate([force, moment + lever])
                found[loop.name][name] = found[loop.name][name].at[:, rows].set(column)
            first += len(slopes)
    return found


def _uniqueness(system: Multibody, t, q, v, found: list[_JointLoad]):
    """Of what acts in a joint: which components no change of multipliers without effect changes."""
    jac = jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)
    if jac.shape[0] == 0 or not found:
        return lambda _: jnp.ones(6, bool)
    phi = constraint_residuals(system, t, q, v).phi
    jac, phi = jax.lax.stop_gradient((jac, phi))
    rows, scales = unit_rows(jac)
    distance = jnp.max(jnp.abs(phi) * scales[: phi.size], initial=0.0)
    limit = jnp.maximum(rank_tolerance(q.dtype), _PER_DISTANCE * distance)
    # In multipliers of rows of unit length; of a row that is zero any will do.
    weights = jnp.where(scales > 0, scales, 1.0)
    kernel = jnp.eye(len(rows), dtype=q.dtype) - rows @ jnp.linalg.pinv(rows, rtol=limit)
    every = jnp.stack([jnp.linalg.norm(x.by_multiplier * weights, axis=1) for x in found])
    # Forces beside the largest force, moments beside the largest moment.
    sizes = jnp.repeat(jnp.stack([x.max() for x in _halves(every.T)]), 3)
    allowed = jnp.maximum(_NO_CHANGE, _PER_DISTANCE * distance) * sizes

    def unique(x: _JointLoad):
        return jnp.linalg.norm((x.by_multiplier * weights) @ kernel, axis=1) <= allowed

    return unique
