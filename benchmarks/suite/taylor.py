"""Reference motions by Taylor series in extended precision, without JAX and without the library.

A declaration is run once on symbols, which gives a graph of scalar operations. Rules of the
calculus on that graph give the mass matrix `M`, the Jacobian `J` and what is left of the equations

    M(t, q) a + J(t, q, v)^T lam + h(t, q, v) = 0,        J a + gamma(t, q, v) = 0

In every step the coefficients of all nodes are found one order after the other by recurrences of
truncated power series (R. E. Moore, Interval Analysis, 1966; A. Jorba, M. Zou, A software package
for the numerical integration of ODEs by means of high-order Taylor methods, Experimental
Mathematics 14, 2005). Those of `a` and `lam` of order k solve the linear system

    [M0 J0^T; J0 0] (a_k, lam_k) = -(h_k + sum_j M_j a_(k-j) + J_j^T lam_(k-j), ...),   j = 1 ... k

whose matrix is that of the beginning of the step. Numbers are those of MPFR, by gmpy2.

Derivatives are central differences of such runs. An increment of 1e-10 with runs exact to 1e-38
leaves errors of about 1e-20 by truncation and 1e-18 by the runs, also of second derivatives.
"""

import importlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import mul
from typing import Any, NamedTuple

from .mechanism import Mechanism, named

gmpy2: Any = importlib.import_module("gmpy2")
mpfr = gmpy2.mpfr

DIGITS, TOLERANCE, ORDER = 57, mpfr("1e-38"), 44
INCREMENT = mpfr("1e-10")


class Node:
    """A scalar of the graph: an operation and the numbers of its operands."""

    __slots__ = ("graph", "number")

    def __init__(self, graph: "Graph", number: int):
        self.graph, self.number = graph, number

    def __add__(self, other):
        return self.graph.add(self, other)

    def __sub__(self, other):
        return self.graph.add(self, -other)

    def __rsub__(self, other):
        return self.graph.add(-self, other)

    def __neg__(self):
        return self.graph.mul(self, -1)

    def __mul__(self, other):
        return self.graph.mul(self, other)

    def __truediv__(self, other):
        return self.graph.div(self, other)

    def __rtruediv__(self, other):
        return self.graph.div(other, self)

    def __pow__(self, exponent: int):
        return self if exponent == 1 else self * self ** (exponent - 1)

    __radd__, __rmul__ = __add__, __mul__


