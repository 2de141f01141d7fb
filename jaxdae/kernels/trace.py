"""From a function written for JAX to a graph of scalar operations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from jaxdae.kernels import rules
from jaxdae.kernels.graph import Graph
from jaxdae.kernels.values import as_symbols, known, on_host, settled, Symbols, Value


class UnsupportedOperationError(NotImplementedError):
    """A function does something that cannot be made a kernel of."""


class _RefusedError(Exception):
    """A primitive, why it is refused, and the place where it was called, as soon as it is known."""

    def __init__(self, primitive: str, reason: str, place: str | None):
        super().__init__(primitive, reason, place)
        self.primitive, self.reason, self.place = primitive, reason, place


class ScalarProgram(NamedTuple):
    """A function of arrays of fixed shapes as scalar operations.

    Args:
        graph: the operations.
        outputs: nodes of all entries of all results, one after the other.
        inputs: shape and dtype of each argument; their entries are the graph's inputs, numbered
            one after the other.
        results: shape and dtype of each result.
    """

    graph: Graph
    outputs: np.ndarray
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]


def scalarize(function: Callable, *arguments) -> ScalarProgram:
    """Trace a function to scalar operations.

    Loops with a known number of turns are unrolled, both sides of a condition that depends on the
    inputs are computed, and calls are entered. What is equal is computed once.

    Args:
        function: traceable by JAX; takes and returns arrays.
        arguments: examples of its arguments, or their shapes; floating-point.

    Returns:
        `ScalarProgram`.

    Raises:
        UnsupportedOperationError: naming the primitive, and the place in the user's code.
    """
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arguments)
    closed = jax.make_jaxpr(function)(*shapes)
    graph, given, first = Graph(), [], 0
    for shape in shapes:
        size = int(np.prod(shape.shape))
        nodes = [graph.input(first + i) for i in range(size)]
        given.append(Symbols(np.array(nodes, np.int32).reshape(shape.shape)))
        first += size
    try:
        found = evaluate(graph, closed, given)
    except _RefusedError as refused:
        raise UnsupportedOperationError(
            f"{refused.primitive} cannot be made part of a kernel: {refused.reason}. It comes from "
            f"{refused.place or 'code inside JAX'}. Write it otherwise, or leave it to JAX."
        ) from None
    flat = [as_symbols(graph, x).nodes.ravel() for x in found]
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in closed.out_avals)
    outputs = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    return ScalarProgram(graph, outputs, shapes, results)


def evaluate(graph: Graph, closed: Any, arguments: list[Value]) -> list[Value]:
    """Results of a jaxpr, operation by operation."""
    jaxpr, fixed = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, ())
    values: dict[Any, Value] = {}

    def read(atom) -> Value:
        return known(atom.val) if isinstance(atom, jex.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, map(known, fixed), strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        given = [settled(graph, read(x)) for x in equation.invars]
        values.update(zip(equation.outvars, _apply(graph, equation, given), strict=True))
    return [read(x) for x in jaxpr.outvars]


def _apply(graph: Graph, equation, given: list[Value]) -> list[Value]:
    primitive = equation.primitive
    rule = rules.RULES.get(primitive.name)
    entered = primitive.name in rules.CALLS or primitive.name in rules.CONTROL
    if not entered and not any(isinstance(x, Symbols) for x in given):
        return list(on_host(primitive, given, equation.params))
    try:
        if entered:
            enter = rules.CALLS.get(primitive.name) or rules.CONTROL[primitive.name]
            return enter(graph, equation.params, given, evaluate)
        if rule is None:
            raise rules.Refusal("there is no rule for it")
        return rule(graph, equation, given)
    except rules.Refusal as reason:
        raise _RefusedError(primitive.name, str(reason), _place(equation)) from None
    except _RefusedError as inner:
        inner.place = inner.place or _place(equation)
        raise


def _place(equation) -> str | None:
    """The line of the user's code, if it is known."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else list(traceback.frames)
    own = ("/jax/", "/jaxlib/", "/equinox/", "/diffrax/", "/jaxdae/kernels/", "/lineax/")
    for frame in frames:
        if not any(part in frame.file_name.replace("\\", "/") for part in own):
            return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return None
