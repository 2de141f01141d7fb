r"""The violation that the steps' own errors keep up.

From a consistent start a step does not leave the constraint exactly: it injects `d` into `y = (phi,
h phi_dot)`, and the violation ends where it loses as much as it gains,

    y_(n+1) = R(Z) y_n + d_n,        Z = h A = [[0, 1], [-K_P h^2, -K_D h]]

What `d` is. Along the stages `phi` obeys the stage equations with a defect,

    Y_i = y_n + sum_j a_ij Z Y_j + D_i,        d = D_end + Z (b^T x I) (I - a x Z)^-1 D

because `phi` is not linear in the coordinates. With the velocity part `kappa` of the acceleration
of the constraint (`gamma` of `evaluate`),

    D_i = h^2 (c_i^2 / 2 - sum_j a_ij c_j) (kappa, h dkappa/dt) + O(h^3)

An explicit method has stage order 1, so that `D` is of order `h^2` whatever the order of the
method. With gains `K_P h^2`, `K_D h` of order 1 nothing takes that away: this is the reduction of
order of stiff problems [ProtheroRobinson1974]. A method of order 4 of four stages leaves
`Z^3 h^2 kappa / 96`. Large gains raise it. With small ones the classical local error, of order
`h^(p+1)`, is divided by what little they damp. The optimum lies between, near the rate `omega` at
which the motion changes, whatever the step. Both parts for a motion with

    kappa = exp(i omega t):    D of the curve exp(i omega t) / omega^2, and besides
                               C ((h omega)^2 + |z|^2)^((p-1)/2) h^2 (1, h omega)

with the error constant `C` of the method and the larger root `z` of `Z`. The latter stands for what
the coordinates along the constraint add: each of the error's elementary differentials is a product
of derivatives of the stabilized equations, in which the motion's rate and the gains' take turns.
Since the normal direction turns with the motion, injections may be constant,
harmonic or unrelated from step to step: the mean square of the three counts,

    J^2 = |(I - R)^-1 d|^2 + |(exp(i h omega) I - R)^-1 d|^2 + sum_n |R^n d|^2

in the norm `|phi|^2 + tau^2 |phi_dot|^2`, in which a time scale joins the two levels.
"""

from math import factorial
from typing import NamedTuple

import numpy as np

from jaxdae.reprs import shown
from jaxdae.stability.arguments import checked_tableau
from jaxdae.stability.damping import Effort, least, REACH, worst_damping
from jaxdae.stability.error_constants import error_constant
from jaxdae.stability.stability_functions import companions, tableau


class Motion(NamedTuple):
    """What a step is to follow, and how its violation is measured.

    Args:
        turn: `omega h`, the rate of the motion times the step.
        scale: `tau / h`, the time scale that joins the two levels over the step.
    """

    turn: float
    scale: float

    def __repr__(self) -> str:
        return shown(self)


def stationary_violation(solver, Z, motion: Motion) -> np.ndarray:
    """Root mean square of the stationary violation, in units of `|kappa| h^2`.

    Args:
        solver: a Runge-Kutta solver.
        Z: `h A`, shape `(..., 2, 2)` for position constraints, `(..., 1, 1)` for velocity
            constraints, whose violation is `g` times `h`.
        motion: see `Motion`.

    Returns:
        Of the shape of `Z` without its last two axes; infinite where the steps do not contract.
    """
    Z = np.asarray(Z, float)
    size = Z.shape[-1]
    R, harmonic = _step_and_injection(solver, Z, motion.turn)
    order, constant = error_constant(*tableau(solver)[:2])
    rates = np.hypot(motion.turn, np.abs(np.linalg.eigvals(Z)).max(axis=-1))
    # Of the residual, then of its rate, of which velocity constraints have the latter alone.
    parts = np.diag([1.0, motion.turn])[-size:, -size:].astype(complex)
    classical = constant * rates[..., None, None] ** (order - 1) * parts
    injected = np.concatenate([harmonic[..., None], classical], axis=-1)
    unit = np.diag([1.0, motion.scale])[-size:, -size:]
    stable = np.abs(np.linalg.eigvals(R)).max(axis=-1) < 1 - 1e-9
    contracting = np.where(stable[..., None, None], R, 0.0)
    squares = _responses(contracting, injected, unit, motion.turn)
    return np.where(stable, np.sqrt(squares), np.inf)


