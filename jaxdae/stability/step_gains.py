r"""Gains by theory: those for which a step method damps a constraint violation best.

The violation of a stabilized constraint, `y = (phi, d phi/dt)`, obeys `dy/dt = A y` with

    A = [[0, 1], [-K_P, -K_D]]

and a step of size `h` multiplies it by `R(h A)`, with the stability function `R` of the method
[HairerWanner1996, section IV.3]. `R(h A)` has the eigenvalues `R(z_1)`, `R(z_2)`, where `z_1 / h`,
`z_2 / h` are the roots of `s^2 + K_D s + K_P`:

    K_D h = -(z_1 + z_2),        K_P h^2 = z_1 z_2

A given violation: if `z_1` and `z_2` are two zeros of `R`, then `R(h A) = 0`, and it vanishes in
one step. If they are the same simple zero, `R(h A)` is nilpotent, and it vanishes in two. A
velocity constraint is one mode, `dg/dt = -Gamma g`, multiplied by `R(-h Gamma)`. What the steps'
own errors keep up has other gains, see `jaxdae.stability.stationary`.
"""

from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, TypedDict

import jax.numpy as jnp
import numpy as np

from jaxdae.reprs import shown
from jaxdae.stability.arguments import (
    check_positive_number,
    check_ratio,
    checked_tableau,
    is_real,
)
from jaxdae.stability.damping import best_damping, Transient, transient, worst_damping
from jaxdae.stability.finite_damping import best_remainder
from jaxdae.stability.measured import best_along, Record
from jaxdae.stability.motion import motion_rate
from jaxdae.stability.stability_functions import is_multistep, zeros
from jaxdae.stability.stationary import (
    best_stationary,
    Motion,
    stationary_violation,
    turn_of_error,
)
from jaxdae.systems.checks import is_concrete

_REGIMES = ("violation", "steps")
# Among zeros of R those are taken that damp best over this range of steps too.
_NEIGHBOURHOOD = 2.0
# Error of one step, relative to the motion, of a run of which nothing is known.
_USUAL_ERROR = 1e-6
# Of a slower motion a step's error is below round-off: it counts as this one.
_ROUND_OFF = 1e-14
# Of a larger one over the step the square overflows.
_LARGEST_SCALE = 1e100
# Of smaller squares of the step the inverse, times what gains are at a step of one, overflows.
_LEAST_SQUARE = 1e-300


class StepGains(NamedTuple):
    """Gains for a step, and what they do to a violation.

    Args:
        K_D: velocity gain [1/s].
        K_P: position gain [1/s^2].
        Gamma: gain of velocity constraints [1/s].
        factor: a step of the range multiplies modes of position constraints by this at most.
        velocity_factor: likewise for velocity constraints.
        stationary: root mean square of the violation that the steps' own errors keep up, in units
            of the constraint's velocity-dependent acceleration times `dt^2`; see
            `stationary_violation`. With a motion, that of its length from a consistent start. Not a
            number for `AdamsBashforth`.
        frequency: rate of the motion for which it is so [1/s].
        roots: `dt` times the roots of `s^2 + K_D s + K_P`, shape `(2,)`.
        margin: the largest step of the range over the smallest.
        transient: constants of `bound`.
    """

    K_D: Any
    K_P: Any
    Gamma: Any
    factor: float
    velocity_factor: float
    stationary: float
    frequency: Any
    roots: np.ndarray
    margin: float
    transient: Transient

    def __repr__(self) -> str:
        return shown(self)

    def bound(self, steps: int) -> float:
        """What so many steps of the range, in any order, leave of a violation at most.

        A bound on `|(sqrt(K_P) phi, phi_dot)|` over that at the beginning, as far as linear theory
        holds (`linear_range`): `min(condition F^n, F^n + n slope F^(n-1))`, see
        `jaxdae.stability.damping.transient`. It may exceed 1 for few steps.
        """
        F, (condition, slope) = self.factor, self.transient
        left = F**steps + steps * slope * F ** max(steps - 1, 0)
        return left if np.isinf(condition) else min(condition * F**steps, left)


