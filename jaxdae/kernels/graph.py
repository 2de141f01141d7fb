"""Scalar expressions as a graph in which equal ones are one node."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.operations import OPERATIONS

CONSTANT, INPUT = "constant", "input"
# A call of another program, and one of its results.
CALL, RESULT = "call", "result"


class Node(NamedTuple):
    """One scalar.

    Args:
        operation: a name of `OPERATIONS`, `CONSTANT`, `INPUT`, `CALL` or `RESULT`.
        arguments: numbers of the nodes it is made of; of a constant its value, of an input its
            number, of a call what is called and the nodes of each argument, of a result the call
            and its number.
    """

    operation: str
    arguments: tuple


class Graph:
    """Scalar expressions, folded and shared as they are made.

    Rewriting keeps every rounding, with two exceptions: a constant zero annihilates what it is
    multiplied with and what divides it, whatever that is, which is how structural zeros of
    Jacobians and mass matrices disappear; and the sign of a zero that is added is not kept.
    """

    def __init__(self):
        self.nodes: list[Node] = []
        self._known: dict[tuple, int] = {}

    def constant(self, value: float | bool | np.bool_) -> int:
        """A number or truth value."""
        if isinstance(value, bool | np.bool_):
            return self._add(CONSTANT, (bool(value),), key=("truth", bool(value)))
        value = float(value)
        # By their bits: zeros of both signs are different, and NaN is one with itself.
        return self._add(CONSTANT, (value,), key=("number", np.float64(value).tobytes()))

    def input(self, number: int) -> int:
        """An input."""
        return self._add(INPUT, (number,))

    def call(self, callee: Any, arguments: tuple[tuple[int, ...], ...], results: int) -> list[int]:
        """All results of a call, one after the other; equal calls are one."""
        node = self._add(CALL, (callee, arguments))
        return [self._add(RESULT, (node, i)) for i in range(results)]

    def apply(self, operation: str, *arguments: int) -> int:
        """An operation on nodes, simplified."""
        known = [self.value(x) for x in arguments]
        if all(x is not None for x in known):
            with np.errstate(all="ignore"):
                return self.constant(OPERATIONS[operation].evaluate(*known)[()])
        rule = _RULES.get(operation)
        simpler = None if rule is None else rule(self, known, *arguments)
        if simpler is not None:
            return simpler
        if OPERATIONS[operation].commutative and arguments[0] > arguments[1]:
            arguments = arguments[::-1]
        return self._add(operation, arguments)

    def value(self, node: int):
        """The value of a constant, or `None`."""
        operation, arguments = self.nodes[node]
        if operation != CONSTANT:
            return None
        (value,) = arguments
        return np.bool_(value) if isinstance(value, bool) else np.float64(value)

    def negated(self, node: int) -> int | None:
        """`x` of `-x`, or `None`."""
        operation, arguments = self.nodes[node]
        return arguments[0] if operation == "neg" else None

    def needed(self, outputs) -> list[int]:
        """Nodes that outputs are made of, in the order in which they were made."""
        found: set[int] = set()
        waiting = [int(x) for x in outputs]
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            waiting.extend(self.operands(node))
        return sorted(found)

    def operands(self, node: int) -> tuple[int, ...]:
        """Nodes that a node is made of."""
        operation, arguments = self.nodes[node]
        if operation in (CONSTANT, INPUT):
            return ()
        if operation == CALL:
            return tuple(x for part in arguments[1] for x in part)
        return arguments[:1] if operation == RESULT else arguments

    def callees(self, outputs) -> list:
        """What outputs call, each once."""
        needed = (self.nodes[x] for x in self.needed(outputs))
        return list(dict.fromkeys(x.arguments[0] for x in needed if x.operation == CALL))

    def _add(self, operation: str, arguments: tuple, key: tuple | None = None) -> int:
        key = (operation, *arguments) if key is None else key
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = len(self.nodes)
            self.nodes.append(Node(operation, arguments))
        return node


def _is(known, value: float) -> bool:
    return known is not None and known == value


def _add(graph: Graph, known, x, y):
    if _is(known[0], 0):
        return y
    if _is(known[1], 0):
        return x
    for one, other in ((x, y), (y, x)):
        minus = graph.negated(other)
        if minus is not None:
            return graph.apply("sub", one, minus)
    return None


def _subtract(graph: Graph, known, x, y):
    if _is(known[1], 0):
        return x
    if _is(known[0], 0):
        return graph.apply("neg", y)
    minus = graph.negated(y)
    return None if minus is None else graph.apply("add", x, minus)


def _multiply(graph: Graph, known, x, y):
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


def _divide(graph: Graph, known, x, y):
    if _is(known[0], 0):
        return graph.constant(0.0)
    if _is(known[1], 1):
        return x
    minus = graph.negated(x)
    if minus is not None:
        return graph.apply("neg", graph.apply("div", minus, y))
    minus = graph.negated(y)
    return None if minus is None else graph.apply("neg", graph.apply("div", x, minus))


def _negate(graph: Graph, known, x):
    del known
    return graph.negated(x)


def _select(graph: Graph, known, condition, x, y):
    del graph, condition
    if known[0] is not None:
        return x if known[0] else y
    return x if x == y else None


def _both(graph: Graph, known, x, y):
    del graph
    for number, other in ((known[0], y), (known[1], x)):
        if number is not None and number:
            return other
    return x if x == y else None


def _either(graph: Graph, known, x, y):
    del graph
    for number, other in ((known[0], y), (known[1], x)):
        if number is not None and not number:
            return other
    return x if x == y else None


_RULES = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "neg": _negate,
    "select": _select,
    "and": _both,
    "or": _either,
}
