"""Calls as XLA makes them, word by word as its C interface lays them out (versions 0.3 to 0.5)."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

_MAKE_ERROR = _GET_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# Sizes of structures in bytes: of the call frame, its two tables, a buffer, and the functions.
SIZES = {"frame": 168, "arguments": 40, "results": 40, "buffer": 48, "api": 208}
EXECUTE, INITIALIZE = 3, 2
# What XLA's functions return for errors: addresses of things that it knows.
MADE, NO_STREAM = 7, 9


def words(*values: int):
    return (ctypes.c_int64 * len(values))(*values)


class Call:
    """A call of a handler.

    Args:
        arguments: arrays that it reads.
        results: arrays that it writes.
        stream: of XLA; `None` where XLA has none to give.
        stage: of execution.
        sizes: of structures, where they are to differ from the known ones.
    """

    def __init__(
        self,
        arguments: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        *,
        stream: int | None = 0x2000,
        stage: int = EXECUTE,
        sizes: dict[str, int] | None = None,
    ):
        size = SIZES | (sizes or {})
        self.stream = stream
        self.errors: list[tuple[str, int]] = []
        self._make, self._get = _MAKE_ERROR(self._error), _GET_STREAM(self._stream)
        self._kept: list = [self._make, self._get, arguments, results]
        functions = [0] * 20
        functions[0], functions[4] = (address_of(x) for x in (self._make, self._get))
        api = self._put(size["api"], 0, 24, 0, 0x300000000, 0, *functions)
        tables = [
            (size[name], 0, len(arrays), 0, self._put(*(self._buffer(x, size) for x in arrays)))
            for name, arrays in (("arguments", arguments), ("results", results))
        ]
        self._frame = [
            size["frame"],
            0,
            api,
            0xC0,
            stage,
            *tables[0],
            *tables[1],
            48,
            0,
            0,
            0,
            0,
            0,
        ]

    def _put(self, *values: int) -> int:
        self._kept.append(words(*values))
        return ctypes.addressof(self._kept[-1])

    def _buffer(self, x: np.ndarray, size: dict[str, int]) -> int:
        shape = self._put(*x.shape)
        return self._put(size["buffer"], 0, 12, x.ctypes.data, x.ndim, shape)

    def _error(self, arguments: int) -> int:
        given = (ctypes.c_int64 * 4).from_address(arguments)
        # As XLA counts: 28 bytes up to the end of the last field.
        assert (given[0], given[1]) == (28, 0)
        self.errors.append((ctypes.string_at(given[2]).decode(), given[3] & 0xFFFFFFFF))
        return MADE

    def _stream(self, arguments: int) -> int | None:
        given = (ctypes.c_int64 * 4).from_address(arguments)
        assert (given[0], given[1], given[2]) == (32, 0, 0xC0)
        if self.stream is None:
            return NO_STREAM
        given[3] = self.stream
        return None

    def make(self, entry: Callable[[int], int | None]) -> int | None:
        """Call a handler, and say what it returns."""
        frame = words(*self._frame)
        return entry(ctypes.addressof(frame))

    def error(self, entry: Callable[[int], int | None]) -> str:
        """The text of the error that a call ends in."""
        assert self.make(entry) == MADE
        ((text, _),) = self.errors
        return text


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
