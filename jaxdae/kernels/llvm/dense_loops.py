"""Products of dense matrices as loops of vector instructions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from jaxdae.kernels.graph.dense_products import Layout, Product
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.product_parts import Rank

# Sums that are kept in registers, at most: rows and columns of the product at a time. Of a vector
# only its entries; all sums wait for the same numbers then.
_BLOCK, _OF_VECTOR = (4, 4), 8


def product_name(product: Product, shared: tuple[bool, ...]) -> str:
    """Name of the function for matrices of which all lanes share none, one, or both."""
    return f"{product.name}_{''.join('s' if x else 'v' for x in shared)}"


def product_text(product: Product, shared: tuple[bool, ...], width: int, dtype) -> str:
    """The function `@name(pointer to A, pointer to B, pointer to C)`.

    Args:
        product: shapes and layouts.
        shared: for each factor, whether it is numbers that all lanes share, and not vectors.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Its definition.
    """
    w = _Loops(product, shared, width, dtype)
    w.write()
    head = f"define internal void @{product_name(product, shared)}"
    given = "(ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c) noinline {"
    return "\n".join([*sorted(w.declared), head + given, "entry:", *w.lines, "  ret void", "}"])


def product_onto(rank: Rank, width: int, dtype) -> tuple[str, str]:
    """Name and text of `@name(pointer to A^T, pointer to B, pointer to C)`, `C + A B` for `C`.

    Args:
        rank: shapes.
        width: entries of a vector.
        dtype: float64 or float32.
    """
    m, k, n = rank.rows, rank.terms, rank.columns
    product = Product((m, k, n), Layout(1, m), Layout(n, 1))
    w = _Loops(product, (False, False), width, dtype, onto=True)
    w.write()
    name = f"{product.name}_onto"
    given = "(ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %c) noinline {"
    head = f"define internal void @{name}{given}\nentry:"
    return name, "\n".join([*sorted(w.declared), head, *w.lines, "  ret void", "}"])


def padded(size: int, wide: int) -> int:
    """An integer of vectors that hold so many numbers, in numbers."""
    return -(-size // wide) * wide


class Total(NamedTuple):
    """A sum of products over all lanes, in rows that are whole vectors.

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


def total_text(total: Total, dtype) -> str:
    """The function `@name(pointer to A^T, pointer to B, room, pointer to C)`.

    It adds to the numbers `C` the products `A B` of all lanes. `B` is written into the room with
    lanes for rows; then `C` is a product of long matrices of numbers.

    Args:
        total: shapes.
        dtype: float64 or float32.
    """
    w = _Sums(total, dtype)
    w.write()
    given = "(ptr noalias %a, ptr noalias %given, ptr noalias %b, ptr noalias %c)"
    head = f"define internal void @{total.name}{given} noinline {{\nentry:"
    return "\n".join([*sorted(w.declared), head, *w.lines, "  ret void", "}"])


