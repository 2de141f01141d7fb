"""Mechanisms from MJCF and URDF files, read by MuJoCo's own compiler."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdae.checks import fails
from jaxdae.multibody.applied import BallTransmission, Site
from jaxdae.multibody.bodies import AbstractLoop, Body, Connection, Coupling, Weld
from jaxdae.multibody.comparison import compare
from jaxdae.multibody.joints import AbstractJoint, Ball, Free, Hinge, Slide
from jaxdae.multibody.lengths import AbstractLength, Coordinate
from jaxdae.multibody.mjcf_forces import (
    joint_damping,
    joint_stiffness,
    read_forces,
    site_marker,
    Smooth,
    tendon_length,
)
from jaxdae.multibody.motors import Motor
from jaxdae.multibody.system import Multibody, unused
from jaxdae.systems import State


class ImportedMechanism(NamedTuple):
    """What `read_mujoco` found.

    Args:
        system: coordinates in the order of MuJoCo's `qpos`.
        state: the position of the file, at rest.
        left_out: what the file has and the system has not, in words.
    """

    system: Multibody
    state: State
    left_out: tuple[str, ...]


def read_mujoco(
    source: str | Path,
    *,
    friction_speed: float | None = None,
    limit_stiffness: float | None = None,
    limit_dissipation: float = 0.0,
) -> ImportedMechanism:
    """Read a mechanism from a file for MuJoCo (MJCF) or a robot description (URDF).

    MuJoCo's compiler reads it (`pip install 'jaxdae[import]'`): defaults, frames, inertias of
    geometries and of meshes are its own. Bodies, joints, springs and dampers with their
    polynomials, tendons, gravity compensation, drag of a fluid on boxes of inertia, actuators of
    affine force with or without a filter or integrator, equality constraints between bodies and
    between joints become a `Multibody`. Soft constraints of MuJoCo become exact ones, dry friction
    and limits smooth forces where the arguments below ask for it. What flags of the file disable is
    not there; keyframes, and options of MuJoCo's own integration, are not used. Energies, powers,
    rates of activations and residuals of both are compared in several random states before anything
    is returned.

    Args:
        source: path of the file, or its text.
        friction_speed: below which dry friction is viscous, as that of `DryFriction`
            [rad/s or m/s]; by default a file with `frictionloss` is refused.
        limit_stiffness: makes a `Stop` with this stiffness [N m/rad or N/m] of each limit of a
            hinge, a slide or a tendon; by default limits are left out.
        limit_dissipation: the dissipation factor of these stops [s/rad or s/m].

    Returns:
        System, state and what was left out.

    Raises:
        ImportError: without MuJoCo.
        ValueError: for what cannot be read, or has no counterpart here: flexible bodies, springs
            that yield, dry friction without `friction_speed`, ellipsoids in a fluid, tendons with
            inertia, muscles, actuators with delays; for an argument that is out of its range; or if
            MuJoCo's numbers differ.

    Warns:
        RuntimeWarning: if geometries could touch, or joints, tendons or actuators have limits: none
            of these is modelled, but limits with `limit_stiffness`; or if the file switches
            actuators off: they are inputs without force.
    """
    smooth = Smooth(friction_speed, limit_stiffness, limit_dissipation)
    _check_arguments(smooth)
    mujoco = load_mujoco()
    model = compiled(mujoco, source)
    left_out = (
        *_balanced(mujoco, model, source),
        *_switch_off(mujoco, model),
        *_left_out(mujoco, model, limit_stiffness is not None),
    )
    _refuse(mujoco, model)
    names = Names(mujoco, model)
    system = Multibody(
        bodies=[_body(mujoco, model, names, i) for i in range(1, model.nbody)],
        loops=[_loop(mujoco, model, names, i) for i in range(model.neq) if model.eq_active0[i]],
        motors=[_motor(mujoco, model, names, i) for i in range(model.nactuator)],
        gravity=model.opt.gravity,
        forces=read_forces(mujoco, model, names, smooth),
    )
    compare(mujoco, model, system)
    if left_out:
        warnings.warn(f"read_mujoco: left out: {'; '.join(left_out)}.", RuntimeWarning, 2)
    return ImportedMechanism(system, system.start(), left_out)


def _check_arguments(smooth: Smooth):
    for what, value in zip(("friction_speed", "limit_stiffness"), smooth[:2], strict=True):
        if value is not None and fails(lambda x: 0 < x < np.inf, value):
            raise ValueError(f"read_mujoco: {what} is {value}; it is positive and finite.")
    if fails(lambda x: 0 <= x < np.inf, smooth.limit_dissipation):
        raise ValueError(
            f"read_mujoco: limit_dissipation is {smooth.limit_dissipation}; it is finite and not "
            "negative."
        )


def load_mujoco() -> Any:
    """MuJoCo, or an error that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(
            "read_mujoco needs MuJoCo, which is not installed: pip install 'jaxdae[import]'."
        ) from error
    return mujoco


