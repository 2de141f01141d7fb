"""Primitives of JAX that serve a batch in one call: what all of them register."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jaxdae.derivatives.batch_axes import Axes, with_new_axis

# Programs of each that are kept for calls outside of all transformations.
_MOST_PROGRAMS = 256


def primitive(
    name: str,
    shapes: Callable,
    *,
    lowerings: Mapping[str, Callable] | None = None,
    computed: Callable | None = None,
    batched: Callable | None = None,
) -> Any:
    """A primitive of several results, of which `axes` is a parameter.

    Outside of all transformations, and where `jit` is switched off, it is compiled, too.

    Args:
        name: in the programs of JAX.
        shapes: its rule of shapes.
        lowerings: its rules, `(ctx, *arguments, **parameters)`, by names of platforms; or else
        computed: what it is as a function of JAX.
        batched: its batching rule; by default the same primitive with one more axis.
    """
    made = jex.Primitive(name)
    made.multiple_results = True
    made.def_abstract_eval(shapes)
    made.def_impl(_eager(made))
    for platform, rule in (lowerings or {}).items():
        mlir.register_lowering(made, rule, platform=platform)
    if computed is not None:
        mlir.register_lowering(made, mlir.lower_fun(computed, multiple_results=True))

    default = functools.partial(along_new_axis, made)
    batching.primitive_batchers[made] = default if batched is None else batched
    return made


def along_new_axis(made, arguments, axes_in, *, axes: Axes, **parameters):
    """The rule that gives the batch one more axis."""
    moved, axes = with_new_axis(arguments, axes_in, axes)
    results = made.bind(*moved, axes=axes, **parameters)
    return results, [0] * len(results)


def _eager(made) -> Callable:
    @functools.lru_cache(_MOST_PROGRAMS)
    def compiled(names: tuple[str, ...], *values):
        parameters = dict(zip(names, values, strict=True))
        return jax.jit(lambda *x: made.bind(*x, **parameters))

    def call(*arguments, **parameters):
        program = compiled(tuple(parameters), *parameters.values())
        with jax.disable_jit(False):
            return program(*arguments)

    return call


def replaced(values, at, others) -> list:
    """Values, some of them replaced by others."""
    new = dict(zip(at, others, strict=True))
    return [new.get(i, x) for i, x in enumerate(values)]


def moving(tangents) -> tuple[int, ...]:
    """Numbers of the tangents that are not JAX's symbolic zeros."""
    return tuple(i for i, x in enumerate(tangents) if type(x) is not ad.Zero)


def summed(x, has: bool, axes: Axes):
    """The cotangent of an argument: members that share it share its cotangent."""
    return x if has else x.sum(tuple(range(axes.rank)))


def pushed(function: Callable, primals, tangents):
    """Values of a function and their derivative along the tangents that are not zero.

    As rules of JAX's primitives return them; some tangents may be JAX's symbolic zeros.
    """
    by = moving(tangents)
    varied = lambda *some: function(*replaced(primals, by, some))  # noqa: E731
    some, moves = (tuple(x[i] for i in by) for x in (primals, tangents))
    return jax.jvp(varied, some, moves)


def stacked(x, axis: int | None, at: int, size: int) -> jax.Array:
    """Directions moved from an axis to `at`; without an axis all `size` of them are the same."""
    if axis is None:
        return jnp.repeat(jnp.expand_dims(x, at), size, at)
    return jnp.moveaxis(x, axis, at)
