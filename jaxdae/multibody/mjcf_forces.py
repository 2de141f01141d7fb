"""Force elements by the numbers of MuJoCo: tendons, springs, dampers, fluids, friction, stops."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxdae.multibody.applied import BallTransmission, GravityCompensation
from jaxdae.multibody.fluids import BoxDrag
from jaxdae.multibody.forces import AbstractForce, Marker
from jaxdae.multibody.lengths import AbstractLength, Coordinate
from jaxdae.multibody.limits import BallAngle, Limit, stop
from jaxdae.multibody.springs import JointDamper, JointSpring, SpringDamper
from jaxdae.multibody.stops import DryFriction
from jaxdae.multibody.system import unused
from jaxdae.multibody.tendons import FixedTendon, SpatialTendon
from jaxdae.multibody.wrapping import AbstractObstacle, Cylinder, Sphere


class Smooth(NamedTuple):
    """How what MuJoCo models by soft constraints becomes a smooth force.

    Args:
        friction_speed: below which dry friction is viscous [rad/s or m/s], or `None`.
        limit_stiffness: of stops at limits [N m/rad or N/m]; `None` leaves limits out.
        limit_dissipation: their dissipation factor [s/rad or s/m].
    """

    friction_speed: float | None = None
    limit_stiffness: float | None = None
    limit_dissipation: float = 0.0


def read_forces(mujoco, model, names: Callable, smooth: Smooth) -> list[AbstractForce]:
    """All that acts beside motors and the linear springs and dampers of hinges and slides."""
    found: list[AbstractForce] = []
    for force in _elements(mujoco, model, names, smooth):
        name = unused(force.name, [x.name for x in found])
        found.append(force if name == force.name else dataclasses.replace(force, name=name))
    return found


def _elements(mujoco, model, names: Callable, smooth: Smooth) -> Iterator[AbstractForce]:
    for i in range(1, model.nbody):
        moves = bool(model.body_weldid[i])
        if moves and model.body_gravcomp[i]:
            part = float(model.body_gravcomp[i])
            name = names("body", i)
            yield GravityCompensation(f"gravity compensation of {name}", name, part)
        if moves and model.body_mass[i] and (model.opt.density or model.opt.viscosity):
            yield _drag(model, names("body", i), i)
    for i in range(model.njnt):
        yield from _of_joint(mujoco, model, names("joint", i), i, smooth)
    for i in range(model.ntendon):
        yield from _of_tendon(mujoco, model, names, i, smooth)


def _drag(model, body: str, i: int) -> BoxDrag:
    return BoxDrag.of_inertia(
        f"drag of {body}", Marker(body, model.body_ipos[i], model.body_iquat[i]),
        float(model.body_mass[i]), model.body_inertia[i], float(model.opt.density),
        float(model.opt.viscosity), np.array(model.opt.wind),
    )  # fmt: skip


def polynomial(first, others) -> np.ndarray:
    """Coefficients of a spring or damper, without zeros at the end but for the first."""
    found = np.array([float(np.ravel(first)[0]), *np.ravel(others)])
    return found[: max(1, np.trim_zeros(found, "b").size)]


def joint_stiffness(model, i: int) -> np.ndarray:
    """`k0, k1, ...` of a joint."""
    return polynomial(model.jnt_stiffness[i], model.jnt_stiffnesspoly[i])


def joint_damping(model, i: int) -> np.ndarray:
    """`d0, d1, ...` of a joint, of each of its velocities the same."""
    dof = model.jnt_dofadr[i]
    return polynomial(model.dof_damping[dof], model.dof_dampingpoly[dof])


def _of_joint(mujoco, model, name: str, i: int, smooth: Smooth) -> Iterator[AbstractForce]:
    kind, kinds = mujoco.mjtJoint(int(model.jnt_type[i])), mujoco.mjtJoint
    single = kind in (kinds.mjJNT_HINGE, kinds.mjJNT_SLIDE)
    size = {kinds.mjJNT_FREE: 7, kinds.mjJNT_BALL: 4}.get(kind, 1)
    at, dof = model.jnt_qposadr[i], model.jnt_dofadr[i]
    stiffness, damping = joint_stiffness(model, i), joint_damping(model, i)
    # One coefficient of a hinge or slide is a number of the joint itself.
    if stiffness.any() and not (single and stiffness.size == 1):
        relaxed = model.qpos_spring[at : at + size]
        yield JointSpring(f"spring of {name}", name, stiffness, relaxed)
    if damping.size > 1:
        yield JointDamper(f"damper of {name}", name, damping)
    lengths: list[tuple[str, AbstractLength]] = [(name, Coordinate(name))]
    if kind == kinds.mjJNT_BALL:
        lengths = [
            (f"{name} about {x}", BallTransmission(name, axis))
            for x, axis in zip("xyz", np.eye(3), strict=True)
        ]
    bounds = model.dof_frictionloss[dof : dof + len(lengths)]
    if model.dof_frictionloss[dof] and kind == kinds.mjJNT_FREE:
        raise ValueError(
            f"read_mujoco: the free joint {name!r} has dry friction, which is not modelled here. "
            "Take frictionloss out of it."
        )
    for (what, length), bound in zip(lengths, bounds, strict=True):
        yield from _friction(what, length, float(bound), smooth)
    if smooth.limit_stiffness is not None:
        for limit in joint_limits(mujoco, model, name, i):
            yield stop(limit, smooth.limit_stiffness, smooth.limit_dissipation)


def read_limits(mujoco, model, names: Callable) -> list[Limit]:
    """Of joints and tendons."""
    found = [
        *(y for i in range(model.njnt) for y in joint_limits(mujoco, model, names("joint", i), i)),
        *(y for i in range(model.ntendon) for y in _tendon_limits(mujoco, model, names, i)),
    ]
    taken: list[str] = []
    for i, limit in enumerate(found):
        found[i] = limit._replace(name=unused(limit.name, taken))
        taken.append(found[i].name)
    return found


def joint_limits(mujoco, model, name: str, i: int) -> Iterator[Limit]:
    """Of a joint; MuJoCo's constraint holds it a margin before the end."""
    if not model.jnt_limited[i]:
        return
    low, high = map(float, model.jnt_range[i])
    margin = float(model.jnt_margin[i])
    if int(model.jnt_type[i]) == int(mujoco.mjtJoint.mjJNT_BALL):
        yield Limit(name, BallAngle(name), None, max(low, high) - margin)
    else:
        yield Limit(name, Coordinate(name), low + margin, high - margin)


