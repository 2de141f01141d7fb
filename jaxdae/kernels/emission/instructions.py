"""A scalar program as vector instructions: one entry of a vector for each member of a batch."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.graph.expressions import CALL, CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.registers import Condition, Number, Register
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.subprograms import ScalarProgram

# Results of `sincos`, in this order.
_OF_BOTH = ("sin", "cos")


def emit(
    writer: Writer,
    program: ScalarProgram,
    inputs: Callable[[int], str],
    calls: Any = None,
) -> list[Any]:
    """Write the instructions of a program; registers or constants of all outputs.

    Args:
        writer: where to.
        program: what to compute.
        inputs: register that holds an input, by its number.
        calls: writes calls of other programs, `write(node, callee, arguments, register)`, and reads
            their results, `result(node, number)`; `written` are positions of outputs that come to
            where they are wanted by themselves, for which nothing is returned.
    """
    return _Emission(writer, program, inputs, calls).write()


class Term(NamedTuple):
    """A product that is part of one sum or difference, and of nothing else.

    Args:
        product: its node.
        other: what it is added to, or subtracted from, or what is subtracted from it.
        negative: whether the product has the opposite sign.
        last: whether it is the second part.
        within: nodes that nothing else needs.
    """

    product: int
    other: int
    negative: bool
    last: bool
    within: tuple[int, ...]


def fused_terms(graph: Graph, needed: list[int], outputs) -> dict[int, Term]:
    """Of sums and differences, by their nodes, the product that is computed together with them.

    Fixed here, and not left to the compiler, which decides by what stands around a sum.
    """
    uses = Counter(int(x) for x in outputs)
    for node in needed:
        uses.update(graph.operands(node))
    terms = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation not in ("add", "sub"):
            continue
        for last, part in enumerate(arguments):
            negative = graph.nodes[part].operation == "neg" and uses[part] == 1
            product = graph.nodes[part].arguments[0] if negative else part
            if graph.nodes[product].operation == "mul" and uses[product] == 1:
                other = arguments[1 - last]
                terms[node] = Term(product, other, negative, bool(last), (part, product))
                break
    return terms


class _Emission:
    def __init__(self, writer: Writer, program: ScalarProgram, inputs, calls):
        self._w, self._inputs, self._calls = writer, inputs, calls
        self._graph, self._outputs = program.graph, program.outputs
        self._needed = self._graph.needed(self._outputs)
        self._angles = angles_of_both(self._graph, self._needed)
        self._pairs: dict[int, list[Number]] = {}
        self._registers: dict[int, Any] = {}
        self._terms = fused_terms(self._graph, self._needed, self._outputs)
        self._within = {x for term in self._terms.values() for x in term.within}

    def write(self) -> list[Any]:
        for node in self._needed:
            operation, arguments = self._graph.nodes[node]
            if operation == CALL:
                self._call(node, *arguments)
            elif operation not in (INPUT, CONSTANT, RESULT) and node not in self._within:
                self._registers[node] = self._computed(node, operation, arguments)
        written = () if self._calls is None else self._calls.written
        return [
            None if i in written else self._register(int(x)) for i, x in enumerate(self._outputs)
        ]

    def _register(self, node: int) -> Any:
        # What is only passed on from memory to memory is never loaded.
        if node not in self._registers:
            operation, arguments = self._graph.nodes[node]
            if operation == CONSTANT:
                cls = Condition if isinstance(arguments[0], bool) else Number
                self._registers[node] = cls(self._w, "").constant(arguments[0])
            else:
                read = self._inputs if operation == INPUT else self._calls.result
                self._registers[node] = Number(self._w, read(*arguments))
        return self._registers[node]

    def _call(self, node: int, callee, arguments) -> None:
        if self._calls is None:
            raise ValueError(f"a program that calls {callee.name} needs a module for both.")
        self._calls.write(node, callee, arguments, self._register)

    def _computed(self, node: int, operation: str, arguments) -> Register:
        if operation in _OF_BOTH and arguments[0] in self._angles:
            return self._of_both(arguments[0])[_OF_BOTH.index(operation)]
        if _is_marked(self._graph, operation, arguments):
            # By sums, which processors have more room for than for comparisons and choices.
            x = self._register(arguments[1])
            return x - (x - x)
        if node in self._terms:
            return self._sum(operation, self._terms[node])
        registers = [self._register(x) for x in arguments]
        row = OPERATIONS[operation]
        if row.function:
            return elementary_functions.call(operation, *registers)[0]
        return row.vector(*registers)

    def _of_both(self, angle: int) -> list[Number]:
        if angle not in self._pairs:
            both = elementary_functions.call(elementary_functions.BOTH, self._register(angle))
            self._pairs[angle] = both
        return self._pairs[angle]

    def _sum(self, operation: str, term: Term) -> Number:
        """A sum or difference of which one part is a product."""
        first, second = (self._register(x) for x in self._graph.nodes[term.product].arguments)
        other, minus = self._register(term.other), operation == "sub"
        if term.negative != (minus and term.last):
            first = -first
        if minus and not term.last:
            other = -other
        return Number(self._w, self._w.product_and_sum(first, second, other))


def elementary_calls(program: ScalarProgram) -> tuple[str, ...]:
    """Names of the elementary functions that a program calls."""
    graph = program.graph
    needed = graph.needed(program.outputs)
    pairs = angles_of_both(graph, needed)
    used = {elementary_functions.BOTH} if pairs else set()
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation not in _OF_BOTH or arguments[0] not in pairs:
            used.add(operation)
    return tuple(x for x in elementary_functions.VECTOR_FUNCTIONS if x in used)


def angles_of_both(graph: Graph, needed: list[int]) -> set[int]:
    """Nodes whose sine and cosine are both wanted."""
    sines, cosines = (
        {graph.nodes[x].arguments[0] for x in needed if graph.nodes[x].operation == name}
        for name in _OF_BOTH
    )
    return sines & cosines


def _is_marked(graph: Graph, operation: str, arguments) -> bool:
    """Whether a node is a number where that is finite, else NaN."""
    if operation != "select":
        return False
    condition, yes, no = arguments
    asked = graph.nodes[condition]
    other = graph.value(no)
    return asked == ("is_finite", (yes,)) and other is not None and bool(np.isnan(other))
