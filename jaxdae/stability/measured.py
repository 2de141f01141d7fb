r"""The violation that steps keep up along a given motion: what they inject is measured there.

What a step injects depends on more than the rate of the motion: on its spectrum, whether it has a
mean, and on the products of gains and motion in the method's error. Where a motion is given, the
steps themselves say it. From a state with the violation `y = (phi, h phi_dot)` one step of the
method with gains of `Z = h A` leads to `y_1`, and

    d(t; Z) = y_1 - R(Z) y,        y_(n+1) = R(Z) y_n + d(t_n; Z),        y_0 = 0

is the violation of a run from a consistent start, the beginning included. The recursion is exact
but for what `d` feels of the violation itself. All steps are made at once, from saved states.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple, Protocol

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.reprs import shown
from jaxdae.stability.arguments import is_real
from jaxdae.stability.damping import REACH, worst_damping
from jaxdae.stability.stability_functions import step_matrix
from jaxdae.stability.stationary import Motion
from jaxdae.systems import constraint_residuals, State
from jaxdae.systems.checks import constraint_counts

# States from which steps are made: those of longer records are thinned.
_MOST_ROWS = 500
# Gains that are tried at once, so that all searches share a program.
_BATCH = 40
_RATIOS = np.array([0.4, 0.7, 1.0, 1.7, 3.0])
_ZOOMS = 3


class Record(Protocol):
    """What is read of a trajectory, such as that of `jaxdae.simulate`."""

    @property
    def ts(self) -> Any: ...
    @property
    def states(self) -> State: ...
    @property
    def system(self) -> Any: ...
    @property
    def formulation(self) -> Any: ...
    @property
    def controller(self) -> Any: ...


class _Law(eqx.Module):
    """`d(phi_dot)/dt = -(K_D phi_dot + K_P phi, Gamma g)` with numbers."""

    K_D: Any
    K_P: Any
    Gamma: Any

    def __call__(self, t, q, v, phi, phi_dot):
        del t, q, v
        m = phi.shape[0]
        rate = -self.K_D * phi_dot[:m] - self.K_P * phi
        return jnp.concatenate([rate, -self.Gamma * phi_dot[m:]])


class MeasuredSteps:
    """Violations of runs along a motion, for many gains at once.

    Args:
        record: the motion of one run.
        solver: a Runge-Kutta solver.
        dt: step [s].

    Raises:
        ValueError: for a record of several runs, too short a one, a formulation that does not take
            gains or changes what they do, or an implicit method without a tolerance.
    """

    def __init__(self, record: Record, solver, dt: float):
        _check_formulation(record.formulation)
        _check_iteration(solver)
        ts = np.asarray(record.ts, np.float64)
        if ts.ndim != 1:
            raise ValueError(f"motion must be of one run; its times have shape {ts.shape}.")
        ends = ts[np.isfinite(ts)]
        if np.any(np.diff(ends) <= 0):
            raise ValueError("motion must have times that increase; give a run forward in time.")
        self.count = int((ends.max() - ends.min()) / dt * (1 + 1e-9)) if ends.size else 0
        if self.count < 1:
            raise ValueError(f"motion lasts less than one step of {dt} s; give a longer record.")
        rows = np.flatnonzero(np.isfinite(ts) & (ts <= ends.max() - dt * (1 - 1e-9)))
        rows = rows[np.unique(np.linspace(0, rows.size - 1, _MOST_ROWS).astype(int))]
        self.parts = (record.system, record.formulation, record.controller)
        self.solver, self.dt = solver, dt
        self.ts = jnp.asarray(record.ts)[rows]
        self.states = jax.tree.map(lambda x: x[rows], record.states)
        # The record's rows before the times of the steps, and the fraction of the way to the next.
        at = np.interp(ends.min() + dt * np.arange(self.count), ts[rows], np.arange(rows.size))
        self.before = np.minimum(at.astype(int), max(rows.size - 2, 0))
        self.fraction = at - self.before

    def mean_squares(self, pairs, singles, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Of `|phi|^2 + tau^2 |phi_dot|^2` of position constraints and `tau^2 g^2` of others.

        Args:
            pairs: step times roots for position constraints, shape `(batch, 2)`.
            singles: of velocity constraints, shape `(batch,)`.
            scale: `tau / dt`.

        Returns:
            Each of shape `(batch,)`, infinite where it is not finite.
        """
        found = [
            self._of_batch(pairs[i : i + _BATCH], singles[i : i + _BATCH], scale)
            for i in range(0, len(pairs), _BATCH)
        ]
        both = np.concatenate(found, axis=1)
        return tuple(np.where(np.isfinite(both), both, np.inf))

    def _of_batch(self, pairs, singles, scale):
        size = len(pairs)
        pairs, singles = (np.resize(x, (_BATCH, *np.shape(x)[1:])) for x in (pairs, singles))
        K_D, K_P = -pairs.sum(axis=1).real, pairs.prod(axis=1).real
        A = np.zeros((_BATCH, 2, 2))
        A[:, 0, 1], A[:, 1, 0], A[:, 1, 1] = 1.0, -K_P, -K_D
        R = np.array([step_matrix(x, 1.0, self.solver) for x in A])
        factors = np.array([step_matrix([[x]], 1.0, self.solver) for x in singles])
        law = _Law(K_D / self.dt, K_P / self.dt**2, -singles / self.dt)
        steps = (self.before, self.fraction)
        found = _mean_squares(
            self.parts, self.solver, self.ts, self.states, self.dt, law, R, factors, steps, scale
        )
        return np.asarray(found)[:, :size]


