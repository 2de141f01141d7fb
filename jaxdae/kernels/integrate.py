"""Whole integrations as native kernels that JAX can batch and differentiate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jaxdae.kernels import machine_code
from jaxdae.kernels.assembly import assembled
from jaxdae.kernels.axes import Axes, grown, spread
from jaxdae.kernels.calls import called, Subprogram
from jaxdae.kernels.functions import library
from jaxdae.kernels.initial_value import InitialValueProblem
from jaxdae.kernels.saving import Saving
from jaxdae.kernels.tangents import pushed, stacked
from jaxdae.kernels.trace import UnsupportedOperationError
from jaxdae.linalg.device_axes import alike, results

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
            return self.problem.adaptive_steps(self.given_first, self.saving.times)
        return self.problem.steps(self.saving.times)

    def results(self) -> list[tuple[int, ...]]:
        """Shapes of the results: rows, final state; of controlled steps also times and `TOLD`."""
        n = self.problem.states
        told = [(self.rows,), (TOLD,)] if self.controlled else []
        return [(self.rows, n), (n,), *told]


def _eager(primitive):
    """Outside of all transformations, and where `jit` is switched off, a kernel is compiled too."""
    compiled: dict[Any, Any] = {}

    def call(*arguments, **parameters):
        key = tuple(sorted(parameters.items(), key=lambda x: x[0]))
        if key not in compiled:
            compiled[key] = jax.jit(lambda *x: primitive.bind(*x, **parameters))
        with jax.disable_jit(False):
            return compiled[key](*arguments)

    primitive.def_impl(call)


def _registered(programs, body: str, axes: Axes, run: Run) -> str:
    dtype = run.problem.dtype
    width = axes.width(dtype)
    parts = [library(programs, width, dtype, run.problem.shared(axes.ranks())), body]
    text = assembled(parts, axes.rank, machine_code.default_threads(), width)
    every = dict.fromkeys(x for one in programs for x in (*called(one.program), one))
    content = [f"{x.name} {x.entries}\n{x.program.content()}" for x in every]
    about = f"{run.saving} {run.rows} {run.max_steps} {run.given_first} {axes.batched}"
    return machine_code.register(text, "\n".join([about, *content]))


# The run itself.

_integrate = jex.Primitive("native_integration")
_integrate.multiple_results = True


@_integrate.def_abstract_eval
def _shapes(*arguments, run: Run, axes: Axes):
    return results([(*axes.shape, *x) for x in run.results()], run.problem.dtype, arguments)


def _lowered(ctx, *arguments, run: Run, axes: Axes):
    # The loops are built with llvmlite, which need not load here.
    if run.controlled:
        from jaxdae.kernels.controlled_steps import controlled_steps as loops
    else:
        from jaxdae.kernels.given_steps import given_steps as loops
    dtype = run.problem.dtype
    body = loops(run, axes.width(dtype), axes.ranks(), axes.rank)
    return jax.ffi.ffi_lowering(_registered(run.programs(), body, axes, run))(ctx, *arguments)


def _batched(arguments, axes_in, *, run: Run, axes: Axes):
    moved, axes = grown(arguments, axes_in, axes)
    if not run.controlled and axes.batched[1 + len(run.problem.parameters)]:
        raise NotImplementedError("members of a batch share the ends of given steps.")
    found = _integrate.bind(*moved, run=run, axes=axes)
    return found, [0] * len(found)


def _jvp(primals, tangents, *, run: Run, axes: Axes):
    found = _integrate.bind(*primals, run=run, axes=axes)
    count = len(run.problem.parameters)
    y_dot, parameter_dots, time_dots = tangents[0], tangents[1 : 1 + count], tangents[1 + count :]
    if any(type(x) is not ad.Zero for x in time_dots):
        raise NotImplementedError(
            "the native backend has no derivative by times (t0, t1, dt, SaveAt(ts=...)); use "
            "simulate(..., backend='plain')."
        )
    run.problem.check_room(1)
    active = tuple(i for i, x in enumerate(parameter_dots) if type(x) is not ad.Zero)
    moves = [ad.instantiate_zeros(y_dot), *(parameter_dots[i] for i in active)]
    flags = [axes.batched[0], *(axes.batched[1 + i] for i in active)]
    moves = [
        jnp.expand_dims(x, axes.rank if has else 0) for x, has in zip(moves, flags, strict=True)
    ]
    more = Axes(axes.shape, (*axes.batched, *flags))
    rows, final = _tangents.bind(*primals, *moves, run=run, axes=more, active=active, directions=1)
    along = [jnp.squeeze(x, axes.rank) for x in (rows, final)]
    rest = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in found[2:]]
    return found, [*along, *rest]


_eager(_integrate)
mlir.register_lowering(_integrate, _lowered, platform="cpu")
batching.primitive_batchers[_integrate] = _batched
ad.primitive_jvps[_integrate] = _jvp

# Its derivative in some directions: linear in them, and transposed by the adjoint.

_tangents = jex.Primitive("native_integration_tangents")
_tangents.multiple_results = True
# Directions that one kernel follows, and states with their derivatives: more would not fit into the
# stack, on which a kernel keeps what its stages need.
_DIRECTIONS, _STATES = 8, 512


def _most_directions(run: Run) -> int:
    return min(max(_STATES // run.problem.states - 1, 1), _DIRECTIONS)


@_tangents.def_abstract_eval
def _tangent_shapes(*arguments, run: Run, axes: Axes, active, directions: int):
    del active
    shapes = [(*axes.shape, directions, *x) for x in run.results()[:2]]
    return results(shapes, run.problem.dtype, arguments)


def _derivable(programs: Callable) -> None:
    """Make programs of derivatives, or say what to do where there is none."""
    try:
        programs()
    except UnsupportedOperationError as error:
        raise UnsupportedOperationError(
            f"the run has a native kernel, but not its derivative: {error} "
            "Use simulate(..., backend='plain')."
        ) from None


def _along(*arguments, run: Run, axes: Axes, active: tuple[int, ...], directions: int):
    """Derivatives of rows and final state: the run of the varied problem, without its states."""
    problem = run.problem
    count = 1 + len(problem.parameters)
    primals, moves = arguments[: count + run.times], arguments[count + run.times :]
    flags, moved = axes.batched[: len(primals)], axes.batched[len(primals) :]
    start, whole = _beside(primals[0], moves[0], flags[0], moved[0], axes.shape)
    given = [start, *primals[1:count], *moves[1:], *primals[count:]]
    batched = (whole, *flags[1:count], *moved[1:], *flags[count:])
    varied = run._replace(problem=problem.varied(active, directions))
    _derivable(varied.programs)
    rows, final, *_ = _integrate.bind(*given, run=varied, axes=Axes(axes.shape, batched))
    n = problem.states
    rows = rows.reshape(*rows.shape[:-1], 1 + directions, n)[..., 1:, :]
    final = final.reshape(*final.shape[:-1], 1 + directions, n)[..., 1:, :]
    return [jnp.moveaxis(rows, -2, axes.rank), final]


def _beside(y, moves, has: bool, moved: bool, shape: tuple[int, ...]):
    """States followed by their derivatives, for each member where one of them has members."""
    if has != moved:
        y, moves = (x if own else spread(x, shape, 0) for x, own in ((y, has), (moves, moved)))
    flat = moves.reshape(*moves.shape[:-2], -1)
    return jnp.concatenate([y, flat], -1), has or moved


def _tangents_batched(arguments, axes_in, *, run, axes: Axes, active, directions: int):
    count = 1 + len(run.problem.parameters) + run.times
    if all(a is None for a in axes_in[:count]):
        return _more_directions(arguments, axes_in, run, axes, active, directions, count)
    moved, axes = grown(arguments, axes_in, axes)
    found = _tangents.bind(*moved, run=run, axes=axes, active=active, directions=directions)
    return found, [0] * len(found)


def _more_directions(arguments, axes_in, run, axes: Axes, active, directions: int, count: int):
    """A batch of directions from the same states: states are computed once for several of them."""
    primals, moves = arguments[:count], arguments[count:]
    size = next(x.shape[a] for x, a in zip(arguments, axes_in, strict=True) if a is not None)
    joined = []
    for x, a, has in zip(moves, axes_in[count:], axes.batched[count:], strict=True):
        at = axes.rank if has else 0
        x = stacked(x, a, at, size)  # fmt: skip
        joined.append((x.reshape(*x.shape[:at], size * directions, *x.shape[at + 2 :]), at))
    parts = []
    most = _most_directions(run)
    for first in range(0, size * directions, most):
        last = min(first + most, size * directions)
        some = [jax.lax.slice_in_dim(x, first, last, axis=at) for x, at in joined]
        parts.append(
            _tangents.bind(
                *primals, *some, run=run, axes=axes, active=active, directions=last - first
            )
        )
    found = [jnp.concatenate(x, axes.rank) for x in zip(*parts, strict=True)]
    shape = axes.shape
    found = [x.reshape(*shape, size, directions, *x.shape[axes.rank + 1 :]) for x in found]
    return found, [axes.rank] * len(found)


def _tangents_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _along(*x, **parameters), primals, tangents)


def _tangents_transposed(bars, *arguments, run, axes: Axes, active, directions: int):
    count = 1 + len(run.problem.parameters) + run.times
    primals, moves = arguments[:count], arguments[count:]
    _derivable(lambda: run.problem.transposed_steps(active, run.saving.times))
    bars = [ad.instantiate_zeros(x) for x in bars]
    each = []
    for i in range(directions):
        own = [jax.lax.index_in_dim(x, i, axes.rank, keepdims=False) for x in bars]
        more = Axes(axes.shape, (*axes.batched[:count], True, True))
        each.append(_adjoint.bind(*primals, *own, run=run, axes=more, active=active))
    found: list = [None] * count
    for move, has, *parts in zip(moves, axes.batched[count:], *each, strict=True):
        # Members that share a parameter share its cotangent.
        parts = parts if has else [x.sum(tuple(range(axes.rank))) for x in parts]
        linear = ad.is_undefined_primal(move)
        found.append(jnp.stack(parts, axes.rank if has else 0) if linear else None)
    return found


_eager(_tangents)
mlir.register_lowering(_tangents, mlir.lower_fun(_along, multiple_results=True))
batching.primitive_batchers[_tangents] = _tangents_batched
ad.primitive_jvps[_tangents] = _tangents_jvp
ad.primitive_transposes[_tangents] = _tangents_transposed

# The adjoint.

_adjoint = jex.Primitive("native_integration_adjoint")
_adjoint.multiple_results = True


@_adjoint.def_abstract_eval
def _adjoint_shapes(*arguments, run: Run, axes: Axes, active):
    own = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    return results([(*axes.shape, *x) for x in own], run.problem.dtype, arguments)


def _adjoint_lowered(ctx, *arguments, run: Run, axes: Axes, active):
    from jaxdae.kernels.adjoint_steps import adjoint_steps

    dtype, programs = run.problem.dtype, run.problem.transposed_steps(active, run.saving.times)
    if run.controlled:
        programs = [*run.programs(), *programs]
    body = adjoint_steps(run, active, axes.width(dtype), axes.ranks(), axes.rank)
    return jax.ffi.ffi_lowering(_registered(programs, body, axes, run))(ctx, *arguments)


def _adjoint_batched(arguments, axes_in, *, run: Run, axes: Axes, active):
    moved, axes = grown(arguments, axes_in, axes)
    found = _adjoint.bind(*moved, run=run, axes=axes, active=active)
    return found, [0] * len(found)


def _adjoint_jvp(primals, tangents, **parameters):
    raise NotImplementedError(
        "the native backend has no forward derivative of a reverse one; take second derivatives "
        "by jax.jacfwd(jax.jacfwd(...)) or jax.jacrev(jax.jacfwd(...)), or use "
        "simulate(..., backend='plain')."
    )


_eager(_adjoint)
mlir.register_lowering(_adjoint, _adjoint_lowered, platform="cpu")
batching.primitive_batchers[_adjoint] = _adjoint_batched
ad.primitive_jvps[_adjoint] = _adjoint_jvp


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
    return _integrate.bind(*alike(arguments), run=run, axes=Axes((), (False,) * len(arguments)))
