"""Where arrays of a program lie in memory."""

from typing import NamedTuple

import numpy as np

from jaxdae.kernels.dense import are_consecutive, LARGE
from jaxdae.kernels.graph import RESULT
from jaxdae.kernels.trace import ScalarProgram


class Operand(NamedTuple):
    """Where an array is in memory, and whether as numbers that all lanes share."""

    pointer: str
    shared: bool


def direct_results(program: ScalarProgram) -> tuple[dict[tuple[int, int], str], set[int]]:
    """Large results that one call gives: where it writes them, and their numbers."""
    found: dict[tuple[int, int], str] = {}
    at, numbers = 0, set()
    graph, outputs = program.graph, program.outputs.tolist()
    for i, result in enumerate(program.results):
        nodes = outputs[at : at + int(np.prod(result.shape))]
        at += len(nodes)
        if len(nodes) < LARGE or not are_consecutive(graph, nodes):
            continue
        operation, own = graph.nodes[nodes[0]]
        if operation != RESULT or own in found:
            continue
        sizes = [int(np.prod(x.shape)) for x in graph.nodes[own[0]].arguments[0].results]
        if (own[1], len(nodes)) in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
            found[own] = f"%r{i}_"
            numbers.add(i)
    return found, numbers
