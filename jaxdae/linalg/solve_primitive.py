"""Linear solves as primitives of JAX: one operation of a traced program, with axes of a batch.

Whoever goes over a program can then solve by other means, without following the loops.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from jaxdae.derivatives.primitives import replaced, results, varying_together

# Up to this many unknowns a batch is solved at once. Beyond, on processors, one after the other:
# LAPACK's calls for batches wait for XLA's threads while they hold one themselves, and two of
# them at once, on a machine of two cores, wait for each other for ever.
_SMALL = 16


class BatchAxes(NamedTuple):
    """Axes of a batch, which stand before those of one system.

    Args:
        sizes: of all axes, the outermost first; the solutions have all of them.
        present: for each argument, which of them it has, in that order.
    """

    sizes: tuple[int, ...]
    present: tuple[tuple[bool, ...], ...]

    def core(self, number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of an argument of one system."""
        return shape[sum(self.present[number]) :]

    def with_axis(self, size: int, present: tuple[bool, ...]) -> "BatchAxes":
        """The batch with one more axis, the outermost."""
        pairs = zip(present, self.present, strict=True)
        return BatchAxes((size, *self.sizes), tuple((new, *old) for new, old in pairs))


def _one_by_one(function: Callable, present: tuple[bool, ...]) -> Callable:
    """`function` along a first axis that some of its arguments have, one after the other."""

    def mapped(*arguments):
        at = [i for i, has in enumerate(present) if has]
        some = [arguments[i] for i in at]
        return jax.lax.map(lambda x: function(*replaced(arguments, at, x)), some)

    return mapped


def solve_primitive(name: str, solve: Callable, sides: int) -> Callable:
    """A solve as a primitive of its own, which `jax.vmap` gives axes of a batch.

    Its derivatives are not known: it belongs inside `jax.lax.custom_linear_solve`.

    Args:
        name: of the primitive.
        solve: takes matrices and then right sides of one system; returns a list of solutions, each
            of the shape of its right side.
        sides: number of right sides, which are the last arguments.

    Returns:
        A function of the same arguments. In a traced program the primitive has one parameter,
        `batch`, of `BatchAxes`.
    """
    primitive = jex.Primitive(name)
    primitive.multiple_results = True

    @cache
    def compiled(batch: BatchAxes):
        together = alone = solve
        for present in reversed(list(zip(*batch.present, strict=True))):
            together = jax.vmap(together, tuple(0 if x else None for x in present))
            alone = _one_by_one(alone, present)

        def mapped(*arguments):
            if not batch.sizes or batch.core(0, arguments[0].shape)[-1] <= _SMALL:
                return together(*arguments)
            return jax.lax.platform_dependent(*arguments, cpu=alone, default=together)

        # Compiled once, however often it stands in a program.
        return jax.jit(mapped)

    @primitive.def_impl
    def apply(*arguments, batch: BatchAxes):
        return compiled(batch)(*arguments)

    @primitive.def_abstract_eval
    def shapes(*arguments, batch: BatchAxes):
        first = len(arguments) - sides
        cores = (batch.core(i, arguments[i].shape) for i in range(first, len(arguments)))
        dtype = jnp.result_type(*(x.dtype for x in arguments))
        return results([(*batch.sizes, *x) for x in cores], dtype, arguments)

    def batched(arguments, axes, *, batch: BatchAxes):
        has = tuple(x is not None for x in axes)
        size = next(x.shape[a] for x, a in zip(arguments, axes, strict=True) if a is not None)
        moved = [
            x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(arguments, axes, strict=True)
        ]
        return primitive.bind(*moved, batch=batch.with_axis(size, has)), [0] * sides

    mlir.register_lowering(primitive, mlir.lower_fun(apply, multiple_results=True))
    batching.primitive_batchers[primitive] = batched
    return lambda *arguments: primitive.bind(
        *varying_together(arguments), batch=BatchAxes((), ((),) * len(arguments))
    )
