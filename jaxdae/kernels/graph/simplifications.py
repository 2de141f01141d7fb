"""What scalar operations are, made simpler: on known numbers, zeros, ones and signs."""

import operator
from typing import Any

import numpy as np

from jaxdae.kernels.graph.operations import OPERATIONS

# What Python's own numbers do as IEEE 754 says, without a call into NumPy.
_EXACT = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}


def folded(operation: str, known: list):
    """The operation on known numbers."""
    exact = _EXACT.get(operation)
    if exact is not None:
        return exact(*known)
    with np.errstate(all="ignore"):
        numbers = [np.bool_(x) if isinstance(x, bool) else np.float64(x) for x in known]
        return OPERATIONS[operation].evaluate(*numbers)[()]


def _is(known, value: float) -> bool:
    return known is not None and known == value


def _add(graph: Any, known, x, y):
    if _is(known[0], 0):
        return y
    if _is(known[1], 0):
        return x
    for one, other in ((x, y), (y, x)):
        minus = graph.negated(other)
        if minus is not None:
            return graph.apply("sub", one, minus)
    return None


def _subtract(graph: Any, known, x, y):
    if _is(known[1], 0):
        return x
    if _is(known[0], 0):
        return graph.apply("neg", y)
    minus = graph.negated(y)
    return None if minus is None else graph.apply("add", x, minus)


def _multiply(graph: Any, known, x, y):
    for number, one, other in ((known[0], x, y), (known[1], y, x)):
        if _is(number, 0):
            return graph.constant(0.0)
        if _is(number, 1):
            return other
        if _is(number, -1):
            return graph.apply("neg", other)
        minus = graph.negated(other)
        if minus is not None:
            return graph.apply("neg", graph.apply("mul", one, minus))
    return None


def _divide(graph: Any, known, x, y):
    if _is(known[0], 0):
        return graph.constant(0.0)
    if _is(known[1], 1):
        return x
    minus = graph.negated(x)
    if minus is not None:
        return graph.apply("neg", graph.apply("div", minus, y))
    minus = graph.negated(y)
    return None if minus is None else graph.apply("neg", graph.apply("div", x, minus))


def _negate(graph: Any, known, x):
    del known
    return graph.negated(x)


def _select(graph: Any, known, condition, x, y):
    if known[0] is not None:
        return x if known[0] else y
    if x == y:
        return x
    sides = known[1], known[2]
    if sides in ((True, False), (False, True)) and isinstance(sides[0], bool):
        return condition if sides[0] else graph.apply("not", condition)
    operation, arguments = graph.nodes[condition]
    return graph.apply("select", arguments[0], y, x) if operation == "not" else None


def _junction(absorbing: bool):
    """Conjunction, which a condition that never holds decides, or disjunction."""

    def rule(graph: Any, known, x, y):
        for condition, other in ((known[0], y), (known[1], x)):
            if condition is not None:
                return graph.constant(absorbing) if condition == absorbing else other
        return x if x == y else None

    return rule


def _exclusive(graph: Any, known, x, y):
    for number, other in ((known[0], y), (known[1], x)):
        if number is not None:
            return graph.apply("not", other) if number else other
    return graph.constant(False) if x == y else None


def _single(graph: Any, known, x):
    """What is rounded already, or made of such numbers without another rounding."""
    del known
    operation, arguments = graph.nodes[x]
    parts = {"select": arguments[1:], "neg": arguments, "max": arguments, "min": arguments}
    parts = parts.get(operation, (x,))
    return x if all(_is_single(graph, y) for y in parts) else None


def _is_single(graph: Any, node: int) -> bool:
    value = graph.value(node)
    known = value is not None and not isinstance(value, np.bool_)
    return np.float32(value) == value if known else graph.nodes[node].operation == "single"


def _opposite(graph: Any, known, x):
    del known
    operation, arguments = graph.nodes[x]
    return arguments[0] if operation == "not" else None


def _comparison(name: str):
    """Of a choice of two numbers with a third: the condition of the choice, if not known."""

    def rule(graph: Any, known, *arguments):
        for i, node in enumerate(arguments):
            operation, parts = graph.nodes[node]
            other = known[1 - i]
            if other is None or operation != "select":
                continue
            cases = graph.values(list(parts[1:]))
            if cases is None:
                continue
            yes, no = (folded(name, [x, other] if i == 0 else [other, x]) for x in cases)
            return graph.apply("select", parts[0], graph.constant(yes), graph.constant(no))
        return None

    return rule


RULES = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "neg": _negate,
    "select": _select,
    "and": _junction(False),
    "or": _junction(True),
    "xor": _exclusive,
    "not": _opposite,
    "single": _single,
    **{name: _comparison(name) for name in ("lt", "le", "eq", "ne")},
}
