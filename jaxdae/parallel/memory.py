"""Results in memory, in that of every process."""

from typing import Any

import jax
import numpy as np

from jaxdae.parallel import processes
from jaxdae.parallel.errors import BatchError


class Memory:
    """Takes the results of one batch.

    Args:
        members: number of members.
        results: shapes and dtypes of the results of a block, leading axis `members`.

    Raises:
        BatchError: if they do not fit.
    """

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
