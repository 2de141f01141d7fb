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
from jaxdae.kernels.tracing.subprograms import ScalarProgram

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
    old, outputs = program.graph, program.outputs
    needed = old.needed(outputs)
    factors = _factors(old, needed)
    # Of products of the same factors the first one stands for all.
    known: dict[Factors, int] = {}
    for node, own in factors.items():
        known.setdefault(own, node)
    wanted: set[int] = set()
    waiting: list[tuple[int, int]] = []

    def first(node) -> int:
        """The product that stands for this one; other nodes stand for themselves."""
        return known.get(factors.get(int(node), ()), int(node))

    def want(nodes) -> None:
        for node in map(first, nodes):
            if node not in wanted:
                wanted.add(node)
                if node in factors:
                    heappush(waiting, (-len(factors[node]), -node))

    def news(nodes) -> int:
        """How many of them would be computed for this product alone."""
        return sum(x in factors and x not in wanted for x in set(nodes))

    def divided(node: int) -> tuple[int, ...]:
        """Two parts, as few of them new as possible; as it is written among equals."""
        result = tuple(map(first, old.nodes[node].arguments))
        fewest = news(result)
        if fewest and factors[node] != tuple(sorted(old.nodes[node].arguments)):
            for split in _splits(factors[node]):
                parts = tuple(x[0] if len(x) == 1 else known.get(x, -1) for x in split)
                if -1 not in parts and news(parts) < fewest:
                    result, fewest = parts, news(parts)
        return result

    want(outputs)
    for node in needed:
        if node not in factors:
            want(old.operands(node))
    parts: dict[int, tuple[int, ...]] = {}
    # The longest first: their parts are wanted, too.
    while waiting:
        node = -heappop(waiting)[1]
        parts[node] = divided(node)
        want(parts[node])
    new, values = Graph(old.varying, exact=True), {}
    todo = [first(x) for x in outputs]
    while todo:
        node = todo[-1]
        missing = [
            x for x in parts.get(node) or tuple(map(first, old.operands(node))) if x not in values
        ]
        todo.extend(missing)
        if missing:
            continue
        todo.pop()
        if node in values:
            continue
        if node in parts:
            values[node] = new.apply("mul", *(values[x] for x in parts[node]))
        else:
            values[node] = copied(old, node, new, lambda x: values[first(x)])
    nodes = np.array([values[first(x)] for x in outputs], np.int32)
    result = program._replace(graph=new, outputs=nodes)
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


class SplitProgram(NamedTuple):
    """A program in two parts.

    Args:
        first: the invariant values, shape (k,), from the arguments that stay the same.
        rest: the results, from all arguments and, behind them, the invariant values.
    """

    first: ScalarProgram
    rest: ScalarProgram


def split_invariants(program: ScalarProgram, varying: int) -> SplitProgram:
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
    numbers = {
        x: graph.nodes[x].arguments[0] - start for x in within if graph.nodes[x].operation == INPUT
    }
    first = _part(graph, within, numbers, taken)
    rest = _part(graph, left, {x: end + i for i, x in enumerate(taken)}, program.outputs)
    return SplitProgram(
        ScalarProgram(*first, program.inputs[varying:], (shape,)),
        ScalarProgram(*rest, (*program.inputs, shape), program.results),
    )


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
