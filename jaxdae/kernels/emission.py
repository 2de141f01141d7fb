"""A scalar program as vector instructions: one entry of a vector for each member of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdae.kernels import vector_math
from jaxdae.kernels.graph import CALL, CONSTANT, INPUT, RESULT
from jaxdae.kernels.operations import OPERATIONS
from jaxdae.kernels.trace import ScalarProgram
from jaxdae.kernels.writer import Writer

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_INTRINSICS = {
    "sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "rint": "rint",
    "max": "maximum", "min": "minimum",
}  # fmt: skip
_COMPARISONS = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_LOGIC = {"and": "and", "or": "or", "xor": "xor"}


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
    results: dict[int, list[str]] = {}
    for node in graph.needed(program.outputs):
        operation, arguments = graph.nodes[node]
        if operation == CALL:
            if call is None:
                raise ValueError(f"a program that calls {arguments[0].name} needs a module for both.")
            given = [[held[x] for x in part] for part in arguments[1]]
            results[node] = call(arguments[0], arguments[1], given)
        elif operation == RESULT:
            held[node] = results[arguments[0]][arguments[1]]
        elif operation == INPUT:
            held[node] = inputs(arguments[0])
        elif operation == CONSTANT:
            held[node] = _constant(writer, arguments[0])
        else:
            given = [held[x] for x in arguments]
            held[node] = _instruction(writer, operation, given, _is_truth(graph, arguments))
    return [held[int(x)] for x in program.outputs]


def functions(program: ScalarProgram) -> tuple[str, ...]:
    """Names of the elementary functions that a program calls."""
    graph = program.graph
    used = {graph.nodes[x].operation for x in graph.needed(program.outputs)}
    known = (*vector_math.VECTOR_FUNCTIONS, *vector_math.LIBRARY)
    found = [name for name in known if name in used]
    return tuple(dict.fromkeys(y for x in found for y in (*vector_math.NEEDS.get(x, ()), x)))


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
    if operation in _COMPARISONS:
        return w.compare(_COMPARISONS[operation], *given)
    if operation in _LOGIC:
        return w.logical(_LOGIC[operation], *given)
    if operation == "select":
        return (w.choose_truth if truth else w.select)(*given)
    return _OTHERS.get(operation, _call(operation))(w, *given)


def _call(operation: str):
    def write(w: Writer, *given: str) -> str:
        wide = [_widened(w, x) for x in given]
        kind = f"<{w.width} x double>"
        arguments = ", ".join(f"{kind} {x}" for x in wide)
        found = w.put(f"call {kind} @vector_{operation}({arguments})")
        return found if w.dtype == np.float64 else w.put(f"fptrunc {kind} {found} to {w.vector}")

    return write


def _widened(w: Writer, x: str) -> str:
    if w.dtype == np.float64:
        return x
    return w.put(f"fpext {w.vector} {x} to <{w.width} x double>")


def _negative(w: Writer, x: str) -> str:
    return w.put(f"fneg {w.vector} {x}")


def _not(w: Writer, x: str) -> str:
    return w.logical("xor", x, w.splat("i1", "true"))


def _is_finite(w: Writer, x: str) -> str:
    return w.compare("olt", w.intrinsic("fabs", x), w.number(np.inf))


def _sign(w: Writer, x: str) -> str:
    one = w.intrinsic("copysign", w.number(1.0), x)
    moving = w.compare("one", x, w.number(0.0))
    return w.select(moving, one, x)


_OTHERS: dict[str, Callable[..., str]] = {
    "neg": _negative,
    "not": _not,
    "is_finite": _is_finite,
    "sign": _sign,
}
