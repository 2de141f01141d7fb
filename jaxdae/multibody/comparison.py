"""What was read, held against MuJoCo's own numbers."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.multibody.applied import GravityCompensation
from jaxdae.multibody.bodies import Weld
from jaxdae.multibody.forces import total_load
from jaxdae.multibody.stops import DryFriction, Stop
from jaxdae.multibody.system import Multibody

STATES = 3
# Of numbers of a file six digits are usual, and some are derived twice; in single precision sums
# of some hundred rounded products.
TOLERANCE, SINGLE = 1e-6, 1e-3


class _Compared(NamedTuple):
    """One number by both."""

    what: str
    ours: float
    theirs: float
    size: float


def compare(mujoco, model, system: Multibody):
    """Refuse a system whose energies, powers or residuals are not MuJoCo's."""
    model = copy.copy(model)
    _only_what_is_modelled(mujoco, model, system)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(STATES):
        data.qvel, data.ctrl = rng.normal(size=model.nv), rng.normal(size=model.nu)
        data.act = rng.normal(size=model.na)
        data.qpos = model.qpos0
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.5)
        # All of a step but the solution for accelerations.
        for stage in (mujoco.mj_fwdPosition, mujoco.mj_fwdVelocity, mujoco.mj_fwdActuation,
                      mujoco.mj_energyPos, mujoco.mj_energyVel):  # fmt: skip
            stage(model, data)
        state = (jnp.asarray(x, float) for x in (data.qpos, data.qvel, data.act, data.ctrl))
        _check(_pairs(mujoco, model, system, data, jax.device_get(_numbers(system, *state))))


def _only_what_is_modelled(mujoco, model, system: Multibody):
    """Without contacts, and without limits but those that motors have."""
    bits = mujoco.mjtDisableBit
    model.opt.disableflags |= int(bits.mjDSBL_CONTACT) | int(bits.mjDSBL_LIMIT)
    model.opt.enableflags = 0
    for i, motor in enumerate(system.motors):
        model.actuator_ctrllimited[i] &= getattr(motor, "input_range", None) is not None
        model.actuator_forcelimited[i] &= getattr(motor, "force_range", None) is not None
    model.jnt_actfrclimited[:] = 0
    model.actuator_actlimited[:] = model.tendon_actfrclimited[:] = 0
    # A setting of its integration: forces by the activation at the end of the step.
    model.actuator_actearly[:] = 0


@jit(options=BRIEFLY, interpreted=3)
def _numbers(system: Multibody, q, v, w, u) -> dict:
    """Energies, powers, rates of activations, residuals of loops."""
    # Of MuJoCo's soft constraints dry friction and limits are no passive forces there.
    passive = [x for x in system.forces if not isinstance(x, DryFriction | Stop)]
    # Nor has gravity compensation an energy.
    held = [x for x in passive if isinstance(x, GravityCompensation)]
    springs = [x for x in passive if not isinstance(x, GravityCompensation)]
    plain = dataclasses.replace(system, motors=(), forces=())

    def energies(q):
        at, zero = system.configuration(q), jnp.zeros((), q.dtype)
        return [system.spring_energy(q), *(
            sum((x.energy(0.0, at) for x in some), zero) for some in (springs, held)
        )]  # fmt: skip

    def dissipation(v):
        return dataclasses.replace(plain, forces=passive).dissipation(0.0, q, v)

    (_, stored, _), rates = jax.jvp(energies, (q,), (system.rate(0.0, q, v),))
    _, dissipated = jax.jvp(dissipation, (v,), (v,))
    motion, none = system.motion(q, v), jnp.zeros(0, q.dtype)
    drag = total_load(passive, 0.0, motion, none, none).power(motion)
    return {
        "kinetic": system.kinetic_energy(0.0, q, v),
        "potential": plain.potential_energy(0.0, q) + stored,
        "passive": drag - dissipated - sum(rates),
        "motors": total_load(system.motors, 0.0, motion, w, u).power(motion),
        "rates": dataclasses.replace(plain, motors=system.motors).actuator_rate(0.0, q, v, w, u),
        "loops": {x.name: x.residuals(0.0, motion.poses, motion.values) for x in system.loops},
    }


def _pairs(mujoco, model, system: Multibody, data, ours: dict) -> Iterator[_Compared]:
    # Heights above and below the origin cancel; their parts do not.
    parts = abs(model.opt.gravity) @ (model.body_mass @ abs(data.xipos))
    size = max(float(abs(data.energy).max()), float(parts))
    extent = max(1.0, float(abs(data.xpos).max()))
    yield _Compared("kinetic energy", ours["kinetic"], data.energy[1], size)
    yield _Compared("potential energy", ours["potential"], data.energy[0], size)
    # Parts that cancel are rounded as they are.
    parts = (data.qfrc_spring, data.qfrc_damper, data.qfrc_gravcomp, data.qfrc_fluid)
    for what, name, force, sizes in (
        ("springs, dampers and other passive forces", "passive", data.qfrc_passive, parts),
        ("motors", "motors", data.qfrc_actuator, (data.qfrc_actuator,)),
    ):
        size = sum(float(abs(x) @ abs(data.qvel)) for x in sizes)
        yield _Compared(f"power of {what}", ours[name], float(force @ data.qvel), size)
    for rate, theirs in zip(ours["rates"], data.act_dot, strict=True):
        yield _Compared("rate of an activation", float(rate), float(theirs), 1.0)
    for i, loop in zip(np.flatnonzero(model.eq_active0), system.loops, strict=True):
        of_loop = data.efc_type == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        theirs = data.efc_pos[of_loop & (data.efc_id == i)]
        pairs = _comparable(loop, ours["loops"][loop.name], theirs, model.eq_data[i, 10])
        for pair in zip(*pairs, strict=True):
            yield _Compared(f"residual of {loop.name!r}", float(pair[0]), float(pair[1]), extent)


def _comparable(loop, ours: np.ndarray, theirs: np.ndarray, scale: float):
    """The same of both: of a weld MuJoCo has `scale sin(angle / 2)` about an axis."""
    if not theirs.size:  # It has no rows between bodies that never move.
        return [], []
    if not isinstance(loop, Weld):  # A weld whose scale is zero is a connection here.
        return ours, theirs[: len(ours)]
    # Of `2 tan(angle / 2)`, which has no bound.
    half = float(np.linalg.norm(ours[3:])) / 2.0
    turned = half / np.hypot(1.0, half)
    return [*ours[:3], turned], [*theirs[:3], np.linalg.norm(theirs[3:]) / scale]


def _check(pairs: Iterator[_Compared]):
    single = jnp.finfo(jnp.result_type(float)).bits < 64
    tolerance = SINGLE if single else TOLERANCE
    for what, ours, theirs, size in pairs:
        # Not `>`: a number that is not finite differs, too.
        if not abs(ours - theirs) <= tolerance * max(size, abs(theirs), 1e-12):
            raise ValueError(
                f"read_mujoco: the {what} in a random state is {float(ours):.6g} here and "
                f"{float(theirs):.6g} in MuJoCo: the file has something that is not modelled."
            )
