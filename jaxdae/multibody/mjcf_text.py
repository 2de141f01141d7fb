"""Mechanisms as files for MuJoCo."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdae.multibody.bodies import AbstractLoop, Body, Connection, Coupling, Weld
from jaxdae.multibody.forces import AbstractForce
from jaxdae.multibody.joints import AbstractJoint, Ball, Free, Hinge, Slide
from jaxdae.multibody.lengths import Coordinate
from jaxdae.multibody.motors import Motor


def mjcf(
    bodies: Sequence[Body],
    loops: Sequence[AbstractLoop],
    motors: Sequence[AbstractForce],
    gravity: Any,
    forces: Sequence[AbstractForce],
) -> str:
    """The text of a file; errors name what the format has not."""
    if forces:
        _refuse("force", forces[0], "motors of joints; springs and dampers of joints are theirs")
    root = ET.Element("mujoco")
    ET.SubElement(root, "compiler", angle="radian")
    ET.SubElement(root, "option", gravity=_words(gravity))
    places: dict[str | None, ET.Element] = {None: ET.SubElement(root, "worldbody")}
    for body in bodies:
        fixed = [x.mass for x in bodies if x.parent == body.name and not x.joints]
        places[body.name] = _body(places[body.parent], body, moved=any(map(bool, fixed)))
    joints = {x.name: x for body in bodies for x in body.joints}
    if loops:
        closed = ET.SubElement(root, "equality")
        for loop in loops:
            _loop(closed, places, joints, loop)
    if motors:
        drives = ET.SubElement(root, "actuator")
        for motor in motors:
            _motor(drives, motor)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _refuse(kind: str, element, has: str):
    raise ValueError(
        f"to_mjcf: the {kind} {element.name!r} is a {type(element).__name__}, which is not written "
        f"to files; they have {has}. Leave it out, and add it to what is read."
    )


def _words(values) -> str:
    """All digits of numbers."""
    return " ".join(repr(float(x)) for x in np.ravel(np.asarray(values, float)))


def _finite(of: str, what: str, values) -> str:
    if not np.all(np.isfinite(np.asarray(values, float))):
        raise ValueError(f"to_mjcf: {what} of {of} is {_words(values)}; it is finite.")
    return _words(values)


def _body(parent: ET.Element, body: Body, moved: bool) -> ET.Element:
    """A body; `moved` says whether one with a mass is fixed to it."""
    free = next((x for x in body.joints if isinstance(x, Free)), None)
    place, turn = (body.position, body.orientation)
    if free is not None:
        place, turn = free.place, free.orientation
    found = ET.SubElement(parent, "body", name=body.name, pos=_words(place), quat=_words(turn))
    for joint in body.joints:
        _joint(found, joint)
    mass, inertia = float(body.mass), np.asarray(body.inertia, float)
    if mass or inertia.any() or (body.joints and not moved):
        least = float(np.linalg.eigvalsh(inertia)[0])
        if not (mass > 0 and least > 0):
            raise ValueError(
                f"to_mjcf: the body {body.name!r} has the mass {mass:g} kg and a least moment of "
                f"inertia of {least:g} kg m^2; MuJoCo has bodies with positive ones. Give it a "
                "small mass or moment."
            )
        (xx, xy, xz), (_, yy, yz), (*_, zz) = inertia
        ET.SubElement(
            found, "inertial", pos=_words(body.centre), mass=_words(mass),
            fullinertia=_words([xx, yy, zz, xy, xz, yz]),
        )  # fmt: skip
    return found


def _joint(parent: ET.Element, joint: AbstractJoint):
    numbers: dict[str, Any] = {}
    kinds = {Hinge: "hinge", Slide: "slide", Ball: "ball", Free: "free"}
    kind = kinds.get(type(joint))
    if kind is None:
        _refuse("joint", joint, "hinges, slides, balls and free bodies")
    if isinstance(joint, Hinge | Slide):
        numbers |= {
            "axis": joint.axis, "ref": joint.reference, "stiffness": joint.stiffness,
            "springref": joint.relaxed,
        }  # fmt: skip
    if isinstance(joint, Hinge | Ball):
        numbers["pos"] = joint.anchor
    for what in ("damping", "armature"):
        given = np.ravel(np.asarray(getattr(joint, what), float))
        if not np.array_equal(given, np.full_like(given, given[0]), equal_nan=True):
            raise ValueError(
                f"to_mjcf: the joint {joint.name!r} has different values of {what}, "
                f"{given.tolist()}; files have one for each joint."
            )
        numbers[what] = given[0]
    written = {k: _finite(f"joint {joint.name!r}", k, x) for k, x in numbers.items()}
    ET.SubElement(parent, "joint", {"name": joint.name, "type": str(kind), **written})


def _loop(parent: ET.Element, places: dict, joints: dict, loop: AbstractLoop):
    if isinstance(loop, Coupling):
        names = [x for x in (loop.joint, loop.by) if x is not None]
        for name, reference in zip(names, loop.references, strict=False):
            if float(joints[name].reference) != float(reference):
                raise ValueError(
                    f"to_mjcf: the coupling {loop.name!r} counts the joint {name!r} from "
                    f"{float(reference):g}; files count it from the joint's reference, "
                    f"{float(joints[name].reference):g}. Give the same to both."
                )
        if loop.coefficients.size > 5:
            raise ValueError(
                f"to_mjcf: the coupling {loop.name!r} has {loop.coefficients.size} coefficients; "
                "files have 5 at most."
            )
        by = {} if loop.by is None else {"joint2": loop.by}
        coefficients = np.zeros(5)
        coefficients[: loop.coefficients.size] = np.asarray(loop.coefficients, float)
        ET.SubElement(
            parent,
            "joint",
            {"name": loop.name, "joint1": loop.joint, "polycoef": _words(coefficients), **by},
        )
        return
    complete = isinstance(loop, Weld) or (isinstance(loop, Connection) and len(loop.axes) == 3)
    if not complete or not isinstance(loop, Weld | Connection):
        _refuse("loop", loop, "Connection with all axes, Weld and Coupling")
        return
    turn = loop.orientation if isinstance(loop, Weld) else (1.0, 0.0, 0.0, 0.0)
    sites = {"site1": f"{loop.name}: first", "site2": f"{loop.name}: second"}
    for site, body, place, quaternion in (
        (sites["site1"], loop.first, loop.anchor, turn),
        (sites["site2"], loop.second, loop.other, (1.0, 0.0, 0.0, 0.0)),
    ):
        ET.SubElement(places[body], "site", name=site, pos=_words(place), quat=_words(quaternion))
    kind = "weld" if isinstance(loop, Weld) else "connect"
    ET.SubElement(parent, kind, {"name": loop.name, **sites})


def _motor(parent: ET.Element, motor: AbstractForce):
    if not isinstance(motor, Motor) or not isinstance(motor.along, Coordinate):
        _refuse("motor", motor, "Motor along a hinge or a slide")
        return
    ranges = {"ctrlrange": motor.input_range, "forcerange": motor.force_range}
    of = f"motor {motor.name!r}"
    given = {k: _finite(of, k, x) for k, x in ranges.items() if x is not None}
    given |= {k.replace("range", "limited"): "true" for k in given}
    if motor.dynamics == "filter":
        given["dynprm"] = _words(motor.time_constant)
    given |= {
        "name": motor.name, "joint": motor.along.joint, "gear": _finite(of, "gear", motor.gear),
        "gaintype": "affine", "gainprm": _finite(of, "gain", motor.gain), "biastype": "affine",
        "biasprm": _finite(of, "bias", motor.bias), "dyntype": motor.dynamics,
    }  # fmt: skip
    ET.SubElement(parent, "general", given)