def compiled(mujoco, source: str | Path):
    """The model of a file, or of a text, by MuJoCo's own compiler."""
    text = str(source).lstrip()
    if not text.startswith("<"):
        path = Path(source).expanduser()
        # Said here: MuJoCo takes no path for the working folder, and an empty file for a large one.
        if not text or not path.is_file():
            what = "an empty text" if not text else f"{str(source)!r}, which is no file"
            raise ValueError(f"read_mujoco: got {what}; give the path of a file, or its text.")
        if path.stat().st_size == 0:
            raise ValueError(f"read_mujoco: the file {str(source)!r} is empty.")
    try:
        if text.startswith("<"):
            return mujoco.MjModel.from_xml_string(text)
        return mujoco.MjModel.from_xml_path(str(Path(source).expanduser()))
    except ValueError as error:
        raise ValueError(f"read_mujoco: MuJoCo could not read it: {error}") from error


def _balanced(mujoco, model, source: str | Path) -> Iterator[str]:
    """Inertias that no body has, which MuJoCo has replaced where the file allows it."""
    text = str(source).lstrip()
    read = mujoco.MjSpec.from_string if text.startswith("<") else mujoco.MjSpec.from_file
    spec = read(text if text.startswith("<") else str(Path(source).expanduser()))
    if not spec.compiler.balanceinertia:
        return
    for body in spec.bodies:
        given = np.sort(np.asarray(body.inertia, float))
        # Bodies that are fused with another one have no place in the model.
        i = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, body.name)
        if i > 0 and body.explicitinertial and given[2] > given[0] + given[1]:
            listed = ", ".join(f"{x:g}" for x in given)
            yield (
                f"the inertia ({listed}) kg m^2 of body {body.name!r}, which no body has: the mean "
                f"{model.body_inertia[i][0]:g} in its place, as balanceinertia of the file asks"
            )


