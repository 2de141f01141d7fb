"""Scalar programs that call one another: an equation of motion is compiled once, for all stages."""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jax.core import ShapedArray

from jaxdae.derivatives.user_rules import OwnRule
from jaxdae.kernels.graph.expressions import Graph, INPUT
from jaxdae.kernels.tracing import rules
from jaxdae.kernels.tracing.arrays import as_symbols, Symbols, Value


class ScalarProgram(NamedTuple):
    """A function of arrays of fixed shapes as scalar operations.

    Args:
        graph: the operations.
        outputs: nodes of all entries of all results, one after the other.
        inputs: shape and dtype of each argument; their entries are the graph's inputs, numbered
            one after the other.
        results: shape and dtype of each result.
        own_rules: rules of derivatives that users have written, of functions in it.
    """

    graph: Graph
    outputs: np.ndarray
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    own_rules: tuple[OwnRule, ...] = ()

    def depends(self) -> tuple[bool, ...]:
        """For each argument, whether any result depends on it."""
        nodes = (self.graph.nodes[x] for x in self.graph.needed(self.outputs))
        read = {x.arguments[0] for x in nodes if x.operation == INPUT}
        ends = np.cumsum([int(np.prod(x.shape)) for x in self.inputs])
        return tuple(not read.isdisjoint(range(a, b)) for a, b in pairwise([0, *ends]))

    def content(self) -> str:
        """What it computes, in words that are the same in every process."""
        graph = self.graph
        # The first nodes are the inputs of their numbers.
        nodes = (graph.nodes[x] for x in graph.needed(self.outputs) if x >= graph.numbered)
        words = (f"{x.operation} {[getattr(y, 'name', y) for y in x.arguments]}" for x in nodes)
        return "\n".join([*words, f"{self.outputs.tolist()} {self.inputs} {self.results}"])


# Numbers of parameters.
Shared = frozenset[int]


class Subprogram:
    """A scalar program that others call by its name.

    Args:
        name: of the function in a module; one for each program of a module.
        program: what it computes.
        entries: where it is done for each entry of arrays, their length: the program is that of
            one entry.
        looped: then for each argument whether it is such an array, and not one number for all.
        parameters: for each argument the number of the parameter that it is, if it is one.
    """

    def __init__(
        self,
        name: str,
        program: ScalarProgram,
        entries: int | None = None,
        looped: tuple[bool, ...] = (),
        parameters: tuple[int | None, ...] = (),
    ):
        self.name, self.program, self.entries, self.looped = name, program, entries, looped
        self._parameters = parameters

    def shared(self, parameters: "Shared") -> list[bool]:
        """For each argument, whether it is one of some parameters."""
        numbers = self._parameters or (None,) * len(self.program.inputs)
        return [x in parameters for x in numbers]

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        programs = self.program.results
        if self.entries is None:
            return list(programs)
        return [jax.ShapeDtypeStruct((self.entries,), x.dtype) for x in programs]


class ConditionalCall(NamedTuple):
    """A program that is called where any lane wants it: a condition comes before its arguments.

    Args:
        program: what is called.
        otherwise: for each result the number of the argument of the program that it is in lanes
            that do not want it, or `None` where it is zero.
    """

    program: Subprogram
    otherwise: tuple[int | None, ...]

    @property
    def name(self) -> str:
        """Of its function."""
        words = "_".join("z" if x is None else str(x) for x in self.otherwise)
        return f"where_{self.program.name}_{words}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return self.program.results


_call = jex.Primitive(rules.CALL_PRIMITIVE)
_call.multiple_results = True


@_call.def_abstract_eval
def _shapes(*arguments, subprogram: Subprogram | ConditionalCall):
    del arguments
    return [ShapedArray(x.shape, x.dtype) for x in subprogram.results]


def _rule(graph: Graph, equation, changed: list[Value]) -> list[Value]:
    subprogram = equation.params["subprogram"]
    arguments = tuple(tuple(as_symbols(graph, x).nodes.ravel().tolist()) for x in changed)
    return [Symbols(x) for x in graph.call(subprogram, arguments)]


rules.RULES[_call.name] = _rule


def call(subprogram: Subprogram | ConditionalCall, *arguments) -> list[jax.Array]:
    """Call a program, in a function given to `scalarize`; it has no derivative."""
    return _call.bind(*arguments, subprogram=subprogram)


def called(program: ScalarProgram) -> list[Subprogram]:
    """Programs that a program calls, directly or not, each after those that it calls."""
    programs: dict[Subprogram, None] = {}

    def visit(one: ScalarProgram) -> None:
        for other in one.graph.callees(one.outputs):
            callee = getattr(other, "turn", other)  # of a loop the program of one turn
            callee = callee.program if isinstance(callee, ConditionalCall) else callee
            if isinstance(callee, Subprogram) and callee not in programs:
                visit(callee.program)
                programs[callee] = None

    visit(program)
    return list(programs)
