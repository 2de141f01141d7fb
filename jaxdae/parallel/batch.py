"""A function of one batch member, applied to all of them."""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree
from tqdm import tqdm

from jaxdae.interruptions import heard
from jaxdae.parallel import processes
from jaxdae.parallel.members import split, SplitCall
from jaxdae.parallel.processes import BatchError
from jaxdae.parallel.program import (
    AXIS,
    DeviceLayout,
    fingerprint,
    place_shared,
    run_block,
    start_chunk,
)
from jaxdae.storage.batches import result_names, Store


class InMemoryStore:
    """Takes the results of one batch."""

    kept = "Nothing is kept; give a directory to keep finished chunks."

    def __init__(self, members: int, results: list[Any]):
        try:
            self._arrays = [np.zeros((members, *x.shape[1:]), x.dtype) for x in results]
        except MemoryError as error:
            raise BatchError(
                f"the results of {members} members do not fit into memory ({error}); give a "
                "directory, or return less of each member."
            ) from error
        self._computed: list[tuple[int, int]] = []

    def open(self, overwrite: bool) -> list[tuple[int, int]]:
        """Nothing is finished before the beginning."""
        del overwrite
        return []

    def write(self, start: int, stop: int, arrays: list[np.ndarray]) -> None:
        """Take the results of a chunk, arrays with leading axis `stop - start`."""
        self._computed.append((start, stop))
        for mine, array in zip(self._arrays, arrays, strict=True):
            mine[start:stop] = array

    def close(self) -> None:
        """Nothing was kept from others."""

    def complete(self) -> list[np.ndarray]:
        """Results of all processes, leading axis `members`."""
        if jax.process_count() > 1:
            self._exchange()
        return self._arrays

    def _exchange(self) -> None:
        """Fill in what other processes computed, one chunk of each at a time."""
        turns, size = processes.largest(
            len(self._computed), max((b - a for a, b in self._computed), default=0)
        )
        for turn in range(turns):
            start, stop = self._computed[turn] if turn < len(self._computed) else (0, 0)
            parts = [np.zeros((size, *x.shape[1:]), x.dtype) for x in self._arrays]
            for part, mine in zip(parts, self._arrays, strict=True):
                part[: stop - start] = mine[start:stop]
            places, *gathered = processes.gather([np.array([start, stop], np.int32), *parts])
            for process, (first, last) in enumerate(places):
                for mine, theirs in zip(self._arrays, gathered, strict=True):
                    mine[first:last] = theirs[process, : last - first]


# Members of a block, unless it is said: on a CPU as many as its caches hold, on an accelerator as
# many threads as it runs at once. Blocks of a chunk on each device: what a kill costs, against how
# often the host must wait.
_CPU, _ACCELERATOR = (64, 16), (2**16, 1)


