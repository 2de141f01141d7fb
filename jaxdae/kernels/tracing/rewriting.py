"""Programs rewritten to cost less: terms share their factors, and what stays the same is done once.

Derivatives of `m l cos(q)` by position and time are products of the same factors in other orders:
`(m l) (w cos(q))`, `w ((m l) sin(q))`. A product of `k` numbers has a relative error of at most
`k - 1` roundings in any order, as long as no part of it leaves the range of the type.
"""

from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

import jax
import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, copied, Graph, INPUT
from jaxdae.kernels.tracing.trace import ScalarProgram

# Longer products are not divided: they have too many parts.
_LONGEST = 8

# Factors of a product in order, a number that occurs twice twice.
Factors = tuple[int, ...]


def regrouped(program: ScalarProgram) -> ScalarProgram:
    """The same results by fewer multiplications.

    A product is made of two parts that the program has anyway, if there are such ones. No product
    is computed that the program does not compute: what was within the range of the type stays so.
    That of single precision is so small that products of masses and lengths could leave it in one
    order and not in another. The result is equal but for rounding, and the given program where
    nothing is won.
    """
    graph = program.graph
    needed = graph.needed(program.outputs)
    result = _Regrouped(graph, needed, program.outputs).program(program)
    return result if _cost(result) < _cost(program) else program


def _cost(program: ScalarProgram) -> int:
    """Multiplications that each call does anew."""
    graph = program.graph
    needed = graph.needed(program.outputs)
    return sum(graph.nodes[x].operation == "mul" and not graph.fixed(x) for x in needed)


def _factors(graph: Graph, needed: list[int]) -> dict[int, Factors]:
    """Of each product its factors, which are no products, in order."""
    result: dict[int, Factors] = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation == "mul":
            first, second = (result.get(x, (x,)) for x in arguments)
            short = len(first) + len(second) <= _LONGEST
            result[node] = tuple(sorted(first + second if short else arguments))
    return result


class _Regrouped:
    """A new graph in which products are made of shared parts."""

    def __init__(self, graph: Graph, needed: list[int], outputs):
        self._old, self.graph = graph, Graph(graph.varying, exact=True)
        self._factors = _factors(graph, needed)
        # Of products of the same factors the first one stands for all.
        self._known: dict[Factors, int] = {}
        for node, factors in self._factors.items():
            self._known.setdefault(factors, node)
        self._wanted: set[int] = set()
        self._waiting: list[tuple[int, int]] = []
        self._want(outputs)
        for node in needed:
            if node not in self._factors:
                self._want(graph.operands(node))
        self._parts: dict[int, tuple[int, ...]] = {}
        # The longest first: their parts are wanted, too.
        while self._waiting:
            _, negative = heappop(self._waiting)
            self._parts[-negative] = self._divided(-negative)
            self._want(self._parts[-negative])
        self._values: dict[int, int] = {}

    def _first(self, node) -> int:
        """The product that stands for this one; other nodes stand for themselves."""
        return self._known.get(self._factors.get(int(node), ()), int(node))

    def _want(self, nodes) -> None:
        for node in map(self._first, nodes):
            if node not in self._wanted:
                self._wanted.add(node)
                if node in self._factors:
                    heappush(self._waiting, (-len(self._factors[node]), -node))

    def _divided(self, node: int) -> tuple[int, ...]:
        """Two parts, as few of them new as possible; as it is written among equals."""
        factors = self._factors[node]
        result = tuple(map(self._first, self._old.nodes[node].arguments))
        fewest = self._news(result)
        if fewest and factors != tuple(sorted(self._old.nodes[node].arguments)):
            for split in _splits(factors):
                parts = self._as_they_are(split)
                if parts and self._news(parts) < fewest:
                    result, fewest = parts, self._news(parts)
        return result

    def _as_they_are(self, split) -> tuple[int, ...]:
        """Nodes of parts, if the program has them all."""
        result = [x[0] if len(x) == 1 else self._known.get(x) for x in split]
        return tuple(x for x in result if x is not None) if None not in result else ()

    def _news(self, nodes) -> int:
        """How many of them would be computed for this product alone."""
        return sum(x in self._factors and x not in self._wanted for x in set(nodes))

    def program(self, program: ScalarProgram) -> ScalarProgram:
        """The program on the new graph."""
        outputs = [self._first(x) for x in program.outputs]
        waiting = list(outputs)
        while waiting:
            node = waiting[-1]
            missing = [x for x in self._operands(node) if x not in self._values]
            waiting.extend(missing)
            if not missing:
                self._values.setdefault(waiting.pop(), self._made(node))
        nodes = np.array([self._values[x] for x in outputs], np.int32)
        return program._replace(graph=self.graph, outputs=nodes)

    def _operands(self, node: int) -> tuple[int, ...]:
        return self._parts.get(node) or tuple(map(self._first, self._old.operands(node)))

    def _made(self, node: int) -> int:
        if node in self._parts:
            return self.graph.apply("mul", *(self._values[x] for x in self._parts[node]))
        return copied(self._old, node, self.graph, lambda x: self._values[self._first(x)])


