"""Consistent states: positions, then velocities, projected onto the constraints."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, calls_programs, where_eager
from jaxdae.compiled import BRIEFLY, jit
from jaxdae.memory import Memory
from jaxdae.reprs import Module
from jaxdae.systems.base import State, System
from jaxdae.systems.checks import check_functions, check_position, check_tolerance
from jaxdae.systems.dynamics import constraint_residuals, mass_and_jacobian, Violation
from jaxdae.systems.kinematics import depends_on_velocities, has_rate, moved
from jaxdae.systems.nearest import nearest, nearest_known
from jaxdae.systems.precision import in_dtype, known_array
from jaxdae.systems.programs import (
    ActuatorProgram,
    check_program_shape,
    metric_of_all,
    separated,
    unmet,
    with_program,
)

_CHECKED = Memory(256)


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
            Of a quaternion all four or none.
        tolerance: largest residual allowed afterwards, relative to `1 + max |q|, |v|`; by default
            the 2/3 power of the machine epsilon.
        report: return also a `Projection` that tells what was moved.

    Returns:
        `State`, or `(State, Projection)` with `report=True`.

    Raises:
        ConsistencyError: naming the constraint that remains violated, by how much, and when.
            Under `jit` and `vmap` the state is NaN instead.
        ValueError: for wrong shapes, unknown names, coordinates that cannot be held without others,
            or a state that is not finite.
    """
    state = State(q, v, w)
    system = in_dtype(system, state.q.dtype)
    check_once(system, state, t)
    held, free = _held(system, t, state, fixed)
    check_position(system, state)
    check_tolerance("tolerance", tolerance)
    default = float(np.finfo(state.q.dtype).eps) ** (2 / 3)
    allowed = default if tolerance is None else tolerance
    if program is not None:
        check_program_shape(program, t, state)
    t = known_array(t, state.q.dtype)
    unmoved = _unmoved(system, t, state) if program is None else None
    if unmoved is not None:
        return (state, unmoved) if report else state
    out, projection, left = _project(system, program, t, state, free)
    after = (projection.after.phi, projection.after.phi_dot)
    problem = partial(_message, system, t, state, projection, held)
    out = _required(out, after, (out.q, out.v), allowed, problem)
    out = _required(out, (left,), (out.q, out.v, out.w), allowed, partial(unmet, left))
    return (out, projection) if report else out


def check_once(system: System, state: State, t) -> None:
    """Shapes of everything declared, once for each declaration."""
    leaves, structure = jax.tree.flatten((system, state))
    key = (structure, *((x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves))
    _CHECKED.get(key, system, lambda: check_functions(system, state, t=t, forces=False))


def _held(system, t, state: State, fixed) -> tuple[list[int], np.ndarray]:
    """Coordinates that are held, and which coordinates and actuator states may move, `(n + k,)`.

    Where velocities are not rates of coordinates, which velocities and actuator states.
    """
    n, k = state.q.size, state.w.size
    chosen = _indices(system, (fixed,) if isinstance(fixed, str | int) else fixed, n, k)
    held = [i for i in chosen if i < n]
    if has_rate(system):
        actuators = np.isin(np.arange(n, n + k), chosen, invert=True)
        return held, np.concatenate([_free_velocities(system, t, state, held), actuators])
    free = np.ones(n + k, bool)
    free[chosen] = False
    return held, free


def _free_velocities(system, t, state: State, held: list[int]) -> np.ndarray:
    """Which velocities may differ from zero where some coordinates do not move, shape `(n_v,)`."""
    if not held:
        return np.ones(state.v.size, bool)
    moves = depends_on_velocities(system, t, state)
    still = np.asarray(moves[held].any(axis=0))
    others = set(np.flatnonzero(moves[:, still].any(axis=1)).tolist()) - {*held}
    if others:
        label = system.labels().coordinate
        # Those that share a velocity with them.
        partly = [i for i in held if (moves[i] & moves[sorted(others)].any(axis=0)).any()]
        raise ValueError(
            f"consistent_state: {', '.join(label(i) for i in partly)} cannot be held without "
            f"{', '.join(label(i) for i in sorted(others))}, which the same velocities move; hold "
            "all of them, or none."
        )
    return ~still


@where_eager
def _unmoved(system: System, t, state: State) -> Projection | None:
    """No change, where a state is consistent to round-off."""
    result, distances = _distances(system, t, state)
    if not _is_round_off(distances, state):
        return None
    return _projection(state, state, result, result)


def _is_round_off(distances, state: State) -> bool:
    size = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in (state.q, state.v))
    return bool((np.asarray(distances) <= np.finfo(distances.dtype).eps * (1 + size)).all())