class Names:
    """Names of what the file names; others are numbered."""

    def __init__(self, mujoco, model):
        self._mujoco, self._model = mujoco, model

    def __call__(self, kind: str, i: int) -> str:
        given = self._given(kind)
        return given[i] or unused(f"{kind} {i}", given)

    def _given(self, kind: str) -> list[str | None]:
        code = getattr(self._mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
        field = {"joint": "njnt", "equality": "neq"}.get(kind, f"n{kind}")
        count = getattr(self._model, field)
        return [self._mujoco.mj_id2name(self._model, code, i) for i in range(count)]

    def body(self, i: int) -> str | None:
        """Name of a body; `None` for the ground."""
        return self("body", i) if i else None


def _enabled(mujoco, model, *flags: str) -> bool:
    bits = sum(int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{x}")) for x in flags)
    return not model.opt.disableflags & bits


def _switch_off(mujoco, model) -> Iterator[str]:
    """Write into the model what the flags of the file disable; what stays without effect."""
    disabled = {
        ("GRAVITY",): [model.opt.gravity, model.body_gravcomp],
        ("SPRING",): [model.jnt_stiffness, model.jnt_stiffnesspoly, model.jnt_springyield,
                      model.tendon_stiffness, model.tendon_stiffnesspoly, model.tendon_springyield],
        ("DAMPER",): [model.dof_damping, model.dof_dampingpoly,
                      model.tendon_damping, model.tendon_dampingpoly,
                      model.actuator_damping, model.actuator_dampingpoly],
        ("FRICTIONLOSS", "CONSTRAINT"): [model.dof_frictionloss, model.tendon_frictionloss],
        ("EQUALITY", "CONSTRAINT"): [model.eq_active0],
        ("LIMIT", "CONSTRAINT"): [model.jnt_limited, model.tendon_limited],
        ("CLAMPCTRL",): [model.actuator_ctrllimited],
    }  # fmt: skip
    for flags, arrays in disabled.items():
        if not _enabled(mujoco, model, *flags):
            for array in arrays:
                array[...] = 0
    # Without both of these MuJoCo computes no passive force at all.
    if not (_enabled(mujoco, model, "SPRING") or _enabled(mujoco, model, "DAMPER")):
        model.body_gravcomp[:] = model.opt.density = model.opt.viscosity = 0.0
    off = np.full(model.nactuator, not _enabled(mujoco, model, "ACTUATION"))
    off |= (model.opt.disableactuator >> model.actuator_group & 1).astype(bool)
    model.actuator_gainprm[off] = model.actuator_biasprm[off] = 0.0
    if off.any():
        yield f"forces of {_counted(int(off.sum()), 'actuator')} switched off in the file"


def _refuse(mujoco, model):
    """What would change the motion, and is not modelled."""
    if model.nbody == 1:
        raise ValueError("read_mujoco: the file has no body but the world. Put one into worldbody.")
    of_joint = _on_joints(mujoco, model)
    in_fluid = model.opt.density or model.opt.viscosity
    there = {
        "flexible body": model.nflex,
        "plugin": model.nplugin,
        "actuator with a delay": np.count_nonzero(model.actuator_delay),
        "joint whose spring yields": np.count_nonzero(model.jnt_springyield),
        "tendon whose spring yields": np.count_nonzero(model.tendon_springyield),
        "tendon with an inertia": np.count_nonzero(model.tendon_armature),
        "nonlinear damper of an actuator": _rows(model.actuator_dampingpoly),
        "damper or inertia of an actuator that is not on a hinge or slide": np.count_nonzero(
            (model.actuator_damping + model.actuator_armature)[~of_joint]
        ),
        "joint whose actuators compensate gravity": np.count_nonzero(model.jnt_actgravcomp)
        if model.body_gravcomp.any()
        else 0,
        "ellipsoid in a fluid": np.count_nonzero(model.geom_fluid[:, 0]) if in_fluid else 0,
        "mocap body": model.nmocap,
    }
    found = [f"{count} x {what}" for what, count in there.items() if count]
    if found:
        raise ValueError(
            f"read_mujoco: the file has what is not modelled here: {', '.join(found)}. Take it out "
            "of the file, or write the system with its force by hand."
        )


def _on_joints(mujoco, model) -> np.ndarray:
    """Which actuators are on hinges and slides."""
    types = mujoco.mjtTrn
    on_joint = np.isin(
        model.actuator_trntype, [int(types.mjTRN_JOINT), int(types.mjTRN_JOINTINPARENT)]
    )
    single = np.append(model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE), False)
    return on_joint & single[np.where(on_joint, model.actuator_trnid[:, 0], -1)]


def _rows(values: np.ndarray) -> int:
    """How many rows are not zero."""
    return int(np.count_nonzero(values.reshape(len(values), -1).any(axis=1))) if values.size else 0


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _body(mujoco, model, names: Names, i: int) -> Body:
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[i])
    turn = turn.reshape(3, 3)
    first, count = model.body_jntadr[i], model.body_jntnum[i]
    return Body(
        names("body", i),
        [_joint(mujoco, model, names, x) for x in range(first, first + count)],
        parent=names.body(model.body_parentid[i]),
        position=model.body_pos[i],
        orientation=model.body_quat[i],
        mass=float(model.body_mass[i]),
        centre=model.body_ipos[i],
        inertia=turn @ np.diag(model.body_inertia[i]) @ turn.T,
    )