@jit
def _mean_squares(parts, solver, ts, states, dt, law, R, factors, steps, scale):
    each = jax.vmap(partial(_residuals, parts, solver), in_axes=(0, 0, None, None))
    dtype = states.q.dtype
    dt, scale = jnp.asarray(dt, dtype), jnp.asarray(scale, dtype)

    def one(law, R, factor):
        law = jax.tree.map(lambda x: jnp.asarray(x, dtype), law)
        positions, velocities = each(ts, states, dt, law)
        weights = jnp.asarray([1.0, scale], dtype)
        of_positions = _driven(jnp.asarray(R, dtype), positions, steps, weights)
        return of_positions, _driven(jnp.asarray(factor, dtype), velocities, steps, weights[1:])

    return eqx.filter_vmap(one)(law, R, factors)


def _residuals(parts, solver, t, state, dt, law):
    """Violations before and after one step, over the step: `(phi, h phi_dot)`, and `h g`."""
    system, formulation, controller = parts
    formulation = dataclasses.replace(formulation, stabilization=law)

    def field(t, y, args):
        del args
        at = formulation.recover(system, t, y)
        u = None if controller is None else controller(t, at.q, at.v, at.w)
        return formulation.vector_field(system, t, y, u)

    term, y = diffrax.ODETerm(field), formulation.init(system, t, state)
    memory = solver.init(term, t, t + dt, y, None)
    after, *_ = solver.step(term, t, t + dt, y, None, memory, made_jump=False)
    found = [
        constraint_residuals(system, t, x.q, x.v)
        for t, x in ((t, state), (t + dt, formulation.recover(system, t + dt, after)))
    ]
    m = found[0].phi.shape[0]
    positions = jnp.stack([jnp.stack([x.phi, dt * x.phi_dot[:m]]) for x in found])
    return positions, jnp.stack([dt * x.phi_dot[None, m:] for x in found])


def _driven(R, pairs, steps, weights):
    """Mean square of what is injected along the rows and multiplied by `R` in every step."""
    injected = pairs[:, 1] - R @ pairs[:, 0]
    before, fraction = steps
    fraction = jnp.asarray(fraction, R.dtype)[:, None, None]
    after = jnp.minimum(before + 1, injected.shape[0] - 1)
    each = (1 - fraction) * injected[before] + fraction * injected[after]

    def step(y, d):
        y = R @ y + d
        return y, jnp.sum((weights[:, None] * y) ** 2)

    return jnp.mean(jax.lax.scan(step, jnp.zeros_like(injected[0]), each)[1])


class MeasuredRoots(NamedTuple):
    """The best roots along a motion, times the step.

    Args:
        pair: of position constraints; `None` without any.
        single: of velocity constraints; likewise.
        violation: root mean square that they leave, of all constraints over the step.
    """

    pair: tuple[complex, complex] | None
    single: float | None
    violation: float

    def __repr__(self) -> str:
        return shown(self)


