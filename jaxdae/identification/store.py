"""Checkpoints of a fit: every step in one file, from which an interrupted fit goes on."""

from contextlib import AbstractContextManager
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.identification.estimate import AbstractStore, Round, samples_of
from jaxdae.identification.residuals import Fit
from jaxdae.tuning import checkpoint as checkpoints


class Store(AbstractStore):
    """The checkpoint of a fit.

    Args:
        path: of the file.
        resume: whether to go on from it.
        overwrite: whether it may be replaced.
        contents: what must agree for a fit to go on, from `contents_of`.

    Raises:
        FileExistsError: if the file exists and neither `resume` nor `overwrite` is set.
        ValueError: if both are.
    """

    def __init__(
        self, path: str | Path, *, resume: bool, overwrite: bool, contents: dict[str, str]
    ):
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
        self._fingerprint = contents
        self._resume = resume and self.path.exists()

    def alone(self) -> AbstractContextManager[None]:
        """Keep other fits from the file."""
        return checkpoints.alone(self.path, "identify")

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


def contents_of(fit: Fit, x) -> dict[str, str]:
    """What must agree for a fit to go on, in digests by name.

    The program that is compared is that of the residuals as JAX traces it: it has in it whatever
    the functions of the user and the solver compute, but no Python that leaves no trace.

    Args:
        fit: what is fitted.
        x: where the fits begin, shape `(fits, p)`.
    """
    noise, values = jnp.ones(len(fit.model.channels), x.dtype), samples_of(fit)
    program = jax.make_jaxpr(lambda x: fit.residuals(x, values, noise))(x[0])
    return {
        "data and settings": checkpoints.tree_digest(fit),
        "first guesses": checkpoints.tree_digest(x),
        "model and solver": checkpoints.program_digest(program),
    }
