"""A scalar program as vector instructions: one entry of a vector for each member of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdae.kernels.graph.expressions import CALL, CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.graph.fused_terms import fused_terms, Term
from jaxdae.kernels.llvm.mathematics import vector_math
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.trace import ScalarProgram

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
    calls: Any = None,
    far: list[str] | None = None,
) -> list[str]:
    """Write the instructions of a program.

    Args:
        writer: where to.
        program: what to compute.
        inputs: register that holds an input, by its number.
        calls: writes calls of other programs, `write(node, callee, arguments, register)`, and reads
            their results, `result(node, number)`; `written` are positions of outputs that come to
            where they are wanted by themselves, for which nothing is returned.
        far: gets registers of how far arguments of functions are, which are wrong where these are
            too large. Without it functions see to that themselves.

    Returns:
        Registers or constants of all outputs.
    """
    return _Emission(writer, program, inputs, calls, far).write()


class _Emission:
    def __init__(self, writer: Writer, program: ScalarProgram, inputs, calls, far):
        self._w, self._inputs, self._calls, self._far = writer, inputs, calls, far
        self._graph, self._outputs = program.graph, program.outputs
        self._needed = self._graph.needed(self._outputs)
        self._angles = _angles_of_both(self._graph, self._needed)
        self._pairs: dict[int, list[str]] = {}
        self._held: dict[int, str] = {}
        self._terms = fused_terms(self._graph, self._needed, self._outputs)
        self._within = {x for term in self._terms.values() for x in term.within}

    def write(self) -> list[str]:
        for node in self._needed:
            operation, arguments = self._graph.nodes[node]
            if operation == CALL:
                self._call(node, *arguments)
            elif operation not in (INPUT, CONSTANT, RESULT) and node not in self._within:
                self._held[node] = self._computed(node, operation, arguments)
        if self._calls is None:
            return [self._register(int(x)) for x in self._outputs]
        return [
            "" if i in self._calls.written else self._register(int(x))
            for i, x in enumerate(self._outputs)
        ]

    def _register(self, node: int) -> str:
        # What is only passed on from memory to memory is never loaded.
        if node not in self._held:
            operation, arguments = self._graph.nodes[node]
            if operation == INPUT:
                self._held[node] = self._inputs(arguments[0])
            elif operation == CONSTANT:
                self._held[node] = _constant(self._w, arguments[0])
            else:
                self._held[node] = self._calls.result(*arguments)
        return self._held[node]

    def _call(self, node: int, callee, arguments) -> None:
        if self._calls is None:
            raise ValueError(f"a program that calls {callee.name} needs a module for both.")
        self._calls.write(node, callee, arguments, self._register)

    def _computed(self, node: int, operation: str, arguments) -> str:
        if operation in _OF_BOTH and arguments[0] in self._angles:
            return self._of_both(arguments[0])[_OF_BOTH.index(operation)]
        if _is_marked(self._graph, operation, arguments):
            return _marked(self._w, self._register(arguments[1]))
        if node in self._terms:
            return self._sum(operation, self._terms[node])
        given = [self._register(x) for x in arguments]
        if operation in vector_math.VECTOR_FUNCTIONS:
            return self._function(operation, given)[0]
        # Those of the last argument: of a choice its result, of a comparison what it compares.
        truth = self._graph.is_truth(arguments[-1])
        return instruction(self._w, operation, given, truth)

    def _of_both(self, angle: int) -> list[str]:
        if angle not in self._pairs:
            self._pairs[angle] = self._function("sincos", [self._register(angle)])
        return self._pairs[angle]

    def _function(self, name: str, given: list[str]) -> list[str]:
        if self._far is None or name not in vector_math.LIMITED:
            return vector_math.call(self._w, name, *given)
        found, far = vector_math.near_call(self._w, name, *given)
        self._far.append(far)
        return found

    def _sum(self, operation: str, term: Term) -> str:
        """A sum or difference of which one part is a product."""
        w = self._w
        first, second = (self._register(x) for x in self._graph.nodes[term.product].arguments)
        other = self._register(term.other)
        minus = operation == "sub"
        if term.negative != (minus and term.last):
            first = w.negative(first)
        if minus and not term.last:
            other = w.negative(other)
        return w.product_and_sum(first, second, other)


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


def _is_marked(graph: Graph, operation: str, arguments) -> bool:
    """Whether a node is a number where that is finite, else NaN."""
    if operation != "select":
        return False
    condition, yes, no = arguments
    asked = graph.nodes[condition]
    other = graph.value(no)
    return asked == ("is_finite", (yes,)) and other is not None and bool(np.isnan(other))


def _marked(w: Writer, x: str) -> str:
    """The same by sums, which processors have more room for than for comparisons and choices."""
    return w.binary("fsub", x, w.binary("fsub", x, x))


def _constant(w: Writer, value) -> str:
    if isinstance(value, bool):
        return w.splat("i1", "true" if value else "false")
    return w.number(value)


def instruction(w: Writer, operation: str, given: list[str], truth: bool) -> str:
    """Write one operation that is no elementary function.

    Args:
        w: where to.
        operation: its name.
        given: registers.
        truth: whether the last one holds truth values.

    Returns:
        Register of the result.
    """
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
    return _OTHERS[operation](w, *given)


def _not(w: Writer, x: str) -> str:
    return w.logical("xor", x, w.splat("i1", "true"))


def _is_finite(w: Writer, x: str) -> str:
    return w.compare("olt", w.intrinsic("fabs", x), w.number(np.inf))


def _sign(w: Writer, x: str) -> str:
    one, zero = (w.intrinsic("copysign", w.number(value), x) for value in (1.0, 0.0))
    # Subnormal numbers count as zero where the processor takes them so, as under XLA.
    size = w.select(w.compare("oeq", x, w.number(0.0)), zero, one)
    return w.select(w.compare("uno", x, x), x, size)


def _single(w: Writer, x: str) -> str:
    short = f"<{w.width} x float>"
    rounded = w.put(f"fptrunc {w.vector} {x} to {short}")
    return w.put(f"fpext {short} {rounded} to {w.vector}")


_OTHERS: dict[str, Callable[..., str]] = {
    "neg": Writer.negative,
    "not": _not,
    "is_finite": _is_finite,
    "sign": _sign,
    "single": _single,
}
