"""Derivatives of native integrations, in both modes and to every order.

Kernels make those by start and parameters; what no kernel has is made by the plain program.
"""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jaxdae.kernels.integration.run import (
    BackendError,
    eager,
    native_integration,
    registered,
    Run,
    TIMES,
    varied,
)
from jaxdae.kernels.integration.step_programs import adjoint_programs, transposed_pieces
from jaxdae.kernels.launch.batch_axes import Axes, broadcast_along, with_new_axis
from jaxdae.kernels.launch.call import launched
from jaxdae.kernels.launch.derivatives import along, evaluate
from jaxdae.kernels.launch.tangents import pushed, stacked
from jaxdae.kernels.tracing.trace import UnsupportedOperationError
from jaxdae.linalg.device_axes import alike, results


def _stepping_aside(run: Run, reason) -> None:
    """Refuse the plain program where kernels alone were asked for."""
    if run.strict or run.plain is None:
        raise BackendError(
            f"the run has a native kernel, but not this derivative: {reason} "
            "Use simulate(..., backend='auto') or backend='plain'."
        )


def _by(active: tuple[int, ...]) -> tuple[int, ...]:
    """Start and parameters among the arguments of a run."""
    return (0, *(1 + i for i in active))


def _count(run: Run) -> int:
    """Start, parameters and times."""
    return 1 + len(run.problem.parameters) + run.times


def _moving(run: Run, tangents):
    """Numbers of the parameters that change, and whether times do."""
    count = 1 + len(run.problem.parameters)
    active = tuple(i for i, x in enumerate(tangents[1:count]) if type(x) is not ad.Zero)
    timed = any(type(x) is not ad.Zero for x in tangents[count : _count(run)])
    if timed:
        _stepping_aside(run, TIMES)
    return active, timed


# The derivative of the run.


def _jvp(primals, tangents, *, run: Run, axes: Axes):
    found = native_integration.bind(*primals, run=run.beside_derivative(), axes=axes)
    active, timed = _moving(run, tangents)
    if run.once:
        _stepping_aside(run, run.own_rule)
    if timed or run.once:
        assert run.plain is not None
        return found, along(run.plain, primals, tangents, axes)
    moves = [ad.instantiate_zeros(tangents[0]), *(tangents[1 + i] for i in active)]
    flags = [axes.batched[i] for i in _by(active)]
    moves = [
        jnp.expand_dims(x, axes.rank if has else 0) for x, has in zip(moves, flags, strict=True)
    ]
    more = Axes(axes.shape, (*axes.batched, *flags))
    own = _tangents.bind(*primals, *moves, run=run, axes=more, active=active, directions=1)
    rest = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in found[2:]]
    return found, [*(jnp.squeeze(x, axes.rank) for x in own), *rest]


ad.primitive_jvps[native_integration] = _jvp

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


def _along(*arguments, run: Run, axes: Axes, active: tuple[int, ...], directions: int):
    """Derivatives of rows and final state: the run of the varied problem, without its states."""
    problem = run.problem
    count = 1 + len(problem.parameters)
    primals, moves = arguments[: _count(run)], arguments[_count(run) :]
    try:
        more = varied(run, active, directions)
        more.programs()
    except UnsupportedOperationError as error:
        _stepping_aside(run, error)
        return _along_plainly(primals, moves, run, axes, active)
    flags, moved = axes.batched[: len(primals)], axes.batched[len(primals) :]
    start, whole = _beside(primals[0], moves[0], flags[0], moved[0], axes.shape)
    given = [start, *primals[1:count], *moves[1:], *primals[count:]]
    batched = (whole, *flags[1:count], *moved[1:], *flags[count:])
    rows, final, *_ = native_integration.bind(*given, run=more, axes=Axes(axes.shape, batched))
    n = problem.states
    rows = rows.reshape(*rows.shape[:-1], 1 + directions, n)[..., 1:, :]
    final = final.reshape(*final.shape[:-1], 1 + directions, n)[..., 1:, :]
    return [jnp.moveaxis(rows, -2, axes.rank), final]


