r"""What is known of realizing forces before a run: thresholds, rates, times, powers.

All follow from the energy of the constraint functions

    G = psi'^T S psi' / 2,    S = (J M^-1 J^T)^-1,    rho1^2 |psi'|^2 <= G <= rho2^2 |psi'|^2

[Matyukhin1999, eq. 4.3]. The paper takes for `S` the block of the inertia matrix that belongs to
`psi'`, which drops the coupling to the other quasi-velocities (eqs. 5.6, 6.6); forces on `psi'`
feel the inertia that is left when those are eliminated.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.formulations.realizing import Law, Magnitude, value_of
from jaxdae.reprs import shown
from jaxdae.systems import constraint_residuals, evaluate, mass_and_jacobian, State, System
from jaxdae.systems.kinematics import along_motion


class RealizingConstants(NamedTuple):
    """Constants of the estimates at one state; along a motion take the largest `A`, `rho2`.

    Args:
        A: growth of `G` without realizing forces [1/s], for motions without reactions.
        rho1: `rho1^2 |psi'|^2 <= G`.
        rho2: `G <= rho2^2 |psi'|^2`.
    """

    A: float
    rho1: float
    rho2: float

    def __repr__(self) -> str:
        return shown(self)


def realizing_constants(
    system: System, t, state: State, controller: Callable | None = None
) -> RealizingConstants:
    r"""`A`, `rho1` and `rho2` at a state on the constraints.

    A small `psi' = x` adds `M^-1 J^T S x` to the velocities and leaves the other quasi-velocities.
    Without realizing forces `dG/dt = -r . x + x^T W x + ...` with the reactions `r`; where they
    vanish, `A = max x^T W x / (x^T S x / 2)`, or zero where that is negative.

    Args:
        system: the declaration.
        t: time [s].
        state: on the constraints.
        controller: control input `u = controller(t, q, v, w)`, if any.

    Returns:
        `RealizingConstants`.
    """
    S, W = (np.asarray(x, float) for x in _forms(system, jnp.asarray(t, float), state, controller))
    inertia = np.linalg.eigvalsh(S)
    factor = np.linalg.inv(np.linalg.cholesky(S))
    growth = 2 * np.linalg.eigvalsh(factor @ (W + W.T) / 2 @ factor.T).max()
    return RealizingConstants(max(float(growth), 0.0), *np.sqrt(inertia[[0, -1]] / 2).tolist())


@jit
def _forms(system: System, t, state: State, controller):
    """`S`, and `W` of the quadratic part of `dG/dt`, each of shape `(c, c)`."""
    d = evaluate(system, t, state.q, state.v, state.w, _input(controller, t, state))
    mobility = jnp.linalg.solve(d.mass, d.jac.T)
    S = jnp.linalg.inv(d.jac @ mobility)

    def energy(t, q, v):
        mass, jac = mass_and_jacobian(system, t, q, v)
        psi_dot = constraint_residuals(system, t, q, v).phi_dot
        return 0.5 * psi_dot @ jnp.linalg.solve(jac @ jnp.linalg.solve(mass, jac.T), psi_dot)

    def rate(x):
        moved = State(state.q, state.v + mobility @ (S @ x), state.w)
        dynamics = evaluate(system, t, moved.q, moved.v, moved.w, _input(controller, t, moved))
        free = jnp.linalg.solve(dynamics.mass, dynamics.force)
        motion = (*along_motion(system, t, moved.q, moved.v), free)
        return jax.jvp(energy, (t, moved.q, moved.v), motion)[1]

    return S, 0.5 * jax.hessian(rate)(jnp.zeros_like(d.phi_dot))


def _input(controller, t, state: State):
    return None if controller is None else controller(t, state.q, state.v, state.w)


def linear_threshold(rho: float, A: float, B: float = 0.0, energy: float = 0.0) -> float:
    r"""Coefficient `K` of linear forces above which `G` falls while there is no reaction.

    With `R = -k psi'` the power of the forces is `-k |psi'|^2 <= -(k / rho^2) G`, so that

        dG/dt <= (A - k / rho^2) G + B G sqrt(G) + |r| |psi'|

    with the reaction `r` that the constraints would have at the other quasi-velocities of the
    motion [Matyukhin1999, theorem 1]. Where it vanishes `G` falls when `k > K = rho^2 (A + B
    sqrt(G0))`. A constrained motion without reactions has `r = 0` at the start, and not later: a
    `psi'` changes the other quasi-velocities, which then need a reaction. What becomes of these is
    the constrained motion's own affair, for every `k`: `linear_decay_bound` with the reaction. The
    paper's eqs. 5.7 and 5.8 print `k / rho`, which does not follow from its eq. 4.3, nor has it the
    unit of `A`.

    Args:
        rho: `G <= rho^2 |psi'|^2`, positive.
        A: not negative [1/s].
        B: not negative.
        energy: `G` at the start, not negative.

    Returns:
        `K`, in the unit of `k`.
    """
    return rho**2 * (A + B * math.sqrt(energy))


def linear_decay_rate(k: float, rho: float, A: float) -> float:
    """Rate `(k / rho^2 - A) / 2` at which small `psi'` decay at the start under `R = -k psi'`.

    At least that fast while the reactions are small against `k psi'`, for motions whose reactions
    vanish at the start; later `psi'` follows the reaction, `psi' = -r / k`, and changes as fast or
    slowly as that does. Below the threshold the rate is negative and promises nothing.

    Args:
        k: as of `linear_decay_bound`, as are `rho` and `A`.
        rho: likewise.
        A: likewise.

    Returns:
        The rate [1/s].
    """
    return 0.5 * (k / rho**2 - A)


def linear_decay_bound(
    t,
    energy: float,
    k: float,
    rho: float,
    A: float = 0.0,
    B: float = 0.0,
    *,
    reaction: float = 0.0,
    rho1: float | None = None,
):
    r"""Bound of `G(t)` under linear forces, with the reaction that [Matyukhin1999, eq. 5.6] drops.

    `y = sqrt(G)` obeys `dy/dt <= -c y + B y^2 / 2 + e` with the rate `c = (k / rho^2 - A) / 2` and
    `e = |r| / (2 rho1)`, whose right-hand side vanishes at `y- <= y+`. From a start below `y+` the
    motion tends to `y-`, of the order `e / c`, that is `|r| / k`:

        (y - y-) / (y+ - y) <= (y0 - y-) / (y+ - y0) e^(-d t),    d = sqrt(c^2 - 2 B e)

    and `|psi'| <= y / rho1`. The reaction is the largest along the motion, that of the constraints
    at `psi' = 0` and the other quasi-velocities as they are. It is zero all the time only where no
    `psi'` changes what the reaction depends on; elsewhere the bound without it holds for the start
    alone, as does the paper's theorem 1 (its footnote 4 keeps the other quasi-velocities in a given
    set).

    Args:
        t: times since the start [s].
        energy: `G` at the start.
        k: coefficient of the linear forces; of several the least.
        rho: `G <= rho^2 |psi'|^2`; along a motion the largest.
        A: not negative [1/s]; likewise.
        B: not negative.
        reaction: largest `|r|` along the motion.
        rho1: `rho1^2 |psi'|^2 <= G`; along a motion the least. Needed with a reaction.

    Returns:
        The bound at `t`; infinite where `k` does not exceed what the start and the reaction need.

    Raises:
        ValueError: for a reaction without `rho1`.
    """
    t = np.asarray(t, float)
    if reaction and rho1 is None:
        raise ValueError(
            "linear_decay_bound: a reaction needs rho1, the least of realizing_constants."
        )
    rate, y0 = linear_decay_rate(k, rho, A), math.sqrt(energy)
    driven = reaction / (2 * rho1) if rho1 is not None else 0.0
    discriminant = rate**2 - 2 * B * driven
    if rate <= 0 or discriminant <= 0:
        return np.full_like(t, np.inf)
    root = math.sqrt(discriminant)
    low = 2 * driven / (rate + root)
    if B == 0.0:
        return (low + (y0 - low) * np.exp(-rate * t)) ** 2
    high = (rate + root) / B
    if y0 >= high:
        return np.full_like(t, np.inf)
    quotient = (y0 - low) / (high - y0) * np.exp(-root * t)
    return ((low + quotient * high) / (1 + quotient)) ** 2


def deviation_power(law: Law, bound: Magnitude, psi_dot, t=0.0, q=None, v=None):
    r"""Power of the difference between a law and the sign law of a given bound.

        N = sum_i (R_i + bound_i sign psi'_i) psi'_i

    If `N <= delta` along the motion, `psi'` stays of the order `delta / eta`, with `eta` the excess
    of the bound over the reactions [Matyukhin1999, eq. 7.4]. The difference printed there has the
    opposite sign, and is never positive for a law within the bound, whatever the motion.

    Args:
        law: the law to examine.
        bound: bound of the sign law, scalar or `(c,)`.
        psi_dot: constraint functions, shape `(c,)`.
        t: time [s].
        q: coordinates, shape `(n,)`, for laws that depend on them.
        v: velocities, shape `(n,)`, likewise.

    Returns:
        `N`, a scalar: [W] where constraint functions are velocities.
    """
    return (law(psi_dot, t, q, v) + value_of(bound) * jnp.sign(psi_dot)) @ psi_dot


def reaching_time_bound(
    energy: float, eta: float, rho: float, A: float = 0.0, B: float = 0.0
) -> float:
    r"""Time within which `dG/dt <= sqrt(G) (A sqrt(G) + B G - eta / rho)` brings `G` to zero.

    With `y = sqrt(G)`, `dy/dt <= (A y + B y^2 - eta / rho) / 2`, hence

        t <= (4 / s) artanh(s y0 / (2 eta / rho - A y0)),        s^2 = A^2 + 4 B eta / rho

    from [Matyukhin1999, eq. 6.6].

    Args:
        energy: `G` at the start, not negative.
        eta: excess of the bound of the sign law over the reactions, positive.
        rho: `G <= rho^2 |psi'|^2`, positive.
        A: not negative.
        B: not negative.

    Returns:
        The time [s]; infinite where the inequality does not force `G` to decrease at the start.
    """
    rate, y0 = eta / rho, math.sqrt(energy)
    if rate <= A * y0 + B * y0**2:
        return math.inf
    ratio, root = y0 / (2 * rate - A * y0), math.sqrt(A**2 + 4 * B * rate)
    return 4 * (math.atanh(root * ratio) / root if root > 0 else ratio)
