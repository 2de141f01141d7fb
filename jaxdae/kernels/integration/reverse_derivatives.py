"""Derivatives of native integrations in reverse mode, and the derivatives of these."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from jaxdae.derivatives.batch_axes import Axes, broadcast_along, with_new_axis
from jaxdae.derivatives.device_axes import results
from jaxdae.derivatives.functions import along, evaluate
from jaxdae.derivatives.primitives import primitive, summed
from jaxdae.kernels.integration.forward_derivatives import (
    argument_count,
    beside,
    integration_tangents,
    moving_arguments,
    start_and,
    stepping_aside,
)
from jaxdae.kernels.integration.run import (
    Run,
    varied,
    work,
)
from jaxdae.kernels.integration.step_programs import adjoint_programs, transposed_pieces
from jaxdae.kernels.launch.platforms import on_platforms, Platform, PLATFORMS
from jaxdae.kernels.launch.tangents import pushed
from jaxdae.kernels.tracing.trace import UnsupportedOperationError


def _tangents_transposed(bars, *arguments, run, axes: Axes, active, directions: int):
    count = argument_count(run)
    primals, moves = arguments[:count], arguments[count:]
    bars = [ad.instantiate_zeros(x) for x in bars]
    plain_axes = Axes(axes.shape, axes.batched[:count])
    each = []
    for i in range(directions):
        one = [jax.lax.index_in_dim(x, i, axes.rank, keepdims=False) for x in bars]
        each.append(_pulled(primals, one, run, plain_axes, active, axes.batched[count:]))
    entries: list = [None] * count
    for move, has, *parts in zip(moves, axes.batched[count:], *each, strict=True):
        linear = ad.is_undefined_primal(move)
        entries.append(jnp.stack(parts, axes.rank if has else 0) if linear else None)
    return entries


def _pulled(primals, bars, run: Run, axes: Axes, active, each: tuple[bool, ...] | None = None):
    """Cotangents of start and parameters from those of rows and final state.

    Args:
        primals: start, parameters and times.
        bars: cotangents of rows and final state.
        run: what is differentiated.
        axes: of the primals.
        active: numbers of the parameters.
        each: for each cotangent, whether every member has its own, and they are not summed up;
            without it always.
    """
    more = Axes(axes.shape, (*axes.batched, *(True for _ in bars)))
    each = (True,) * (1 + len(active)) if each is None else each
    try:
        pieces = transposed_pieces(run.problem, active, run.saving.times)
    except UnsupportedOperationError as error:
        stepping_aside(run, error)
        assert run.plain is not None
        bars, more = _all_bars(bars, run, more)
        result = evaluate(run.plain.pulled(start_and(active)), [*primals, *bars], more)
        return [summed(x, has, axes) for x, has in zip(result, each, strict=True)]
    flags = (axes.batched[i] for i in start_and(active))
    totals = tuple(
        bool(axes.rank and x.ranks) and not has and not every
        for x, has, every in zip(pieces, flags, each, strict=True)
    )
    result = _adjoint.bind(*primals, *bars, run=run, axes=more, active=active, totals=totals)
    parts = zip(result, each, totals, strict=True)
    return [x if total else summed(x, has, axes) for x, has, total in parts]


def _all_bars(bars, run: Run, axes: Axes):
    """Cotangents of all results of a run: nothing depends on what adaptive steps tell."""
    more = [jnp.zeros((*axes.shape, *x), run.problem.dtype) for x in run.results()[2:]]
    return [*bars, *more], Axes(axes.shape, (*axes.batched, *(True for _ in more)))


def _adjoint_shapes(*arguments, run: Run, axes: Axes, active, totals):
    each_shape = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    shapes = [
        x if total else (*axes.shape, *x) for x, total in zip(each_shape, totals, strict=True)
    ]
    return results(shapes, run.problem.dtype, arguments)


def _adjoint_computed(platform: Platform, *arguments, run: Run, axes: Axes, active, totals):
    width = platform.width(run.problem.dtype, axes)
    kept = {"run": run, "axes": axes, "active": active, "totals": totals}
    result = _blocks.bind(*arguments, width=width, **kept)
    return [x.sum(0) if total else x for x, total in zip(result, totals, strict=True)]


# The same before the sums over blocks of members, of as many as a vector has entries.


def _block_shapes(*arguments, run: Run, axes: Axes, active, totals, width: int):
    blocks = -(-axes.members // width)
    each_shape = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    pairs = zip(each_shape, totals, strict=True)
    shapes = [(blocks, *x) if total else (*axes.shape, *x) for x, total in pairs]
    return results(shapes, run.problem.dtype, arguments)


def _blocks_lowered(
    platform: Platform, ctx, *arguments, run: Run, axes: Axes, active, totals, width: int
):
    del width
    from jaxdae.kernels.integration.adjoint_steps import adjoint_steps, kept_numbers

    programs = adjoint_programs(run.problem, active, run.saving.times)
    if run.adaptive:
        programs = [*run.programs(), *programs]
    lanes = platform.writer(run.problem.dtype, axes, ctx)
    body = adjoint_steps(run, active, lanes, axes.ranks(), axes.rank, totals[1:])
    launched = work(programs, body, lanes, axes, run)._replace(
        scratch=kept_numbers(run, lanes, ctx.avals_in),
        result_ranks=tuple(1 if x else axes.rank for x in totals),
    )
    return platform.launch(ctx, arguments, launched)


_blocks = primitive(
    "native_integration_adjoint_blocks", _block_shapes, lowerings=on_platforms(_blocks_lowered)
)


def _adjoint_batched(arguments, axes_in, *, run: Run, axes: Axes, active, totals):
    rank = axes.rank
    moved, axes = with_new_axis(arguments, axes_in, axes)
    # Each entry of the new axis wants sums of its own: members are summed up here.
    none = (False,) * len(totals)
    result = _adjoint.bind(*moved, run=run, axes=axes, active=active, totals=none)
    return _in_total(result, totals, tuple(range(1, 1 + rank))), [0] * len(result)


def _in_total(result, totals, at: tuple[int, ...]) -> list:
    return [x.sum(at) if total else x for x, total in zip(result, totals, strict=True)]


def _adjoint_jvp(primals, tangents, *, run: Run, axes: Axes, active, totals):
    result = _adjoint.bind(*primals, run=run, axes=axes, active=active, totals=totals)
    members = tuple(range(axes.rank))
    moving, timed = moving_arguments(run, tangents)
    # The derivative of the adjoint, below, is made by the symmetry of second derivatives.
    if run.own_rule is not None:
        stepping_aside(run, run.own_rule)
    if timed or run.own_rule is not None:
        assert run.plain is not None
        arguments, more = _all_bars(primals, run, axes)
        still = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in arguments[len(primals) :]]
        along_moves = along(
            run.plain.pulled(start_and(active)), arguments, [*tangents, *still], more
        )
        return result, _in_total(along_moves, totals, members)
    count = argument_count(run)
    by = (*start_and(moving), count, count + 1)
    moves = [ad.instantiate_zeros(tangents[i]) for i in by]
    more = Axes(axes.shape, (*axes.batched, *(axes.batched[i] for i in by)))
    along_moves = _curvature.bind(
        *primals, *moves, run=run, axes=more, active=active, moving=moving
    )
    return result, _in_total(along_moves, totals, members)


_adjoint = primitive(
    "native_integration_adjoint",
    _adjoint_shapes,
    batched=_adjoint_batched,
)
for _platform in PLATFORMS:
    _rule = mlir.lower_fun(partial(_adjoint_computed, _platform), multiple_results=True)
    mlir.register_lowering(_adjoint, _rule, platform=_platform.name)
ad.primitive_jvps[_adjoint] = _adjoint_jvp

# The derivative of the adjoint, along directions of the start, the parameters with numbers in
# `moving`, and both cotangents: linear in them.


def _curvature_shapes(*arguments, run: Run, axes: Axes, active, moving):
    del moving
    none = (False,) * (1 + len(active))
    return _adjoint_shapes(*arguments, run=run, axes=axes, active=active, totals=none)


def _curved(*arguments, run: Run, axes: Axes, active, moving):
    """With `y' = F(x)`, `x_bar = F'(x)^T y_bar` varies by `F'^T dy_bar + (F'' dx)^T y_bar`.

    These are the cotangents of `x` in the varied run `(F, F' dx)`, from `dy_bar` of the first and
    `y_bar` of the second.
    """
    count, flags = argument_count(run), axes.batched
    primals, bars, moves = arguments[:count], arguments[count : count + 2], arguments[count + 2 :]
    primal = Axes(axes.shape, flags[:count])
    try:
        more = varied(run, moving, 1)
        adjoint_programs(more.problem, active, run.saving.times)
    except UnsupportedOperationError as error:
        stepping_aside(run, error)
        return _curved_plainly(arguments, run, axes, active, moving)
    parameters = 1 + len(run.problem.parameters)
    start, own_start = beside(
        primals[0], moves[0][..., None, :], flags[0], flags[count + 2], axes.shape
    )
    directions = [
        jnp.expand_dims(x, axes.rank if has else 0)
        for x, has in zip(moves[1:-2], flags[count + 3 : -2], strict=True)
    ]
    both = []
    for x, has, move, moved in zip(bars, flags[count:], moves[-2:], flags[-2:], strict=False):
        x, move = (
            a if varies else broadcast_along(a, axes.shape, 0)
            for a, varies in ((x, has), (move, moved))
        )
        both.append(jnp.concatenate([move, x], -1))
    operands = [start, *primals[1:parameters], *directions, *primals[parameters:]]
    batched = (own_start, *flags[1:parameters], *flags[count + 3 : -2], *flags[parameters:count])
    result = _pulled(operands, both, more, Axes(primal.shape, batched), active)
    return [result[0][..., : run.problem.states], *result[1:]]


def _curved_plainly(arguments, run: Run, axes: Axes, active, moving):
    assert run.plain is not None
    count = argument_count(run)
    first = Axes(axes.shape, axes.batched[: count + 2])
    operands, bar_axes = _all_bars(arguments[: count + 2], run, first)
    function = run.plain.pulled(start_and(active)).along((*start_and(moving), count, count + 1))
    more = Axes(axes.shape, (*bar_axes.batched, *axes.batched[count + 2 :]))
    return evaluate(function, [*operands, *arguments[count + 2 :]], more)


def _curvature_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _curved(*x, **parameters), primals, tangents)


def _curvature_transposed(bars, *arguments, run: Run, axes: Axes, active, moving):
    """Second derivatives are symmetric: the transpose is the derivative along the cotangents."""
    count = argument_count(run)
    operands, flags = arguments[: count + 2], axes.batched[: count + 2]
    primals, linear = operands[:count], arguments[count + 2 :]
    bars = [ad.instantiate_zeros(x) for x in bars]
    every = (True,) * len(bars)
    none = [jnp.zeros_like(x) for x in operands[count:]]
    more = Axes(axes.shape, (*flags, *every, *flags[count:]))
    curved = _curvature.bind(
        *operands, *bars, *none, run=run, axes=more, active=moving, moving=active
    )
    wide = [jnp.expand_dims(x, axes.rank) for x in bars]
    more = Axes(axes.shape, (*flags[:count], *every))
    along = integration_tangents.bind(
        *primals, *wide, run=run, axes=more, active=active, directions=1
    )
    entries = [*curved, *(jnp.squeeze(x, axes.rank) for x in along)]
    parts = zip(linear, entries, axes.batched[count + 2 :], strict=True)
    return [
        *(None for _ in operands),
        *(summed(x, has, axes) if ad.is_undefined_primal(one) else None for one, x, has in parts),
    ]


_curvature = primitive("native_integration_curvature", _curvature_shapes, computed=_curved)
ad.primitive_jvps[_curvature] = _curvature_jvp
ad.primitive_transposes[_curvature] = _curvature_transposed


ad.primitive_transposes[integration_tangents] = _tangents_transposed
