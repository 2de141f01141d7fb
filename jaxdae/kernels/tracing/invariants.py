"""What a program computes from arguments that stay the same from call to call, done once."""

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, copied, Graph, INPUT, RESULT
from jaxdae.kernels.tracing.loops import Loop
from jaxdae.kernels.tracing.subprograms import ScalarProgram

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
    left, taken = _divided(graph, program.outputs, lambda _: True)
    if len(taken) > _MOST:
        # Arrays that loops give are copied at once.
        left, taken = _divided(graph, program.outputs, lambda node: _is_of_loop(graph, node))
        taken = _arrays(graph, taken)
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


def _is_of_loop(graph: Graph, node: int) -> bool:
    operation, arguments = graph.nodes[node]
    return operation == RESULT and isinstance(graph.nodes[arguments[0]].arguments[0], Loop)


def _arrays(graph: Graph, taken: list[int]) -> list[int]:
    """All entries of arrays of which some are taken, in the order in which they are in memory."""
    every: list[int] = []
    for call in dict.fromkeys(graph.nodes[x].arguments[0] for x in taken):
        sizes = [int(np.prod(x.shape)) for x in graph.nodes[call].arguments[0].results]
        for start, stop in pairwise(np.cumsum([call + 1, *(sizes)]).tolist()):
            if bisect_left(taken, start) < bisect_left(taken, stop):
                every += range(start, stop)
    return every


def _divided(graph: Graph, outputs, is_kept: Callable[[int], bool]) -> tuple[list[int], list[int]]:
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
        known = numbers or graph.is_boolean(node)
        if graph.fixed(node) and not known and is_kept(node):
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
