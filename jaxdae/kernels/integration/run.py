"""Native integrations that JAX can compile, batch and differentiate, in both modes.

Kernels make derivatives by start and parameters, to every order; what no kernel has is made by the
plain program.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, mlir

from jaxdae.derivatives.functions import along, evaluate, Function
from jaxdae.derivatives.primitives import (
    along_new_axis,
    Axes,
    broadcast_along,
    primitive,
    pushed,
    results,
    stacked,
    summed,
    varying_together,
    with_new_axis,
)
from jaxdae.errors import BackendError
from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.integration.adjoint import adjoint_steps, kept_numbers
from jaxdae.kernels.integration.arguments import Saving, StepSummary
from jaxdae.kernels.integration.initial_value import (
    adaptive_step_programs,
    adjoint_programs,
    fixed_step_programs,
    InitialValueProblem,
)
from jaxdae.kernels.integration.steps import loops
from jaxdae.kernels.launch.platforms import on_platforms, Platform, PLATFORMS, Work
from jaxdae.kernels.llvm.batch_loops import Lanes
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.tracing.subprograms import called, Subprogram
from jaxdae.kernels.tracing.trace import UnsupportedOperationError

AT_EVENTS = "of a run that an event ends, times depend on what is differentiated by."
TIMES = (
    "derivatives by times (t0, t1, dt, SaveAt(ts=...), the period of a controller that is sampled) "
    "are those of the plain program."
)

AT_STEPS = (
    "second derivatives of states at adaptive steps, by a time and by something else, are not "
    "native: save at times, SaveAt(ts=...), or use simulate(..., backend='plain')."
)


class KernelRun(NamedTuple):
    """What is compiled: an initial value problem and what its runs save.

    Args:
        problem: what is integrated.
        saving: what is saved.
        rows: rows that are saved; of a run with adaptive steps the largest number.
        max_steps: largest number of adaptive steps.
        given_first: whether the length of the first adaptive step is given.
        step_ends: whether there are times at which adaptive steps end.
        plain: the same run by JAX, for derivatives that no kernel has.
        by_times: likewise for those by times, whose steps are those of the motion alone.
        suited: whether a perturbation may control its steps.
        strict: whether a derivative that no kernel has is refused instead.
        once: whether no kernel has its derivative, as it is computed beside one.
        counted: whether it says what its iterations took, if there are any.
        perturbed: whether a perturbation controls adaptive steps, too, as
            `derivatives/perturbation.py` has it.
    """

    problem: InitialValueProblem
    saving: Saving
    rows: int
    max_steps: int
    given_first: bool
    step_ends: bool = False
    plain: Function | None = None
    strict: bool = False
    once: bool = False
    counted: bool = False
    perturbed: bool = False
    by_times: Function | None = None
    suited: bool = False

    @property
    def stepped(self) -> InitialValueProblem:
        """What is integrated, and the perturbation if there is one."""
        return self.problem.perturbed() if self.perturbed else self.problem

    @property
    def counts_steps(self) -> bool:
        """Whether the last of its results is a `StepCounts`."""
        return self.counted and self.adaptive and self.problem.counted > 0

    @property
    def own_rule(self) -> str | None:
        """A rule of derivatives that a user has written, whose own derivative no kernel has."""
        result = self.problem.own_rules
        return f"{result[0]}, whose derivative is that of the plain program." if result else None

    def with_derivative(self) -> "KernelRun":
        """Itself with steps that suit derivatives as well, where they are adaptive.

        The steps of the result and of its derivatives are the same.
        """
        if not (self.adaptive and self.suited) or self.perturbed or self.problem.event is not None:
            return self
        if any(x.one_way for x in self.problem.own_rules):
            return self
        more = self._replace(perturbed=True)
        try:
            more.programs()
        except UnsupportedOperationError:  # the steps are those of the states alone
            return self
        return more

    def beside_derivative(self) -> "KernelRun":
        """Itself, computed where its derivative is wanted, too."""
        if not any(x.one_way for x in self.problem.own_rules):
            return self
        plain, by_times = (
            None if x is None else x.beside_derivative() for x in (self.plain, self.by_times)
        )
        return self._replace(plain=plain, by_times=by_times, once=True)

    @property
    def adaptive(self) -> bool:
        """Whether the steps are adaptive."""
        return self.problem.controller is not None

    @property
    def times(self) -> int:
        """Arguments that are times."""
        first = 3 + self.given_first + self.step_ends if self.adaptive else 1
        return first + self.saving.times

    def programs(self) -> list[Subprogram]:
        """What the loops over steps call."""
        if self.adaptive:
            return adaptive_step_programs(
                self.stepped, self.given_first, self.saving.times, self.step_ends
            )
        return fixed_step_programs(self.problem, self.saving.times)

    def results(self) -> list[tuple[int, ...]]:
        """Shapes of the results: rows, final state; of adaptive steps times and a `StepSummary`.

        Where an event may end the run also the largest misfit of its functions (`Watch.misfit`),
        and last, of steps that are found by counted iterations, a `StepCounts`.
        """
        n = self.problem.states
        more = [(self.rows,), (len(StepSummary._fields),)] if self.adaptive else []
        more += [(3,)] if self.problem.event is not None else []
        more += [(self.problem.counted,)] if self.counts_steps else []
        return [(self.rows, n), (n,), *more]


class _TangentRun(NamedTuple):
    """A run by JAX of states with their derivatives in some directions."""

    plain: Function
    states: int
    parameters: int
    active: tuple[int, ...]
    directions: int

    def __call__(self, mode: str, y, *arguments) -> list[jax.Array]:
        first, last = self.parameters, self.parameters + len(self.active)
        rows = y.reshape(1 + self.directions, self.states)
        primals = (rows[0], *arguments[:first], *arguments[last:])
        along = self.plain.along((0, *(1 + i for i in self.active)))
        push = lambda *moves: along.in_mode(mode, *primals, *moves)[:2]  # noqa: E731
        primal_rows, pushed = (
            self.plain.in_mode(mode, *primals),
            jax.vmap(push)(rows[1:], *arguments[first:last]),
        )
        saved, final = (
            jnp.concatenate([a, *b], -1) for a, b in zip(primal_rows, pushed, strict=False)
        )
        return [saved, final, *primal_rows[2:4]]


def varied(run: KernelRun, active: tuple[int, ...], directions: int) -> KernelRun:
    """The run of states with their derivatives in some directions."""
    problem, count = run.problem.varied(active, directions), len(run.problem.parameters)
    more = run._replace(problem=problem)
    shapes = tuple(jax.ShapeDtypeStruct(x, problem.dtype) for x in more.results())

    def with_directions(plain: Function | None) -> Function | None:
        if plain is None:
            return None
        along = _TangentRun(plain, run.problem.states, count, active, directions)
        return Function(along, shapes, pushed=True)

    return more._replace(plain=with_directions(run.plain), by_times=with_directions(run.by_times))


# Operations of vectors that take longer than a thread takes to be made, and steps of adaptive runs.
_WORTH_A_THREAD, _STEPS = 100_000, 50


def _work(
    programs, body: list[Definition], lanes: Lanes, axes: Axes, run: KernelRun, steps: int
) -> Work:
    """What is launched: loops, and the programs that they call in each of some steps."""
    shared = run.problem.shared(axes.ranks())
    functions = library(programs, lanes.width, lanes.dtype, lanes.register_width, shared)
    every = dict.fromkeys(x for one in programs for x in (*called(one.program), one))
    content = [f"{x.name} {x.entries}\n{x.program.content()}" for x in every]
    numbers = (run.rows, run.max_steps, run.given_first, run.step_ends, run.counts_steps)
    about = f"{run.saving} {numbers} {axes.batched}"
    text = "\n".join([about, *content])
    operations = sum(len(x.program.graph.needed(x.program.outputs)) for x in every)
    blocks = -(-_WORTH_A_THREAD // max(operations * steps, 1))
    return Work([*functions, *body], axes, text, lanes.width * blocks)


def _steps(run: KernelRun, shapes) -> int:
    """How many steps a run makes, about, by the shapes of what it takes."""
    if run.adaptive:
        return min(run.max_steps, _STEPS)
    # The ends of the steps follow start and parameters.
    return shapes[1 + len(run.problem.parameters)].shape[-1] - 1


# The run itself.


def _shapes(*arguments, run: KernelRun, axes: Axes):
    return results([(*axes.shape, *x) for x in run.results()], run.problem.dtype, arguments)


def lowered(platform: Platform, ctx, *arguments, run: KernelRun, axes: Axes):
    """A run on a platform, by the context of its lowering: what the platform makes of it."""
    lanes = platform.writer(run.problem.dtype, axes, ctx)
    return platform.launch(ctx, arguments, work(run, lanes, axes, _steps(run, ctx.avals_in)))


def work(run: KernelRun, lanes: Lanes, axes: Axes, steps: int = _STEPS) -> Work:
    """What is launched for a run of about so many steps."""
    body = loops(run, lanes, axes.ranks(), axes.rank)
    return _work(run.programs(), [body], lanes, axes, run, steps)


native_integration = primitive("native_integration", _shapes, lowerings=on_platforms(lowered))


def integrate(run: KernelRun, y0, parameters, times) -> list[jax.Array]:
    """Integrate an initial value problem by a native kernel.

    It can be compiled, batched and differentiated in both modes and to every order: by start and
    parameters with kernels, by times with the plain program.

    Args:
        run: what is integrated and saved.
        y0: start, shape (n,).
        parameters: of the shapes that the problem names.
        times: the ends of fixed steps; or, for adaptive ones, the two ends of the run, the time
            from which on a step reaches the end, the length of the first step where it is given,
            and times at which steps end where there are any (`step_ends`); then the times to save,
            where there are any. Increasing.

    Returns:
        The saved states (rows, n), the final one (n,), and with adaptive steps also the times of
        the rows, infinite where they were not reached, a `StepSummary`, and where an event may end
        the run the size of the largest misfit, the number of the function and the time of the step;
        of steps whose iterations are counted a `StepCounts`, too.
    """
    arguments = [jnp.asarray(x, run.problem.dtype) for x in (y0, *parameters, *times)]
    axes = Axes((), (False,) * len(arguments))
    return native_integration.bind(*varying_together(arguments), run=run, axes=axes)


# Derivatives along directions, in forward mode.


def _step_aside(run: KernelRun, reason) -> None:
    """Refuse the plain program where kernels alone were asked for."""
    if run.strict or run.plain is None:
        raise BackendError(
            f"the run has a native kernel, but not this derivative: {reason} "
            "Use simulate(..., backend='auto') or backend='plain'."
        )


def _start_and(active: tuple[int, ...]) -> tuple[int, ...]:
    """Start and parameters among the arguments of a run."""
    return (0, *(1 + i for i in active))


def _argument_count(run: KernelRun) -> int:
    """Start, parameters and times."""
    return 1 + len(run.problem.parameters) + run.times


def _moving(run: KernelRun, tangents):
    """Numbers of the parameters that change, and whether times do."""
    count = 1 + len(run.problem.parameters)
    active = tuple(i for i, x in enumerate(tangents[1:count]) if type(x) is not ad.Zero)
    timed = any(type(x) is not ad.Zero for x in tangents[count : _argument_count(run)])
    timed |= any(i in run.problem.timing for i in active)
    if timed:
        _step_aside(run, TIMES)
    if timed and run.perturbed and run.saving.every:
        raise BackendError(AT_STEPS)
    return active, timed


# The derivative of the run.


def _jvp(primals, tangents, *, run: KernelRun, axes: Axes):
    active, timed = _moving(run, tangents)
    if not timed:  # derivatives by times are those of the plain program
        run = run.with_derivative()
    result = native_integration.bind(*primals, run=run.beside_derivative(), axes=axes)
    if run.once:
        _step_aside(run, run.own_rule)
    ends_by_event = run.problem.event is not None
    if ends_by_event:
        _step_aside(run, AT_EVENTS)
    if timed or run.once or ends_by_event:
        plain = run.by_times if timed else run.plain
        assert plain is not None
        return result, along(plain, primals, tangents, axes)
    moves = [ad.instantiate_zeros(tangents[0]), *(tangents[1 + i] for i in active)]
    flags = [axes.batched[i] for i in _start_and(active)]
    moves = [
        jnp.expand_dims(x, axes.rank if has else 0) for x, has in zip(moves, flags, strict=True)
    ]
    more = Axes(axes.shape, (*axes.batched, *flags))
    integrated = _tangents.bind(*primals, *moves, run=run, axes=more, active=active, directions=1)
    rest = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in result[2:]]
    return result, [*(jnp.squeeze(x, axes.rank) for x in integrated), *rest]


ad.primitive_jvps[native_integration] = _jvp

# Its derivative in some directions: linear in them, and transposed by the adjoint.

# Directions that one kernel follows, and states with their derivatives: more would not fit into the
# stack, on which a kernel keeps what its stages need. Where they are few, one kernel of more
# directions computes the states themselves once, and is compiled once.
_DIRECTIONS, _STATES = 8, 512
_MORE_DIRECTIONS, _FEW_STATES = 16, 128


def _most_directions(run: KernelRun) -> int:
    numbers = run.problem.states + run.problem.remembered
    room, small = (most // numbers - 1 - run.perturbed for most in (_STATES, _FEW_STATES))
    return min(max(room, 1), max(min(small, _MORE_DIRECTIONS), _DIRECTIONS))


def _tangent_shapes(*arguments, run: KernelRun, axes: Axes, active, directions: int):
    del active
    shapes = [(*axes.shape, directions, *x) for x in run.results()[:2]]
    return results(shapes, run.problem.dtype, arguments)


def _along(
    *arguments, run: KernelRun, axes: Axes, active: tuple[int, ...], directions: int, room: int = 0
):
    """Derivatives of rows and final state along directions, by as few kernels as serve them.

    Args:
        arguments: of the run, then directions of the start and of the `active` parameters.
        run: what is differentiated.
        axes: of all of them.
        active: numbers of the parameters.
        directions: how many there are.
        room: members of a batch, at least, that the machine computes at once; by default `_LANES`.
    """
    count = _argument_count(run)
    primals, moves = arguments[:count], list(arguments[count:])
    by = _entries(run, active)
    if sum(by) < directions:
        return _along_entries(primals, moves, by, run, axes, active, room)
    lanes = _lanes(run, axes, directions, room)
    most, parts = lanes * _most_directions(run), []
    # Of equal length, so that one kernel serves them.
    each = -(-directions // -(-directions // most))
    follow = _followed if lanes == 1 else partial(_in_lanes, lanes)
    for first in range(0, directions, each):
        last = min(first + each, directions)
        at = [axes.rank if has else 0 for has in axes.batched[count:]]
        some = [
            jax.lax.slice_in_dim(x, first, last, axis=i) for x, i in zip(moves, at, strict=True)
        ]
        parts.append(follow(primals, some, run, axes, active, last - first))
    return [jnp.concatenate(x, axes.rank) for x in zip(*parts, strict=True)]


def _entries(run: KernelRun, active: tuple[int, ...]) -> list[int]:
    """How many numbers of the start and of each active parameter the motion depends on, at most."""
    sizes = [int(np.prod(run.problem.parameters[i].shape)) for i in active]
    used = run.problem.moved_by(active)
    return [
        run.problem.states,
        *(n if i in used else 0 for i, n in zip(active, sizes, strict=True)),
    ]


def _along_entries(primals, moves, by: list[int], run: KernelRun, axes: Axes, active, room: int):
    """The same by derivatives along the entries of start and parameters, of which there are fewer.

    Directions change them by `moves`, in which derivatives are linear.
    """
    count, total = len(primals), sum(by)
    firsts = np.cumsum([0, *by])
    units, wide = [], []
    for move, has, first, size in zip(moves, axes.batched[count:], firsts, by, strict=False):
        shape = move.shape[(axes.rank if has else 0) + 1 :]
        unit = np.zeros((total, int(np.prod(shape))))
        unit[first : first + size] = np.eye(size, unit.shape[1])
        units.append(jnp.asarray(unit.reshape(total, *shape), move.dtype))
        if size:
            flat = move.reshape(*move.shape[: move.ndim - len(shape)], size)
            wide.append(flat if has else broadcast_along(flat, axes.shape, 0))
    shared = Axes(axes.shape, (*axes.batched[:count], *(False for _ in moves)))
    slopes = _along(
        *varying_together([*primals, *units]), run=run, axes=shared, active=active,
        directions=total, room=room,
    )  # fmt: skip
    moved = jnp.concatenate(wide, -1)
    rows, final = (x.reshape(*x.shape[: axes.rank + 1], -1) for x in slopes)
    made = [jnp.matmul(moved, x, precision="highest") for x in (rows, final)]
    return [
        x.reshape(*x.shape[:-1], *s.shape[axes.rank + 1 :])
        for x, s in zip(made, slopes, strict=True)
    ]


# A small batch is followed in so many lanes, its directions beside each other, a few in each, where
# there are as many as this at least. On every processor, so that programs are the same.
_LANES, _FEWEST_IN_LANES = 8, 3
# Members that are computed at once on a GPU, about.
_DEVICE_LANES = 4096


def _lanes(run: KernelRun, axes: Axes, directions: int, room: int) -> int:
    """Lanes for the directions of each member; of implicit methods they take long to compile."""
    if not run.problem.method.evaluates_only or directions < _FEWEST_IN_LANES:
        return 1
    return max(1, min(_LANES, max(room, _LANES) // max(axes.members, 1)))


def _in_lanes(lanes: int, primals, moves, run: KernelRun, axes: Axes, active, directions: int):
    """Derivatives along directions that are followed beside each other."""
    count, rank = len(primals), axes.rank
    each = -(-directions // lanes)
    lanes = -(-directions // each)
    left = lanes * each - directions
    wide = []
    for x, has in zip(moves, axes.batched[count:], strict=True):
        x = x if has else broadcast_along(x, axes.shape, 0)
        x = jnp.pad(x, [(0, left if i == rank else 0) for i in range(x.ndim)])
        wide.append(x.reshape(*axes.shape, lanes, each, *x.shape[rank + 1 :]))
    # Members have an argument of their own along all axes or along none.
    own = [
        broadcast_along(x, (lanes,), rank) if has else x
        for x, has in zip(primals, axes.batched[:count], strict=True)
    ]
    beside = Axes((*axes.shape, lanes), (*axes.batched[:count], *(True for _ in moves)))
    parts = _followed(own, wide, run, beside, active, each)
    parts = [x.reshape(*axes.shape, lanes * each, *x.shape[rank + 2 :]) for x in parts]
    return [jax.lax.slice_in_dim(x, 0, directions, axis=rank) for x in parts]


def _followed(primals, moves, run: KernelRun, axes: Axes, active, directions: int):
    """Derivatives of rows and final state: the run of the varied problem, without its states."""
    problem = run.problem
    count = 1 + len(problem.parameters)
    try:
        more = varied(run, active, directions)
        more.programs()
    except UnsupportedOperationError as error:
        _step_aside(run, error)
        return _along_plainly(primals, moves, run, axes, active)
    flags, moved = axes.batched[: len(primals)], axes.batched[len(primals) :]
    start, has_members = _beside(primals[0], moves[0], flags[0], moved[0], axes.shape)
    operands = [start, *primals[1:count], *moves[1:], *primals[count:]]
    batched = (has_members, *flags[1:count], *moved[1:], *flags[count:])
    rows, final, *_ = native_integration.bind(*operands, run=more, axes=Axes(axes.shape, batched))
    n = problem.states
    rows = rows.reshape(*rows.shape[:-1], 1 + directions, n)[..., 1:, :]
    final = final.reshape(*final.shape[:-1], 1 + directions, n)[..., 1:, :]
    return [jnp.moveaxis(rows, -2, axes.rank), final]


def _along_plainly(primals, moves, run: KernelRun, axes: Axes, active):
    """The same without a kernel, one direction after the other."""
    assert run.plain is not None
    function = run.plain.along(_start_and(active))
    at = [axes.rank if x else 0 for x in axes.batched[len(primals) :]]
    one = lambda *moves: evaluate(function, [*primals, *moves], axes)[:2]  # noqa: E731
    return jax.vmap(one, at, axes.rank)(*moves)


def _beside(y, moves, has: bool, moved: bool, shape: tuple[int, ...]):
    """States followed by their derivatives, for each member where one of them has members."""
    if has != moved:
        y, moves = (
            x if varies else broadcast_along(x, shape, 0)
            for x, varies in ((y, has), (moves, moved))
        )
    flat = moves.reshape(*moves.shape[:-2], -1)
    return jnp.concatenate([y, flat], -1), has or moved


def _tangents_batched(arguments, axes_in, *, run, axes: Axes, active, directions: int):
    count = _argument_count(run)
    if all(a is None for a in axes_in[:count]):
        return _more_directions(arguments, axes_in, run, axes, active, directions, count)
    kept = {"run": run, "axes": axes, "active": active, "directions": directions}
    return along_new_axis(_tangents, arguments, axes_in, **kept)


def _more_directions(arguments, axes_in, run, axes: Axes, active, directions: int, count: int):
    """A batch of directions from the same states: states are computed once for several of them."""
    primals, moves = arguments[:count], arguments[count:]
    size = next(x.shape[a] for x, a in zip(arguments, axes_in, strict=True) if a is not None)
    joined = []
    for x, a, has in zip(moves, axes_in[count:], axes.batched[count:], strict=True):
        at = axes.rank if has else 0
        x = stacked(x, a, at, size)
        joined.append(x.reshape(*x.shape[:at], size * directions, *x.shape[at + 2 :]))
    entries = _tangents.bind(
        *primals, *joined, run=run, axes=axes, active=active, directions=size * directions
    )
    rank = axes.rank
    shaped = [x.reshape(*axes.shape, size, directions, *x.shape[rank + 1 :]) for x in entries]
    return shaped, [rank] * len(shaped)


def _tangents_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _along(*x, **parameters), primals, tangents)


_tangents = primitive(
    "native_integration_tangents", _tangent_shapes, computed=_along, batched=_tangents_batched
)
mlir.register_lowering(
    _tangents,
    mlir.lower_fun(partial(_along, room=_DEVICE_LANES), multiple_results=True),
    platform="cuda",
)
ad.primitive_jvps[_tangents] = _tangents_jvp


# Derivatives in reverse mode, and the derivatives of these.


def _tangents_transposed(bars, *arguments, run, axes: Axes, active, directions: int):
    count = _argument_count(run)
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


def _pulled(
    primals, bars, run: KernelRun, axes: Axes, active, each: tuple[bool, ...] | None = None
):
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
        _, pieces = adjoint_programs(run.problem, active, run.saving.times)
    except UnsupportedOperationError as error:
        _step_aside(run, error)
        assert run.plain is not None
        bars, more = _all_bars(bars, run, more)
        result = evaluate(run.plain.pulled(_start_and(active)), [*primals, *bars], more)
        totals = (False,) * len(result)
    else:
        flags = (axes.batched[i] for i in _start_and(active))
        totals = tuple(
            bool(axes.rank and x.parts) and not has and not every
            for x, has, every in zip(pieces, flags, each, strict=True)
        )
        result = _adjoint.bind(*primals, *bars, run=run, axes=more, active=active, totals=totals)
    parts = zip(result, each, totals, strict=True)
    return [x if total else summed(x, has, axes) for x, has, total in parts]


def _all_bars(bars, run: KernelRun, axes: Axes):
    """Cotangents of all results of a run: nothing depends on what adaptive steps tell."""
    more = [jnp.zeros((*axes.shape, *x), run.problem.dtype) for x in run.results()[2:]]
    return [*bars, *more], Axes(axes.shape, (*axes.batched, *(True for _ in more)))


def _adjoint_shapes(*arguments, run: KernelRun, axes: Axes, active, totals):
    each_shape = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    shapes = [
        x if total else (*axes.shape, *x) for x, total in zip(each_shape, totals, strict=True)
    ]
    return results(shapes, run.problem.dtype, arguments)


def _adjoint_computed(platform: Platform, *arguments, run: KernelRun, axes: Axes, active, totals):
    width = platform.width(run.problem.dtype, axes)
    kept = {"run": run, "axes": axes, "active": active, "totals": totals}
    result = _blocks.bind(*arguments, width=width, **kept)
    return [x.sum(0) if total else x for x, total in zip(result, totals, strict=True)]


# The same before the sums over blocks of members, of as many as a vector has entries.


def _block_shapes(*arguments, run: KernelRun, axes: Axes, active, totals, width: int):
    blocks = -(-axes.members // width)
    each_shape = [(run.problem.states,), *(run.problem.parameters[i].shape for i in active)]
    pairs = zip(each_shape, totals, strict=True)
    shapes = [(blocks, *x) if total else (*axes.shape, *x) for x, total in pairs]
    return results(shapes, run.problem.dtype, arguments)


def _blocks_lowered(
    platform: Platform, ctx, *arguments, run: KernelRun, axes: Axes, active, totals, width: int
):
    del width
    programs, _ = adjoint_programs(run.problem, active, run.saving.times)
    if run.adaptive:
        steps = run.programs()
        names = {x.name for x in steps}
        programs = [*steps, *(x for x in programs if x.name not in names)]
    lanes = platform.writer(run.problem.dtype, axes, ctx)
    body = adjoint_steps(run, active, lanes, axes.ranks(), axes.rank, totals[1:])
    launched = _work(programs, body, lanes, axes, run, _steps(run, ctx.avals_in))._replace(
        scratch=kept_numbers(run, lanes, ctx.avals_in),
        result_ranks=tuple(1 if x else axes.rank for x in totals),
    )
    return platform.launch(ctx, arguments, launched)


_blocks = primitive(
    "native_integration_adjoint_blocks", _block_shapes, lowerings=on_platforms(_blocks_lowered)
)


def _adjoint_batched(arguments, axes_in, *, run: KernelRun, axes: Axes, active, totals):
    rank = axes.rank
    moved, axes = with_new_axis(arguments, axes_in, axes)
    # Each entry of the new axis wants sums of its own: members are summed up here.
    none = (False,) * len(totals)
    result = _adjoint.bind(*moved, run=run, axes=axes, active=active, totals=none)
    return _in_total(result, totals, tuple(range(1, 1 + rank))), [0] * len(result)


def _in_total(result, totals, at: tuple[int, ...]) -> list:
    return [x.sum(at) if total else x for x, total in zip(result, totals, strict=True)]


def _adjoint_jvp(primals, tangents, *, run: KernelRun, axes: Axes, active, totals):
    result = _adjoint.bind(*primals, run=run, axes=axes, active=active, totals=totals)
    members = tuple(range(axes.rank))
    moving, timed = _moving(run, tangents)
    # The derivative of the adjoint, below, is made by the symmetry of second derivatives.
    if run.own_rule is not None:
        _step_aside(run, run.own_rule)
    if timed or run.own_rule is not None:
        plain = run.by_times if timed else run.plain
        assert plain is not None
        arguments, more = _all_bars(primals, run, axes)
        still = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in arguments[len(primals) :]]
        along_moves = along(plain.pulled(_start_and(active)), arguments, [*tangents, *still], more)
        return result, _in_total(along_moves, totals, members)
    count = _argument_count(run)
    by = (*_start_and(moving), count, count + 1)
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


def _curvature_shapes(*arguments, run: KernelRun, axes: Axes, active, moving):
    del moving
    none = (False,) * (1 + len(active))
    return _adjoint_shapes(*arguments, run=run, axes=axes, active=active, totals=none)


def _curved(*arguments, run: KernelRun, axes: Axes, active, moving):
    """With `y' = F(x)`, `x_bar = F'(x)^T y_bar` varies by `F'^T dy_bar + (F'' dx)^T y_bar`.

    These are the cotangents of `x` in the varied run `(F, F' dx)`, from `dy_bar` of the first and
    `y_bar` of the second.
    """
    count, flags = _argument_count(run), axes.batched
    primals, bars, moves = arguments[:count], arguments[count : count + 2], arguments[count + 2 :]
    primal = Axes(axes.shape, flags[:count])
    try:
        more = varied(run, moving, 1)
        adjoint_programs(more.problem, active, run.saving.times)
    except UnsupportedOperationError as error:
        _step_aside(run, error)
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
            a if varies else broadcast_along(a, axes.shape, 0)
            for a, varies in ((x, has), (move, moved))
        )
        both.append(jnp.concatenate([move, x], -1))
    operands = [start, *primals[1:parameters], *directions, *primals[parameters:]]
    batched = (own_start, *flags[1:parameters], *flags[count + 3 : -2], *flags[parameters:count])
    result = _pulled(operands, both, more, Axes(primal.shape, batched), active)
    return [result[0][..., : run.problem.states], *result[1:]]


def _curved_plainly(arguments, run: KernelRun, axes: Axes, active, moving):
    assert run.plain is not None
    count = _argument_count(run)
    first = Axes(axes.shape, axes.batched[: count + 2])
    operands, bar_axes = _all_bars(arguments[: count + 2], run, first)
    function = run.plain.pulled(_start_and(active)).along((*_start_and(moving), count, count + 1))
    more = Axes(axes.shape, (*bar_axes.batched, *axes.batched[count + 2 :]))
    return evaluate(function, [*operands, *arguments[count + 2 :]], more)


def _curvature_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _curved(*x, **parameters), primals, tangents)


def _curvature_transposed(bars, *arguments, run: KernelRun, axes: Axes, active, moving):
    """Second derivatives are symmetric: the transpose is the derivative along the cotangents."""
    count = _argument_count(run)
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
    along = _tangents.bind(*primals, *wide, run=run, axes=more, active=active, directions=1)
    entries = [*curved, *(jnp.squeeze(x, axes.rank) for x in along)]
    parts = zip(linear, entries, axes.batched[count + 2 :], strict=True)
    return [
        *(None for _ in operands),
        *(summed(x, has, axes) if ad.is_undefined_primal(one) else None for one, x, has in parts),
    ]


_curvature = primitive("native_integration_curvature", _curvature_shapes, computed=_curved)
ad.primitive_jvps[_curvature] = _curvature_jvp
ad.primitive_transposes[_curvature] = _curvature_transposed


ad.primitive_transposes[_tangents] = _tangents_transposed
