r"""Gains by theory: those for which a step method damps a constraint violation best.

The violation of a stabilized constraint, `y = (phi, d phi/dt)`, obeys `dy/dt = A y` with

    A = [[0, 1], [-K_P, -K_D]]

and a step of size `h` multiplies it by `R(h A)`, with the stability function `R` of the method
[HairerWanner1996, section IV.3]. `R(h A)` has the eigenvalues `R(z_1)`, `R(z_2)`, where `z_1 / h`,
`z_2 / h` are the roots of `s^2 + K_D s + K_P`:

    K_D h = -(z_1 + z_2),        K_P h^2 = z_1 z_2

If `z_1` and `z_2` are two zeros of `R`, then `R(h A) = 0`: a violation vanishes in one step. If
they are the same simple zero, `R(h A)` is nilpotent, and it vanishes in two. A velocity constraint
is one mode, `dg/dt = -Gamma g`, multiplied by `R(-h Gamma)`.
"""

from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxdae.stability.damping import best_damping, worst_damping
from jaxdae.stability.stability_functions import AdamsBashforth, tableau, zeros
from jaxdae.systems.checks import is_concrete

_REGIMES = ("violation",)
# Among zeros of R those are taken that damp best over this range of steps too.
_NEIGHBOURHOOD = 2.0


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
    """

    K_D: Any
    K_P: Any
    Gamma: Any
    factor: float
    velocity_factor: float
    roots: np.ndarray
    margin: float


def step_gains(solver, dt, *, margin: float = 1.0, regime: str = "violation") -> StepGains:
    """Gains that suit a step.

    Args:
        solver: a Runge-Kutta solver of diffrax or `jaxdae.solvers`, or `AdamsBashforth(steps)`.
        dt: largest step [s], positive; it may be traced, and the gains can be differentiated by it.
        margin: largest step over smallest, at least 1: the gains have the least worst damping over
            the steps in `[dt / margin, dt]`. With 1 they are for `dt` alone: zeros of `R`, where
            the method has any, and of these the ones that damp best at `dt / 2` to `dt`.
        regime: "violation", for a violation that is given.

    Returns:
        `StepGains`.

    Raises:
        TypeError: for a solver or a step that is none.
        ValueError: for a step that is not positive, a margin below 1, an unknown regime, or a
            solver without a stability function.
    """
    _check(dt, margin, regime)
    found = _damped_best(_Method(solver), float(margin))
    (first, second), dt = found.roots, as_step(dt)
    return StepGains(
        K_D=-float((first + second).real) / dt,
        K_P=float((first * second).real) / dt**2,
        Gamma=-found.single / dt,
        factor=found.factor,
        velocity_factor=found.single_factor,
        roots=np.array(found.roots),
        margin=float(margin),
    )


class _Damped(NamedTuple):
    """The best pair of roots and the best single one, times the step, with their factors."""

    roots: tuple[complex, complex]
    factor: float
    single: float
    single_factor: float


class _Method:
    """A solver that equals others with the same coefficients."""

    def __init__(self, solver):
        self.solver = solver
        multistep = isinstance(solver, AdamsBashforth)
        a, b = (np.zeros(0), solver.coefficients()) if multistep else _tableau(solver)
        self.key = (multistep, a.shape, a.tobytes(), b.tobytes())

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return isinstance(other, _Method) and self.key == other.key


@lru_cache(256)
def _damped_best(method: _Method, margin: float) -> _Damped:
    solver = method.solver
    exact = margin == 1.0 and not isinstance(solver, AdamsBashforth)
    known = zeros(solver) if exact else np.zeros(0, complex)
    pair = _most_robust(solver, _pairs(known))
    single = _most_robust(solver, [(x, x) for x in known[known.imag == 0]])
    if pair is None:
        z = best_damping(solver, margin)
        pair = (z, z.conjugate())
    if single is None:
        single = (best_damping(solver, margin, real=True),) * 2
    factors = [float(worst_damping(solver, x, margin, 4001).max()) for x in (pair, single)]
    return _Damped(pair, factors[0], float(single[0].real), factors[1])


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


def _tableau(solver) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(
            f"solver is {solver!r}; give a diffrax solver, such as jaxdae.solvers.RK4() or "
            "diffrax.Dopri5(), and then the step: for_step(solver, dt)."
        )
    return tableau(solver)[:2]


def as_step(dt):
    """A step as its quotients are wanted: of Python's kind unless it is an array of JAX."""
    return dt if isinstance(dt, jnp.ndarray) else float(dt)


def _check(dt, margin, regime: str) -> None:
    check_step(dt)
    if not _is_real(margin) or not 1.0 <= margin < np.inf:
        raise ValueError(
            f"margin is {margin!r}; it is the largest step over the smallest, a number from 1 on."
        )
    if regime not in _REGIMES:
        raise ValueError(f"regime must be one of {', '.join(map(repr, _REGIMES))}; got {regime!r}.")


def check_step(dt) -> None:
    """Require a step: a positive number, or one that is being traced.

    Raises:
        TypeError: for what is no real number.
        ValueError: for a number that is not positive and finite.
    """
    if not _is_real(dt):
        raise TypeError(
            f"dt is {dt!r}; give the step [s], a positive number, after the solver: "
            "for_step(solver, dt)."
        )
    if is_concrete(dt) and not 0.0 < float(dt) < np.inf:
        raise ValueError(f"dt is {dt}; the step must be a positive, finite number of seconds.")


def _is_real(value) -> bool:
    """Whether it is one real number, traced or not, and no boolean."""
    kinds = (int, float, np.ndarray, np.generic, jnp.ndarray)
    return (
        isinstance(value, kinds)
        and not isinstance(value, bool)
        and np.ndim(value) == 0
        and jnp.issubdtype(jnp.result_type(value), jnp.number)
        and not jnp.issubdtype(jnp.result_type(value), jnp.complexfloating)
    )
