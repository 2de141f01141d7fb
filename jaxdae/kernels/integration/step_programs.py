"""Programs of steps, which the loops over steps call by their names."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.kernels.integration.initial_value import InitialValueProblem, replaced
from jaxdae.kernels.tracing.product_parts import factored, Pieces
from jaxdae.kernels.tracing.subprograms import Subprogram


def fixed_step_programs(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    """Programs of a run with fixed steps: `begin`, `step`, and `interpolate` for dense output."""

    def make():
        def begin(t0, y0, *given):
            return problem.method.init(_rate(problem, given), t0, y0)

        def step(t0, t1, y0, carry, *given):
            found = _step(problem, t0, t1, y0, carry, given)
            return found.y1, found.carry, *_dense(found, dense)

        given = problem.arguments()
        return [
            *problem.preparations(),
            *([problem.program("begin", begin, "t", "y", *given)] if problem.carried else []),
            problem.program("step", step, "t", "t", "y", "c", *given),
            *_interpolation(problem, dense),
        ]

    return problem.once(("fixed", dense), make)


def adaptive_step_programs(
    problem: InitialValueProblem, given_first: bool, dense: bool
) -> list[Subprogram]:
    """Programs of a run with adaptive steps: `start`, `advance` and `interpolate`."""

    def make():
        times, control, given = (
            ["t"] * (2 + given_first),
            control_shape(problem),
            problem.arguments(),
        )
        start, advance = _start(problem, given_first), _advance(problem, dense)
        return [
            *problem.preparations(),
            problem.program("start", start, *times, "y", *given),
            problem.program("advance", advance, *"tttt", control, "y", "c", *given),
            *_interpolation(problem, dense),
        ]

    return problem.once(("adaptive", given_first, dense), make)


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
    used, kinds = problem.method.evaluations(dense), ("t", "t", "y", *problem.arguments(active))
    count = len(kinds) - 3

    def plain_step(t0, t1, y, *given):
        rates = []

        def rate(*x):
            rates.append(_rate(problem, given)(*x))
            return rates[-1]

        y1 = _step(problem, t0, t1, y, None, given, rate).y1
        return y1, jnp.reshape(jnp.stack(rates[:used]) if used else y[:0], (used, y.size))

    def transposed_step(t0, t1, y, *rest):
        given, rates, bars = rest[:count], rest[count], rest[count + 1 :]

        def run(y, *some):
            # They need not be computed again: an evaluation of which nothing depends has none.
            known, given_now = iter(rates), replaced(given, active, some)
            rate = _derivable_rate(problem, active, given_now, known)
            found = _step(problem, t0, t1, y, None, given_now, rate, active)
            return (found.y1, *_dense(found, dense))

        _, pull = jax.vjp(run, y, *(given[i] for i in active))
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


def _rate(problem: InitialValueProblem, given) -> Callable:
    """`rate(t, y)` from parameters and what is prepared of them."""
    if problem.method.evaluates_only:
        function = problem.function(0)
        return lambda t, y: function(t, y, *given)
    return lambda t, y: problem.rhs(t, y, *given[: len(problem.parameters)])


def _derivable_rate(problem: InitialValueProblem, active, given, known) -> Callable:
    """The same with a derivative; `known` are the values of the first evaluations."""
    if not problem.method.evaluates_only:
        return _rate(problem, given)
    function = problem.derivable(0, active)
    return lambda t, y: function(next(known, jnp.zeros_like(y)), t, y, *given)


def _step(problem: InitialValueProblem, t0, t1, y0, carry, given, rate=None, active=None) -> Any:
    """A step that ends on the constraints where the problem has a projection."""
    rate = _rate(problem, given) if rate is None else rate
    carry = carry if problem.carried else None
    found = problem.method.step(rate, t0, t1, y0, carry, problem.each)
    y1 = _projected(problem, active, t1, found.y1, given)
    return found._replace(y1=y1, carry=found.carry[: problem.carried])


def _dense(found, wanted: bool) -> list:
    return [found.dense()] if wanted else []


def _projected(problem: InitialValueProblem, active, t, y, given):
    if problem.project is None:
        return y
    if active is None:
        return problem.function(1)(t, y, *given)
    return problem.derivable(1, active)(None, t, y, *given)


def _interpolation(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    if not dense:
        return []
    return [problem.program("interpolate", problem.method.interpolate, *"ttyydt")]


def _transposed_interpolation(problem: InitialValueProblem) -> Subprogram:
    """Dense output, transposed: from a saved state's cotangent to those of what it is made of."""

    def transposed(t0, t1, t, y_bar):
        def interpolate(y0, y1, dense):
            return problem.method.interpolate(t0, t1, y0, y1, dense, t)

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
        dt, (y, *given) = (rest[0], rest[1:]) if given_first else (None, rest)
        t1, state = _started(problem, t0, end, dt, y, given)
        none = jnp.zeros(0, problem.dtype)
        carry = problem.method.init(_rate(problem, given), t0, y) if problem.carried else none
        return jnp.minimum(t1, end), _packed(state, problem.dtype), carry

    return start


def _started(problem: InitialValueProblem, t0, end, dt, y, given):
    # Of a varied problem the first states alone decide; their rate is had by its own program.
    primal = problem.primal
    parameters, rate = given[: len(primal.parameters)], primal.undivided_rate()

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

    def advance(t0, t1, end, floor, control, y0, carry, *given):
        found = _step(problem, t0, t1, y0, carry, given)
        error = found.error()
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        before, after, error = (problem.unravel(x[:n]) for x in (y0, found.y1, error))
        controller, order = problem.controller(*given[:count]), problem.method.error_order()
        keep, t_next0, t_next1, _, state, result = controller.adapt_step_size(
            t0, t1, before, after, None, error, order, _unpacked(control, shapes)
        )
        t_next0 = jnp.minimum(t_next0, end)
        clipped = jnp.where(keep, end, t_next0 + 0.5 * (end - t_next0))
        t_next1 = jnp.where(t_next1 > floor, clipped, t_next1)
        code, kept = (jnp.asarray(x).astype(dtype) for x in (result._value, keep))
        summary = (kept, code, t_next0, t_next1)
        return (*summary, _packed(state, dtype), found.y1, found.carry, *_dense(found, dense))

    return advance


def _packed(state, dtype):
    leaves = [jnp.asarray(x).astype(dtype) for x in jax.tree.leaves(state)]
    return jnp.stack(leaves) if leaves else jnp.zeros(0, dtype)


def _unpacked(packed, shapes):
    leaves, structure = jax.tree.flatten(shapes)
    found = [
        packed[i] != 0 if x.dtype == np.bool_ else packed[i].astype(x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, found)
