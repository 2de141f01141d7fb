"""Linear solves of our own, system by system and scalar by scalar."""

from collections.abc import Callable

import numpy as np

from jaxdae.kernels.graph.elimination import solve_saddle_point, solve_symmetric
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import as_symbols, Symbols, Value
from jaxdae.linalg.positive_definite import POSITIVE_DEFINITE
from jaxdae.linalg.saddle_point import SADDLE_POINT
from jaxdae.linalg.solve_primitive import Batch


def _for_each(solve: Callable) -> Callable:
    """A rule for a batch of systems, from what solves one of them."""

    def rule(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list[Value]:
        del evaluate  # what it would follow is not entered
        batch: Batch = equation.params["batch"]
        nodes = [_with_batch(batch, i, as_symbols(graph, x).nodes) for i, x in enumerate(arguments)]
        results = [np.zeros(x.aval.shape, np.int32) for x in equation.outvars]
        for place in np.ndindex(*batch.sizes):
            solutions = solve(graph, *(x[place] for x in nodes))
            for all_systems, one in zip(results, solutions, strict=True):
                all_systems[place] = one
        return [Symbols(x) for x in results]

    return rule


def _with_batch(batch: Batch, number: int, nodes: np.ndarray) -> np.ndarray:
    """An argument for each system of a batch."""
    core, present = batch.core(number, nodes.shape), batch.present[number]
    axes = (size if x else 1 for size, x in zip(batch.sizes, present, strict=True))
    return np.broadcast_to(nodes.reshape(*axes, *core), (*batch.sizes, *core))


SOLVES: dict[str, Callable] = {
    POSITIVE_DEFINITE: _for_each(solve_symmetric),
    SADDLE_POINT: _for_each(solve_saddle_point),
}
