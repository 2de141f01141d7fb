"""Mechanisms from MJCF and URDF files, read by MuJoCo's own compiler."""

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdae.multibody.bodies import AbstractLoop, Body, Connection, Coupling, Motor, Weld
from jaxdae.multibody.comparison import compare
from jaxdae.multibody.joints import Ball, Free, Hinge, Joint, Slide
from jaxdae.multibody.system import Multibody
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


def read_mujoco(source: str | Path) -> ImportedMechanism:
    """Read a mechanism from a file for MuJoCo (MJCF) or a robot description (URDF).

    MuJoCo's compiler reads it (`pip install 'jaxdae[import]'`): defaults, frames, inertias of
    geometries and of meshes are its own. Bodies, joints with springs, dampers and armatures, motors
    and servos on hinges and slides, equality constraints between bodies and between joints become a
    `Multibody`. Soft constraints of MuJoCo become exact ones. Energies, powers and residuals of
    both are compared in several random states before anything is returned.

    Args:
        source: path of the file, or its text.

    Returns:
        System, state and what was left out.

    Raises:
        ImportError: without MuJoCo.
        ValueError: for what cannot be read, or has no counterpart here: tendons, flexible bodies,
            dry friction of joints, muscles, actuators with states; or if MuJoCo's numbers differ.

    Warns:
        RuntimeWarning: if geometries could touch, or joints have limits: neither is modelled.
    """
    mujoco = _mujoco()
    model = _compiled(mujoco, source)
    _refuse(model)
    names = _Names(mujoco, model)
    system = Multibody(
        bodies=[_body(mujoco, model, names, i) for i in range(1, model.nbody)],
        loops=[_loop(mujoco, model, names, i) for i in range(model.neq) if model.eq_active0[i]],
        motors=[_motor(mujoco, model, names, i) for i in range(model.nu)],
        gravity=model.opt.gravity * _enabled(mujoco, model, "GRAVITY"),
    )
    compare(mujoco, model, system)
    left_out = tuple(_left_out(mujoco, model))
    if left_out:
        warnings.warn(f"read_mujoco: left out: {'; '.join(left_out)}.", RuntimeWarning, 2)
    return ImportedMechanism(system, system.start(), left_out)


def _mujoco() -> Any:
    try:
        import mujoco
    except ImportError as error:
        raise ImportError(
            "read_mujoco needs MuJoCo, which is not installed: pip install 'jaxdae[import]'."
        ) from error
    return mujoco


def _compiled(mujoco, source: str | Path):
    text = str(source).lstrip()
    try:
        if text.startswith("<"):
            return mujoco.MjModel.from_xml_string(text)
        return mujoco.MjModel.from_xml_path(str(Path(source).expanduser()))
    except ValueError as error:
        raise ValueError(f"read_mujoco: MuJoCo could not read it: {error}") from error


class _Names:
    """Names of what the file names; others are numbered."""

    def __init__(self, mujoco, model):
        self._mujoco, self._model = mujoco, model

    def __call__(self, kind: str, i: int) -> str:
        code = getattr(self._mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
        return self._mujoco.mj_id2name(self._model, code, i) or f"{kind} {i}"

    def body(self, i: int) -> str | None:
        """Name of a body; `None` for the ground."""
        return self("body", i) if i else None


def _enabled(mujoco, model, flag: str) -> bool:
    return not model.opt.disableflags & int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))


def _refuse(model):
    """What would change the motion, and is not modelled."""
    there = {
        "tendons": model.ntendon,
        "flexible bodies": model.nflex,
        "plugins": model.nplugin,
        "actuators with states": model.na,
        "joints with dry friction": int(np.count_nonzero(model.dof_frictionloss)),
        "bodies held against gravity": int(np.count_nonzero(model.body_gravcomp)),
        "mocap bodies": model.nmocap,
    }
    found = [f"{count} {what}" for what, count in there.items() if count]
    if model.opt.density or model.opt.viscosity:
        found.append("a fluid")
    if found:
        raise ValueError(f"read_mujoco: the file has {', '.join(found)}: no counterpart here.")


def _body(mujoco, model, names: _Names, i: int) -> Body:
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


