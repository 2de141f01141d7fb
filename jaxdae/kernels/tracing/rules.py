"""What each primitive of JAX is in scalar operations."""

from collections.abc import Callable

import numpy as np
from jax import lax

from jaxdae.kernels.graph import array_calls
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing import indexing, linear_algebra, product_parts
from jaxdae.kernels.tracing.arrays import (
    as_numbers,
    as_symbols,
    elementwise,
    reduced,
    Symbols,
    Value,
)
from jaxdae.kernels.tracing.control_flow import choice
from jaxdae.kernels.tracing.indexing import as_one_kind
from jaxdae.kernels.tracing.integers import on_integers, rounded, sum_of_products, within
from jaxdae.primitives.entries import matrices
from jaxdae.primitives.parameters import Refusal

# Name of the primitive that calls another program.
CALL_PRIMITIVE = "call_subprogram"
# The larger of two truth values is true where one of them is.
_OF_BOOLEANS = {"max": "or", "min": "and"}


def _same(operation: str) -> Callable:
    boolean = OPERATIONS[operation].boolean

    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        dtype = equation.outvars[0].aval.dtype
        counted = dtype == np.bool_ or np.issubdtype(dtype, np.integer)
        if counted and any(isinstance(x, Symbols) and x.bounds is not None for x in arguments):
            return [on_integers(graph, operation, arguments, dtype)]
        if any(isinstance(x, Symbols) and x.boolean for x in arguments):
            return [_on_booleans(graph, operation, arguments)]
        if graph.loops and operation in product_parts.SUMS:
            nodes = [as_symbols(graph, x).nodes for x in arguments]
            result = product_parts.combined(graph, operation, nodes)
            if result is not None:
                return [Symbols(result)]
        if graph.loops and not counted and not boolean:
            nodes = list(np.broadcast_arrays(*(as_symbols(graph, x).nodes for x in arguments)))
            result = array_calls.mapped(graph, operation, nodes)
            if result is not None:
                return [Symbols(result)]
        return [elementwise(graph, operation, *arguments)]

    return rule


def _on_booleans(graph: Graph, operation: str, arguments: list[Value]) -> Symbols:
    """Comparisons of booleans."""
    same = {"eq": "xor", "ne": "xor", **_OF_BOOLEANS}.get(operation)
    if same is None:
        raise Refusal(f"{operation} of booleans is not known")
    result = elementwise(graph, same, *arguments)
    return elementwise(graph, "not", result) if operation == "eq" else result


def _logical(operation: str) -> Callable:
    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        del equation
        if not all(as_symbols(graph, x).boolean for x in arguments):
            raise Refusal("bits of integers that depend on the inputs are not known")
        return [elementwise(graph, operation, *arguments)]

    return rule