class StepOptions(TypedDict, total=False):
    """Options of `step_gains`, which every `for_step` hands on; they are explained there."""

    margin: float
    regime: str
    frequency: float | None
    time_scale: float | None
    horizon: int | np.integer | None
    motion: Record | None


def step_gains(
    solver,
    dt,
    *,
    margin: float = 1.0,
    regime: str = "violation",
    frequency: float | None = None,
    time_scale: float | None = None,
    horizon: int | np.integer | None = None,
    motion: Record | None = None,
) -> StepGains:
    r"""Gains that suit a step, in one of two regimes.

    - *violation*: a violation is given, and the gains have the least worst damping over the steps
      in `[dt / margin, dt]`. With `margin=1` they are for `dt` alone: zeros of `R`, where the
      method has any, and of these the ones that damp best from `dt / 2` to `dt`.
    - *steps*: starts are consistent, and only the steps' own errors feed the violation. The gains
      keep what becomes of these least. They follow the motion rather than the step, and are far
      smaller. From a `motion`, such as a first run, the errors are measured, see
      `jaxdae.stability.measured`: the gains are for runs like it, of its length. From the rate of
      the motion alone they are an estimate, derived for a harmonic one, see
      `jaxdae.stability.stationary`. Measured on ten systems with six methods at `omega h = 0.1`:
      with a motion the violation is at most 1.9 times the least of a search, with the rate alone
      less than 3 times in 48 of 60 cases and up to 34 times. No gains over the step do better than
      6 times with RK4 both on the pendulum and on the two-link arm, whose steps' errors cancel.
      Runs that leave the motion, as those of Euler's method may, have other violations.

    A method that is stable everywhere may damp the better the larger the gains: then roots end at
    10 over the step, beyond which round-off of the constraint would be fed to the velocities.

    Args:
        solver: a Runge-Kutta solver of diffrax or `jaxdae.solvers`, or `AdamsBashforth(steps)` (a
            given violation only).
        dt: largest step [s], positive; it may be traced, and the gains can be differentiated by it.
        margin: largest step over smallest, at least 1.
        regime: "violation" or "steps".
        frequency: rate `omega` at which the motion changes [1/s], see `motion_frequency`; by
            default the one that the method resolves with an error of 1e-6 in a step.
        time_scale: `tau` of the norm `|phi|^2 + tau^2 |phi_dot|^2` that regime "steps" keeps small
            [s]; by default `1 / frequency`.
        horizon: for a given violation and a margin above 1, judges position gains by the norm of
            `(phi, dt phi_dot)` that so many steps leave. By default by the factor alone, to which
            the norm falls in the end: better after many steps, worse after few.
        motion: for the regime "steps": the trajectory of one run with `Multipliers`, with rows
            close enough to draw the motion; its rate is the default of `frequency`. Roots are
            looked for that all steps of the range damp, and the violation at `dt` is kept least.

    Returns:
        `StepGains`.

    Raises:
        TypeError: for a solver or a step that is none.
        ValueError: for a step, a frequency or a time scale that is not positive, a step whose
            inverse square overflows, a margin below 1, an unknown regime, a solver without a
            stability function, a traced frequency or time scale, or a traced step beside one or
            beside a motion; for a motion that does not serve, see `jaxdae.stability.measured`.
    """
    method = _Method(solver)
    _check(dt, margin, regime)
    rate = None
    if motion is not None:
        _check_motion(motion, dt, regime)
        rate = motion_rate(motion.system, motion)
        frequency = rate.frequency if frequency is None else frequency
    turning = _motion(method, dt, frequency, time_scale)
    judged = _horizon(method, regime, horizon)
    if regime == "violation":
        found = _damped_best(method, float(margin), turning, judged)
    else:
        found = _stationary_best(method, float(margin), turning)
    if motion is not None and rate is not None:
        found = _measured_best(method, float(margin), turning, found, motion, float(dt), rate.size)
    (first, second), dt = found.roots, _as_step(dt)
    return StepGains(
        K_D=-float((first + second).real) / dt,
        K_P=float((first * second).real) / dt**2,
        Gamma=-found.single / dt,
        factor=found.factor,
        velocity_factor=found.single_factor,
        stationary=found.stationary,
        frequency=turning.turn / dt,
        roots=np.array(found.roots),
        margin=float(margin),
        transient=found.transient,
    )


