"""Derivatives in reverse mode of programs of scalars, one operation after the other backwards.

Arrays have entries that are zero by structure. JAX's reverse mode computes cotangents of these,
too, such as those of a full matrix for a rotation about one axis. Scalars have none, and each is
gone back over once: with the program itself that takes two to three times its operations.

What JAX differentiates by a rule of its own, such as a linear solve, or what is a call, is an
equation whose results are inputs here; JAX's rule gives the cotangents of what it takes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from jaxdae.derivatives.user_rules import is_own
from jaxdae.kernels.graph.array_calls import OUTER
from jaxdae.kernels.graph.expressions import (
    CALL,
    CONSTANT,
    copied,
    Graph,
    INPUT,
    RESULT,
    TooManyOperations,
)
from jaxdae.kernels.tracing import zero_signs
from jaxdae.kernels.tracing.arrays import as_symbols, Refused, Symbols
from jaxdae.kernels.tracing.loops import Loop
from jaxdae.kernels.tracing.subprograms import ScalarProgram
from jaxdae.kernels.tracing.trace import evaluate, evaluated, UnsupportedOperationError
from jaxdae.primitives.entries import MOVEMENTS
from jaxdae.primitives.parameters import Refusal

# So many times the operations of a function at most: what is a kernel has a gradient that is one.
_LONGER = 4
# Programs of which the equations are gone through one by one.
_ENTERED = frozenset((
    "jit", "pjit", "checkpoint", "remat", "remat2", "closed_call", "core_call", "eval_jaxpr",
    "scan", "while", "cond", "platform_index",
))  # fmt: skip
# What is made of scalar operations whose derivatives are those of JAX.
_PLAIN = frozenset((
    *MOVEMENTS, "abs", "add", "add_any", "and", "convert_element_type", "cos", "cumsum",
    "device_put", "div", "dot_general", "dynamic_slice", "dynamic_update_slice", "eq", "exp",
    "gather", "ge", "gt", "integer_pow", "is_finite", "le", "log", "lt", "max", "min", "mul", "ne",
    "neg", "not", "or", "reduce_and", "reduce_or", "reduce_sum", "rsqrt", "select_n", "sign", "sin",
    "sqrt", "square", "sub", "xor",
))  # fmt: skip


def reverse(
    function: Callable, shapes: Sequence[jax.ShapeDtypeStruct], used: tuple[int, ...]
) -> ScalarProgram:
    """The program of `(t, y, bar, *parameters)` that gives cotangents of the state and parameters.

    Args:
        function: `f(t, y, *parameters)`, of the shape of `y`.
        shapes: of its arguments.
        used: numbers of the parameters, those of `y` aside.

    Raises:
        UnsupportedOperationError: for what is better left to JAX's reverse mode, such as loops that
            stay loops, or is no kernel.
    """
    return _Tape(shapes, used).program(function)


class _Cut(NamedTuple):
    """An equation that is differentiated by JAX.

    Args:
        equation: of JAX.
        arguments: in the forward graph.
        results: its nodes there, by the number of the result; none for what is known.
    """

    equation: Any
    arguments: list[Any]
    results: dict[int, np.ndarray]


class _Tape:
    """A program while it is traced forwards, beside the one in which it is gone back over.

    `ahead` has the operations of the function, where results of cuts are inputs; `graph` has the
    same and all that follows from them backwards.
    """

    def __init__(self, shapes: Sequence[jax.ShapeDtypeStruct], used: tuple[int, ...]):
        self.shapes, self.used = tuple(shapes), used
        time, state, *parameters = self.shapes
        self.dtype = np.dtype(state.dtype)
        sizes = [int(np.prod(x.shape)) for x in self.shapes]
        self.starts = np.cumsum([0, *sizes])
        count, n = int(self.starts[-1]), sizes[1]
        self.given = (time, state, state, *parameters)
        self.ahead = Graph(None, self.dtype, True)
        self.ahead.inputs(count)
        self.ahead.each = self._each
        self.graph = Graph(1 + 2 * n, self.dtype, True)
        self.graph.most = _LONGER * self.graph.most
        self.graph.inputs(count + n)
        self.bar = np.arange(1 + n, 1 + 2 * n, dtype=np.int32)
        # Nodes of `ahead` in `graph`, and whether these depend on what is differentiated by.
        self.nodes = [i if i < 1 + n else i + n for i in range(count)]
        numbers = [1, *(2 + i for i in used)]
        self.active = [self.ahead_input(i) for i in numbers]
        chosen = {int(x) for part in self.active for x in part.ravel()}
        self.depends = [i in chosen for i in range(count)]
        self.cuts: list[_Cut] = []
        self._first: dict[int, _Cut] = {}
        self._given: dict[int, int] = {}
        self._inputs = count

    def ahead_input(self, number: int) -> np.ndarray:
        """Nodes of an argument of the function."""
        nodes = np.arange(self.starts[number], self.starts[number + 1], dtype=np.int32)
        return nodes.reshape(self.shapes[number].shape)

    def program(self, function: Callable) -> ScalarProgram:
        """Trace the function and go back over it."""
        closed = jax.make_jaxpr(function)(*self.shapes)
        self.ahead.readers |= zero_signs.readers(closed, results=False)
        arguments = [Symbols(self.ahead_input(i)) for i in range(len(self.shapes))]
        try:
            (value,) = evaluate(self.ahead, closed, arguments)
            if isinstance(value, Refused):
                raise UnsupportedOperationError(value.message())
            results = as_symbols(self.ahead, value).nodes.ravel()
            self._follow()
            bars = self._back(results)
            outputs = np.concatenate([x.ravel() for x in bars])
            self.graph.check_needed(outputs)
        except (Refusal, TooManyOperations) as reason:
            raise UnsupportedOperationError(str(reason)) from None
        results = tuple(jax.ShapeDtypeStruct(x.shape, self.dtype) for x in self.active)
        return ScalarProgram(self.graph, outputs.astype(np.int32), self.given, results)

    # Forwards.

    def _each(self, graph: Graph, equation, arguments: list) -> list:
        """Results of an equation of the function."""
        name, first = equation.primitive.name, len(graph.nodes)
        if (name not in _ENTERED and name not in _PLAIN) or _reads_table(
            graph, equation, arguments
        ):
            return self._cut(equation, arguments)
        results = evaluated(graph, equation, arguments)
        made = [x.arguments[0] for x in graph.nodes[first:] if x.operation == CALL]
        if any(isinstance(x, Loop) for x in made):
            raise Refusal("it has a loop that stays one")
        return self._cut(equation, arguments) if made and name in _PLAIN else results

    def _cut(self, equation, arguments: list) -> list:
        """The same of one that JAX differentiates: its results are inputs of what follows."""
        self._follow()
        values = evaluated(self.graph, equation, self._known(arguments))
        kept: dict[int, np.ndarray] = {}
        cut = _Cut(equation, arguments, kept)
        depends = any(self._any_depends(arguments[i].nodes) for i in self._varying(cut))
        # A user's rule may have a slope where the function has none.
        of_rule = depends and is_own(equation)
        for i, value in enumerate(values):
            if of_rule and isinstance(value, np.ndarray) and value.dtype.kind == "f":
                value = as_symbols(self.graph, value)
            if isinstance(value, Symbols):
                kept[i] = self._inserted(value.nodes, of_rule)
                values[i] = value.like(kept[i])
        self._follow()
        for nodes in kept.values():
            for x in nodes.ravel():
                self.depends[x] = depends and self.ahead.nodes[x].operation == INPUT
        inserted = [int(x) for nodes in kept.values() for x in nodes.ravel() if self.depends[x]]
        if inserted:
            self._first[min(inserted)] = cut
        return values

    def _inserted(self, nodes: np.ndarray, of_rule: bool) -> np.ndarray:
        """Inputs of the function's graph that stand for nodes, and constants for such.

        Args:
            nodes: in the other graph.
            of_rule: whether these are results of a rule of a user: constants are inputs, too.
        """
        inserted = []
        for node in nodes.ravel().tolist():
            value = None if of_rule else self.graph.value(node)
            if value is not None:
                inserted.append(self.ahead.constant(value))
                continue
            self._given[self._inputs] = node
            inserted.append(self.ahead.input(self._inputs))
            self._inputs += 1
        return np.array(inserted, np.int32).reshape(nodes.shape)

    def _known(self, values: list) -> list:
        """Values in the other graph."""
        at = lambda x: np.array([self.nodes[i] for i in x.ravel()], np.int32)  # noqa: E731
        return [
            x.like(at(x.nodes).reshape(x.nodes.shape)) if isinstance(x, Symbols) else x
            for x in values
        ]

    def _follow(self) -> None:
        """Copy what is new in the function's graph."""
        # As they are: what is zero by structure has been left out where its sign is not read.
        self.graph.exact = True
        for number in range(len(self.nodes), len(self.ahead.nodes)):
            operation, arguments = self.ahead.nodes[number]
            if operation == INPUT:
                node = self._given[arguments[0]]
            else:
                node = copied(self.ahead, number, self.graph, self.nodes.__getitem__)
            self.nodes.append(node)
            parts = self.ahead.operands(number)
            self.depends.append(any(self.depends[x] for x in parts))
        self.graph.exact = False

    # Backwards.

    def _back(self, outputs: np.ndarray) -> list[np.ndarray]:
        """Cotangents of what is differentiated by, from that of the result."""
        self.bars: dict[int, int] = {}
        # Nodes with sums of what calls give.
        self.summed: set[int] = set()
        for node, bar in zip(outputs.tolist(), self.bar.tolist(), strict=True):
            self._add(node, bar)
        for node in reversed(range(len(self.nodes))):
            if node in self._first:
                self._back_over_cut(self._first[node])
            operation, arguments = self.ahead.nodes[node]
            bar = self.bars.get(node)
            if bar is None or operation in (INPUT, CONSTANT):
                continue
            if operation in (CALL, RESULT):
                raise Refusal("it has a call")
            self._back_over(node, operation, arguments, bar)
        zero = self.graph.constant(0.0)
        found = []
        for nodes in self.active:
            flat = nodes.ravel().tolist()
            if len(flat) >= OUTER and not self.summed.isdisjoint(flat):
                raise Refusal("derivatives by a large array are sums of products")
            bars = np.array([self.bars.get(x, zero) for x in flat], np.int32)
            found.append(bars.reshape(nodes.shape))
        return found

    def _add(self, node: int, bar: int) -> None:
        """Add to a cotangent."""
        if not self.depends[node] or self.graph.value(bar) == 0:
            return
        if node in self.bars:
            parts = self.bars[node], bar
            if any(self.graph.nodes[x].operation == RESULT for x in parts):
                self.summed.add(node)
            bar = self.graph.apply("add", *parts)
        self.bars[node] = bar

    def _back_over(self, node: int, operation: str, arguments: tuple, bar: int) -> None:
        rule = _RULES.get(operation)
        if rule is None:
            if not any(self.depends[x] for x in arguments):
                return
            raise Refusal(f"there is no derivative of {operation} here")
        operands = [self.nodes[x] for x in arguments]
        parts = rule(self.graph, bar, self.nodes[node], *operands)
        for part, x in zip(parts, arguments, strict=True):
            if part is not None and self.depends[x]:
                self._add(x, part())

    def _back_over_cut(self, cut: _Cut) -> None:
        """By JAX's rule, from the cotangents of results that have any."""
        results = {
            i: nodes for i, nodes in cut.results.items()
            if any(int(x) in self.bars for x in nodes.ravel())
        }  # fmt: skip
        varying = [i for i in self._varying(cut) if self._any_depends(cut.arguments[i].nodes)]
        if not results or not varying:
            return
        zero = self.graph.constant(0.0)
        bars = [
            np.array([self.bars.get(int(x), zero) for x in nodes.ravel()], np.int32).reshape(
                nodes.shape
            )
            for nodes in results.values()
        ]
        pull = _pulled(cut.equation, tuple(results), tuple(varying))
        operands = self._known(cut.arguments)
        found = evaluate(self.graph, pull, [*map(Symbols, bars), *operands])
        for i, value in zip(varying, found, strict=True):
            if isinstance(value, Refused):
                raise UnsupportedOperationError(value.message())
            nodes = as_symbols(self.graph, value).nodes.ravel().tolist()
            for x, bar in zip(cut.arguments[i].nodes.ravel().tolist(), nodes, strict=True):
                self._add(x, bar)

    def _any_depends(self, nodes: np.ndarray) -> bool:
        return any(self.depends[int(x)] for x in nodes.ravel())

    def _varying(self, cut: _Cut) -> list[int]:
        """Numbers of arguments that are floating-point and not known."""
        return [
            i for i, x in enumerate(cut.arguments)
            if isinstance(x, Symbols) and not x.boolean and x.bounds is None
        ]  # fmt: skip


