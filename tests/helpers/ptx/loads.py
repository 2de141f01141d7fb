"""Loads, stores and atomic addition, by address and by name of a parameter."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from helpers.ptx.building import Builder
from helpers.ptx.errors import PtxError, ThreadError
from helpers.ptx.kinds import FLOATS, kind
from helpers.ptx.memory import Access, check_apart, LOCAL, Rows, SHARED, window
from helpers.ptx.operands import Operands, Step, Where
from helpers.ptx.records import Address, Operand, Register, Symbol
from helpers.ptx.threads import generic, Threads

_SPACES = ("global", "const", "shared", "local")
_KINDS = (*FLOATS, *(f"{x}{bits}" for x in "bus" for bits in (8, 16, 32, 64)))


class Element(NamedTuple):
    """What one instruction moves: its type, and how many of it."""

    name: str
    entries: int

    @property
    def nbytes(self) -> int:
        return self.entries * kind(self.name).itemsize


class Place:
    """Where an instruction reads or writes, in each thread.

    Args:
        threads: of the launch.
        space: of its addresses; empty for generic ones.
        base: their common part.
        offset: what is added.
        element: what is there.
    """

    def __init__(
        self, threads: Threads, space: str, base: np.ndarray, offset: int, element: Element
    ):
        self._threads, self._base, self._element = threads, base, element
        start = 0 if not space else generic(space)
        self._space, self._offset = space, np.uint64((offset + start) % 2**64)
        self._dtype = kind(element.name)
        self._host = Access(threads.memory, self._dtype, element.entries)
        # Columns of local memory that this instruction came to, by their place.
        self._columns: dict[int, list[np.ndarray]] = {}

    def read(self, where: Where) -> list[np.ndarray]:
        """The elements in all threads; of those that take no part, anything."""
        columns = self._same_place(where)
        if columns is not None:
            return columns
        chosen, addresses = self._addresses(where)
        results: list[np.ndarray] = []
        for _ in range(self._element.entries):
            results.append(np.zeros(self._threads.count, self._dtype))  # noqa: PERF401
        for rows, part, at in self._by_space(chosen, addresses):
            values = self._read_part(rows, part, at)
            for result, value in zip(results, values, strict=True):
                result[part] = value
        return results

    def write(self, values: list[np.ndarray], where: Where) -> None:
        """Set the elements."""
        columns = self._same_place(where)
        if columns is not None:
            for column, value in zip(columns, values, strict=True):
                np.copyto(column, value, where=where)
            return
        chosen, addresses = self._addresses(where)
        for rows, part, at in self._by_space(chosen, addresses):
            given = [x[part] for x in values]
            if rows is None:
                self._host.write(at, given, part)
                continue
            data, index = self._indices(rows, part, at, "writes")
            check_apart(index, given, part)
            for i, value in enumerate(given):
                data[index + i] = value

    def _same_place(self, where: Where) -> list[np.ndarray] | None:
        """The elements in all threads where each finds its own at one address of local memory.

        This is so with most of them, and sooner done than to gather them.
        """
        if self._space not in ("", "local"):
            return None
        addresses = self._base + self._offset
        first = addresses[0 if where is True else np.argmax(where)]
        place = int(first) - LOCAL
        if place not in self._columns:
            size, local = self._element.nbytes, self._threads.local
            if not 0 <= place <= local.nbytes - size or place % size:
                return None
            self._columns[place] = local.columns(place, self._dtype, self._element.entries)
        apart = (addresses != first) & where
        return None if apart.any() else self._columns[place]

    def _read_part(self, rows: Rows | None, part: np.ndarray, at: np.ndarray) -> list[np.ndarray]:
        if rows is None:
            return self._host.read(at, part)
        data, index = self._indices(rows, part, at, "reads")
        return [data[index + i] for i in range(self._element.entries)]

    def _indices(self, rows: Rows, part: np.ndarray, at: np.ndarray, verb: str):
        start = LOCAL if rows.what == "local" else SHARED
        return rows.indices(at - np.uint64(start), self._dtype, self._element.entries, part, verb)

    def _addresses(self, where: Where) -> tuple[np.ndarray, np.ndarray]:
        """Threads that take part, and the generic address of each."""
        if where is True:
            return self._threads.numbers, self._base + self._offset
        chosen = np.flatnonzero(where)
        return chosen, self._base[chosen] + self._offset

    def _by_space(self, chosen: np.ndarray, addresses: np.ndarray):
        """Threads and addresses of each kind of memory; rows are `None` for that of the host."""
        if not chosen.size:
            return
        spaces = {"local": self._threads.local, "shared": self._threads.shared, "global": None}
        if self._space:
            yield spaces.get(self._space), chosen, addresses
            return
        lowest, highest = int(addresses.min()), int(addresses.max())
        if window(lowest) == window(highest):
            yield spaces[window(lowest)], chosen, addresses
            return
        each = np.array([window(x) for x in addresses.tolist()])
        for name, rows in spaces.items():
            there = each == name
            yield rows, chosen[there], addresses[there]


def _place(at: Operands, space: str, operand: Operand, element: Element) -> Place:
    if not isinstance(operand, Address):
        raise PtxError(f"{operand} is no address")
    base, threads = operand.base, at.threads
    if isinstance(base, Symbol):
        own, _ = at.address(base)
        if space and own != space and {own, space} != {"global", "const"}:
            raise PtxError(f"{base.name} is in {own} memory")
        if not space:
            raise PtxError(f"{base.name} is no generic address")
    return Place(threads, space, at.source(base, "u64"), operand.offset, element)


def _parameter(at: Operands, operand: Operand, element: Element) -> list[np.ndarray]:
    """The elements of a parameter in all threads, which change with it."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol):
        raise PtxError(f"{operand} is no parameter with a known offset")
    rows = at.threads.parameters.get((at.function, operand.base.name))
    if rows is None:
        raise PtxError(f"unknown parameter {operand.base.name}")
    first = operand.offset
    if first < 0 or first + element.nbytes > rows.nbytes:
        raise PtxError(f"{element.nbytes} bytes at {first} of {rows.nbytes} of a parameter")
    if first % element.nbytes:
        raise PtxError(f"{first} is no multiple of {element.nbytes} bytes")
    return rows.columns(first, kind(element.name), element.entries)


