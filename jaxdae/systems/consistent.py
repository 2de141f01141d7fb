"""Consistent states: positions, then velocities, projected onto the constraints."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, overload

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from jaxdae.checks import are_known, where_known
from jaxdae.compiled import jit
from jaxdae.linalg.held_rank import pivoted_rows, unit_rows
from jaxdae.reprs import Module
from jaxdae.systems.base import State, System
from jaxdae.systems.checks import check_finite, check_functions, check_tolerance
from jaxdae.systems.dynamics import constraint_residuals, mass_and_jacobian, Violation
from jaxdae.systems.independence import approach
from jaxdae.systems.kinematics import has_rate, moved, refuse_rates
from jaxdae.systems.precision import in_dtype
from jaxdae.systems.programs import (
    ActuatorProgram,
    check_program_shape,
    nearest_on_program,
    unmet,
)

_MAX_STEPS = 64
# Half steps: the distance to the constraints falls by 2^16.
_APPROACH_STEPS = 16


class Projection(Module):
    """What `consistent_state` moved.

    Args:
        dq: change of the coordinates, shape `(n,)`.
        dv: change of the velocities, shape `(n,)`.
        before: constraint residuals of the state that was given.
        after: constraint residuals of the state that is returned.
    """

    dq: Float[Array, " n"]
    dv: Float[Array, " n"]
    before: Violation
    after: Violation


class ConsistencyError(ValueError):
    """A state does not satisfy the constraints and could not be brought to."""


@overload
def consistent_state(
    system: System,
    q,
    v,
    t=0.0,
    *,
    w=None,
    program: ActuatorProgram | None = None,
    fixed: str | int | Sequence[str | int] = (),
    tolerance: float | None = None,
    report: Literal[False] = False,
) -> State: ...


@overload
def consistent_state(
    system: System,
    q,
    v,
    t=0.0,
    *,
    w=None,
    program: ActuatorProgram | None = None,
    fixed: str | int | Sequence[str | int] = (),
    tolerance: float | None = None,
    report: Literal[True],
) -> tuple[State, Projection]: ...


def consistent_state(
    system: System,
    q,
    v,
    t=0.0,
    *,
    w=None,
    program: ActuatorProgram | None = None,
    fixed: str | int | Sequence[str | int] = (),
    tolerance: float | None = None,
    report: bool = False,
) -> State | tuple[State, Projection]:
    r"""The consistent state nearest to a given one in the mass metric.

    First the coordinates, then the velocities, solve

        min_x (x - x0)^T M (x - x0) / 2   subject to   c(x) = 0,

    with `M = M(t, q0)`, and `c` the position constraints of `q`, then the velocity-level
    constraints of `v`, by Newton's method on the stationarity conditions
    `M (x - x0) + (dc/dx)^T mu = 0`, `c(x) = 0`. Dependent constraints are allowed: the rank is
    decided where they hold, and Newton's method has so many of them, chosen by pivoting. So is a
    mass matrix that is singular off `ker J`. Derivatives follow from the implicit function theorem.

    Args:
        system: the declaration.
        q: coordinates to start from, shape `(n,)`.
        v: velocities to start from, shape `(n,)`.
        t: time [s].
        w: actuator state, shape `(k,)`; kept as it is, unless a program asks for another.
        program: `psi(t, q, v, w) -> (p,)`, a program that must hold at the start besides
            [Mukharlyamov2019, eq. 2.5], such as `ServoConstraint.residuals`, which has the
            derivatives of a program along the motion, down to where the actuators enter. `q`, `v`
            and `w` then move together, by the least change, with unit weights for `w`.
        fixed: names (see `System.labels`) or indices of coordinates to hold, at both levels, and
            names of actuator states (`w1`, `w2`, … without labels) that a program shall not move.
        tolerance: largest residual allowed afterwards, relative to `1 + max |q|, |v|`; by default
            the 2/3 power of the machine epsilon.
        report: return also a `Projection` that tells what was moved.

    Returns:
        `State`, or `(State, Projection)` with `report=True`.

    Raises:
        ConsistencyError: naming the constraint that remains violated, by how much, and when.
            Under `jit` and `vmap` the state is NaN instead.
        ValueError: for wrong shapes, unknown names, or a state that is not finite.
    """
    state = State(q, v, w)
    system = in_dtype(system, state.q.dtype)
    check_functions(system, state, t=t, forces=False)
    if fixed not in ((), []) or program is not None:
        refuse_rates(system, "consistent_state with `fixed` or `program`")
    held, free = _held(system, fixed, state.q.size, state.w.size)
    check_finite(state)
    check_tolerance("tolerance", tolerance)
    default = float(np.finfo(state.q.dtype).eps) ** (2 / 3)
    allowed = default if tolerance is None else tolerance
    if program is not None:
        check_program_shape(program, t, state)
    t = jnp.asarray(t, state.q.dtype)
    unmoved = _unmoved(system, t, state) if program is None else None
    if unmoved is not None:
        return (state, unmoved) if report else state
    out, projection, left = _project(system, program, t, state, jnp.asarray(free))
    after = jnp.concatenate([projection.after.phi, projection.after.phi_dot])
    problem = partial(_message, system, t, state, projection, held)
    out = _required(out, after, (out.q, out.v), allowed, problem)
    out = _required(out, left, (out.q, out.v, out.w), allowed, partial(unmet, left))
    return (out, projection) if report else out


def _held(system, fixed, n: int, k: int) -> tuple[list[int], np.ndarray]:
    """Coordinates that are held, and which coordinates and actuator states may move, `(n + k,)`."""
    chosen = _indices(system, (fixed,) if isinstance(fixed, str | int) else fixed, n, k)
    free = np.ones(n + k, bool)
    free[chosen] = False
    return [i for i in chosen if i < n], free


@where_known
def _unmoved(system: System, t, state: State) -> Projection | None:
    """No change, where a state is consistent to round-off: projections take long to compile."""
    result, distances = _distances(system, t, state)
    size = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in (state.q, state.v))
    if not (np.asarray(distances) <= np.finfo(distances.dtype).eps * (1 + size)).all():
        return None
    return Projection(jnp.zeros_like(state.q), jnp.zeros_like(state.v), result, result)


@jit
def _distances(system: System, t, state: State):
    """Residuals, and to first order how far each of them is from zero in `q` and in `v`."""
    result = constraint_residuals(system, t, state.q, state.v)
    rate = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
    sizes = jnp.linalg.norm(jax.jacfwd(rate)(state.v), axis=1)
    residuals = (jnp.abs(result.phi), jnp.abs(result.phi_dot))
    away = [jnp.where(x == 0, 0.0, x / sizes[: x.size]) for x in residuals]
    return result, jnp.concatenate(away)


@jit
def _project(system: System, program, t, state: State, free):
    """Nearest consistent state, what changed, and what is left of a program."""
    before = constraint_residuals(system, t, state.q, state.v)
    if program is not None:
        out = nearest_on_program(_nearest, system, program, t, state, free)
        after = constraint_residuals(system, t, out.q, out.v)
        change = Projection(out.q - state.q, out.v - state.v, before, after)
        return out, change, program(t, out.q, out.v, out.w)
    free = free[: state.v.size]
    mass, _ = mass_and_jacobian(system, t, state.q, state.v)
    if has_rate(system):
        none, there = jnp.zeros_like(state.v), lambda x: moved(system, t, state.q, x)
        q = there(_nearest(lambda x: system.position_constraints(t, there(x)), mass, none, free))
    else:
        q = _nearest(lambda q: system.position_constraints(t, q), mass, state.q, free)
    v = _nearest(lambda v: constraint_residuals(system, t, q, v).phi_dot, mass, state.v, free)
    after = constraint_residuals(system, t, q, v)
    change = Projection(q - state.q, v - state.v, before, after)
    return State(q, v, state.w), change, jnp.zeros((0,), q.dtype)


def _nearest(constraint, metric, x0, free):
    """The point of `constraint(x) = 0` nearest to `x0` in `metric`, moving `free` entries only."""
    if jax.eval_shape(constraint, x0).size == 0:
        return x0
    # A metric of order one keeps the two blocks of the stationarity conditions comparable.
    scale = jnp.maximum(jnp.max(jnp.abs(metric)), jnp.finfo(metric.dtype).tiny)
    metric = metric / scale
    # Held entries do not move even where the constraints cannot be satisfied.
    moving = lambda x, x0: constraint(jnp.where(free, x, x0))  # noqa: E731
    eps = float(jnp.finfo(x0.dtype).eps)
    # Singular values below this are round-off: of a mass matrix, or constraints that entries held
    # determine.
    linear_solver = lx.SVD(rcond=eps ** (2 / 3))
    newton = optx.Newton(rtol=eps**0.75, atol=eps**0.75, linear_solver=linear_solver)
    near = _approach(constraint, metric, x0, free, linear_solver)
    order, used = _independent_rows(lambda x: moving(x, x0), near)

    def chosen(x, x0):
        return order @ moving(x, x0)

    def stationarity(unknown, x0):
        x, mu = unknown
        residual, pullback = jax.vjp(lambda x: chosen(x, x0), x)
        gradient = metric @ (x - x0) + pullback(jnp.where(used, mu, 0.0))[0]
        return jnp.where(free, gradient, x - x0), jnp.where(used, residual, mu)

    # Multipliers of the start by least squares: what Newton's method needs at a far one.
    rows = jnp.where(used[:, None] & free, jax.jacfwd(chosen)(near, x0), 0.0)
    pull = jnp.where(free, metric @ (x0 - near), 0.0)
    matrix = lx.MatrixLinearOperator(rows.T)
    mu = lx.linear_solve(matrix, pull, linear_solver, throw=False).value
    start = jax.lax.stop_gradient((near, jnp.where(used, mu, 0.0)))
    solution = optx.root_find(
        stationarity,
        newton,
        start,
        args=x0,
        adjoint=optx.ImplicitAdjoint(linear_solver=linear_solver),
        max_steps=_MAX_STEPS,
        throw=False,
    )
    return jnp.where(free, solution.value[0], x0)


def _approach(constraint, metric, x0, free, linear_solver):
    """A point from which Newton's method on the stationarity conditions converges.

    Half steps of sequential quadratic programming without the constraints' curvature: each goes
    towards the point of the linearized constraints nearest to `x0`, which keeps away from
    stationary points that are not minima. Newton's method alone fails from far starts.
    """

    def step(_, x):
        residual, jac = constraint(x), jnp.where(free, jax.jacfwd(constraint)(x), 0.0)
        corner = jnp.zeros((residual.size, residual.size), x.dtype)
        # Held entries leave both blocks: their steps are zero, being of least norm.
        inner = jnp.where(free & free[:, None], metric, 0.0)
        matrix = lx.MatrixLinearOperator(jnp.block([[inner, jac.T], [jac, corner]]))
        rhs = jnp.concatenate([inner @ (x0 - x), -residual])
        solution = lx.linear_solve(matrix, rhs, linear_solver, throw=False).value
        return x + 0.5 * solution[: x.size]

    x = jax.lax.fori_loop(0, _APPROACH_STEPS, step, x0)
    nearer = jnp.linalg.norm(constraint(x)) < jnp.linalg.norm(constraint(x0))
    return jax.lax.stop_gradient(jnp.where(nearer, x, x0))


def _independent_rows(constraint, near):
    """An order of the constraints, those independent where they hold first, and which those are."""
    there = approach(constraint, near)
    result = pivoted_rows(unit_rows(jax.jacfwd(constraint)(there))[0])
    used = jnp.arange(result.sizes.size) < result.rank
    return jax.lax.stop_gradient((result.order, used))


def _required(out: State, residuals, size, tolerance: float, problem: Callable) -> State:
    """`out` if its residuals are small; an error, or NaN while tracing, if they are not."""
    limit = tolerance * (1 + jnp.max(jnp.abs(jnp.concatenate(size)), initial=0.0))
    good = jnp.all(jnp.abs(residuals) <= limit)
    if not are_known(good):
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), out)
    if not good:
        raise ConsistencyError(problem(float(limit)))
    return out


def _message(system, t, state, projection, held, limit: float) -> str:
    labels = system.labels()
    after = projection.after
    phi = np.asarray(after.phi)
    level, values = ("position", phi)
    if np.all(np.abs(phi) <= limit):
        level, values = "velocity", np.asarray(after.phi_dot)
    values = np.where(np.isfinite(values), np.abs(values), np.inf)
    i = int(np.argmax(values))
    before = np.concatenate([projection.before.phi, projection.before.phi_dot[phi.size :]])
    if np.isnan(before).any():
        return (
            f"constraint {labels.constraint(int(np.argmax(np.isnan(before))))!r} is nan at "
            f"q = {np.asarray(state.q)} and t = {float(t):.6g}: it is not defined there. Start "
            "elsewhere, or guard what divides by zero or takes a root of a negative number."
        )
    holding = ", ".join(labels.coordinate(k) for k in held)
    return (
        f"no consistent state was found near q = {np.asarray(state.q)}: constraint "
        f"{labels.constraint(i)!r} still fails at {level} level by {values[i]:.3g} "
        f"(allowed {limit:.1g}) at t = {float(t):.6g}. "
        + (f"The coordinates {holding} were held fixed; hold fewer. " if holding else "")
        + "Start nearer to the constraints, or check that they can be satisfied at that time."
    )


def _indices(system, fixed, n: int, k: int) -> list[int]:
    """Coordinates as `0` to `n - 1`, actuator states as `n` to `n + k - 1`."""
    labels = system.labels()
    actuators = [*labels.actuators[:k], *(f"w{i + 1}" for i in range(len(labels.actuators), k))]
    coordinates = [labels.coordinate(i) for i in range(n)]
    out = []
    for key in fixed:
        if key in actuators and key not in coordinates:
            out.append(n + actuators.index(key))
        else:
            out += labels.coordinate_indices(key, n, "fixed")
    return out
