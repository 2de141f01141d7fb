"""Products of dense matrices as loops of vector instructions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from jaxdae.kernels.graph.dense_products import Layout, Product
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.product_parts import Rank

# Sums that are kept in registers, at most: rows and columns of the product at a time. Of a vector
# only its entries; all sums wait for the same numbers then.
_BLOCK, _OF_VECTOR = (4, 4), 8
_PARAMETERS = "ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c"


def product_name(product: Product, shared: tuple[bool, ...]) -> str:
    """Name of the function for matrices of which all lanes share none, one, or both."""
    return f"{product.name}_{''.join('s' if x else 'v' for x in shared)}"


def product_function(
    product: Product, shared: tuple[bool, ...], width: int, dtype: Any
) -> Definition:
    """The function `@name(pointer to A, pointer to B, pointer to C)`.

    Args:
        product: shapes and layouts.
        shared: for each factor, whether it is numbers that all lanes share, and not vectors.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Its definition.
    """
    w = _ProductWriter(product, shared, width, dtype)
    w.write()
    return w.define(product_name(product, shared), _PARAMETERS, attributes="noinline ")


def product_onto(rank: Rank, width: int, dtype: Any) -> Definition:
    """The function `@name(pointer to A^T, pointer to B, pointer to C)`, `C + A B` for `C`.

    Args:
        rank: shapes.
        width: entries of a vector.
        dtype: float64 or float32.
    """
    m, k, n = rank.rows, rank.terms, rank.columns
    product = Product((m, k, n), Layout(1, m), Layout(n, 1))
    w = _ProductWriter(product, (False, False), width, dtype, onto=True)
    w.write()
    return w.define(f"{product.name}_onto", _PARAMETERS, attributes="noinline ")


def padded(size: int, wide: int) -> int:
    """An integer of vectors that hold so many numbers, in numbers."""
    return -(-size // wide) * wide


class Total(NamedTuple):
    """A sum of products over all lanes, in rows of full vectors.

    Args:
        rank: shapes.
        lanes: their number.
        wide: numbers of a vector register.
    """

    rank: Rank
    lanes: int
    wide: int

    @property
    def name(self) -> str:
        """Of its function."""
        return f"total_{self.rank.rows}_{self.rank.terms}_{self.rank.columns}"

    @property
    def size(self) -> int:
        """Numbers of the sum."""
        return self.rank.rows * padded(self.rank.columns, self.wide)

    @property
    def turned(self) -> int:
        """Numbers of the right factor, lane by lane."""
        return self.rank.terms * self.lanes * padded(self.rank.columns, self.wide)


def total_function(total: Total, dtype: Any) -> Definition:
    """The function `@name(pointer to A^T, pointer to B, room, pointer to C)`.

    It adds to the numbers `C` the products `A B` of all lanes. `B` is written into the room with
    lanes for rows; then `C` is a product of long matrices of numbers.

    Args:
        total: shapes.
        dtype: float64 or float32.
    """
    w = _TotalWriter(total, dtype)
    w.write()
    parameters = "ptr noalias %a, ptr noalias %right, ptr noalias %b, ptr noalias %c"
    return w.define(total.name, parameters, attributes="noinline ")


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
        return self.place(self.vector, "%c", self._at(i, j, Layout(self._product.shape[2], 1)))

    def _plus(self, index: str, more: int) -> str:
        return index if more == 0 else self.put("i64", f"add i64 {index}, {more}")

    def _at(self, i: str, j: str, layout: Layout) -> str:
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


class _TotalWriter(_ProductWriter):
    """Products of all lanes, of which each is one more term: vectors are along the columns."""

    def __init__(self, total: Total, dtype):
        self._total = total
        rows, terms, columns = total.rank.rows, total.rank.terms, total.rank.columns
        self._columns = padded(columns, total.wide) // total.wide
        shape = (rows, terms * total.lanes, self._columns)
        product = Product(shape, Layout(1, rows), Layout(self._columns, 1))
        super().__init__(product, (True, False), total.wide, dtype, onto=True)

    def write(self) -> None:
        """First the right factor, lane by lane, then the product."""
        self._turn()
        super().write()

    def _turn(self) -> None:
        """Write the right factor into its room."""
        rank, lanes, wide = self._total.rank, self._total.lanes, self._columns * self.width
        kind = f"<{lanes} x {self.scalar}>"
        for rows, _ in self._parts(rank.terms, 1):
            with rows as p:
                for columns, _ in self._parts(rank.columns, 1):
                    with columns as j:
                        source = self._at(p, j, Layout(rank.columns, 1))
                        entries = self.load(kind, self.place(kind, "%right", source))
                        first = self._at(p, j, Layout(lanes * wide, 1))
                        for lane in range(lanes):
                            entry = f"extractelement {kind} {entries}, i32 {lane}"
                            target = self.place(self.scalar, "%b", self._plus(first, lane * wide))
                            self.store(self.scalar, self.put(self.scalar, entry), target)

    def _read(self, factor: str, i: str, j: str) -> str:
        if factor == "b":
            return super()._read(factor, i, j)
        # Number `(term rows + i) lanes + lane`, for term and lane in one.
        rows, lanes = self._product.shape[0], self._total.lanes
        term = self.put("i64", f"udiv i64 {j}, {lanes}")
        before = self.put("i64", f"mul i64 {term}, {(rows - 1) * lanes}")
        row = self.put("i64", f"mul i64 {i}, {lanes}")
        start = self.put("i64", f"add i64 {before}, {row}")
        place = self.place(self.scalar, "%a", self.put("i64", f"add i64 {start}, {j}"))
        return self.repeated(self.load(self.scalar, place))
