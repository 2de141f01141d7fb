"""What a formulation assumes of mass matrix and constraints, checked at a start, in words."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.diagnosis.failure import Declared, declared, RANK_TOLERANCE, singular_values_text
from jaxdae.diagnosis.findings import Finding
from jaxdae.formulations.base import solves, with_solves
from jaxdae.linalg.rank import numerical_rank
from jaxdae.systems import State, System
from jaxdae.systems.independence import constraint_rank, involved, surely_independent

DEPENDENT_START = (
    "the constraints are dependent at the start, on the constraints: where a compiled program "
    "varies system or start, give Multipliers(..., solve=MinimumNormSolve()), Penalty or "
    "AugmentedLagrangian, or drop the superfluous constraints; outside of jax.jit the error names "
    "them."
)


class StartRank(NamedTuple):
    """How many constraints are independent at a start.

    Args:
        rank: of the Jacobian on the constraints.
        regular: whether the rank is the same around the start.
        mass: mass matrix, shape `(n, n)`.
        jac: Jacobian, at the start or next to it on the constraints, shape `(m+r, n)`.
    """

    rank: int
    regular: bool
    mass: np.ndarray
    jac: np.ndarray

    @property
    def dependent(self) -> bool:
        """Whether some constraints are superfluous."""
        return self.rank < self.jac.shape[0]


def start_rank(system: System, t, state: State, known: Declared | None = None) -> StartRank:
    """Rank of the constraints at a start, on the host.

    Args:
        system: the declaration.
        t: time [s].
        state: the start.
        known: what is declared there, where that is known.
    """
    mass, jac, phi, _ = declared(system, t, state) if known is None else known
    if len(jac) == 0 or surely_independent(jac, phi):
        return StartRank(jac.shape[0], True, mass, jac)
    result = _compiled(system, t, state)
    return StartRank(int(result.rank), bool(result.regular), mass, np.asarray(result.jac))


@jit
def _compiled(system, t, state):
    return constraint_rank(system, t, state)


def suited(formulation, dependent: bool, rank):
    """A formulation with its solves chosen for a start.

    Args:
        formulation: whose solves may leave the choice, or the rank, to the start.
        dependent: whether some constraints are superfluous, in any member of a batch.
        rank: number of independent ones, in floating point; NaN at a singular position.
    """
    chosen = with_solves(formulation, lambda x: x.resolved(dependent))
    ranked = lambda x: x.with_rank(jnp.asarray(rank)) if x.asks_for_rank else x  # noqa: E731
    return with_solves(chosen, ranked)


def check_assumptions(system: System, formulation, state: State, t, known: Declared | None = None):
    """Check mass matrix and constraints at a start; `known` as of `start_rank`.

    Returns:
        The formulation with its solves chosen for that start.

    Raises:
        ValueError: naming the matrix or the constraints at fault, the numbers, and the remedy.
    """
    start = start_rank(system, t, state, known)
    if not np.isfinite(start.mass).all():
        i, j = np.argwhere(~np.isfinite(start.mass))[0]
        raise ValueError(
            f"the mass matrix is not finite: [{i}, {j}] = {start.mass[i, j]}; look for it in the "
            "kinetic energy, or in a parameter that is not finite."
        )
    holds = any(x.resolved(True).asks_for_rank for x in solves(formulation))
    rank = np.asarray(start.rank if start.regular else np.nan, start.jac.dtype)
    chosen = suited(formulation, start.dependent, rank)
    assumed = chosen.capabilities
    values = np.linalg.eigvalsh((start.mass + start.mass.T) / 2)
    limit = np.finfo(start.mass.dtype).eps * values.size * max(values[-1], 0.0)
    regular_mass = bool(values[0] > limit)
    if assumed.regular_mass and not regular_mass:
        raise ValueError(_of_mass(values, start))
    if not assumed.regular_mass:
        _check_mass_on_kernel(start)
    refused = holds and not start.regular
    if refused or (assumed.independent_constraints and start.dependent):
        raise ValueError(_of_rank(system, start, float(t), regular_mass))
    return chosen


def _of_mass(values, start: StartRank) -> str:
    return (
        f"the mass matrix is not positive definite: eigenvalues from {values[0]:.3g} to "
        f"{values[-1]:.3g}. If it is so on the directions the constraints allow, use "
        f"Multipliers(..., solve={_solve_for(start, False)}) or Penalty; else correct the kinetic "
        "energy."
    )


def _of_rank(system, start: StartRank, t: float, regular_mass: bool) -> str:
    result = numerical_rank(start.jac, RANK_TOLERANCE)
    text = (
        f"the constraints are dependent at t = {t:.6g}: their Jacobian has rank {start.rank} of "
        f"{start.jac.shape[0]} (singular values {singular_values_text(result)} of its unit rows, "
        f"on the constraints); {involved(system.labels(), result)}. "
    )
    if start.regular:
        return text + (
            f"Use Multipliers(..., solve={_solve_for(start, regular_mass)}), Penalty or "
            "AugmentedLagrangian, or drop the superfluous constraints, one of each set."
        )
    return text + (
        "The rank is larger around the start: it is a singular position. Start elsewhere, or use "
        "Penalty or Multipliers(..., solve=MinimumNormSolve(rcond=1e-3))."
    )


def _solve_for(start: StartRank, regular_mass: bool) -> str:
    inner = "MinimumNormSolve()" if start.dependent and start.regular else ""
    if regular_mass:
        return inner
    return f"SingularMassSolve(inner={inner})" if inner else "SingularMassSolve()"


def _check_mass_on_kernel(start: StartRank) -> None:
    """`z^T M z > 0` for all `z` with `J z = 0`: else the acceleration is not determined."""
    mass = start.mass
    _, _, rows = np.linalg.svd(start.jac)
    kernel = rows[start.rank :].T
    if kernel.shape[1] == 0:
        return
    allowed = np.linalg.eigvalsh(kernel.T @ mass @ kernel)
    scale = np.abs(np.linalg.eigvalsh(mass)).max()
    if not allowed[0] > np.finfo(mass.dtype).eps * mass.shape[0] * scale:
        raise ValueError(
            "the acceleration is not determined: the mass matrix has the eigenvalue "
            f"{allowed[0]:.3g} on the directions the constraints allow. Give every coordinate "
            "that can move freely an inertia, or a constraint."
        )


def changed_rank(trajectory) -> Finding | None:
    """Where the rank that a run held is not that of the states it saved."""
    if not trajectory.plain or trajectory.held_rank is None:
        return None
    held, ranks = int(trajectory.held_rank), np.asarray(trajectory.constraint_rank)
    other = np.isfinite(ranks) & (ranks != held)
    if not other.any():
        return None
    i = int(np.argmax(other))
    time = float(trajectory.ts[i])
    message = (
        f"the rank of the constraints changed: the run held the rank {held} of its start, but at "
        f"t = {time:.6g} s it is {int(ranks[i])} (at {int(other.sum())} of "
        f"{ranks.size} saved times). The motion there is not determined by that rank: check it "
        "with Penalty, or start where the rank is that of the motion."
    )
    return Finding(message, float(ranks[i]), time)
