"""Runs of MuJoCo itself: how far its soft equality constraints open along a motion."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxdae.multibody.soft_constraints import Setting, Softness
from jaxdae.reprs import shown

# A start is closed when no residual is larger [m or rad], beside lengths of the mechanism.
_CLOSED, _ITERATIONS = 1e-9, 100
# Singular values below this part of the largest take no part in closing the start.
_RANK = 1e-6
# Warnings of MuJoCo with which it gives up a state.
_GIVEN_UP = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")


class Drift(NamedTuple):
    """Largest violation of one equality constraint along a run of MuJoCo.

    Args:
        distance: of points, or of slides [m]; `None` where there is none.
        angle: of bodies, or of hinges [rad]; `None` where there is none.
    """

    distance: float | None
    angle: float | None

    def __repr__(self) -> str:
        return shown(self)

    def __str__(self) -> str:
        parts = ((self.distance, "m"), (self.angle, "rad"))
        return ", ".join(f"{x:.2g} {unit}" for x, unit in parts if x is not None)


class SoftRun(NamedTuple):
    """A run of MuJoCo at the step and by the integrator of the file.

    Args:
        settings: of each active equality constraint.
        softness: what they mean at this step, read from MuJoCo.
        drift: largest violation of each, up to where the run was given up.
        ts: times [s], shape `(times,)`.
        qpos: coordinates, shape `(times, nq)`.
        given_up: time at which MuJoCo found that numbers are not finite or too large [s]; `None`
            for a run that reached its end.
        acted: time [s] from which something acts that `read_mujoco` leaves out, and its name;
            `None` where nothing did.
    """

    settings: tuple[Setting, ...]
    softness: tuple[Softness, ...]
    drift: tuple[Drift, ...]
    ts: np.ndarray
    qpos: np.ndarray
    given_up: float | None
    acted: tuple[float, str] | None

    def __repr__(self) -> str:
        return shown(self)

    def largest(self) -> tuple[float, float]:
        """Largest distance [m] and angle [rad] of all constraints; zero where there is none."""
        return (
            max((x.distance or 0.0 for x in self.drift), default=0.0),
            max((x.angle or 0.0 for x in self.drift), default=0.0),
        )


class SoftStart(NamedTuple):
    """A state on the constraints, from which MuJoCo runs.

    Args:
        qpos: coordinates, shape `(nq,)`.
        qvel: velocities, shape `(nv,)`.
        ctrl: inputs, held, shape `(nu,)`.
        closed: largest residual that the position of the file has [m or rad].
    """

    qpos: np.ndarray
    qvel: np.ndarray
    ctrl: np.ndarray
    closed: float


class SoftEquality(NamedTuple):
    """An active equality constraint.

    Args:
        number: in the model.
        name: of the file, or a number.
        kind: `"connect"`, `"weld"` or `"joint"`.
        slide: whether it is of a slide, whose residual is a distance.
        scale: of residuals of rotation of a weld [m/rad].
    """

    number: int
    name: str
    kind: str
    slide: bool
    scale: float

    @property
    def rows(self) -> int:
        """How many equations it has in MuJoCo."""
        if self.kind == "weld":
            return 6
        return 3 if self.kind == "connect" else 1

    def drift(self, residuals: np.ndarray) -> Drift:
        """The largest violation among residuals of MuJoCo, shape `(times, rows)`."""
        if self.kind == "joint":
            largest = float(np.abs(residuals).max(initial=0.0))
            return Drift(largest, None) if self.slide else Drift(None, largest)
        distance = float(np.linalg.norm(residuals[:, :3], axis=1).max(initial=0.0))
        if self.kind == "connect" or self.scale == 0:
            return Drift(distance, None)
        # MuJoCo's residual of rotation is the vector part of a quaternion times the scale.
        sine = np.linalg.norm(residuals[:, 3:], axis=1).max(initial=0.0) / self.scale
        return Drift(distance, float(2.0 * np.arcsin(min(sine, 1.0))))


def equalities(mujoco, model, name_of) -> list[SoftEquality]:
    """The active equality constraints; `name_of(index)` is the name of one."""
    kinds = mujoco.mjtEq
    found = []
    for i in np.flatnonzero(model.eq_active0):
        kind = kinds(int(model.eq_type[i]))
        joint = model.jnt_type[model.eq_obj1id[i]] if kind == kinds.mjEQ_JOINT else -1
        found.append(
            SoftEquality(
                int(i),
                name_of(int(i)),
                kind.name.removeprefix("mjEQ_").lower(),
                joint == int(mujoco.mjtJoint.mjJNT_SLIDE),
                float(model.eq_data[i, 10]),
            )
        )
    return found


def start_of(mujoco, model, loops: list[SoftEquality], key: str | int | None) -> SoftStart:
    """The position of the file, or of a keyframe, brought onto the constraints.

    Raises:
        ValueError: for a keyframe that is not there, or constraints that cannot be closed near it.
    """
    model = copy.copy(model)
    model.opt.jacobian = int(mujoco.mjtJacobian.mjJAC_DENSE)
    data = mujoco.MjData(model)
    if key is not None:
        mujoco.mj_resetDataKeyframe(model, data, _keyframe(mujoco, model, key))
    jac, residuals = _linearized(mujoco, model, data)
    first, closed = _largest(residuals), _CLOSED * max(1.0, float(model.stat.extent))
    for _ in range(_ITERATIONS):
        if _largest(residuals) < closed:
            break
        step = -np.linalg.pinv(jac, rcond=_RANK) @ residuals
        mujoco.mj_integratePos(model, data.qpos, step, 1.0)
        jac, residuals = _linearized(mujoco, model, data)
    else:
        worst = int(np.argmax(np.abs(residuals)))
        of_row = {x.number: x for x in loops}[int(data.efc_id[worst])]
        raise ValueError(
            f"doctor: the equality constraint {of_row.name!r} cannot be closed near the start: "
            f"{np.abs(residuals[worst]):.3g} m or rad remain of {first:.3g}. Start elsewhere (a "
            "keyframe, or another ref of the joints), or correct the lengths."
        )
    data.qvel -= np.linalg.pinv(jac, rcond=_RANK) @ (jac @ data.qvel)
    if not model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL):
        limited, ranges = model.actuator_ctrllimited.astype(bool), model.actuator_ctrlrange
        data.ctrl = np.where(limited, np.clip(data.ctrl, ranges[:, 0], ranges[:, 1]), data.ctrl)
    return SoftStart(data.qpos.copy(), data.qvel.copy(), data.ctrl.copy(), first)


def _largest(residuals: np.ndarray) -> float:
    return float(np.abs(residuals).max(initial=0.0))


def _linearized(mujoco, model, data) -> tuple[np.ndarray, np.ndarray]:
    """Jacobian and residuals of the equality constraints, in this order of MuJoCo's rows."""
    mujoco.mj_fwdPosition(model, data)
    return data.efc_J.reshape(-1, model.nv)[: data.ne].copy(), data.efc_pos[: data.ne].copy()


