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
own errors keep up has other gains, see `jaxdae.stability.measured`.
"""

import warnings
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, TypedDict, Unpack

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known, fails
from jaxdae.reprs import shown
from jaxdae.stability.arguments import check_positive_number, is_real
from jaxdae.stability.damping import best_damping, worst_damping
from jaxdae.stability.measured import best_along
from jaxdae.stability.stability_functions import is_multistep, tableau, zeros

# Among zeros of R those are taken that damp best over this range of steps too.
_NEIGHBOURHOOD = 2.0
# Of smaller squares of the step the inverse, times what gains are at a step of one, overflows.
_LEAST_SQUARE = 1e-300
# Turn of a motion in a step that gains should bear [rad]: 63 steps in a turn are few.
_USUAL_TURN = 0.1
_TURNS = np.geomspace(0.01, 1.5, 60)
_TURNED_STEPS = 400


class StepGains(NamedTuple):
    """Gains for a step, and what they do to a violation.

    Args:
        K_D: velocity gain [1/s].
        K_P: position gain [1/s^2].
        Gamma: gain of velocity constraints [1/s].
        factor: a step of the range multiplies modes of position constraints by this at most.
        velocity_factor: likewise for velocity constraints.
        roots: `dt` times the roots of `s^2 + K_D s + K_P`, shape `(2,)`.
        margin: the largest step of the range over the smallest.
        violation: root mean square of `(phi, phi_dot / frequency)` that the steps' own errors keep
            up along the motion the gains are for, from a consistent start; not a number without.
    """

    K_D: Any
    K_P: Any
    Gamma: Any
    factor: float
    velocity_factor: float
    roots: np.ndarray
    margin: float
    violation: float

    def __repr__(self) -> str:
        return shown(self)


class StepOptions(TypedDict, total=False):
    """Options of `step_gains`, which every `for_step` hands on; they are explained there."""

    margin: float
    regime: str
    motion: Any


def step_gains(
    solver, dt, *, margin: float = 1.0, regime: str = "violation", motion: Any = None
) -> StepGains:
    r"""Gains that suit a step, in one of two regimes.

    - *violation*: a violation is given, and the gains have the least worst damping over the steps
      in `[dt / margin, dt]`. With `margin=1` they are for `dt` alone: zeros of `R`, where the
      method has any, and of these the ones that damp best from `dt / 2` to `dt`.
    - *steps*: starts are consistent, and only the steps' own errors feed the violation. The gains
      keep what becomes of these least. They follow the motion rather than the step, and are far
      smaller: from a `motion`, such as a first run, the errors are measured, see
      `jaxdae.stability.measured`, and the gains are for runs like it, of its length. On ten systems
      with six methods, at a tenth of a radian in each step, the violation was at most 1.9 times the
      least of a search. Runs that leave the motion, as those of Euler's method may, have others.

    A method that is stable everywhere may damp the better the larger the gains: then roots end at
    10 over the step, beyond which round-off of the constraint would be fed to the velocities.

    Args:
        solver: a Runge-Kutta solver of diffrax or `jaxdae.solvers`, or `AdamsBashforth(steps)` (a
            given violation only).
        dt: largest step [s], positive; it may be traced, and the gains can be differentiated by it.
        margin: largest step over smallest, at least 1.
        regime: "violation" or "steps".
        motion: for the regime "steps": the trajectory of one run with `Multipliers`, with rows
            close enough to draw the motion. Roots are looked for that all steps of the range damp,
            and the violation at `dt` is kept least. Gains of a kind of constraints that the system
            does not have are those for a given violation.

    Returns:
        `StepGains`.

    Raises:
        TypeError: for a solver, a step or a motion that is none.
        ValueError: for a step that is not positive, or whose inverse square overflows, a margin
            below 1, an unknown regime, a solver without a stability function, or a traced step
            beside a motion; for a motion that does not serve, see `jaxdae.stability.measured`.
    """
    method = _SolverKey(solver)
    _check(dt, margin)
    _check_motion(method, motion, dt, regime)
    pair, single, factor, single_factor = _damped_best(method, float(margin))
    violation = float("nan")
    if motion is not None:
        best = best_along(motion, solver, float(dt), float(margin))
        pair, single = best.pair or pair, best.single or single
        factor, single_factor = _factors(solver, float(margin), pair, single)
        violation = best.violation
    dt = dt if isinstance(dt, jnp.ndarray) else float(dt)
    return StepGains(
        K_D=-float((pair[0] + pair[1]).real) / dt,
        K_P=float((pair[0] * pair[1]).real) / dt**2,
        Gamma=-single / dt,
        factor=factor,
        velocity_factor=single_factor,
        roots=np.array(pair),
        margin=float(margin),
        violation=violation,
    )


class _SolverKey:
    """A solver that equals others with the same coefficients."""

    def __init__(self, solver):
        self.solver = solver
        self.multistep = is_multistep(solver)
        parts = (
            (np.asarray(solver.linear_steps),) if self.multistep else _checked_tableau(solver)[:2]
        )
        self.key = (self.multistep, *(x.tobytes() for x in parts))

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return isinstance(other, _SolverKey) and self.key == other.key


@lru_cache(256)
def _damped_best(method: _SolverKey, margin: float) -> tuple[Any, float, float, float]:
    """The pair of roots and the single one that damp best, times the step, and their factors."""
    solver = method.solver
    known = zeros(solver) if margin == 1.0 and not method.multistep else np.zeros(0, complex)
    pair = _most_robust(solver, _pairs(known))
    real = _most_robust(solver, [(x, x) for x in known[np.imag(known) == 0]])
    if pair is None:
        z = best_damping(solver, margin)
        pair = (z, z.conjugate())
    single = best_damping(solver, margin, real=True) if real is None else real[0]
    single = float(np.real(single))
    return pair, single, *_factors(solver, margin, pair, single)


def _factors(solver, margin: float, pair, single: float) -> tuple[float, float]:
    worst = worst_damping(solver, [*pair, single], margin, 2001)
    return float(worst[:2].max()), float(worst[2])


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


def gains_for_step(solver, dt, **options: Unpack[StepOptions]) -> StepGains:
    """`step_gains`, with a warning where they do not bear constraints that bend."""
    gains = step_gains(solver, dt, **options)
    turn = largest_turn(solver, gains)
    if turn < _USUAL_TURN:
        smaller = "a smaller margin" if gains.margin > 1 else "another method"
        warnings.warn(
            f"gains for {type(solver).__name__} with margin={gains.margin:g}: a step damps "
            f"violations of straight constraints, but where the motion turns by more than "
            f"{turn:.2g} rad in the longest step (a particle on a circle), violations grow until "
            f"the run fails, or change its speed by a factor of two in {_TURNED_STEPS} steps. Take "
            f"{smaller}, or shorter steps.",
            RuntimeWarning,
            stacklevel=3,
        )
    return gains


def largest_turn(solver, gains: StepGains) -> float:
    """Angle by which a motion may turn in a step of the gains' largest size [rad].

    Stability functions describe constraints whose normals do not turn. A particle that moves freely
    on a circle, in two coordinates with the stabilized multiplier, is the simplest motion whose do:
    it is integrated for 400 steps at several speeds at once. From some speed on it leaves the
    circle, or violations that do not decay drive or brake it.

    Args:
        solver: an explicit Runge-Kutta method.
        gains: of `step_gains`, for this solver.

    Returns:
        The least turn in a step at which `|q.q - 1|` exceeds 0.5 or the speed changes by a factor
        of two; infinite where none up to 1.5 rad is, and for methods that are not explicit or have
        several steps.
    """
    method = _SolverKey(solver)
    if method.multistep or np.triu(tableau(solver)[0]).any():
        return np.inf
    first, second = (complex(x) for x in gains.roots)
    return _least_turn(method, -(first + second).real, (first * second).real)


@lru_cache(256)
def _least_turn(method: _SolverKey, damping: float, stiffness: float) -> float:
    a, b, _ = tableau(method.solver)

    def rate(y):
        """Of `(q, v)` in units of the step, shape `(2, 2, turns)`."""
        q, v = y
        square, slope = (q * q).sum(0), 2 * (q * v).sum(0)
        wanted = -damping * slope - stiffness * (square - 1)
        return np.stack([v, q * (wanted - 2 * (v * v).sum(0)) / (2 * square)])

    y = np.zeros((2, 2, _TURNS.size))
    y[0, 0], y[1, 1] = 1.0, _TURNS
    left = np.zeros(_TURNS.size, bool)
    with np.errstate(all="ignore"):
        for _ in range(_TURNED_STEPS):
            stages = np.zeros((b.size, *y.shape))
            for i in range(b.size):
                stages[i] = rate(y + np.tensordot(a[i, :i], stages[:i], 1))
            y = y + np.tensordot(b, stages, 1)
            length, speed = (np.hypot(*x) for x in y)
            # Asked for what stays, so that NaN counts as having left.
            left |= ~((np.abs(length**2 - 1) < 0.5) & (np.abs(np.log2(speed / _TURNS)) < 1))
    return float(_TURNS[left.argmax()]) if left.any() else np.inf


def _checked_tableau(solver) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tableau `(a, b, c)` of what a user gave as a solver."""
    if isinstance(solver, type) or not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(
            f"solver is {solver!r}; give a diffrax solver, with brackets, such as "
            "jaxdae.solvers.RK4() or diffrax.Dopri5(), and then the step: for_step(solver, dt)."
        )
    if isinstance(solver, diffrax.AbstractWrappedSolver):
        raise ValueError(
            f"{type(solver).__name__} wraps {type(solver.solver).__name__}, and changes what a "
            "step does to a violation. Projected leaves no violation to stabilize: use "
            "Multipliers() without a stabilization, or gains for the solver that it wraps."
        )
    return tableau(solver)


