"""Whether a stored result belongs to a call: digests of what decides its numbers."""

import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import jax


def digest(parts: Iterable[bytes]) -> str:
    """Sixteen hexadecimal digits of bytes, one part behind the other."""
    result = hashlib.sha256()
    for part in parts:
        result.update(part)
    return result.hexdigest()[:16]


def software(*libraries: str) -> dict[str, str]:
    """Releases of libraries that decide the last digits of a result."""
    return {name: version(name) for name in libraries}


def leaf_name(path) -> str:
    """Name of a leaf by its path, as it is written in Python, such as `batch[0].q`."""
    return jax.tree_util.keystr(path).lstrip(".")


def differences(there: dict[str, Any], here: dict[str, Any], where: str) -> list[str]:
    """A phrase for each entry in which two fingerprints differ, one of them `where` says."""
    result = []
    for section in {**here, **there}:
        old, new, name = there.get(section), here.get(section), section
        pairs = [(name, old, new)]
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = [(f"{name}: {x}", old.get(x), new.get(x)) for x in {**new, **old}]
        result += [f"{name}: {old} {where}, {new} here" for name, old, new in pairs if old != new]
    return result