class Graph:
    """Scalar operations, equal ones once, in an order in which each follows its operands.

    It is the argument `m` of declarations as well: it has their functions.
    """

    def __init__(self):
        self.rows: list[tuple[str, Any, Any]] = []
        self.known: dict[tuple, int] = {}
        self.derivatives: dict[Any, dict[int, Node]] = {}

    def node(self, kind: str, a: Any = None, b: Any = None) -> Node:
        """The node of an operation."""
        key = (kind, a, b)
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append(key)
        return Node(self, self.known[key])

    def lifted(self, x: Any) -> Node:
        """A number as a node."""
        return x if isinstance(x, Node) else self.node("number", x)

    def value(self, x: Node) -> Any:
        """The number that a node is, else None."""
        kind, a, _ = self.rows[x.number]
        return a if kind == "number" else None

    def add(self, a: Any, b: Any) -> Node:
        """A sum."""
        a, b = self.lifted(a), self.lifted(b)
        x, y = self.value(a), self.value(b)
        if x is not None and y is not None:
            return self.lifted(x + y)
        if x == 0:
            return b
        return a if y == 0 else self.node("add", *sorted((a.number, b.number)))

    def mul(self, a: Any, b: Any) -> Node:
        """A product."""
        a, b = self.lifted(a), self.lifted(b)
        x, y = self.value(a), self.value(b)
        if x is not None and y is not None:
            return self.lifted(x * y)
        if x == 0 or y == 0:
            return self.lifted(0)
        if x == 1:
            return b
        return a if y == 1 else self.node("mul", *sorted((a.number, b.number)))

    def div(self, a: Any, b: Any) -> Node:
        """A quotient."""
        a, b = self.lifted(a), self.lifted(b)
        if self.value(a) == 0:
            return a
        return self.node("div", a.number, b.number)

    def sin(self, a: Any) -> Node:
        """Its sine; the cosine is made at once, as recurrences need both."""
        self.node("cos", self.lifted(a).number)
        return self.node("sin", self.lifted(a).number)

    def cos(self, a: Any) -> Node:
        """Its cosine."""
        self.sin(a)
        return self.node("cos", self.lifted(a).number)

    def sqrt(self, a: Any) -> Node:
        """Its square root."""
        return self.node("sqrt", self.lifted(a).number)

    def derivative(self, x: Node, seeds: dict[int, Any], label: Any) -> Node:
        """The derivative of a node along a direction.

        Args:
            x: the node.
            seeds: derivatives of variables by their numbers; of others it is zero.
            label: of the direction, under which what is found is kept.
        """
        known = self.derivatives.setdefault(label, {})
        for number in self.ancestors([x], known):
            known[number] = self._rule(number, seeds, known)
        return known[x.number]

    def ancestors(self, nodes: Iterable[Node], known: Iterable[int] = ()) -> list[int]:
        """Numbers of nodes and of those on which they depend, in order, without known ones."""
        before, seen, left = {*known}, set(), [x.number for x in nodes]
        while left:
            i = left.pop()
            if i not in seen and i not in before:
                seen.add(i)
                kind, a, b = self.rows[i]
                if kind not in ("variable", "parameter", "number"):
                    left += [a] if b is None else [a, b]
                if kind in ("sin", "cos"):
                    left.append(self.known["cos" if kind == "sin" else "sin", a, None])
        return sorted(seen)

    def _rule(self, number: int, seeds: dict[int, Any], known: dict[int, Node]) -> Node:
        kind, a, b = self.rows[number]
        node, d = Node(self, number), known.__getitem__
        if kind in ("variable", "parameter", "number"):
            return self.lifted(seeds.get(number, 0))
        if kind == "add":
            return d(a) + d(b)
        if kind == "mul":
            return d(a) * Node(self, b) + Node(self, a) * d(b)
        if kind == "div":
            return (d(a) - node * d(b)) / Node(self, b)
        if kind == "sin":
            return self.cos(Node(self, a)) * d(a)
        if kind == "cos":
            return -(self.sin(Node(self, a)) * d(a))
        return d(a) / (2 * node)


class Equations:
    """Nodes of the equations of motion of a mechanism.

    Args:
        mechanism: what is declared.
    """

    def __init__(self, mechanism: Mechanism):
        m = self.graph = Graph()
        n = len(mechanism.coordinates)
        self.t = m.node("variable", "t")
        self.q = [m.node("variable", ("q", i)) for i in range(n)]
        self.v = [m.node("variable", ("v", i)) for i in range(n)]
        names = [*mechanism.values]
        self.parameters = [m.node("parameter", x) for x in names]
        p, t, q, v = named(names, self.parameters), self.t, self.q, self.v
        kinetic = m.lifted(mechanism.kinetic_energy(m, t, q, v, p))
        potential = m.lifted(mechanism.potential_energy(m, t, q, p))
        force = [*map(m.lifted, mechanism.force(m, t, q, v, p))]
        self.phi = [*map(m.lifted, mechanism.position_constraints(m, t, q, p))]
        by_v = [m.derivative(kinetic, {v[i].number: 1}, ("v", i)) for i in range(n)]
        self.mass = [[m.derivative(x, {v[i].number: 1}, ("v", i)) for i in range(n)] for x in by_v]
        self.rest = [
            self._rate(by_v[i]) + self._by_q(potential - kinetic, i) - force[i] for i in range(n)
        ]
        self.phi_dot = [self._rate(x) for x in self.phi]
        given = mechanism.velocity_constraints(m, t, q, v, p)
        self.phi_dot += map(m.lifted, given)
        self.jac = [
            [m.derivative(x, {v[i].number: 1}, ("v", i)) for i in range(n)] for x in self.phi_dot
        ]
        self.gamma = [self._rate(x) for x in self.phi_dot]
        self.gap, self.normal = None, []
        if mechanism.restitution is not None:
            self.gap = m.lifted(mechanism.gap(m, q, p))
            self.normal = [self._by_q(self.gap, i) for i in range(n)]

    def _by_q(self, x: Node, i: int) -> Node:
        return self.graph.derivative(x, {self.q[i].number: 1}, ("q", i))

    def _rate(self, x: Node) -> Node:
        """The rate of a node at constant velocities."""
        seeds = {a.number: b for a, b in zip(self.q, self.v, strict=True)}
        return self.graph.derivative(x, seeds | {self.t.number: 1}, "rate")

    def needed(self) -> list[int]:
        """Numbers of the nodes on which the equations depend, in order."""
        outputs = [*self.rest, *self.phi, *self.phi_dot, *self.gamma, *self.normal]
        outputs += [x for row in (*self.mass, *self.jac) for x in row]
        outputs += [*self.q, *self.v, self.t, *([] if self.gap is None else [self.gap])]
        return self.graph.ancestors(outputs)


