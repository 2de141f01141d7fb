"""Functions of JAX with derivatives in both modes and to every order, whatever is in them.

A loop whose number of turns is known only when it runs has, in JAX, a derivative in one mode or
the other. Here a derivative is written down by what it is of, and computed when it is wanted, by
the loop that suits it. In reverse mode it is zero where the cotangents that it starts from are,
also where the function is not finite: such a member of a batch leaves a sum over all members alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import ad

from jaxdae.derivatives.primitives import (
    Axes,
    moving,
    primitive,
    replaced,
    results,
    summed,
    varying_together,
)
from jaxdae.derivatives.user_rules import own_rules

FORWARD, REVERSE, BOTH = "forward", "reverse", "both"


class Derivative(NamedTuple):
    """One derivative of a function.

    Args:
        mode: `FORWARD` for that along directions of some arguments, which follow all arguments;
            `REVERSE` for its transpose, where cotangents of all results follow.
        by: numbers of those arguments.
    """

    mode: str
    by: tuple[int, ...]


class Function(NamedTuple):
    """A function of arrays for one member of a batch, or a derivative of it.

    Args:
        base: `base(mode, *arrays)`, a list of arrays, in a form that has derivatives of that mode.
        results: shapes of what `base` gives.
        pushed: whether `base` has a forward derivative in it.
        steps: the derivatives, the innermost first.
        one_way: whether a rule in it has a derivative in reverse mode only, `jax.custom_vjp`.
    """

    base: Callable[..., Any]
    results: tuple[jax.ShapeDtypeStruct, ...]
    pushed: bool = False
    steps: tuple[Derivative, ...] = ()
    one_way: bool = False

    def beside_derivative(self) -> "Function":
        """Itself, as JAX computes it where its derivative is wanted, too.

        Then a function with a rule for the reverse mode is computed by this rule, which says what
        it keeps for later: that can be differentiated again.
        """
        if not self.one_way or self.steps:
            return self
        return self._replace(base=_Kept(self.base), one_way=False)

    def along(self, by: tuple[int, ...]) -> "Function":
        """Its derivative along directions."""
        return self._replace(steps=(*self.steps, Derivative(FORWARD, by)))

    def pulled(self, by: tuple[int, ...]) -> "Function":
        """The transpose of `along`."""
        return self._replace(steps=(*self.steps, Derivative(REVERSE, by)))

    @property
    def mode(self) -> str:
        """What loops must be made for."""
        modes = [FORWARD] * self.pushed + [x.mode for x in self.steps]
        if REVERSE not in modes:
            return FORWARD
        return REVERSE if modes == [REVERSE] else BOTH

    @property
    def _inner(self) -> "Function":
        return self._replace(steps=self.steps[:-1])

    def _count(self) -> int:
        """How many results it has."""
        if not self.steps:
            return len(self.results)
        last = self.steps[-1]
        return len(last.by) if last.mode == REVERSE else self._inner._count()

    def _own(self, count: int) -> int:
        """How many of its arguments are those of what it is a derivative of."""
        last = self.steps[-1]
        return count - (self._inner._count() if last.mode == REVERSE else len(last.by))

    def shapes(self, arguments) -> list:
        """Shapes of its results, from those of its arguments."""
        if not self.steps:
            return list(self.results)
        last, inner_arguments = self.steps[-1], arguments[: self._own(len(arguments))]
        return (
            [inner_arguments[i] for i in last.by]
            if last.mode == REVERSE
            else self._inner.shapes(inner_arguments)
        )

    def _cotangents(self, count: int) -> tuple[int, ...]:
        """Arguments that it is linear in for it has a reverse mode: with them it is zero."""
        if not self.steps:
            return ()
        last, inner_count = self.steps[-1], self._own(count)
        if last.mode == REVERSE:
            return tuple(range(inner_count, count))
        inner = self._inner._cotangents(inner_count)
        return (*inner, *(inner_count + i for i, x in enumerate(last.by) if x in inner))

    def __call__(self, *arguments) -> list:
        """Its value."""
        result = self.in_mode(self.mode, *arguments)
        bars = self._cotangents(len(arguments))
        if not bars:
            return result
        wanted = jnp.any(jnp.stack([jnp.any(arguments[i] != 0) for i in bars]))
        return [jnp.where(wanted, x, jnp.zeros_like(x)) for x in result]

    def in_mode(self, mode: str, *arguments) -> list:
        """The same in a form that has derivatives of a mode."""
        if not self.steps:
            return list(self.base(mode, *arguments))
        last, count = self.steps[-1], self._own(len(arguments))
        inner_arguments, more = arguments[:count], arguments[count:]

        def varied(*some):
            return self._inner.in_mode(mode, *replaced(inner_arguments, last.by, some))

        primals = tuple(inner_arguments[i] for i in last.by)
        if last.mode == FORWARD:
            return jax.jvp(varied, primals, tuple(more))[1]
        return list(jax.vjp(varied, *primals)[1](list(more)))


class _Kept(NamedTuple):
    """A function as its derivative in reverse mode computes it."""

    base: Callable[..., Any]

    def __call__(self, mode: str, *arrays) -> list[jax.Array]:
        del mode  # it has a derivative in it, beside those that follow
        return list(jax.vjp(lambda *x: list(self.base(BOTH, *x)), *arrays)[0])


def in_jax(*arguments, function: Function, axes: Axes):
    """A function, or a derivative of one, of all members of a batch, as JAX computes it."""
    one: Callable = function
    for _ in range(axes.rank):
        one = jax.vmap(one, in_axes=tuple(0 if x else None for x in axes.batched))
    return one(*arguments)


def _shapes(*arguments, function: Function, axes: Axes):
    pairs = zip(arguments, axes.batched, strict=True)
    each = [jax.ShapeDtypeStruct(x.shape[axes.rank if has else 0 :], x.dtype) for x, has in pairs]
    result = function.shapes(each)
    return [results([(*axes.shape, *x.shape)], x.dtype, arguments)[0] for x in result]


_evaluate = primitive("derivable_function", _shapes, computed=in_jax)


def _jvp(primals, tangents, *, function: Function, axes: Axes):
    result = _evaluate.bind(*primals, function=function.beside_derivative(), axes=axes)
    return result, _derivative(primals, tangents, function, axes)


def _derivative(primals, tangents, function: Function, axes: Axes):
    by = moving(tangents)
    more = Axes(axes.shape, (*axes.batched, *(axes.batched[i] for i in by)))
    moves = (tangents[i] for i in by)
    return _along.bind(*primals, *moves, function=function.along(by), axes=more)


# The derivative along directions, linear in these.

_along = primitive("derivative_of_function", _shapes, computed=in_jax)


def _along_jvp(primals, tangents, *, function: Function, axes: Axes):
    result = _along.bind(*primals, function=function, axes=axes)
    return result, _derivative(primals, tangents, function, axes)


def _along_transposed(bars, *arguments, function: Function, axes: Axes):
    by = function.steps[-1].by
    count = len(arguments) - len(by)
    bars = [ad.instantiate_zeros(x) for x in bars]
    more = Axes(axes.shape, (*axes.batched[:count], *(True for _ in bars)))
    turned = function._inner.pulled(by)
    result = _evaluate.bind(*arguments[:count], *bars, function=turned, axes=more)
    moves = zip(result, axes.batched[count:], strict=True)
    return [None] * count + [summed(x, has, axes) for x, has in moves]


ad.primitive_jvps[_evaluate], ad.primitive_jvps[_along] = _jvp, _along_jvp
ad.primitive_transposes[_along] = _along_transposed


def evaluate(function: Function, arguments, axes: Axes | None = None) -> list[jax.Array]:
    """The value of a function, with derivatives in both modes and to every order."""
    axes = Axes((), (False,) * len(arguments)) if axes is None else axes
    return _evaluate.bind(*varying_together(list(arguments)), function=function, axes=axes)


def along(function: Function, primals, tangents, axes: Axes) -> list[jax.Array]:
    """The derivative along tangents, of which some may be JAX's symbolic zeros."""
    return _derivative(primals, tangents, function, axes)


def with_nan_safe_derivative(function: Callable, result: Any, *arguments) -> Any:
    """`function(*arguments)`, whose derivative is zero for a cotangent of zero.

    That of JAX is not a number where the function is not finite.

    Args:
        function: of arrays in any pytrees.
        result: arrays, or their shapes, in the structure of what it gives.
        arguments: of the function.
    """
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes, outcome = jax.tree.flatten(result)

    def flat(*leaves):
        operands = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        pairs = zip(jax.tree.leaves(function(*operands)), kinds, strict=True)
        return [jnp.asarray(x, kind.dtype) for x, kind in pairs]

    def base(mode, *leaves):
        del mode
        return jex.jaxpr_as_fun(closed)(*leaves)

    kinds = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in shapes)
    # Once for all of its derivatives.
    closed = jax.make_jaxpr(flat)(*leaves)
    one_way = any(x.one_way for x in own_rules(closed))
    return jax.tree.unflatten(outcome, evaluate(Function(base, kinds, one_way=one_way), leaves))