def _reads_table(graph: Graph, equation, arguments: list) -> bool:
    """Whether it is the product of a large parameter, derivatives by which are products, too."""
    if equation.primitive.name != "dot_general" or any(equation.params["dimension_numbers"][1]):
        return False
    return any(
        isinstance(x, Symbols)
        and x.nodes.size >= OUTER
        and all(graph.nodes[i].operation == INPUT for i in x.nodes.ravel().tolist())
        for x in arguments
    )


def _pulled(equation, results: tuple[int, ...], varying: tuple[int, ...]):
    """Cotangents of arguments from those of results and all arguments, as a program of JAX."""
    outside = list(dict.fromkeys(x for x in equation.invars if not isinstance(x, jex.Literal)))
    outs = [equation.outvars[i] for i in results]
    avals = lambda atoms: [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in atoms]  # noqa: E731
    any_program = jax.make_jaxpr(lambda *x: x)(*avals(outside)).jaxpr
    one = any_program.replace(
        invars=outside, outvars=outs, eqns=[equation], effects=equation.effects
    )
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(one, ()))
    place = {x: i for i, x in enumerate(equation.invars) if not isinstance(x, jex.Literal)}

    def pulled(bars, *operands):
        def varied(*some):
            changed = dict(zip(varying, some, strict=True))
            given = [changed.get(place[x], operands[place[x]]) for x in outside]
            return function(*given)

        return jax.vjp(varied, *(operands[i] for i in varying))[1](list(bars))

    return jax.make_jaxpr(pulled)(avals(outs), *avals(equation.invars))