class _Found(NamedTuple):
    """The best pair of roots and the best single one, times the step, and what they do."""

    roots: tuple[complex, complex]
    single: float
    factor: float
    single_factor: float
    stationary: float
    transient: Transient


class _Method:
    """A solver that equals others with the same coefficients."""

    def __init__(self, solver):
        self.solver = solver
        self.multistep = is_multistep(solver)
        a, b = (np.zeros(0), solver.linear_steps) if self.multistep else checked_tableau(solver)[:2]
        self.key = (self.multistep, a.tobytes(), b.tobytes())

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return isinstance(other, _Method) and self.key == other.key


@lru_cache(256)
def _damped_best(method: _Method, margin: float, motion: Motion, horizon: int | None) -> _Found:
    solver = method.solver
    known = zeros(solver) if margin == 1.0 and not method.multistep else np.zeros(0, complex)
    pair = _most_robust(solver, _pairs(known))
    single = _most_robust(solver, [(x, x) for x in known[np.imag(known) == 0]])
    if pair is None:
        z = best_remainder(solver, margin, horizon) if horizon else best_damping(solver, margin)
        pair = (z, z.conjugate())
    if single is None:
        single = (best_damping(solver, margin, real=True),) * 2
    return _found(method, margin, motion, pair, single)


@lru_cache(256)
def _stationary_best(method: _Method, margin: float, motion: Motion) -> _Found:
    if method.multistep:
        raise ValueError(
            "regime='steps' is for Runge-Kutta methods: a multistep method has no stages that "
            "leave the constraint. Take regime='violation'."
        )
    z = best_stationary(method.solver, margin, motion)
    single = (best_stationary(method.solver, margin, motion, real=True),) * 2
    return _found(method, margin, motion, (z, z.conjugate()), single)


def _measured_best(
    method: _Method,
    margin: float,
    turning: Motion,
    estimate: _Found,
    record: Record,
    dt: float,
    size: float,
) -> _Found:
    """The best along a record; of kinds of constraints that it has not, those of the estimate."""
    best = best_along(record, method.solver, dt, margin, turning)
    pair = best.pair or estimate.roots
    single = estimate.single if best.single is None else best.single
    found = _found(method, margin, turning, pair, (single, single))
    return found._replace(stationary=best.violation / (size * dt**2))


def _found(method: _Method, margin: float, motion: Motion, pair, single) -> _Found:
    samples = 2001
    factor, single_factor = (
        float(worst_damping(method.solver, x, margin, samples).max()) for x in (pair, single)
    )
    stationary, before = float("nan"), Transient(float("nan"), float("nan"))
    if not method.multistep:
        before = transient(method.solver, pair, margin)
        A = np.array([[0.0, 1.0], [-(pair[0] * pair[1]).real, (pair[0] + pair[1]).real]])
        stationary = float(stationary_violation(method.solver, A, motion))
    return _Found(pair, float(np.real(single[0])), factor, single_factor, stationary, before)


def _pairs(known) -> list[tuple[complex, complex]]:
    """Pairs of zeros that roots of a real polynomial can be.

    Two that are counted apart first, since then `R(h A) = 0`; otherwise one simple zero twice.
    """
    above, real = known[known.imag > 0], known[known.imag == 0]
    pairs = [(z, z.conjugate()) for z in above] + [*combinations(real, 2)]
    return pairs or [(x, x) for x in real]