def best_along(record: Record, solver, dt: float, margin: float, motion: Motion) -> MeasuredRoots:
    """The roots with the least violation along a motion, by a search with ever smaller grids.

    Args:
        record: the motion.
        solver: a Runge-Kutta solver.
        dt: largest step [s], at which violations are largest.
        margin: largest step over smallest; roots are taken that all of these damp.
        motion: its rate, and the scale that joins the levels.

    Returns:
        `MeasuredRoots`.

    Raises:
        ValueError: see `MeasuredSteps`; and where a step from a state of the motion fails, whatever
            the gains.
    """
    steps = MeasuredSteps(record, solver, dt)

    def of_pairs(x):
        pairs = _roots(x)
        found = steps.mean_squares(pairs, -np.exp(x[:, 0]), motion.scale)[0]
        return np.where(_damped(solver, pairs, margin), found, np.inf)

    def of_singles(x):
        singles = -np.exp(x[:, 0])
        found = steps.mean_squares(_roots(x), singles, motion.scale)[1]
        return np.where(_damped(solver, singles[:, None], margin), found, np.inf)

    ends = np.log([min(0.005 * motion.turn, 0.03 / steps.count, 0.1), REACH])
    m, r = constraint_counts(record.system, jax.tree.map(lambda x: x[0], steps.states))
    # Minima are sharp where what is injected early cancels what is injected later.
    pair = _searched(of_pairs, np.linspace(ends[0], ends[1], 24), np.log(_RATIOS)) if m else None
    single = (
        _searched(of_singles, np.linspace(ends[0], ends[1], 3 * _BATCH), np.zeros(1)) if r else None
    )
    square = sum(x.square for x in (pair, single) if x is not None)
    if not np.isfinite(square):
        raise ValueError(
            f"steps of {dt} s from states of the motion are not finite, whatever the gains; give a "
            "shorter step, or a part of the motion without singular positions."
        )
    return MeasuredRoots(
        None if pair is None else tuple(_roots(pair.at[None])[0]),
        None if single is None else -float(np.exp(single.at[0])),
        float(np.sqrt(square)),
    )


class _Least(NamedTuple):
    at: np.ndarray
    square: float


def _searched(cost, sizes, ratios) -> _Least:
    """The least of a cost of `(log |z|, log ratio)`: on a grid, then on smaller ones about it."""
    half = np.array([sizes[1] - sizes[0], ratios[1] - ratios[0] if ratios.size > 1 else 0.0])
    best = _Least(np.zeros(2), np.inf)
    points = np.stack(np.meshgrid(sizes, ratios), axis=-1).reshape(-1, 2)
    offsets = np.linspace(-1.0, 1.0, 7), np.linspace(-1.0, 1.0, min(ratios.size, 5))
    around = np.stack(np.meshgrid(*offsets), axis=-1).reshape(-1, 2)
    for _ in range(1 + _ZOOMS):
        found = cost(points)
        i = int(np.argmin(found))
        best = _Least(points[i], float(found[i])) if found[i] < best.square else best
        points = best.at + half * around
        points[:, 0] = np.minimum(points[:, 0], np.log(REACH))
        half = half / 3
    return best


def _roots(x) -> np.ndarray:
    """Roots of `s^2 + 2 ratio size s + size^2`, shape `(batch, 2)`."""
    size, ratio = np.exp(x[:, :1]), np.exp(x[:, 1:])
    apart = np.sqrt((ratio**2 - 1).astype(complex)) * np.array([1.0, -1.0])
    return size * (apart - ratio)


def _damped(solver, roots, margin: float) -> np.ndarray:
    """Whether every step of the range, and every shorter one, damps all of a row of roots."""
    return np.asarray(np.isfinite(worst_damping(solver, roots, margin, 17)).all(axis=1))


def _check_formulation(formulation) -> None:
    offered, name = formulation.capabilities, type(formulation).__name__
    if offered.passes_singular_positions:
        raise ValueError(
            f"motion is a run by {name}, every step of which is projected onto the constraints: no "
            "violation is left that gains could act on; give one by Multipliers(Baumgarte(…))."
        )
    if not hasattr(formulation, "stabilization"):
        raise ValueError(
            f"motion is a run by {name}, which takes no gains; give one by "
            "Multipliers(Baumgarte(…))."
        )
    if offered.weight is not None:
        raise ValueError(
            f"motion is a run by {name}, of whose gains a part remains; give one by "
            "Multipliers(Baumgarte(…))."
        )


def _check_iteration(solver) -> None:
    rtol = getattr(getattr(solver, "root_finder", None), "rtol", 0.0)
    if isinstance(solver, diffrax.AbstractImplicitSolver) and not is_real(rtol):
        name = type(solver).__name__
        raise ValueError(
            f"{name} has no tolerance for its Newton iteration, so that it makes no step along the "
            f"motion; give diffrax.{name}(root_finder=optimistix.Newton(rtol=1e-8, atol=1e-8))."
        )