def _check(dt, margin) -> None:
    if not is_real(dt):
        raise TypeError(
            f"dt is {dt!r}; give the step [s], a positive number, after the solver: "
            "for_step(solver, dt)."
        )
    check_positive_number("dt", dt)
    if fails(lambda x: _LEAST_SQUARE <= float(x * x) < np.inf, dt):
        raise ValueError(
            f"dt is {dt} s: gains go with its inverse square, which is no finite number or zero "
            f"there; give a {'longer' if float(dt) < 1.0 else 'shorter'} step."
        )
    if not is_real(margin) or not are_known(margin) or not 1.0 <= margin < np.inf:
        raise ValueError(
            f"margin is {margin!r}; it is the largest step over the smallest, a number from 1 on."
        )


def _check_motion(method: _SolverKey, motion, dt, regime: str) -> None:
    if regime not in ("violation", "steps"):
        raise ValueError(f"regime must be one of 'violation', 'steps'; got {regime!r}.")
    if regime == "violation":
        if motion is not None:
            raise ValueError(
                "motion is for the regime 'steps', not for 'violation': a given violation decays "
                "in the same way along all motions. Leave it out, or say regime='steps'."
            )
        return
    if method.multistep:
        raise ValueError(
            "regime='steps' is for Runge-Kutta methods: a multistep method has no stages that "
            "leave the constraint. Take regime='violation'."
        )
    if any(not hasattr(motion, name) for name in ("ts", "system", "formulation")):
        raise TypeError(
            f"motion is {motion!r}; the regime 'steps' measures errors along the trajectory of a "
            "run: motion=jaxdae.simulate(…)."
        )
    if not are_known(dt):
        raise ValueError(
            "dt is being traced, so that no steps of it can be made along the motion; take "
            "regime='violation', or call step_gains outside of the traced function."
        )
