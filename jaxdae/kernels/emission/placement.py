"""Where arrays of a program lie in memory."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jaxdae.kernels.graph.dense_products import are_consecutive, LARGE
from jaxdae.kernels.graph.expressions import Graph, INPUT, RESULT
from jaxdae.kernels.tracing.trace import ScalarProgram


class Operand(NamedTuple):
    """Where an array is in memory, and whether as numbers that all lanes share."""

    pointer: str
    shared: bool


# Numbers in memory that are copied at once, and not through registers.
COPIED = 16


class Run(NamedTuple):
    """Entries of a result that lie in memory one after the other, to be copied at once.

    Args:
        result: its number.
        start: the first of them.
        nodes: of the entries.
    """

    result: int
    start: int
    nodes: tuple[int, ...]


class Results(NamedTuple):
    """How results come to where they are wanted.

    Args:
        direct: pointers for calls that write them there, by the call and its first result.
        runs: parts that are copied.
        written: positions among all outputs of those that are neither computed nor stored.
    """

    direct: dict[tuple[int, int], str]
    runs: list[Run]
    written: frozenset[int]


def placed(program: ScalarProgram, shared: list[bool]) -> Results:
    """Find large parts of results that need not go through registers.

    Args:
        program: what gives them.
        shared: for each argument, whether it is numbers that all lanes share, and not vectors.
    """
    direct: dict[tuple[int, int], str] = {}
    at, runs, written = 0, [], set()
    for i, result in enumerate(program.results):
        nodes = program.outputs[at : at + result.size].tolist()
        source = _array_of_call(program, nodes)
        if source is not None and source not in direct:
            direct[source] = f"%r{i}_"
            written.update(range(at, at + len(nodes)))
        else:
            loop = [Run(i, a, tuple(nodes[a:b])) for a, b in _copied(program, nodes, shared)]
            written.update(at + x.start + j for x in loop for j in range(len(x.nodes)))
            runs += loop
        at += len(nodes)
    return Results(direct, runs, frozenset(written))


def _array_of_call(program: ScalarProgram, nodes: list[int]) -> tuple[int, int] | None:
    """The call that gives a large array, and the number of its first entry."""
    graph = program.graph
    if len(nodes) < LARGE or not are_consecutive(graph, nodes):
        return None
    operation, source = graph.nodes[nodes[0]]
    if operation != RESULT:
        return None
    return (
        source if (source[1], source[1] + len(nodes)) in pairwise(_ends(graph, source[0])) else None
    )


def _ends(graph: Graph, call: int) -> list[int]:
    """Numbers at which the arrays that a call gives begin, and where the last one ends."""
    callee = graph.nodes[call].arguments[0]
    return np.cumsum([0, *(int(np.prod(x.shape)) for x in callee.results)]).tolist()


def runs(graph: Graph, nodes) -> list[tuple[int, int]]:
    """Parts of an array that may be in memory one after the other."""
    following = [x.arguments for x in (graph.nodes[x] for x in nodes)]
    ends = [i for i, (a, b) in enumerate(pairwise(following), 1) if b != (*a[:-1], a[-1] + 1)]
    return list(pairwise([0, *ends, len(nodes)]))


def _copied(program: ScalarProgram, nodes: list[int], shared: list[bool]):
    graph = program.graph
    starts = np.cumsum([0, *(int(np.prod(x.shape)) for x in program.inputs)])
    for start, stop in runs(graph, nodes) if len(nodes) >= COPIED else ():
        if stop - start < COPIED or not are_consecutive(graph, nodes[start:stop]):
            continue
        operation, (*_, first) = graph.nodes[nodes[start]]
        if operation not in (INPUT, RESULT):
            continue
        ends = (
            starts if operation == INPUT else _ends(graph, graph.nodes[nodes[start]].arguments[0])
        )
        array = int(np.searchsorted(ends, first, side="right")) - 1
        inside = first + stop - start <= ends[array + 1]
        if inside and not (operation == INPUT and shared[array]):
            yield start, stop
