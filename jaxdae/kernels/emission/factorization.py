"""Factors of the inverses of dense matrices, by loops on arrays in memory."""

from typing import Any

from jaxdae.kernels.emission.loops import EntryWriter
from jaxdae.kernels.graph.array_calls import Factorization
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer, Number


def factorization_function(
    one: Factorization, width: int, dtype: Any, register_width: int
) -> Definition:
    """The function `@name(pointers to the parts of A, pointer to F^T, pointer to G^T)`."""
    w = _FactorsWriter(one, width, dtype, register_width)
    w.write()
    parts = "".join(f"ptr noalias %a{i}_, " for i in range(one.parts))
    return w.define(one.name, f"{parts}ptr noalias %r0_, ptr noalias %r1_", attributes="noinline ")


class _FactorsWriter(EntryWriter):
    """`P A = L U` with the largest entry of a column as its pivot; then `L^-1 P` and `U^-1`.

    Beside each part of the matrix stands the identity, which becomes `L^-1 P` as rows are
    eliminated; `U^-1` is made from its last row on. Of a complex pivot the sum of the sizes of its
    parts is what is compared.
    """

    def __init__(self, one: Factorization, width: int, dtype: Any, register_width: int):
        super().__init__(width, dtype, register_width)
        self._n, self._parts = one.size, range(one.parts)
        self._tables = [self.room(2 * one.size**2) for _ in self._parts]
        self._upper = [self.room(one.size**2) for _ in self._parts]
        self._inverses = [self.room(one.size) for _ in self._parts]
        self._factor = [self.room(1) for _ in self._parts]

    def write(self) -> None:
        """All of it."""
        n = self._n
        with self.turns(0, n) as rows:
            self._begin(rows.index)
        with self.turns(0, n) as columns:
            k = columns.index
            following = self._sum(k, 1)
            self._exchange(k, following, self._largest(k, following))
            inverse = self._inverted(self._numbers(self._entries(k, k)))
            self._keep(inverse, self._places(self._inverses, k))
            with self.turns(following, n) as rows:
                self._eliminate(k, following, rows.index)
        with self.turns(0, n) as turns:
            self._invert(self._difference(n - 1, turns.index))
        self._transpose("%r0_", self._entries(0, n), 2 * n)
        self._transpose("%r1_", self._upper, n)

    def _begin(self, row: str) -> None:
        """A row of the matrix, and beside it one of the identity; one of zeros for `U^-1`."""
        first = self.put("i64", f"mul i64 {row}, {self._n}")
        sources = self._places([f"%a{p}_" for p in self._parts], first)
        targets, beside = self._entries(row, 0), self._entries(row, self._n)
        upper = self._places(self._upper, first)

        def entry() -> None:
            for p in self._parts:
                self.write_at(targets[p], self.read(sources[p], "every"))
                self.write_at(beside[p], "zeroinitializer")
                self.write_at(upper[p], "zeroinitializer")

        self.for_each(self._n, entry)
        for row_of in (self._entries(row, self._sum(row, self._n)), self._uppers(row, row)):
            self.store(self.vector, self.number(1.0), row_of[0])

    def _largest(self, k: str, following: str) -> Number:
        """Number of the row with the largest entry of a column, from its diagonal on."""
        size, diagonal = self._size(self._numbers(self._entries(k, k))), self._as_number(k)
        with self.turns(following, self._n) as rows:
            best = Number(self, rows.carried(self.vector, size))
            chosen = Number(self, rows.carried(self.vector, diagonal))
            here = self._size(self._numbers(self._entries(rows.index, k)))
            larger = best < here
            rows.hand_on(best.name, larger.choose(here, best))
            rows.hand_on(chosen.name, larger.choose(self._as_number(rows.index), chosen))
        return chosen

    def _exchange(self, k: str, following: str, chosen: Number) -> None:
        """Exchange a row with the chosen one, from the diagonal on, where that is another."""
        with self.turns(following, self._n) as rows:
            here = chosen.equals(self._as_number(rows.index))
            with self.if_then(here.anywhere()):
                firsts, seconds = self._entries(k, k), self._entries(rows.index, k)

                def entry() -> None:
                    for first, second in zip(firsts, seconds, strict=True):
                        a, b = (Number(self, self.read(x, "every")) for x in (first, second))
                        # Of a single lane it holds, as it does anywhere.
                        single = self._lanes == 1
                        self.write_at(first, b if single else here.choose(b, a))
                        self.write_at(second, a if single else here.choose(a, b))

                self.for_each(self._difference(2 * self._n, k), entry)

    def _eliminate(self, k: str, following: str, row: str) -> None:
        """Take a multiple of a row from a row below, so that this has a zero in a column."""
        inverse = self._numbers(self._places(self._inverses, k))
        self._keep(self._product(self._numbers(self._entries(row, k)), inverse), self._factor)
        targets, rows = self._entries(row, following), self._entries(k, following)
        self._subtract(targets, self._factor, rows, self._difference(2 * self._n, following))

    def _invert(self, k: str) -> None:
        """A row of `U^-1`, by those below it."""
        with self.turns(self._sum(k, 1), self._n) as columns:
            j = columns.index
            left = self._difference(self._n, j)
            self._subtract(self._uppers(k, j), self._entries(k, j), self._uppers(j, j), left)
        row, inverse = self._uppers(k, k), self._places(self._inverses, k)

        def entry() -> None:
            numbers, factors = (
                [Number(self, self.read(x, kind)) for x in places]
                for places, kind in ((row, "every"), (inverse, "one"))
            )
            for place, number in zip(row, self._product(numbers, factors), strict=True):
                self.write_at(place, number)

        self.for_each(self._difference(self._n, k), entry)

    def _transpose(self, target: str, sources: list[str], stride: int) -> None:
        """Write the transpose of a real matrix, or of `[[A, -B], [B, A]]`."""
        n, size = self._n, len(self._parts) * self._n
        with self.turns(0, n) as rows, self.turns(0, n) as columns:
            i, j = rows.index, columns.index
            numbers = self._numbers([self._at(x, stride, i, j) for x in sources])
            self.store(self.vector, numbers[0], self._at(target, size, j, i))
            if len(numbers) == 2:
                there, below = self._sum(i, n), self._sum(j, n)
                self.store(self.vector, numbers[0], self._at(target, size, below, there))
                self.store(self.vector, numbers[1], self._at(target, size, j, there))
                self.store(self.vector, -numbers[1], self._at(target, size, below, i))

    # Numbers of real and of complex matrices.

    def _subtract(self, targets: list[str], factors: list[str], rows: list[str], count: str):
        """Take a multiple of a row from another, of so many entries."""

        def entry() -> None:
            (*a,), (*b,), (*f,) = (
                [Number(self, self.read(x, kind)) for x in places]
                for places, kind in ((targets, "every"), (rows, "every"), (factors, "one"))
            )
            real = (-f[0]).joined(b[0], a[0])
            if len(self._parts) == 1:
                self.write_at(targets[0], real)
                return
            imaginary = (-f[0]).joined(b[1], a[1])
            self.write_at(targets[0], f[1].joined(b[1], real))
            self.write_at(targets[1], (-f[1]).joined(b[0], imaginary))

        self.for_each(count, entry)

    def _product(self, a: list[Number], b: list[Number]) -> list[Number]:
        if len(self._parts) == 1:
            return [a[0] * b[0]]
        return [(-a[1]).joined(b[1], a[0] * b[0]), a[1].joined(b[0], a[0] * b[1])]

    def _inverted(self, a: list[Number]) -> list[Number]:
        if len(self._parts) == 1:
            return [1.0 / a[0]]
        scale = 1.0 / a[1].joined(a[1], a[0] * a[0])
        return [a[0] * scale, -(a[1] * scale)]

    def _size(self, a: list[Number]) -> Number:
        return abs(a[0]) if len(self._parts) == 1 else abs(a[0]) + abs(a[1])

    # Places.

    def _entries(self, row: Any, column: Any) -> list[str]:
        """Of the parts of an entry of the matrix, and of what stands beside it."""
        return [self._at(x, 2 * self._n, row, column) for x in self._tables]

    def _uppers(self, row: Any, column: Any) -> list[str]:
        """Of the parts of an entry of `U^-1`."""
        return [self._at(x, self._n, row, column) for x in self._upper]

    def _places(self, pointers: list[str], index: str) -> list[str]:
        return [self.number_at(x, index) for x in pointers]

    def _at(self, pointer: str, stride: int, row: Any, column: Any) -> str:
        first = self.put("i64", f"mul i64 {row}, {stride}")
        return self.number_at(pointer, self._sum(first, column))

    def _numbers(self, places: list[str]) -> list[Number]:
        return [Number(self, self.load(self.vector, x)) for x in places]

    def _keep(self, numbers: list[Number], places: list[str]) -> None:
        for number, place in zip(numbers, places, strict=True):
            self.store(self.vector, number, place)

    def _as_number(self, index: str) -> Number:
        return Number(self, self.repeated(Integer(self, index).as_number()))

    def _sum(self, a: Any, b: Any) -> str:
        return self.put("i64", f"add i64 {a}, {b}")

    def _difference(self, a: Any, b: Any) -> str:
        return self.put("i64", f"sub i64 {a}, {b}")