def _select_n(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    del equation
    which, *cases = arguments
    if not isinstance(which, Symbols):
        nodes, kind = as_one_kind(graph, cases)
        return [kind.like(np.choose(which.astype(int), nodes).astype(np.int32))]
    if which.boolean:
        no, yes = cases
        return [choice(graph, which, yes, no)]
    *others, result = cases
    for i, case in reversed(list(enumerate(others))):
        chosen = elementwise(graph, "eq", which, np.asarray(float(i)))
        result = choice(graph, chosen, case, result)
    return [result]


def _convert(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    value, dtype = as_symbols(graph, arguments[0]), np.dtype(equation.params["new_dtype"])
    if dtype == np.bool_:
        zero = np.asarray(0.0)
        return [value if value.boolean else elementwise(graph, "ne", value, zero)]
    counted = np.issubdtype(dtype, np.integer)
    if value.boolean:
        return [as_numbers(graph, value)._replace(bounds=(0, 1) if counted else None)]
    if not counted:
        return [Symbols(value.nodes)]
    if value.bounds is None:
        return [rounded(graph, value, dtype)]
    return [Symbols(value.nodes, bounds=within(value.bounds, dtype))]


def _reduction(operation: str) -> Callable:
    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        value, axes = as_symbols(graph, arguments[0]), equation.params["axes"]
        if value.boolean:
            name = _OF_BOOLEANS.get(operation, operation)
            return [reduced(graph, name, value, axes, True)]
        bounds = None
        if value.bounds is not None:
            count = int(np.prod([value.nodes.shape[i] for i in axes]))
            bounds = within(
                _range_of(operation, value.bounds, count), equation.outvars[0].aval.dtype
            )
        return [reduced(graph, operation, value, axes)._replace(bounds=bounds)]

    return rule


def _range_of(operation: str, bounds: tuple[int, int], count: int) -> tuple[int, int]:
    """What integers of a range give, combined."""
    if operation in ("max", "min") and count:
        return bounds
    if operation != "add":
        raise Refusal("integers that depend on the inputs are only added and compared")
    return min(count * bounds[0], 0), max(count * bounds[1], 0)


def _cumulative(operation: str) -> Callable:
    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        axis, reverse = equation.params["axis"], equation.params["reverse"]
        value = as_symbols(graph, arguments[0])
        nodes = np.moveaxis(value.nodes, axis, 0)
        bounds = None
        if value.bounds is not None:
            bounds = within(_range_of(operation, value.bounds, len(nodes)), np.int32)
        rows = list(nodes[::-1] if reverse else nodes)
        if operation == "add" and len(rows) > 1 and graph.exact:
            rows[0] = elementwise(graph, "add", Symbols(rows[0]), np.asarray(0.0)).nodes
        for i in range(1, len(rows)):
            rows[i] = elementwise(graph, operation, Symbols(rows[i - 1]), Symbols(rows[i])).nodes
        result = np.stack(rows[::-1] if reverse else rows) if rows else nodes
        return [Symbols(np.moveaxis(result, 0, axis), bounds=bounds)]

    return rule


def _dot_general(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    symbols = [as_numbers(graph, x) for x in arguments]
    a = matrices(symbols[0].nodes, batch_left, left)
    b = matrices(symbols[1].nodes, batch_right, right)
    results = [_product(graph, rows, columns.T) for rows, columns in zip(a, b, strict=True)]
    result = equation.outvars[0].aval
    ranges, bounds = [x.bounds for x in symbols if x.bounds is not None], None
    if np.issubdtype(result.dtype, np.integer):
        bounds = sum_of_products(*ranges, count=a.shape[-1], dtype=result.dtype)
    out = Symbols(np.array(results, np.int32).reshape(result.shape), bounds=bounds)
    if result.dtype == np.bool_:
        return [elementwise(graph, "ne", out, np.asarray(0.0))]
    return [out]


def _product(graph: Graph, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Nodes of a matrix product: of a large one as a loop, of others written out."""
    result = array_calls.product(graph, a, b) if graph.loops else None
    if result is not None:
        return result
    columns = b.T.tolist()
    each = [graph.dot(row, column) for row in a.tolist() for column in columns]
    return np.array(each, np.int32).reshape(len(a), len(columns))


def _integer_pow(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """By repeated squaring, as XLA does it."""
    exponent, square = abs(equation.params["y"]), as_symbols(graph, arguments[0])
    if square.bounds is not None:
        raise Refusal("powers of integers that depend on the inputs are not known")
    result: Value | None = None
    rest = exponent
    while rest:
        if rest % 2:
            result = square if result is None else elementwise(graph, "mul", result, square)
        rest //= 2
        if rest:
            square = elementwise(graph, "mul", square, square)
    one = np.ones(square.nodes.shape)
    if result is None:
        return [one]
    return [result if equation.params["y"] > 0 else elementwise(graph, "div", one, result)]


def _round(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    if equation.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Refusal("it rounds halves away from zero; jnp.round rounds them to even numbers")
    return [elementwise(graph, "rint", arguments[0])]


# Of the exponent and of the mantissa.
_BITS = {np.dtype(np.float64): (11, 52), np.dtype(np.float32): (8, 23)}


def _reduce_precision(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    if bits == _BITS.get(np.dtype(equation.outvars[0].aval.dtype)):
        return arguments
    if bits != (8, 23) or graph.dtype != np.float64:
        raise Refusal(f"numbers of {bits[0]} and {bits[1]} bits stand in a kernel of {graph.dtype}")
    return [elementwise(graph, "single", arguments[0])]


def _composed(function: Callable) -> Callable:
    """A rule for each entry, from `function(do, *arguments)` with `do(operation, *values)`."""

    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        return [function(lambda name, *x: _same(name)(graph, equation, [*x])[0], *arguments)]

    return rule


def _polynomial(do: Callable, x: Value, *coefficients: Value) -> Value:
    """By Horner's rule; the coefficient of the highest power comes last."""
    *rest, result = coefficients
    for coefficient in reversed(rest):
        result = do("add", do("mul", result, x), coefficient)
    return result


def _identity(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    del graph, equation
    return list(arguments)


_ONE = np.asarray(1.0)
_LOGICAL = ("and", "or", "xor", "not")

RULES: dict[str, Callable] = {
    **{
        name: _logical(name) if name in _LOGICAL else _same(name)
        for name, x in OPERATIONS.items()
        if x.primitive
    },
    **indexing.RULES,
    **linear_algebra.RULES,
    "gt": _composed(lambda do, a, b: do("lt", b, a)),
    "ge": _composed(lambda do, a, b: do("le", b, a)),
    "add_any": _same("add"),
    "round": _round,
    "select_n": _select_n,
    "convert_element_type": _convert,
    "reduce_sum": _reduction("add"),
    "reduce_prod": _reduction("mul"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_and": _reduction("and"),
    "reduce_or": _reduction("or"),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "dot_general": _dot_general,
    "integer_pow": _integer_pow,
    "square": _composed(lambda do, x: do("mul", x, x)),
    # Exact where x is close to one.
    "one_minus_square": _composed(lambda do, x: do("mul", do("add", _ONE, x), do("sub", _ONE, x))),
    "polynomial": _composed(_polynomial),
    "clamp": _composed(lambda do, low, x, high: do("min", do("max", x, low), high)),
    "log2": _composed(lambda do, x: do("mul", do("log", x), np.asarray(1 / np.log(2.0)))),
    "reduce_precision": _reduce_precision,
    "rsqrt": _composed(lambda do, x: do("div", _ONE, do("sqrt", x))),
    "logistic": _composed(lambda do, x: do("div", _ONE, do("add", _ONE, do("exp", do("neg", x))))),
    "exp2": _composed(lambda do, x: do("pow", np.asarray(2.0), x)),
    "stop_gradient": _identity,
    "optimization_barrier": _identity,
    "sharding_constraint": _identity,
    "device_put": _identity,
}