def _along_plainly(primals, moves, run: Run, axes: Axes, active):
    """The same without a kernel, one direction after the other."""
    assert run.plain is not None
    function = run.plain.along(_by(active))
    at = [axes.rank if x else 0 for x in axes.batched[len(primals) :]]
    one = lambda *moves: evaluate(function, [*primals, *moves], axes)[:2]  # noqa: E731
    return jax.vmap(one, at, axes.rank)(*moves)


def _beside(y, moves, has: bool, moved: bool, shape: tuple[int, ...]):
    """States followed by their derivatives, for each member where one of them has members."""
    if has != moved:
        y, moves = (
            x if own else broadcast_along(x, shape, 0) for x, own in ((y, has), (moves, moved))
        )
    flat = moves.reshape(*moves.shape[:-2], -1)
    return jnp.concatenate([y, flat], -1), has or moved


def _tangents_batched(arguments, axes_in, *, run, axes: Axes, active, directions: int):
    count = _count(run)
    if all(a is None for a in axes_in[:count]):
        return _more_directions(arguments, axes_in, run, axes, active, directions, count)
    moved, axes = with_new_axis(arguments, axes_in, axes)
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
    count = _count(run)
    primals, moves = arguments[:count], arguments[count:]
    bars = [ad.instantiate_zeros(x) for x in bars]
    own = Axes(axes.shape, axes.batched[:count])
    each = []
    for i in range(directions):
        one = [jax.lax.index_in_dim(x, i, axes.rank, keepdims=False) for x in bars]
        each.append(_pulled(primals, one, run, own, active, axes.batched[count:]))
    found: list = [None] * count
    for move, has, *parts in zip(moves, axes.batched[count:], *each, strict=True):
        linear = ad.is_undefined_primal(move)
        found.append(jnp.stack(parts, axes.rank if has else 0) if linear else None)
    return found


def _summed(x, has: bool, axes: Axes):
    """Members that share a parameter share its cotangent."""
    return x if has else x.sum(tuple(range(axes.rank)))


eager(_tangents)
mlir.register_lowering(_tangents, mlir.lower_fun(_along, multiple_results=True))
batching.primitive_batchers[_tangents] = _tangents_batched
ad.primitive_jvps[_tangents] = _tangents_jvp
ad.primitive_transposes[_tangents] = _tangents_transposed

# The adjoint.

_adjoint = jex.Primitive("native_integration_adjoint")
_adjoint.multiple_results = True


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
        _stepping_aside(run, error)
        assert run.plain is not None
        bars, more = _all_bars(bars, run, more)
        found = evaluate(run.plain.pulled(_by(active)), [*primals, *bars], more)
        return [_summed(x, has, axes) for x, has in zip(found, each, strict=True)]
    own = (axes.batched[i] for i in _by(active))
    totals = tuple(
        bool(axes.rank and x.ranks) and not has and not every
        for x, has, every in zip(pieces, own, each, strict=True)
    )
    found = _adjoint.bind(*primals, *bars, run=run, axes=more, active=active, totals=totals)
    parts = zip(found, each, totals, strict=True)
    return [x if total else _summed(x, has, axes) for x, has, total in parts]


def _all_bars(bars, run: Run, axes: Axes):
    """Cotangents of all results of a run: nothing depends on what adaptive steps tell."""
    more = [jnp.zeros((*axes.shape, *x), run.problem.dtype) for x in run.results()[2:]]
    return [*bars, *more], Axes(axes.shape, (*axes.batched, *(True for _ in more)))


@_adjoint.def_abstract_eval
def _adjoint_shapes(*arguments, run: Run, axes: Axes, active, totals):
    own = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    shapes = [x if total else (*axes.shape, *x) for x, total in zip(own, totals, strict=True)]
    return results(shapes, run.problem.dtype, arguments)


def _adjoint_computed(*arguments, run: Run, axes: Axes, active, totals):
    found = _blocks.bind(*arguments, run=run, axes=axes, active=active, totals=totals)
    return [x.sum(0) if total else x for x, total in zip(found, totals, strict=True)]


# The same before the sums over blocks of members, of as many as a vector has entries.

_blocks = jex.Primitive("native_integration_adjoint_blocks")
_blocks.multiple_results = True