def _responses(R, injected, unit, turn: float) -> np.ndarray:
    """Mean square of the responses to constant, harmonic and unrelated injections."""
    eye = np.eye(R.shape[-1])
    total = np.zeros(R.shape[:-2])
    for z in (1.0, np.exp(1j * turn)):
        response = unit @ np.linalg.solve(z * eye - R, injected)
        total = total + (np.abs(response) ** 2).sum(axis=(-2, -1))
    # sum_n R^n d d^* R^n^T by doubling: S_2n = S_n + R^n S_n R^n^T.
    power = R
    summed = np.real(injected @ np.conj(np.swapaxes(injected, -1, -2)))
    for _ in range(24):
        summed = summed + power @ summed @ np.swapaxes(power, -1, -2)
        power = power @ power
    return total + np.trace(unit @ summed @ unit, axis1=-2, axis2=-1)


def _step_and_injection(solver, Z, turn: float) -> tuple[np.ndarray, np.ndarray]:
    """`R(Z)`, and `d` of a harmonic constraint, in units of `|kappa| h^2`."""
    a, b, c = tableau(solver)
    size = Z.shape[-1]
    eye = np.broadcast_to(np.eye(size), Z.shape)
    # exp(i omega t) / omega^2 and its rate: the same, but for a factor.
    levels = np.array([1.0, 1j * turn])[-size:]
    slopes = c * _exponential_rest(turn * c, 1)
    *defects, last = [
        (x**2 * _exponential_rest(turn * x, 2) - weights @ slopes) * levels
        for x, weights in zip((*c, 1.0), (*a, b), strict=True)
    ]
    # Columns: what a violation at the beginning does, then the defects.
    states: list[np.ndarray] = []
    for i, defect in enumerate(defects):
        known = _beside(eye, defect)
        known = known + Z @ sum((a[i, j] * x for j, x in enumerate(states)), 0 * known)
        states.append(np.linalg.solve(eye - a[i, i] * Z, known) if a[i, i] else known)
    both = _beside(eye, last) + Z @ sum(x * y for x, y in zip(b, states, strict=True))
    return np.real(both[..., :size]), both[..., size]


def _beside(matrices, column) -> np.ndarray:
    columns = np.broadcast_to(column, matrices.shape[:-1])[..., None]
    return np.concatenate([matrices.astype(complex), columns], axis=-1)


def _exponential_rest(x, k: int):
    """`(exp(i x) - 1 - … - (i x)^(k-1) / (k-1)!) / (i x)^k`, without cancellation at small `x`."""
    z = 1j * np.asarray(x, float)
    series = sum(np.where(np.abs(z) < 1, z, 0.0) ** n / factorial(n + k) for n in range(20))
    known = sum(z**n / factorial(n) for n in range(k))
    large = (np.exp(z) - known) / np.where(z == 0, 1.0, z) ** k
    return np.where(np.abs(z) < 1, series, large)


def turn_of_error(solver, tolerance: float) -> float:
    """`omega h` at which one step's error, relative to the motion, is a tolerance.

    `C (omega h)^(p+1) = tolerance`, with the method's order and error constant.
    """
    order, constant = error_constant(*checked_tableau(solver)[:2])
    return float((tolerance / constant) ** (1 / (order + 1)))


def best_stationary(solver, margin: float, motion: Motion, *, real: bool = False) -> complex:
    """The roots with the least stationary violation over a range of steps.

    Args:
        solver: a Runge-Kutta solver.
        margin: largest step over smallest.
        motion: at the largest step.
        real: whether for velocity constraints, which have one real root.

    Returns:
        Largest step times root.
    """
    steps = np.geomspace(1.0 / margin, 1.0, 3 if margin > 1 else 1)

    def cost(z):
        # Pairs that ring would answer to every harmonic of a motion near their own frequency.
        calm = np.abs(np.imag(z)) <= -np.real(z) * (1 + 1e-9)
        damped = np.isfinite(worst_damping(solver, z, margin, 17))
        worst = np.where(calm & damped, 0.0, np.inf)
        for x in steps:
            part = Motion(x * motion.turn, motion.scale / x)
            scaled = x * np.asarray(z)
            matrices = np.real(scaled)[..., None, None] if real else companions(scaled)
            worst = np.maximum(worst, x**2 * stationary_violation(solver, matrices, part))
        return worst

    effort = Effort(min(0.05 * motion.turn, 0.1), REACH, 25, 65, 2, 22, 17)
    return least(cost, effort, real=real)
