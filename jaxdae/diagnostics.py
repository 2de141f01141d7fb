"""What a run that reached its end may have got wrong: singular positions, energy.

Rows of a run are surveyed by one small compiled program, in blocks of one size; what follows from
them is arithmetic, in NumPy for warnings and in JAX for values of members of a batch.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations import RealizingForces
from jaxdae.formulations.held_rank import solves
from jaxdae.linalg.singularity_robust import passes_singular_positions
from jaxdae.systems import constraint_residuals, generalized_energy
from jaxdae.systems.dynamics import has_reaction_forces

# Rows of a block: a default run is one.
_BLOCK = 256
# Singular values below this part of the largest do not count for the rank of a mechanism.
_RANK = 1e-6
# A least singular value below this part of its median is a near-singular passage.
_NEAR = 1e-2
# Places within an interval, how often the search closes in on the lowest, and for how many
# intervals under a transformation.
_PLACES, _ROUNDS, _INTERVALS = 16, 4, 4
# How often intervals are halved before, for warnings, to leave out those where bounds suffice.
_HALVINGS = 5
# What trapezoids of the velocities may miss of a change: about 1 rad of an oscillation in a row.
_RESOLVED = 0.1
# Most operations that warnings may cost; the values can be had for any size.
_MOST_WORK = 5_000_000
# Errors of the energy below this part of its changes are not pointed out: where a tolerance or an
# integral of the work vouches for more, and where steps or weights are the user's choice.
_PRECISE, _COARSE = 1e-3, 5e-2
# Fewer rows than this say nothing about the work of forces between them.
_FEWEST_ROWS = 33
# A residual above this power of the machine epsilon is not round-off: 5e-7 in double precision.
_ROUND_OFF = 0.4
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


class Passage(NamedTuple):
    """A near-singular position that a run passed.

    Args:
        time: [s].
        value: least singular value met, rows scaled by their largest lengths along the run.
    """

    time: float
    value: float


def read_row(system, controller, t, state) -> Row:
    """What the diagnostics need of one state."""
    q, v = state.q, state.v
    t = jnp.asarray(t, q.dtype)
    residual = constraint_residuals(system, t, q, v)
    jac = jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)
    largest = lambda x: jnp.max(jnp.abs(x), initial=0.0)  # noqa: E731
    return Row(
        jac,
        generalized_energy(system, t, q, v),
        system.potential_energy(t, q),
        _power(system, controller, t, state),
        jnp.maximum(largest(residual.phi), largest(residual.phi_dot)),
        _offset(system, controller, t, state, largest(residual.phi_dot - jac @ v)),
        jnp.sum(jnp.abs(jax.grad(system.potential_energy, argnums=1)(t, q))),
    )


def _offset(system, controller, t, state, found):
    """Infinite where forces depend on multipliers, which rows do not have."""
    u = None if controller is None else controller(t, state.q, state.v, state.w)
    dependent = has_reaction_forces(system, t, state.q, state.v, state.w, u)
    return jnp.full_like(found, jnp.inf) if dependent else found


def _power(system, controller, t, state):
    """Power of forces, dissipation and explicit time, without the reactions."""
    q, v, w = state.q, state.v, state.w
    u = None if controller is None else controller(t, q, v, w)
    _, dissipated = jax.jvp(lambda v: system.dissipation(t, q, v), (v,), (v,))

    def lagrangian(t):
        return system.kinetic_energy(t, q, v) - system.potential_energy(t, q)

    _, explicit = jax.jvp(lagrangian, (t,), (jnp.ones_like(t),))
    return system.force(t, q, v, w, u) @ v - dissipated - explicit


# Run once or twice, as long as it compiles: no optimization.
_BRIEFLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@eqx.filter_jit(compiler_options=_BRIEFLY)  # pyright: ignore
def _survey_block(system, formulation, controller, ts, ys):
    def of_row(t, y):
        state = formulation.recover(system, t, y)
        return state, read_row(system, controller, t, state)

    return jax.vmap(of_row)(ts, ys)


@eqx.filter_jit(compiler_options=_BRIEFLY)  # pyright: ignore
def _jacobians_block(system, ts, q, v):
    return jax.vmap(lambda t, q, v: _jacobian(system, t, q, v))(ts, q, v)


def _jacobian(system, t, q, v):
    return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)


def _in_blocks(function, *rows):
    """A compiled function of arrays of rows, in blocks of one shape, as NumPy arrays."""
    count = len(jax.tree.leaves(rows)[0])
    parts = []
    for i in range(0, count, _BLOCK):
        take = np.minimum(np.arange(i, i + _BLOCK), count - 1)
        parts.append(jax.device_get(function(*jax.tree.map(lambda x, k=take: x[k], rows))))
    joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return jax.tree.map(lambda x: x[:count], joined)


def row_scales(xp, jac):
    """Inverse of the largest length of each row of `J` along the run, shape `(c, 1)`."""
    lengths = xp.max(xp.sqrt(xp.sum(jac * jac, axis=-1)), axis=0)
    return 1.0 / xp.where(lengths > 0, lengths, 1.0)[:, None]


def hermite(xp, h, s, q, v):
    """Cubic Hermite interpolation of `q`, and its rate, at a part `s` of steps `h`.

    Args:
        xp: `numpy` or `jax.numpy`.
        h: steps, shape `(k, 1, 1)`.
        s: parts of them, shape `(k, places, 1)`.
        q: coordinates at both ends, each `(k, 1, n)`.
        v: velocities there.
    """
    (q0, q1), (v0, v1) = q, v
    position = (
        (1 + 2 * s) * (1 - s) ** 2 * q0
        + s * (1 - s) ** 2 * h * v0
        + s**2 * (3 - 2 * s) * q1
        + s**2 * (s - 1) * h * v1
    )
    step = xp.where(h == 0, 1.0, h)
    rate = 6 * s * (s - 1) * (q0 - q1) / step + (1 - s) * (1 - 3 * s) * v0 + s * (3 * s - 2) * v1
    return position, rate


class Search(NamedTuple):
    """What the search for the least singular value between rows works on.

    Args:
        xp: `numpy` or `jax.numpy`.
        values: least singular values from times, coordinates and velocities, first axis rows.
        ts: times of the rows.
        q: coordinates there.
        v: velocities there.
    """

    xp: Any
    values: Any
    ts: Any
    q: Any
    v: Any


def close_in(search: Search, intervals):
    """The lowest least singular value in each of some intervals between rows, and its time."""
    xp, i = search.xp, intervals
    h = search.ts[i + 1] - search.ts[i]
    ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
    middle, width = 0.5 * xp.ones_like(h), 0.5
    found: Any = None
    for _ in range(_ROUNDS):
        places = xp.linspace(-width, width, _PLACES)
        s = xp.clip(middle[:, None] + places[None], 0.0, 1.0)
        q, v = hermite(xp, h[:, None, None], s[..., None], ends(search.q), ends(search.v))
        t = search.ts[i][:, None] + s * h[:, None]
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        values = search.values(flat(t), flat(q), flat(v)).reshape(s.shape)
        best = xp.argmin(values, axis=1)[:, None]
        pick = lambda x, k=best: xp.take_along_axis(x, k, axis=1)[:, 0]  # noqa: E731
        middle, width = pick(s), 2 * width / (_PLACES - 1)
        found = (pick(values), pick(t))
    return found


def lower_bounds(xp, values, jac):
    """About the lowest that the values can be between rows, by Weyl's inequality.

    A singular value changes at most by the norm of the change of the matrix, whose path is taken
    for half as long again as its chord.
    """
    change = xp.sqrt(xp.sum((jac[1:] - jac[:-1]) ** 2, axis=(1, 2)))
    return weyl(values[:-1], values[1:], change)


def weyl(one, other, change):
    """The lowest between two values that change at most by one half more than `change`."""
    return 0.5 * (one + other - 1.5 * change)


def resolved(xp, ts, q, v):
    """Which intervals are short enough for the Hermite curve to follow the motion.

    There the trapezoidal rule on the velocities nearly gives the change of the coordinates.
    """
    h = (ts[1:] - ts[:-1])[:, None]
    largest = lambda x: xp.max(xp.abs(x), axis=1)  # noqa: E731
    missed = largest(q[1:] - q[:-1] - 0.5 * h * (v[1:] + v[:-1]))
    return missed <= _RESOLVED * xp.maximum(largest(h * v[1:]), largest(h * v[:-1]))


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
    rank = jnp.max(jnp.sum(every > _RANK * jnp.max(every), axis=1)) if held is None else held
    counted = jnp.arange(every.shape[1]) < rank
    least = lambda s: jnp.min(jnp.where(counted, s, jnp.inf), axis=-1)  # noqa: E731

    def values(t, q, v):
        found = jax.vmap(lambda t, q, v: _jacobian(system, t, q, v))(t, q, v)
        return least(jnp.linalg.svd(found * scales, compute_uv=False))

    rows = least(every)
    if count == 1:
        return rows[0]
    known = resolved(jnp, ts, states.q, states.v)
    bounds = jnp.where(known, lower_bounds(jnp, rows, jac * scales), jnp.inf)
    lowest = jnp.argsort(bounds)[:_INTERVALS]
    between, _ = close_in(Search(jnp, values, ts, states.q, states.v), lowest)
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
        the rule with all rows and with every other one.
    """
    zero = xp.zeros_like(rows.energy[0])
    if work is not None:
        return xp.max(xp.abs(rows.energy - rows.energy[0] - work)), zero
    gained = _trapezoids(xp, ts, rows.power)
    coarse = _trapezoids(xp, ts[::2], rows.power[::2])
    error = xp.max(xp.abs(rows.energy - rows.energy[0] - gained))
    # Reactions that do work, or an inconsistent start, change the energy.
    round_off = float(jnp.finfo(rows.energy.dtype).eps) ** _ROUND_OFF
    unknown = (xp.max(rows.offset) > round_off) | (rows.residual[0] > round_off)
    if ts.shape[0] < _FEWEST_ROWS:  # too few to tell the error of the rule
        unknown = unknown | (xp.max(xp.abs(rows.power)) > 0.0)
    return xp.where(unknown, xp.nan, error), xp.max(xp.abs(coarse - gained[::2]))


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
        tolerance: of the step control, relative and absolute added; `None` for given steps.
        steps: their number.
    """

    ts: Any
    ys: Any
    work: Any
    tolerance: float | None
    steps: int


def rows_of(run, tolerance: float | None) -> Watched:
    """The rows by which a run is judged: what was watched, or the start and what was saved.

    Args:
        run: a `Trajectory` of plain states that reached its end; of a batch, one member.
        tolerance: of its step control, or `None`.
    """
    steps, work = int(run.stats["num_steps"]), None
    if run.watched is not None:
        ts, ys = jax.device_get(run.watched)
        return Watched(ts, ys, None, tolerance, steps)
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
        return 2e-8 if jnp.finfo(dtype).eps < 1e-12 else 2e-5
    given = [getattr(controller, name, None) for name in ("rtol", "atol")]
    if any(x is None for x in given):
        return None
    return sum(float(np.max(np.asarray(x))) for x in jax.tree.leaves(given))


def warnings_of(system, formulation, controller, watched: Watched) -> list[str]:
    """What to warn of after a run that reached its end, in words.

    Args:
        system: what was simulated.
        formulation: by which equations.
        controller: under which controller, or `None`.
        watched: rows of the run, from `rows_of`.
    """
    state, rows = _in_blocks(
        lambda t, y: _survey_block(system, formulation, controller, t, y), watched.ts, watched.ys
    )
    texts = []
    count, c, n = rows.jac.shape
    if not passes_singular_positions(formulation) and 0 < count * c * c * n <= _MOST_WORK:
        values = _ThroughBlocks(system)
        held = next((x.held_rank for x in solves(formulation)), None)
        found = find_passages(values, watched.ts, state, rows.jac, held)
        texts.append(_of_passages(formulation, *found))
    texts.append(_of_energy(formulation, watched, rows))
    return [text for text in texts if text is not None]


class _ThroughBlocks:
    """Jacobians between rows, in blocks."""

    def __init__(self, system):
        self.system = system

    def __call__(self, t, q, v):
        return _in_blocks(lambda *x: _jacobians_block(self.system, *x), t, q, v)


def _singular_values(jac: np.ndarray) -> np.ndarray:
    """In decreasing order; from the smaller Gram matrix, exact to half the digits."""
    small = jac if jac.shape[1] <= jac.shape[2] else jac.transpose(0, 2, 1)
    squares = np.linalg.eigvalsh(small @ small.transpose(0, 2, 1))
    return np.sqrt(np.maximum(squares, 0.0))[:, ::-1]


def find_passages(jacobians, ts, states, jac, held=None) -> tuple[list[Passage], float]:
    """Near-singular positions passed, and the median of the least singular value.

    Args:
        jacobians: `J` from times, coordinates and velocities, first axis rows.
        ts: times [s].
        states: `(q, v, w)` at the rows.
        jac: `J` there.
        held: rank that the run held; by default the largest of the rows.
    """
    ts = np.asarray(ts)
    scales = row_scales(np, jac)
    every = _singular_values(jac * scales)
    # Off the constraints superfluous ones have singular values, too.
    rank = int((every > _RANK * every.max()).sum(axis=1).max() if held is None else held)
    rows, typical = every[:, rank - 1], float(np.median(every[:, rank - 1]))
    level = _NEAR * typical

    def sampled(t, q, v):
        scaled = jacobians(t, q, v) * scales
        return _singular_values(scaled)[:, rank - 1], scaled

    found = [Passage(float(t), float(x)) for t, x in zip(ts, rows, strict=True) if x < level]
    pieces = _Pieces.whole(np.flatnonzero(resolved(np, ts, states.q, states.v)), rows, jac * scales)
    for _ in range(_HALVINGS):
        pieces = pieces.halved(ts, states, sampled, level)
    close = np.unique(pieces.intervals)
    if close.size:
        values = lambda *x: sampled(*x)[0]  # noqa: E731
        least, times = close_in(Search(np, values, ts, states.q, states.v), close)
        found += [
            Passage(float(t), float(x)) for x, t in zip(least, times, strict=True) if x < level
        ]
    return _distinct(found, ts), typical


class _Pieces(NamedTuple):
    """Parts of intervals between rows in which a near-singular position may be.

    Args:
        intervals: numbers of the rows before them, shape `(k,)`.
        parts: both ends, as parts of the intervals, shape `(2, k)`.
        values: least singular values there, shape `(2, k)`.
        jac: scaled `J` there, shape `(2, k, c, n)`.
    """

    intervals: np.ndarray
    parts: np.ndarray
    values: np.ndarray
    jac: np.ndarray

    @classmethod
    def whole(cls, i, values, jac) -> "_Pieces":
        """Intervals from end to end."""
        parts = np.stack([np.zeros(i.size), np.ones(i.size)])
        return cls(i, parts, np.stack([values[i], values[i + 1]]), np.stack([jac[i], jac[i + 1]]))

    def halved(self, ts, states, sampled, level: float) -> "_Pieces":
        """Both halves of those that may go below a level."""
        changes = np.sqrt(np.sum((self.jac[1] - self.jac[0]) ** 2, axis=(1, 2)))
        keep = weyl(self.values[0], self.values[1], changes) < level
        i, parts, values, jac = self.intervals[keep], *(x[:, keep] for x in self[1:])
        if i.size == 0:
            return _Pieces(i, parts, values, jac)
        s = 0.5 * (parts[0] + parts[1])
        ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
        h = (ts[i + 1] - ts[i])[:, None, None]
        q, v = hermite(np, h, s[:, None, None], ends(states.q), ends(states.v))
        least, middle = sampled(ts[i] + s * (ts[i + 1] - ts[i]), q[:, 0], v[:, 0])
        split = lambda x, y: np.stack(  # noqa: E731
            [np.concatenate([x[0], y]), np.concatenate([y, x[1]])]
        )
        found = split(parts, s), split(values, least), split(jac, middle)
        return _Pieces(np.concatenate([i, i]), *found)


def _distinct(found: list[Passage], ts) -> list[Passage]:
    """Of those in neighbouring intervals the lowest, in order of time."""
    distinct: list[Passage] = []
    gap = 2.0 * float(np.max(np.abs(np.diff(ts)), initial=0.0))
    for one in sorted(found, key=lambda x: x.value):
        if all(abs(one.time - other.time) > gap for other in distinct):
            distinct.append(one)
    return sorted(distinct, key=lambda x: x.time)


def _of_passages(formulation, passages: list[Passage], typical: float) -> str | None:
    if not passages:
        return None
    least = min(passages, key=lambda x: x.value)
    times = ", ".join(f"{x.time:.6g}" for x in passages[:5]) + (", …" if len(passages) > 5 else "")
    return (
        f"the run passed {len(passages)} near-singular position(s), at t = {times} s: the least "
        f"singular value of the constraint Jacobian, rows scaled by their largest length, fell to "
        f"{least.value:.3g} at t = {least.time:.6g} s (median {typical:.3g}). There multipliers "
        f"grow without bound, and {type(formulation).__name__} may lose the branch or the energy "
        "without a sign of it in the residuals: use Multipliers(..., solve=SingularityRobust())."
    )


def balance_is_known(formulation, work) -> bool:
    """Whether the energy balance can be had: of realizing forces only by the integrated work."""
    return work is not None or not isinstance(formulation, RealizingForces)


def _of_energy(formulation, watched: Watched, rows: Row) -> str | None:
    if not balance_is_known(formulation, watched.work):
        return None
    error, quadrature = energy_deviation(np, np.asarray(watched.ts), rows, watched.work)
    if not np.isfinite(error):
        return None
    moved = np.abs(rows.energy - rows.potential).max() + np.ptp(rows.potential)
    scale = float(max(moved, _REST * np.abs(rows.potential).max()))
    exact = watched.tolerance is not None and not hasattr(formulation, "alpha")
    part = _PRECISE if exact or watched.work is not None else _COARSE
    part = part if watched.tolerance is not None else _COARSE
    part = max(part, watched.steps * (watched.tolerance or 0.0))
    # Near rest it is the absolute tolerance of displacements that makes the error.
    least = float(jnp.finfo(rows.energy.dtype).eps) ** 0.5
    displaced = float(rows.slope.max()) * watched.steps * (watched.tolerance or least)
    explained = part * scale + displaced
    if error <= explained + 2 * float(quadrature):
        return None
    return (
        f"the energy balance is off by {float(error):.3g} J, {100 * float(error) / scale:.3g} % of "
        f"the {scale:.3g} J that the motion exchanges; its tolerance and steps explain up to "
        f"{explained:.2g} J. Take a smaller tolerance or step; at singular positions use "
        "Multipliers(..., solve=SingularityRobust()); see plot_energy(run, work=True)."
    )