@_blocks.def_abstract_eval
def _block_shapes(*arguments, run: Run, axes: Axes, active, totals):
    blocks = -(-axes.members // axes.width(run.problem.dtype))
    own = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    pairs = zip(own, totals, strict=True)
    shapes = [(blocks, *x) if total else (*axes.shape, *x) for x, total in pairs]
    return results(shapes, run.problem.dtype, arguments)


def _blocks_lowered(ctx, *arguments, run: Run, axes: Axes, active, totals):
    from jaxdae.kernels.integration.adjoint_steps import adjoint_steps

    dtype, programs = run.problem.dtype, adjoint_programs(run.problem, active, run.saving.times)
    if run.adaptive:
        programs = [*run.programs(), *programs]
    width = axes.width(dtype)
    body = adjoint_steps(run, active, width, axes.ranks(), axes.rank, totals[1:])
    return launched(ctx, registered(programs, body, axes, run), arguments)


mlir.register_lowering(_blocks, _blocks_lowered, platform="cpu")


def _adjoint_batched(arguments, axes_in, *, run: Run, axes: Axes, active, totals):
    rank = axes.rank
    moved, axes = with_new_axis(arguments, axes_in, axes)
    # Each entry of the new axis wants sums of its own: members are summed up here.
    none = (False,) * len(totals)
    found = _adjoint.bind(*moved, run=run, axes=axes, active=active, totals=none)
    return _in_total(found, totals, tuple(range(1, 1 + rank))), [0] * len(found)


def _in_total(found, totals, at: tuple[int, ...]) -> list:
    return [x.sum(at) if total else x for x, total in zip(found, totals, strict=True)]


def _adjoint_jvp(primals, tangents, *, run: Run, axes: Axes, active, totals):
    found = _adjoint.bind(*primals, run=run, axes=axes, active=active, totals=totals)
    members = tuple(range(axes.rank))
    moving, timed = _moving(run, tangents)
    # The derivative of the adjoint, below, is made by the symmetry of second derivatives.
    if run.own_rule is not None:
        _stepping_aside(run, run.own_rule)
    if timed or run.own_rule is not None:
        assert run.plain is not None
        given, more = _all_bars(primals, run, axes)
        still = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in given[len(primals) :]]
        own = along(run.plain.pulled(_by(active)), given, [*tangents, *still], more)
        return found, _in_total(own, totals, members)
    count = _count(run)
    by = (*_by(moving), count, count + 1)
    moves = [ad.instantiate_zeros(tangents[i]) for i in by]
    more = Axes(axes.shape, (*axes.batched, *(axes.batched[i] for i in by)))
    own = _curvature.bind(*primals, *moves, run=run, axes=more, active=active, moving=moving)
    return found, _in_total(own, totals, members)


eager(_adjoint)
mlir.register_lowering(_adjoint, mlir.lower_fun(_adjoint_computed, multiple_results=True))
batching.primitive_batchers[_adjoint] = _adjoint_batched
ad.primitive_jvps[_adjoint] = _adjoint_jvp

# The derivative of the adjoint, along directions of the start, the parameters with numbers in
# `moving`, and both cotangents: linear in them.

_curvature = jex.Primitive("native_integration_curvature")
_curvature.multiple_results = True


@_curvature.def_abstract_eval
def _curvature_shapes(*arguments, run: Run, axes: Axes, active, moving):
    del moving
    none = (False,) * (1 + len(active))
    return _adjoint_shapes(*arguments, run=run, axes=axes, active=active, totals=none)


def _curved(*arguments, run: Run, axes: Axes, active, moving):
    """With `y' = F(x)`, `x_bar = F'(x)^T y_bar` varies by `F'^T dy_bar + (F'' dx)^T y_bar`.

    These are the cotangents of `x` in the varied run `(F, F' dx)`, from `dy_bar` of the first and
    `y_bar` of the second.
    """
    count, flags = _count(run), axes.batched
    primals, bars, moves = arguments[:count], arguments[count : count + 2], arguments[count + 2 :]
    own = Axes(axes.shape, flags[:count])
    try:
        more = varied(run, moving, 1)
        adjoint_programs(more.problem, active, run.saving.times)
    except UnsupportedOperationError as error:
        _stepping_aside(run, error)
        return _curved_plainly(arguments, run, axes, active, moving)
    parameters = 1 + len(run.problem.parameters)
    start, own_start = _beside(
        primals[0], moves[0][..., None, :], flags[0], flags[count + 2], axes.shape
    )
    directions = [
        jnp.expand_dims(x, axes.rank if has else 0)
        for x, has in zip(moves[1:-2], flags[count + 3 : -2], strict=True)
    ]
    both = []
    for x, has, move, moved in zip(bars, flags[count:], moves[-2:], flags[-2:], strict=False):
        x, move = (
            a if own else broadcast_along(a, axes.shape, 0) for a, own in ((x, has), (move, moved))
        )
        both.append(jnp.concatenate([move, x], -1))
    given = [start, *primals[1:parameters], *directions, *primals[parameters:]]
    batched = (own_start, *flags[1:parameters], *flags[count + 3 : -2], *flags[parameters:count])
    found = _pulled(given, both, more, Axes(own.shape, batched), active)
    return [found[0][..., : run.problem.states], *found[1:]]