@jit(options=BRIEFLY)
def _distances(system: System, t, state: State):
    """Residuals, and to first order how far each of them is from zero in `q` and in `v`."""
    result = constraint_residuals(system, t, state.q, state.v)
    rate = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
    sizes = jnp.linalg.norm(jax.jacfwd(rate)(state.v), axis=1)
    residuals = (jnp.abs(result.phi), jnp.abs(result.phi_dot))
    away = [jnp.where(x == 0, 0.0, x / sizes[: x.size]) for x in residuals]
    return result, jnp.concatenate(away)


def _project(system: System, program, t, state: State, free: np.ndarray):
    """Nearest consistent state, what changed, and what is left of a program."""
    known = are_known(system, program, t, state) and calls_programs()
    # By NumPy where all is known: a program of the search takes long to compile.
    return (_search if known else _search_compiled)(system, program, t, state, free)


@jit(options=BRIEFLY)
def _search_compiled(system: System, program, t, state: State, free):
    return _search(system, program, t, state, free, search=nearest)


def _search(system: System, program, t, state: State, free, search: Callable = nearest_known):
    metric, x0 = _metric(system, program, t, state)
    left, n = np.zeros(0, state.q.dtype), state.v.size
    before, away = _distances(system, t, state)
    m, c = before.phi.size, before.phi_dot.size
    if program is not None:
        # Coordinates, velocities and actuator states at once.
        free = (np if are_known(free) else jnp).concatenate([free[:n], free])
        count = m + c + _left(program, t, state).size
        x = search(with_program, (system, program, t, state), count, metric, x0, free)
        out = separated(system, t, state, x)
        left = _left(program, t, out)
    else:
        free = free[: state.v.size]
        there = state
        # Where positions are consistent, there is nothing to compile but for velocities.
        if not (are_known(away, state) and _is_round_off(away[:m], state)):
            x = search(_position, (system, t, state), m, metric, x0, free)
            there = State(_coordinates(system, t, state, x), state.v, state.w)
        v = search(_velocity, (system, t, there), c, metric, state.v, free)
        out = State(there.q, v, state.w)
    after, _ = _distances(system, t, out)
    return out, _projection(state, out, before, after), left


def _position(system: System, t, state: State, x):
    return system.position_constraints(t, _coordinates(system, t, state, x))


def _velocity(system: System, t, state: State, v):
    return constraint_residuals(system, t, state.q, v).phi_dot


def _coordinates(system: System, t, state: State, x):
    """Coordinates: those searched for, or moved by them where velocities are not their rates."""
    return _moved(system, t, state.q, x) if has_rate(system) else x


_moved = jit(moved, options=BRIEFLY)


@jit(options=BRIEFLY)
def _metric(system: System, program, t, state: State):
    """The metric of a search, and where it begins."""
    mass, _ = mass_and_jacobian(system, t, state.q, state.v)
    position = jnp.zeros_like(state.v) if has_rate(system) else state.q
    if program is not None:
        begin = jnp.concatenate([position, state.v, state.w])
        return metric_of_all(mass, state.w.size), begin
    return mass, position


@jit(options=BRIEFLY)
def _left(program, t, state: State):
    return program(t, state.q, state.v, state.w)


def _projection(old: State, new: State, before: Violation, after: Violation) -> Projection:
    if not are_known(old, new):
        return Projection(new.q - old.q, new.v - old.v, before, after)
    # By NumPy, which compiles nothing.
    dq, dv = (np.asarray(b) - np.asarray(a) for a, b in ((old.q, new.q), (old.v, new.v)))
    return Projection(known_array(dq, dq.dtype), known_array(dv, dv.dtype), before, after)


def _required(out: State, residuals, size, tolerance: float, problem: Callable) -> State:
    """`out` if its residuals are small; an error, or NaN while tracing, if they are not."""
    known = are_known(residuals, size, tolerance)
    array = np if known else jnp
    limit = tolerance * (1 + array.max(array.abs(array.concatenate(size)), initial=0.0))
    good = array.all(array.abs(array.concatenate(residuals)) <= limit)
    if not known:
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
