"""Loops on arrays in memory: products, operations on each entry, rows by index, turns."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.graph.array_calls import Map, MatrixLayout, OntoRow, Product, Row
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Number
from jaxdae.kernels.llvm.writer import ALIGNMENT, Writer
from jaxdae.kernels.tracing.loops import Loop, TableRow
from jaxdae.kernels.tracing.product_parts import OneRow, Rank
from jaxdae.kernels.tracing.subprograms import ConditionalCall

# Products of dense matrices.

# Sums that are kept in registers, at most: rows and columns of the product at a time. Of a vector
# only its entries; all sums wait for the same numbers then.
_BLOCK, _OF_VECTOR = (4, 4), 8
_PARAMETERS = "ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c"


def product_name(product: Product, shared: tuple[bool, ...]) -> str:
    """Name of the function for matrices of which all lanes share none, one, or both."""
    return f"{product.name}_{''.join('s' if x else 'v' for x in shared)}"


def product_function(
    product: Product, shared: tuple[bool, ...], width: int, dtype: Any, register_width: int
) -> Definition:
    """The function `@name(pointer to A, pointer to B, pointer to C)`.

    Factors are numbers that all lanes share, or vectors, of which each entry is a lane's own.
    """
    if product.shape[0] == 1 and product.right.column == 1 and not any(shared):
        w: Writer = _row_times_matrix(product, width, dtype, register_width)
    else:
        w = _ProductWriter(product, shared, width, dtype)
        w.write()
    return w.define(product_name(product, shared), _PARAMETERS, attributes="noinline ")


def product_onto(rank: Rank, width: int, dtype: Any) -> Definition:
    """The function `@name(pointer to A^T, pointer to B, pointer to C)`, `C + A B` for `C`."""
    m, k, n = rank.rows, rank.terms, rank.columns
    product = Product((m, k, n), MatrixLayout(1, m), MatrixLayout(n, 1))
    w = _ProductWriter(product, (False, False), width, dtype, onto=True)
    w.write()
    return w.define(f"{product.name}_onto", _PARAMETERS, attributes="noinline ")


class SummedProduct(NamedTuple):
    """A product of which the sum over the lanes is kept: numbers, and no vectors of lanes.

    Vectors of numbers lie along the rows of the product or along its columns, whichever leaves
    fewer of their entries empty.

    Args:
        rank: the product.
        width: numbers of a vector.
    """

    rank: Rank
    width: int

    @property
    def along_rows(self) -> bool:
        """Whether a vector holds numbers of one row."""
        rows, columns = self.rank.rows, self.rank.columns
        return self._padded(columns) * rows <= self._padded(rows) * columns

    @property
    def apart(self) -> int:
        """Distance of two rows in memory, or of two columns."""
        return self._padded(self.rank.columns if self.along_rows else self.rank.rows)

    @property
    def vectors(self) -> int:
        """How many vectors hold it."""
        lines = self.rank.rows if self.along_rows else self.rank.columns
        return lines * self.apart // self.width

    def _padded(self, size: int) -> int:
        return -(-size // self.width) * self.width

    def function(self, dtype: Any) -> Definition:
        """The function `@name(pointer to A^T, pointer to B, pointer to the sum)`, which adds."""
        w = _SummedProductWriter(self, dtype)
        w.write()
        m, k, n = self.rank.rows, self.rank.terms, self.rank.columns
        return w.define(f"summed_product_{m}_{k}_{n}", _PARAMETERS, attributes="noinline ")


class _SummedProductWriter(Writer):
    def __init__(self, product: SummedProduct, dtype: Any):
        super().__init__(product.width, dtype)
        self._product = product
        rank = product.rank
        self._terms = rank.terms
        # Factors: of the one every entry is repeated, of the other one vectors are read.
        self._single, self._lines = ("%a", rank.rows), ("%b", rank.columns)
        if not product.along_rows:
            self._single, self._lines = self._lines, self._single

    def write(self) -> None:
        """Sums of blocks: lines of the product, each a vector."""
        turned = self._turned()
        lines, apart = self._single[1], self._product.apart
        for first, stop, high in self._blocks(lines, _OF_VECTOR):
            with (
                self.turns(first, stop, high) as blocks,
                self.turns(0, apart, self.width) as vectors,
            ):
                self._sums(blocks.index, high, vectors.index, turned)

    def _blocks(self, size: int, most: int) -> list[tuple[int, int, int]]:
        many = size - size % most
        both = [(0, many, most), (many, size, size - many)]
        return [(first, stop, step) for first, stop, step in both if first < stop]

    def _sums(self, line: str, high: int, at: str, turned: str) -> None:
        lines = [self.put("i64", f"add i64 {line}, {i}") for i in range(high)]
        apart, count = self._product.apart, self._single[1]
        places = []
        for i in lines:
            row = self.put("i64", f"mul i64 {i}, {apart}")
            places.append(self.place(self.scalar, "%c", self.put("i64", f"add i64 {row}, {at}")))
        first = [self.load(self.vector, x) for x in places]
        with self.turns(0, self._terms * self.width) as turns:
            sums = [turns.carried(self.vector, x) for x in first]
            row = self.put("i64", f"mul i64 {turns.index}, {apart}")
            row = self.put("i64", f"add i64 {row}, {at}")
            vector = self.load(self.vector, self.place(self.scalar, turned, row))
            term = self.put("i64", f"sdiv i64 {turns.index}, {self.width}")
            lane = self.put("i64", f"srem i64 {turns.index}, {self.width}")
            for i, old in zip(lines, sums, strict=True):
                number = self.put("i64", f"mul i64 {term}, {count}")
                number = self.put("i64", f"add i64 {number}, {i}")
                place = self.place(self.scalar, self._single[0], _of_lane(self, number, lane))
                one = self.repeated(self.load(self.scalar, place))
                turns.hand_on(old, self.product_and_sum(one, vector, old))
        for place, total in zip(places, sums, strict=True):
            self.store(self.vector, total, place)

    def _turned(self) -> str:
        """The other factor, so that numbers of one lane lie side by side; zero behind them."""
        apart = self._product.apart
        pointer, count = self._lines
        room = self.room(self._terms * apart)
        if count < apart:
            with self.turns(0, self._terms * apart) as every:
                place = self.place(self.vector, room, every.index)
                self.store(self.vector, "zeroinitializer", place)
        with self.turns(0, self._terms) as terms, self.turns(0, count) as entries:
            number = self.put("i64", f"mul i64 {terms.index}, {count}")
            number = self.put("i64", f"add i64 {number}, {entries.index}")
            vector = self.load(self.vector, self.place(self.vector, pointer, number))
            row = self.put("i64", f"mul i64 {terms.index}, {self.width * apart}")
            row = self.put("i64", f"add i64 {row}, {entries.index}")
            for lane in range(self.width):
                index = self.put("i64", f"add i64 {row}, {lane * apart}")
                self.store(
                    self.scalar, self.entry(vector, lane), self.place(self.scalar, room, index)
                )
        return room


class _ProductWriter(Writer):
    def __init__(
        self, product: Product, shared: tuple[bool, ...], width: int, dtype, onto: bool = False
    ):
        super().__init__(width, dtype)
        self._product, self._shared, self._onto = product, shared, onto

    def write(self) -> None:
        """Block by block of the product."""
        rows, _, columns = self._product.shape
        most = (1, _OF_VECTOR) if rows == 1 else (_OF_VECTOR, 1) if columns == 1 else _BLOCK
        for j, wide in self._parts(columns, most[1]):
            with j as column:
                for i, high in self._parts(rows, most[0]):
                    with i as row:
                        self._sums(row, high, column, wide)

    def _parts(self, size: int, most: int):
        """Loops over parts of equal size, and what is left; with the size of the parts."""
        many = size - size % most
        if many:
            yield self._starts(0, many, most), most
        if many < size:
            yield self._starts(many, size, size - many), size - many

    @contextmanager
    def _starts(self, start: int, stop: int, step: int) -> Iterator[str]:
        """A loop; of one turn none."""
        if stop - start == step:
            yield str(start)
            return
        with self.turns(start, stop, step) as turns:
            yield turns.index

    def _sums(self, row: str, high: int, column: str, wide: int) -> None:
        """A block of the product: sums over all of the inner index, from the first to the last."""
        rows = [self._plus(row, i) for i in range(high)]
        columns = [self._plus(column, j) for j in range(wide)]
        first = [[self._first(i, j) for j in columns] for i in rows]
        with self.turns(0, self._product.shape[1]) as turns:
            sums = [[turns.carried(self.vector, x) for x in entries] for entries in first]
            left = [self._read("a", i, turns.index) for i in rows]
            right = [self._read("b", turns.index, j) for j in columns]
            for a, entries in zip(left, sums, strict=True):
                for b, old in zip(right, entries, strict=True):
                    turns.hand_on(old, self.product_and_sum(a, b, old))
        for i, entries in zip(rows, sums, strict=True):
            for j, total in zip(columns, entries, strict=True):
                self.store(self.vector, total, self._place(i, j))

    def _first(self, i: str, j: str) -> str:
        """What a sum begins with."""
        return self.load(self.vector, self._place(i, j)) if self._onto else "zeroinitializer"

    def _place(self, i: str, j: str) -> str:
        """Place of an entry of the product."""
        return self.place(
            self.vector, "%c", self._at(i, j, MatrixLayout(self._product.shape[2], 1))
        )

    def _plus(self, index: str, more: int) -> str:
        return index if more == 0 else self.put("i64", f"add i64 {index}, {more}")

    def _at(self, i: str, j: str, layout: MatrixLayout) -> str:
        row, column = (
            self.put("i64", f"mul i64 {x}, {distance}")
            for x, distance in ((i, layout.row), (j, layout.column))
        )
        return self.put("i64", f"add i64 {row}, {column}")

    def _read(self, factor: str, i: str, j: str) -> str:
        second = factor == "b"
        layout = self._product.right if second else self._product.left
        index = self._at(i, j, layout)
        if not self._shared[second]:
            return self.load(self.vector, self.place(self.vector, f"%{factor}", index))
        return self.repeated(self.load(self.scalar, self.place(self.scalar, f"%{factor}", index)))


# What is done for each entry.


class EntryWriter(Writer):
    """A writer of what is done for each entry of arrays, whose numbers are vectors of lanes.

    A single lane takes as many entries at once as a vector register holds.
    """

    def __init__(self, lanes: int, dtype: Any, register_width: int):
        super().__init__(lanes, dtype)
        self._register_width = register_width
        self._lanes, self._entry, self._index = lanes, self.vector, ""

    def for_each(self, count: Any, each: Callable[[], None]) -> None:
        """Write loops over so many entries: of a single lane over vectors, then over the rest."""
        wide = self._register_width if self._lanes == 1 else 1
        stop: Any = 0
        if wide > 1:
            vectors = self.put("i64", f"sdiv i64 {count}, {wide}")
            stop = self.put("i64", f"mul i64 {vectors}, {wide}")
            self.resize(wide)
            self._loop(0, stop, wide, each)
            self.resize(1)
        self._loop(stop, count, 1, each)

    def _loop(self, start: Any, stop: Any, step: int, each: Callable[[], None]) -> None:
        with self.turns(start, stop, step) as turns:
            self._index = turns.index
            each()

    def read(self, pointer: str, kind: str) -> str:
        """An argument in this turn.

        It is an array of numbers of `every` lane, one of numbers that all lanes have `shared`, or
        `one` number of every lane.
        """
        if kind == "every" or (kind == "shared" and self._lanes == 1):
            return self.load(self.vector, self._place(pointer, self._entry), self.bits // 8)
        if kind == "one" and self._lanes == self.width:
            return self.load(self.vector, pointer, self.bits // 8)
        place = pointer if kind == "one" else self._place(pointer, self.scalar)
        return self.repeated(self.load(self.scalar, place))

    def write_at(self, pointer: str, value: Any) -> None:
        """Store what this turn gives."""
        self.store(self.vector, value, self._place(pointer, self._entry), self.bits // 8)

    def number_at(self, pointer: str, index: Any) -> str:
        """Place of one of several numbers of every lane."""
        return self.place(self._entry, pointer, index)

    def _place(self, pointer: str, kind: str) -> str:
        return self.place(kind, pointer, self._index)


def map_name(one: Map, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"map_{one.operation}_{'_'.join(one.kinds(shared))}"


def map_function(
    one: Map, shared: tuple[bool, ...], width: int, dtype: Any, register_width: int
) -> Definition:
    """The function `@name(pointer to each argument, pointer to the values, how many)`."""
    kinds = one.kinds(shared)
    w = EntryWriter(width, dtype, register_width)

    def entry() -> None:
        registers = (Number(w, w.read(f"%a{i}_", kind)) for i, kind in enumerate(kinds))
        w.write_at("%r_", OPERATIONS[one.operation].vector(*registers))

    w.for_each("%count", entry)
    parameters = "".join(f"ptr noalias %a{i}_, " for i in range(len(kinds)))
    return w.define(
        map_name(one, shared), f"{parameters}ptr noalias %r_, i64 %count", attributes="noinline "
    )


def _row_times_matrix(product: Product, width: int, dtype: Any, register_width: int) -> EntryWriter:
    """The product of a row and a matrix by rows: entries side by side are sums side by side."""
    (_, terms, _), rows = product.shape, product.right.row
    w = EntryWriter(width, dtype, register_width)

    def entry() -> None:
        with w.turns(0, terms) as turns:
            total = turns.carried(w.vector, "zeroinitializer")
            factor = w.number_at("%a", turns.index)
            row = w.number_at("%b", w.put("i64", f"mul i64 {turns.index}, {rows}"))
            following = w.product_and_sum(w.read(factor, "one"), w.read(row, "every"), total)
            turns.hand_on(total, following)
        w.write_at("%c", total)

    w.for_each(product.shape[2], entry)
    return w


# Rows of tables, lane by lane: each has its own.


def row_name(one: Row, shared: tuple[bool, ...]) -> str:
    """Name of the function for a table that all lanes share, or of which each has its own."""
    return f"{one.name}_{'s' if shared[0] else 'v'}"


def row_function(one: Row, shared: tuple[bool, ...], width: int, dtype: Any) -> Definition:
    """The function `@name(pointer to the table, pointer to the number, pointer to the row)`."""
    w = Writer(width, dtype)
    with w.turns(0, width) as lanes:
        first = _first_of_row(w, one.size, lanes.index)
        with w.turns(0, one.size) as entries:
            place = w.put("i64", f"add i64 {first}, {entries.index}")
            place = place if shared[0] else _of_lane(w, place, lanes.index)
            value = w.load(w.scalar, w.place(w.scalar, "%a", place))
            w.store(
                w.scalar, value, w.place(w.scalar, "%c", _of_lane(w, entries.index, lanes.index))
            )
    return w.define(row_name(one, shared), _PARAMETERS, attributes="noinline ")


def onto_row_function(one: OntoRow, width: int, dtype: Any) -> Definition:
    """The function `@name(pointer to the row, pointer to the number, pointer to the table)`."""
    w = Writer(width, dtype)
    with w.turns(0, one.rows * one.size) as every:
        w.store(w.vector, "zeroinitializer", w.place(w.vector, "%c", every.index))
    _add_to_row(w, one.size)
    return w.define(one.name, _PARAMETERS, attributes="noinline ")


def row_onto(one: OneRow, width: int, dtype: Any) -> Definition:
    """The same that adds the row to those of a table."""
    w = Writer(width, dtype)
    _add_to_row(w, one.size)
    return w.define(f"row_onto_{one.size}", _PARAMETERS, attributes="noinline ")


def row_onto_sum(one: OneRow, width: int, dtype: Any) -> Definition:
    """The same, onto a table of the sums over all lanes."""
    w = Writer(width, dtype)
    _add_to_row(w, one.size, summed=True)
    return w.define(f"row_onto_sum_{one.size}", _PARAMETERS, attributes="noinline ")


def _add_to_row(w: Writer, size: int, summed: bool = False) -> None:
    with w.turns(0, w.width) as lanes:
        first = _first_of_row(w, size, lanes.index)
        with w.turns(0, size) as entries:
            place = w.put("i64", f"add i64 {first}, {entries.index}")
            given = w.place(w.scalar, "%a", _of_lane(w, entries.index, lanes.index))
            number = place if summed else _of_lane(w, place, lanes.index)
            target = w.place(w.scalar, "%c", number)
            more, old = (Number(w, w.load(w.scalar, x), w.scalar) for x in (given, target))
            w.store(w.scalar, old + more, target)


def _first_of_row(w: Writer, size: int, lane: str) -> str:
    """Number of the first entry of the row of a lane."""
    number = w.load(w.scalar, w.place(w.scalar, "%b", lane))
    return w.put("i64", f"mul i64 {w.put('i64', f'fptosi {w.scalar} {number} to i64')}, {size}")


def _of_lane(w: Writer, entry: str, lane: str) -> str:
    """Number of what a lane has of an entry."""
    first = w.put("i64", f"mul i64 {entry}, {w.width}")
    return w.put("i64", f"add i64 {first}, {lane}")


# Turns of one program.


def loop_name(loop: Loop, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"{loop.name}_{''.join('s' if x else 'v' for x in shared)}"


def places_of(row: TableRow) -> Definition:
    """Numbers of a row in each turn, as a constant."""
    text = ", ".join(f"i64 {x}" for x in row.places)
    name = f"@places_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    content = f"{name} = internal unnamed_addr constant [{len(row.places)} x i64] [{text}]"
    return Definition(name, f"{content}, align {ALIGNMENT}")


def loop_function(
    loop: Loop, shared: tuple[bool, ...], turn: str, width: int, dtype: Any
) -> Definition:
    """The function `@name(pointer of each argument, pointer of each result)`.

    That of one `turn` takes constants as they are given here, and everything else as vectors.
    """
    w = _LoopWriter(loop, shared, width, dtype)
    w.write(turn)
    inputs = [f"ptr noalias %a{i}_" for i in range(len(shared))]
    outputs = [f"ptr noalias %r{i}_" for i in range(len(loop.results))]
    return w.define(loop_name(loop, shared), ", ".join([*inputs, *outputs]), attributes="noinline ")


class _LoopWriter(Writer):
    def __init__(self, loop: Loop, shared: tuple[bool, ...], width: int, dtype: Any):
        super().__init__(width, dtype)
        self._loop, self._shared = loop, shared
        program = loop.turn.program
        self._inputs = [int(np.prod(x.shape)) for x in program.inputs]
        self._outputs = [int(np.prod(x.shape)) for x in program.results]

    def write(self, turn: str) -> None:
        """Turn after turn: what is handed on is copied from the results of the last one."""
        loop, first, tables = self._loop, self._loop.constants, self._loop.tables
        # Numbers of the first argument that is a table, of its place among results, and of the
        # first row of a table among results of a turn.
        rows, every = first + loop.handed, len(self._shared) - len(tables.arrays)
        results, last = len(loop.results) - len(tables.arrays), len(self._outputs)
        last -= len(tables.replaced)
        old = [self.room(x) for x in self._inputs[first:rows]]
        new = [self.room(x) for x in self._outputs[: loop.handed]]
        for i, room in enumerate(old):
            self.copy_vectors(f"%a{first + i}_", room, self._inputs[first + i])
        memory = [f"%r{results + i}_" for i in range(len(tables.arrays))]
        for i, (target, x) in enumerate(zip(memory, tables.arrays, strict=True)):
            self._copy_table(every + i, target, int(np.prod(x.shape)))
        replaced = [self.room(x) for x in self._outputs[last:]]
        with self._rows(old) as at:
            pointers = [
                *(f"%a{i}_" for i in range(first)),
                *old,
                *(self._row_of_argument(i, at) for i in range(rows, every)),
                *(self._row_of_table(memory, x, at) for x in tables.read),
                *new,
                *(self._row_of_result(i, at) for i in range(loop.handed, last)),
                *replaced,
            ]
            self.invoke("void", turn, *(f"ptr {x}" for x in pointers))
            for source, target, size in zip(new, old, self._outputs, strict=False):
                self.copy_vectors(source, target, size)
            for source, row, size in zip(
                replaced, tables.replaced, self._outputs[last:], strict=True
            ):
                self.copy_vectors(source, self._row_of_table(memory, row, at), size)
        for i, room in enumerate(old):
            self.copy_vectors(room, f"%r{i}_", self._outputs[i])

    def _copy_table(self, argument: int, target: str, size: int) -> None:
        source = f"%a{argument}_"
        if not self._shared[argument]:
            self.copy_vectors(source, target, size)
            return
        with self.turns(0, size) as turns:
            value = self.load(self.scalar, self.place(self.scalar, source, turns.index))
            self.store(
                self.vector, self.repeated(value), self.place(self.vector, target, turns.index)
            )

    def _row_of_table(self, memory: list[str], row: TableRow, at: str) -> str:
        """A row of a table, of which the number is known in each turn."""
        index = self.load("i64", self.place("i64", places_of(row).name, at))
        size = int(np.prod(self._loop.tables.arrays[row.table].shape[1:]))
        return self._row(self.vector, memory[row.table], index, size)

    @contextmanager
    def _rows(self, handed: list[str]) -> Iterator[str]:
        """Turns of the loop: numbers of their rows; one that is open-ended has none."""
        length = self._loop.length
        if length is None:
            with self.while_(lambda: self._wanted(handed[-1])):
                yield ""
            return
        with self.turns(0, length) as turns:
            reverse = self._loop.reverse
            yield (
                self.put("i64", f"sub i64 {length - 1}, {turns.index}") if reverse else turns.index
            )

    def _wanted(self, place: str) -> Condition:
        """Whether a number is not zero in any lane."""
        return Number(self, self.load(self.vector, place)).differs(0.0).anywhere()

    def _row(self, kind: str, pointer: str, at: str, size: int) -> str:
        return self.place(kind, pointer, self.put("i64", f"mul i64 {at}, {size}"))

    def _row_of_result(self, i: int, at: str) -> str:
        return self._row(self.vector, f"%r{i}_", at, self._outputs[i])

    def _row_of_argument(self, i: int, at: str) -> str:
        """Numbers that all lanes share become vectors."""
        size, pointer = self._inputs[i], f"%a{i}_"
        if not self._shared[i]:
            return self._row(self.vector, pointer, at, size)
        source, room = self._row(self.scalar, pointer, at, size), self.room(size)
        for j in range(size):
            value = self.repeated(self.load(self.scalar, self.place(self.scalar, source, j)))
            self.store(self.vector, value, self.place(self.vector, room, j))
        return room


# Programs that are not wanted at each call.


def conditional_function(one: ConditionalCall, width: int, dtype: Any) -> Definition:
    """The function `@name(pointer to the condition, to each argument, to each result)`.

    The condition is a number of each lane that is not zero where the lane wants the program.
    """
    w = Writer(width, dtype)
    program = one.program
    inputs = [f"%a{i}_" for i in range(len(program.program.inputs))]
    outputs = [(f"%r{i}_", x.size) for i, x in enumerate(program.results)]
    wanted = Number(w, w.load(w.vector, "%wanted")).differs(0.0)
    others = list(zip(outputs, one.otherwise, strict=True))
    with w.if_else(wanted.anywhere()) as (then, otherwise):
        with then:
            w.invoke(
                "void", program.name, *(f"ptr {x}" for x in (*inputs, *(x for x, _ in outputs)))
            )
            with w.if_then((~wanted).anywhere()):
                for (result, size), number in others:
                    with w.turns(0, size) as turns:
                        place = w.place(w.vector, result, turns.index)
                        other = _otherwise(w, number, turns.index)
                        value = Number(w, w.load(w.vector, place))
                        w.store(w.vector, wanted.choose(value, other), place)
        with otherwise:
            for (result, size), number in others:
                with w.turns(0, size) as turns:
                    other = _otherwise(w, number, turns.index)
                    w.store(w.vector, other, w.place(w.vector, result, turns.index))
    parameters = ["%wanted", *inputs, *(x for x, _ in outputs)]
    text = ", ".join(f"ptr noalias {x}" for x in parameters)
    return w.define(one.name, text, attributes="noinline ")


def _otherwise(w: Writer, number: int | None, index: str) -> Number:
    """What a result is in a lane that does not want it."""
    if number is None:
        return Number(w, w.number(0.0))
    return Number(w, w.load(w.vector, w.place(w.vector, f"%a{number}_", index)))
