"""A run is examined: its failure, or what may be wrong with it.

Rows of a run are surveyed by one small compiled program, in blocks of one size; what follows from
them is arithmetic, in NumPy for findings and in JAX for values of members of a batch.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import capabilities_of, control_input
from jaxdae.diagnosis import branches, events, failure
from jaxdae.diagnosis.backward import growth_along
from jaxdae.diagnosis.findings import Finding, Findings, NearSingularity
from jaxdae.diagnosis.preconditions import rest_along
from jaxdae.diagnosis.singularities import (
    AROUND,
    as_numpy,
    BLOCK,
    held_by,
    in_blocks,
    incompatibility,
    jacobian_at,
    MOST_SEARCHED,
    MOST_WORK,
    NEAR,
    near,
    near_singularities_along,
    rank_along,
    row_scales,
    search_cost,
    singularity_finding,
)
from jaxdae.diagnosis.starts import changed_rank
from jaxdae.diagnosis.steps import limited_by_stability, unsolved_steps, unstable_steps
from jaxdae.formulations.base import says_nothing, solves
from jaxdae.memory import Memory
from jaxdae.simulation.problem import default_tolerance, Method, Problem, ROUND_OFF
from jaxdae.simulation.saving import is_plain
from jaxdae.solvers.grid import known_ends
from jaxdae.systems import constraint_residuals
from jaxdae.systems.dynamics import has_reaction_forces
from jaxdae.systems.kinematics import coordinate_rate, has_rate

# Near-singular positions, the lowest first, at which a run is asked for its branch.
_MOST_POSITIONS = 32
# Errors of the energy below this part of its changes are not pointed out: where a tolerance or an
# integral of the work vouches for more, and where steps or weights are the user's choice.
_PRECISE, _COARSE = 1e-3, 5e-2
# Fewer rows than this say nothing about the work of forces between them.
_FEWEST_ROWS = 33
# A change of the power from row to row that is so many times that of its neighbours is a jump.
_JUMP = 4.0
# Rows follow a motion that changes by less than this part otherwise than their rates say.
_FOLLOWED = 0.1
# Below this part of the potential energy nothing moves.
_REST = 1e-3


def diagnose(problem: Problem, method: Method, trajectory: Any, *, rows: bool = True) -> Findings:
    """What there is to say of a run.

    Args:
        problem: what was simulated, of known numbers.
        method: how.
        trajectory: the `Trajectory` of a single run.
        rows: whether its rows are read, for near-singular positions, contradicting constraints, the
            balance of energy and growth backward in time. Without it only what formulation and
            controller say, and the rank.

    Returns:
        `Findings`; of a run that failed only why.
    """
    if not bool(trajectory.success):
        message = failure.describe_failure(trajectory, method.solver, method.stepsize_controller)
        if failure.used_up_its_steps(trajectory) and trajectory.plain:
            # Which of the causes it was that the report can only list.
            examined = _with_last(rows_of(trajectory, _tolerance(problem, method)), trajectory)
            why = limited_by_stability(problem, method, trajectory, examined)
            message = message if why is None else f"{message} There, {why.message}"
        more = (
            changed_rank(problem.formulation, trajectory),
            unsolved_steps(trajectory.stats, method.solver, failed=True),
        )
        message = " ".join([message, *(_sentence(x.message) for x in more if x is not None)])
        passable = failure.may_be_passed(message)
        return Findings(Finding(message, time=float(trajectory.final_time), passable=passable))
    known = lambda found: tuple(x for x in found if x is not None)  # noqa: E731
    # The parts of the trajectory are the same, put together anew.
    system, formulation, controller = problem.parts
    found = [failure.review(system, formulation, trajectory), changed_rank(formulation, trajectory)]
    found.append(unsolved_steps(trajectory.stats, method.solver))
    if problem.times.grid is not None:  # an adaptive run stops at a singularity
        found.append(failure.review_controller(controller, trajectory))
    if not (rows and trajectory.plain):
        return Findings(warnings=known(found))
    found.append(rest_along(trajectory))
    examined, happened = rows_of(trajectory, _tolerance(problem, method)), trajectory.events
    found.append(limited_by_stability(problem, method, trajectory, examined))
    if happened is None:
        result, _ = _of_rows(problem, method, examined)
        return result._replace(warnings=known([*found, *result.warnings]))
    pieces = events.segments(examined.ts, examined.ys, examined.work, happened)
    found += events.findings(
        problem._replace(formulation=trajectory.formulation), trajectory, pieces
    )
    each = [
        _of_rows(problem, method, examined._replace(ts=x.ts, ys=x.ys, work=x.work)) for x in pieces
    ]
    parts, energies = [x for x, _ in each], [x for _, x in each]
    # The same is wrong with more than one of them, more often than not.
    found += next((x.warnings for x in parts if x.warnings), ())
    positions = tuple(y for x in parts for y in x.near_singularities)
    if not parts:
        return Findings(None, known(found))
    residual, energy = max(x.residual or 0.0 for x in parts), np.concatenate(energies)
    change = float(np.abs(energy - energy[0]).max())
    searched = all(x.searched for x in parts)
    return Findings(None, known(found), positions, residual, change, searched)


def says_more(problem: Problem, method: Method) -> bool:
    """Whether there may be something to say of a run that reached its end without reading rows."""
    formulation, controller = problem.formulation, problem.controller
    plain, held = is_plain(method.saveat), solves(formulation)
    return plain and (
        formulation.examination.review is not says_nothing
        or capabilities_of(controller).review is not says_nothing
        or any(x.asks_for_rank or x.held_rank is not None for x in held)
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_rows(problem: Problem, method: Method, examined: "ExaminedRows") -> tuple[Findings, Any]:
    """What there is to say of rows along which the motion is smooth, and energies there [J]."""
    system, formulation, controller = problem.parts
    found = []
    ts, state = examined.ts, _states(system, formulation, examined.ts, examined.ys)
    survey = _survey(system, controller, ts, state)
    # Rates of coordinates in place of velocities, for curves between rows.
    rates = state
    if has_rate(system):
        v = in_blocks(partial(_rates_block, system), BLOCK, ts, state.q, state.v)
        rates = SimpleNamespace(q=state.q, v=v)
    cost = search_cost(survey.jac.shape)
    # Whether a run stayed on its branch is too much to ask of a large mechanism.
    part = AROUND if cost <= MOST_WORK else NEAR
    passed = near_singularities_along(system, formulation, ts, rates, survey.jac, part)
    balanced, unbalanced = _of_energy(formulation, examined, survey, rates)
    # The tolerance and the balance of energy vouch for a run that stayed on its branch.
    exact = examined.tolerance is not None and formulation.capabilities.weight is None
    vouched = exact and balanced
    if formulation.capabilities.enforces_constraints:
        found.append(incompatibility(system, ts, rates, survey.jac, survey.residual))
    found += [
        _of_positions(
            system, formulation, ts, rates, survey.jac, passed, vouched=vouched, asked=part > NEAR
        ),
        unbalanced,
        unstable_steps(problem, method, examined, survey.energy),
        growth_along(*problem.parts, ts, state),
    ]
    change = np.abs(survey.energy - survey.energy[0]).max()
    warnings = tuple(x for x in found if x is not None)
    residual = float(survey.residual.max())
    positions = tuple(near(*passed))
    searched = cost <= MOST_SEARCHED
    result = Findings(None, warnings, positions, residual, float(change), searched)
    return result, survey.energy


def _tolerance(problem: Problem, method: Method) -> float | None:
    """Of the step control, relative and absolute together; `None` for fixed steps or without."""
    asked, times = known_ends(method.stepsize_controller).controller, problem.times
    fixed = times.grid is not None or (asked is None and times.first_step is not None)
    if fixed or isinstance(asked, diffrax.ConstantStepSize):
        return None
    if asked is None:
        return 2 * default_tolerance(problem.state.q.dtype)
    values = [getattr(asked, name, None) for name in ("rtol", "atol")]
    if any(x is None for x in values):
        return None
    return sum(float(np.max(np.asarray(x))) for x in jax.tree.leaves(values))


class ExaminedRows(NamedTuple):
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


def rows_of(run, tolerance: float | None) -> ExaminedRows:
    """Rows that examine a run: those that monitor it, or the start and what was saved."""
    steps, work = int(run.stats["num_steps"]), None
    if run.monitored is not None:
        ts, ys, work = as_numpy(run.monitored)
        # Rows behind an event that ended the run, or a failure, are not reached.
        reached = np.flatnonzero(np.isfinite(ts))
        ts, ys = ts[reached], jax.tree.map(lambda x: x[reached], ys)
        work = None if work is None else np.sum(work, axis=0)[reached]
        return ExaminedRows(ts, ys, work, tolerance, steps)
    (t0, y0), ts, ys, work = as_numpy((run.start, run.ts, run.saved, run.work_integrals))
    reached = np.flatnonzero(np.isfinite(ts))
    ts, ys = ts[reached], jax.tree.map(lambda x: x[reached], ys)
    work = None if work is None else np.sum(work, axis=0)[reached]
    if ts.size == 0 or ts[0] != t0:
        ts = np.concatenate([t0[None], ts])
        ys = jax.tree.map(lambda a, b: np.concatenate([a[None], b]), y0, ys)
        work = None if work is None else np.concatenate([[0.0], work])
    return ExaminedRows(ts, ys, work, tolerance, steps)


def _with_last(examined: ExaminedRows, run) -> ExaminedRows:
    """Rows of a run that failed, and the last state that it reached."""
    t, y = jax.device_get((run.final_time, run.final))
    ts = np.append(examined.ts, t)
    ys = jax.tree.map(lambda a, b: np.concatenate([a, b[None]]), examined.ys, y)
    return examined._replace(ts=ts, ys=ys)


class SurveyedRow(NamedTuple):
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


def read_row(system, controller, t, state) -> SurveyedRow:
    """What the diagnostics need of one state."""
    q, v = state.q, state.v
    t = jnp.asarray(t, q.dtype)
    w, u = state.w, control_input(controller, t, state)
    residual = constraint_residuals(system, t, q, v)
    jac = jacobian_at(system, t, q, v)
    dependent = has_reaction_forces(system, t, q, v, w, u)
    largest = lambda x: jnp.max(jnp.abs(x), initial=0.0)  # noqa: E731
    # Energies are traced once each, for all that is asked of them.
    kinetic, by_time_and_speed = jax.linearize(lambda t, v: system.kinetic_energy(t, q, v), t, v)
    along = by_time_and_speed(jnp.zeros_like(t), v)
    potential, (of_time, slope) = jax.value_and_grad(system.potential_energy, argnums=(0, 1))(t, q)
    explicit = by_time_and_speed(jnp.ones_like(t), jnp.zeros_like(v)) - of_time
    _, dissipated = jax.jvp(lambda v: system.dissipation(t, q, v), (v,), (v,))
    return SurveyedRow(
        jac,
        along - kinetic + potential,  # generalized_energy
        potential,
        system.force(t, q, v, w, u) @ v - dissipated - explicit,
        jnp.maximum(largest(residual.phi), largest(residual.phi_dot)),
        jnp.asarray(jnp.inf, q.dtype) if dependent else largest(residual.phi_dot - jac @ v),
        jnp.sum(jnp.abs(slope)),
    )


def _survey(system, controller, ts, state) -> SurveyedRow:
    """Rows read, each array with an axis of times."""

    def block(*at):
        """The program, by the identity of what is declared, where that cannot be changed."""
        declared, arrays = jax.tree.leaves((system, controller)), jax.tree.leaves(at)
        if any(isinstance(x, np.ndarray) and x.flags.writeable for x in declared):
            return _survey_block(system, controller, *at)
        make = lambda: ((system, controller), _survey_block.bind(system, controller, *at))  # noqa: E731
        key = id(system), id(controller), *((x.shape, x.dtype) for x in arrays)
        return _SURVEYS.get(key, None, make)[1](*arrays)

    columns = in_blocks(block, BLOCK, ts, state)
    jac = columns[:, :-6].reshape(len(columns), -1, state.v.shape[1])
    return SurveyedRow(jac, *columns[:, -6:].T)


# Of the last systems and controllers, which an entry keeps alive.
_SURVEYS = Memory(16)


# One program for all formulations; one array of it is read, not seven.
@jit(options=BRIEFLY, interpreted=2)
def _survey_block(system, controller, ts, states):
    rows = jax.vmap(lambda t, state: read_row(system, controller, t, state))(ts, states)
    columns = jnp.stack(rows[1:], axis=1)
    return jnp.concatenate([rows.jac.reshape(len(ts), -1), columns], axis=1)


@jit(options=BRIEFLY, interpreted=2)
def _states_block(system, formulation, ts, ys):
    return jax.vmap(lambda t, y: formulation.recover(system, t, y))(ts, ys)


def _states(system, formulation, ts, ys):
    """`(q, v, w)` of rows, as NumPy arrays."""
    if formulation.capabilities.plain_state:
        return as_numpy(ys)
    return in_blocks(lambda t, y: _states_block(system, formulation, t, y), BLOCK, ts, ys)


@jit(options=BRIEFLY, interpreted=2)
def _rates_block(system, ts, q, v):
    return jax.vmap(lambda t, q, v: coordinate_rate(system, t, q, v))(ts, q, v)


def _of_positions(
    system, formulation, ts, states, jac, passed, *, vouched: bool, asked: bool
) -> Finding | None:
    """What a run made of near-singular positions; `None` where nothing is wrong.

    `passed` are those of `near_singularities_along`, `AROUND` them as well; a run is `vouched` for
    that is right where it stayed on its branch, which is `asked` of it or not.
    """
    singularities, typical = passed
    lowest = sorted(singularities, key=lambda x: x.value)[: _MOST_POSITIONS if asked else 0]
    made = _crossings(system, formulation, ts, states, jac, lowest)
    for one in made:
        if one is not None and one.kept is False:
            return branches.other_branch(system, formulation, one)
    if not formulation.capabilities.passes_singular_positions:
        kept = {x.time for x in made if x is not None and x.kept}
        left = [x for x in near(singularities, typical) if not (vouched and x.time in kept)]
        return singularity_finding(formulation, left, typical)
    for one in made:
        if one is not None and one.distance > 0:
            faded = branches.faded_reactions(system, formulation, one)
            if faded is not None:
                return faded
    return None


def _crossings(system, formulation, ts, states, jac, near: list[NearSingularity]) -> list:
    """What a run made of each of some positions; `None` where that is not known."""
    count = len(states.q)
    m = (
        0
        if not near
        else eqx.filter_eval_shape(
            system.position_constraints, jnp.zeros((), states.q.dtype), jnp.asarray(states.q[0])
        ).shape[0]
    )
    if m == 0 or count < 2:
        return [None] * len(near)
    positions = jac[:, :m]
    scales = row_scales(np, positions)
    held = held_by(system, formulation, ts, states) if m == jac.shape[1] else None
    rank = rank_along(np.linalg.svd(positions * scales, compute_uv=False)) if held is None else held
    return [branches.crossing(system, x, ts, states, scales[:, 0], int(rank)) for x in near]


def energy_deviation(xp, ts, rows: SurveyedRow, work=None):
    """Largest error of the energy balance [J], and what of it the quadrature may be.

    The work is integrated, or by the trapezoidal rule on the power of the rows. The error is NaN
    where the work of the reactions is not known; the other number is the difference between the
    rule with all rows and with every other one, beside what jumps of the power between two rows may
    add.
    """
    zero = xp.zeros_like(rows.energy[0])
    if work is not None:
        return xp.max(xp.abs(rows.energy - rows.energy[0] - (work - work[0]))), zero
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


def energy_error(system, controller, ts, states, work, changes):
    """For `Trajectory.energy_error`: arguments as they stand there, the start first.

    `changes` are those of the energy by resets of events before each row [J].
    """
    rows = jax.vmap(lambda t, s: read_row(system, controller, t, s))(ts, states)
    rows = rows._replace(energy=rows.energy - changes)
    return energy_deviation(jnp, ts, rows, work)[0]


def balance_is_known(formulation, work) -> bool:
    """Whether the energy balance can be had: of realizing forces only by the integrated work."""
    return work is not None or formulation.capabilities.enforces_constraints


def _unresolved(ts, rates, rows: SurveyedRow) -> float:
    """Error of the balance in times in which rows do not follow the motion [J].

    Coordinates have then changed by other than the mean of their rates at both ends: a motion that
    begins and comes to rest between two rows has no power at any.
    """
    steps = ts[1:] - ts[:-1]
    moved, rate = rates.q[1:] - rates.q[:-1], 0.5 * (rates.v[1:] + rates.v[:-1])
    off = np.linalg.norm(moved - steps[:, None] * rate, axis=1)
    lost = off > _FOLLOWED * np.linalg.norm(moved, axis=1)
    gained = 0.5 * steps * (rows.power[1:] + rows.power[:-1])
    return float(np.abs(rows.energy[1:] - rows.energy[:-1] - gained)[lost].sum())


_REMEDY = (
    "Take a smaller tolerance or step; at singular positions use Multipliers(..., "
    "solve=SingularityRobust())"
)
_OF_MASS = (
    "Violations of constraints with a mass have energy themselves: stabilize them or take a larger "
    "alpha, else a smaller tolerance or step"
)


def _of_energy(
    formulation, examined: ExaminedRows, rows: SurveyedRow, rates
) -> tuple[bool, Finding | None]:
    """Whether the balance of energy is known to hold along a run, and what is wrong with it."""
    if not balance_is_known(formulation, examined.work):
        return False, None
    ts = np.asarray(examined.ts)
    error, quadrature = energy_deviation(np, ts, rows, examined.work)
    if not np.isfinite(error):
        return False, None
    if examined.work is None:
        quadrature += _unresolved(ts, rates, rows)
    moved = np.abs(rows.energy - rows.potential).max() + np.ptp(rows.potential)
    scale = float(max(moved, _REST * np.abs(rows.potential).max()))
    exact = examined.tolerance is not None and formulation.capabilities.weight is None
    part = _PRECISE if exact or examined.work is not None else _COARSE
    part = part if examined.tolerance is not None else _COARSE
    part = max(part, examined.steps * (examined.tolerance or 0.0))
    # Near rest it is the absolute tolerance of displacements that makes the error.
    least = float(jnp.finfo(rows.energy.dtype).eps) ** 0.5
    displaced = float(rows.slope.max()) * examined.steps * (examined.tolerance or least)
    explained = part * scale + displaced
    if error <= explained + 2 * float(quadrature):
        return True, None
    message = (
        f"the energy balance is off by {float(error):.3g} J, {100 * float(error) / scale:.3g} % of "
        f"the {scale:.3g} J that the motion exchanges; its tolerance and steps explain up to "
        f"{explained:.2g} J. {_REMEDY if formulation.capabilities.weight is None else _OF_MASS}; "
        "see plot_energy(run, work=True)."
    )
    return False, Finding(message, float(error), subject="energy")
