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
from typing import Any, NamedTuple

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
from jaxdae.systems import constraint_residuals, evaluate
from jaxdae.systems.checks import constraint_counts

# States from which steps are made: those of longer records are thinned.
_MOST_ROWS = 500
# Gains that are tried at once, so that all searches share a program.
_BATCH = 40
_RATIOS = np.array([0.4, 0.7, 1.0, 1.7, 3.0])
_ZOOMS = 3
# Of a slower motion a step's error is below round-off: it counts as one that turns by this [rad].
_LEAST_TURN = 1e-3


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


def motion_frequency(system, trajectory) -> float:
    """Rate at which the constraints' velocity-dependent acceleration changes along a motion [1/s].

    The root mean square of `d gamma/dt` over that of `gamma`, with `J a + gamma = phi_ddot`, by
    differences between saved times. Steps inject into a violation what `gamma` makes of them.

    Args:
        system: the declaration.
        trajectory: of one run, saved often enough to draw the motion from it.

    Returns:
        The rate; zero where `gamma` is constant.

    Raises:
        ValueError: for fewer than three times, a motion that is not finite, or one along which
            `gamma` vanishes.
    """
    ts = np.asarray(trajectory.ts, np.float64)
    if ts.ndim != 1 or ts.size < 3:
        raise ValueError(f"a motion needs at least 3 saved times; this one has shape {ts.shape}.")

    def gamma(t, q, v, w):
        return evaluate(system, t, q, v, w).gamma

    each = (jnp.asarray(trajectory.ts), trajectory.q, trajectory.v, trajectory.w)
    values = np.asarray(jax.jit(jax.vmap(gamma))(*each), np.float64)
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if not finite.all():
        raise ValueError(
            f"the motion is not finite at {(~finite).sum()} of {ts.size} saved times: did its run "
            "fail? Give one that reached its end."
        )
    size = np.sqrt(np.mean(np.sum(values**2, axis=-1))) if values.size else 0.0
    if size == 0.0:
        raise ValueError(
            "the motion has no rate that its constraints feel: their velocity-dependent "
            f"acceleration has the root mean square {size}. Give a motion that turns."
        )
    slopes = np.gradient(values, ts, axis=0)
    return float(np.sqrt(np.mean(np.sum(slopes**2, axis=-1))) / size)


class MeasuredSteps:
    """Violations of runs along the motion of a `record`, for many gains at once."""

    def __init__(self, record: Any, solver, dt: float):
        _check_formulation(record.formulation)
        _check_iteration(solver)
        ts = np.asarray(record.ts, np.float64)
        if np.any(np.diff(ts) <= 0):
            raise ValueError("motion must have times that increase; give a run forward in time.")
        self.count = int((ts[-1] - ts[0]) / dt * (1 + 1e-9))
        if self.count < 1:
            raise ValueError(f"motion lasts less than one step of {dt} s; give a longer record.")
        rows = np.flatnonzero(ts <= ts[-1] - dt * (1 - 1e-9))
        rows = rows[np.unique(np.linspace(0, rows.size - 1, _MOST_ROWS).astype(int))]
        self.parts = (record.system, record.formulation, record.controller)
        self.solver, self.dt = solver, dt
        self.ts = jnp.asarray(record.ts)[rows]
        self.states = jax.tree.map(lambda x: x[rows], record.states)
        # The record's rows before the times of the steps, and the fraction of the way to the next.
        at = np.interp(ts[0] + dt * np.arange(self.count), ts[rows], np.arange(rows.size))
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
        found = []
        for i in range(0, len(pairs), _BATCH):
            first, second = (np.resize(x[i:], (_BATCH, *x.shape[1:])) for x in (pairs, singles))
            K_D, K_P = -first.sum(axis=1).real, first.prod(axis=1).real
            A = np.zeros((_BATCH, 2, 2))
            A[:, 0, 1], A[:, 1, 0], A[:, 1, 1] = 1.0, -K_P, -K_D
            R = np.array([step_matrix(x, 1.0, self.solver) for x in A])
            factors = np.array([step_matrix([[x]], 1.0, self.solver) for x in second])
            law = _Law(K_D / self.dt, K_P / self.dt**2, -second / self.dt)
            run = (self.parts, self.solver, self.ts, self.states, self.dt)
            squares = _mean_squares(*run, law, R, factors, (self.before, self.fraction), scale)
            found.append(np.asarray(squares)[:, : len(pairs) - i])
        both = np.concatenate(found, axis=1)
        return tuple(np.where(np.isfinite(both), both, np.inf))


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
    """The best roots along a motion, times the step."""

    pair: tuple[complex, complex] | None  # of position constraints; `None` without any
    single: float | None  # of velocity constraints; likewise
    violation: float  # root mean square that they leave, of all constraints over the step

    def __repr__(self) -> str:
        return shown(self)