def _joint(mujoco, model, names: Names, i: int) -> AbstractJoint:
    kind, name = mujoco.mjtJoint(int(model.jnt_type[i])), names("joint", i)
    at, dof = model.jnt_qposadr[i], model.jnt_dofadr[i]
    kinds = mujoco.mjtJoint
    several = {kinds.mjJNT_FREE: 6, kinds.mjJNT_BALL: 3}.get(kind, 1)
    # Polynomials of dampers, and of springs, are elements of their own.
    linear = joint_damping(model, i).size == 1
    damping = model.dof_damping[dof : dof + several] * linear
    damping += _reflected(mujoco, model, model.actuator_damping, i)
    armature = model.dof_armature[dof : dof + several]
    armature = armature + _reflected(mujoco, model, model.actuator_armature, i)
    if kind == kinds.mjJNT_FREE:
        start = model.qpos0[at : at + 7].tolist()
        return Free(name, damping, armature, tuple(start[:3]), tuple(start[3:]))
    if kind == kinds.mjJNT_BALL:
        return Ball(name, model.jnt_pos[i], damping, armature)
    stiffness = joint_stiffness(model, i)
    settings = {
        "axis": model.jnt_axis[i],
        "reference": float(model.qpos0[at]),
        "stiffness": float(stiffness[0]) if stiffness.size == 1 else 0.0,
        "relaxed": float(model.qpos_spring[at]),
        "damping": float(np.ravel(damping)[0]),
        "armature": float(armature[0]),
    }
    if kind == kinds.mjJNT_SLIDE:
        return Slide(name, **settings)
    return Hinge(name, anchor=model.jnt_pos[i], **settings)


def _reflected(mujoco, model, values: np.ndarray, joint: int) -> float:
    """What actuators of a joint add to its dampers or inertias, by the square of the gear."""
    of_joint = _on_joints(mujoco, model) & (model.actuator_trnid[:, 0] == joint)
    return float(np.sum(values[of_joint].ravel() * model.actuator_gear[of_joint, 0] ** 2))


def _loop(mujoco, model, names: Names, i: int) -> AbstractLoop:
    kind, name, data = mujoco.mjtEq(int(model.eq_type[i])), names("equality", i), model.eq_data[i]
    ids = model.eq_obj1id[i], model.eq_obj2id[i]
    kinds = mujoco.mjtEq
    if kind == kinds.mjEQ_JOINT:
        references = [float(model.qpos0[model.jnt_qposadr[x]]) for x in ids if x >= 0]
        leads = names("joint", ids[1]) if ids[1] >= 0 else None
        return Coupling(
            name, names("joint", ids[0]), leads, np.trim_zeros(data[:5], "b")
            if data[:5].any() else np.zeros(1),
            (references[0], references[-1]),
        )  # fmt: skip
    if kind not in (kinds.mjEQ_CONNECT, kinds.mjEQ_WELD):
        raise ValueError(
            f"read_mujoco: the equality {name!r} is neither of points or bodies nor of joints."
        )
    sites = int(model.eq_objtype[i]) == int(mujoco.mjtObj.mjOBJ_SITE)
    one, two = (names.body(model.site_bodyid[x] if sites else x) for x in ids)
    if kind == kinds.mjEQ_CONNECT:
        anchors = [model.site_pos[x] for x in ids] if sites else [data[:3], data[3:6]]
        return Connection(name, one, two, anchors[0], anchors[1])
    anchors, turn = [data[3:6], data[:3]], data[6:10]
    if sites:
        anchors, turn = [model.site_pos[x] for x in ids], np.empty(4)
        mujoco.mju_negQuat(turn, model.site_quat[ids[1]])
        mujoco.mju_mulQuat(turn, model.site_quat[ids[0]], turn.copy())
    # With the scale zero MuJoCo's weld leaves rotations free.
    if not data[10]:
        return Connection(name, one, two, anchors[0], anchors[1])
    return Weld(name, one, two, anchors[0], anchors[1], turn)


# Of activations; a filter that MuJoCo integrates exactly is the same one here.
_DYNAMICS = {
    "mjDYN_NONE": "none",
    "mjDYN_INTEGRATOR": "integrator",
    "mjDYN_FILTER": "filter",
    "mjDYN_FILTEREXACT": "filter",
}


def _motor(mujoco, model, names: Names, i: int) -> Motor:
    name = names("actuator", i)
    bias_kind = mujoco.mjtBias(int(model.actuator_biastype[i])).name
    gain_kind = mujoco.mjtGain(int(model.actuator_gaintype[i])).name
    dynamics = _DYNAMICS.get(mujoco.mjtDyn(int(model.actuator_dyntype[i])).name)
    transmission = _transmission(mujoco, model, names, i)
    known = (
        gain_kind in ("mjGAIN_FIXED", "mjGAIN_AFFINE")
        and bias_kind in ("mjBIAS_NONE", "mjBIAS_AFFINE")
        and dynamics is not None
    )
    if not known or dynamics is None or transmission is None:
        raise ValueError(
            f"read_mujoco: the actuator {name!r} is not a motor or servo with an affine force, "
            "with a filter, an integrator or neither, of a hinge, a slide, a ball, a tendon, or "
            "of a site without a reference site."
        )
    length, gear = transmission
    gain, bias = model.actuator_gainprm[i, :3], model.actuator_biasprm[i, :3]
    return Motor(
        name,
        length,
        gear,
        gain if gain_kind == "mjGAIN_AFFINE" else float(gain[0]),
        bias if bias_kind == "mjBIAS_AFFINE" else 0.0,
        dynamics,
        float(model.actuator_dynprm[i, 0]) if dynamics == "filter" else 0.0,
    )


