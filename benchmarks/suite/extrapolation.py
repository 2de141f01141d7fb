"""References computed anew: equations in minimal coordinates, extrapolation, exact derivatives.

Nothing is common to this and `taylor.py` but the numbers of MPFR: `reduced.py` has the equations,
the method is Gragg's midpoint rule with extrapolation to step zero (E. Hairer, S. Norsett, G.
Wanner, Solving Ordinary Differential Equations I, II.9), and derivatives are carried by numbers
that have a gradient and a matrix of second derivatives.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .mechanism import Mechanism, named
from .reduced import REDUCED
from .taylor import gmpy2, Jet, mpfr

COLUMNS = 14  # of the extrapolation: order 28
STEP = mpfr("0.025")


class Dual:
    """A number with its gradient and the lower triangle of its second derivatives."""

    __slots__ = ("first", "second", "value")

    def __init__(self, value: Any, first: Sequence[Any], second: Sequence[Any]):
        self.value, self.first, self.second = value, first, second

    def through(self, value: Any, slope: Any, curve: Any) -> "Dual":
        """A function of it, by the function's value and derivatives."""
        d, pairs = self.first, _pairs(len(self.first))
        second = [
            slope * x + curve * d[i] * d[j] for x, (i, j) in zip(self.second, pairs, strict=True)
        ]
        return Dual(value, [slope * x for x in d], second)

    def __add__(self, other):
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.first, self.second)
        add = lambda a, b: [x + y for x, y in zip(a, b, strict=True)]  # noqa: E731
        return Dual(
            self.value + other.value, add(self.first, other.first), add(self.second, other.second)
        )

    def __mul__(self, other):
        if not isinstance(other, Dual):
            return self.through(self.value * other, other, 0)
        a, b = self.value, other.value
        d, e = self.first, other.first
        first = [a * y + b * x for x, y in zip(d, e, strict=True)]
        parts = zip(self.second, other.second, _pairs(len(d)), strict=True)
        second = [a * y + b * x + d[i] * e[j] + d[j] * e[i] for x, y, (i, j) in parts]
        return Dual(a * b, first, second)

    def inverse(self) -> "Dual":
        """One divided by it."""
        x = 1 / self.value
        return self.through(x, -(x**2), 2 * x**3)

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    def __truediv__(self, other):
        return self * (other.inverse() if isinstance(other, Dual) else 1 / mpfr(other))

    def __rtruediv__(self, other):
        return self.inverse() * other

    def __pow__(self, exponent: int):
        return self if exponent == 1 else self * self ** (exponent - 1)

    __radd__, __rmul__ = __add__, __mul__


class _Functions:
    """The argument `m` of declarations, for these numbers."""

    def sin(self, x):
        s, c = gmpy2.sin_cos(x.value)
        return x.through(s, c, -s)

    def cos(self, x):
        s, c = gmpy2.sin_cos(x.value)
        return x.through(c, -s, -c)

    def sqrt(self, x):
        root = gmpy2.sqrt(x.value)
        return x.through(root, 1 / (2 * root), -1 / (4 * root**3))

    def atan(self, x):
        slope = 1 / (1 + x.value**2)
        return x.through(gmpy2.atan(x.value), slope, -2 * x.value * slope**2)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(count) for j in range(i + 1)]


def again(mechanism: Mechanism, times: Sequence[Any], step: Any = STEP) -> Jet:
    """Coordinates and velocities of a mechanism at times, with derivatives.

    Args:
        mechanism: one of `reduced.REDUCED`.
        times: from zero on.
        step: largest one [s].
    """
    gmpy2.get_context().precision = 200
    count, m, reduced = len(mechanism.by), _Functions(), REDUCED[mechanism.name]
    zero, none = [mpfr(0)] * count, [mpfr(0)] * (count * (count + 1) // 2)
    values = {name: Dual(mpfr(x), zero, none) for name, x in mechanism.values.items()}
    for i, name in enumerate(mechanism.by):
        unit = [mpfr(int(i == j)) for j in range(count)]
        values[name] = Dual(values[name].value, unit, none)
    p = named([*values], [*values.values()])
    rates = lambda t, y: reduced.rates(m, t, y, p)  # noqa: E731
    y, now, found = [*reduced.start(m, p)], mpfr(0), []
    for end in map(mpfr, times):
        steps = int(gmpy2.ceil((end - now) / step))
        for _ in range(steps):
            y, now = extrapolated(rates, now, y, (end - now) / steps), now + (end - now) / steps
            steps -= 1
        found += [*reduced.state(m, end, y, p)]
    place = {pair: k for k, pair in enumerate(_pairs(count))}
    second = [
        [[x.second[place[max(i, j), min(i, j)]] for x in found] for j in range(count)]
        for i in range(count)
    ]
    return Jet(
        [x.value for x in found], [[x.first[i] for x in found] for i in range(count)], second
    )


def extrapolated(
    rates: Callable[[Any, list[Any]], Sequence[Any]], t: Any, y: list[Any], length: Any
) -> list[Any]:
    """A step of Gragg's method with `COLUMNS` numbers of substeps, by Aitken and Neville."""
    table: list[list[Any]] = []
    slope = rates(t, y)
    move = lambda x, h, d: [a + h * b for a, b in zip(x, d, strict=True)]  # noqa: E731
    for k in range(1, COLUMNS + 1):
        h = length / (2 * k)
        before, here = y, move(y, h, slope)
        for i in range(1, 2 * k):
            before, here = here, move(before, 2 * h, rates(t + i * h, here))
        row = [here]
        for j, last in enumerate(table[-1] if table else [], start=1):
            factor = 1 / (mpfr(k) ** 2 / mpfr(k - j) ** 2 - 1)
            row.append([a + factor * (a - b) for a, b in zip(row[-1], last, strict=True)])
        table.append(row)
    return table[-1][-1]