def _tendon_limits(mujoco, model, names: Callable, i: int) -> Iterator[Limit]:
    if model.tendon_limited[i]:
        low, high = map(float, model.tendon_range[i])
        margin, length = float(model.tendon_margin[i]), tendon_length(mujoco, model, names, i)
        yield Limit(f"tendon {names('tendon', i)}", length, low + margin, high - margin)


def _of_tendon(mujoco, model, names: Callable, i: int, smooth: Smooth) -> Iterator[AbstractForce]:
    name = names("tendon", i)
    stiffness = polynomial(model.tendon_stiffness[i], model.tendon_stiffnesspoly[i])
    damping = polynomial(model.tendon_damping[i], model.tendon_dampingpoly[i])
    friction = float(model.tendon_frictionloss[i])
    length = tendon_length(mujoco, model, names, i)
    if stiffness.any() or damping.any():
        relaxed = model.tendon_lengthspring[i]
        yield SpringDamper(f"tendon {name}", length, stiffness, relaxed, damping)
    yield from _friction(f"tendon {name}", length, friction, smooth)
    if smooth.limit_stiffness is not None:
        for limit in _tendon_limits(mujoco, model, names, i):
            yield stop(limit, smooth.limit_stiffness, smooth.limit_dissipation)


def _friction(name: str, length: AbstractLength, bound: float, smooth: Smooth):
    if not bound:
        return
    if smooth.friction_speed is None:
        raise ValueError(
            f"read_mujoco: {name!r} has dry friction of {bound:g}, which MuJoCo models by a soft "
            "constraint. Give friction_speed, below which friction is viscous here [rad/s or m/s], "
            "such as 0.01; or take frictionloss out of the file."
        )
    yield DryFriction(f"friction of {name}", length, bound, smooth.friction_speed)