def _transmission(mujoco, model, names: Names, i: int) -> tuple[AbstractLength, float] | None:
    """The length that an actuator acts along, and its gear; `None` for others."""
    kind = mujoco.mjtTrn(int(model.actuator_trntype[i])).name
    number, other = map(int, model.actuator_trnid[i])
    gear = model.actuator_gear[i]
    if kind in ("mjTRN_JOINT", "mjTRN_JOINTINPARENT"):
        joint, of = names("joint", number), mujoco.mjtJoint(int(model.jnt_type[number])).name
        if of in ("mjJNT_HINGE", "mjJNT_SLIDE"):
            return Coordinate(joint), float(gear[0])
        if of == "mjJNT_BALL":
            return BallTransmission(joint, gear[:3], kind == "mjTRN_JOINTINPARENT"), 1.0
    if kind == "mjTRN_TENDON":
        return tendon_length(mujoco, model, names, number), float(gear[0])
    if kind == "mjTRN_SITE" and other < 0:
        return Site(site_marker(model, names, number), gear), 1.0
    return None


def _left_out(mujoco, model, stops: bool = False) -> Iterator[str]:
    """What is not modelled, and may never matter."""
    pairs = len(_touching(mujoco, model))
    if pairs and _enabled(mujoco, model, "CONTACT", "CONSTRAINT"):
        yield f"contacts of {_counted(pairs, 'pair')} of geometries"
    # A ball has no stop.
    balls = model.jnt_type == int(mujoco.mjtJoint.mjJNT_BALL)
    limits = int(np.count_nonzero(model.jnt_limited & (balls | (not stops))))
    if limits:
        yield f"limits of {_counted(limits, 'joint')}"
    limits = 0 if stops else int(np.count_nonzero(model.tendon_limited))
    if limits:
        yield f"limits of {_counted(limits, 'tendon')}"
    bounded = model.actuator_forcelimited.astype(bool) | model.actuator_actlimited.astype(bool)
    bounded |= model.actuator_ctrllimited.astype(bool)
    tendons = model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_TENDON)
    for of, limited in (
        (_on_joints(mujoco, model), model.jnt_actfrclimited),
        (tendons, model.tendon_actfrclimited),
    ):
        bounded |= of & np.isin(model.actuator_trnid[:, 0], np.flatnonzero(limited))
    if bounded.any():
        yield f"limits of {_counted(int(bounded.sum()), 'actuator')}"


def _touching(mujoco, model) -> set[tuple[int, int]]:
    """Pairs of geometries that the file lists, or that its rules let touch."""
    found = {
        (int(min(x)), int(max(x))) for x in zip(model.pair_geom1, model.pair_geom2, strict=True)
    }
    bodies = model.geom_bodyid.astype(np.int64)
    welded = model.body_weldid[bodies]
    parents = model.body_weldid[model.body_parentid[welded]]
    filtered = _enabled(mujoco, model, "FILTERPARENT")
    for i in range(model.ngeom):
        j = np.arange(i + 1, model.ngeom)
        fits = model.geom_contype[i] & model.geom_conaffinity[j]
        fits |= model.geom_contype[j] & model.geom_conaffinity[i]
        near = (welded[i] == parents[j]) | (welded[j] == parents[i])
        near &= filtered & (welded[i] != 0) & (welded[j] != 0)
        signature = np.minimum(bodies[i], bodies[j]) << 16 | np.maximum(bodies[i], bodies[j])
        excluded = np.isin(signature, model.exclude_signature)
        may = (fits != 0) & (welded[i] != welded[j]) & ~near & ~excluded
        found |= {(i, int(x)) for x in j[may]}
    return found
