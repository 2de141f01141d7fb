"""Integers that are chosen among known ones, case by case.

A binary search has `low`, `middle` and `high` of which each comparison excludes half: they are
known in each case, and so is their difference, which the ranges alone would let be negative.
"""

import math

import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, Graph
from jaxdae.kernels.graph.simplifications import folded

# Larger trees of choices cost more than arithmetic.
_MOST = 256

_OPERATIONS = ("add", "sub", "mul", "div", "max", "min")


def is_chosen(graph: Graph, node: int) -> bool:
    """Whether a node is a choice among constants, or among such choices, of which few are."""
    return graph.nodes[node].operation == "select" and 0 < len(_leaves(graph, node)) <= _MOST


def _leaves(graph: Graph, node: int) -> set[float]:
    """Constants that are chosen among; none if anything else is."""
    leaves: set[float] = set()
    seen, waiting = {node}, [node]
    while waiting:
        operation, arguments = graph.nodes[waiting.pop()]
        if operation == CONSTANT:
            leaves.add(arguments[0])
        elif operation != "select" or len(seen) > 4 * _MOST:
            return set()
        else:
            waiting.extend(x for x in arguments[1:] if x not in seen)
            seen.update(arguments[1:])
    return leaves


def by_cases(graph: Graph, operation: str, *nodes: int) -> int | None:
    """An operation on numbers that are chosen among constants.

    Args:
        graph: where nodes are added.
        operation: its name; a quotient has no fraction.
        nodes: constants, or choices among them.

    Returns:
        A choice among the results; `None` for other operations and other nodes.
    """
    known = [graph.value(x) is not None for x in nodes]
    chosen = [x or is_chosen(graph, y) for x, y in zip(known, nodes, strict=True)]
    if operation not in _OPERATIONS or not all(chosen):
        return None
    done: dict[tuple[int, ...], int] = {}

    def made(*terms: int) -> int:
        if terms not in done:
            values = graph.values(list(terms))
            if values is not None:
                done[terms] = graph.constant(_result(operation, values))
            else:
                # What was chosen last is the outermost choice.
                asked = max(graph.nodes[x].arguments[0] for x in terms if _is_choice(graph, x))
                yes, no = (made(*(_side(graph, x, asked, i) for x in terms)) for i in (1, 2))
                done[terms] = graph.apply("select", asked, yes, no)
        return done[terms]

    return made(*nodes)


def _result(operation: str, values: list) -> float:
    """The operation on known integers; a quotient has no fraction."""
    return float(np.trunc(folded(operation, values)))


def _is_choice(graph: Graph, node: int) -> bool:
    return graph.nodes[node].operation == "select"


def _side(graph: Graph, node: int, asked: int, side: int) -> int:
    """What a node is where a condition holds, or where it does not."""
    operation, arguments = graph.nodes[node]
    return arguments[side] if operation == "select" and arguments[0] == asked else node


def ends(graph: Graph, nodes: list[int]) -> tuple[int, int] | None:
    """The least and the largest of several numbers, each known or chosen; `None` for others."""
    numbers: set[float] = set()
    for node in nodes:
        leaves = _leaves(graph, node)
        if not leaves or not all(map(math.isfinite, leaves)):
            return None
        numbers |= leaves
    return int(min(numbers)), int(max(numbers))
