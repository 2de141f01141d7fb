"""A scalar program as JAX operations: the same numbers where there is no machine code."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, INPUT
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.subprograms import ScalarProgram

OWN: dict[str, Callable] = {name: x.portable for name, x in OPERATIONS.items()}


def as_jax(program: ScalarProgram) -> Callable:
    """The program as a function of arrays, traceable by JAX.

    Args:
        program: from `scalarize`.

    Returns:
        A function of the arrays that the traced one took, which returns a list of its results.
    """

    def run(*arguments):
        inputs = jnp.concatenate([jnp.ravel(x) for x in arguments])
        return _shaped(program, results(program, inputs))

    return run


def results(program: ScalarProgram, inputs, functions: dict[str, Callable] = OWN) -> list:
    """Entries of all results from entries of all arguments.

    Args:
        program: from `scalarize`.
        inputs: the entries, by number; scalars, or arrays that can be broadcast together, all of
            one floating-point type.
        functions: functions for operations.

    Returns:
        One value for each entry of the results.
    """
    graph, held = program.graph, {}
    for node in graph.needed(program.outputs):
        operation, arguments = graph.nodes[node]
        if operation == INPUT:
            held[node] = inputs[arguments[0]]
        elif operation == CONSTANT:
            # A NumPy scalar is written into the program, and is not one of its arguments.
            truth = isinstance(arguments[0], bool)
            held[node] = np.bool_(arguments[0]) if truth else inputs[0].dtype.type(arguments[0])
        else:
            held[node] = functions[operation](*(held[x] for x in arguments))
    return [held[int(x)] for x in program.outputs]


def _shaped(program: ScalarProgram, scalars: list) -> list[jax.Array]:
    """Results from their entries, one after the other."""
    collected, at = [], 0
    for shape in program.results:
        size = int(np.prod(shape.shape))
        entries = [jnp.asarray(x, shape.dtype) for x in scalars[at : at + size]]
        collected.append(
            jnp.stack(entries).reshape(shape.shape) if size else jnp.zeros(shape.shape)
        )
        at += size
    return collected