def site_marker(model, names: Callable, i: int) -> Marker:
    """A site: a point and axes of a body."""
    body = int(model.site_bodyid[i])
    return Marker(names("body", body) if body else None, model.site_pos[i], model.site_quat[i])


def tendon_length(mujoco, model, names: Callable, i: int) -> AbstractLength:
    """The sum of coordinates, or the path through sites and around geometries, of a tendon.

    Raises:
        ValueError: for what its path goes around, where that has no counterpart here, and for a
            path without length on one body.
    """
    kinds, first = mujoco.mjtWrap, int(model.tendon_adr[i])
    steps = range(first, first + int(model.tendon_num[i]))
    if model.wrap_type[first] == int(kinds.mjWRAP_JOINT):
        coefficients: dict[str, float] = {}
        for x in steps:
            joint = names("joint", int(model.wrap_objid[x]))
            coefficients[joint] = coefficients.get(joint, 0.0) + float(model.wrap_prm[x])
        return FixedTendon(coefficients)
    branches: list[list[Marker | AbstractObstacle]] = [[]]
    divisors = [1.0]
    for x in steps:
        kind, number = model.wrap_type[x], int(model.wrap_objid[x])
        if kind == int(kinds.mjWRAP_PULLEY):
            branches.append([])
            divisors.append(float(model.wrap_prm[x]))
        elif kind == int(kinds.mjWRAP_SITE):
            branches[-1].append(site_marker(model, names, number))
        else:
            sphere = kind == int(kinds.mjWRAP_SPHERE)
            side = round(float(model.wrap_prm[x]))
            branches[-1].append(
                _obstacle(mujoco, model, names, names("tendon", i), number, sphere, side)
            )
    on = [model.site_bodyid[model.wrap_objid[x]] for x in steps
          if model.wrap_type[x] == int(kinds.mjWRAP_SITE)]  # fmt: skip
    if len({*model.body_weldid[on]}) == 1 and not model.tendon_length0[i] > 0:
        raise ValueError(
            f"read_mujoco: the length of the tendon {names('tendon', i)!r} is 0 m in every "
            "position: its sites are one point of one body. Put them apart, or take it out."
        )
    kept = [(x, d) for x, d in zip(branches, divisors, strict=True) if x]
    return SpatialTendon([x for x, _ in kept], [d for _, d in kept])


def _obstacle(
    mujoco, model, names: Callable, tendon: str, geom: int, sphere: bool, side: int
) -> AbstractObstacle:
    """A sphere or a cylinder that a tendon goes around, on the side of a site, if one is given."""
    body = int(model.geom_bodyid[geom])
    marker = Marker(
        names("body", body) if body else None, model.geom_pos[geom], model.geom_quat[geom]
    )
    point = None
    if side >= 0:
        if int(model.site_bodyid[side]) != body:
            raise ValueError(
                f"read_mujoco: the tendon {tendon!r} goes around a geometry on the side of a site "
                "of another body, which is not modelled here. Put the site on the geometry's body."
            )
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        point = turn.reshape(3, 3).T @ (model.site_pos[side] - model.geom_pos[geom])
    try:
        return (Sphere if sphere else Cylinder)(marker, float(model.geom_size[geom][0]), point)
    except ValueError as error:
        raise ValueError(f"read_mujoco: the tendon {tendon!r}: {error}") from error
