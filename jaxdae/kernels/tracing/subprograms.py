"""Scalar programs that call one another: an equation of motion is compiled once, for all stages."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing import rules
from jaxdae.kernels.tracing.arrays import as_symbols, Symbols, Value
from jaxdae.kernels.tracing.trace import scalarize, ScalarProgram

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


_call = jex.Primitive(rules.CALL_PRIMITIVE)
_call.multiple_results = True


@_call.def_abstract_eval
def _shapes(*arguments, subprogram: Subprogram):
    del arguments
    return [ShapedArray(x.shape, x.dtype) for x in subprogram.results]


def _rule(graph: Graph, equation, changed: list[Value]) -> list[Value]:
    subprogram = equation.params["subprogram"]
    arguments = tuple(tuple(as_symbols(graph, x).nodes.ravel().tolist()) for x in changed)
    return [Symbols(x) for x in graph.call(subprogram, arguments)]


rules.RULES[_call.name] = _rule


def call(subprogram: Subprogram, *arguments) -> list[jax.Array]:
    """Call a program, in a function given to `scalarize`; it has no derivative."""
    return _call.bind(*arguments, subprogram=subprogram)


def subprogram(
    name: str,
    function: Callable,
    *examples,
    wrt: tuple[int, ...] = (),
    entries: int | None = None,
    made: dict[str, Subprogram] | None = None,
    parameters: tuple[int | None, ...] = (),
) -> Callable:
    """A function that `scalarize` does not enter but calls, with a derivative in reverse mode.

    Args:
        name: of the function in a module.
        function: takes and returns floating-point arrays.
        examples: its arguments, or their shapes.
        wrt: numbers of the arguments that it can be differentiated by; derivatives by others come
            out as zero.
        entries: for a function of single entries that is done for each entry of arrays, their
            length; arguments of shape () are the same for all.
        made: where programs are kept by name, for several uses of one function.
        parameters: for each argument the number of the parameter that it is, if it is one.

    Returns:
        A function for use in functions given to `scalarize`; it returns a list of arrays. Its
        program, and that of its derivative, are made when they are first asked for.
    """
    shapes = [jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)) for x in examples]
    known: dict[str, Subprogram] = {} if made is None else made

    def bound(title: str, of: Callable, arguments) -> list[jax.Array]:
        if title not in known:
            by_entry = entries is not None
            kinds = [jax.ShapeDtypeStruct(() if by_entry else x.shape, x.dtype) for x in arguments]
            looped = tuple(by_entry and x.ndim == 1 for x in arguments)
            program = scalarize(of, *kinds, loops=entries is None)
            numbers = parameters + (None,) * (len(kinds) - len(parameters))
            known[title] = Subprogram(title, program, entries, looped, numbers)
        return call(known[title], *arguments)

    def transposed(*arguments):
        primals, cotangents = list(arguments[: len(shapes)]), arguments[len(shapes) :]

        def varied(*some):
            changed = dict(zip(wrt, some, strict=True))
            return tuple(_listed(function(*(changed.get(i, x) for i, x in enumerate(primals)))))

        _, pull = jax.vjp(varied, *(primals[i] for i in wrt))
        return pull(tuple(cotangents))

    @jax.custom_vjp
    def derivable(*arguments):
        return bound(name, lambda *x: _listed(function(*x)), arguments)

    def forward(*arguments):
        return derivable(*arguments), arguments

    def backward(arguments, cotangents):
        by = "_".join(map(str, wrt))
        programs = bound(f"{name}_transposed_by_{by}", transposed, [*arguments, *cotangents])
        changed = dict(zip(wrt, programs, strict=True))
        return tuple(changed.get(i, jnp.zeros_like(x)) for i, x in enumerate(arguments))

    derivable.defvjp(forward, backward)
    return derivable


def _listed(programs: Any) -> list:
    return list(programs) if isinstance(programs, list | tuple) else [programs]


def called(program: ScalarProgram) -> list[Subprogram]:
    """Programs that a program calls, directly or not, each after those that it calls."""
    programs: dict[Subprogram, None] = {}

    def visit(one: ScalarProgram) -> None:
        for other in one.graph.callees(one.outputs):
            callee = getattr(other, "turn", other)  # of a loop the program of one turn
            if isinstance(callee, Subprogram) and callee not in programs:
                visit(callee.program)
                programs[callee] = None

    visit(program)
    return list(programs)
