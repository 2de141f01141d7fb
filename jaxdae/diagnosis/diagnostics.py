"""What a run that reached its end may have got wrong: singular positions, energy.

Rows of a run are surveyed by one small compiled program, in blocks of one size; what follows from
them is arithmetic, in NumPy for warnings and in JAX for values of members of a batch.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.control.base import control_input
from jaxdae.diagnosis import branches, incompatibility
from jaxdae.diagnosis.assumptions import start_rank
from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.passages import (
    AROUND,
    close_in,
    find_passages,
    lower_bounds,
    NEAR,
    near,
    Passage,
    RANK,
    rank_along,
    resolved,
    row_scales,
    Search,
)
from jaxdae.formulations.base import solves
from jaxdae.simulation.problem import default_tolerance, ROUND_OFF
from jaxdae.systems import constraint_residuals, generalized_energy, State
from jaxdae.systems.dynamics import has_reaction_forces
from jaxdae.systems.independence import unsatisfied
from jaxdae.systems.kinematics import coordinate_rate, has_rate, velocities_of

# Rows of a block: a default run is one, and places between rows are few.
_BLOCK, _FEW = 256, 64
# In how many intervals values of members of a batch are searched.
_INTERVALS = 4
# Near-singular positions, the lowest first, at which a run is asked for its branch.
_MOST_POSITIONS = 32
# Most operations that warnings may cost; the values can be had for any size.
_MOST_WORK = 5_000_000
# Errors of the energy below this part of its changes are not pointed out: where a tolerance or an
# integral of the work vouches for more, and where steps or weights are the user's choice.
_PRECISE, _COARSE = 1e-3, 5e-2
# Fewer rows than this say nothing about the work of forces between them.
_FEWEST_ROWS = 33
# A change of the power from row to row that is so many times that of its neighbours is a jump.
_JUMP = 4.0
# Below this part of the potential energy nothing moves.
_REST = 1e-3


class Row(NamedTuple):
    """What is read of one state.

    Args:
        jac: constraint Jacobian, shape `(c, n)`.
        energy: generalized energy [J].
        potential: potential energy [J].
        power: of all forces but the constraint reactions [W].
        residual: largest constraint residual, at both levels.
        offset: largest of `phi_dot - J v`, not zero where constraints do work; infinite where
            forces depend on the multipliers.
        slope: sum of `|dV/dq|`, energy by displacement.
    """

    jac: Any
    energy: Any
    potential: Any
    power: Any
    residual: Any
    offset: Any
    slope: Any


def read_row(system, controller, t, state) -> Row:
    """What the diagnostics need of one state."""
    q, v = state.q, state.v
    t = jnp.asarray(t, q.dtype)
    u = control_input(controller, t, state)
    residual = constraint_residuals(system, t, q, v)
    jac = _jacobian(system, t, q, v)
    dependent = has_reaction_forces(system, t, q, v, state.w, u)
    largest = lambda x: jnp.max(jnp.abs(x), initial=0.0)  # noqa: E731
    return Row(
        jac,
        generalized_energy(system, t, q, v),
        system.potential_energy(t, q),
        _power(system, t, state, u),
        jnp.maximum(largest(residual.phi), largest(residual.phi_dot)),
        jnp.asarray(jnp.inf, q.dtype) if dependent else largest(residual.phi_dot - jac @ v),
        jnp.sum(jnp.abs(jax.grad(system.potential_energy, argnums=1)(t, q))),
    )


def _power(system, t, state, u):
    """Power of forces, dissipation and explicit time, without the reactions."""
    q, v, w = state.q, state.v, state.w
    _, dissipated = jax.jvp(lambda v: system.dissipation(t, q, v), (v,), (v,))

    def lagrangian(t):
        return system.kinetic_energy(t, q, v) - system.potential_energy(t, q)

    _, explicit = jax.jvp(lagrangian, (t,), (jnp.ones_like(t),))
    return system.force(t, q, v, w, u) @ v - dissipated - explicit


# Run once or twice, as long as it compiles: no optimization.
_BRIEFLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


# One program for all formulations.
@jit(compiler_options=_BRIEFLY)
def _survey_block(system, controller, ts, states):
    return jax.vmap(lambda t, state: read_row(system, controller, t, state))(ts, states)


@jit(compiler_options=_BRIEFLY)
def _states_block(system, formulation, ts, ys):
    return jax.vmap(lambda t, y: formulation.recover(system, t, y))(ts, ys)


def _states(system, formulation, ts, ys):
    """`(q, v, w)` of rows, as NumPy arrays."""
    if formulation.capabilities.plain_state:
        return jax.device_get(ys)
    return _in_blocks(lambda t, y: _states_block(system, formulation, t, y), _BLOCK, ts, ys)


@jit(compiler_options=_BRIEFLY)
def _jacobians_block(system, ts, q, v):
    one = lambda t, q, v: _jacobian(system, t, q, velocities_of(system, t, q, v))  # noqa: E731
    return jax.vmap(one)(ts, q, v)


def _jacobian(system, t, q, v):
    return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)


def _in_blocks(function, size: int, *rows):
    """A compiled function of arrays of rows, in blocks of one shape, as NumPy arrays."""
    count = len(jax.tree.leaves(rows)[0])
    parts = []
    for i in range(0, count, size):
        take = np.minimum(np.arange(i, i + size), count - 1)
        parts.append(jax.device_get(function(*jax.tree.map(lambda x, k=take: x[k], rows))))
    joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return jax.tree.map(lambda x: x[:count], joined)


def least_singular_value(system, ts, states, held=None):
    """Least of the r-th singular values along a run, for `Trajectory.least_singular_value`.

    Args:
        system: the declaration.
        ts: times of the rows [s]; rows that were not reached have been replaced.
        states: `(q, v, w)` there.
        held: rank that the run held; by default the largest of the rows.
    """
    jac = jax.vmap(lambda t, s: _jacobian(system, t, s.q, s.v))(ts, states)
    count, c, n = jac.shape
    if min(c, n) == 0:
        return jnp.asarray(jnp.inf, ts.dtype)
    scales = row_scales(jnp, jac)
    every = jnp.linalg.svd(jac * scales, compute_uv=False)
    rank = jnp.max(jnp.sum(every > RANK * jnp.max(every), axis=1)) if held is None else held
    counted = jnp.arange(every.shape[1]) < rank
    least = lambda s: jnp.min(jnp.where(counted, s, jnp.inf), axis=-1)  # noqa: E731

    def values(t, q, v):
        one = lambda t, q, v: _jacobian(system, t, q, velocities_of(system, t, q, v))  # noqa: E731
        result = jax.vmap(one)(t, q, v)
        return least(jnp.linalg.svd(result * scales, compute_uv=False))

    rows = least(every)
    if count == 1:
        return rows[0]
    rates = jax.vmap(lambda t, s: coordinate_rate(system, t, s.q, s.v))(ts, states)
    known = resolved(jnp, ts, states.q, rates)
    bounds = jnp.where(known, lower_bounds(jnp, rows, jac * scales), jnp.inf)
    lowest = jnp.argsort(bounds)[:_INTERVALS]
    between, _ = close_in(Search(jnp, values, ts, states.q, rates), lowest)
    between = jnp.where(known[lowest], between, jnp.inf)
    return jnp.minimum(jnp.min(rows), jnp.min(between))


def energy_deviation(xp, ts, rows: Row, work=None):
    """Largest error of the energy balance [J], and what of it the quadrature may be.

    Args:
        xp: `numpy` or `jax.numpy`.
        ts: times [s], the start first.
        rows: of the run, the start first.
        work: integrated work there [J]; `None` for the trapezoidal rule on the power of the rows.

    Returns:
        The error, NaN where the work of the reactions is not known; and the difference between
        the rule with all rows and with every other one, beside what jumps of the power between two
        rows may add.
    """
    zero = xp.zeros_like(rows.energy[0])
    if work is not None:
        return xp.max(xp.abs(rows.energy - rows.energy[0] - work)), zero
    gained = _trapezoids(xp, ts, rows.power)
    coarse = _trapezoids(xp, ts[::2], rows.power[::2])
    error = xp.max(xp.abs(rows.energy - rows.energy[0] - gained))
    # Reactions that do work, or an inconsistent start, change the energy.
    round_off = float(jnp.finfo(rows.energy.dtype).eps) ** ROUND_OFF
    unknown = (xp.max(rows.offset) > round_off) | (rows.residual[0] > round_off)
    if ts.shape[0] < _FEWEST_ROWS:  # too few to tell the error of the rule
        unknown = unknown | (xp.max(xp.abs(rows.power)) > 0.0)
    return xp.where(unknown, xp.nan, error), xp.max(xp.abs(coarse - gained[::2])) + _jumps(
        xp, ts, rows.power
    )


def _jumps(xp, ts, power):
    """What the trapezoidal rule may be off by jumps of the power, of inputs that are switched."""
    change = xp.abs(power[1:] - power[:-1])
    if change.shape[0] < 2:
        return xp.zeros_like(ts[0])
    before = xp.concatenate([change[1:2], change[:-1]])
    behind = xp.concatenate([change[1:], change[-2:-1]])
    jumps = change > _JUMP * xp.maximum(before, behind)
    return 0.5 * xp.sum(xp.where(jumps, xp.abs(ts[1:] - ts[:-1]) * change, 0.0))


def _trapezoids(xp, ts, power):
    """Integrals from the first time to each."""
    each = 0.5 * (ts[1:] - ts[:-1]) * (power[1:] + power[:-1])
    return xp.concatenate([xp.zeros_like(power[:1]), xp.cumsum(each)])


def energy_error(system, controller, ts, states, work):
    """For `Trajectory.energy_error`: arguments as they stand there, the start first."""
    rows = jax.vmap(lambda t, s: read_row(system, controller, t, s))(ts, states)
    return energy_deviation(jnp, ts, rows, work)[0]


class Watched(NamedTuple):
    """Rows of a run that reached its end.

    Args:
        ts: times [s], the start first.
        ys: the formulation's own states there.
        work: integrated work there, or `None`.
        tolerance: of the step control, relative and absolute added; `None` for fixed steps.
        steps: their number.
    """

    ts: Any
    ys: Any
    work: Any
    tolerance: float | None
    steps: int


def rows_of(run, tolerance: float | None) -> Watched:
    """The rows by which a run is examined: what was watched, or the start and what was saved.

    Args:
        run: a `Trajectory` of plain states that reached its end; of a batch, one member.
        tolerance: of its step control, or `None`.
    """
    steps, work = int(run.stats["num_steps"]), None
    if run.watched is not None:
        ts, ys, work = jax.device_get(run.watched)
        work = None if work is None else np.sum(work, axis=0)
        return Watched(ts, ys, work, tolerance, steps)
    (t0, y0), ts, ys, work = jax.device_get((run.start, run.ts, run.saved, run.work_integrals))
    reached = np.flatnonzero(np.isfinite(ts))
    ts, ys = ts[reached], jax.tree.map(lambda x: x[reached], ys)
    work = None if work is None else np.sum(work, axis=0)[reached]
    if ts.size == 0 or ts[0] != t0:
        ts = np.concatenate([t0[None], ts])
        ys = jax.tree.map(lambda a, b: np.concatenate([a[None], b]), y0, ys)
        work = None if work is None else np.concatenate([[0.0], work])
    return Watched(ts, ys, work, tolerance, steps)


def tolerance_of(controller, dtype) -> float | None:
    """Relative and absolute tolerance of a step controller together; `None` where it has none."""
    if controller is None:
        return 2 * default_tolerance(dtype)
    values = [getattr(controller, name, None) for name in ("rtol", "atol")]
    if any(x is None for x in values):
        return None
    return sum(float(np.max(np.asarray(x))) for x in jax.tree.leaves(values))


def surveyed(system, formulation, controller, watched: Watched) -> tuple[Any, Row]:
    """States of a run that reached its end, and what is read of them, as NumPy arrays.

    Args:
        system: what was simulated.
        formulation: by which equations.
        controller: under which controller, or `None`.
        watched: rows of the run, from `rows_of`.
    """
    state = _states(system, formulation, watched.ts, watched.ys)
    survey = lambda t, state: _survey_block(system, controller, t, state)  # noqa: E731
    return state, _in_blocks(survey, _BLOCK, watched.ts, state)


def passages_of(
    system, formulation, watched: Watched, state, rows: Row
) -> tuple[list[Passage], float]:
    """Near-singular positions along rows and around them; see `passages_along`."""
    states = _with_rates(system, watched.ts, state)
    return passages_along(system, formulation, watched.ts, states, rows.jac, AROUND)


def warnings_of_rows(
    system,
    formulation,
    watched: Watched,
    state,
    rows: Row,
    passed: tuple[list[Passage], float],
) -> list[Finding | None]:
    """What to warn of after a run that reached its end.

    Args:
        system: what was simulated.
        formulation: by which equations.
        watched: rows of the run, from `rows_of`.
        state: states there, `(q, v, w)`.
        rows: from `read_row`, all as NumPy arrays; see `surveyed`.
        passed: from `passages_of`.
    """
    balance = _of_energy(formulation, watched, rows)
    state = _with_rates(system, watched.ts, state)
    # The tolerance and the balance of energy vouch for a run that stayed on its branch.
    exact = watched.tolerance is not None and formulation.capabilities.weight is None
    vouched = exact and balance.holds
    return [
        _of_compatibility(system, formulation, watched.ts, state, rows),
        _of_positions(system, formulation, watched.ts, state, rows.jac, passed, vouched=vouched),
        balance.finding,
    ]


def _of_positions(system, formulation, ts, states, jac, passed, *, vouched: bool) -> Finding | None:
    """What a run made of near-singular positions; `None` where nothing is wrong.

    Args:
        system: what was simulated.
        formulation: by which equations.
        ts: times of the rows [s].
        states: states there.
        jac: constraint Jacobians there.
        passed: from `passages_along`, those `AROUND` as well.
        vouched: whether a run that stayed on its branch is right.
    """
    passages, typical = passed
    lowest = sorted(passages, key=lambda x: x.value)[:_MOST_POSITIONS]
    made = _crossings(system, formulation, ts, states, jac, lowest)
    for one in made:
        if one is not None and one.kept is False:
            return branches.other_branch(system, formulation, one)
    if not formulation.capabilities.passes_singular_positions:
        kept = {x.time for x in made if x is not None and x.kept}
        left = [x for x in near(passages, typical) if not (vouched and x.time in kept)]
        return passages_found(formulation, left, typical)
    for one in made:
        if one is not None and one.distance > 0:
            faded = branches.faded_reactions(system, formulation, one)
            if faded is not None:
                return faded
    return None


def _crossings(system, formulation, ts, states, jac, passages: list[Passage]) -> list:
    """What a run made of each of some positions; `None` where that is not known."""
    count = len(states.q)
    m = (
        0
        if not passages
        else eqx.filter_eval_shape(
            system.position_constraints, jnp.zeros((), states.q.dtype), jnp.asarray(states.q[0])
        ).shape[0]
    )
    if m == 0 or count < 2:
        return [None] * len(passages)
    positions = jac[:, :m]
    scales = row_scales(np, positions)
    held = _held(system, formulation, ts, states) if m == jac.shape[1] else None
    rank = rank_along(np.linalg.svd(positions * scales, compute_uv=False)) if held is None else held
    return [branches.crossing(system, x, ts, states, scales[:, 0], int(rank)) for x in passages]


def _held(system, formulation, ts, states) -> int | None:
    """The rank that a run held, or that of its start where constraints depend on each other."""
    held = next((x.held_rank for x in solves(formulation)), None)
    if held is not None:
        return int(held)
    if formulation.capabilities.independent_constraints:
        return None  # a start where they are not would have been refused
    q = jnp.asarray(states.q[0])
    t = jnp.asarray(ts[0], q.dtype)
    v = velocities_of(system, t, q, jnp.asarray(states.v[0]))
    start = start_rank(system, t, State(q, v))
    return start.rank if start.dependent and start.regular else None


def _of_compatibility(system, formulation, ts, states, rows: Row) -> Finding | None:
    """Constraints that contradict each other; `None` where they do not."""
    jac = rows.jac
    count, c, n = jac.shape
    if not 0 < count * c * c * n <= _MOST_WORK or not formulation.capabilities.enforces_constraints:
        return None
    remaining = lambda *x: _in_blocks(lambda *y: _remaining_block(system, *y), _BLOCK, *x)  # noqa: E731
    found = incompatibility.find_incompatibility(remaining, ts, states, jac, rows.residual)
    if found is None:
        return None
    return incompatibility.finding_of(system, found, found.residuals.size - c)


@jit(compiler_options=_BRIEFLY)
def _remaining_block(system, ts, q, v):
    def one(t, q, v):
        result = unsatisfied(system, t, State(q, velocities_of(system, t, q, v)))
        return result.phi, result.phi_dot

    return jax.vmap(one)(ts, q, v)


def passages_along(
    system, formulation, ts, states, jac=None, part: float = NEAR
) -> tuple[list[Passage], float]:
    """Near-singular positions passed, and the median of the least singular value.

    Args:
        system: what was simulated.
        formulation: by which equations.
        ts: times of the rows [s], the start first.
        states: coordinates `q`, and as `v` their rates.
        jac: constraint Jacobians there, where they are known.
        part: of the median below which the least singular value counts as one.
    """
    values = _ThroughBlocks(system)
    jac = values(ts, states.q, states.v) if jac is None else jac
    count, c, n = jac.shape
    if not 0 < count * c * c * n <= _MOST_WORK:
        return [], np.inf
    held = _held(system, formulation, ts, states)
    return find_passages(values, ts, states, jac, held, part)


def _with_rates(system, ts, states):
    """Rows with rates of coordinates in place of velocities, for curves between them."""
    if not has_rate(system):
        return states
    rates = _in_blocks(partial(_rates_block, system), _BLOCK, ts, states.q, states.v)
    return SimpleNamespace(q=states.q, v=rates)


@jit(compiler_options=_BRIEFLY)
def _rates_block(system, ts, q, v):
    return jax.vmap(lambda t, q, v: coordinate_rate(system, t, q, v))(ts, q, v)


class _ThroughBlocks:
    """Jacobians between rows, in blocks."""

    def __init__(self, system):
        self.system = system

    def __call__(self, t, q, v):
        return _in_blocks(lambda *x: _jacobians_block(self.system, *x), _FEW, t, q, v)


def passages_found(formulation, passages: list[Passage], typical: float) -> Finding | None:
    """Near-singular positions that a formulation is not made for; `None` without any."""
    if not passages:
        return None
    least = min(passages, key=lambda x: x.value)
    times = ", ".join(f"{x.time:.6g}" for x in passages[:5]) + (", …" if len(passages) > 5 else "")
    message = (
        f"the run passed {len(passages)} near-singular position(s), at t = {times} s: the least "
        f"singular value of the constraint Jacobian, rows scaled by their largest length, fell to "
        f"{least.value:.3g} at t = {least.time:.6g} s (median {typical:.3g}). There multipliers "
        f"grow without bound, and {type(formulation).__name__} may lose the branch or the energy "
        "without a sign of it in the residuals: use Multipliers(..., solve=SingularityRobust())."
    )
    return Finding(message, least.value, least.time)


def balance_is_known(formulation, work) -> bool:
    """Whether the energy balance can be had: of realizing forces only by the integrated work."""
    return work is not None or formulation.capabilities.enforces_constraints


class _Balance(NamedTuple):
    """Whether the balance of energy is known to hold, and what is wrong with it."""

    holds: bool
    finding: Finding | None = None


def _of_energy(formulation, watched: Watched, rows: Row) -> _Balance:
    """The balance of energy along a run."""
    if not balance_is_known(formulation, watched.work):
        return _Balance(holds=False)
    error, quadrature = energy_deviation(np, np.asarray(watched.ts), rows, watched.work)
    if not np.isfinite(error):
        return _Balance(holds=False)
    moved = np.abs(rows.energy - rows.potential).max() + np.ptp(rows.potential)
    scale = float(max(moved, _REST * np.abs(rows.potential).max()))
    exact = watched.tolerance is not None and formulation.capabilities.weight is None
    part = _PRECISE if exact or watched.work is not None else _COARSE
    part = part if watched.tolerance is not None else _COARSE
    part = max(part, watched.steps * (watched.tolerance or 0.0))
    # Near rest it is the absolute tolerance of displacements that makes the error.
    least = float(jnp.finfo(rows.energy.dtype).eps) ** 0.5
    displaced = float(rows.slope.max()) * watched.steps * (watched.tolerance or least)
    explained = part * scale + displaced
    if error <= explained + 2 * float(quadrature):
        return _Balance(holds=True)
    message = (
        f"the energy balance is off by {float(error):.3g} J, {100 * float(error) / scale:.3g} % of "
        f"the {scale:.3g} J that the motion exchanges; its tolerance and steps explain up to "
        f"{explained:.2g} J. Take a smaller tolerance or step; at singular positions use "
        "Multipliers(..., solve=SingularityRobust()); see plot_energy(run, work=True)."
    )
    return _Balance(holds=False, finding=Finding(message, float(error)))