def _curved_plainly(arguments, run: Run, axes: Axes, active, moving):
    assert run.plain is not None
    count = _count(run)
    first = Axes(axes.shape, axes.batched[: count + 2])
    given, own = _all_bars(arguments[: count + 2], run, first)
    function = run.plain.pulled(_by(active)).along((*_by(moving), count, count + 1))
    more = Axes(axes.shape, (*own.batched, *axes.batched[count + 2 :]))
    return evaluate(function, [*given, *arguments[count + 2 :]], more)


def _curvature_batched(arguments, axes_in, *, run: Run, axes: Axes, active, moving):
    moved, axes = with_new_axis(arguments, axes_in, axes)
    found = _curvature.bind(*moved, run=run, axes=axes, active=active, moving=moving)
    return found, [0] * len(found)


def _curvature_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _curved(*x, **parameters), primals, tangents)


def _curvature_transposed(bars, *arguments, run: Run, axes: Axes, active, moving):
    """Second derivatives are symmetric: the transpose is the derivative along the cotangents."""
    count = _count(run)
    given, flags = arguments[: count + 2], axes.batched[: count + 2]
    primals, linear = given[:count], arguments[count + 2 :]
    bars = [ad.instantiate_zeros(x) for x in bars]
    own = (True,) * len(bars)
    none = [jnp.zeros_like(x) for x in given[count:]]
    more = Axes(axes.shape, (*flags, *own, *flags[count:]))
    curved = _curvature.bind(*given, *bars, *none, run=run, axes=more, active=moving, moving=active)
    wide = [jnp.expand_dims(x, axes.rank) for x in bars]
    more = Axes(axes.shape, (*flags[:count], *own))
    along = _tangents.bind(*primals, *wide, run=run, axes=more, active=active, directions=1)
    found = [*curved, *(jnp.squeeze(x, axes.rank) for x in along)]
    parts = zip(linear, found, axes.batched[count + 2 :], strict=True)
    return [
        *(None for _ in given),
        *(_summed(x, has, axes) if ad.is_undefined_primal(one) else None for one, x, has in parts),
    ]


eager(_curvature)
mlir.register_lowering(_curvature, mlir.lower_fun(_curved, multiple_results=True))
batching.primitive_batchers[_curvature] = _curvature_batched
ad.primitive_jvps[_curvature] = _curvature_jvp
ad.primitive_transposes[_curvature] = _curvature_transposed


def integrate(run: Run, y0, parameters, times) -> list[jax.Array]:
    """Integrate an initial value problem by a native kernel.

    It can be compiled, batched and differentiated in both modes and to every order: by start and
    parameters with kernels, by times with the plain program.

    Args:
        run: what is integrated and saved.
        y0: start, shape (n,).
        parameters: of the shapes that the problem names.
        times: the ends of fixed steps; or, for adaptive ones, the two ends of the run, the time
            from which on a step reaches the end, and the length of the first step where it is
            given; then the times to save, where there are any. Increasing.

    Returns:
        The saved states (rows, n), the final one (n,), and with adaptive steps also the times of
        the rows, infinite where they were not reached, and a `Summary`.
    """
    arguments = [jnp.asarray(x, run.problem.dtype) for x in (y0, *parameters, *times)]
    axes = Axes((), (False,) * len(arguments))
    return native_integration.bind(*alike(arguments), run=run, axes=axes)
