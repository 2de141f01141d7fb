"""Robot descriptions (URDF): their tree, and joints of theirs that close loops."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from jaxdae.checks import as_number
from jaxdae.multibody.bodies import AbstractLoop, Connection, Weld
from jaxdae.multibody.bushing import Bushing
from jaxdae.multibody.closures import HingeLoop, PlanarLoop, SlideLoop
from jaxdae.multibody.file_checks import refuse, without_comments
from jaxdae.multibody.forces import AbstractForce, Marker


class Flight(NamedTuple):
    """A link that is free in space.

    Args:
        joint: its name.
        link: its name.
        place: of the start [m].
        orientation: quaternion of the start.
    """

    joint: str
    link: str
    place: np.ndarray
    orientation: np.ndarray


class Description(NamedTuple):
    """A robot description without the joints that were cut.

    Args:
        text: of the tree that is left, in which free links have no joint.
        flights: the free links. The format of MuJoCo has none on a body, such as the root.
        loops: the joints that were cut, as closing joints.
        forces: their dampers.
        left_out: what else they have, in words.
        driving: those of them whose dampers are negative, in words.
    """

    text: str
    flights: tuple[Flight, ...]
    loops: tuple[AbstractLoop, ...]
    forces: tuple[AbstractForce, ...]
    left_out: tuple[str, ...]
    driving: tuple[str, ...]


def described(text: str, cuts: Sequence[str]) -> Description:
    """The tree of a robot description, and what its cut joints close.

    Args:
        text: of the description.
        cuts: names of joints that close loops.

    Raises:
        ValueError: for two links or joints of one name, a joint of a link that is not there, a link
            that two joints move, links in a circle, or several roots, after the cuts; for a cut
            that names no joint, or one that cannot be a closing joint.
    """
    root = ET.fromstring(without_comments(text))
    links = _once("links", root.findall("link"))
    joints = _once("joints", root.findall("joint"))
    for name in cuts:
        if name not in joints:
            raise refuse(f"cuts has {name!r}; joints of the file are: {', '.join(joints)}.")
    for joint in joints.values():
        for end in ("parent", "child"):
            if (link := _link(joint, end)) not in links:
                raise refuse(
                    f"the {end} of the joint {joint.get('name')!r} is {link!r}; links of the file "
                    f"are: {', '.join(links)}."
                )
    _check_tree(links, {k: x for k, x in joints.items() if k not in cuts})
    for name, joint in joints.items():
        mimic = joint.find("mimic")
        if mimic is not None and (name in cuts or mimic.get("joint") in cuts):
            raise refuse(
                f"the joint {name!r} mimics {mimic.get('joint')!r}, and one of them is cut: it has "
                "no coordinate. Cut another joint of the loop."
            )
    found = [_closing(joints[name]) for name in dict.fromkeys(cuts)]
    free = [k for k, x in joints.items() if k not in cuts and x.get("type") == "floating"]
    bears = {_link(x, "child") for k, x in joints.items() if k not in cuts}
    free = [x for x in free if _link(joints[x], "parent") not in bears]
    for name in dict.fromkeys((*cuts, *free)):
        root.remove(joints[name])
    return Description(
        ET.tostring(root, encoding="unicode"),
        tuple(
            Flight(x, str(_link(joints[x], "child")), place, turn.as_quat(scalar_first=True))
            for x in free
            for place, turn in [_origin(joints[x])]
        ),
        tuple(x.loop for x in found),
        tuple(x.damper for x in found if x.damper is not None),
        tuple(y for x in found for y in x.left_out),
        tuple(y for x in found for y in x.driving),
    )


def _once(what: str, elements: list[ET.Element]) -> dict[str, ET.Element]:
    """By name, each of which is there once."""
    found: dict[str, ET.Element] = {}
    for element in elements:
        name = element.get("name", "")
        if not name or name in found:
            problem = (
                f"two {what} are called {name!r}" if name else f"one of its {what} has no name"
            )
            raise refuse(f"{problem}. Give each a name of its own.")
        found[name] = element
    return found


def _link(joint: ET.Element, end: str) -> str | None:
    element = joint.find(end)
    return None if element is None else element.get("link")


def _check_tree(links: dict[str, ET.Element], joints: dict[str, ET.Element]):
    """Each link but one is moved by one joint, and that one bears all others."""
    moved: dict[str | None, str] = {}
    for name, joint in joints.items():
        child = _link(joint, "child")
        if child in moved:
            raise refuse(
                f"the joints {moved[child]!r} and {name!r} both move the link {child!r}, and a "
                f"robot description is a tree. Make one of them a closing joint: cuts=({name!r},)."
            )
        moved[child] = name
    parents = {_link(x, "child"): _link(x, "parent") for x in joints.values()}
    joined: set[str] = set()
    for link in links:
        path, at = {link: None}, link
        while (at := parents.get(at)) is not None and at not in joined:
            if at in path:
                names = [*path]
                circle = [at, *names[names.index(at) :][::-1]]
                raise refuse(
                    f"the links {' > '.join(circle)} bear each other in a circle, so that none is "
                    "joined to the ground. Make one of the joints a closing joint, "
                    f"cuts=({moved[at]!r},), and join one of the links to the ground."
                )
            path[at] = None
        joined.update(path)
    roots = [x for x in links if x not in parents]
    if len(roots) > 1:
        raise refuse(
            f"{len(roots)} links have no joint that moves them: {', '.join(roots)}. A robot "
            "description has one root; join the others to it, by a fixed joint or a floating one."
        )


class _Closing(NamedTuple):
    """A joint that was cut."""

    loop: AbstractLoop
    damper: AbstractForce | None
    left_out: tuple[str, ...]
    driving: tuple[str, ...]


def _closing(joint: ET.Element) -> _Closing:
    """A joint as one that closes a loop: the same freedoms, in the same place."""
    name, kind = joint.get("name", ""), joint.get("type", "")
    first, second = _link(joint, "parent"), _link(joint, "child")
    place, rotation = _origin(joint)
    turn = rotation.as_quat(scalar_first=True)
    axis = _numbers(joint, "axis", "xyz", (1.0, 0.0, 0.0))
    if kind in ("revolute", "continuous", "prismatic", "planar") and not axis.any():
        raise refuse(f"the axis of the joint {name!r} is zero; it is a direction.")
    image = rotation.apply(axis)
    pair = (name, first, second, place)
    if kind in ("revolute", "continuous"):
        loop = HingeLoop(*pair, axis=image, other_axis=axis)
    elif kind == "prismatic":
        loop = SlideLoop(*pair, axis=image, orientation=turn)
    elif kind == "planar":
        loop = PlanarLoop(*pair, normal=image, other_normal=axis)
    elif kind == "spherical":
        loop = Connection(*pair)
    elif kind == "fixed":
        loop = Weld(*pair, orientation=turn)
    else:
        raise refuse(
            f"the joint {name!r} is {kind}, which closes no loop. Cut one that is revolute, "
            "continuous, prismatic, planar, spherical or fixed."
        )
    if _number(joint, "dynamics", "friction"):
        raise refuse(
            f"the joint {name!r}, which is cut, has friction, which closing joints have not. Take "
            "it out, or cut another joint of the loop."
        )
    damping, damper = _number(joint, "dynamics", "damping"), None
    if damping:
        turns = kind in ("revolute", "continuous", "planar", "spherical")
        damper = Bushing(
            f"damper of {name}",
            Marker(first, place, turn),
            Marker(second),
            damping=damping if kind in ("prismatic", "planar") else 0.0,
            torsion_damping=damping if turns else 0.0,
        )
    limited = kind in ("revolute", "prismatic") and joint.find("limit") is not None
    return _Closing(
        loop,
        damper,
        (f"limits of the cut joint {name!r}",) if limited else (),
        (f"the cut joint {name!r} ({damping:g})",) if damping < 0 else (),
    )


def _origin(joint: ET.Element) -> tuple[np.ndarray, Rotation]:
    """Place and axes of the child, with the joint at rest, in the parent."""
    angles = _numbers(joint, "origin", "rpy", (0.0, 0.0, 0.0))
    return _numbers(joint, "origin", "xyz", (0.0, 0.0, 0.0)), Rotation.from_euler("xyz", angles)


def _numbers(joint: ET.Element, tag: str, what: str, default: tuple[float, ...]) -> np.ndarray:
    element = joint.find(tag)
    given = None if element is None else element.get(what)
    if given is None:
        return np.array(default)
    try:
        found = np.array([as_number(x) for x in given.split()])
    except ValueError:
        found = np.zeros(0)
    if found.shape != (len(default),) or not np.isfinite(found).all():
        raise refuse(
            f"{what} of <{tag}> of the joint {joint.get('name')!r} is {given[:80]!r}; it has "
            f"{len(default)} finite numbers."
        )
    return found


def _number(joint: ET.Element, tag: str, what: str) -> float:
    return float(_numbers(joint, tag, what, (0.0,))[0])
