"""Several processes on one batch, joined by `jax.distributed`; and what can end it."""

import json
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxdae.storage.batches import StoredBatchError
from jaxdae.storage.fingerprints import differences


class BatchError(RuntimeError):
    """A batch ended before all members were computed; finished chunks in a directory are kept."""


def local_chunks(chunks: list[Any]) -> list[Any]:
    """The chunks of this process: every so many, so that all of them advance through the batch."""
    return chunks[jax.process_index() :: jax.process_count()]


def first_process() -> bool:
    """Whether this is the process that keeps the books."""
    return jax.process_index() == 0


def agree(find: Callable[[], Any]) -> Any:
    """What `find` returns in the first process, JSON values, in every process."""
    if jax.process_count() == 1:
        return find()
    text = json.dumps(_outcome(find) if first_process() else {}).encode()
    # An array must have the same shape in every process; what others send is not read.
    size = int(_together(multihost_utils.broadcast_one_to_all, np.int32(len(text))))
    letters = np.frombuffer(text.ljust(size)[:size], np.uint8)
    outcome = json.loads(bytes(_together(multihost_utils.broadcast_one_to_all, letters)))
    if "refusal" in outcome:
        raise StoredBatchError(outcome["refusal"])
    return outcome["agreed"]


def require_same(there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse, in all processes, to go on if one has another batch (`here`) than the first."""
    differing = differences(there, here, "there")
    if jax.process_count() == 1:
        return
    others = np.flatnonzero(gather([np.array(bool(differing))])[0])
    if others.size:
        what = f" ({differing[0]})" if differing else ""
        raise BatchError(
            f"process {jax.process_index() if differing else others[0]} has another batch than "
            f"process 0{what}; make the same call in all of them."
        )


def share(work: Callable[[], None], kept: str) -> None:
    """Do the share of this process, and go on when all processes have done theirs.

    A process whose share fails waits for the others: if it ended, JAX would end them too. `kept`
    says what is left if the batch ends early.
    """
    if jax.process_count() == 1:
        return work()
    error = None
    try:
        work()
    except BatchError as reason:
        error = reason
        message = f"{error} This process ends when the others have done their share."
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    failed = np.flatnonzero(gather([np.array(error is not None)])[0])
    if error is not None:
        raise error
    if failed.size:
        which = f"process {failed[0]} of {jax.process_count()}"
        raise BatchError(f"the share of {which} failed; see what it printed. {kept}")


def wait_for_all(name: str) -> None:
    """Go on when all processes have come to the place of this name."""
    if jax.process_count() > 1:
        _together(multihost_utils.sync_global_devices, name)


def gather(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Arrays of the same shapes in every process, stacked, in every process."""
    return [_together(multihost_utils.process_allgather, x) for x in parts]


def largest(*numbers: int) -> list[int]:
    """The largest of each number that any process gives; a `BatchError` if one ended before."""
    return gather([np.array(numbers, np.int32)])[0].max(axis=0).tolist()


def _outcome(find: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"agreed": find()}
    except StoredBatchError as error:
        return {"refusal": str(error)}


def _together(operation: Callable, value):
    """A call that every process must make, and what it means if one does not."""
    try:
        return operation(value)
    except (ValueError, RuntimeError) as error:
        raise BatchError(
            f"another of the {jax.process_count()} processes ended before its part of the batch "
            f"was done (this is process {jax.process_index()}; JAX says: {_first_line(error)}). "
            "See what that process printed; then start all of them again. With a directory, "
            "finished chunks are kept and not computed again."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
