"""Numbers of other types than that of a kernel: rounded as their type says, or refused."""

import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import COMPLEX, elementwise, Refusal, Symbols, Value

# Of the exponent and of the mantissa.
_BITS = {np.dtype(np.float64): (11, 52), np.dtype(np.float32): (8, 23)}
_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)


def check(graph: Graph, shapes) -> None:
    """Refuse types whose numbers a kernel cannot compute with.

    Args:
        graph: of the kernel.
        shapes: shapes and types of the arguments and results of an operation.

    Raises:
        Refusal: for complex numbers, for floating-point types of less than single precision, for
            double precision in a kernel of single precision, and for keys of random numbers.
    """
    for shape in shapes:
        kind = shape.dtype
        if jnp.issubdtype(kind, jnp.complexfloating):
            raise Refusal(COMPLEX)
        if not (kind in (_DOUBLE, _SINGLE) or jnp.issubdtype(kind, np.integer) or kind == np.bool_):
            raise Refusal(f"kernels compute with no numbers of type {kind}")
        # What stems from Python's numbers alone is rounded where it meets a number of an array.
        if kind == _DOUBLE and graph.dtype == _SINGLE and not shape.weak_type:
            raise Refusal("numbers of double precision stand in a kernel of single precision")


def reduced(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """`jax.lax.reduce_precision`."""
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    if bits == _BITS.get(np.dtype(equation.outvars[0].aval.dtype)):
        return arguments
    if bits != _BITS[_SINGLE] or graph.dtype != _DOUBLE:
        raise Refusal(f"numbers of {bits[0]} and {bits[1]} bits stand in a kernel of {graph.dtype}")
    return [elementwise(graph, "single", arguments[0])]


def kept(graph: Graph, value: Value, dtype) -> Value:
    """A result as its type has it: in double precision, numbers of single precision are rounded."""
    rounds = isinstance(value, Symbols) and not value.boolean and value.bounds is None
    if rounds and graph.dtype == _DOUBLE and dtype == _SINGLE:
        return elementwise(graph, "single", value)
    return value
