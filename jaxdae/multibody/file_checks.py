"""What is refused of a file for MuJoCo: before MuJoCo reads it, and numbers that it found."""

import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.parsers import expat

import numpy as np

# Comments, in which files have what XML's grammar forbids there.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# The most that a few letters may ask for: copies of bodies, numbers of a grid or a picture.
_COPIES, _GRID = 2_000, 50_000_000
_COUNTED = {
    "replicate": (("count",), _COPIES),
    "composite": (("count",), _COPIES),
    "flexcomp": (("count",), _COPIES),
    "mesh": (("params",), _COPIES),
    "hfield": (("nrow", "ncol"), _GRID),
    "texture": (("width", "height"), _GRID),
    "size": (("nuser_body", "nuser_jnt", "nuser_geom", "nuser_site", "nuser_cam", "nuser_tendon",
              "nuser_actuator", "nuser_sensor"), _COPIES),
}  # fmt: skip
_PATHS = ("meshdir", "texturedir", "assetdir")
# MuJoCo takes these of a robot description for names of files beside it.
_PACKAGE = "package://"
# Beyond this size a number is none of a mechanism, and squares of it are not finite.
LARGEST = 1e100


def refuse(words: str) -> ValueError:
    """An error of reading."""
    return ValueError(f"read_mujoco: {words}")