def map_batch(
    function: Callable[[PyTree], PyTree],
    batch: PyTree,
    *,
    in_axes: PyTree = 0,
    block_size: int | None = None,
    chunk_size: int | None = None,
    devices: Sequence[Any] | None = None,
    directory: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> PyTree:
    """Apply a function to every member of a batch: on many devices, hosts, and beyond memory.

    Members are computed in *blocks*, and blocks in *chunks*:

    - A block is `jax.vmap` over `block_size` members. Members of a block advance in step: an
      adaptive member waits for the slowest of its own block, and for no other.
    - A chunk is as many blocks as `chunk_size` members make, dealt to the devices in turn. Each
      device runs its blocks one after the other, waiting for no other device, and begins with the
      next chunk while the host stores this one. All chunks, a last one that is not full among
      them, run by one compiled program, which computes no blocks without members.
    - Under `jax.distributed` every process takes its share of the chunks on its own devices.

    A member's numbers depend on its block alone. They are the same, bit for bit, whatever the chunk
    size and the number of devices and processes of one kind; another `block_size` may change last
    digits, as it does with `jax.vmap`.

    With a directory, results go to disk as they come, one `.npy` file for each array (`load_batch`
    reads them, or `numpy.load(file, mmap_mode="r")` does), beside a manifest. A chunk is recorded
    once it is on the disk, so that whatever ends the process, finished chunks are kept: the same
    call goes on with the others, and may choose another chunk size and other devices. Inputs and
    the compiled program of a block are compared first; what host callbacks do cannot be.

    Processes call `jax.distributed.initialize(address, num_processes, process_id)` first, and then
    make the same call, with one directory that all of them see. If one ends early, JAX ends the
    others when it notices, `heartbeat_timeout_seconds` later; with
    `jax.config.update("jax_enable_recoverability", True)` they finish their own share before.

    Args:
        function: of one member, `batch` without the axes of members, traceable by JAX; returns any
            pytree of arrays. A failure of a member must be a value: a function that raises ends the
            batch. Called again with the same function nothing is compiled: define it once, or
            write it as an `eqx.Module`, whose arrays all members share.
        batch: any pytree, systems, formulations and states among it; arrays may be mapped from
            disk (`numpy.load(file, mmap_mode="r")`).
        in_axes: axes of the members, as of `jax.vmap`: one for all arrays, or a pytree of axes that
            ends where branches of the batch share one; `None` for what all members share.
            What is no array is always shared.
        block_size: members that advance in step; by default 64 on CPUs and 65536 on accelerators.
            Smaller ones wait less for each other, larger ones share more of each operation's cost.
        chunk_size: members between two visits of the host, rounded up to full blocks; by default 16
            blocks for each device, and fewer where that leaves processes without work.
        devices: by default all devices of this process.
        directory: folder for the results; made if it does not exist.
        overwrite: delete the results in the directory, and compute all members.
        progress: show a progress bar (of the first process).

    Returns:
        A pytree like the function's, with a leading axis of members: `numpy` arrays, mapped from
        disk if there is a directory.

    Raises:
        ValueError: for leaves whose members do not match, or sizes that make no sense.
        TypeError: for axes or results of the wrong kind.
        StoredBatchError: if the directory holds another batch (what differs is said), other files,
            or too little space, or another call computes it at the same time.
        BatchError: if the batch ends early: out of memory, a disk that is full, a function that
            raises, another process that ended. Finished chunks are kept.
    """
    with heard():
        members = split(function, batch, in_axes)
        layout = _layout(members.total, block_size, chunk_size, devices)
        mapped = members.take(layout.first_block())
        shapes = eqx.filter_eval_shape(run_block, mapped, members.shared, members.rest)
        leaves, structure = jax.tree.flatten(shapes)
        # One process and its memory hold nothing that it could be compared with.
        compared = directory is not None or jax.process_count() > 1
        here = fingerprint(members, layout) if compared else {}
        if directory is None:
            results = InMemoryStore(members.total, leaves)
        else:
            results = Store(directory, here, result_names(shapes))
        with contextlib.closing(results):
            there = processes.agree(lambda: {"what": here, "finished": results.open(overwrite)})
            processes.require_same(there["what"], here)
            chunks = _chunks(layout, there["finished"])
            processes.share(
                lambda: _compute(members, layout, chunks, results, progress), results.kept
            )
            return jax.tree.unflatten(structure, _complete(results))


def _compute(
    members: SplitCall, layout: DeviceLayout, chunks, results: InMemoryStore | Store, progress: bool
) -> None:
    """All chunks of this process; the next is computed while one is put away."""
    members, local = place_shared(members, layout), processes.local_chunks(chunks)
    started: deque = deque()
    with _bar(members.total, local, chunks, progress) as bar:

        def finish():
            (start, stop), arrays = started.popleft()
            with _in_words(start, stop, results):
                results.write(start, stop, layout.in_order(arrays, start, stop))
            bar.update(stop - start)

        try:
            for start, stop in local:
                with _in_words(start, stop, results):
                    started.append(((start, stop), start_chunk(members, layout, start, stop)))
                if len(started) > 1:
                    finish()
            while started:
                finish()
        except BaseException:  # what is under way when another chunk fails is not lost
            with contextlib.suppress(BatchError):
                while started:
                    finish()
            raise


def _complete(results: InMemoryStore | Store) -> list[np.ndarray]:
    """The results of all processes, when all have done their share."""
    if isinstance(results, InMemoryStore):
        return results.complete()
    if processes.first_process():
        results.complete()
    processes.wait_for_all("jaxdae: the files have their names")
    return results.results()


def _bar(total: int, local, chunks, progress: bool) -> tqdm:
    """A progress bar over the members of this process, those finished before included."""
    todo, missing = (sum(stop - start for start, stop in x) for x in (local, chunks))
    before = total - missing if jax.process_count() == 1 else 0
    silent = not (progress and processes.first_process())
    return tqdm(total=before + todo, initial=before, unit="member", disable=silent)


@contextlib.contextmanager
def _in_words(start: int, stop: int, results: InMemoryStore | Store):
    """What happened to which members, what to do, and what is kept."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        why, remedy = _explained(error)
        raise BatchError(
            f"members {start} to {stop - 1}: {why} ({_text(error)}); {remedy}. {results.kept}"
        ) from error


def _explained(error: Exception) -> tuple[str, str]:
    if isinstance(error, OSError):
        return "the results could not be written", "make room, and make the same call again"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "out of memory", "give a smaller chunk_size, or else a smaller block_size"
    return "the function raised", "a member's failure must be a value (simulate(..., throw=False))"


def _text(error: Exception) -> str:
    """What an error says, without the stacks that equinox puts around it."""
    text = str(error).strip()
    message = re.search(r"EquinoxRuntimeError: (.*)", text)
    return text if message is None else message[1]


def _chunks(layout: DeviceLayout, finished: list) -> list[tuple[int, int]]:
    """First members, and members after the last, of the chunks that are to be computed."""
    missing = np.ones(-(-layout.members // layout.block), bool)
    for start, stop in finished:
        missing[start // layout.block : -(-stop // layout.block)] = False
    edges = np.flatnonzero(np.diff(missing.astype(np.int8), prepend=0, append=0))
    return [
        (start, min(start + layout.chunk, last * layout.block, layout.members))
        for first, last in edges.reshape(-1, 2).tolist()
        for start in range(first * layout.block, last * layout.block, layout.chunk)
    ]


def _layout(members: int, block_size, chunk_size, devices) -> DeviceLayout:
    devices = jax.local_devices() if devices is None else list(devices)
    if not devices:
        raise ValueError("devices is empty; give one at least, or None for all of this process.")
    for name, size in (("block_size", block_size), ("chunk_size", chunk_size)):
        _check_size(name, size)
    usual_block, slots = _CPU if devices[0].platform == "cpu" else _ACCELERATOR
    block = min(block_size or usual_block, members)
    share = -(-members // jax.process_count())
    wanted = chunk_size or min(slots * block * len(devices), share)
    # The first process decides: all must speak of the same chunks.
    blocks = processes.agree(lambda: -(-min(wanted, members) // block))
    return DeviceLayout(members, block, blocks * block, Mesh(np.array(devices), (AXIS,)))


def _check_size(name: str, size) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise TypeError(f"{name} is {size!r}; give an integer, 1 at least.")
    if size < 1:
        raise ValueError(f"{name} is {size}; give 1 at least.")
