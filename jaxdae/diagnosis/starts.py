"""Starts, alone, in a batch, or inside a compiled program: what a formulation assumes of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.diagnosis.failure import (
    Declared,
    declared,
    RANK_TOLERANCE,
    residuals,
    singular_values_text,
)
from jaxdae.diagnosis.findings import Finding
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.base import solves, with_solves
from jaxdae.linalg.rank import numerical_rank
from jaxdae.simulation.run import depends_on_rank
from jaxdae.systems import State, System
from jaxdae.systems.checks import check_position, check_tolerance
from jaxdae.systems.independence import (
    constraint_rank,
    involved,
    look,
    surely_independent,
)

DEPENDENT_START = (
    "the constraints are dependent at the start, on the constraints: where a compiled program "
    "varies system or start, give Multipliers(..., solve=MinimumNormSolve()), Penalty or "
    "AugmentedLagrangian, or drop the superfluous constraints; outside of jax.jit the error names "
    "them."
)
FAILED_START = (
    "the run failed in its first step: accelerations at the start are not finite, or too large for "
    "any step. The mass matrix may be singular there (then give Multipliers(..., "
    "solve=SingularMassSolve()) or Penalty), constraints dependent, or a force without a value; "
    "outside of jax.jit the error names it."
)


class Start(NamedTuple):
    """A start, without the internal state of a controller.

    Args:
        system: the declaration, its numbers as arrays of one precision.
        state: `State(q, v, w)`.
        t: time [s], an array of that precision.
    """

    system: System
    state: State
    t: Any


def suited_to_start(
    formulation: AbstractFormulation,
    start: Start,
    tolerance: float | None,
    *,
    eager: bool,
    kernel: Callable | None = None,
) -> tuple[AbstractFormulation, bool]:
    """A formulation for a start: checked, its solves chosen and ranks held, where that is known.

    Numbers are known in eager runs, under `jax.grad` and `jax.vmap` of them, and of what a compiled
    program does not vary. They are examined on the host then.

    Args:
        formulation: how constraints are enforced.
        start: of the run.
        tolerance: largest residual of a constraint, relative to `1 + max |q|, |v|`, or `None`.
        eager: whether all numbers are known, and operations on them computed at once.
        kernel: makes kernels for the members of a batch, as `AbstractBackend.kernel`.

    Returns:
        The formulation, and whether nothing is left to examine when the program runs.

    Raises:
        ValueError: naming the entry, constraint or matrix at fault, the amount, and the remedy.
    """
    check_tolerance("start_tolerance", tolerance)
    if eager:
        return _checked(formulation, start, tolerance), True
    values = _values(start)
    q, v = values.state.q, values.state.v
    if are_known(values.system, q, v, values.t):
        # Inside a transformation a start off the constraints, or no number, is the user's choice.
        if not np.isfinite(np.concatenate([np.asarray(q), np.asarray(v)])).all():
            return formulation, False
        plain, start = _values(formulation), Start(values.system, State(q, v), values.t)
        with jax.core.eval_context():
            return _suited(formulation, plain, start, None, plain.examination.holds), True
    if not depends_on_rank(formulation, start.system, start.state):
        return formulation, True
    ranks = _ranks_of_members(values, kernel)
    if ranks is None:
        return formulation, False
    chosen = suited(formulation, *ranks)
    return chosen, not (ranks[0] and chosen.capabilities.independent_constraints)


def _values(tree):
    """A pytree without derivatives: where only they are traced, its numbers are known."""
    stop = lambda x: x if are_known(x) else jax.lax.stop_gradient(x)  # noqa: E731
    return jax.tree.map(stop, tree)


def _checked(formulation, start: Start, tolerance: float | None):
    """The formulation with its solves chosen, after all checks of an eager run."""
    system, state, t = start
    check_position(system, state)
    # Dense matrices of many bodies take long.
    examination = formulation.examination
    dense = examination.holds is None
    known = declared(system, t, state) if dense else None
    if tolerance is not None:
        residual = residuals(system, t, state) if known is None else known
        _check_consistent(system, state, t, residual, tolerance)
    chosen = _suited(formulation, formulation, start, known, examination.holds)
    problem = examination.start(system, t, state)
    if problem is not None:
        raise ValueError(problem)
    return chosen


def _suited(formulation, plain, start: Start, known: Declared | None, holds):
    """The formulation, `plain` without derivatives, its solves chosen for a start that is known."""
    system, state, t = start
    if holds is not None and are_known(plain) and holds(system, t, state):
        return formulation
    return check_assumptions(system, formulation, state, t, known)


def _check_consistent(system, state, t, residual, tolerance: float) -> None:
    size = max(np.abs(np.asarray(x)).max(initial=0.0) for x in (state.q, state.v))
    limit = tolerance * (1 + float(size))
    for level, values in (("position", residual.phi), ("velocity", residual.phi_dot)):
        values = np.abs(np.asarray(values))
        if not (values <= limit).all():
            i = int(np.argmax(values))  # the first NaN, if there is one
            if np.isnan(values[i]):
                raise ValueError(
                    f"constraint {system.labels().constraint(i)!r} is nan at {level} level at the "
                    f"start (t = {float(t):.6g}): it is not defined there. Start elsewhere, or "
                    "guard what divides by zero or takes a root of a negative number."
                )
            raise ValueError(
                f"the start is inconsistent: constraint {system.labels().constraint(i)!r} is "
                f"violated by {values[i]:.3g} at {level} level (allowed {limit:.1g}) at "
                f"t = {float(t):.6g}. Project it with jaxdae.consistent_state(system, q, v), or "
                "allow it with simulate(..., start_tolerance=None)."
            )


def _ranks_of_members(start: Start, kernel: Callable | None) -> tuple[bool, Any] | None:
    """Whether starts of a batch are dependent, and their ranks; `None` where none are known."""
    at = start.system, start.t, start.state
    if _of_all_members(eqx.filter(at, eqx.is_array)) is None:  # before more is traced
        return None
    here = _look(*at)
    seen, full = _of_all_members(here), len(here.jac)
    if seen is None:  # numbers that are known, inside of a compiled program
        return None
    # A start that is no number fails by itself; of others bounds show mostly that all is well.
    doubtful = np.isfinite(seen.jac).all(axis=(-2, -1)) & ~seen.bounds_suffice()
    if all(map(surely_independent, seen.jac[doubtful], seen.phi[doubtful])):
        return False, jnp.asarray(full, here.jac.dtype)
    ranks = jnp.where(jnp.isfinite(here.jac).all(), _constraint_rank(*at, kernel).held(), full)
    return bool((_of_all_members(ranks) != full).any()), ranks


def _of_all_members(tree) -> Any:
    """Of all members of an eager batch, its axes in front; `None` where a program is traced.

    `jax.vmap` hides what the members of a batch are; the batching rule of a function is given it.
    """
    leaves, structure = jax.tree.flatten(tree)
    seen: list[Any] = [leaves] if are_known(leaves) else []
    shown = custom_vmap(lambda *leaves: leaves)

    @shown.def_vmap
    def _(size, has, *leaves):
        pairs = zip(leaves, has, strict=True)
        stacked = tuple(x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in pairs)
        if are_known(stacked):
            seen.append(stacked)
        else:  # by an axis further out, or by a compiled program
            stacked = shown(*stacked)
        return stacked, (True,) * len(stacked)

    if not seen:
        shown(*leaves)
    return structure.unflatten([np.asarray(x) for x in seen[0]]) if seen else None


_look, _constraint_rank = jit(look), jit(constraint_rank)


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
    """Rank of the constraints at a start, on the host; `known` is what is declared there."""
    mass, jac, phi, _ = declared(system, t, state) if known is None else known
    if len(jac) == 0 or surely_independent(jac, phi):
        return StartRank(jac.shape[0], True, mass, jac)
    result = _constraint_rank(system, t, state)
    return StartRank(int(result.rank), bool(result.regular), mass, np.asarray(result.jac))


def suited(formulation, dependent: bool, rank):
    """A formulation with its solves chosen for a start.

    `dependent` says whether some constraints are superfluous, in any member of a batch; `rank` is
    the number of independent ones, in floating point, NaN at a singular position.
    """

    def change(solve):
        chosen = solve.resolved(dependent)
        return chosen.with_rank(jnp.asarray(rank)) if chosen.asks_for_rank else chosen

    return with_solves(formulation, change)


def check_assumptions(system: System, formulation, state: State, t, known: Declared | None = None):
    """The formulation with its solves chosen for a start whose mass matrix and constraints suit it.

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
    if not start.regular:
        refused = any(x.resolved(True).asks_for_rank for x in solves(formulation))
    else:
        refused = False
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


def changed_rank(formulation, trajectory) -> Finding | None:
    """Where the rank that a run held is not that of the states it saved."""
    holds = any(x.asks_for_rank or x.held_rank is not None for x in solves(formulation))
    if not (trajectory.plain and holds) or trajectory.held_rank is None:
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
    return Finding(message, float(ranks[i]), time, subject="rank")
