"""Products of dense matrices as loops of vector instructions."""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxdae.kernels.dense import Layout, Product
from jaxdae.kernels.writer import Writer

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


class _Loops(Writer):
    def __init__(self, product: Product, shared: tuple[bool, ...], width: int, dtype):
        super().__init__(width, dtype)
        self._product, self._shared = product, shared
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
        _, inner, columns = self._product.shape
        turn, done = self._label("turn"), self._label("done")
        p, following = self.name(), self.name()
        sums = [[self.name() for _ in range(wide)] for _ in range(high)]
        before, at = self._block, len(self.lines) + 2
        self.line(f"  br label %{turn}")
        self._begin(turn)
        left = [self._read("a", self._plus(row, i), p) for i in range(high)]
        right = [self._read("b", p, self._plus(column, j)) for j in range(wide)]
        new = [
            [self.product_and_sum(a, b, old) for b, old in zip(right, olds, strict=True)]
            for a, olds in zip(left, sums, strict=True)
        ]
        phis = [f"  {p} = phi i64 [ 0, %{before} ], [ {following}, %{turn} ]"]
        for olds, news in zip(sums, new, strict=True):
            for old, one in zip(olds, news, strict=True):
                zero = f"[ zeroinitializer, %{before} ]"
                phis.append(f"  {old} = phi {self.vector} {zero}, [ {one}, %{turn} ]")
        self.lines[at:at] = phis
        self.line(f"  {following} = add i64 {p}, 1")
        more = self.put(f"icmp slt i64 {following}, {inner}")
        self.line(f"  br i1 {more}, label %{turn}, label %{done}")
        self._begin(done)
        for i, news in enumerate(new):
            for j, one in enumerate(news):
                at_ij = self._number(self._plus(row, i), self._plus(column, j), Layout(columns, 1))
                place = self.put(f"getelementptr {self.vector}, ptr %c, i64 {at_ij}")
                self.line(f"  store {self.vector} {one}, ptr {place}")

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
