"""Products written so that terms share as many of their factors as possible.

Derivatives of `m l cos(q)` by position and time are products of the same factors in other orders:
`(m l) (w cos(q))`, `w ((m l) sin(q))`. A product of `k` numbers has a relative error of at most
`k - 1` roundings in any order.
"""

from functools import reduce
from heapq import heappop, heappush
from itertools import combinations

import numpy as np

from jaxdae.kernels.graph import copied, Graph
from jaxdae.kernels.trace import ScalarProgram

# Longer products are not taken apart.
_LONGEST = 8

Factors = tuple[int, ...]


def regrouped(program: ScalarProgram) -> ScalarProgram:
    """The same results by fewer multiplications.

    What is the same in all calls is multiplied first. Then the pair of factors that most products
    have becomes one factor, again and again (Breuer 1969).

    Args:
        program: what is computed.

    Returns:
        A program of the same arguments and results, equal but for rounding; the given one, where
        nothing is won.
    """
    graph = program.graph
    needed = graph.needed(program.outputs)
    found = _Regrouped(graph, _wanted(graph, needed, program.outputs)).program(program)
    return found if _cost(found) < _cost(program) else program


def _cost(program: ScalarProgram) -> int:
    """Multiplications that each call does anew."""
    graph = program.graph
    needed = graph.needed(program.outputs)
    return sum(graph.nodes[x].operation == "mul" and not graph.fixed(x) for x in needed)


def _wanted(graph: Graph, needed: list[int], outputs) -> dict[int, Factors]:
    """Products that are more than a factor of others, by their factors."""
    factors = _factors(graph, needed)
    wanted = {int(x) for x in outputs}
    for node in needed:
        wanted.update(factors.get(node, graph.operands(node)))
    return {x: own for x, own in factors.items() if x in wanted}


def _factors(graph: Graph, needed: list[int]) -> dict[int, Factors]:
    """Of each product that changes its factors, which are no such products, in order."""
    found: dict[int, Factors] = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation == "mul" and not graph.fixed(node):
            first, second = (found.get(x, (x,)) for x in arguments)
            short = len(first) + len(second) <= _LONGEST
            found[node] = tuple(sorted(first + second if short else arguments))
    return found


class _Pairs:
    """Products as multisets of factors, and which of them have each pair of factors.

    Args:
        products: factors of each; they are changed.
    """

    def __init__(self, products: dict[int, list[int]]):
        self.products = products
        self._having: dict[tuple[int, int], set[int]] = {}
        self._waiting: list[tuple[int, tuple[int, int]]] = []
        for node in products:
            self._enter(node)

    def _pairs(self, node: int) -> set[tuple[int, int]]:
        return set(combinations(self.products[node], 2))

    def _enter(self, node: int) -> None:
        for pair in self._pairs(node):
            having = self._having.setdefault(pair, set())
            having.add(node)
            if len(having) > 1:
                heappush(self._waiting, (-len(having), pair))

    def most_frequent(self) -> tuple[int, int] | None:
        """A pair that several products have; `None` if there is none."""
        while self._waiting:
            count, pair = heappop(self._waiting)
            own = len(self._having[pair])
            if own == -count:
                return pair
            if own > 1:
                heappush(self._waiting, (-own, pair))
        return None

    def join(self, pair: tuple[int, int], factor: int) -> None:
        """Make a pair one factor of all products that have it."""
        for node in sorted(self._having[pair]):
            for own in self._pairs(node):
                self._having[own].discard(node)
            product = self.products[node]
            while _has(product, pair):
                for x in pair:
                    product.remove(x)
                product.append(factor)
            product.sort()
            self._enter(node)


def _has(product: list[int], pair: tuple[int, int]) -> bool:
    a, b = pair
    return product.count(a) > 1 if a == b else a in product and b in product


class _Regrouped:
    """A new graph in which products are made of shared factors.

    Args:
        graph: the old one.
        products: the factors of those products that are wanted.
    """

    def __init__(self, graph: Graph, products: dict[int, Factors]):
        self._old = graph
        # What several factors are joined to has a negative number.
        self._joined: list[Factors] = []
        self._known: dict[Factors, int] = {}
        pairs = _Pairs({x: self._gathered(own) for x, own in products.items()})
        while (pair := pairs.most_frequent()) is not None:
            pairs.join(pair, self._factor(pair))
        self._products = pairs.products
        self._values: dict[int, int] = {}
        self.graph = Graph(graph.varying)

    def _factor(self, parts: Factors) -> int:
        if parts not in self._known:
            self._joined.append(parts)
            self._known[parts] = -len(self._joined)
        return self._known[parts]

    def _gathered(self, factors: Factors) -> list[int]:
        """Factors with those that are the same in all calls as one."""
        fixed = tuple(x for x in factors if self._old.fixed(x))
        others = [x for x in factors if not self._old.fixed(x)]
        return sorted([*others, self._factor(fixed)] if len(fixed) > 1 else factors)

    def program(self, program: ScalarProgram) -> ScalarProgram:
        """The program on the new graph."""
        for node in self._old.needed(program.outputs):
            if node in self._products or not self._is_part(node):
                self._values[node] = self._node(node)
        outputs = np.array([self._values[int(x)] for x in program.outputs], np.int32)
        return program._replace(graph=self.graph, outputs=outputs)

    def _node(self, node: int) -> int:
        if node in self._products:
            return self._product(self._products[node])
        return copied(self._old, node, self.graph, self._values)

    def _is_part(self, node: int) -> bool:
        """Whether a node is only a part of products."""
        return self._old.nodes[node].operation == "mul" and not self._old.fixed(node)

    def _product(self, factors) -> int:
        values = (self._value(x) for x in factors)
        return reduce(lambda x, y: self.graph.apply("mul", x, y), values)

    def _value(self, factor: int) -> int:
        if factor not in self._values:
            self._values[factor] = self._product(self._joined[-factor - 1])
        return self._values[factor]