class Factors:
    """Elimination with column pivots of a square matrix of numbers of MPFR."""

    def __init__(self, matrix: Iterable[Iterable[Any]]):
        rows = [[*row] for row in matrix]
        self.order = []
        for k in range(len(rows)):
            best = max(range(k, len(rows)), key=lambda i: abs(rows[i][k]))
            if not rows[best][k]:
                raise ZeroDivisionError("the constraints are not independent")
            rows[k], rows[best] = rows[best], rows[k]
            self.order.append(best)
            for row in rows[k + 1 :]:
                if row[k]:
                    factor = row[k] = row[k] / rows[k][k]
                    for j in range(k + 1, len(rows)):
                        if rows[k][j]:
                            row[j] -= factor * rows[k][j]
        self.rows = rows

    def solve(self, rhs: Iterable[Any]) -> list[Any]:
        """The solution for a right-hand side."""
        x = [*rhs]
        for k, best in enumerate(self.order):
            x[k], x[best] = x[best], x[k]
        # Factors are exchanged together with their rows, so that one pass after all exchanges does.
        for k, row in enumerate(self.rows):
            x[k] -= sum(map(mul, row[:k], x))
        for k in reversed(range(len(x))):
            row = self.rows[k]
            x[k] = (x[k] - sum(map(mul, row[k + 1 :], x[k + 1 :]))) / row[k]
        return x


class Series(NamedTuple):
    """A step: coefficients of powers of the time since it began."""

    t: Any
    length: Any
    q: list[list[Any]]
    v: list[list[Any]]
    a: list[list[Any]]
    lam: list[list[Any]]
    gap: list[Any]

    def at(self, rows: list[list[Any]], t: Any) -> list[Any]:
        """Sums of series at a time."""
        return [horner(row, t - self.t) for row in rows]


def horner(row: Sequence[Any], s: Any) -> Any:
    """The sum of a power series."""
    total = mpfr(0)
    for x in reversed(row):
        total = total * s + x
    return total


