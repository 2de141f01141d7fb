"""Operations on each of many numbers, such as those of a layer of a network, that stay one call."""

from typing import NamedTuple

import jax
import numpy as np

from jaxdae.kernels.graph.dense_products import are_consecutive
from jaxdae.kernels.graph.expressions import Graph, RESULT
from jaxdae.kernels.graph.operations import STRAIGHT_LINES

# Fewer numbers are written out: what is known of them is used there.
_FEWEST = 32
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "max", "min", "sqrt", "abs")


class Map(NamedTuple):
    """An operation on each of some numbers.

    Args:
        operation: its name.
        size: how many numbers.
        single: for each argument, whether it is one number for all.
    """

    operation: str
    size: int
    single: tuple[bool, ...]

    @property
    def name(self) -> str:
        """In words that are the same in every process."""
        return f"map_{self.operation}_{self.size}_{self.single}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return [jax.ShapeDtypeStruct((self.size,), np.float64)]

    def kinds(self, shared: tuple[bool, ...]) -> tuple[str, ...]:
        """Of each argument: numbers of every lane, those that all lanes share, or one number."""
        pairs = zip(self.single, shared, strict=True)
        return tuple("one" if one else "shared" if same else "every" for one, same in pairs)


def mapped(graph: Graph, operation: str, nodes: list[np.ndarray]) -> np.ndarray | None:
    """Nodes of an operation on the entries of arrays as one call, where that is worth it.

    Args:
        graph: where the call is added.
        operation: what is done.
        nodes: of its arguments, of one shape.

    Returns:
        Nodes of its values; `None` for few numbers, for other operations, and for arithmetic of
        what no call gives, of which something may be known.
    """
    if nodes[0].size < _FEWEST or operation not in (*ARITHMETIC, *STRAIGHT_LINES):
        return None
    flat = [x.ravel().tolist() for x in nodes]
    single = tuple(all(y == x[0] for y in x) for x in flat)
    arrays = [x for x, one in zip(flat, single, strict=True) if not one]
    if not arrays or (operation in ARITHMETIC and not _are_results(graph, arrays)):
        return None
    if any(one and _is_zero(graph, x[0]) for x, one in zip(flat, single, strict=True)):
        return None
    arguments = tuple(tuple(x[:1] if one else x) for x, one in zip(flat, single, strict=True))
    (result,) = graph.call(Map(operation, len(flat[0]), single), arguments)
    return result.reshape(nodes[0].shape)


def _are_results(graph: Graph, arrays: list[list[int]]) -> bool:
    """Whether arrays lie in memory, one of them as what a call gives."""
    called = any(graph.nodes[x[0]].operation == RESULT for x in arrays)
    return called and all(are_consecutive(graph, x) for x in arrays)


def _is_zero(graph: Graph, node: int) -> bool:
    value = graph.value(node)
    return value is not None and value == 0
