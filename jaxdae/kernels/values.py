"""Arrays while a program is traced to scalars: known numbers, or numbers of graph nodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph import Graph


class Symbols(NamedTuple):
    """An array of nodes of a graph.

    Args:
        nodes: their numbers, of any shape.
        boolean: whether they are truth values.
    """

    nodes: np.ndarray
    boolean: bool = False


# Known numbers are plain NumPy arrays.
Value = np.ndarray | Symbols


def as_symbols(graph: Graph, value: Value) -> Symbols:
    """An array as nodes; known numbers become constants."""
    if isinstance(value, Symbols):
        return value
    value = np.asarray(value)
    boolean = value.dtype == np.bool_
    nodes = [graph.constant(x) for x in value.ravel()]
    return Symbols(np.array(nodes, np.int32).reshape(value.shape), boolean)


def settled(graph: Graph, value: Value) -> Value:
    """Known numbers, where all nodes turned out to be constants."""
    if not isinstance(value, Symbols):
        return value
    found = [graph.value(int(x)) for x in value.nodes.ravel()]
    if any(x is None for x in found):
        return value
    dtype = np.bool_ if value.boolean else np.float64
    return np.array(found, dtype).reshape(value.nodes.shape)


def elementwise(graph: Graph, operation: str, *values: Value, boolean: bool = False) -> Symbols:
    """An operation on corresponding entries."""
    nodes = [as_symbols(graph, x).nodes for x in values]
    apply = np.frompyfunc(lambda *x: graph.apply(operation, *map(int, x)), len(nodes), 1)
    found = np.asarray(apply(*nodes))
    shape = np.broadcast_shapes(*map(np.shape, nodes))
    return Symbols(found.astype(np.int32).reshape(shape), boolean)


def reduced(graph: Graph, operation: str, value: Value, axes, boolean: bool = False) -> Symbols:
    """An operation along axes, from the first entry to the last."""
    nodes = as_symbols(graph, value).nodes
    axes = tuple(axes)
    rest = tuple(n for i, n in enumerate(nodes.shape) if i not in axes)
    flat = np.moveaxis(nodes, axes, range(len(axes))).reshape(-1, *rest)
    if not flat.shape[0]:
        empty = {"add": 0.0, "mul": 1.0, "max": -np.inf, "min": np.inf, "and": True, "or": False}
        return Symbols(np.full(rest, graph.constant(empty[operation]), np.int32), boolean)
    total = Symbols(flat[0], boolean)
    for row in flat[1:]:
        total = elementwise(graph, operation, total, Symbols(row, boolean), boolean=boolean)
    return total


def on_host(primitive, values, params) -> list[np.ndarray]:
    """A primitive of JAX on numbers that are known, or that only name what is moved."""
    with jax.ensure_compile_time_eval():
        found: Any = primitive.bind(*map(jnp.asarray, values), **params)
    return [known(x) for x in (found if primitive.multiple_results else [found])]


def known(x) -> Any:
    """Numbers as NumPy's, keys of random numbers as they are."""
    keys = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if keys else np.asarray(x)


def moved(
    primitive, values: list[Value], params, graph: Graph, fill: Callable | None = None
) -> list[Value]:
    """A primitive that moves entries and computes nothing, done to the nodes' numbers."""
    boolean = any(isinstance(x, Symbols) and x.boolean for x in values)
    symbolic = any(isinstance(x, Symbols) for x in values)
    given = [_named(graph, x) if symbolic else x for x in values]
    found = on_host(primitive, given, params)
    if fill is not None:
        found = [fill(x) for x in found]
    if not symbolic:
        return list(found)
    return [Symbols(x.astype(np.int32), boolean) for x in found]


def _named(graph: Graph, value: Value) -> np.ndarray:
    """Numbers of nodes; whole numbers, which are indices, stay."""
    if not isinstance(value, Symbols) and np.issubdtype(value.dtype, np.integer):
        return value
    return as_symbols(graph, value).nodes