def _keyframe(mujoco, model, key: str | int) -> int:
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, str(key))
    if found < 0 and str(key).isdecimal():
        found = int(key)
    if not 0 <= found < model.nkey:
        names = [model.key(i).name or str(i) for i in range(model.nkey)]
        raise ValueError(
            f"doctor: no keyframe is called {str(key)!r}; there are: {', '.join(names) or 'none'}."
        )
    return found


def run(
    mujoco,
    model,
    loops: list[SoftEquality],
    start: SoftStart,
    end: float,
    setting: Setting | None = None,
) -> SoftRun:
    """A run of MuJoCo from a start, with the file's own settings or with one for all constraints.

    Args:
        mujoco: the module.
        model: of the file; it is not changed.
        loops: its active equality constraints.
        start: on the constraints.
        end: time [s].
        setting: of all these constraints; by default their own.
    """
    model = copy.copy(model)
    if setting is not None:
        numbers = [x.number for x in loops]
        model.eq_solref[numbers], model.eq_solimp[numbers] = setting
    data = mujoco.MjData(model)
    data.qpos, data.qvel, data.ctrl = start.qpos, start.qvel, start.ctrl
    steps = max(1, round(end / model.opt.timestep))
    with silent(mujoco):
        mujoco.mj_forward(model, data)
        ids, count = data.efc_id[: data.ne].copy(), data.ne
        softness = tuple(_softness(data, x) for x in loops)
        residuals = np.full((steps + 1, count), np.nan)
        qpos = np.full((steps + 1, model.nq), np.nan)
        residuals[0], qpos[0] = data.efc_pos[:count], data.qpos
        given_up = acted = None
        codes = [int(getattr(mujoco.mjtWarning, x)) for x in _GIVEN_UP]
        for i in range(1, steps + 1):
            acted = acted or _beside(mujoco, model, data)
            mujoco.mj_step(model, data)
            lost = any(data.warning[x].number for x in codes)
            if lost or not np.isfinite(data.qpos).all():
                # MuJoCo has begun anew.
                given_up = (i - 1) * model.opt.timestep
                break
            mujoco.mj_fwdPosition(model, data)
            qpos[i] = data.qpos
            if data.ne == count:  # rows of bodies that sleep are not there
                residuals[i] = data.efc_pos[:count]
    reached = np.isfinite(residuals).all(axis=1)
    return SoftRun(
        tuple(_setting(model, x) for x in loops),
        softness,
        tuple(x.drift(residuals[reached][:, ids == x.number]) for x in loops),
        model.opt.timestep * np.arange(steps + 1),
        qpos,
        given_up,
        acted,
    )


