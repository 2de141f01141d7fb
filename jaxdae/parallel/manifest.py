"""The manifest of a directory of results: what batch it is, and which files are of it.

A directory may come from anywhere, so that nothing in its manifest is believed before it is
checked: a name of a file that is no bare name would lead out of the directory.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.parallel.errors import StoredBatchError

FORMAT = "jaxdae batch"
VERSION = 2
MANIFEST, FINISHED = "manifest.json", "finished"


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory.

    Returns:
        The manifest: `members` is a positive number, each of `results` has a bare name of a file, a
        shape with that many members and a dtype of numbers.

    Raises:
        StoredBatchError: if there is none, it is damaged, or of another format.
    """
    path = directory / MANIFEST
    if not path.is_file():  # a pipe would be waited for, and a folder is none
        raise error(directory, "it holds no batch (no manifest.json)", "give another folder")
    try:
        manifest = json.loads(path.read_bytes())
        _require(manifest, "it", ("format",))
        known = (manifest["format"], manifest.get("version")) == (FORMAT, VERSION)
        if known:
            _check(manifest)
    except (ValueError, TypeError, OverflowError, RecursionError) as reason:
        raise error(
            directory,
            f"its manifest.json is damaged ({reason})",
            "delete it, or give another directory",
        ) from reason
    if not known:
        reason = f"its format is {manifest['format']!r} {manifest.get('version')}"
        raise error(directory, f"{reason}, this program reads {FORMAT!r} {VERSION}")
    return manifest


def finished_chunks(directory: Path, members: int) -> list[tuple[int, int]]:
    """Chunks that are recorded as finished, each the first member and the member after the last.

    Raises:
        StoredBatchError: if the records are missing, or are not of this batch.
    """
    folder = directory / FINISHED
    if not folder.is_dir():
        raise error(directory, f"its folder {FINISHED!r}, the record of its chunks, is missing")
    names = (re.fullmatch(r"([0-9]+)-([0-9]+)", x.name) for x in folder.iterdir())
    chunks = sorted((int(name[1]), int(name[2])) for name in names if name)
    for start, stop in chunks:
        if not start < stop <= members:
            reason = f"a chunk of members {start} to {stop - 1} is recorded, and it has {members}"
            raise error(directory, reason)
    return chunks


def error(directory: Path, reason: str, remedy: str | None = None) -> StoredBatchError:
    """The error of a directory that cannot be used, why not, and what to do about it."""
    if remedy is None:
        remedy = (
            "make the same call as then, give another directory, or start afresh with "
            "`overwrite=True`"
        )
    return StoredBatchError(f"cannot use the directory {directory}: {reason}; {remedy}.")


def _require(table: Any, what: str, keys: tuple[str, ...]) -> None:
    if not isinstance(table, dict):
        raise TypeError(f"{what} is {type(table).__name__}, not a table of names")
    missing = [key for key in keys if key not in table]
    if missing:
        raise ValueError(f"{what} has no {missing[0]!r}")


def _check(manifest: dict[str, Any]) -> None:
    _require(manifest, "it", ("members", "results", "fingerprint"))
    members = manifest["members"]
    if not _is_count(members) or members == 0:
        raise ValueError(f"members is {members!r}, not a positive integer")
    _require(manifest["fingerprint"], "fingerprint", ())
    _require(manifest["results"], "results", ())
    for name, entry in manifest["results"].items():
        _require(entry, f"the result {name!r}", ("file", "shape", "dtype"))
        for key, test, wanted in _ENTRY:
            if not test(entry[key], name, members):
                raise ValueError(f"{key} of the result {name!r} is {entry[key]!r}, not {wanted}")


def _is_count(x: Any) -> bool:
    return type(x) is int and x >= 0


def _is_own_file(file: Any, name: str, members: int) -> bool:
    del members
    return file == f"{name}.npy" and re.fullmatch(r"\w[\w.]*", name) is not None


def _is_shape(shape: Any, name: str, members: int) -> bool:
    del name
    return isinstance(shape, list) and all(map(_is_count, shape)) and shape[:1] == [members]


def _is_dtype(dtype: Any, name: str, members: int) -> bool:
    del name, members
    try:
        return isinstance(dtype, str) and np.dtype(dtype).kind in "biufcV"
    except TypeError:
        return False


_ENTRY: tuple[tuple[str, Callable[[Any, str, int], bool], str], ...] = (
    ("file", _is_own_file, "its name and .npy, without a folder"),
    ("shape", _is_shape, "a list of integers, the number of members first"),
    ("dtype", _is_dtype, "a type of numbers"),
)