def _joint(mujoco, model, names: _Names, i: int) -> Joint:
    kind, name = mujoco.mjtJoint(int(model.jnt_type[i])), names("joint", i)
    at, dof = model.jnt_qposadr[i], model.jnt_dofadr[i]
    kinds = mujoco.mjtJoint
    several = {kinds.mjJNT_FREE: 6, kinds.mjJNT_BALL: 3}.get(kind, 1)
    damping, armature = (x[dof : dof + several] for x in (model.dof_damping, model.dof_armature))
    if kind == kinds.mjJNT_FREE:
        start = model.qpos0[at : at + 7].tolist()
        return Free(name, damping, armature, tuple(start[:3]), tuple(start[3:]))
    if kind == kinds.mjJNT_BALL:
        return Ball(name, model.jnt_pos[i], damping, armature)
    settings = {
        "axis": model.jnt_axis[i],
        "reference": float(model.qpos0[at]),
        "stiffness": float(np.ravel(model.jnt_stiffness[i])[0]),
        "relaxed": float(model.qpos_spring[at]),
        "damping": float(np.ravel(damping)[0]),
        "armature": float(armature[0]),
    }
    if kind == kinds.mjJNT_SLIDE:
        return Slide(name, **settings)
    return Hinge(name, anchor=model.jnt_pos[i], **settings)


def _loop(mujoco, model, names: _Names, i: int) -> AbstractLoop:
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
    bodies = [names.body(model.site_bodyid[x] if sites else x) for x in ids]
    if kind == kinds.mjEQ_CONNECT:
        anchors = [model.site_pos[x] for x in ids] if sites else [data[:3], data[3:6]]
        return Connection(name, bodies[0], bodies[1], anchors[0], anchors[1])
    if sites:
        raise ValueError(f"read_mujoco: the weld {name!r} is between sites; write it by bodies.")
    return Weld(name, bodies[0], bodies[1], data[3:6], data[:3], data[6:10])


def _motor(mujoco, model, names: _Names, i: int) -> Motor:
    name = names("actuator", i)
    bias_kind = mujoco.mjtBias(int(model.actuator_biastype[i]))
    known = (
        mujoco.mjtTrn(int(model.actuator_trntype[i])).name in ("mjTRN_JOINT", "mjTRN_JOINTINPARENT")
        and mujoco.mjtGain(int(model.actuator_gaintype[i])).name == "mjGAIN_FIXED"
        and bias_kind.name in ("mjBIAS_NONE", "mjBIAS_AFFINE")
    )
    joint = model.actuator_trnid[i, 0]
    if not known or model.jnt_type[joint] < int(mujoco.mjtJoint.mjJNT_SLIDE):
        raise ValueError(
            f"read_mujoco: the actuator {name!r} is neither a motor nor a servo of a hinge or a "
            "slide."
        )
    affine = bias_kind.name == "mjBIAS_AFFINE"
    bias = model.actuator_biasprm[i, :3] if affine else np.zeros(3)
    return Motor(
        name,
        names("joint", joint),
        gear=float(model.actuator_gear[i, 0]),
        gain=float(model.actuator_gainprm[i, 0]),
        bias=(float(bias[0]), float(bias[1]), float(bias[2])),
    )


def _left_out(mujoco, model) -> Iterator[str]:
    """What is not modelled, and may never matter."""
    pairs = sum(1 for _ in _touching(model)) if _enabled(mujoco, model, "CONTACT") else 0
    if pairs:
        yield f"contacts of {pairs} pair{'s' * (pairs > 1)} of geometries"
    limits = int(np.count_nonzero(model.jnt_limited))
    if limits:
        yield f"limits of {limits} joint{'s' * (limits > 1)}"
    bounded = int(np.count_nonzero(model.actuator_ctrllimited | model.actuator_forcelimited))
    if bounded:
        yield f"limits of {bounded} actuator{'s' * (bounded > 1)}"


def _touching(model) -> Iterator[tuple[int, int]]:
    """Pairs of geometries that may touch, of two bodies neither of which bears the other."""
    for one, other in itertools.combinations(range(model.ngeom), 2):
        kinds = model.geom_contype, model.geom_conaffinity
        fits = kinds[0][one] & kinds[1][other] or kinds[0][other] & kinds[1][one]
        bodies = (
            model.body_weldid[model.geom_bodyid[one]],
            model.body_weldid[model.geom_bodyid[other]],
        )
        bearers = [model.body_weldid[model.body_parentid[x]] for x in bodies]
        near = any(a == b and b != 0 for a, b in zip(bodies, reversed(bearers), strict=True))
        if fits and bodies[0] != bodies[1] and not near:
            yield one, other
