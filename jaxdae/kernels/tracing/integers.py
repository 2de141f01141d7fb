"""Integers that depend on the inputs: positions, counts and choices, held as exact floats.

Only what keeps them exact is allowed. The range of each is known, so that comparisons which it
decides, such as that of an index with zero, cost nothing. Of a number that nothing limits it is
that of the type, until it is clipped: sums of such integers could overflow, and are refused.
"""

import math
from collections.abc import Callable

import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, Graph
from jaxdae.kernels.graph.simplifications import folded
from jaxdae.kernels.tracing.arrays import as_symbols, elementwise, exact_range, Symbols, Value
from jaxdae.primitives.parameters import Refusal

Range = tuple[int, int]


def _product(a: Range, b: Range) -> Range:
    results = [x * y for x in a for y in b]
    return min(results), max(results)


def _remainder(a: Range, b: Range) -> Range:
    if b[0] != b[1] or b[0] == 0:
        raise Refusal("the remainder of integers is known for a known divisor only")
    most = abs(b[0]) - 1
    return (0 if a[0] >= 0 else -most), (0 if a[1] <= 0 else most)


_RANGES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (0, max(-a[0], a[1])),
    "sign": lambda a: (-int(a[0] < 0), int(a[1] > 0)),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "rem": _remainder,
}
# They give one of the two, whatever its range.
_CHOICES = ("max", "min")
# Whether a comparison holds wherever both ranges allow, or None.
_DECIDED: dict[str, Callable[[Range, Range], bool | None]] = {
    "lt": lambda a, b: True if a[1] < b[0] else False if a[0] >= b[1] else None,
    "le": lambda a, b: True if a[1] <= b[0] else False if a[0] > b[1] else None,
    "eq": lambda a, b: False if a[1] < b[0] or b[1] < a[0] else None,
    "ne": lambda a, b: True if a[1] < b[0] or b[1] < a[0] else None,
}


def on_integers(graph: Graph, operation: str, arguments: list[Value], dtype) -> Symbols:
    """An operation on corresponding integers of a type; what could not be exact is refused."""
    symbols = [as_symbols(graph, x) for x in arguments]
    ranges = [x.bounds for x in symbols if x.bounds is not None]
    if operation in _DECIDED:
        return _compared(graph, operation, symbols, ranges)
    chosen = _chosen(graph, operation, symbols, dtype)
    if chosen is not None:
        return chosen
    if operation == "div":
        return _quotient(graph, symbols, dtype)
    if operation not in _RANGES:
        raise Refusal(f"{operation} of integers that depend on the inputs is not known")
    bounds = _RANGES[operation](*ranges)
    if operation not in _CHOICES:
        bounds = within(bounds, dtype)
    return elementwise(graph, operation, *symbols, bounds=bounds)


def _chosen(graph: Graph, operation: str, symbols, dtype) -> Symbols | None:
    """The same case by case, if all entries are known or chosen among known numbers."""
    nodes = np.broadcast_arrays(*(x.nodes for x in symbols))
    entries = list(zip(*(x.ravel().tolist() for x in nodes), strict=True))
    results = [by_cases(graph, operation, *x) for x in entries]
    known = [x for x in results if x is not None]
    bounds = _ends_of(graph, known) if len(known) == len(results) else None
    if bounds is None:
        return None
    return Symbols(np.array(known, np.int32).reshape(nodes[0].shape), bounds=within(bounds, dtype))


def _quotient(graph: Graph, symbols, dtype) -> Symbols:
    """Without its fraction; numbers that are exact have no quotient that is rounded too far."""
    (least, largest), (divisor, same) = (x.bounds for x in symbols)
    if divisor != same or divisor <= 0:
        raise Refusal("the quotient of integers is known for a known positive divisor only")
    bounds = within((int(least / divisor), int(largest / divisor)), dtype)
    results = elementwise(graph, "div", *symbols)
    down, up = (elementwise(graph, name, results) for name in ("floor", "ceil"))
    if least >= 0:
        return down._replace(bounds=bounds)
    below = elementwise(graph, "lt", results, np.asarray(0.0))
    return elementwise(graph, "select", below, up, down, bounds=bounds)


def sum_of_products(a: Range, b: Range, count: int, dtype) -> Range:
    """Between which such sums lie, of so many terms."""
    low, high = _product(a, b)
    return within((count * min(low, 0), count * max(high, 0)), dtype)


def _compared(graph: Graph, operation: str, symbols, ranges) -> Symbols:
    decided = _DECIDED[operation](*ranges)
    if decided is None:
        return elementwise(graph, operation, *symbols)
    shape = np.broadcast_shapes(*(x.nodes.shape for x in symbols))
    return Symbols(np.full(shape, graph.constant(decided), np.int32), True)