# Cotangents of the arguments of scalar operations: what a graph, the cotangent of the result, the
# result and the arguments give, made where it is wanted.


def _quotient(g: Graph, bar: int, result: int, x: int, y: int):
    inverse = g.value(x) == 1
    each = g.apply("mul", bar, result) if inverse else g.apply("div", bar, y)
    minus = lambda: g.apply("neg", g.apply("mul", each, result))  # noqa: E731
    return (None if inverse else lambda: each), minus


def _extreme(g: Graph, bar: int, result: int, x: int, y: int):
    """Half of it to each of two equal numbers."""

    def share(one: int, other: int):
        both = g.apply("select", g.apply("eq", other, result), g.constant(0.5), g.constant(1.0))
        weight = g.apply("select", g.apply("eq", one, result), both, g.constant(0.0))
        return g.apply("mul", bar, weight)

    return lambda: share(x, y), lambda: share(y, x)


def _choice(g: Graph, bar: int, result: int, condition: int, x: int, y: int):
    del result, x, y
    zero = g.constant(0.0)
    return (
        None,
        lambda: g.apply("select", condition, bar, zero),
        lambda: g.apply("select", condition, zero, bar),
    )


def _along(slope: Callable) -> Callable:
    """Of a function of one number, by its cotangent times a slope."""

    def rule(g: Graph, bar: int, result: int, x: int):
        return (lambda: slope(g, bar, result, x),)

    return rule