def _most_robust(solver, pairs) -> tuple[complex, complex] | None:
    """The admissible pair that damps best over a range of steps; `None` without any."""
    worst = [float(worst_damping(solver, x, _NEIGHBOURHOOD).max()) for x in pairs]
    best = int(np.argmin(worst)) if worst else 0
    return pairs[best] if worst and np.isfinite(worst[best]) else None


def _as_step(dt):
    """A step as its quotients are wanted: of Python's kind unless it is an array of JAX."""
    return dt if isinstance(dt, jnp.ndarray) else float(dt)


def _horizon(method: _Method, regime: str, horizon) -> int | None:
    if horizon is None:
        return None
    if regime != "violation" or method.multistep:
        raise ValueError("horizon is for a given violation and a Runge-Kutta method.")
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise ValueError(f"horizon is {horizon!r}; it is a number of steps, from 1 on.")
    return int(horizon)


def _check_motion(motion, dt, regime: str) -> None:
    if any(not hasattr(motion, name) for name in ("ts", "system", "formulation")):
        raise TypeError(
            f"motion is {motion!r}; give the trajectory of a run: motion=jaxdae.simulate(…)."
        )
    if regime != "steps":
        raise ValueError(
            f"motion is for the regime 'steps', not for {regime!r}: a given violation decays "
            "in the same way along all motions. Leave it out, or say regime='steps'."
        )
    if not is_concrete(dt):
        raise ValueError(
            "dt is being traced, so that no steps of it can be made along the motion; leave the "
            "motion out, or call step_gains outside of the traced function."
        )


def _motion(method: _Method, dt, frequency, time_scale) -> Motion:
    """The motion over the step; numbers, because the search for gains is not traced."""
    given = {"frequency": frequency, "time_scale": time_scale}
    for name, value in given.items():
        if value is not None:
            check_positive_number(name, value)
    traced = [x for x, y in given.items() if not is_concrete(y)]
    if traced:
        raise ValueError(
            f"{' and '.join(traced)} cannot be traced: the search for gains is made with numbers; "
            "leave it out, or call step_gains outside of the traced function."
        )
    if not is_concrete(dt) and given != dict.fromkeys(given):
        raise ValueError(
            "dt is being traced, so that frequency and time_scale cannot be compared with it; "
            "leave them out, or call step_gains outside of the traced function."
        )
    usual = 1.0 if method.multistep else turn_of_error(method.solver, _USUAL_ERROR)
    turn = usual if frequency is None else float(frequency) * float(dt)
    if turn > np.pi:
        raise ValueError(
            f"frequency is {float(frequency or 0.0):.6g} 1/s, by which the motion turns by "
            f"{turn:.3g} rad in a step of {float(dt):.6g} s: no step that long follows it. Give a "
            "step below half a period."
        )
    if not method.multistep:
        turn = max(turn, turn_of_error(method.solver, _ROUND_OFF))
    scale = 1 / turn if time_scale is None else float(time_scale) / float(dt)
    if scale > _LARGEST_SCALE:
        raise ValueError(
            f"time_scale is {time_scale} s, {scale:.3g} steps: positions would not count beside "
            "velocities; give one nearer to that of the motion."
        )
    return Motion(turn, scale)


def _check(dt, margin, regime: str) -> None:
    if not is_real(dt):
        raise TypeError(
            f"dt is {dt!r}; give the step [s], a positive number, after the solver: "
            "for_step(solver, dt)."
        )
    check_positive_number("dt", dt)
    if is_concrete(dt) and not _LEAST_SQUARE <= float(dt * dt) < np.inf:
        short = float(dt) < 1.0
        raise ValueError(
            f"dt is {dt} s: gains {'grow' if short else 'fall'} with its inverse square, which is "
            f"{'no finite number' if short else 'zero'} there; give a "
            f"{'longer' if short else 'shorter'} step."
        )
    check_ratio("margin", margin)
    if regime not in _REGIMES:
        raise ValueError(f"regime must be one of {', '.join(map(repr, _REGIMES))}; got {regime!r}.")
