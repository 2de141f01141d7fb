"""Along which axes of devices arrays differ inside `jax.shard_map`, for primitives of our own."""

import jax
from jax.core import ShapedArray
from jax.sharding import NamedSharding, PartitionSpec


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
