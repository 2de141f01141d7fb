"""Mechanisms from MJCF and URDF files, read by MuJoCo's own compiler."""

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdae.checks import fails
from jaxdae.events.declaration import Event
from jaxdae.multibody.applied import BallTransmission, Site
from jaxdae.multibody.bodies import AbstractLoop, Body, Connection, Coupling, Weld
from jaxdae.multibody.comparison import compare
from jaxdae.multibody.file_checks import (
    check_numbers,
    check_signs,
    check_text,
    decoded,
    negative_dampers,
    refuse,
)
from jaxdae.multibody.joints import AbstractJoint, Ball, Free, Hinge, Slide
from jaxdae.multibody.lengths import AbstractLength, Coordinate
from jaxdae.multibody.limits import events as limit_events
from jaxdae.multibody.mjcf_forces import (
    joint_damping,
    joint_stiffness,
    read_forces,
    read_limits,
    site_marker,
    Smooth,
    tendon_length,
)
from jaxdae.multibody.motors import Motor
from jaxdae.multibody.system import Multibody, unused
from jaxdae.multibody.urdf import described, Description
from jaxdae.systems import State


class ImportedMechanism(NamedTuple):
    """What `read_mujoco` found.

    Args:
        system: coordinates in the order of MuJoCo's `qpos`.
        state: the position of the file, at rest.
        left_out: what the file has and the system has not, in words.
        events: at limits of joints and tendons, for `jaxdae.simulate`, with `limits="events"`.
    """

    system: Multibody
    state: State
    left_out: tuple[str, ...]
    events: tuple[Event, ...] = ()


