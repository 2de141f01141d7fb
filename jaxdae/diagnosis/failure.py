"""A run that ended early, in words."""

from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import capabilities_of, control_input
from jaxdae.diagnosis.event_failure import failure_of_events
from jaxdae.diagnosis.findings import Finding
from jaxdae.linalg.rank import numerical_rank, NumericalRank
from jaxdae.simulation.problem import ROUND_OFF
from jaxdae.solvers.base import AbstractIterativeSolver
from jaxdae.solvers.constrained_term import enforces_constraints
from jaxdae.solvers.grid import known_ends
from jaxdae.solvers.projected import parts_of
from jaxdae.solvers.radau import RadauIIA
from jaxdae.solvers.rodas5p import Rodas5P
from jaxdae.systems import constraint_residuals, mass_and_jacobian, State, System
from jaxdae.systems.independence import involved
from jaxdae.systems.kinematics import coordinate_rate
from jaxdae.systems.singular_positions import nearness

# A ratio of singular values below this counts as loss of rank in a report: such a Jacobian leaves
# no digits in single, and half of them in double precision.
RANK_TOLERANCE = 1e-7
# Below this ratio a stop is put down to the constraints, above it to stiffness: near a singular
# configuration multipliers grow like the inverse of the least singular value.
NEARLY_DEPENDENT = 0.05


_REMEDY = (
    "If the configuration is singular but can be passed, use Multipliers(..., "
    "solve=SingularityRobust()); if the constraints cannot be satisfied beyond that time, change "
    "them, or use Penalty, which gives way."
)


def may_be_passed(message: str) -> bool:
    """Whether a failure was put down to constraints that lose rank, by its message."""
    return _REMEDY in message


_OTHER_WAY = (
    "beside a singular position, which kernels of large mechanisms do not pass, use "
    'backend="plain" or jaxdae.solvers.HalfExplicit()'
)
_GIVES_WAY = (
    "Constraints with a mass give way, and pull by it in proportion to their residuals: where they "
    "cannot be satisfied, end the run before that or change them; a smaller alpha makes slower "
    "vibrations of what follows, and a looser tolerance, or more max_steps, gets through them."
)
_STEP_TOO_LARGE = (
    "The step is too large for these gains and this motion, or the constraints lose rank: reduce "
    "dt, lower the gains, or use an adaptive solver, which stops at the place of the failure."
)
_UNSOLVED = (
    " Where a step has no end because the iteration for its stages did not converge, a smaller dt, "
    "a looser tolerance of its root_finder or optimistix.Newton helps."
)
_NONFINITE: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix


# Of the lengths of steps, for errors inside of transformations.
_DIFFERENTIATED = (
    "Steps of a run that is differentiated suit its derivatives as well, and may be far more, and "
    "shorter, than those of the run alone."
)


class SimulationError(RuntimeError):
    """A simulation ended before its end time."""


def failures_of_steps(method) -> tuple[tuple[Any, str], ...]:
    """Result codes of runs whose steps may not be more, or shorter, and what is to be said of them.

    Args:
        method: a `Method`.
    """
    results = diffrax.RESULTS
    many = (
        f"The maximum number of solver steps was reached, max_steps = {method.max_steps}: allow "
        f"more of them, or loosen the tolerance. {_DIFFERENTIATED}"
    )
    if getattr(known_ends(method.stepsize_controller).controller, "dtmin", None) is None:
        return ((results.max_steps_reached, many),)
    short = (
        "The minimum step size was reached: the tolerance asks for a step shorter than dtmin. Give "
        "a smaller dtmin, a looser tolerance, or force_dtmin=True, which goes on with larger "
        f"errors. {_DIFFERENTIATED}"
    )
    return (results.max_steps_reached, many), (results.dt_min_reached, short)