def best_along(record: Any, solver, dt: float, margin: float) -> MeasuredRoots:
    """The roots with the least violation along a motion, by a search with ever smaller grids.

    The levels are joined by the rate of the motion: `|phi|^2 + |phi_dot / frequency|^2`.

    Raises:
        ValueError: see `motion_frequency`; for a record backward in time or shorter than a step, a
            formulation that does not take gains or changes what they do, an implicit method without
            a tolerance; for steps in which the motion turns by more than half a period, and where
            a step from a state of the motion fails, whatever the gains.
    """
    frequency = motion_frequency(record.system, record)
    turn = frequency * dt
    if turn > np.pi:
        raise ValueError(
            f"the motion turns by {turn:.3g} rad in a step of {dt:.6g} s, {frequency:.6g} 1/s: no "
            "step that long follows it. Give a step below half a period."
        )
    turn = max(turn, _LEAST_TURN)
    steps = MeasuredSteps(record, solver, dt)

    def of_pairs(x):
        pairs = _roots(x)
        found = steps.mean_squares(pairs, -np.exp(x[:, 0]), 1 / turn)[0]
        return np.where(_damped(solver, pairs, margin), found, np.inf)

    def of_singles(x):
        singles = -np.exp(x[:, 0])
        found = steps.mean_squares(_roots(x), singles, 1 / turn)[1]
        return np.where(_damped(solver, singles[:, None], margin), found, np.inf)

    ends = np.log([min(0.005 * turn, 0.03 / steps.count, 0.1), REACH])
    m, r = constraint_counts(record.system, jax.tree.map(lambda x: x[0], steps.states))
    # Minima are sharp where what is injected early cancels what is injected later.
    pair = _searched(of_pairs, np.linspace(ends[0], ends[1], 24), np.log(_RATIOS)) if m else None
    single = (
        _searched(of_singles, np.linspace(ends[0], ends[1], 3 * _BATCH), np.zeros(1)) if r else None
    )
    square = sum(x[1] for x in (pair, single) if x is not None)
    if not np.isfinite(square):
        raise ValueError(
            f"steps of {dt} s from states of the motion are not finite, whatever the gains; give a "
            "shorter step, or a part of the motion without singular positions."
        )
    return MeasuredRoots(
        None if pair is None else tuple(_roots(pair[0][None])[0]),
        None if single is None else -float(np.exp(single[0][0])),
        float(np.sqrt(square)),
    )


def _searched(cost, sizes, ratios) -> tuple[np.ndarray, float]:
    """Where a cost of `(log |z|, log ratio)` is least, and it: on ever smaller grids about it."""
    half = np.array([sizes[1] - sizes[0], ratios[1] - ratios[0] if ratios.size > 1 else 0.0])
    best, least = np.zeros(2), np.inf
    points = np.stack(np.meshgrid(sizes, ratios), axis=-1).reshape(-1, 2)
    offsets = np.linspace(-1.0, 1.0, 7), np.linspace(-1.0, 1.0, min(ratios.size, 5))
    around = np.stack(np.meshgrid(*offsets), axis=-1).reshape(-1, 2)
    for _ in range(1 + _ZOOMS):
        found = cost(points)
        i = int(np.argmin(found))
        if found[i] < least:
            best, least = points[i], float(found[i])
        points = best + half * around
        points[:, 0] = np.minimum(points[:, 0], np.log(REACH))
        half = half / 3
    return best, least


def _roots(x) -> np.ndarray:
    """Roots of `s^2 + 2 ratio size s + size^2`, shape `(batch, 2)`."""
    size, ratio = np.exp(x[:, :1]), np.exp(x[:, 1:])
    apart = np.sqrt((ratio**2 - 1).astype(complex)) * np.array([1.0, -1.0])
    return size * (apart - ratio)


def _damped(solver, roots, margin: float) -> np.ndarray:
    """Whether every step of the range, and every shorter one, damps all of a row of roots."""
    return np.asarray(np.isfinite(worst_damping(solver, roots, margin, 17)).all(axis=1))


def _check_formulation(formulation) -> None:
    capabilities, name = formulation.capabilities, type(formulation).__name__
    if capabilities.passes_singular_positions:
        raise ValueError(
            f"motion is a run by {name}, every step of which is projected onto the constraints: no "
            "violation is left that gains could act on; give one by Multipliers(Baumgarte(…))."
        )
    if not hasattr(formulation, "stabilization"):
        raise ValueError(
            f"motion is a run by {name}, which takes no gains; give one by "
            "Multipliers(Baumgarte(…))."
        )
    if capabilities.weight is not None:
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
