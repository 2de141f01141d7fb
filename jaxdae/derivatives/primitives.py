"""Primitives of JAX that serve a batch in one call, also where arrays differ between devices."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

# Programs of each that are kept for calls outside of all transformations.
_MOST_PROGRAMS = 256


class Axes(NamedTuple):
    """Axes of the batch, and which arguments have them; members share the others.

    Args:
        shape: lengths of the axes.
        batched: for each argument, whether it has them.
    """

    shape: tuple[int, ...]
    batched: tuple[bool, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def members(self) -> int:
        """Members of the batch."""
        return int(np.prod(self.shape))

    def ranks(self) -> tuple[int, ...]:
        """Axes of the batch in each argument."""
        return tuple(self.rank if x else 0 for x in self.batched)


def with_new_axis(arguments, axes_in, axes: Axes) -> tuple[list, Axes]:
    """Arguments with one more axis of the batch, the first one."""
    size = next(x.shape[a] for x, a in zip(arguments, axes_in, strict=True) if a is not None)
    moved, batched = [], []
    for x, a, has in zip(arguments, axes_in, axes.batched, strict=True):
        if a is not None:
            # Members have an argument of their own along all axes of the batch or along none.
            x = jnp.moveaxis(x, a, 0)
            x = x if has else broadcast_along(x, axes.shape, 1)
        elif has:
            x = jnp.broadcast_to(x, (size, *x.shape))
        moved.append(x)
        batched.append(a is not None or has)
    return moved, Axes((size, *axes.shape), tuple(batched))


def broadcast_along(x, shape: tuple[int, ...], at: int):
    """The same for all members along more axes."""
    reshaped = x.reshape(*x.shape[:at], *(1 for _ in shape), *x.shape[at:])
    return jnp.broadcast_to(reshaped, (*x.shape[:at], *shape, *x.shape[at:]))


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


# Arrays that differ between the devices of `jax.shard_map`.


def varying_together(arguments) -> list:
    """Arguments that all differ between the devices of `jax.shard_map` if one of them does.

    The cotangent of what devices share is then summed over them.
    """
    every = frozenset().union(*(_varying(x) for x in arguments))
    more = [tuple(sorted(every - _varying(x))) for x in arguments]
    cast = lambda x, names: jax.lax.pcast(x, names, to="varying")  # noqa: E731
    return [cast(x, names) if names else x for x, names in zip(arguments, more, strict=True)]


def _varying(x) -> frozenset:
    """Axes of devices along which an array differs."""
    kind = x if isinstance(x, ShapedArray) else jax.typeof(x)
    return getattr(getattr(kind, "manual_axis_type", None), "varying", frozenset())


def results(shapes, dtype, arguments) -> list[ShapedArray]:
    """Types of results, which differ between devices as the arguments do."""
    first = arguments[0]
    if not _varying(first):
        return [ShapedArray(x, dtype) for x in shapes]
    mesh, kind = first.sharding.mesh, first.manual_axis_type
    place = [NamedSharding(mesh, PartitionSpec(*(None for _ in x))) for x in shapes]
    return [
        ShapedArray(x, dtype, sharding=spec, manual_axis_type=kind)
        for x, spec in zip(shapes, place, strict=True)
    ]
