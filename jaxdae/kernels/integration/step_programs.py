"""Programs of steps, which the loops over steps call by their names."""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.kernels.integration.initial_value import (
    InitialValueProblem,
    Rate,
    replaced,
    Step,
    StepsAlong,
)
from jaxdae.kernels.tracing.product_parts import factored, Pieces
from jaxdae.kernels.tracing.subprograms import Subprogram


def fixed_step_programs(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    """Programs of a run with fixed steps: `begin`, `step`, and `interpolate` for dense output."""

    def make():
        def step(t0, t1, y0, carry, *arguments):
            result = _step(problem, t0, t1, y0, carry, arguments)
            return result.y1, result.carry, *_dense(result, dense)

        arguments = problem.arguments()
        return [
            *problem.preparations(),
            *_beginning(problem),
            problem.program("step", step, "t", "t", "y", "c", *arguments),
            *_interpolation(problem, dense),
        ]

    return problem.once(("fixed", dense), make)


def _beginning(problem: InitialValueProblem) -> list[Subprogram]:
    """What a step that follows no other one takes over from a step before, as a program."""
    if not problem.carried:
        return []

    def begin(t0, y0, *arguments):
        return problem.method.init(_rate(problem, arguments), t0, y0)

    return [problem.program("begin", begin, "t", "y", *problem.arguments())]


def adaptive_step_programs(
    problem: InitialValueProblem, given_first: bool, dense: bool, step_ends: bool = False
) -> list[Subprogram]:
    """Programs of a run with adaptive steps: `start`, `advance` and `interpolate`.

    Where steps end at given times also `begin`, as after these the right-hand side may have jumped;
    where an event may end the run, its `value`, and `fall`, which locates it in a step.
    """
    kept = dense or problem.event is not None

    def make():
        times, control, arguments = (
            ["t"] * (2 + given_first),
            control_shape(problem),
            problem.arguments(),
        )
        start, advance = _start(problem, given_first), _advance(problem, kept)
        return [
            *problem.preparations(),
            problem.program("start", start, *times, "y", *arguments),
            problem.program("advance", advance, *"tttt", control, "y", "c", *arguments),
            *(_beginning(problem) if step_ends else []),
            *_interpolation(problem, dense),
            *_event(problem),
        ]

    return problem.once(("adaptive", given_first, dense, step_ends), make)


def _event(problem: InitialValueProblem) -> list[Subprogram]:
    """Value of the function of an event; from what a step gives, time and state where it falls."""
    event, count = problem.event, len(problem.parameters)
    if event is None:
        return []

    def value(t, y, *arguments):
        return jnp.asarray(event.value(t, y, *arguments[:count]), problem.dtype)

    def fall(t0, t1, y0, y1, dense, *arguments):
        state = partial(_between, problem, t0, t1, y0, y1, dense)
        t = event.fall(lambda t: value(t, state(t), *arguments), t0, t1)
        return t, state(t)

    arguments = problem.arguments()
    return [
        problem.program("value", value, "t", "y", *arguments),
        problem.program("fall", fall, *"ttyyd", *arguments, open_ended=True),
    ]


def adjoint_programs(
    problem: InitialValueProblem, active: tuple[int, ...], dense: bool
) -> list[Subprogram]:
    """Programs of the adjoint: `plain_step`, `transposed_step`, `transposed_interpolation`.

    The first gives the state at the end of a step and the rates of its first evaluations, which the
    second takes; this one gives `transposed_pieces`.
    """
    return _adjoint(problem, active, dense)[0]


def transposed_pieces(
    problem: InitialValueProblem, active: tuple[int, ...], dense: bool
) -> tuple[Pieces, ...]:
    """What `transposed_step` gives of the cotangents of the state and of active parameters."""
    return _adjoint(problem, active, dense)[1]


def _adjoint(problem: InitialValueProblem, active: tuple[int, ...], dense: bool):
    key = ("adjoint", active, dense)
    return problem.once(key, lambda: _made_adjoint(problem, active, dense))


def _made_adjoint(problem: InitialValueProblem, active: tuple[int, ...], dense: bool):
    problem.check_memory()
    used, kinds = problem.method.evaluations(dense), ("t", "t", "y", *problem.arguments(active))
    count = len(kinds) - 3

    def plain_step(t0, t1, y, *arguments):
        rates = []

        def rate(*x):
            rates.append(_rate(problem, arguments)(*x))
            return rates[-1]

        y1 = _step(problem, t0, t1, y, None, arguments, rate if used else None).y1
        return y1, jnp.reshape(jnp.stack(rates[:used]) if used else y[:0], (used, y.size))

    def transposed_step(t0, t1, y, *rest):
        arguments, rates, bars = rest[:count], rest[count], rest[count + 1 :]

        def run(y, *some):
            # They need not be computed again: an evaluation of which nothing depends has none.
            known, given_now = iter(rates), replaced(arguments, active, some)
            rate = _derivable_rate(problem, active, given_now, known)
            result = _step(problem, t0, t1, y, None, given_now, rate, active)
            return (result.y1, *_dense(result, dense))

        _, pull = jax.vjp(run, y, *(arguments[i] for i in active))
        return pull(bars)

    rates = jax.ShapeDtypeStruct((used, problem.states), problem.dtype)
    transposed = problem.program(
        "transposed_step", transposed_step, *kinds, rates, "y", *"d" * dense
    )
    transposed.program, pieces = factored(transposed.program)
    programs = [
        *problem.preparations(active),
        problem.program("plain_step", plain_step, *kinds),
        transposed,
        *([_transposed_interpolation(problem)] if dense else []),
    ]
    return programs, pieces


def _rate(problem: InitialValueProblem, arguments) -> Callable:
    """`rate(t, y)` from parameters and what is prepared of them."""
    if problem.method.evaluates_only:
        function = problem.function(0)
        return lambda t, y: function(t, y, *arguments)
    return Rate(problem.rhs, arguments[: len(problem.parameters)])


def _derivable_rate(problem: InitialValueProblem, active, arguments, known) -> Callable:
    """The same with a derivative; `known` are the values of the first evaluations."""
    if not problem.method.evaluates_only:
        return _rate(problem, arguments)
    function = problem.derivable(0, active)
    return lambda t, y: function(next(known, jnp.zeros_like(y)), t, y, *arguments)


def _step(
    problem: InitialValueProblem, t0, t1, y0, carry, arguments, rate=None, active=None
) -> Any:
    """A step that ends on the constraints where the problem has a projection."""
    if isinstance(problem.method, StepsAlong):

        def base_step(y, parameters):
            result = _step(problem.method.base, t0, t1, y, None, parameters)
            return result.y1, result.error(), result.dense()

        y1, error, dense = problem.method.step(base_step, y0, arguments)
        return Step(y1.ravel(), lambda: error.ravel(), y0[:0], lambda: dense)
    rate = _rate(problem, arguments) if rate is None else rate
    carry = carry if problem.carried else None
    result = problem.method.step(rate, t0, t1, y0, carry, problem.each)
    y1 = _projected(problem, active, t1, result.y1, arguments)
    return result._replace(y1=y1, carry=result.carry[: problem.carried])


def _dense(result, wanted: bool) -> list:
    return [result.dense()] if wanted else []


def _projected(problem: InitialValueProblem, active, t, y, arguments):
    if problem.project is None:
        return y
    if not problem.method.evaluates_only:  # its programs are traced as wholes
        return problem.project(t, y, *arguments[: len(problem.parameters)])
    if active is None:
        return problem.function(1)(t, y, *arguments)
    return problem.derivable(1, active)(None, t, y, *arguments)


def _interpolation(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    if not dense:
        return []
    return [problem.program("interpolate", lambda *x: _between(problem, *x), *"ttyydt")]


def _between(problem: InitialValueProblem, t0, t1, y0, y1, dense, t):
    """State at a time in a step."""
    y = problem.method.interpolate(t0, t1, y0, y1, dense, t)
    return y if problem.between is None else problem.between(t1, t, y0, y1, y)


def _transposed_interpolation(problem: InitialValueProblem) -> Subprogram:
    """Dense output, transposed: from a saved state's cotangent to those of what it is made of."""

    def transposed(t0, t1, t, y_bar):
        def interpolate(y0, y1, dense):
            return _between(problem, t0, t1, y0, y1, dense, t)

        return jax.linear_transpose(interpolate, *problem.shapes(*"yyd"))(y_bar)

    return problem.program("transposed_interpolation", transposed, *"ttty")


def control_shape(problem: InitialValueProblem) -> jax.ShapeDtypeStruct:
    """Of the state of the step size controller, as one array."""
    leaves = jax.tree.leaves(_control_states(problem))
    return jax.ShapeDtypeStruct((len(leaves),), problem.dtype)


def _control_states(problem: InitialValueProblem):
    primal = problem.primal

    def state(t0, t1, y, *parameters):
        return _started(primal, t0, t1, t1, y, parameters)[1]

    return jax.eval_shape(state, *primal.shapes(*"tty", *primal.parameters))


def _start(problem: InitialValueProblem, given_first: bool) -> Callable:
    """End of the first step, state of the controller, what the first step is given."""

    def start(t0, end, *rest):
        dt, (y, *arguments) = (rest[0], rest[1:]) if given_first else (None, rest)
        t1, state = _started(problem, t0, end, dt, y, arguments)
        none = jnp.zeros(0, problem.dtype)
        carry = problem.method.init(_rate(problem, arguments), t0, y) if problem.carried else none
        return jnp.minimum(t1, end), _packed(state, problem.dtype), carry

    return start


def _started(problem: InitialValueProblem, t0, end, dt, y, arguments):
    # Of a varied problem the first states alone decide; their rate is had by its own program.
    primal = problem.primal
    parameters, rate = arguments[: len(primal.parameters)], primal.undivided_rate()

    def field(t, tree, args):
        del args
        return problem.unravel(rate(t, ravel_pytree(tree)[0], *parameters))

    func = lambda terms, t, y, args: terms.vf(t, y, args)  # noqa: E731
    # Diffrax, too, hands over a wrapped term.
    wrapped, y0 = diffrax.MultiTerm(diffrax.ODETerm(field)), problem.unravel(y[: primal.states])
    order = problem.method.error_order()
    return problem.controller(*parameters).init(wrapped, t0, end, y0, dt, None, func, order)


def _advance(problem: InitialValueProblem, dense: bool) -> Callable:
    """One adaptive step.

    From its two ends, the end of the run, the time from which on a step reaches that end, the
    controller's state, the state and its carry: whether it is kept (1 or 0) and the controller's
    result code; the ends of the next step; the controller's state; and what a step gives.
    """
    shapes, n = _control_states(problem), problem.primal.states
    count, dtype = len(problem.primal.parameters), problem.dtype

    def advance(t0, t1, end, floor, control, y0, carry, *arguments):
        outcome = _step(problem, t0, t1, y0, carry, arguments)
        error = jnp.broadcast_to(outcome.error(), y0.shape)
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        before, after, error = (problem.unravel(x[:n]) for x in (y0, outcome.y1, error))
        controller, order = problem.controller(*arguments[:count]), problem.method.error_order()
        keep, t_next0, t_next1, _, state, result = controller.adapt_step_size(
            t0, t1, before, after, None, error, order, _unpacked(control, shapes)
        )
        t_next0 = jnp.minimum(t_next0, end)
        clipped = jnp.where(keep, end, t_next0 + 0.5 * (end - t_next0))
        t_next1 = jnp.where(t_next1 > floor, clipped, t_next1)
        code, kept = (jnp.asarray(x).astype(dtype) for x in (result._value, keep))
        summary = (kept, code, t_next0, t_next1)
        return (*summary, _packed(state, dtype), outcome.y1, outcome.carry, *_dense(outcome, dense))

    return advance


def _packed(state, dtype):
    leaves = [jnp.asarray(x).astype(dtype) for x in jax.tree.leaves(state)]
    return jnp.stack(leaves) if leaves else jnp.zeros(0, dtype)


def _unpacked(packed, shapes):
    leaves, structure = jax.tree.flatten(shapes)
    results = [
        packed[i] != 0 if x.dtype == np.bool_ else packed[i].astype(x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, results)