def _load(space: str, element: Element) -> Builder:
    def build(at: Operands) -> Step:
        target, source = at.expect(2)
        entries = at.several(target, element.entries)
        writes = [at.extended(x, element.name) for x in entries]
        if space == "param":
            columns = _parameter(at, source, element)
            return lambda where: [f(x, where) for f, x in zip(writes, columns, strict=True)]
        place = _place(at, space, source, element)

        def step(where: Where) -> None:
            for write, value in zip(writes, place.read(where), strict=True):
                write(value, where)

        return step

    return build


def _store(space: str, element: Element) -> Builder:
    def build(at: Operands) -> Step:
        target, source = at.expect(2)
        reads = [at.cut(x, element.name) for x in at.several(source, element.entries)]
        if space == "param":
            return _store_parameter(reads, _parameter(at, target, element))
        place = _place(at, space, target, element)
        return lambda where: place.write([f() for f in reads], where)

    return build


def _store_parameter(reads: list[Callable], columns: list[np.ndarray]) -> Step:
    def step(where: Where) -> None:
        for read, column in zip(reads, columns, strict=True):
            np.copyto(column, read(), where=where)

    return step


def _atomic_add(space: str, name: str) -> Builder:
    """Threads add one after the other, in the order of their numbers."""

    def build(at: Operands) -> Step:
        target, address, operand = at.expect(3)
        if not isinstance(target, Register):
            raise PtxError(f"{target} is no register")
        out, value = at.target(target, name), at.source(operand, name)
        place = _place(at, space, address, Element(name, 1))

        def step(where: Where) -> None:
            for thread in np.flatnonzero(np.broadcast_to(where, value.shape)):
                one = np.zeros(value.shape, np.bool_)
                one[thread] = True
                old = place.read(one)[0]
                place.write([old + value], one)
                np.copyto(out, old, where=one)

        return step

    return build


def _trap(at: Operands) -> Step:
    at.expect(0)

    def step(where: Where) -> None:
        raise ThreadError(int(np.argmax(where)), "stops the launch")

    return step


_ELEMENTS = {
    f"{vector}.{name}": Element(name, entries)
    for vector, entries in (("", 1), (".v2", 2), (".v4", 4))
    for name in _KINDS
}
INSTRUCTIONS = {
    **{
        f"{verb}{space and '.'}{space}{form}": make(space, element)
        for verb, make in (("ld", _load), ("st", _store))
        for space in ("", "param", *_SPACES)
        for form, element in _ELEMENTS.items()
        if (verb, space) != ("st", "const")
    },
    **{f"ld.global.nc{form}": _load("global", x) for form, x in _ELEMENTS.items()},
    **{
        f"atom{space and '.'}{space}.add.{name}": _atomic_add(space, name)
        for space in ("", "global", "shared")
        for name in ("u32", "s32", "u64", "f32", "f64")
    },
    "trap": _trap,
}