def describe_failure(trajectory, solver=None, control=None) -> str:
    """What failed, when, the state of the constraints there, and what to try, as a paragraph.

    Args:
        trajectory: a failed run; of a batch, one member.
        solver: the method of the run; `None` where that is not known.
        control: its step size controller; `None` where that is not known, or the default.
    """
    of_events = failure_of_events(trajectory)
    if of_events is not None:
        return of_events
    t, state = float(trajectory.final_time), trajectory.last_state
    system = trajectory.system
    reason = reason_of(trajectory.result)
    cause = _of_controller(trajectory)
    # Velocities that a formulation could not recover from its own state make all else no number.
    own, recovered = map(_is_finite, (trajectory.final, (state.q, state.v, state.w)))
    undefined = None
    if cause is None and trajectory.plain and (recovered or not own):
        undefined = describe_nonfinite(system, trajectory.controller, t, state)
    if undefined is not None:
        return f"the run stopped at t = {t:.6g} s ({reason}). {undefined}"
    if cause is None and trajectory.plain:
        cause = _of_start(trajectory, solver)
    if cause is None:
        stop = trajectory.formulation.examination.stop
        cause = stop(system, trajectory.final_time, trajectory.final)
    if bool(trajectory.result == _NONFINITE):
        if cause is None:
            cause = _without_end(solver)
        said = review(system, trajectory.formulation, trajectory)
        text = f"the state is no longer finite after t = {t:.6g} s ({reason}). {cause}"
        return text if said is None else f"{text} {said.message}"
    if cause is None:
        weight = trajectory.formulation.capabilities.weight if trajectory.plain else None
        remedy = _REMEDY if weight is None else _GIVES_WAY
        if _is_kernel_of_radau(trajectory, solver):
            remedy = f"{_OTHER_WAY[0].upper()}{_OTHER_WAY[1:]}."
        least = _least_step(trajectory, control)
        cause = _constraint_report(
            trajectory, t, state, least or _too_stiff(trajectory, solver), remedy
        )
    return f"the run stopped at t = {t:.6g} s ({reason}). {cause}"


def _is_finite(tree) -> bool:
    return all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(tree))


def _without_end(solver) -> str:
    """Why a step has no end, where all that is declared is finite at its beginning."""
    method = None if solver is None else parts_of(solver).method
    if isinstance(method, AbstractIterativeSolver):
        return (
            f"Newton's iteration of {type(method).__name__} found no end of the step from there: "
            "it is too long for this motion, or the constraints lose rank. Reduce dt, or leave it "
            "out for a solver with adaptive steps, which stops at the place of the failure."
        )
    return _STEP_TOO_LARGE + (_UNSOLVED if hasattr(solver, "root_finder") else "")


def _of_start(trajectory, solver) -> str | None:
    """That a solver which enforces the constraints cannot begin beside them, in words."""
    method = None if solver is None else parts_of(solver).method
    (start, _), t = trajectory.start, trajectory.final_time
    if not enforces_constraints(method) or float(t) != float(start):
        return None
    known, state = declared(trajectory.system, t, trajectory.last_state), trajectory.last_state
    size = 1 + max(float(np.abs(x).max(initial=0.0)) for x in map(np.asarray, (state.q, state.v)))
    labels = trajectory.system.labels()
    for level, residual in (("position", known.phi), ("velocity", known.phi_dot)):
        worst = int(np.argmax(np.abs(residual))) if residual.size else 0
        off = float(np.abs(residual).max(initial=0.0))
        if off > float(jnp.finfo(residual.dtype).eps) ** ROUND_OFF * size:
            return (
                f"{type(method).__name__} enforces the constraints from its first step on, and the "
                f"start is beside them: {labels.constraint(worst)!r} is violated by {off:.3g} at "
                f"{level} level at t = {float(t):.6g} s, which no step within the tolerance takes "
                "away. Begin at jaxdae.consistent_state(system, q, v)."
            )
    return None


def _least_step(trajectory, control) -> str:
    """That steps may not be shorter than the user lets them be, in words; or nothing."""
    least = getattr(known_ends(control).controller, "dtmin", None)
    if not bool(trajectory.result == diffrax.RESULTS.dt_min_reached) or least is None:
        return ""
    return (
        f"the tolerance asks for a step shorter than dtmin = {float(least):.3g} s there: give a "
        "smaller dtmin, a looser tolerance, or force_dtmin=True, which goes on with larger errors."
    )


