"""Whole integrations as native kernels that JAX can batch and differentiate."""

from typing import NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from jaxdae.kernels import machine_code
from jaxdae.kernels.assembly import assembled
from jaxdae.kernels.calls import Subprogram
from jaxdae.kernels.functions import library
from jaxdae.kernels.initial_value import InitialValueProblem
from jaxdae.kernels.saving import Saving

# Numbers that a run with controlled steps tells of itself: time reached, result code, steps, steps
# that were accepted, rows that were saved.
TOLD = 5


class Run(NamedTuple):
    """What is compiled: an initial value problem and what its runs save.

    Args:
        problem: what is integrated.
        saving: what is saved.
        rows: rows that are saved; of a run with controlled steps the largest number.
        max_steps: largest number of controlled steps.
        given_first: whether the length of the first controlled step is given.
    """

    problem: InitialValueProblem
    saving: Saving
    rows: int
    max_steps: int
    given_first: bool

    @property
    def controlled(self) -> bool:
        """Whether the steps are controlled."""
        return self.problem.controller is not None

    @property
    def times(self) -> int:
        """Arguments that are times."""
        first = 3 + self.given_first if self.controlled else 1
        return first + self.saving.times

    def programs(self) -> list[Subprogram]:
        """What the loops over steps call."""
        if self.controlled:
            return self.problem.adaptive_steps(self.given_first)
        return self.problem.steps()

    def results(self) -> list[tuple[int, ...]]:
        """Shapes of the results: rows, final state; of controlled steps also times and `TOLD`."""
        n = self.problem.states
        told = [(self.rows,), (TOLD,)] if self.controlled else []
        return [(self.rows, n), (n,), *told]


_integrate = jex.Primitive("native_integration")
_integrate.multiple_results = True


class _Axes(NamedTuple):
    """Axes of the batch, and which arguments have them; members share the others."""

    shape: tuple[int, ...]
    batched: tuple[bool, ...]

    def with_axis(self, size: int, batched) -> "_Axes":
        return _Axes((size, *self.shape), tuple(batched))


@_integrate.def_abstract_eval
def _shapes(*arguments, run: Run, axes: _Axes):
    del arguments
    return [ShapedArray((*axes.shape, *x), run.problem.dtype) for x in run.results()]


def _lowered(ctx, *arguments, run: Run, axes: _Axes):
    text = _module(run, axes, machine_code.default_threads())
    return jax.ffi.ffi_lowering(machine_code.register(text))(ctx, *arguments)


def _module(run: Run, axes: _Axes, threads: int) -> str:
    problem, rank = run.problem, len(axes.shape)
    bits = 8 * problem.dtype.itemsize
    width = machine_code.host_width(bits) if int(np.prod(axes.shape)) > 1 else 1
    ranks = tuple(rank if x else 0 for x in axes.batched)
    # The loops are built with llvmlite, which is an extra.
    if run.controlled:
        from jaxdae.kernels.controlled_steps import controlled_steps

        body = controlled_steps(run, width, ranks, rank)
    else:
        from jaxdae.kernels.given_steps import given_steps

        body = given_steps(problem, run.saving, width, ranks, rank)
    return assembled([library(run.programs(), width, problem.dtype), body], rank, threads, width)


def _batched(arguments, axes_in, *, run: Run, axes: _Axes):
    size = next(x.shape[a] for x, a in zip(arguments, axes_in, strict=True) if a is not None)
    moved, batched = [], []
    for x, a, has in zip(arguments, axes_in, axes.batched, strict=True):
        if a is not None:
            x = jnp.moveaxis(x, a, 0)
            # Members of one argument share it along all axes of the batch or along none.
            x = x if has else _spread(x, axes.shape, 1)
        elif has:
            x = jnp.broadcast_to(x, (size, *x.shape))
        moved.append(x)
        batched.append(a is not None or has)
    found = _integrate.bind(*moved, run=run, axes=axes.with_axis(size, batched))
    return found, [0] * len(found)


def _spread(x, shape: tuple[int, ...], at: int):
    """The same for all members along more axes."""
    grown = x.reshape(*x.shape[:at], *(1 for _ in shape), *x.shape[at:])
    return jnp.broadcast_to(grown, (*x.shape[:at], *shape, *x.shape[at:]))


mlir.register_lowering(_integrate, _lowered, platform="cpu")
batching.primitive_batchers[_integrate] = _batched


def integrate(run: Run, y0, parameters, times) -> list[jax.Array]:
    """Integrate an initial value problem by a native kernel.

    It can be compiled, batched and differentiated by start and parameters, in both modes.

    Args:
        run: what is integrated and saved.
        y0: start, shape (n,).
        parameters: of the shapes that the problem names.
        times: the ends of given steps; or, for controlled ones, the two ends of the run, the time
            from which on a step reaches the end, and the length of the first step where it is
            given; then the times to save, where there are any. Increasing.

    Returns:
        The saved states (rows, n), the final one (n,), and with controlled steps also the times of
        the rows, infinite where they were not reached, and `TOLD` numbers.
    """
    arguments = [jnp.asarray(x, run.problem.dtype) for x in (y0, *parameters, *times)]
    return _integrate.bind(*arguments, run=run, axes=_Axes((), (False,) * len(arguments)))