def decoded(data: bytes) -> str:
    """Text of a file; MuJoCo takes names for bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def without_comments(text: str) -> str:
    """The text, with as many lines."""
    return _COMMENT.sub(lambda x: "\n" * x[0].count("\n"), text)


def check_text(text: str, folder: Path | None = None, seen: frozenset[Path] = frozenset()) -> str:
    """Refuse what MuJoCo would follow without bounds: huge counts, paths to elsewhere, entities.

    Args:
        text: of a file.
        folder: in which it lies; `None` for a text without a file.
        seen: files that include it.

    Returns:
        The name of the root element.

    Raises:
        ValueError: naming the element, its line, and the amount.
    """
    copies, roots = [1.0], []
    parser = expat.ParserCreate()

    def of(tag: str, given: dict[str, str]) -> str:
        name = f" {given['name'][:80]!r}" if "name" in given else ""
        return f"<{tag}>{name} in line {parser.CurrentLineNumber}"

    def starts(tag: str, given: dict[str, str]):
        roots.append(tag)
        for what, path in given.items():
            if what in _PATHS or what.startswith("file"):
                _check_path(of(tag, given), what, path)
        keys, most = _COUNTED.get(tag, ((), 0))
        keys = [x for x in keys if x in given]
        asked = float(np.prod([_count(given[x]) for x in keys]))
        if tag == "replicate":
            copies.append(asked * copies[-1])
            asked = copies[-1]
        # Not `>`: a number that is not finite is none, either.
        if not asked <= most and keys:
            raise refuse(
                f"{of(tag, given)} asks for {asked:.4g} by {', '.join(keys)}; at most "
                f"{most:.4g} are read. Write a smaller number."
            )
        if tag == "include" and "file" in given:
            _check_included(of(tag, given), given["file"], folder, seen)

    def ends(tag: str):
        if tag == "replicate":
            copies.pop()

    def declares(name, *_):
        raise refuse(
            f"it declares the entity {name!r} in line {parser.CurrentLineNumber}, which MuJoCo "
            "does not replace. Write what it stands for in its place."
        )

    parser.StartElementHandler, parser.EndElementHandler = starts, ends
    parser.EntityDeclHandler = declares
    try:
        parser.Parse(without_comments(text), True)
    except expat.ExpatError as error:
        raise refuse(f"it is no XML: {error}. A file for MuJoCo or a robot description is.") from (
            error
        )
    return roots[0]


def _check_path(of: str, what: str, path: str):
    if path.startswith(_PACKAGE) and what == "filename":
        return
    elsewhere = path.startswith(("/", "~")) or PureWindowsPath(path).drive
    if "://" in path or elsewhere:
        raise refuse(
            f"{what} of {of} is {path[:80]!r}: nothing is fetched, and no file read but by a path "
            "relative to that of the mechanism. Put it beside that one."
        )


def _count(given: str) -> float:
    """The product of the numbers of an attribute; 1 for what MuJoCo will refuse."""
    try:
        return float(np.prod([max(abs(float(x)), 1.0) for x in given.split()]))
    except ValueError:
        return 1.0


def _check_included(of: str, name: str, folder: Path | None, seen: frozenset[Path]):
    path = ((folder or Path()) / name).resolve()
    if path in seen:
        raise refuse(f"{of} includes {name!r}, in which it lies. Include each file once.")
    if not path.is_file():
        raise refuse(f"{of} includes {name!r}, which is no file.")
    check_text(decoded(path.read_bytes()), folder, seen | {path})


# Of arrays of a model by the beginning of their names: what their rows are.
_ROWS = {"body": "body", "jnt": "joint", "dof": "joint", "site": "site", "geom": "geom",
         "tendon": "tendon", "actuator": "actuator", "eq": "equality", "qpos": "joint",
         "qpos0": "joint"}  # fmt: skip

# What MuJoCo computes of others.
_DERIVED = ("actuator_acc0", "actuator_length0", "body_invweight0", "body_subtreemass", "dof_M0",
            "dof_invweight0", "tendon_invweight0", "tendon_length0")  # fmt: skip


def check_numbers(model: Any, names: Any):
    """Refuse numbers that are not finite, or that no mechanism has.

    Args:
        model: of MuJoCo.
        names: of what it has, `Names`.

    Raises:
        ValueError: naming the element and what of it is no number.
    """
    for what in ("gravity", "wind", "density", "viscosity"):
        value = np.ravel(getattr(model.opt, what))
        if not np.all(np.abs(value) <= LARGEST):
            raise refuse(f"{what} is {_listed(value)}; give finite numbers, below {LARGEST:g}.")
    fields = [x for x in dir(model) if not x.startswith("_")]
    for field in sorted(fields, key=lambda x: (x in _DERIVED, x)):
        prefix, _, what = field.partition("_")
        values = getattr(model, field) if prefix in _ROWS else None
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
            continue
        wrong = np.argwhere(~(np.abs(values.astype(float)) <= LARGEST))
        if wrong.size:
            i = int(wrong[0][0])
            kind, of = _ROWS[prefix], i
            if prefix == "dof":
                of = int(model.dof_jntid[i])
            elif prefix in ("qpos", "qpos0"):
                of = int(np.searchsorted(model.jnt_qposadr, i, "right")) - 1
            raise refuse(
                f"{what or 'ref'} of the {kind} {names(kind, of)!r} is "
                f"{_listed(np.ravel(values[i]))}; give finite numbers, below {LARGEST:g}."
            )


def check_signs(model: Any, names: Any):
    """Refuse inertias of rotors and dry friction that are negative, which no mechanism has.

    Args:
        model: of MuJoCo.
        names: of what it has, `Names`.

    Raises:
        ValueError: naming the element and the number.
    """
    for kind, what in (("dof", "armature"), ("tendon", "armature"), ("actuator", "armature"),
                       ("dof", "frictionloss"), ("tendon", "frictionloss")):  # fmt: skip
        for of, value in _negative(model, names, kind, what):
            raise refuse(f"{what} of the {of} is {value:g}; it is not negative.")


def negative_dampers(model: Any, names: Any) -> Iterator[str]:
    """Joints, tendons and actuators whose dampers drive the motion, each with the number."""
    for kind in ("dof", "tendon", "actuator"):
        for of, value in _negative(model, names, kind, "damping"):
            yield f"the {of} ({value:g})"


def _negative(model: Any, names: Any, kind: str, what: str) -> Iterator[tuple[str, float]]:
    values = getattr(model, f"{kind}_{what}")
    named = set()
    for i in map(int, np.flatnonzero([np.min(x) < 0 for x in values])):
        of = int(model.dof_jntid[i]) if kind == "dof" else i
        name = f"{_ROWS[kind]} {names(_ROWS[kind], of)!r}"
        if name not in named:
            named.add(name)
            yield name, float(np.min(values[i]))


def _listed(values: np.ndarray) -> str:
    return " ".join(f"{x:g}" for x in values)