def used_up_its_steps(trajectory) -> bool:
    """Whether a run ended with the number of steps that it was allowed."""
    return bool(trajectory.result_code == diffrax.RESULTS.max_steps_reached)


def _of_controller(trajectory) -> str | None:
    """Why the controller itself ends, if it can tell, in words."""
    return capabilities_of(trajectory.controller).stop(trajectory) if trajectory.plain else None


def review(system, formulation, trajectory) -> Finding | None:
    """What the formulation says of the states that were saved."""
    if not trajectory.plain:
        return None
    message = formulation.examination.review(system, trajectory.ts, trajectory.saved)
    return None if message is None else Finding(message)


def review_controller(controller, trajectory) -> Finding | None:
    """What the controller says of a run that reached its end, if it can tell."""
    message = capabilities_of(controller).review(trajectory) if trajectory.plain else None
    return None if message is None else Finding(message)


@jit(options=BRIEFLY, interpreted=2)
def residuals(system, t, state):
    """Constraint residuals at a state, by compiled code."""
    return constraint_residuals(system, t, state.q, state.v)


class Declared(NamedTuple):
    """What a declaration says of a state.

    Args:
        mass: mass matrix, shape `(n, n)`.
        jac: constraint Jacobian, shape `(m+r, n)`.
        phi: residuals of the position constraints, shape `(m,)`.
        phi_dot: residuals at velocity level, shape `(m+r,)`.
    """

    mass: Any
    jac: Any
    phi: Any
    phi_dot: Any


@jit(options=BRIEFLY, interpreted=2)
def _declared(system, t, state):
    residual = constraint_residuals(system, t, state.q, state.v)
    mass, jac = mass_and_jacobian(system, t, state.q, state.v)
    return Declared(mass, jac, residual.phi, residual.phi_dot)


def declared(system, t, state) -> Declared:
    """Matrices and residuals at a state by one compiled program, as NumPy arrays."""
    return Declared(*map(np.asarray, _declared(system, t, state)))


def reason_of(result) -> str:
    """The first line of what diffrax says of a result."""
    message = diffrax.RESULTS[result].strip().split("\n")[0]
    return message.rstrip(".") or "failed"


def _is_kernel_of_radau(trajectory, solver) -> bool:
    """Whether its iterations may have left out the Jacobians of all stages."""
    of_radau = solver is not None and isinstance(parts_of(solver).method, RadauIIA)
    return of_radau and trajectory.backend == "native"


def _too_stiff(trajectory, solver) -> str:
    """That steps are short for the sake of stability, and what to try."""
    method = None if solver is None else parts_of(solver).method
    damps = trajectory.formulation.capabilities.stabilization is not None
    remedies = ("lower the gains",) if damps else ()
    if isinstance(getattr(method, "root_finder", None), diffrax.VeryChord):
        # Its iteration fails where the Jacobian changes along a step, and steps become short.
        remedies += (
            f"iterate for the stages of {type(method).__name__} by Newton's method, which does not "
            "keep one Jacobian for them all "
            "(root_finder=diffrax.with_stepsize_controller_tols(optimistix.Newton)())",
        )
    if isinstance(method, RadauIIA):
        remedies += (_OTHER_WAY,) if _is_kernel_of_radau(trajectory, solver) else ()
    elif not isinstance(method, Rodas5P):
        remedies += ("use a solver for stiff equations (jaxdae.solvers.Rodas5P())",)
    if used_up_its_steps(trajectory):
        remedies += ("allow more max_steps",)
    remedies += ("loosen the tolerance",)
    return f"the equations are too stiff for the solver or its tolerance: {'; or '.join(remedies)}."


