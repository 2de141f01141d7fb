"""Loops that turn as often as values say, such as Newton's iteration: each lane for itself.

A lane whose condition no longer holds keeps what it has, while others go on.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import (
    as_symbols,
    elementwise,
    first_refused,
    Refusal,
    Symbols,
    Value,
)
from jaxdae.kernels.tracing.control_flow import as_computed, CALLS, choice, unrolled
from jaxdae.kernels.tracing.long_loops import restored, Turn
from jaxdae.kernels.tracing.trace import scalarize, ScalarProgram


def with_open_loops(function: Callable, *shapes: jax.ShapeDtypeStruct) -> ScalarProgram:
    """A function as scalar operations, in which loops may turn as often as values say.

    Args:
        function: traceable by JAX; takes and returns floating-point arrays.
        shapes: of its arguments.

    Raises:
        UnsupportedOperationError: as `scalarize`.
    """
    return scalarize(function, *shapes, loops=True, open_ended=True)


# Counts of turns are held exactly up to here, also in single precision.
_MOST_TURNS = 2**23


def _while(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    turns = graph.loops and graph.dtype is not None and graph.open_ended
    return unrolled(graph, equation, arguments, evaluate, _turned if turns else None)


def _turned(
    graph: Graph, equation, operands: list[Value], goes_on: Symbols, evaluate: Callable
) -> list[Any]:
    """Results of a loop as one call.

    Args:
        graph: where the call is added.
        equation: the loop.
        operands: constants of its condition, those of its body, and what is handed on.
        goes_on: the condition before the first turn.
        evaluate: `evaluate(graph, jaxpr, values)`.
    """
    params = equation.params
    constants = params["cond_nconsts"] + params["body_nconsts"]
    refused = first_refused(operands)
    if refused is not None:
        return [refused] * (len(operands) - constants)
    starts = [as_symbols(graph, x) for x in operands[constants:]]
    # Integers that other turns than the first make larger count turns.
    for widened in (_wider, _counting, None):
        turn = Turn(graph)
        after = _one_turn(turn, params, [*operands[:constants], *starts], goes_on, evaluate)
        refused = first_refused(after)
        if refused is not None:
            return [refused] * len(starts)
        if widened is not None:
            ends = (as_symbols(turn.graph, x).bounds for x in after[:-1])
            starts = [widened(x, y) for x, y in zip(starts, ends, strict=True)]
    loop = turn.open_loop(after)
    results = graph.call(loop, (*turn.arguments[0], *turn.arguments[1]))
    return [restored(graph, x, y) for x, y in zip(results, starts, strict=False)]


def _one_turn(
    turn: Turn, params, arguments: list[Any], goes_on: Symbols, evaluate: Callable
) -> list:
    """What a turn hands on, and whether it goes on: both stay as they were where it did not."""
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    constants = [turn.constant(x) for x in arguments[: tests + bodies]]
    before = [turn.handed(x) for x in arguments[tests + bodies :]]
    on = turn.handed(goes_on)
    after = evaluate(turn.graph, params["body_jaxpr"], [*constants[tests:], *before])
    if first_refused(after) is not None:
        return after
    after = [choice(turn.graph, on, new, old) for new, old in zip(after, before, strict=True)]
    (more,) = evaluate(turn.graph, params["cond_jaxpr"], [*constants[:tests], *after])
    if first_refused((more,)) is not None:
        return [more]
    return [*after, elementwise(turn.graph, "and", on, more)]


def _wider(value: Symbols, bounds: tuple[int, int] | None) -> Symbols:
    """Integers within their own limits or others."""
    if value.bounds is None or bounds is None:
        return value
    (low, high), (least, most) = value.bounds, bounds
    within = low <= least and most <= high
    return value if within else value._replace(bounds=(min(low, least), max(high, most)))


def _counting(value: Symbols, bounds: tuple[int, int] | None) -> Symbols:
    """Integers that have come beyond their limits, as counts of turns."""
    if value.bounds is None or bounds is None:
        return value
    (low, high), (least, most) = value.bounds, bounds
    limits = low if low <= least else -_MOST_TURNS, high if most <= high else _MOST_TURNS
    return value._replace(bounds=limits)


def _beside(rule: Callable) -> Callable:
    """A rule for what stands around such loops in the libraries that write them."""

    def of_open_programs(
        graph: Graph, equation, arguments: list[Value], evaluate: Callable
    ) -> list:
        if not graph.open_ended:
            raise Refusal("there is no rule for it")
        return rule(graph, equation, arguments, evaluate)

    return of_open_programs


def _one_of_a_batch(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """What equinox asks of all of a batch, where each lane is by itself."""
    del graph, evaluate
    return [arguments[1]] if equation.primitive.name == "select_if_vmap" else arguments


CALLS |= {
    "while": _while,
    **dict.fromkeys(
        ("select_if_vmap", "unvmap_any", "unvmap_all", "unvmap_max"), _beside(_one_of_a_batch)
    ),
    **dict.fromkeys(("maybe_set", "vprim"), _beside(as_computed)),
}