def _splits(factors: Factors):
    """All ways to divide factors between two products, once each."""
    places = range(len(factors))
    seen = set()
    for size in range(1, len(factors) // 2 + 1):
        for chosen in combinations(places, size):
            part = tuple(factors[i] for i in chosen)
            if part not in seen:
                seen.add(part)
                yield part, tuple(factors[i] for i in places if i not in chosen)


# What a program computes from arguments that stay the same from call to call.

# Values that are kept. Each is a vector of every block of members, and all of them are stored by
# one function, which takes quadratic time to compile.
_MOST = 512


class Parts(NamedTuple):
    """A program in two parts.

    Args:
        first: the invariant values, shape (k,), from the arguments that stay the same.
        rest: the results, from all arguments and, behind them, the invariant values.
    """

    first: ScalarProgram
    rest: ScalarProgram


def parted(program: ScalarProgram, varying: int) -> Parts:
    """Take out of a program what is the same in all calls, if that is not too much.

    Products of masses and lengths, or pivots of constant entries of a mass matrix, are the same in
    all stages of all steps of a run. Both parts together do the same operations. So many first
    arguments change from call to call.
    """
    graph = program.graph
    sizes = [int(np.prod(x.shape)) for x in program.inputs]
    start, end = sum(sizes[:varying]), sum(sizes)
    if graph.varying != start:
        raise ValueError(f"the program has {graph.varying} varying inputs, not {start}.")
    left, taken = _divided(graph, program.outputs)
    if len(taken) > _MOST:
        left, taken = graph.needed(program.outputs), []
    shape = jax.ShapeDtypeStruct((len(taken),), program.inputs[0].dtype)
    within = graph.needed(taken)
    # The inputs of the first part are numbered anew, without those that vary.
    numbers = {x: graph.nodes[x].arguments[0] - start for x in within if _is_input(graph, x)}
    first = _part(graph, within, numbers, taken)
    rest = _part(graph, left, {x: end + i for i, x in enumerate(taken)}, program.outputs)
    return Parts(
        ScalarProgram(*first, program.inputs[varying:], (shape,)),
        ScalarProgram(*rest, (*program.inputs, shape), program.results),
    )


def _is_input(graph: Graph, node: int) -> bool:
    return graph.nodes[node].operation == INPUT


def _divided(graph: Graph, outputs) -> tuple[list[int], list[int]]:
    """Nodes that are left, and those among them that are taken from the invariant values."""
    left: set[int] = set()
    taken: set[int] = set()
    waiting = [int(x) for x in outputs]
    while waiting:
        node = waiting.pop()
        if node in left:
            continue
        left.add(node)
        numbers = graph.nodes[node].operation in (CONSTANT, INPUT)
        # Truth values are not kept, but what they compare.
        if graph.fixed(node) and not numbers and not graph.is_boolean(node):
            taken.add(node)
        else:
            waiting.extend(graph.operands(node))
    return sorted(left), sorted(taken)


def _part(graph: Graph, nodes: list[int], inputs: dict[int, int], outputs):
    """A graph of some nodes, of which some are inputs; and the outputs in it."""
    part, known = Graph(exact=True), {}
    for node in nodes:
        if node in inputs:
            known[node] = part.input(inputs[node])
        else:
            known[node] = copied(graph, node, part, known.__getitem__)
    return part, np.array([known[int(x)] for x in outputs], np.int32)
