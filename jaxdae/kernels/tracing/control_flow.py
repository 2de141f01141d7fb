"""Calls that are entered, loops that are unrolled, and conditions of which both sides are made."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxdae.derivatives.functions import in_jax
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing import product_parts, zero_signs
from jaxdae.kernels.tracing.arrays import (
    as_symbols,
    elementwise,
    first_refused,
    Refused,
    Symbols,
    Value,
)
from jaxdae.kernels.tracing.indexing import as_one_kind
from jaxdae.kernels.tracing.linear_algebra import SOLVES
from jaxdae.primitives.parameters import (
    branch_of_processors,
    CALLED,
    equations,
    Refusal,
    scan_sizes,
)


def _call(name: str) -> Callable:
    def enter(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
        return evaluate(graph, equation.params[name], arguments)

    return enter


def _linear_solve(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    params = equation.params
    lengths = params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    constants = arguments[first : first + lengths.solve]
    return evaluate(graph, params["jaxprs"].solve, [*constants, *arguments[sum(lengths) :]])


def written_out(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """Results of a scan, all turns of which are traced."""
    params = equation.params
    constants, carried = scan_sizes(params)
    fixed, carry = arguments[:constants], arguments[constants : constants + carried]
    columns = arguments[constants + carried :]
    rows = []
    # Before the first turn, so that nobody waits for the last one.
    graph.check_equations(params["length"] * equations(params["jaxpr"].jaxpr))
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        each = [_row(x, i) for x in columns]
        results = evaluate(graph, params["jaxpr"], [*fixed, *carry, *each])
        carry = results[:carried]
        rows.append(results[carried:])
    if params["reverse"]:
        rows.reverse()
    if not rows:
        shapes = params["jaxpr"].out_avals[carried:]
        return [*carry, *(np.zeros((0, *x.shape), x.dtype) for x in shapes)]
    stacked: list[Any] = [_stacked(graph, column) for column in zip(*rows, strict=True)]
    return [*carry, *stacked]


def _row(value: Value, i: int) -> Value:
    return value.like(value.nodes[i]) if isinstance(value, Symbols) else value[i, ...]


def _stacked(graph: Graph, rows) -> Any:
    refused = first_refused(rows)
    if refused is not None:
        return refused
    if not any(isinstance(x, Symbols) for x in rows):
        return np.stack(rows)
    nodes, kind = as_one_kind(graph, list(rows))
    return kind.like(np.stack(nodes))


def unrolled(
    graph: Graph,
    equation,
    arguments: list[Value],
    evaluate: Callable,
    beyond: Callable | None = None,
) -> list:
    """Results of a loop whose condition is known in each turn.

    Where it is not known any more, `beyond(graph, equation, given, goes_on, evaluate)` goes on with
    what the loop is given from there.
    """
    params = equation.params
    if params["cond_jaxpr"].out_avals[0].shape:
        return _of_a_batch(graph, equation, arguments, evaluate)
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body = arguments[:tests], arguments[tests : tests + bodies]
    carry = arguments[tests + bodies :]
    while True:
        (goes_on,) = evaluate(graph, params["cond_jaxpr"], [*of_test, *carry])
        if isinstance(goes_on, Refused):
            return [goes_on] * len(carry)
        if isinstance(goes_on, Symbols) and beyond is not None:
            arguments = [*of_test, *of_body, *carry]
            return beyond(graph, equation, arguments, goes_on, evaluate)
        if isinstance(goes_on, Symbols):
            raise Refusal("how often its loop turns depends on the inputs")
        if not goes_on:
            return carry
        carry = evaluate(graph, params["body_jaxpr"], [*of_body, *carry])


def _of_a_batch(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """Results of a loop that `jax.vmap` made: entries for which its condition is false wait."""
    params = equation.params
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test, body = (jex.jaxpr_as_fun(params[x]) for x in ("cond_jaxpr", "body_jaxpr"))

    def loop(*values):
        of_test, of_body = values[:tests], values[tests : tests + bodies]

        def turn(carry):
            (on,) = test(*of_test, *carry)
            after = body(*of_body, *carry)
            pairs = zip(after, carry, strict=True)
            where = lambda x: on.reshape(on.shape + (1,) * (x.ndim - on.ndim))  # noqa: E731
            return [jnp.where(where(x), x, y) for x, y in pairs]

        first = list(values[tests + bodies :])
        return jax.lax.while_loop(lambda carry: jnp.any(test(*of_test, *carry)[0]), turn, first)

    return computed_by(loop, graph, equation, arguments, evaluate)


def both_sides(graph: Graph, equation, operands: list[Value], evaluate: Callable) -> list:
    """Results of a condition, of which all sides are made that it may take."""
    which, *arguments = operands
    branches = equation.params["branches"]
    if not isinstance(which, Symbols):
        return evaluate(graph, branches[min(max(int(which), 0), len(branches) - 1)], arguments)
    *others, result = [evaluate(graph, branch, arguments) for branch in branches]
    for i, results in reversed(list(enumerate(others))):
        chosen = _chooses(graph, which, i)
        pairs = zip(results, result, strict=True)
        result = [_choice(graph, chosen, one, other) for one, other in pairs]
    return result


def _chooses(graph: Graph, which: Symbols, i: int) -> Symbols:
    """Whether a choice falls on a branch; numbers outside fall on the first or the last."""
    if which.boolean:
        return elementwise(graph, "not", which)
    test = "le" if i == 0 else "eq"
    return elementwise(graph, test, which, np.asarray(float(i)))


def choice(graph: Graph, condition: Value, yes: Value, no: Value) -> Symbols:
    """Corresponding entries of one array or another."""
    (a, b), kind = as_one_kind(graph, [yes, no])
    asked = as_symbols(graph, condition).nodes.ravel()
    if graph.loops and asked.size and (asked == asked[0]).all():
        parts = product_parts.chosen(graph, int(asked[0]), a, b)
        if parts is not None:
            return kind.like(parts)
    results = elementwise(graph, "select", condition, Symbols(a), Symbols(b))
    return kind.like(results.nodes)


def _choice(graph: Graph, condition: Symbols, yes, no):
    return first_refused((yes, no)) or choice(graph, condition, yes, no)


def _platform(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """The number of the branch that JAX would take on a CPU."""
    del graph, arguments, evaluate
    return [np.asarray(branch_of_processors(equation.params), np.int32)]


def as_computed(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """A primitive of equinox or lineax, by what it does when it is called."""
    function = partial(equation.primitive.impl, **equation.params)
    return computed_by(function, graph, equation, arguments, evaluate)


def computed_by(
    function: Callable, graph: Graph, equation, arguments: list[Value], evaluate: Callable
) -> list:
    """Results of an equation as those of a function of its operands."""
    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
    closed = jax.make_jaxpr(function)(*shapes)
    graph.readers |= zero_signs.readers(closed, id(equation) in graph.readers)
    return evaluate(graph, closed, arguments)


def _lowered(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """A primitive of JAX that is a program itself, by that program."""
    function = partial(equation.primitive.to_lojax, **equation.params)
    return computed_by(function, graph, equation, arguments, evaluate)


def _derivable(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """A function that is computed when it is wanted, by what it is as one of JAX."""
    function = partial(in_jax, **equation.params)
    return computed_by(function, graph, equation, arguments, evaluate)


# Their arguments go to a jaxpr as they are.
PLAIN_CALLS: dict[str, Callable] = {name: _call(x) for name, x in CALLED.items()}
CALLS: dict[str, Callable] = {
    **PLAIN_CALLS,
    **SOLVES,
    "call_hi_primitive": _lowered,
    **dict.fromkeys(("derivable_function", "derivative_of_function"), _derivable),
    "custom_linear_solve": _linear_solve,
    "scan": written_out,
    "while": unrolled,
    "cond": both_sides,
    "platform_index": _platform,
    "linear_solve": as_computed,
    "nondifferentiable": as_computed,
    "nondifferentiable_backward": as_computed,
    "nonbatchable": as_computed,
    "nontraceable": as_computed,
}
