"""Memory by address: buffers of the host, and windows that each thread or block has of its own.

Addresses of the host are those of the process. Local and shared memory are seen through windows at
addresses that no process has; what lies there depends on the thread.
"""

import bisect
import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from helpers.ptx.errors import PtxError, ThreadError

LOCAL, SHARED = 1 << 61, 1 << 60
# The window of either, in bytes.
_WINDOW = 1 << 40
# What uninitialized memory is full of: bits of numbers that are none.
_FILL = 0xFF
# Between new buffers, so that what runs behind the end of one is not in the next one.
_GAP = 1 << 16


def window(address: int) -> str:
    """The space of a generic address."""
    for name, start in (("local", LOCAL), ("shared", SHARED)):
        if start <= address < start + _WINDOW:
            return name
    return "global"


class _Region(NamedTuple):
    """A buffer: its address, its length, and its bytes."""

    start: int
    nbytes: int
    data: np.ndarray


class Memory:
    """Buffers of the host that kernels may read and write."""

    def __init__(self):
        self._starts: list[int] = []
        self._regions: list[_Region] = []
        self._kept: list[np.ndarray] = []

    def allocate(self, content: "int | np.ndarray") -> int:
        """A new buffer.

        Args:
            content: its length in bytes, filled with what makes every float NaN; or an array,
                which is copied.

        Returns:
            Its address, a multiple of 256.
        """
        nbytes = content if isinstance(content, int) else content.nbytes
        room = np.empty(nbytes + 2 * _GAP, np.uint8)
        self._kept.append(room)
        address = -(-(room.ctypes.data + _GAP // 2) // 256) * 256
        start = address - room.ctypes.data
        filled = _FILL if isinstance(content, int) else np.frombuffer(content.tobytes(), np.uint8)
        room[start : start + nbytes] = filled
        self.register(address, nbytes)
        return address

    def register(self, address: int, nbytes: int) -> None:
        """Let kernels use memory of this process.

        Args:
            address: where it begins.
            nbytes: its length.
        """
        at = bisect.bisect_right(self._starts, address)
        before = self._regions[at - 1] if at else None
        behind = self._regions[at] if at < len(self._regions) else None
        if nbytes and before is not None and before.start + before.nbytes > address:
            if before.start == address and before.nbytes == nbytes:
                return
            raise PtxError(f"buffers at {before.start:#x} and {address:#x} overlap")
        if behind is not None and address + nbytes > behind.start:
            raise PtxError(f"buffers at {address:#x} and {behind.start:#x} overlap")
        if nbytes:
            data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
            self._starts.insert(at, address)
            self._regions.insert(at, _Region(address, nbytes, data))

    def release(self, address: int) -> None:
        """Take a buffer away from kernels again.

        Args:
            address: where it begins.
        """
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address:
            raise PtxError(f"no buffer begins at {address:#x}")
        del self._starts[at], self._regions[at]

    def read(self, address: int, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """A copy of what lies at an address.

        Args:
            address: where it begins.
            shape: of the array.
            dtype: of its entries.
        """
        count = int(np.prod(shape))
        region = self.region(address)
        first = address - region.start if region else 0
        size = count * np.dtype(dtype).itemsize
        if count and (region is None or first + size > region.nbytes):
            raise PtxError(f"{size} bytes at {address:#x} are outside of all buffers")
        data = region.data[first : first + size] if region else np.empty(0, np.uint8)
        return np.frombuffer(data.tobytes(), dtype).reshape(shape)

    def region(self, address: int) -> "_Region | None":
        """The buffer that an address is in."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._starts[at] + self._regions[at].nbytes:
            return None
        return self._regions[at]


class Access:
    """How one instruction reads or writes buffers: it remembers the one of the last time.

    Args:
        memory: the buffers.
        dtype: what is read or written, a whole element at a time.
        entries: how many of them, which lie behind each other.
    """

    def __init__(self, memory: Memory, dtype: np.dtype, entries: int):
        self._memory, self._dtype, self._entries = memory, dtype, entries
        self._size = dtype.itemsize * entries
        self._start = self._last = self._skipped = np.uint64(0)
        self._mask, self._bytes = np.uint64(self._size - 1), np.uint64(dtype.itemsize)
        self._view = np.empty(0, dtype)

    def read(self, addresses: np.ndarray, threads: np.ndarray) -> list[np.ndarray]:
        """The elements at each address.

        Args:
            addresses: one of each thread.
            threads: their numbers, for errors.
        """
        if addresses.size and self._in_one(addresses):
            at = self._index(addresses)
            return [self._view[at + i if i else at] for i in range(self._entries)]
        results = [np.empty(addresses.size, self._dtype) for _ in range(self._entries)]
        for i, (address, thread) in enumerate(
            zip(addresses.tolist(), threads.tolist(), strict=True)
        ):
            at = self._seek(address, thread, "reads")
            for j, result in enumerate(results):
                result[i] = self._view[at + j]
        return results

    def write(self, addresses: np.ndarray, values: list[np.ndarray], threads: np.ndarray) -> None:
        """Set the elements at each address.

        Args:
            addresses: one of each thread.
            values: the elements of each.
            threads: their numbers, for errors.
        """
        check_apart(addresses, values, threads)
        if addresses.size and self._in_one(addresses):
            at = self._index(addresses)
            for i, value in enumerate(values):
                self._view[at + i if i else at] = value
            return
        for i, (address, thread) in enumerate(
            zip(addresses.tolist(), threads.tolist(), strict=True)
        ):
            at = self._seek(address, thread, "writes")
            for j, value in enumerate(values):
                self._view[at + j] = value[i]

    def _in_one(self, addresses: np.ndarray) -> bool:
        """Whether all are in one buffer, which is then the one that is looked at."""
        if self._all_inside(addresses):
            return True
        region = self._memory.region(int(addresses[0]))
        if region is None or region.nbytes < self._size:
            return False
        self._look_at(region)
        return self._all_inside(addresses)

    def _all_inside(self, addresses: np.ndarray) -> bool:
        if not self._view.size:
            return False
        offset = addresses - self._start
        wrong = (offset > self._last) | ((addresses & self._mask) != 0)
        return not wrong.any()

    def _look_at(self, region: _Region) -> None:
        size = self._dtype.itemsize
        self._skipped = np.uint64(-region.start % size)
        self._start = np.uint64(region.start)
        self._last = np.uint64(region.nbytes - self._size)
        inside = region.data[int(self._skipped) :]
        self._view = inside[: inside.size // size * size].view(self._dtype)

    def _index(self, addresses: np.ndarray) -> np.ndarray:
        return ((addresses - self._start - self._skipped) // self._bytes).view(np.int64)

    def _seek(self, address: int, thread: int, verb: str) -> int:
        """Index of an element in its buffer, which is then the one that is looked at."""
        if address % self._size:
            raise ThreadError(
                thread, f"{verb} {self._size} bytes at {address:#x}, which is no multiple of them"
            )
        region = self._memory.region(address)
        if region is None or address + self._size > region.start + region.nbytes:
            raise ThreadError(
                thread, f"{verb} {self._size} bytes at {address:#x}, outside of all buffers"
            )
        self._look_at(region)
        return (address - region.start - int(self._skipped)) // self._dtype.itemsize


def check_apart(addresses: np.ndarray, values: list[np.ndarray], threads: np.ndarray) -> None:
    """That no two threads store different numbers at one place: PTX does not say which one stays.

    Args:
        addresses: one of each thread.
        values: the elements that each stores.
        threads: their numbers, for errors.
    """
    order = np.argsort(addresses, kind="stable")
    same = addresses[order][1:] == addresses[order][:-1]
    if not same.any():
        return
    bits = [x.view(f"u{x.itemsize}")[order] for x in values]
    differ = same & np.any([x[1:] != x[:-1] for x in bits], axis=0)
    if differ.any():
        at = int(np.argmax(differ))
        raise ThreadError(
            int(threads[order[at + 1]]),
            f"writes to {int(addresses[order[at]]):#x} at the same time as thread "
            f"{threads[order[at]]}, and something else",
        )


class Rows:
    """Memory that each thread, or each block of threads, has of its own.

    Args:
        what: `local` or `shared`.
        nbytes: of one row.
        row: number of the row of each thread.
    """

    def __init__(self, what: str, nbytes: int, row: np.ndarray):
        self.what, self.nbytes, self._row = what, nbytes, row
        count = int(row.max()) + 1
        self._width = -(-max(nbytes, 1) // 16) * 16
        self._data = np.full((count, self._width), _FILL, np.uint8)

    def take(self, other: "Rows", mask: np.ndarray) -> None:
        """Copy the rows of some threads from another memory of the same size."""
        np.copyto(self._data, other._data, where=mask[:, None])

    def clear(self, first: int, nbytes: int, mask: np.ndarray) -> None:
        """Fill a part of some rows as if nothing was ever stored there."""
        self._data[mask, first : first + nbytes] = _FILL

    def columns(self, first: int, dtype: np.dtype, entries: int) -> list[np.ndarray]:
        """The elements at a place that is known, of all rows."""
        numbers = self._data.view(dtype)
        return [numbers[:, first // dtype.itemsize + i] for i in range(entries)]

    def indices(
        self, offsets: np.ndarray, dtype: np.dtype, entries: int, threads: np.ndarray, verb: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """All elements, one behind the other, and where threads find theirs.

        Args:
            offsets: where they are in the row of each thread, in bytes.
            dtype: of the elements.
            entries: elements that lie behind each other.
            threads: numbers of the threads.
            verb: what is done, for errors.
        """
        size = dtype.itemsize * entries
        wrong = (offsets > self.nbytes - size) | (offsets & np.uint64(size - 1) != 0)
        if self.nbytes < size or wrong.any():
            first = 0 if self.nbytes < size else int(np.argmax(wrong))
            raise ThreadError(
                int(threads[first]),
                f"{verb} {size} bytes at {int(offsets[first])} of {self.nbytes} bytes of "
                f"{self.what} memory, outside of it or at no multiple of them",
            )
        begin = self._row[threads] * (self._width // dtype.itemsize)
        at = begin + (offsets // np.uint64(dtype.itemsize)).view(np.int64)
        return self._data.view(dtype).reshape(-1), at
