"""Checkpoints of a tuning run: one file, written atomically, refused if it does not fit.

Layout of the file: a JSON line (what run this is, how far it got), a line with the SHA-256 of
everything else in the file, and the arrays as `equinox.tree_serialise_leaves` writes them.
"""

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from jaxdae.storage.files import held, replace_file
from jaxdae.storage.fingerprints import differences, software

FORMAT = "jaxdae tuning checkpoint"
VERSION = 1
_SOFTWARE = ("jax", "equinox", "optax", "optimistix")


class CheckpointError(ValueError):
    """A checkpoint cannot be used: not a checkpoint, damaged, of another run, or in use by one.

    Args:
        message: what is wrong, and what to do in a script.
        reason: what is wrong alone; a command has other remedies.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


def save(path: Path, fingerprint: dict[str, Any], rows: int, tree: PyTree) -> None:
    """Write a checkpoint; at every moment the file is the old one or the new one, complete."""
    payload = io.BytesIO()
    eqx.tree_serialise_leaves(payload, tree)
    header = {"format": FORMAT, "version": VERSION, "rows": rows}
    header |= {"software": software(*_SOFTWARE), "fingerprint": fingerprint}
    first = json.dumps(header, sort_keys=True).encode() + b"\n"
    checksum = _checksum(first, payload.getvalue()).encode() + b"\n"
    replace_file(path, first + checksum + payload.getvalue())


def alone(path: Path, caller: str) -> AbstractContextManager[None]:
    """Keep other runs from a checkpoint while this one writes it."""

    def refused(holder: str) -> CheckpointError:
        reason = f"another run writes the checkpoint {path} ({holder})"
        remedy = "wait until it ends, or end it, or give another path"
        return CheckpointError(f"{caller}: {reason}; {remedy}.", reason)

    path.parent.mkdir(parents=True, exist_ok=True)
    return held(path, refused)


def load(
    path: Path, fingerprint: dict[str, Any], like: Callable[[int], PyTree]
) -> tuple[int, PyTree]:
    """Number of finished evaluations and arrays of the same run, which are `like(rows)`."""
    header, payload = _verified(path, path.read_bytes())
    _require_same(path, header, fingerprint)
    try:
        return header["rows"], eqx.tree_deserialise_leaves(
            io.BytesIO(payload), like(header["rows"])
        )
    except Exception as error:
        reason = f"its arrays do not fit this run ({error})"
        raise refusal(path, reason, "use another file or `overwrite=True`") from error


def _verified(path: Path, content: bytes) -> tuple[dict[str, Any], bytes]:
    first, _, rest = content.partition(b"\n")
    checksum, _, payload = rest.partition(b"\n")
    if not first.startswith(b'{"') or FORMAT.encode() not in first:
        raise refusal(path, "it is not a tuning checkpoint", "give another path")
    if _checksum(first + b"\n", payload).encode() != checksum:
        reason = f"it is truncated or corrupt ({len(content)} bytes, the checksum does not match)"
        raise refusal(path, reason, "restore a copy, or start again with `overwrite=True`")
    header = json.loads(first)
    if header["version"] != VERSION:
        reason = f"its format version is {header['version']}, this program reads {VERSION}"
        raise refusal(path, reason, "use the version that wrote it, or `overwrite=True`")
    return header, payload


def _require_same(path: Path, header: dict[str, Any], here: dict[str, Any]) -> None:
    differing = differences(header["fingerprint"], json.loads(json.dumps(here)), "in the file")
    if differing:
        reason = f"it belongs to another run; {differing[0]}"
        if header["software"] != (now := software(*_SOFTWARE)):
            reason += f" (written with {header['software']}, this is {now})"
        remedy = "make the same call as then, give another path, or start with `overwrite=True`"
        raise refusal(path, reason, remedy)


def refusal(path: Path, reason: str, remedy: str) -> CheckpointError:
    """The error that a file cannot be used, and what to do."""
    failure = f"cannot resume from {path}: {reason}"
    return CheckpointError(f"tune: {failure}; {remedy}.", failure)


def _checksum(first: bytes, payload: bytes) -> str:
    return hashlib.sha256(first + payload).hexdigest()