class _Loops(Writer):
    def __init__(
        self, product: Product, shared: tuple[bool, ...], width: int, dtype, onto: bool = False
    ):
        super().__init__(width, dtype)
        self._product, self._shared, self._onto = product, shared, onto
        self._labels = 0
        self._block = "entry"

    def write(self) -> None:
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
            yield self._turns(0, many, most), most
        if many < size:
            yield self._turns(many, size, size - many), size - many

    @contextmanager
    def _turns(self, start: int, stop: int, step: int) -> Iterator[str]:
        """A loop; of one turn none."""
        if stop - start == step:
            yield str(start)
            return
        turn, done = self._label("turn"), self._label("done")
        index, following = self.name(), self.name()
        before = self._block
        self.line(f"  br label %{turn}")
        self._begin(turn)
        at = len(self.lines)
        yield index
        # Known only now: the block that the loop's body ends with.
        self.lines.insert(
            at, f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{self._block} ]"
        )
        self.line(f"  {following} = add i64 {index}, {step}")
        more = self.put(f"icmp slt i64 {following}, {stop}")
        self.line(f"  br i1 {more}, label %{turn}, label %{done}")
        self._begin(done)

    def _label(self, name: str) -> str:
        self._labels += 1
        return f"{name}{self._labels}"

    def _begin(self, label: str) -> None:
        self.line(f"{label}:")
        self._block = label

    def _sums(self, row: str, high: int, column: str, wide: int) -> None:
        """A block of the product: sums over all of the inner index, from the first to the last."""
        inner = self._product.shape[1]
        turn, done = self._label("turn"), self._label("done")
        p, following = self.name(), self.name()
        sums = [[self.name() for _ in range(wide)] for _ in range(high)]
        places = [
            [(self._plus(row, i), self._plus(column, j)) for j in range(wide)] for i in range(high)
        ]
        first = [[self._first(*at) for at in own] for own in places]
        before, at = self._block, len(self.lines) + 2
        self.line(f"  br label %{turn}")
        self._begin(turn)
        left = [self._read("a", own[0][0], p) for own in places]
        right = [self._read("b", p, at[1]) for at in places[0]]
        new = [
            [self.product_and_sum(a, b, old) for b, old in zip(right, olds, strict=True)]
            for a, olds in zip(left, sums, strict=True)
        ]
        phis = [f"  {p} = phi i64 [ 0, %{before} ], [ {following}, %{turn} ]"]
        for olds, news, firsts in zip(sums, new, first, strict=True):
            for old, one, start in zip(olds, news, firsts, strict=True):
                phis.append(
                    f"  {old} = phi {self.vector} [ {start}, %{before} ], [ {one}, %{turn} ]"
                )
        self.lines[at:at] = phis
        self.line(f"  {following} = add i64 {p}, 1")
        more = self.put(f"icmp slt i64 {following}, {inner}")
        self.line(f"  br i1 {more}, label %{turn}, label %{done}")
        self._begin(done)
        for news, own in zip(new, places, strict=True):
            for one, where in zip(news, own, strict=True):
                self.line(f"  store {self.vector} {one}, ptr {self._place(*where)}")

    def _first(self, i: str, j: str) -> str:
        """What a sum begins with."""
        if not self._onto:
            return "zeroinitializer"
        return self.put(f"load {self.vector}, ptr {self._place(i, j)}")

    def _place(self, i: str, j: str) -> str:
        """Place of an entry of the product."""
        number = self._number(i, j, Layout(self._product.shape[2], 1))
        return self.put(f"getelementptr {self.vector}, ptr %c, i64 {number}")

    def _plus(self, index: str, more: int) -> str:
        return index if more == 0 else self.put(f"add i64 {index}, {more}")

    def _number(self, i: str, j: str, layout: Layout) -> str:
        row = self.put(f"mul i64 {i}, {layout.row}")
        return self.put(f"add i64 {row}, {self.put(f'mul i64 {j}, {layout.column}')}")

    def _read(self, factor: str, i: str, j: str) -> str:
        second = factor == "b"
        layout = self._product.right if second else self._product.left
        number = self._number(i, j, layout)
        if not self._shared[second]:
            place = self.put(f"getelementptr {self.vector}, ptr %{factor}, i64 {number}")
            return self.put(f"load {self.vector}, ptr {place}")
        place = self.put(f"getelementptr {self.scalar}, ptr %{factor}, i64 {number}")
        return self.repeated(self.put(f"load {self.scalar}, ptr {place}"))


class _Sums(_Loops):
    """Products of all lanes, of which each is one more term: vectors are along the columns."""

    def __init__(self, total: Total, dtype):
        self._total = total
        rows, terms, columns = total.rank.rows, total.rank.terms, total.rank.columns
        self._columns = padded(columns, total.wide) // total.wide
        shape = (rows, terms * total.lanes, self._columns)
        product = Product(shape, Layout(1, rows), Layout(self._columns, 1))
        super().__init__(product, (True, False), total.wide, dtype, onto=True)

    def write(self) -> None:
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
                        given = self._number(p, j, Layout(rank.columns, 1))
                        place = self.put(f"getelementptr {kind}, ptr %given, i64 {given}")
                        entries = self.put(f"load {kind}, ptr {place}")
                        first = self._number(p, j, Layout(lanes * wide, 1))
                        for lane in range(lanes):
                            one = self.put(f"extractelement {kind} {entries}, i32 {lane}")
                            number = self._plus(first, lane * wide)
                            place = self.put(f"getelementptr {self.scalar}, ptr %b, i64 {number}")
                            self.line(f"  store {self.scalar} {one}, ptr {place}")

    def _read(self, factor: str, i: str, j: str) -> str:
        if factor == "b":
            return super()._read(factor, i, j)
        # Number `(term rows + i) lanes + lane`, for term and lane in one.
        rows, lanes = self._product.shape[0], self._total.lanes
        term = self.put(f"udiv i64 {j}, {lanes}")
        before = self.put(f"mul i64 {term}, {(rows - 1) * lanes}")
        own = self.put(f"mul i64 {i}, {lanes}")
        number = self.put(f"add i64 {self.put(f'add i64 {before}, {own}')}, {j}")
        place = self.put(f"getelementptr {self.scalar}, ptr %a, i64 {number}")
        return self.repeated(self.put(f"load {self.scalar}, ptr {place}"))
