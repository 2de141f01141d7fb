"""Checkpoints of a fit: every step in one file, from which an interrupted fit goes on."""

import hashlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.identification.estimate import AbstractStore, Round
from jaxdae.tuning import checkpoint as checkpoints


class Store(AbstractStore):
    """The checkpoint of a fit.

    Args:
        path: of the file.
        resume: whether to go on from it.
        overwrite: whether it may be replaced.
        contents: what must agree for a fit to go on: any pytrees by name.

    Raises:
        FileExistsError: if the file exists and neither `resume` nor `overwrite` is set.
        ValueError: if both are.
    """

    def __init__(self, path: str | Path, *, resume: bool, overwrite: bool, contents: dict):
        if resume and overwrite:
            raise ValueError(
                "identify: `resume` and `overwrite` contradict each other; choose one."
            )
        self.path = Path(path)
        if self.path.exists() and not (resume or overwrite):
            raise FileExistsError(
                f"identify: the checkpoint {self.path} exists; continue it with `resume=True`, "
                "replace it with `overwrite=True`, or give another path."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fingerprint = {name: _digest(x) for name, x in contents.items()}
        self._resume = resume and self.path.exists()

    def restored(self, begun: Round) -> Round:
        if not self._resume:
            return begun
        arrays, rest = eqx.partition(begun, eqx.is_array)
        leaves, structure = jax.tree.flatten(arrays)
        try:
            _, stored = checkpoints.load(self.path, self._fingerprint, lambda _: leaves)
        except checkpoints.CheckpointError as error:
            text = f"identify: {error.reason}; make the same call as then, or give another path."
            raise checkpoints.CheckpointError(text, error.reason) from error
        self._resume = False
        return eqx.combine(jax.tree.unflatten(structure, stored), rest)

    def save(self, now: Round) -> None:
        leaves = jax.tree.leaves(eqx.filter(now, eqx.is_array))
        checkpoints.save(self.path, self._fingerprint, int(now.rounds), leaves)


def _digest(tree: Any) -> str:
    """Of all numbers in a pytree, and of where they are in it."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest.update(jax.tree_util.keystr(path).encode())
        if eqx.is_array_like(leaf):
            digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
