"""Failures in words: of a start that cannot work, and of a run that ended early."""

import diffrax
import equinox as eqx
import numpy as np

from jaxdae.linalg.rank import numerical_rank
from jaxdae.systems import constraint_residuals, mass_and_jacobian, State, System
from jaxdae.systems.checks import check_finite

# A ratio of singular values below this counts as loss of rank in a report: such a Jacobian leaves
# no digits in single, and half of them in double precision.
RANK_TOLERANCE = 1e-7
# Below this ratio a stop is put down to the constraints, above it to stiffness: near a singular
# configuration multipliers grow like the inverse of the least singular value.
NEARLY_DEPENDENT = 0.05


class SimulationError(RuntimeError):
    """A simulation ended before its end time."""


def check_start(system: System, formulation, state: State, t, tolerance: float | None) -> None:
    """Check that a start is finite, consistent, and within the formulation's assumptions.

    Raises:
        ValueError: naming the entry, constraint or matrix at fault, the amount, and the remedy.
    """
    check_finite(state)
    if tolerance is not None:
        _check_consistent(system, state, t, tolerance)
    assumed = formulation.assumptions()
    mass, jac = (np.asarray(x) for x in _matrices(system, t, state))
    if assumed.regular_mass:
        _check_mass(mass)
    if assumed.independent_constraints:
        _check_rank(system, jac, float(t))


def raise_failure(trajectory) -> None:
    """Raise `SimulationError` if a run failed; batches report their first failed lane."""
    good = np.atleast_1d(np.asarray(trajectory.success))
    if not good.all():
        raise SimulationError(describe_failure(trajectory))


def describe_failure(trajectory) -> str:
    """What failed, when, the state of the constraints there, and what to try.

    Args:
        trajectory: a failed run of one lane.

    Returns:
        A paragraph.
    """
    t, state = float(trajectory.final_time), trajectory.final_state
    system = trajectory.system
    reason = _reason(trajectory.result)
    if not np.isfinite(np.concatenate([state.q, state.v, state.w])).all():
        reached = _last_finite_time(trajectory)
        when = "" if reached is None else f" after t = {reached:.6g} s"
        return (
            f"the state is no longer finite{when} ({reason}). The step is too large for these "
            "gains and this motion, or the constraints lose rank: reduce dt, lower the gains, or "
            "use an adaptive solver, which stops at the place of the failure."
        )
    return f"the run stopped at t = {t:.6g} s ({reason}). " + _constraint_report(system, t, state)


@eqx.filter_jit
def _residuals(system, t, state):
    return constraint_residuals(system, t, state.q, state.v)


@eqx.filter_jit
def _matrices(system, t, state):
    return mass_and_jacobian(system, t, state.q, state.v)


def _check_consistent(system, state, t, tolerance: float) -> None:
    residual = _residuals(system, t, state)
    size = max(np.abs(np.asarray(x)).max(initial=0.0) for x in (state.q, state.v))
    limit = tolerance * (1 + float(size))
    for level, values in (("position", residual.phi), ("velocity", residual.phi_dot)):
        values = np.abs(np.asarray(values))
        if not (values <= limit).all():
            i = int(np.argmax(values))
            raise ValueError(
                f"the start is inconsistent: constraint {system.labels().constraint(i)!r} is "
                f"violated by {values[i]:.3g} at {level} level (allowed {limit:.1g}) at "
                f"t = {float(t):.6g}. Project it with jaxdae.consistent_state(system, q, v), or "
                "allow it with simulate(..., start_tolerance=None)."
            )


def _check_mass(mass: np.ndarray) -> None:
    values = np.linalg.eigvalsh((mass + mass.T) / 2)
    if not values[0] > np.finfo(mass.dtype).eps * values.size * max(values[-1], 0.0):
        raise ValueError(
            f"the mass matrix is not positive definite: eigenvalues from {values[0]:.3g} to "
            f"{values[-1]:.3g}. If it is so on the directions the constraints allow, use "
            "Multipliers(..., solve=SingularMass()) or Penalty; else correct the kinetic energy."
        )


def _check_rank(system, jac: np.ndarray, t: float) -> None:
    found = numerical_rank(jac, RANK_TOLERANCE)
    if found.rank < jac.shape[0]:
        names = ", ".join(repr(system.labels().constraint(i)) for i in found.dependent_rows)
        raise ValueError(
            f"the constraints are dependent at t = {t:.6g}: their Jacobian has rank {found.rank} "
            f"of {jac.shape[0]} (singular values {_list(found.singular_values)} of its unit rows); "
            f"involved: {names}. Use "
            "Multipliers(..., solve=MinimumNorm()), Penalty or AugmentedLagrangian, or drop "
            "the superfluous constraints."
        )


def _reason(result) -> str:
    message = diffrax.RESULTS[result].strip().split("\n")[0]
    return message.rstrip(".") or "failed"


def _last_finite_time(trajectory) -> float | None:
    ts = np.asarray(trajectory.ts if trajectory.plain else [])
    ts = ts[np.isfinite(ts)]
    return float(ts[-1]) if ts.size else None


def _constraint_report(system: System, t: float, state: State) -> str:
    residual = _residuals(system, t, state)
    _, jac = _matrices(system, t, state)
    phi = np.abs(np.asarray(residual.phi_dot if residual.phi.size == 0 else residual.phi))
    if phi.size == 0:
        return "The system has no constraints: the motion itself is singular or too stiff there."
    found = numerical_rank(np.asarray(jac), RANK_TOLERANCE)
    values = found.singular_values
    labels, worst = system.labels(), int(np.argmax(phi))
    text = f"Largest residual: {labels.constraint(worst)!r} = {phi[worst]:.3g}. "
    ratio = values[-1] / max(values[0], np.finfo(float).tiny)
    if found.rank == jac.shape[0] and ratio > NEARLY_DEPENDENT:
        return text + (
            f"The constraints are independent (least singular value {values[-1]:.3g}): the "
            "equations are too stiff for the solver or its tolerance; lower the gains, use an "
            "implicit solver (diffrax.Kvaerno5()), or allow more max_steps."
        )
    involved = ", ".join(repr(labels.constraint(i)) for i in found.dependent_rows) or "all"
    return text + (
        f"The constraints lose independence there: singular values {_list(values)} of the "
        f"Jacobian with unit rows; involved: {involved}. If the configuration is singular but can "
        "be passed, use Penalty or Multipliers(..., solve=MinimumNorm()); if the constraints "
        "cannot be satisfied beyond that time, change them."
    )


def _list(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{x:.3g}" for x in values) + "]"