def _of_absolute_value(g: Graph, bar: int, result: int, x: int):
    """One at zero, as in JAX."""
    del result
    return g.apply("select", g.apply("le", g.constant(0.0), x), bar, g.apply("neg", bar))


def _flat(g: Graph, bar: int, result: int, *arguments: int):
    del g, bar, result
    return (None,) * len(arguments)


_RULES: dict[str, Callable] = {
    "add": lambda g, bar, _, x, y: (lambda: bar, lambda: bar),  # noqa: ARG005
    "sub": lambda g, bar, _, x, y: (lambda: bar, lambda: g.apply("neg", bar)),  # noqa: ARG005
    "neg": lambda g, bar, _, x: (lambda: g.apply("neg", bar),),  # noqa: ARG005
    "mul": lambda g, bar, _, x, y: (
        lambda: g.apply("mul", bar, y),
        lambda: g.apply("mul", bar, x),
    ),
    "div": _quotient,
    "max": _extreme,
    "min": _extreme,
    "select": _choice,
    "abs": _along(_of_absolute_value),
    "sin": _along(lambda g, bar, _, x: g.apply("mul", bar, g.apply("cos", x))),
    "cos": _along(lambda g, bar, _, x: g.apply("neg", g.apply("mul", bar, g.apply("sin", x)))),
    "exp": _along(lambda g, bar, result, _: g.apply("mul", bar, result)),
    "log": _along(lambda g, bar, _, x: g.apply("div", bar, x)),
    "sqrt": _along(
        lambda g, bar, result, _: g.apply("div", g.apply("mul", bar, g.constant(0.5)), result)
    ),
    **dict.fromkeys(
        ("sign", "floor", "ceil", "rint", "lt", "le", "eq", "ne", "and", "or", "xor", "not",
         "is_finite"), _flat
    ),
}  # fmt: skip