def read_mujoco(
    source: str | Path,
    *,
    loops: AbstractLoop | Sequence[AbstractLoop] = (),
    cuts: str | Sequence[str] = (),
    friction_speed: float | None = None,
    limits: str | None = None,
    limit_stiffness: float | None = None,
    limit_dissipation: float = 0.0,
    limit_restitution: float | None = None,
    motor_limits: bool = False,
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
    is returned. Nothing of a file is executed or fetched, and no other file read but by a path
    relative to its own.

    Robot descriptions are trees. Loops are closed by `loops`, or by joints of the file that are
    listed in `cuts`, which may move links that another joint moves already: a revolute joint then
    is a `HingeLoop`, a prismatic one a `SlideLoop`, others a `PlanarLoop`, `Connection` or `Weld`,
    each in its place in the file. With either, all links keep their names as bodies, the root
    among them, which stands still. Dampers of joints that are cut are kept; their limits are not.
    Loops that are open in the position of the file are closed by `assemble`.

    Args:
        source: path of the file, or its text.
        loops: closing joints in addition, between bodies of the file by name.
        cuts: names of joints of a robot description that close loops.
        friction_speed: below which dry friction is viscous, as that of `DryFriction`
            [rad/s or m/s]; by default a file with `frictionloss` is refused.
        limits: of joints, balls included, and of tendons: "ignore", "stops", each a `Stop`, or
            "events", each end an event. By default "stops" with `limit_stiffness`, else "ignore".
        limit_stiffness: of stops [N m/rad or N/m].
        limit_dissipation: the dissipation factor of stops [s/rad or s/m].
        limit_restitution: with "events", the coefficient of restitution with which motions come
            back from a limit, by `jaxdae.impact`; by default a run ends there.
        motor_limits: whether motors take their inputs and forces between the ends of `ctrlrange`
            and `forcerange`.

    Returns:
        System, state, what was left out, and events.

    Raises:
        ImportError: without MuJoCo.
        TypeError: for `loops` that are none.
        ValueError: for what cannot be read, or has no counterpart here: flexible bodies, springs
            that yield, dry friction without `friction_speed`, ellipsoids in a fluid, tendons with
            inertia, muscles, actuators with delays; for numbers that are not finite; for
            inertias of rotors and dry friction that are negative; for a robot description that is
            no tree after the cuts; for an argument that is out of its range; or if MuJoCo's numbers
            differ.

    Warns:
        RuntimeWarning: if geometries could touch, or joints, tendons or actuators have limits: none
            of these is modelled, but where the arguments ask for it; if the file switches
            actuators off: they are inputs without force; or if a damper is negative.
    """
    smooth = Smooth(friction_speed, limit_stiffness, limit_dissipation)
    _check_arguments(smooth)
    limits = _kind_of_limits(limits, limit_stiffness, limit_restitution)
    loops, cuts = _closing(loops, cuts)
    mujoco = load_mujoco()
    given, tree, model = model_of(mujoco, source, cuts, named=bool(loops))
    names = Names(mujoco, model)
    check_numbers(model, names)
    check_signs(model, names)
    left_out = (
        *_balanced(mujoco, model, given, tree),
        *_switch_off(mujoco, model),
        *_left_out(mujoco, model, limits != "ignore", motor_limits),
        *(() if tree is None else tree.left_out),
    )
    _refuse(mujoco, model)
    system = Multibody(
        bodies=[_body(mujoco, model, names, i) for i in range(1, model.nbody)],
        loops=[_loop(mujoco, model, names, i) for i in range(model.neq) if model.eq_active0[i]],
        motors=[_motor(mujoco, model, names, i, motor_limits) for i in range(model.nactuator)],
        gravity=model.opt.gravity,
        forces=read_forces(mujoco, model, names, smooth),
    )
    compare(mujoco, model, system)
    cut_loops, dampers = ((), ()) if tree is None else (tree.loops, tree.forces)
    system = dataclasses.replace(
        system,
        loops=(*system.loops, *cut_loops, *loops),
        forces=(*system.forces, *dampers),
    )
    if left_out:
        warnings.warn(f"read_mujoco: left out: {'; '.join(left_out)}.", RuntimeWarning, 2)
    driving = [*negative_dampers(model, names), *(() if tree is None else tree.driving)]
    if driving:
        warnings.warn(
            f"read_mujoco: negative damping of {', '.join(driving)}: it drives the motion and does "
            "not slow it. Give a positive number, unless that is meant.",
            RuntimeWarning,
            2,
        )
    ends = read_limits(mujoco, model, names) if limits == "events" else []
    events = limit_events(system, ends, limit_restitution)
    return ImportedMechanism(system, system.start(), left_out, events)


def model_of(mujoco, source: str | Path, cuts: tuple[str, ...], *, named: bool = False):
    """The source, a robot description whose links keep their names or `None`, MuJoCo's model.

    Args:
        mujoco: the module.
        source: path of the file, or its text.
        cuts: names of joints of a robot description that close loops.
        named: whether links of robot descriptions keep their names, as they do with `cuts`.
    """
    given = opened(source)
    tree = described(given.text, cuts) if given.root == "robot" else None
    if cuts and tree is None:
        raise refuse(
            f"cuts are joints of a robot description, and the file is <{given.root}>. Its loops "
            "are closed by its equality constraints, or by loops=."
        )
    if tree is None or not (cuts or named):
        return given, None, compiled(mujoco, source)
    return given, tree, _attempt(_tree(mujoco, tree, given).compile)


def _kind_of_limits(limits: str | None, stiffness, restitution) -> str:
    kinds = ("ignore", "stops", "events")
    if limits is None:
        limits = "ignore" if stiffness is None else "stops"
    if limits not in kinds:
        raise refuse(f"limits is {limits!r}; there are: {', '.join(kinds)}.")
    if (limits == "stops") != (stiffness is not None):
        raise refuse(
            f"limits is {limits!r} and limit_stiffness is {stiffness}; stops have a stiffness, and "
            "nothing else has one."
        )
    if restitution is not None and limits != "events":
        raise refuse(
            f"limits is {limits!r} and limit_restitution is {restitution}; it belongs to limits "
            'that are "events".'
        )
    return limits


def _closing(loops, cuts) -> tuple[tuple[AbstractLoop, ...], tuple[str, ...]]:
    """Both as tuples; one element stands for itself."""
    loops = (loops,) if isinstance(loops, AbstractLoop) else tuple(loops)
    for loop in loops:
        if not isinstance(loop, AbstractLoop):
            raise TypeError(
                f"read_mujoco: loops holds {loop!r}; give a HingeLoop, a Connection or another "
                "AbstractLoop between bodies of the file."
            )
    return loops, (cuts,) if isinstance(cuts, str) else tuple(cuts)


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


class Source(NamedTuple):
    """A file, or a text.

    Args:
        text: of the file.
        path: of it; `None` for a text.
        root: name of its root element.
    """

    text: str
    path: Path | None
    root: str


def opened(source: str | Path) -> Source:
    """A file, or a text, after all that is refused without MuJoCo."""
    if str(source).lstrip().startswith("<"):
        return Source(str(source), None, check_text(str(source).lstrip()))
    path = Path(source).expanduser()
    # Said here: MuJoCo takes no path for the working folder, and an empty file for a large one.
    if not str(source).strip() or not _is_file(path):
        given = repr(str(source))
        given = given if len(given) < 200 else f"{given[:60]}... of {len(str(source))} characters"
        what = f"{given}, which is no file" if str(source).strip() else "an empty text"
        raise refuse(f"got {what}; give the path of a file, or its text.")
    data = path.read_bytes()
    if not data:
        raise refuse(f"the file {str(source)!r} is empty.")
    text = decoded(data)
    return Source(text, path, check_text(text, path.parent, frozenset([path.resolve()])))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def compiled(mujoco, source: str | Path):
    """The model of a file, or of a text, by MuJoCo's own compiler."""
    given = opened(source)
    if given.path is None:
        return _attempt(mujoco.MjModel.from_xml_string, given.text.lstrip())
    return _attempt(mujoco.MjModel.from_xml_path, str(given.path))


def _attempt(function, *args):
    """What MuJoCo makes of it, or its error."""
    try:
        return function(*args)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise refuse(f"MuJoCo could not read it: {error}") from error


def _tree(mujoco, tree: Description, given: Source):
    """A robot description of which no link is fused with another one."""
    spec = _attempt(mujoco.MjSpec.from_string, tree.text)
    spec.compiler.fusestatic = False
    for flight in tree.flights:
        link = spec.body(flight.link)
        link.pos, link.quat = flight.place, flight.orientation
        link.add_freejoint(name=flight.joint)
    if given.path is not None:
        spec.modelfiledir = str(given.path.resolve().parent)
    return spec


def _balanced(mujoco, model, given: Source, tree: Description | None) -> Iterator[str]:
    """Inertias that no body has, which MuJoCo has replaced where the file allows it."""
    if tree is not None:
        spec = _tree(mujoco, tree, given)
    elif given.path is None:
        spec = mujoco.MjSpec.from_string(given.text.lstrip())
    else:
        spec = mujoco.MjSpec.from_file(str(given.path))
    if not spec.compiler.balanceinertia:
        return
    for body in spec.bodies:
        given_moments = np.sort(np.asarray(body.inertia, float))
        # Bodies that are fused with another one have no place in the model.
        i = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, body.name)
        too_large = given_moments[2] > given_moments[0] + given_moments[1]
        if i > 0 and body.explicitinertial and too_large:
            listed = ", ".join(f"{x:g}" for x in given_moments)
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
    numbers = [model.site_bodyid[x] if sites else x for x in ids]
    one, two = map(names.body, numbers)
    if len({*model.body_weldid[numbers]}) == 1:
        listed = " and ".join("the world" if x is None else repr(x) for x in (one, two))
        moves = "are fixed to each other" if model.body_weldid[numbers[0]] else "never move"
        raise refuse(
            f"the equality {name!r} is between {listed}, which {moves}: it constrains nothing. "
            "Take it out, or give one of them a joint."
        )
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


def _motor(mujoco, model, names: Names, i: int, limited: bool = False) -> Motor:
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
        _range(model.actuator_ctrlrange[i], limited and model.actuator_ctrllimited[i]),
        _range(model.actuator_forcerange[i], limited and model.actuator_forcelimited[i]),
    )


def _range(ends: np.ndarray, limited: bool) -> tuple[float, float] | None:
    return (float(ends[0]), float(ends[1])) if limited else None


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


def _left_out(mujoco, model, limits: bool = False, motors: bool = False) -> Iterator[str]:
    """What is not modelled, and may never matter; `limits` and `motors` say that those are."""
    pairs = len(_touching(mujoco, model))
    if pairs and _enabled(mujoco, model, "CONTACT", "CONSTRAINT"):
        yield f"contacts of {_counted(pairs, 'pair')} of geometries"
    for what, limited in (("joint", model.jnt_limited), ("tendon", model.tendon_limited)):
        count = 0 if limits else int(np.count_nonzero(limited))
        if count:
            yield f"limits of {_counted(count, what)}"
    bounded = model.actuator_actlimited.astype(bool)
    if not motors:
        bounded |= model.actuator_forcelimited.astype(bool)
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
