"""From a function written for JAX to a graph of scalar operations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxdae.derivatives.user_rules import own_rules
from jaxdae.kernels.graph.expressions import Graph, TooManyOperations
from jaxdae.kernels.tracing import linear_algebra, zero_signs
from jaxdae.kernels.tracing.arrays import (
    as_known,
    as_symbols,
    COMPLEX,
    elementwise,
    first_refused,
    Refused,
    Symbols,
    Value,
)
from jaxdae.kernels.tracing.control_flow import PLAIN_CALLS
from jaxdae.kernels.tracing.known_numbers import computed, known
from jaxdae.kernels.tracing.loops import CALLS
from jaxdae.kernels.tracing.rules import CALL_PRIMITIVE, RULES
from jaxdae.kernels.tracing.subprograms import call, ScalarProgram, Subprogram
from jaxdae.kernels.tracing.tables import by_rows, keep_places
from jaxdae.primitives import parameters
from jaxdae.primitives.parameters import Refusal


class UnsupportedOperationError(NotImplementedError):
    """A function does something that cannot be made a kernel of."""


def scalarize(
    function: Callable,
    *arguments,
    varying: int | None = None,
    loops: bool = False,
    signed: bool = False,
    open_ended: bool = False,
) -> ScalarProgram:
    """Trace a function to scalar operations.

    Loops with a known number of turns are unrolled, both sides of a condition that depends on the
    inputs are computed, and calls are entered. What is equal is computed once.

    Args:
        function: traceable by JAX; takes and returns arrays.
        arguments: examples of its arguments, or their shapes; floating-point.
        varying: number of the first arguments, which change from call to call while the others
            stay the same; without it all change.
        loops: whether products of dense matrices become calls, for programs that are written as
            functions on arrays in memory.
        signed: whether zeros among the results keep their signs, but those of linear solves.
        open_ended: whether loops may turn as often as values say, which `loops` makes possible.

    Returns:
        `ScalarProgram`.

    Raises:
        UnsupportedOperationError: naming the primitive, and the place in the user's code.
    """
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in arguments)
    closed = jax.make_jaxpr(function)(*shapes)
    try:
        try:
            made = _traced(closed, shapes, varying, loops, signed, open_ended, None)
        except TooManyOperations:
            if not loops:
                raise
            made = _traced(closed, shapes, varying, loops, signed, open_ended, _FEW_TURNS)
    except TooManyOperations as reason:
        raise UnsupportedOperationError(f"it is too much for a kernel: {reason}.") from None
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in closed.out_avals)
    return ScalarProgram(*made, shapes, results, own_rules(closed))


# Loops that read rows by integers stay loops from so many turns on, where programs are too long.
_FEW_TURNS = 4


def _traced(
    closed,
    shapes,
    varying: int | None,
    loops: bool,
    signed: bool,
    open_ended: bool,
    few: int | None,
) -> tuple[Graph, np.ndarray]:
    """The graph of a function, and the nodes of its results."""
    sizes = [int(np.prod(x.shape)) for x in shapes]
    kinds = {np.dtype(x.dtype) for x in shapes}
    graph = Graph(
        None if varying is None else sum(sizes[:varying]),
        kinds.pop() if len(kinds) == 1 else None,
        loops,
    )
    graph.open_ended, graph.few_turns = open_ended, few
    graph.inputs(sum(sizes))
    symbols, first = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        nodes = np.arange(first, first + size, dtype=np.int32)
        symbols.append(Symbols(nodes.reshape(shape.shape)))
        first += size
    graph.readers |= zero_signs.readers(closed, results=signed)
    values = evaluate(graph, closed, symbols)
    for result in values:
        if isinstance(result, Refused):
            raise UnsupportedOperationError(result.message())
    try:
        flat = [as_symbols(graph, x).nodes.ravel() for x in values]
    except Refusal as reason:
        message = f"a result cannot be made part of a kernel: {reason}."
        raise UnsupportedOperationError(message) from None
    outputs = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    graph.check_needed(outputs)
    return graph, outputs


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


def evaluate(graph: Graph, closed: Any, arguments: list) -> list:
    """Results of a jaxpr, operation by operation."""
    jaxpr, fixed = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, ())
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(known, fixed), strict=True))

    def hold(variables: Any, results: list) -> None:
        for variable, value in zip(variables, results, strict=True):
            # Keys of random numbers are known, whatever their type.
            symbolic = isinstance(value, Symbols)
            values[variable] = as_known(graph, value, variable.aval.dtype) if symbolic else value

    def read(atom: Any):
        return _literal(atom) if isinstance(atom, jex.Literal) else values[atom]

    graph.count_equations(len(jaxpr.eqns))
    hold(jaxpr.invars, arguments)
    one = evaluated if graph.each is None else graph.each
    for equation in jaxpr.eqns:
        hold(equation.outvars, one(graph, equation, [read(x) for x in equation.invars]))
    return [read(x) for x in jaxpr.outvars]


def _literal(atom: Any):
    return known(atom.val, atom.aval.dtype)


def evaluated(graph: Graph, equation, arguments: list) -> list:
    """Results of one equation; what is refused stands for itself, and for what is made of it."""
    name = equation.primitive.name
    enter = CALLS.get(name)
    refused, graph.exact = first_refused(arguments), False
    try:
        if enter is not None and (refused is None or name in PLAIN_CALLS):
            parameters.check(name, equation.params)
            return _placed(enter(graph, equation, arguments, evaluate), equation)
        if refused is None:
            return _found(graph, equation, arguments)
    except Refusal as reason:
        refused = Refused(name, str(reason), _place(equation))
    if equation.effects or not equation.outvars:
        # Nobody reads what it does, but it was meant to be done.
        raise UnsupportedOperationError(refused.message())
    return [refused] * len(equation.outvars)


def _found(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    if graph.places:
        results = by_rows(graph, equation, arguments)
        if results is not None:
            return results
    # A call stays one where its arguments are known: what it calls is known only to the module.
    called = equation.primitive.name == CALL_PRIMITIVE
    if not called and not any(isinstance(x, Symbols) for x in arguments):
        return computed(equation, arguments)
    rule = RULES.get(equation.primitive.name)
    if rule is None:
        name = equation.primitive.name
        if name.startswith("native_"):
            raise Refusal("it is a kernel itself")
        raise Refusal(linear_algebra.ITERATIVE.get(name, "there is no rule for it"))
    parameters.check(equation.primitive.name, equation.params)
    _check_types(graph, (x.aval for x in (*equation.invars, *equation.outvars)))
    graph.exact = id(equation) in graph.readers
    results = rule(graph, equation, arguments)
    if graph.places:
        keep_places(graph, equation, arguments, results)
    return [
        _as_typed(graph, value, x.aval.dtype)
        for value, x in zip(results, equation.outvars, strict=True)
    ]


_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)


def _check_types(graph: Graph, shapes) -> None:
    """Refuse arguments and results of types whose numbers a kernel cannot compute with."""
    for shape in shapes:
        kind = shape.dtype
        if jnp.issubdtype(kind, jnp.complexfloating):
            raise Refusal(COMPLEX)
        if not (kind in (_DOUBLE, _SINGLE) or jnp.issubdtype(kind, np.integer) or kind == np.bool_):
            raise Refusal(f"kernels compute with no numbers of type {kind}")
        # What stems from Python's numbers alone is rounded where it meets a number of an array.
        if kind == _DOUBLE and graph.dtype == _SINGLE and not shape.weak_type:
            raise Refusal("numbers of double precision stand in a kernel of single precision")


def _as_typed(graph: Graph, value: Value, dtype) -> Value:
    """A result as its type has it: in double precision, numbers of single precision are rounded."""
    rounds = isinstance(value, Symbols) and not value.boolean and value.bounds is None
    if rounds and graph.dtype == _DOUBLE and dtype == _SINGLE:
        return elementwise(graph, "single", value)
    return value


def _placed(results: list, equation) -> list:
    """What was refused inside of a call comes from there, where that is known, or from the call."""
    unknown = [isinstance(x, Refused) and x.place is None for x in results]
    if not any(unknown):
        return results
    place = _place(equation)
    return [x._replace(place=place) if y else x for x, y in zip(results, unknown, strict=True)]


def _place(equation) -> str | None:
    """The line of the user's code, if it is known."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else list(traceback.frames)
    inside = ("/jax/", "/jaxlib/", "/equinox/", "/diffrax/", "/jaxdae/kernels/", "/lineax/",
              "/jaxdae/simulation/backends.py")  # fmt: skip
    for frame in frames:
        if not any(part in frame.file_name.replace("\\", "/") for part in inside):
            return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return None
