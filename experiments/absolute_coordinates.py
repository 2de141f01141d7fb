"""A mechanism in absolute coordinates: every body free, a closing joint in place of every joint."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae import multibody as mb


def is_suited(system: mb.Multibody) -> bool:
    """Whether all that the mechanism has refers to bodies, and none to joints."""
    passive = all(
        not np.any(getattr(x, field, 0.0))
        for x in system.joints()
        for field in ("stiffness", "damping", "armature")
    )
    by_joints = (mb.Coupling, mb.PrescribedJoint)
    return passive and not system.motors and not any(isinstance(x, by_joints) for x in system.loops)


def absolute(system: mb.Multibody) -> mb.Multibody:
    """The same mechanism, each body with the seven coordinates of a free one.

    Args:
        system: one for which `is_suited`, with coordinates of joints that begin at zero.
    """
    bodies, loops = [], []
    for body in system.bodies:
        bodies.append(
            mb.Body(
                body.name, mb.Free(f"free {body.name}"), mass=body.mass, centre=body.centre,
                inertia=body.inertia,
            )
        )  # fmt: skip
        if not body.free():
            loops.append(_in_place_of(body))
    return mb.Multibody(bodies, [*loops, *system.loops], (), system.gravity, system.forces)


def _in_place_of(body: mb.Body) -> Any:
    """The closing joint that leaves a body what its joints in a tree do."""
    turn = np.asarray(body.at_rest().turn)
    joints: Any = body.joints
    kinds = [type(x) for x in joints]
    at = next((np.asarray(x.at) for x in joints if x.at is not None), np.zeros(3))
    names = (f"joints of {body.name}", body.parent, body.name)
    pair = (*names, np.asarray(body.position) + turn @ at, at)
    axes = [np.asarray(x.axis) for x in joints if hasattr(x, "axis")]
    orientation = Rotation.from_matrix(turn).as_quat(scalar_first=True)
    if kinds == [mb.Hinge]:
        return mb.HingeLoop(*pair, turn @ axes[0], axes[0])
    if kinds == [mb.Slide]:
        return mb.SlideLoop(*pair, turn @ axes[0], orientation)
    if kinds == [mb.Screw]:
        return mb.ScrewLoop(*pair, turn @ axes[0], joints[0].pitch, orientation)
    if kinds == [mb.Ball]:
        return mb.Connection(*pair)
    if kinds == [mb.Hinge, mb.Hinge]:
        return mb.UniversalLoop(*pair, turn @ axes[0], axes[1])
    if kinds == [mb.Slide, mb.Hinge]:
        return mb.CylindricalLoop(*pair, turn @ axes[1], axes[1])
    if kinds == [mb.Slide, mb.Slide, mb.Hinge]:
        return mb.PlanarLoop(*pair, turn @ axes[2], axes[2])
    raise ValueError(f"the body {body.name!r} has joints in a row that no closing joint is like.")


def motion_of_bodies(system: mb.Multibody, q, v):
    """Velocities of origins in space and angular velocities in axes of bodies, `(6 bodies,)`."""
    poses, twists = system.poses(q), system.twists(q, v)
    return jnp.concatenate(
        [
            y
            for x in system.bodies
            for y in (poses[x.name].turn @ twists[x.name].velocity, twists[x.name].spin)
        ]
    )


@jax.jit
def state_of_bodies(system: mb.Multibody, q, v) -> jaxdae.State:
    """The state of `absolute(system)`, whose quaternions are left to be computed from turns."""
    poses = system.poses(q)
    places = [jnp.concatenate([poses[x.name].place, poses[x.name].turn.ravel()])
              for x in system.bodies]  # fmt: skip
    return jaxdae.State(jnp.concatenate(places), motion_of_bodies(system, q, v))


def begun(system: mb.Multibody, q, v) -> jaxdae.State:
    """The state of `absolute(system)` in that of the mechanism."""
    found = state_of_bodies(system, q, v)
    rows = np.asarray(found.q).reshape(-1, 12)
    turns = Rotation.from_matrix(rows[:, 3:].reshape(-1, 3, 3)).as_quat(scalar_first=True)
    places = np.concatenate([rows[:, :3], turns], axis=1)
    return jaxdae.State(jnp.asarray(places.ravel()), found.v)


@jax.jit
def _terms(system, q, v):
    return jaxdae.evaluate(system, jnp.zeros(()), q, v)


def accelerations(system: jaxdae.System, q, v) -> np.ndarray:
    """Of Gauss's principle, by NumPy; constraints may depend on each other."""
    terms = jax.tree.map(np.asarray, _terms(system, q, v))
    rows = terms.jac.shape[0]
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, np.zeros((rows, rows))]])
    right = np.concatenate([terms.force, -terms.gamma])
    return np.linalg.lstsq(matrix, right, rcond=1e-12)[0][: len(v)]


@jax.jit
def _of_bodies(system, q, v, a):
    rate = system.rate(jnp.zeros(()), q, v)
    return jax.jvp(lambda q, v: motion_of_bodies(system, q, v), (q, v), (rate, a))[1]


def difference(system: mb.Multibody, state: jaxdae.State) -> float:
    """How far accelerations of bodies in both coordinates are apart, as a part of the largest.

    Args:
        system: one for which `is_suited`.
        state: a consistent state of it.
    """
    a = accelerations(system, state.q, state.v)
    wanted = np.asarray(_of_bodies(system, state.q, state.v, jnp.asarray(a)))
    same = begun(system, state.q, state.v)
    found = accelerations(absolute(system), same.q, same.v)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def difference_in_motion(system: mb.Multibody, state: jaxdae.State, t1: float) -> float:
    """How far poses of bodies in both coordinates are apart at most [m, and entries of turns].

    Both motions are of the same equations to the tolerance of the steps, 1e-10.

    Args:
        system: one for which `is_suited`.
        state: a consistent state of it.
        t1: end [s].
    """
    both = (system, state), (absolute(system), begun(system, state.q, state.v))
    poses = []
    for one, start in both:
        run = jaxdae.simulate(
            one, jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0)), start, t1=t1,
            stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
        )  # fmt: skip
        rows = jax.vmap(lambda q, v, one=one: state_of_bodies(one, q, v).q)
        poses.append(np.asarray(jax.jit(rows)(run.q, run.v)))
    return float(np.abs(poses[0] - poses[1]).max())
