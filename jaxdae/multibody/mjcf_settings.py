"""MJCF files with other settings of their equality constraints."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxdae.multibody.soft_constraints import Setting

# Comments, whose tags are none, and tags of equality constraints.
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SECTION = re.compile(r"<equality\b[^>]*(?<!/)>(.*?)</equality\s*>", re.DOTALL)
_TAG = re.compile(r"<(connect|weld|joint|tendon|flex|flexvert|flexstrain|distance)\b[^>]*>")
_ATTRIBUTES = re.compile(r"\s+(solref|solimp)\s*=\s*(\"[^\"]*\"|'[^']*')")


def write_settings(
    mujoco, model, source: str | Path, path: Path, indices: list[int], setting: Setting
) -> str | None:
    """Write a file with a setting for some of its equality constraints.

    The text of the file is kept but for the two attributes, and MuJoCo compiles the result before
    the file is there: nothing else may have changed. Where the constraints stand in other files
    that it includes, MuJoCo's own writer makes one file of all.

    Args:
        mujoco: the module.
        model: of the source.
        source: path of the file, or its text.
        path: of the file to write.
        indices: of the equality constraints in the model.
        setting: for all of them.

    Returns:
        What was not kept, in words; `None` where all was.

    Raises:
        ValueError: where neither way gives the same model, or the folder is not there.
    """
    if not path.parent.is_dir():
        raise ValueError(f"doctor: cannot write {path}: {path.parent} is no folder.")
    is_text = str(source).lstrip().startswith("<")
    origin = None if is_text else Path(source).expanduser()
    if origin is not None and path.exists() and path.samefile(origin):
        raise ValueError(f"doctor: {path} is the file that was read; give another one to write.")
    data = str(source).encode() if origin is None else origin.read_bytes()
    # Tags are ASCII in every encoding that MuJoCo reads: all other bytes stay what they are.
    edited = _edited(data.decode("latin-1"), model.neq, indices, setting)
    lost = None
    if edited is not None:
        changed = edited.encode("latin-1")
    else:
        of = mujoco.MjSpec
        spec = of.from_string(str(source)) if origin is None else of.from_file(str(origin))
        for i in indices:
            spec.equalities[i].solref, spec.equalities[i].solimp = setting
        spec.compile()
        changed = spec.to_xml().encode()
        lost = "by MuJoCo's own writer, without comments and with six digits of numbers"
    # Beside the file, where relative paths of meshes are those of the file.
    trial = path.with_name(f".{path.stem}.trial.xml")
    try:
        trial.write_bytes(changed)
        written = mujoco.MjModel.from_xml_path(str(trial))
        different = [*_differences(model, written, indices, setting, 1e-3 if lost else 0.0)]
        if different:
            raise ValueError(f"other numbers of {', '.join(different)}")
        trial.replace(path)
    except ValueError as error:
        raise ValueError(
            f"doctor: {path} was not written, because MuJoCo would not read the same mechanism "
            f"from it ({error}). Write it beside the file that was read, or set the attributes "
            f"{setting} by hand."
        ) from error
    finally:
        trial.unlink(missing_ok=True)
    return lost


def _edited(text: str, count: int, indices: list[int], setting: Setting) -> str | None:
    """The text with other attributes; `None` where it has not all of the constraints."""
    blank = _COMMENT.sub(lambda x: " " * len(x[0]), text)
    tags = [
        (section.start(1) + tag.start(), section.start(1) + tag.end())
        for section in _SECTION.finditer(blank)
        for tag in _TAG.finditer(section[1])
    ]
    if len(tags) != count:
        return None
    parts, at = [], 0
    for i, (start, end) in enumerate(tags):
        if i in indices:
            tag = _ATTRIBUTES.sub("", text[start:end])
            close = "/>" if tag.endswith("/>") else ">"
            parts += [text[at:start], f"{tag.removesuffix(close).rstrip()} {setting}{close}"]
            at = end
    return "".join([*parts, text[at:]])


def _differences(
    one, other, indices: list[int], setting: Setting, tolerance: float
) -> Iterator[str]:
    """Arrays of two models that differ, but for the settings, which must be those wanted."""
    for name in dir(one):
        first, second = getattr(one, name), getattr(other, name)
        if name.startswith("_") or not isinstance(first, np.ndarray):
            continue
        first = first.copy()
        if name in ("eq_solref", "eq_solimp"):
            first[indices] = setting.solref if name == "eq_solref" else setting.solimp
        comparable = isinstance(second, np.ndarray) and first.shape == second.shape
        if not (comparable and np.allclose(first, second, rtol=tolerance, atol=tolerance)):
            yield name