class Reference:
    """Motions of a mechanism in extended precision.

    Args:
        mechanism: what is declared.
        tolerance: bound of the last terms of the series, relative to the state.
        order: of the series.
    """

    def __init__(self, mechanism: Mechanism, tolerance: Any = TOLERANCE, order: int = ORDER):
        # Near a singular position errors grow as the inverse of the distance, in every order of the
        # series anew; those across the constraints are taken out after every step.
        self.singular = "singular position" in mechanism.kinds
        digits = 4 * DIGITS if self.singular else DIGITS
        gmpy2.get_context().precision = int(digits * 3.33)
        self.mechanism, self.equations = mechanism, Equations(mechanism)
        self.tolerance, self.limit = tolerance, order
        self.numbers = self.equations.needed()
        self.kept = mechanism.kept or tuple(range(len(self.equations.phi_dot)))

    def run(self, values: Sequence[Any], times: Sequence[Any]) -> list[Any]:
        """One motion as a list of numbers: q, v, lam at each time, then the times of impacts."""
        self.parameters = [*map(mpfr, values)]
        q, v = self.start()
        t, found, impacts = mpfr(0), [], []
        left, after = [*map(mpfr, times)], False
        while left:
            step = self.expanded(t, q, v)
            fall = self._fall(step, after) if step.gap else None
            end = t + (step.length if fall is None else fall)
            while left and left[0] <= end:
                now = left.pop(0)
                found += [*step.at(step.q, now), *step.at(step.v, now)]
                found += self.multipliers(step, now)
            q, v, t, after = step.at(step.q, end), step.at(step.v, end), end, fall is not None
            if self.singular:
                q, v = self._projected(t, q, v)
            if after and left:
                impacts.append(t)
                v = self._after_impact(t, q, v)
        return found + impacts

    def start(self) -> tuple[list[Any], list[Any]]:
        """The start, completed by Newton's method where parts of it are a guess."""
        mechanism, equations = self.mechanism, self.equations
        p = named([*mechanism.values], self.parameters)
        q, v = ([*map(mpfr, x)] for x in mechanism.start(gmpy2, p))
        if mechanism.free is None:
            return q, v
        rest = [i for i in range(len(q)) if i not in mechanism.free]
        holonomic = [i for i in self.kept if i < len(equations.phi)]
        for _ in range(12 if holonomic else 0):
            values = self._values(mpfr(0), q, v)
            jac = [[values[equations.jac[i][j].number] for j in rest] for i in holonomic]
            change = Factors(jac).solve(values[equations.phi[i].number] for i in holonomic)
            for j, x in zip(rest, change, strict=True):
                q[j] -= x
        values = self._values(mpfr(0), q, v)
        jac = [[values[equations.jac[i][j].number] for j in rest] for i in self.kept]
        change = Factors(jac).solve(values[equations.phi_dot[i].number] for i in self.kept)
        for j, x in zip(rest, change, strict=True):
            v[j] -= x
        return q, v

    def _values(self, t: Any, q: Sequence[Any], v: Sequence[Any]) -> dict[int, Any]:
        """Values of all nodes."""
        coefficients, steps = self._begin(t, q, v)
        for step in steps:
            step(0)
        return {i: x[0] for i, x in coefficients.items()}

    def _begin(self, t: Any, q: Any, v: Any) -> tuple[dict[int, list[Any]], list[Callable]]:
        """Lists of coefficients, and what appends the next one to each, in order.

        Constants have one coefficient alone.
        """
        graph = self.equations.graph
        known: dict[int, list[Any]] = {i: [] for i in self.numbers}
        known[self.equations.t.number] = [t]
        for nodes, values in ((self.equations.q, q), (self.equations.v, v)):
            known |= {node.number: [x] for node, x in zip(nodes, values, strict=True)}
        for node, x in zip(self.equations.parameters, self.parameters, strict=True):
            known[node.number] = [x]
        constant, steps = {x.number for x in self.equations.parameters}, []
        for i in self.numbers:
            kind, a, b = graph.rows[i]
            if kind == "number":
                known[i] = [mpfr(a)]
                constant.add(i)
            elif kind not in ("variable", "parameter"):
                operands = [x for x in (a, b) if x is not None]
                step = _recurrence(graph, known, constant, i)
                if constant.issuperset(operands):
                    constant.add(i)
                    step(0)
                else:
                    steps.append(step)
        self.constant = constant
        return known, steps

    def expanded(self, t: Any, q: Sequence[Any], v: Sequence[Any]) -> Series:
        """The series of a step, and how long it may be."""
        equations, n = self.equations, len(q)
        known, steps = self._begin(t, q, v)
        of = lambda nodes: [known[x.number] for x in nodes]  # noqa: E731
        qs, vs, ts = of(equations.q), of(equations.v), known[equations.t.number]
        mass = _entries(known, self.constant, equations.mass)
        jac = _entries(known, self.constant, [equations.jac[i] for i in self.kept])
        rest, gamma = of(equations.rest), of([equations.gamma[i] for i in self.kept])
        a, lam = [[] for _ in range(n)], [[] for _ in self.kept]
        factors = None
        for k in range(self.limit):
            for step in steps:
                step(k)
            at = lambda row, k=k: row[k] if k < len(row) else mpfr(0)  # noqa: E731
            force, wanted = [-at(x) for x in rest], [-at(x) for x in gamma]
            if factors is None:
                factors = Factors(_saddle(mass, jac, n))
            for i, j, x in mass if k else ():
                force[i] -= _later(x, a[j])
            for i, j, x in jac if k else ():
                force[j] -= _later(x, lam[i])
                wanted[i] -= _later(x, a[j])
            solution = factors.solve([*force, *wanted])
            for row, x in zip([*a, *lam], solution, strict=True):
                row.append(x)
            for i in range(n):
                qs[i].append(vs[i][k] / (k + 1))
                vs[i].append(a[i][k] / (k + 1))
            ts.append(mpfr(1 if k == 0 else 0))
        gap = [] if equations.gap is None else known[equations.gap.number]
        return Series(t, self._length(qs, vs), qs, vs, a, lam, gap)

    def _length(self, q: list[list[Any]], v: list[list[Any]]) -> Any:
        """The step for which the last two terms are below the tolerance."""
        rows = [*q, *v]
        size = max(1, *(abs(x[0]) for x in v))
        lengths = []
        for k in (self.limit - 1, self.limit):
            last = max(abs(x[k]) for x in rows)
            lengths.append((self.tolerance * size / last) ** (mpfr(1) / k) if last else mpfr(1))
        return min(*lengths, mpfr(1)) * mpfr("0.9")

    def _projected(self, t: Any, q: list[Any], v: list[Any]) -> tuple[list[Any], list[Any]]:
        """The nearest position and velocity that satisfy the constraints, to all digits."""
        equations = self.equations
        for kind in (*["position"] * 4, "velocity"):
            values = self._values(t, q, v)
            jac = [[values[x.number] for x in row] for row in equations.jac]
            nodes = equations.phi if kind == "position" else equations.phi_dot
            some = jac[: len(nodes)]
            products = Factors([sum(map(mul, x, y)) for y in some] for x in some)
            push = products.solve(values[x.number] for x in nodes)
            change = [sum(map(mul, push, column)) for column in zip(*some, strict=True)]
            moved = [x - dx for x, dx in zip(q if kind == "position" else v, change, strict=True)]
            q, v = (moved, v) if kind == "position" else (q, moved)
        return q, v

    def multipliers(self, step: Series, t: Any) -> list[Any]:
        """Multipliers at a time: of dependent constraints those of least norm.

        Their series ends at a pole where the position is singular.
        """
        if self.singular:
            here = self.expanded(t, step.at(step.q, t), step.at(step.v, t))
            return [x[0] for x in here.lam]
        lam = step.at(step.lam, t)
        if len(self.kept) == len(self.equations.jac):
            return lam
        values = self._values(t, step.at(step.q, t), step.at(step.v, t))
        jac = [[values[x.number] for x in row] for row in self.equations.jac]
        some = [jac[i] for i in self.kept]
        dot = lambda x, y: sum(map(mul, x, y))  # noqa: E731
        factors = Factors([dot(x, y) for y in some] for x in some)
        combined = [factors.solve(dot(x, y) for y in some) for x in jac]  # jac = combined @ some
        columns = [*zip(*combined, strict=True)]
        weights = Factors([dot(x, y) for y in columns] for x in columns).solve(lam)
        return [dot(row, weights) for row in combined]

    def _fall(self, step: Series, after: bool) -> Any:
        """When the gap first falls to zero within a step, since its beginning; else None."""
        row = step.gap[1:] if after else step.gap  # divided by the time since an impact
        parts = [step.length * i / 40 for i in range(41)]
        values = [horner(row, s) for s in parts]
        for (a, x), (b, y) in itertools.pairwise(zip(parts, values, strict=True)):
            if x > 0 >= y:
                slope = [i * c for i, c in enumerate(row)][1:]
                s = a + (b - a) * x / (x - y)
                for _ in range(12):
                    s -= horner(row, s) / horner(slope, s)
                return s
        return None

    def _after_impact(self, t: Any, q: list[Any], v: list[Any]) -> list[Any]:
        values, n, equations = self._values(t, q, v), len(q), self.equations
        value = lambda rows: [[values[x.number] for x in row] for row in rows]  # noqa: E731
        mass, jac = value(equations.mass), value([*equations.jac, equations.normal])
        sparse = lambda rows: [  # noqa: E731
            (i, j, [x]) for i, row in enumerate(rows) for j, x in enumerate(row) if x
        ]
        factors = Factors(_saddle(sparse(mass), sparse(jac), n))
        rhs = [mpfr(0)] * (n + len(jac) - 1)
        approach = sum(map(mul, jac[-1], v))
        assert self.mechanism.restitution is not None
        change = factors.solve([*rhs, -(1 + self.mechanism.restitution) * approach])
        return [x + dx for x, dx in zip(v, change, strict=False)]


