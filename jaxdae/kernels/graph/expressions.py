"""Scalar expressions as a graph in which equal ones are one node."""

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.graph.simplifications import folded, RULES

CONSTANT, INPUT = "constant", "input"
# A call of another program, and one of its results.
CALL, RESULT = "call", "result"

# With a constant zero they lose the sign of another.
_LOSE_SIGNS = frozenset(("add", "sub", "mul", "div"))
_bits = struct.Struct("<d").pack
# Operations that a program may have, and equations of JAX that it may be traced from. Machine code
# of a straight line takes some 0.1 ms an operation up to here, and grows with the square beyond.
MOST_OPERATIONS, MOST_EQUATIONS = 40_000, 60_000
# While a program is traced, so many times these, those included that no result needs: what loops
# over parts of a table do to the rest of it.
_TRACED = 3


def _too_many(count: int) -> str:
    return f"its scalar operations are more than {count}, which would take too long to compile"


class TooManyOperations(Exception):  # noqa: N818
    """A program that would take too long to compile."""


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
    Jacobians and mass matrices disappear; and the sign of a zero that is added is not kept. Where
    it is `exact` there are no exceptions.

    Args:
        varying: inputs that change from call to call come first, and are so many; without it all.
        dtype: of its numbers; without it they are of any precision.
        loops: whether products of dense matrices become calls.
        exact: whether zeros keep their signs, and what is multiplied with them its infinities.
    """

    def __init__(
        self,
        varying: int | None = None,
        dtype: np.dtype | None = None,
        loops: bool = False,
        exact: bool = False,
    ):
        self.varying, self.dtype, self.loops, self.exact = varying, dtype, loops, exact
        # Equations of JAX that are to be exact, by their identity.
        self.readers: dict[int, Any] = {}
        # What makes nodes of an equation of JAX, where that is not `evaluated` of the tracing.
        self.each: Callable | None = None
        # Whether loops may turn as often as values say.
        self.open_ended = False
        # Turns up to which loops that read rows by integers are written out; `None`: as is best.
        self.few_turns: int | None = None
        self.nodes: list[Node] = []
        self._fixed: list[bool] = []
        self._known: dict[object, int] = {}
        self._constants: dict[int, float | bool] = {}
        self._needed: dict[bytes, list[int]] = {}
        self._operations = self._equations = 0
        # Operations that it may have.
        self.most = MOST_OPERATIONS
        # Inputs whose nodes have their numbers.
        self.numbered = 0
        # Of a turn of a loop, nodes of integers that are known in each turn, and what they are.
        self.places: dict[int, np.ndarray] = {}
        # Nodes of calls.
        self.call_nodes: list[int] = []

    def count_equations(self, count: int) -> None:
        """Take note of equations to be traced; an error when these are too many for a program."""
        self._equations += count
        self.check_equations(0)

    def check_equations(self, more: int) -> None:
        """Refuse more equations before the first of them is traced, as `count_equations` would."""
        if self._equations + more > MOST_EQUATIONS:
            raise TooManyOperations(
                f"the equations of its loops, turn by turn, are more than {MOST_EQUATIONS}"
            )

    def constant(self, value: float | bool | np.bool_) -> int:
        """A number or boolean."""
        if isinstance(value, bool | np.bool_):
            known = bool(value)
            key: object = (CONSTANT, known)
        else:
            known = float(value)
            # By their bits: zeros of both signs are different, and NaN is one with itself.
            key = _bits(known)
        node = self._known.get(key)
        if node is None:
            node = self._new(key, CONSTANT, (known,))
            self._constants[node] = known
        return node

    def input(self, number: int) -> int:
        """An input."""
        key = (INPUT, number)
        node = self._known.get(key)
        return self._new(key, INPUT, (number,)) if node is None else node

    def inputs(self, count: int) -> None:
        """Make the first inputs of an empty graph, whose nodes have their numbers."""
        self.numbered = count
        self.nodes.extend(Node(INPUT, (i,)) for i in range(count))
        self._known.update(((INPUT, i), i) for i in range(count))
        first = count if self.varying is None else min(self.varying, count)
        self._fixed.extend([False] * first + [True] * (count - first))

    def call(self, callee: Any, arguments: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
        """Results of a call, in the shapes that the callee names; equal calls are one."""
        shapes = [x.shape for x in callee.results]
        ends = np.cumsum([int(np.prod(x)) for x in shapes]).tolist()
        nodes = np.arange(ends[-1] if ends else 0, dtype=np.int32)
        nodes += self.call_node(callee, arguments) + 1
        parts = np.split(nodes, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]

    def call_node(self, callee: Any, arguments: tuple[tuple[int, ...], ...]) -> int:
        """The node of a call, which those of its results follow."""
        key = (CALL, callee, arguments)
        node = self._known.get(key)
        if node is None:
            node = self._new(key, CALL, (callee, arguments))
            self.call_nodes.append(node)
            count = sum(int(np.prod(x.shape)) for x in callee.results)
            self.nodes.extend(Node(RESULT, (node, i)) for i in range(count))
            self._fixed.extend([self._fixed[node]] * count)
        return node

    def apply(self, operation: str, *arguments: int) -> int:
        """An operation on nodes, simplified."""
        if self.exact and operation in _LOSE_SIGNS:
            node = self._exactly(operation, *arguments)
            if node is not None:
                return node
        key = (operation, *arguments)
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = self._made(operation, arguments)
        return node

    def _exactly(self, operation: str, x: int, y: int) -> int | None:
        """An operation with a constant zero; `None` where nothing is lost by the usual way."""
        zero = [self._constants.get(node) == 0 for node in (x, y)]
        if zero[0] == zero[1] or (operation == "div" and zero[1]):
            return None
        constant, other = (x, y) if zero[0] else (y, x)
        negative = math.copysign(1.0, self._constants[constant]) < 0
        if operation == "sub":
            if zero[0] and negative:
                return None
            # x - 0 is x + -0.
            negative = zero[1] and not negative
        kept = operation in ("add", "sub") and not (operation == "sub" and zero[0])
        if kept and (negative or self.is_positive(other)):
            return other
        key = ("exactly", operation, x, y)
        node = self._known.get(key)
        return self._new(key, operation, (x, y)) if node is None else node

    def is_positive(self, node: int, depth: int = 8) -> bool:
        """Whether a node is surely no negative zero."""
        operation, parts = self.nodes[node]
        if operation == CONSTANT:
            return parts[0] != 0 or math.copysign(1.0, parts[0]) > 0
        if operation in OPERATIONS and OPERATIONS[operation].positive:
            return True
        if depth == 0 or operation not in ("add", "sub", "mul", "select"):
            return False
        if operation == "mul":
            return parts[0] == parts[1]
        if operation == "select":
            # Where x is zero, zero, else x.
            asked, compared = self.nodes[parts[0]]
            zero = self.constant(0.0)
            is_zero = asked == "eq" and parts[2] in compared and zero in compared
            return all(self.is_positive(x, depth - 1) for x in parts[1 : 2 if is_zero else 3])
        return any(self.is_positive(x, depth - 1) for x in parts[: 2 if operation == "add" else 1])

    def dot(self, a: list[int], b: list[int]) -> int:
        """Sum of products, in their order."""
        apply, constants = self.apply, self._constants
        if len(a) == 1:
            return apply("mul", a[0], b[0])
        total = self.constant(0.0)
        for x, y in zip(a, b, strict=True):
            known, other = constants.get(x), constants.get(y)
            # What structural zeros give is not even looked up.
            if (known == 0 and other is None) or (known is None and other == 0):
                continue
            total = apply("add", total, apply("mul", x, y))
        return total

    def _made(self, operation: str, arguments: tuple[int, ...]) -> int:
        constants = self._constants
        known = [constants.get(x) for x in arguments]
        if None not in known:
            return self.constant(folded(operation, known))
        rule = RULES.get(operation)
        simpler = None if rule is None else rule(self, known, *arguments)
        if simpler is not None:
            return simpler
        if OPERATIONS[operation].commutative and arguments[0] > arguments[1]:
            arguments = arguments[::-1]
        key = (operation, *arguments)
        node = self._known.get(key)
        return self._new(key, operation, arguments) if node is None else node

    def _new(self, key: object, operation: str, arguments: tuple) -> int:
        node = self._known[key] = len(self.nodes)
        self.nodes.append(Node(operation, arguments))
        if operation in OPERATIONS:
            self._operations += 1
            if self._operations > _TRACED * self.most:
                raise TooManyOperations(_too_many(_TRACED * self.most))
        self._fixed.append(self._is_fixed(operation, arguments))
        return node

    def check_needed(self, outputs) -> None:
        """Refuse more operations than machine code is made of in time."""
        if self._operations > self.most:
            needed = self.needed(outputs)
            if sum(self.nodes[x].operation in OPERATIONS for x in needed) > self.most:
                raise TooManyOperations(_too_many(self.most))

    def _is_fixed(self, operation: str, arguments: tuple) -> bool:
        if operation == INPUT:
            return self.varying is not None and arguments[0] >= self.varying
        if operation == CALL:
            return all(self._fixed[x] for part in arguments[1] for x in part)
        return operation == CONSTANT or all(self._fixed[x] for x in arguments)

    def fixed(self, node: int) -> bool:
        """Whether a node is the same in all calls."""
        return self._fixed[node]

    def value(self, node: int):
        """The value of a constant, or `None`."""
        value = self._constants.get(node)
        if value is None:
            return None
        return np.bool_(value) if isinstance(value, bool) else np.float64(value)

    def values(self, nodes: list[int]) -> list[float | bool] | None:
        """Values of constants, or `None` if one of the nodes is none."""
        # Mostly the first one is none.
        if nodes and nodes[0] not in self._constants:
            return None
        known = [self._constants[x] for x in nodes if x in self._constants]
        return known if len(known) == len(nodes) else None

    def negated(self, node: int) -> int | None:
        """`x` of `-x`, or `None`."""
        operation, arguments = self.nodes[node]
        return arguments[0] if operation == "neg" else None

    def is_boolean(self, node: int) -> bool:
        """Whether a node is a boolean."""
        operation, arguments = self.nodes[node]
        if operation == CONSTANT:
            return isinstance(arguments[0], bool)
        if operation == "select":
            return self.is_boolean(arguments[-1])
        return operation in OPERATIONS and OPERATIONS[operation].boolean

    def needed(self, outputs) -> list[int]:
        """Nodes that outputs are made of, in the order in which they were made."""
        key = np.asarray(outputs, np.int64).tobytes()
        if key not in self._needed:
            result: set[int] = set()
            waiting = [int(x) for x in outputs]
            while waiting:
                node = waiting.pop()
                if node not in result:
                    result.add(node)
                    waiting.extend(self.operands(node))
            self._needed[key] = sorted(result)
        return self._needed[key]

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
        return list(dict.fromkeys(self.calls(outputs)))

    def calls(self, outputs) -> list:
        """What outputs call, as often as they do."""
        needed = (self.nodes[x] for x in self.needed(outputs))
        return [x.arguments[0] for x in needed if x.operation == CALL]


def copied(graph: Graph, node: int, to: Graph, known: Callable[[int], int]) -> int:
    """A node of one graph in another, where those that it is made of are known by their numbers."""
    operation, arguments = graph.nodes[node]
    if operation == INPUT:
        return to.input(arguments[0])
    if operation == CONSTANT:
        return to.constant(arguments[0])
    if operation == CALL:
        callee, parts = arguments
        nodes = tuple(tuple(known(x) for x in part) for part in parts)
        return to.call_node(callee, nodes)
    if operation == RESULT:
        return known(arguments[0]) + 1 + arguments[1]  # results follow their call
    return to.apply(operation, *(known(x) for x in arguments))