def _setting(model, loop: SoftEquality) -> Setting:
    solref, solimp = model.eq_solref[loop.number], model.eq_solimp[loop.number]
    return Setting((float(solref[0]), float(solref[1])), tuple(map(float, solimp)))


def _softness(data, loop: SoftEquality) -> Softness:
    """Of the first row of a constraint, by the numbers that MuJoCo itself has made of the file."""
    rows = np.flatnonzero(data.efc_id[: data.ne] == loop.number)
    if not rows.size:  # between bodies that never move
        return Softness(float("nan"), float("nan"), float("nan"))
    stiffness, damping, impedance, _ = data.efc_KBIP[rows[0]]
    # Its reference acceleration is -b v - d k r, of which the constraint takes the part d.
    return Softness(float(impedance**2 * stiffness), float(impedance * damping), float(impedance))


def _beside(mujoco, model, data) -> tuple[float, str] | None:
    """What acts in the present state beside what is modelled, with the time."""
    if data.nefc > data.ne:
        kind = mujoco.mjtConstraint(int(data.efc_type[data.ne]))
        if kind == mujoco.mjtConstraint.mjCNSTR_LIMIT_TENDON:
            name = model.tendon(data.efc_id[data.ne]).name
            return float(data.time), f"the limit of tendon {name!r}"
        if kind != mujoco.mjtConstraint.mjCNSTR_LIMIT_JOINT:
            return float(data.time), "a contact"
        return float(data.time), f"the limit of joint {model.joint(data.efc_id[data.ne]).name!r}"
    if model.na:
        limited, ranges = model.actuator_actlimited.astype(bool), model.actuator_actrange
        activations = data.act[model.actuator_actadr]  # of others the last one, without effect
        at_end = (activations <= ranges[:, 0]) | (activations >= ranges[:, 1])
        if (limited & at_end).any():
            return float(data.time), "the limit of an activation"
    joints = model.dof_jntid
    for limited, ranges, forces, what in (
        (model.actuator_forcelimited, model.actuator_forcerange, data.actuator_force, "actuator"),
        (model.jnt_actfrclimited[joints], model.jnt_actfrcrange[joints], data.qfrc_actuator,
         "joint with an actuator"),
    ):  # fmt: skip
        at_end = (forces <= ranges[:, 0]) | (forces >= ranges[:, 1])
        if (limited.astype(bool) & at_end).any():
            return float(data.time), f"the largest force of one {what}"
    return None


@contextlib.contextmanager
def silent(mujoco) -> Iterator[list[str]]:
    """What MuJoCo warns of, in place of its messages and the file that it writes them to."""
    before: Any = mujoco.get_mju_user_warning()
    warned: list[str] = []
    mujoco.set_mju_user_warning(warned.append)
    try:
        yield warned
    finally:
        mujoco.set_mju_user_warning(before)