def _entries(known: dict[int, list[Any]], constant: set[int], rows: Any) -> list[Any]:
    """Entries of a matrix that are not zero everywhere: row, column, coefficients."""
    found = [(i, j, x.number) for i, row in enumerate(rows) for j, x in enumerate(row)]
    return [(i, j, known[x]) for i, j, x in found if x not in constant or known[x][0]]


def _saddle(mass: list[Any], jac: list[Any], n: int) -> list[list[Any]]:
    size = n + 1 + max((i for i, _, _ in jac), default=-1)
    matrix = [[mpfr(0)] * size for _ in range(size)]
    for i, j, x in mass:
        matrix[i][j] = x[0]
    for i, j, x in jac:
        matrix[n + i][j] = matrix[j][n + i] = x[0]
    return matrix


def _later(x: list[Any], y: list[Any]) -> Any:
    """The coefficient of a product whose second factor has no coefficient of that order yet."""
    return sum(map(mul, x[1:], reversed(y)))


def _recurrence(graph: Graph, known: dict[int, list[Any]], constant: set[int], i: int) -> Callable:
    """What appends the coefficient of order k of a node, those of its operands being known."""
    kind, a, b = graph.rows[i]
    out, x = known[i], known[a]
    y = known[a if b is None else b]
    fixed, fixed2 = a in constant, b in constant
    if kind == "add":
        if fixed:
            return lambda k: out.append(y[k] if k else x[0] + y[0])
        if fixed2:
            return lambda k: out.append(x[k] if k else x[0] + y[0])
        return lambda k: out.append(x[k] + y[k])
    if kind == "mul":
        if fixed:
            return lambda k: out.append(x[0] * y[k])
        if fixed2:
            return lambda k: out.append(x[k] * y[0])
        return lambda _: out.append(sum(map(mul, x, reversed(y))))
    if kind == "div":
        if fixed2:
            return lambda k: out.append(x[k] / y[0])
        padded = lambda k: x[k] if k < len(x) else 0  # noqa: E731
        return lambda k: out.append((padded(k) - sum(map(mul, y[1:], reversed(out)))) / y[0])
    if kind == "sqrt":
        return lambda k: out.append(
            (x[k] - sum(map(mul, out[1:], reversed(out[1:])))) / (2 * out[0])
            if k else gmpy2.sqrt(x[0])
        )  # fmt: skip
    # Of order k each needs the other's coefficients of lower orders alone.
    other = known[graph.known["cos" if kind == "sin" else "sin", a, None]]
    function, sign = (gmpy2.sin, 1) if kind == "sin" else (gmpy2.cos, -1)

    def next_one(k: int) -> None:
        if k == 0:
            out.append(function(x[0]))
        else:
            terms = map(mul, [j * x[j] for j in range(1, k + 1)], reversed(other[:k]))
            out.append(sign * sum(terms) / k)

    return next_one


