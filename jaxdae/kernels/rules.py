"""What each primitive of JAX is in scalar operations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.elimination import solve_symmetric
from jaxdae.kernels.graph import Graph
from jaxdae.kernels.values import (
    as_symbols,
    elementwise,
    moved,
    reduced,
    settled,
    Symbols,
    Value,
)
from jaxdae.linalg.positive_definite import call_name


class Refusal(Exception):  # noqa: N818
    """Why a primitive cannot be taken apart."""


# Loops beyond this would make kernels too long to compile.
_TURNS = 10_000


def _same(operation: str, boolean: bool = False) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        del equation
        return [elementwise(graph, operation, *given, boolean=boolean)]

    return rule


def _logical(operation: str) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        del equation
        if not all(as_symbols(graph, x).boolean for x in given):
            raise Refusal("bits of whole numbers that depend on the inputs are not known")
        return [elementwise(graph, operation, *given, boolean=True)]

    return rule


def _moving(graph: Graph, equation, given: list[Value]) -> list[Value]:
    return moved(equation.primitive, given, equation.params, graph)


def _indexed(*indices: int | slice) -> Callable:
    """Moves entries by indices, which are the arguments of these numbers."""

    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        chosen = [x for i in indices for x in (given[i] if isinstance(i, slice) else [given[i]])]
        if any(isinstance(x, Symbols) for x in chosen):
            raise Refusal("its indices depend on the inputs")
        return moved(equation.primitive, given, equation.params, graph)

    return rule


def _gather(graph: Graph, equation, given: list[Value]) -> list[Value]:
    if isinstance(given[1], Symbols):
        raise Refusal("its indices depend on the inputs")
    params = dict(equation.params)
    fills = params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    if fills:
        params["fill_value"] = -1
    nan = graph.constant(np.nan)
    fill = (lambda x: np.where(x < 0, nan, x)) if fills else None
    return moved(equation.primitive, given, params, graph, fill)


def _scatter_add(graph: Graph, equation, given: list[Value]) -> list[Value]:
    operand, indices, updates = given
    if isinstance(indices, Symbols):
        raise Refusal("its indices depend on the inputs")
    target, source = as_symbols(graph, operand).nodes, as_symbols(graph, updates).nodes
    dtype = equation.invars[0].aval.dtype
    zero = jnp.zeros(target.shape, dtype)

    def landing(update):
        return equation.primitive.bind(zero, jnp.asarray(indices), update, **equation.params)

    one_each = jnp.eye(source.size, dtype=dtype).reshape(source.size, *source.shape)
    with jax.ensure_compile_time_eval():
        where = np.asarray(jax.vmap(landing)(one_each)).reshape(source.size, -1)
    found = target.ravel().copy()
    for update, cell in np.argwhere(where):
        found[cell] = graph.apply("add", int(found[cell]), int(source.ravel()[update]))
    return [Symbols(found.reshape(target.shape))]


def _select_n(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del equation
    which, *cases = given
    if not isinstance(which, Symbols):
        chosen = [as_symbols(graph, x) for x in cases]
        nodes = np.choose(which.astype(int), [x.nodes for x in chosen])
        return [Symbols(nodes, chosen[0].boolean)]
    if not which.boolean:
        raise Refusal("its choice is a number that depends on the inputs")
    no, yes = (as_symbols(graph, x) for x in cases)
    return [elementwise(graph, "select", which, yes, no, boolean=yes.boolean)]


def _convert(graph: Graph, equation, given: list[Value]) -> list[Value]:
    (value,), dtype = given, np.dtype(equation.params["new_dtype"])
    value = as_symbols(graph, value)
    if np.issubdtype(dtype, np.floating):
        if not value.boolean:
            return [value]
        one, zero = np.asarray(1.0), np.asarray(0.0)
        return [elementwise(graph, "select", value, one, zero)]
    if dtype == np.bool_:
        zero = np.asarray(0.0)
        return [value if value.boolean else elementwise(graph, "ne", value, zero, boolean=True)]
    if value.boolean:
        return [value]  # the index of a condition
    raise Refusal("a whole number would depend on the inputs")


def _reduction(operation: str, boolean: bool = False) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        return [reduced(graph, operation, given[0], equation.params["axes"], boolean)]

    return rule


def _cumulative(operation: str) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        axis, reverse = equation.params["axis"], equation.params["reverse"]
        nodes = np.moveaxis(as_symbols(graph, given[0]).nodes, axis, 0)
        rows = list(nodes[::-1] if reverse else nodes)
        for i in range(1, len(rows)):
            rows[i] = elementwise(graph, operation, Symbols(rows[i - 1]), Symbols(rows[i])).nodes
        found = np.stack(rows[::-1] if reverse else rows) if rows else nodes
        return [Symbols(np.moveaxis(found, 0, axis))]

    return rule


def _dot_general(graph: Graph, equation, given: list[Value]) -> list[Value]:
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    a, b = (as_symbols(graph, x).nodes for x in given)
    a, b = _arranged(a, batch_left, left), _arranged(b, batch_right, right)
    products = elementwise(graph, "mul", Symbols(a[:, :, None, :]), Symbols(b[:, None, :, :]))
    total = reduced(graph, "add", products, (3,))
    return [Symbols(total.nodes.reshape(equation.outvars[0].aval.shape))]


def _arranged(x: np.ndarray, batch, contracted) -> np.ndarray:
    """Axes as (batch, free, contracted), each of them one."""
    free = [i for i in range(x.ndim) if i not in (*batch, *contracted)]
    sizes = [int(np.prod([x.shape[i] for i in axes])) for axes in (batch, free, contracted)]
    return x.transpose(*batch, *free, *contracted).reshape(sizes)


def _integer_pow(graph: Graph, equation, given: list[Value]) -> list[Value]:
    """By repeated squaring, as XLA does it."""
    exponent, square = abs(equation.params["y"]), given[0]
    found: Value | None = None
    rest = exponent
    while rest:
        if rest % 2:
            found = square if found is None else elementwise(graph, "mul", found, square)
        rest //= 2
        if rest:
            square = elementwise(graph, "mul", square, square)
    one = np.ones(np.shape(as_symbols(graph, given[0]).nodes))
    if found is None:
        return [one]
    return [found if equation.params["y"] > 0 else elementwise(graph, "div", one, found)]


def _square(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del equation
    return [elementwise(graph, "mul", given[0], given[0])]


def _rsqrt(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del equation
    return [elementwise(graph, "div", np.asarray(1.0), elementwise(graph, "sqrt", given[0]))]


def _logistic(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del equation
    decay = elementwise(graph, "exp", elementwise(graph, "neg", given[0]))
    one = np.asarray(1.0)
    return [elementwise(graph, "div", one, elementwise(graph, "add", one, decay))]


def _power_of(base: float) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        del equation
        return [elementwise(graph, "pow", np.asarray(base), given[0])]

    return rule


def _clamp(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del equation
    low, x, high = given
    return [elementwise(graph, "min", elementwise(graph, "max", x, low), high)]


def _swapped(operation: str) -> Callable:
    def rule(graph: Graph, equation, given: list[Value]) -> list[Value]:
        del equation
        return [elementwise(graph, operation, given[1], given[0], boolean=True)]

    return rule


def _identity(graph: Graph, equation, given: list[Value]) -> list[Value]:
    del graph, equation
    return list(given)


_ELEMENTWISE = (
    "add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "rem", "floor", "ceil", "sqrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "exp", "expm1", "log", "log1p", "pow", "cbrt", "erf",
)  # fmt: skip
_MOVING = (
    "reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "concatenate", "rev", "split",
    "expand_dims", "copy", "copy_p", "pad", "stack", "unstack", "tile",
)  # fmt: skip

RULES: dict[str, Callable] = {
    **{name: _same(name) for name in _ELEMENTWISE},
    **{name: _same(name, boolean=True) for name in ("lt", "le", "eq", "ne", "is_finite")},
    **{name: _logical(name) for name in ("and", "or", "xor", "not")},
    **dict.fromkeys(_MOVING, _moving),
    "dynamic_slice": _indexed(slice(1, None)),
    "dynamic_update_slice": _indexed(slice(2, None)),
    "scatter": _indexed(1),
    "gt": _swapped("lt"),
    "ge": _swapped("le"),
    "add_any": _same("add"),
    "round": _same("rint"),
    "gather": _gather,
    "scatter-add": _scatter_add,
    "select_n": _select_n,
    "convert_element_type": _convert,
    "reduce_sum": _reduction("add"),
    "reduce_prod": _reduction("mul"),
    "reduce_max": _reduction("max"),
    "reduce_min": _reduction("min"),
    "reduce_and": _reduction("and", boolean=True),
    "reduce_or": _reduction("or", boolean=True),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("mul"),
    "cummax": _cumulative("max"),
    "cummin": _cumulative("min"),
    "dot_general": _dot_general,
    "integer_pow": _integer_pow,
    "square": _square,
    "rsqrt": _rsqrt,
    "logistic": _logistic,
    "exp2": _power_of(2.0),
    "clamp": _clamp,
    "stop_gradient": _identity,
    "optimization_barrier": _identity,
    "sharding_constraint": _identity,
    "device_put": _identity,
}


def _call(name: str) -> Callable:
    def enter(graph: Graph, params, given: list[Value], evaluate: Callable) -> list[Value]:
        if _is_solution(params.get("name"), given):
            matrix, rhs = (as_symbols(graph, x).nodes for x in given)
            return [Symbols(solve_symmetric(graph, matrix, rhs))]
        return evaluate(graph, params[name], given)

    return enter


def _is_solution(name: str | None, given: list[Value]) -> bool:
    """Whether a call solves one system with a positive definite matrix."""
    shapes = [x.nodes.shape if isinstance(x, Symbols) else np.shape(x) for x in given]
    return len(shapes) == 2 and name == call_name(*shapes)


def _linear_solve(graph: Graph, params, given: list[Value], evaluate: Callable) -> list[Value]:
    lengths = params["const_lengths"]
    first = lengths.matvec + lengths.vecmat
    constants = given[first : first + lengths.solve]
    return evaluate(graph, params["jaxprs"].solve, [*constants, *given[sum(lengths) :]])


def _scan(graph: Graph, params, given: list[Value], evaluate: Callable) -> list[Value]:
    constants, carried = params["num_consts"], params["num_carry"]
    fixed, carry = given[:constants], given[constants : constants + carried]
    columns = given[constants + carried :]
    rows = []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        each = [_row(x, i) for x in columns]
        found = evaluate(graph, params["jaxpr"], [*fixed, *carry, *each])
        carry = found[:carried]
        rows.append(found[carried:])
    if params["reverse"]:
        rows.reverse()
    if not rows:
        shapes = [x.shape for x in params["jaxpr"].out_avals[carried:]]
        return [*carry, *(np.zeros((0, *shape)) for shape in shapes)]
    stacked = [_stacked(graph, column) for column in zip(*rows, strict=True)]
    return [*carry, *stacked]


def _row(value: Value, i: int) -> Value:
    return Symbols(value.nodes[i], value.boolean) if isinstance(value, Symbols) else value[i]


def _stacked(graph: Graph, rows) -> Value:
    if not any(isinstance(x, Symbols) for x in rows):
        return np.stack(rows)
    rows = [as_symbols(graph, x) for x in rows]
    return Symbols(np.stack([x.nodes for x in rows]), rows[0].boolean)


def _while(graph: Graph, params, given: list[Value], evaluate: Callable) -> list[Value]:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body = given[:tests], given[tests : tests + bodies]
    carry = given[tests + bodies :]
    for _ in range(_TURNS):
        (goes_on,) = evaluate(graph, params["cond_jaxpr"], [*of_test, *carry])
        goes_on = settled(graph, goes_on)
        if isinstance(goes_on, Symbols):
            raise Refusal("how often its loop turns depends on the inputs")
        if not goes_on:
            return carry
        carry = evaluate(graph, params["body_jaxpr"], [*of_body, *carry])
    raise Refusal(f"its loop turns more than {_TURNS} times")


def _cond(graph: Graph, params, given: list[Value], evaluate: Callable) -> list[Value]:
    which, *arguments = given
    branches = params["branches"]
    if not isinstance(which, Symbols):
        return evaluate(graph, branches[min(max(int(which), 0), len(branches) - 1)], arguments)
    if not which.boolean or len(branches) != 2:
        raise Refusal("its choice is a number that depends on the inputs")
    no, yes = (evaluate(graph, branch, arguments) for branch in branches)
    both = zip(yes, no, strict=True)
    return [
        elementwise(graph, "select", which, a, b, boolean=as_symbols(graph, a).boolean)
        for a, b in both
    ]


CALLS: dict[str, Callable] = {
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "core_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "checkpoint": _call("jaxpr"),
    "remat": _call("jaxpr"),
    "remat2": _call("jaxpr"),
}
CONTROL: dict[str, Callable] = {
    "custom_linear_solve": _linear_solve,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