def rounded(graph: Graph, value: Symbols, dtype) -> Symbols:
    """Numbers without their fractions, of NaN zero, within the limits of a type of integers."""
    ends = [_ends(graph, int(x)) for x in value.nodes.ravel()]
    low, high = min((x for x, _ in ends), default=0.0), max((x for _, x in ends), default=0.0)
    limits = np.iinfo(dtype)
    if not (np.isfinite(low) and np.isfinite(high)) and limits.min > -(2**31):
        raise Refusal(
            "an integer would depend on the inputs; one that jnp.clip keeps between known "
            "limits may"
        )
    for name, end, limit in (("max", low, limits.min), ("min", high, limits.max)):
        if not np.isfinite(end):
            value = elementwise(graph, name, value, np.asarray(float(limit)))
    zero = np.asarray(0.0)
    number = elementwise(graph, "eq", value, value)
    down, up = (elementwise(graph, name, value) for name in ("floor", "ceil"))
    if low < 0:
        below = elementwise(graph, "lt", value, zero)
        down = elementwise(graph, "select", below, up, down)
    if np.isfinite(low) and np.isfinite(high):
        bounds = within((int(np.trunc(min(low, 0.0))), int(np.trunc(max(high, 0.0)))), dtype)
    else:
        least = limits.min if np.isinf(low) else int(np.trunc(min(low, 0.0)))
        largest = limits.max if np.isinf(high) else int(np.trunc(max(high, 0.0)))
        bounds = int(least), int(largest)
    return elementwise(graph, "select", number, down, zero, bounds=bounds)


def _ends(graph: Graph, node: int) -> tuple[float, float]:
    """Limits that a node keeps by being clipped."""
    operation, arguments = graph.nodes[node]
    value = graph.value(node)
    if value is not None:
        return float(value), float(value)
    if operation in ("floor", "ceil", "rint"):
        low, high = _ends(graph, arguments[0])
        return float(np.floor(low)), float(np.ceil(high))
    if operation in ("max", "min"):
        (a, b), (c, d) = (_ends(graph, x) for x in arguments)
        return (max(a, c), max(b, d)) if operation == "max" else (min(a, c), min(b, d))
    return -np.inf, np.inf


def within(bounds: Range, dtype) -> Range:
    """A range, if the type and floating-point numbers hold it."""
    limits = np.iinfo(dtype)
    if bounds[0] < limits.min or bounds[1] > limits.max:
        raise Refusal(
            f"{np.dtype(dtype)} could overflow in a way that depends on the inputs; jnp.clip "
            "keeps what is added or multiplied between known limits"
        )
    return exact_range(*bounds)


def hull(values: list[Symbols]) -> Range | None:
    """A range that holds all integers of several arrays."""
    ranges = [x.bounds for x in values if x.bounds is not None]
    if len(ranges) < len(values):
        return None
    return min(x[0] for x in ranges), max(x[1] for x in ranges)


# Integers that are chosen among known ones, case by case. A binary search has `low`, `middle` and
# `high` of which each comparison excludes half: they are known in each case, and so is their
# difference, which the ranges alone would let be negative.

# Larger trees of choices cost more than arithmetic.
_MOST = 256

_BY_CASES = ("add", "sub", "mul", "div", "max", "min")


def is_chosen(graph: Graph, node: int) -> bool:
    """Whether a node is a choice among constants, or among such choices, of which few are."""
    return graph.nodes[node].operation == "select" and 0 < len(_leaves(graph, node)) <= _MOST


def _leaves(graph: Graph, node: int) -> set[float]:
    """Constants that are chosen among; none if anything else is."""
    leaves: set[float] = set()
    seen, waiting = {node}, [node]
    while waiting:
        operation, arguments = graph.nodes[waiting.pop()]
        if operation == CONSTANT:
            leaves.add(arguments[0])
        elif operation != "select" or len(seen) > 4 * _MOST:
            return set()
        else:
            waiting.extend(x for x in arguments[1:] if x not in seen)
            seen.update(arguments[1:])
    return leaves


def by_cases(graph: Graph, operation: str, *nodes: int) -> int | None:
    """An operation on constants, or choices among them, as a choice among the results.

    A quotient has no fraction. `None` for other operations and other nodes.
    """
    known = [graph.value(x) is not None for x in nodes]
    chosen = [x or is_chosen(graph, y) for x, y in zip(known, nodes, strict=True)]
    if operation not in _BY_CASES or not all(chosen):
        return None
    done: dict[tuple[int, ...], int] = {}

    def made(*terms: int) -> int:
        if terms not in done:
            values = graph.values(list(terms))
            if values is not None:
                # A quotient has no fraction.
                done[terms] = graph.constant(float(np.trunc(folded(operation, values))))
            else:
                # What was chosen last is the outermost choice.
                asked = max(
                    graph.nodes[x].arguments[0]
                    for x in terms
                    if graph.nodes[x].operation == "select"
                )
                yes, no = (made(*(_side(graph, x, asked, i) for x in terms)) for i in (1, 2))
                done[terms] = graph.apply("select", asked, yes, no)
        return done[terms]

    return made(*nodes)


def _side(graph: Graph, node: int, asked: int, side: int) -> int:
    """What a node is where a condition holds, or where it does not."""
    operation, arguments = graph.nodes[node]
    return arguments[side] if operation == "select" and arguments[0] == asked else node


def _ends_of(graph: Graph, nodes: list[int]) -> tuple[int, int] | None:
    """The least and the largest of several numbers, each known or chosen; `None` for others."""
    numbers: set[float] = set()
    for node in nodes:
        leaves = _leaves(graph, node)
        if not leaves or not all(map(math.isfinite, leaves)):
            return None
        numbers |= leaves
    return int(min(numbers)), int(max(numbers))
