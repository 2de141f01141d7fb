"""Derivatives of native integrations along directions, in forward mode."""

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jaxdae.derivatives.batch_axes import Axes, broadcast_along
from jaxdae.derivatives.device_axes import results
from jaxdae.derivatives.functions import along, evaluate
from jaxdae.derivatives.primitives import along_new_axis, primitive
from jaxdae.errors import BackendError
from jaxdae.kernels.integration.run import (
    AT_EVENTS,
    native_integration,
    Run,
    TIMES,
    varied,
)
from jaxdae.kernels.launch.tangents import pushed, stacked
from jaxdae.kernels.tracing.trace import UnsupportedOperationError


def stepping_aside(run: Run, reason) -> None:
    """Refuse the plain program where kernels alone were asked for."""
    if run.strict or run.plain is None:
        raise BackendError(
            f"the run has a native kernel, but not this derivative: {reason} "
            "Use simulate(..., backend='auto') or backend='plain'."
        )


def start_and(active: tuple[int, ...]) -> tuple[int, ...]:
    """Start and parameters among the arguments of a run."""
    return (0, *(1 + i for i in active))


def argument_count(run: Run) -> int:
    """Start, parameters and times."""
    return 1 + len(run.problem.parameters) + run.times


def moving_arguments(run: Run, tangents):
    """Numbers of the parameters that change, and whether times do."""
    count = 1 + len(run.problem.parameters)
    active = tuple(i for i, x in enumerate(tangents[1:count]) if type(x) is not ad.Zero)
    timed = any(type(x) is not ad.Zero for x in tangents[count : argument_count(run)])
    if timed:
        stepping_aside(run, TIMES)
    return active, timed


# The derivative of the run.


def _jvp(primals, tangents, *, run: Run, axes: Axes):
    result = native_integration.bind(*primals, run=run.beside_derivative(), axes=axes)
    active, timed = moving_arguments(run, tangents)
    if run.once:
        stepping_aside(run, run.own_rule)
    ends_by_event = run.problem.event is not None
    if ends_by_event:
        stepping_aside(run, AT_EVENTS)
    if timed or run.once or ends_by_event:
        assert run.plain is not None
        return result, along(run.plain, primals, tangents, axes)
    moves = [ad.instantiate_zeros(tangents[0]), *(tangents[1 + i] for i in active)]
    flags = [axes.batched[i] for i in start_and(active)]
    moves = [
        jnp.expand_dims(x, axes.rank if has else 0) for x, has in zip(moves, flags, strict=True)
    ]
    more = Axes(axes.shape, (*axes.batched, *flags))
    integrated = integration_tangents.bind(
        *primals, *moves, run=run, axes=more, active=active, directions=1
    )
    rest = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in result[2:]]
    return result, [*(jnp.squeeze(x, axes.rank) for x in integrated), *rest]


ad.primitive_jvps[native_integration] = _jvp

# Its derivative in some directions: linear in them, and transposed by the adjoint.

# Directions that one kernel follows, and states with their derivatives: more would not fit into the
# stack, on which a kernel keeps what its stages need.
_DIRECTIONS, _STATES = 8, 512


def _most_directions(run: Run) -> int:
    return min(max(_STATES // run.problem.states - 1, 1), _DIRECTIONS)


def _tangent_shapes(*arguments, run: Run, axes: Axes, active, directions: int):
    del active
    shapes = [(*axes.shape, directions, *x) for x in run.results()[:2]]
    return results(shapes, run.problem.dtype, arguments)


def _along(*arguments, run: Run, axes: Axes, active: tuple[int, ...], directions: int):
    """Derivatives of rows and final state: the run of the varied problem, without its states."""
    problem = run.problem
    count = 1 + len(problem.parameters)
    primals, moves = arguments[: argument_count(run)], arguments[argument_count(run) :]
    try:
        more = varied(run, active, directions)
        more.programs()
    except UnsupportedOperationError as error:
        stepping_aside(run, error)
        return _along_plainly(primals, moves, run, axes, active)
    flags, moved = axes.batched[: len(primals)], axes.batched[len(primals) :]
    start, has_members = beside(primals[0], moves[0], flags[0], moved[0], axes.shape)
    operands = [start, *primals[1:count], *moves[1:], *primals[count:]]
    batched = (has_members, *flags[1:count], *moved[1:], *flags[count:])
    rows, final, *_ = native_integration.bind(*operands, run=more, axes=Axes(axes.shape, batched))
    n = problem.states
    rows = rows.reshape(*rows.shape[:-1], 1 + directions, n)[..., 1:, :]
    final = final.reshape(*final.shape[:-1], 1 + directions, n)[..., 1:, :]
    return [jnp.moveaxis(rows, -2, axes.rank), final]


def _along_plainly(primals, moves, run: Run, axes: Axes, active):
    """The same without a kernel, one direction after the other."""
    assert run.plain is not None
    function = run.plain.along(start_and(active))
    at = [axes.rank if x else 0 for x in axes.batched[len(primals) :]]
    one = lambda *moves: evaluate(function, [*primals, *moves], axes)[:2]  # noqa: E731
    return jax.vmap(one, at, axes.rank)(*moves)


def beside(y, moves, has: bool, moved: bool, shape: tuple[int, ...]):
    """States followed by their derivatives, for each member where one of them has members."""
    if has != moved:
        y, moves = (
            x if varies else broadcast_along(x, shape, 0)
            for x, varies in ((y, has), (moves, moved))
        )
    flat = moves.reshape(*moves.shape[:-2], -1)
    return jnp.concatenate([y, flat], -1), has or moved


def _tangents_batched(arguments, axes_in, *, run, axes: Axes, active, directions: int):
    count = argument_count(run)
    if all(a is None for a in axes_in[:count]):
        return _more_directions(arguments, axes_in, run, axes, active, directions, count)
    kept = {"run": run, "axes": axes, "active": active, "directions": directions}
    return along_new_axis(integration_tangents, arguments, axes_in, **kept)


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
            integration_tangents.bind(
                *primals, *some, run=run, axes=axes, active=active, directions=last - first
            )
        )
    entries = [jnp.concatenate(x, axes.rank) for x in zip(*parts, strict=True)]
    shape = axes.shape
    entries = [x.reshape(*shape, size, directions, *x.shape[axes.rank + 1 :]) for x in entries]
    return entries, [axes.rank] * len(entries)


def _tangents_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _along(*x, **parameters), primals, tangents)


integration_tangents = primitive(
    "native_integration_tangents", _tangent_shapes, computed=_along, batched=_tangents_batched
)
ad.primitive_jvps[integration_tangents] = _tangents_jvp
