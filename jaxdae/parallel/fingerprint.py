"""What a stored batch is, so that another one is not continued by mistake."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from jaxdae.kernels.llvm.machine_code import portable_names
from jaxdae.parallel.members import leaf_name, Members
from jaxdae.parallel.program import Layout, run_block

# Bytes of an array that are read at once: inputs may be larger than memory.
_PIECE = 2**24


def fingerprint(members: Members, layout: Layout) -> dict[str, Any]:
    """What must agree for a batch to be continued, section by section.

    How members are split over chunks, devices and processes is not among it: it changes no number.

    Args:
        members: the batch.
        layout: how it lies on the devices; its block counts.

    Returns:
        A dictionary of JSON values.
    """
    return {
        "members": members.total,
        "block_size": layout.block,
        "inputs": _arrays(members.mapped),
        "shared inputs": _arrays(members.shared),
        "program of the function and what it closes over": _program(members, layout),
        "platform": layout.mesh.devices.flat[0].platform,
        "software": {"jax": version("jax"), "jaxlib": version("jaxlib")},
    }


def differences(there: dict[str, Any], here: dict[str, Any], where: str) -> list[str]:
    """A phrase for each entry in which two fingerprints differ, one of them `where` says."""
    old, new = (dict(_entries(x)) for x in (there, here))
    return [
        f"{name}: {old.get(name)} {where}, {new.get(name)} here"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]


def _entries(sections: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, value in sections.items():
        if isinstance(value, dict):
            yield from ((f"{section}: {name}", x) for name, x in value.items())
        else:
            yield section, value


def _arrays(tree: Any) -> dict[str, str]:
    return {
        leaf_name(path): f"{x.dtype}{list(x.shape)} {_digest(_pieces(x))}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _pieces(x: np.ndarray) -> Iterator[bytes]:
    rows = max(1, _PIECE // max(1, x.nbytes // max(1, len(x)))) if x.ndim else 1
    parts = (x[i : i + rows] for i in range(0, len(x), rows)) if x.ndim else (x,)
    return (np.ascontiguousarray(part).tobytes() for part in parts)


def _program(members: Members, layout: Layout) -> str:
    """Of the compiled text of one block: constants are in it, addresses and file names are not.

    Kernels of machine code are named in it by what they compute, for whatever processor.
    """
    mapped = members.take(layout.first_block())
    program: Any = run_block  # equinox keeps the `lower` of compiled functions from type checkers
    text = program.lower(mapped, members.shared, members.rest).as_text()
    return _digest([portable_names(text).encode()])


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
