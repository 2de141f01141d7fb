"""What the runs behind a function say of its gradient: findings, rank, events, growth."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import control_input
from jaxdae.diagnosis.diagnose import diagnose, rows_of
from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.observation import has_tolerance, SeenRun
from jaxdae.reprs import shown
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.problem import default_tolerance
from jaxdae.solvers.grid import known_ends
from jaxdae.systems import ConsistencyError, consistent_state, constraint_residuals, State
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.kinematics import coordinate_rate

# Runs of a batch that are examined by their rows, and rows at which ranks are computed.
MOST_RUNS, _ROWS = 16, 33
# Singular values below this part of the largest one are those of dependent constraints.
_DEPENDENT = 1e-9
# A number that stays below this part of the largest has no size of its own.
_NEXT_TO_ZERO = 1e-3
# Of the acceleration of constraints by their curvature: what stabilizations may leave of it.
LEFT = 0.05


class Growth(NamedTuple):
    """How perturbations grow along a motion.

    Attributes:
        digits_lost: decimal digits by which a small perturbation of the start grows at most,
            relative to the largest values of each coordinate and velocity; 0 where it falls.
        rate: exponent of the growth [1/s], of the line through its logarithms over the second half
            of the time; `nan` where that is not known.
        horizon: time [s] from the start within which at most half of the digits of the precision
            are lost; the duration of the run where no more are.
        digits: of the precision.
    """

    digits_lost: float
    rate: float
    horizon: float
    digits: float

    def __repr__(self) -> str:
        return shown(self)


class RankMargin(NamedTuple):
    """The least singular value of the constraints that are independent, by the largest one.

    Attributes:
        value: rows of the Jacobian are scaled by their largest lengths along the run.
        time: when [s].
    """

    value: float
    time: float


class EventSequence(NamedTuple):
    """Events of all runs of a function.

    Attributes:
        names: of each run in turn.
        times: of the same [s].
    """

    names: tuple[tuple[str, ...], ...]
    times: tuple[tuple[float, ...], ...]

    @property
    def gap(self) -> float:
        """The least time between two events of one run that follow each other [s]."""
        gaps = [np.abs(np.diff(x)).min() for x in self.times if len(x) > 1]
        return float(min(gaps, default=np.inf))

    def described(self) -> str:
        """The events of the first run that has some, in words."""
        for names, times in zip(self.names, self.times, strict=True):
            if names:
                pairs = list(zip(names, times, strict=True))
                words = [f"{name!r} at {t:.6g} s" for name, t in pairs[:4]]
                return ", ".join(words) + (", …" if len(pairs) > 4 else "")
        return "none"


def tolerance_of(runs: Sequence[SeenRun]) -> float | None:
    """The largest relative tolerance of adaptive steps; `None` where all steps are fixed."""
    found = []
    for run in runs:
        method, times = run.method, run.problem.times
        if times.grid is not None or (method.stepsize_controller is None and times.first_step):
            continue
        control = known_ends(method.stepsize_controller).controller
        if control is None:
            found.append(default_tolerance(times.start.dtype))
        elif has_tolerance(control):
            found.append(float(np.max(np.asarray(control.rtol))))
    return max(found, default=None)


def first_failure(runs: Sequence[SeenRun]) -> str | None:
    """Why the first run that did not reach its end failed, in words."""
    for run in runs:
        if not bool(run.trajectory.success):
            return _found(run)[0]
    return None


def findings(runs: Sequence[SeenRun]) -> list[Finding]:
    """What may be wrong with runs that reached their ends, each thing once."""
    kept: dict[str, Finding] = {}
    for run in runs[:MOST_RUNS]:
        weighted = False
        found = [*_found(run)[1]]
        if not isinstance(run.problem, DAEProblem):
            # With a constraint mass the equations of motion are regular at singular positions.
            weighted = run.trajectory.formulation.capabilities.weight is not None
            found += _off_start(run)
        for one in found:
            if one.subject != "effort" and not (weighted and one.subject == "rank"):
                kept.setdefault(one.message.split(":")[0], one)
    return [*kept.values()]


def _off_start(run: SeenRun) -> list[Finding]:
    """A start that is off the constraints by more than was asked for."""
    system, state = run.problem.system, run.problem.state
    if run.start_tolerance is None:
        return []
    t = jnp.asarray(run.problem.times.start)
    sizes = map(jnp.abs, jax.tree.leaves(constraint_residuals(system, t, state.q, state.v)))
    largest = max((float(jnp.max(x)) for x in sizes if x.size), default=0.0)
    size = 1 + max(float(jnp.max(jnp.abs(x))) for x in (state.q, state.v))
    if not largest > run.start_tolerance * size:
        return []
    message = (
        f"the start is off the constraints by {largest:.3g}, where {run.start_tolerance * size:.1g}"
        " is allowed: compute it from the parameters, jaxdae.consistent_state(system, q, v)."
    )
    return [Finding(message, largest, float(t), subject="constraints")]


def _found(run: SeenRun) -> tuple[str | None, tuple[Finding, ...]]:
    """The failure of a run, and its findings."""
    if isinstance(run.problem, DAEProblem):
        from jaxdae.dae_runs import findings_of  # loads the methods of these equations

        failure, found = findings_of(run.problem, run.method, run.trajectory)
        return failure, found
    found = diagnose(run.problem, run.method, run.trajectory)
    return None if found.failure is None else found.failure.message, found.warnings


def residual(runs: Sequence[SeenRun]) -> float | None:
    """The largest constraint residual of runs; `None` without constraints."""
    found = []
    for run in _mechanical(runs):
        reached = np.isfinite(np.asarray(run.trajectory.ts))
        for level in jax.tree.leaves(run.trajectory.violation):
            sizes = np.abs(np.asarray(level))[reached]
            found += [float(sizes.max())] if sizes.size else []
    return max(found, default=None)


def rank_margin(runs: Sequence[SeenRun]) -> RankMargin | None:
    """How far the constraints are from losing rank; `None` without constraints."""
    found = []
    for run in _mechanical(runs):
        ts, ys = _rows(run)
        if ys is None or not sum(constraint_counts(run.problem.system, run.problem.state)):
            continue
        picked = np.unique(np.linspace(0, len(ts) - 1, _ROWS).round().astype(int))
        ts, ys = ts[picked], jax.tree.map(lambda x, i=picked: x[i], ys)
        parts = run.problem.system, run.trajectory.formulation
        jac = np.asarray(_jacobians(*parts, jnp.asarray(ts), jax.tree.map(jnp.asarray, ys)))
        lengths = np.linalg.norm(jac, axis=2).max(axis=0)
        jac = jac / np.where(lengths > 0, lengths, 1.0)[:, None]
        values = np.linalg.svd(jac, compute_uv=False)
        ratios = values / np.maximum(values[:, :1], np.finfo(float).tiny)
        rank = int((ratios > _DEPENDENT).sum(axis=1).max())
        if rank:
            least = int(np.argmin(ratios[:, rank - 1]))
            found.append(RankMargin(float(ratios[least, rank - 1]), float(ts[least])))
    return min(found, default=None)


def events_of(runs: Sequence[SeenRun]) -> EventSequence:
    """Events of runs, in an order that does not depend on that in which runs were seen."""
    sequences = []
    for run in runs:
        events = run.trajectory.events
        if events is None:
            sequences.append(((), ()))
            continue
        count = len(events)
        names = tuple(events.names[int(i)] for i in events.indices[:count])
        sequences.append((names, tuple(float(t) for t in events.times[:count])))
    sequences.sort()
    return EventSequence(*zip(*sequences, strict=True)) if sequences else EventSequence((), ())


def growth(run: SeenRun, again: Callable[[Any, Any], Any]) -> Growth | None:
    """How a perturbation of the start grows, by a second run beside the first.

    The perturbation is the 2/3 power of the round-off, so that round-off is small beside it and it
    can grow by far more than half of the digits. A difference of two runs passes events and knows
    nothing of derivatives.

    Args:
        run: the first.
        again: `again(problem, method)` makes a run.

    Returns:
        `Growth`; `None` where rows of the two runs are not at the same times.
    """
    ts, ys = _rows(run)
    if ys is None or len(ts) < 3:
        return None
    state, epsilon = run.problem.state, float(jnp.finfo(run.problem.state.q.dtype).eps)
    size = epsilon ** (2 / 3)
    scales = _sizes(jax.tree.leaves(run.trajectory.states))
    random = np.random.default_rng(0)
    leaves, structure = jax.tree.flatten(state)
    moved = []
    for x, scale in zip(leaves, scales, strict=True):
        typical = np.where(scale > 0, scale, epsilon)
        signs = random.choice([-1.0, 1.0], x.shape)
        moved.append(jnp.asarray(np.asarray(x) + size * typical * signs, x.dtype))
    other = again(run.problem._replace(state=structure.unflatten(moved)), run.method)
    ts_other, ys_other = _rows(run._replace(trajectory=other))
    if ys_other is None or ts_other.shape != ts.shape or not np.allclose(ts, ts_other):
        return None
    distance = _distance(ys, ys_other) / size
    if not distance.size or not distance[0] > 0:
        return None
    # At a row between the times of one event in both runs the distance is that of a jump.
    padded = np.concatenate([distance[:1], distance, distance[-1:]])
    steady = np.min([padded[:-2], padded[1:-1], padded[2:]], axis=0)
    lost = np.log10(np.maximum(steady / distance[0], 1e-300))
    digits, elapsed = -np.log10(epsilon), np.abs(ts - ts[0])
    over = np.flatnonzero(lost > digits / 2)
    horizon = float(elapsed[over[0]] if over.size else elapsed[-1])
    half = (elapsed >= elapsed[-1] / 2) & (lost < 0.6 * digits)
    rate = np.polyfit(elapsed[half], lost[half] * np.log(10), 1)[0] if half.sum() > 2 else np.nan
    return Growth(max(float(lost.max()), 0.0), float(rate), horizon, float(digits))


def _sizes(leaves: Sequence[Any]) -> list[np.ndarray]:
    """Largest values of numbers along a run; where next to zero a part of the largest of all."""
    own = [np.abs(np.asarray(x)).reshape(len(x), -1).max(axis=0, initial=0.0) for x in leaves]
    most = max((x.max(initial=0.0) for x in own), default=0.0)
    return [np.maximum(x, _NEXT_TO_ZERO * most) for x in own]


def _distance(ys, others) -> np.ndarray:
    """Of rows of two runs, by the largest values of each number."""
    rows = [np.asarray(x).reshape(len(x), -1) for x in jax.tree.leaves(ys)]
    second = [np.asarray(x).reshape(len(x), -1) for x in jax.tree.leaves(others)]
    a, b = (np.concatenate(x, axis=1).astype(float) for x in (rows, second))
    scale = np.concatenate(_sizes(rows))
    kept = scale > 0
    return np.linalg.norm((a - b)[:, kept] / scale[kept], axis=1)


def acceleration_left(run: SeenRun) -> float | None:
    """The acceleration that a formulation leaves of satisfied constraints, by their curvature.

    At the row of the largest speed, taken to the constraints, `d^2 phi / dt^2` along the motion is
    zero for every formulation that enforces them. It is computed from values of the constraints
    alone, `(phi(q + h q' + h^2 q''/2) - 2 phi(q) + phi(q - h q' + h^2 q''/2)) / h^2`, and is that
    of `q'' = 0` where the term `gamma` is dropped.

    Args:
        run: that was seen.

    Returns:
        Its norm by that of `q'' = 0`; `None` where there is no such term.
    """
    problem, trajectory = run.problem, run.trajectory
    formulation = trajectory.formulation
    capabilities = formulation.capabilities
    if not (capabilities.enforces_constraints and capabilities.weight is None):
        return None
    m, _ = constraint_counts(problem.system, problem.state)
    if not m or not trajectory.plain:
        return None
    states = trajectory.states
    reached = np.flatnonzero(np.isfinite(np.asarray(trajectory.ts)))
    row = reached[np.argmax(np.linalg.norm(np.asarray(states.v)[reached], axis=1))]
    t = jnp.asarray(trajectory.ts[row])
    q, v, w = (jnp.asarray(x[row]) for x in (states.q, states.v, states.w))
    try:
        state = consistent_state(problem.system, q, v, float(t), w=w)
    except ConsistencyError:
        return None
    left, curved = _accelerations(problem.system, formulation, problem.controller, t, state)
    scale = float(jnp.finfo(q.dtype).eps) ** 0.25
    if not float(curved) > scale * (1 + float(jnp.max(jnp.abs(v))) ** 2):
        return None
    return float(left) / float(curved)


@jit(options=BRIEFLY)
def _accelerations(system, formulation, controller, t, state: State):
    """Norms of `d^2 phi / dt^2` along the motion, and along the same with `q'' = 0`."""
    y = formulation.init(system, t, state)
    slope = formulation.vector_field(system, t, y, control_input(controller, t, state))
    motion = lambda t, y: formulation.recover(system, t, y)  # noqa: E731
    rates = jax.jvp(motion, (t, y), (jnp.ones_like(t), slope))[1]
    first, second = jax.jvp(
        lambda t, q, v: coordinate_rate(system, t, q, v),
        (t, state.q, state.v),
        (jnp.ones_like(t), rates.q, rates.v),
    )
    size = jnp.finfo(state.q.dtype).eps ** 0.25
    fastest = jnp.maximum(jnp.max(jnp.abs(first)), jnp.sqrt(jnp.max(jnp.abs(second))))
    h = size / jnp.maximum(fastest, 1e-3)

    def along(bend):
        at = lambda s: system.position_constraints(t + s, state.q + s * first + s**2 / 2 * bend)  # noqa: E731
        return jnp.linalg.norm((at(h) - 2 * at(jnp.zeros_like(h)) + at(-h)) / h**2)

    return along(second), along(jnp.zeros_like(second))


def _mechanical(runs: Sequence[SeenRun]) -> list[SeenRun]:
    """Those runs of systems whose states were saved, few of a batch."""
    kept = [x for x in runs if not isinstance(x.problem, DAEProblem) and x.trajectory.plain]
    return kept[:MOST_RUNS]


def _rows(run: SeenRun) -> tuple[np.ndarray, Any]:
    """Times and the formulation's own states that a run has saved, or those that monitor it."""
    if not run.trajectory.plain and run.trajectory.monitored is None:
        return np.zeros(0), None
    found = rows_of(run.trajectory, None)
    return np.asarray(found.ts), found.ys


@jit(options=BRIEFLY)
def _jacobians(system, formulation, ts, ys):
    """Constraint Jacobians at rows."""
    from jaxdae.diagnosis.singularities import jacobian_at

    def one(t, y):
        state = formulation.recover(system, t, y)
        return jacobian_at(system, t, state.q, state.v)

    return eqx.filter_vmap(one)(ts, ys)