class Jet(NamedTuple):
    """Numbers with their first and second derivatives by the values of `Mechanism.by`."""

    value: list[Any]
    first: list[list[Any]]
    second: list[list[list[Any]]]


def jets(
    run: Callable[[list[Any]], list[Any]],
    mechanism: Mechanism,
    by: Sequence[str],
    increment: Any = INCREMENT,
) -> Jet:
    """Derivatives of a run's numbers by central differences in extended precision.

    Args:
        run: numbers from values of all parameters.
        mechanism: whose values.
        by: names of those by which derivatives are taken.
        increment: of differences, relative to a value, or absolute where it is zero.
    """
    names, count = [*mechanism.values], len(by)
    base = [mpfr(x) for x in mechanism.values.values()]
    places = [names.index(x) for x in by]
    sizes = [increment * (abs(base[i]) or 1) for i in places]

    def moved(*changes: tuple[int, int]) -> list[Any]:
        values = [*base]
        for k, sign in changes:
            values[places[k]] += sign * sizes[k]
        return run(values)

    middle = moved()
    up, down = ([moved((k, sign)) for k in range(count)] for sign in (1, -1))
    first = [
        [(x - y) / (2 * h) for x, y in zip(one, other, strict=True)]
        for one, other, h in zip(up, down, sizes, strict=True)
    ]
    second = [[[] for _ in range(count)] for _ in range(count)]
    for i in range(count):
        rows = zip(up[i], down[i], middle, strict=True)
        second[i][i] = [(x + y - 2 * z) / sizes[i] ** 2 for x, y, z in rows]
        for j in range(i):
            both, none = moved((i, 1), (j, 1)), moved((i, -1), (j, -1))
            parts = zip(both, none, up[i], down[i], up[j], down[j], middle, strict=True)
            second[i][j] = second[j][i] = [
                (a + b - c - d - e - f + 2 * g) / (2 * sizes[i] * sizes[j])
                for a, b, c, d, e, f, g in parts
            ]
    return Jet(middle, first, second)
