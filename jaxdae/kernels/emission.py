"""A scalar program as vector instructions: one entry of a vector for each member of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdae.kernels import vector_math
from jaxdae.kernels.graph import CALL, CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.operations import OPERATIONS
from jaxdae.kernels.trace import ScalarProgram
from jaxdae.kernels.writer import Writer

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTRINSICS = {
    "sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "rint": "rint",
    "max": "maximum", "min": "minimum",
}  # fmt: skip
_COMPARISONS = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
# Results of `sincos`, in this order.
_OF_BOTH = ("sin", "cos")
_LOGIC = {"and": "and", "or": "or", "xor": "xor", "ne": "xor"}


def emit(
    writer: Writer,
    program: ScalarProgram,
    inputs: Callable[[int], str],
    call: Callable[[Any, list[tuple[int, ...]], list[list[str]]], list[str]] | None = None,
) -> list[str]:
    """Write the instructions of a program.

    Args:
        writer: where to.
        program: what to compute.
        inputs: register that holds an input, by its number.
        call: writes a call: of what, the nodes of its arguments, the registers that hold them; the
            registers of its results.

    Returns:
        Registers or constants of all outputs.
    """
    graph, held = program.graph, {}
    needed = graph.needed(program.outputs)
    angles, pairs = _angles_of_both(graph, needed), {}
    results: dict[int, list[str]] = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation == CALL:
            if call is None:
                raise ValueError(
                    f"a program that calls {arguments[0].name} needs a module for both."
                )
            given = [[held[x] for x in part] for part in arguments[1]]
            results[node] = call(arguments[0], arguments[1], given)
        elif operation == RESULT:
            held[node] = results[arguments[0]][arguments[1]]
        elif operation == INPUT:
            held[node] = inputs(arguments[0])
        elif operation == CONSTANT:
            held[node] = _constant(writer, arguments[0])
        elif operation in _OF_BOTH and arguments[0] in angles:
            angle = arguments[0]
            if angle not in pairs:
                pairs[angle] = vector_math.call(writer, "sincos", held[angle])
            held[node] = pairs[angle][_OF_BOTH.index(operation)]
        else:
            given = [held[x] for x in arguments]
            held[node] = _instruction(writer, operation, given, _is_truth(graph, arguments))
    return [held[int(x)] for x in program.outputs]


def functions(program: ScalarProgram) -> tuple[str, ...]:
    """Names of the elementary functions that a program calls."""
    graph = program.graph
    needed = graph.needed(program.outputs)
    pairs = _angles_of_both(graph, needed)
    used = {"sincos"} if pairs else set()
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation not in _OF_BOTH or arguments[0] not in pairs:
            used.add(operation)
    return tuple(x for x in vector_math.VECTOR_FUNCTIONS if x in used)


def _angles_of_both(graph: Graph, needed: list[int]) -> set[int]:
    """Nodes whose sine and cosine are both wanted."""
    sines, cosines = (
        {graph.nodes[x].arguments[0] for x in needed if graph.nodes[x].operation == name}
        for name in _OF_BOTH
    )
    return sines & cosines


def _is_truth(graph, arguments) -> bool:
    """Whether the last argument, and with it the result of a choice, is a truth value."""
    operation, own = graph.nodes[arguments[-1]]
    if operation == CONSTANT:
        return isinstance(own[0], bool)
    if operation == "select":
        return _is_truth(graph, own)
    return operation in OPERATIONS and OPERATIONS[operation].boolean


def _constant(w: Writer, value) -> str:
    if isinstance(value, bool):
        return w.splat("i1", "true" if value else "false")
    return w.number(value)


def _instruction(w: Writer, operation: str, given: list[str], truth: bool) -> str:
    if operation in _ARITHMETIC:
        return w.binary(_ARITHMETIC[operation], *given)
    if operation in _INTRINSICS:
        return w.intrinsic(_INTRINSICS[operation], *given)
    if operation in _LOGIC and truth:
        return w.logical(_LOGIC[operation], *given)
    if operation == "eq" and truth:
        return _not(w, w.logical("xor", *given))
    if operation in _COMPARISONS:
        return w.compare(_COMPARISONS[operation], *given)
    if operation == "select":
        return (w.choose_truth if truth else w.select)(*given)
    if operation in _OTHERS:
        return _OTHERS[operation](w, *given)
    return vector_math.call(w, operation, *given)[0]


def _negative(w: Writer, x: str) -> str:
    return w.put(f"fneg {w.vector} {x}")


def _not(w: Writer, x: str) -> str:
    return w.logical("xor", x, w.splat("i1", "true"))


def _is_finite(w: Writer, x: str) -> str:
    return w.compare("olt", w.intrinsic("fabs", x), w.number(np.inf))


def _sign(w: Writer, x: str) -> str:
    one, zero = (w.intrinsic("copysign", w.number(value), x) for value in (1.0, 0.0))
    # Subnormal numbers count as zero where the processor takes them so, as under XLA.
    size = w.select(w.compare("oeq", x, w.number(0.0)), zero, one)
    return w.select(w.compare("uno", x, x), x, size)


_OTHERS: dict[str, Callable[..., str]] = {
    "neg": _negative,
    "not": _not,
    "is_finite": _is_finite,
    "sign": _sign,
}