def _constraint_report(trajectory, t: float, state: State, otherwise: str, remedy: str) -> str:
    """The constraints where a run stopped, and `otherwise`, or a remedy where they lose rank."""
    system = trajectory.system
    known = declared(system, t, state)
    jac = known.jac
    phi = np.abs(known.phi_dot if known.phi.size == 0 else known.phi)
    if phi.size == 0:
        return (
            "The system has no constraints, and all that it declares is finite there: the motion "
            f"tends to a singularity, or {otherwise}"
        )
    labels, worst = system.labels(), int(np.argmax(phi))
    text = f"Largest residual: {labels.constraint(worst)!r} = {phi[worst]:.3g}. "
    result, near = numerical_rank(jac, NEARLY_DEPENDENT), nearness(system, t, state.q, state.v)
    if result.rank < jac.shape[0]:
        how = (
            f"singular values {singular_values_text(result)} of the Jacobian with unit rows; "
            f"{involved(labels, result)}"
        )
    elif near.singular:
        names = ", ".join(repr(labels.constraint(i)) for i in near.involved)
        how = (
            "a row of their Jacobian nearly vanishes, with the least singular value "
            f"{near.least:.3g}; involved: {names}"
        )
    else:
        least = result.singular_values[-1]
        return text + (
            f"The constraints are independent (least singular value {least:.3g}): {otherwise}"
        )
    return f"{text}The constraints lose independence there: {how}. {remedy}"


def singular_values_text(result: NumericalRank) -> str:
    """Singular values to three digits."""
    return "[" + ", ".join(f"{x:.3g}" for x in result.singular_values) + "]"


# A step that fails begins where all is finite: moments after it, relative to `1 + |t|` [s].
_AHEAD = (0.0, 1e-12, 1e-9, 1e-6)


def describe_nonfinite(system: System, controller, t, state: State) -> str | None:
    """The first function that is NaN or infinite at a state, or a moment after it, in words.

    The function, the entry, its value, the time, and what to look for; `None` if all are finite.
    """
    ts = float(t) + np.array(_AHEAD) * (1 + abs(float(t)))
    result = _values(system, controller, jnp.asarray(t), jnp.asarray(ts, state.q.dtype), state)
    for i, time in enumerate(ts):
        # A controller that is not finite makes the force so; JAX has sorted the names.
        for name in sorted(result, key=lambda name: name != "the controller"):
            row = np.asarray(result[name])[i]
            bad = np.flatnonzero(~np.isfinite(row))
            if bad.size:
                owner = "" if name.startswith("the") else f"{type(system).__name__}."
                return (
                    f"{owner}{name} is not finite: entry {bad[0]} is {row[bad[0]]} at "
                    f"t = {time:.6g} s. Look for a division by zero, or a root or logarithm of a "
                    "negative number there; jnp.where does not keep the branch that it leaves out "
                    "from making a derivative NaN."
                )
    return None


@jit(options=BRIEFLY)
def _values(system, controller, start, ts, state):
    v, w = state.v, state.w
    rate = coordinate_rate(system, start, state.q, v)

    def at(t):
        q = state.q + (t - start) * rate
        u = control_input(controller, t, State(q, v, w))
        mass, jac = mass_and_jacobian(system, t, q, v)
        parts = {
            "the controller": u,
            "force": system.force(t, q, v, w, u),
            "stiff_force": system.stiff_force(t, q, v, w, u),
            "potential_energy (its slope)": jax.grad(system.potential_energy, argnums=1)(t, q),
            "dissipation (its slope)": jax.grad(system.dissipation, argnums=2)(t, q, v),
            "kinetic_energy (its slopes)": (
                mass,
                jax.grad(system.kinetic_energy, argnums=(1, 2))(t, q, v),
            ),
            "actuator_rate": system.actuator_rate(t, q, v, w, u),
            "the constraints (their residuals)": constraint_residuals(system, t, q, v),
            "the constraints (their slopes)": jac,
        }
        return {name: ravel_pytree(part)[0] for name, part in parts.items()}

    return jax.vmap(at)(ts)
