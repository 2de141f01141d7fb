"""What is found out about an equilibrium: stability, certificates, step limits, regulator."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from jaxdae.analysis import (
    BaumgarteCertificate,
    Controllability,
    controllability,
    Equilibrium,
    equilibrium,
    EquilibriumError,
    linear_certificate,
    LinearCertificate,
    Linearization,
    linearize,
    linearized_constraint,
    LinearizedConstraint,
    lqr_on_constraints,
    lyapunov_certificate,
    perturbation_matrix,
    Regulator,
    RegulatorFeedback,
    Spectrum,
    spectrum,
    step_limit,
    StepLimit,
)
from jaxdae.analysis.spectra import root_bounds
from jaxdae.commands.limits import clean, growth, root_limit, RootLimit, SOLVERS
from jaxdae.compiled import jit
from jaxdae.formulations import Baumgarte
from jaxdae.models.equilibria import Rest
from jaxdae.systems import State, System

# Newton steps to the rest of the integrated equations, which the penalty form shifts a little.
_REST_STEPS = 8


class Stabilizer(NamedTuple):
    """Constraint perturbation equations `dy/dt = H y`, and what is guaranteed of them.

    Args:
        H: shape `(2m+r, 2m+r)`.
        roots: of `H`.
        baumgarte: certificate of the position constraints, `None` without any.
        linear: certificate of all constraints.
    """

    H: np.ndarray
    roots: NDArray[np.complex128]
    baumgarte: BaumgarteCertificate | None
    linear: LinearCertificate


class Field(NamedTuple):
    """The equations that a solver integrates, linearized where they rest.

    Args:
        roots: `2n+k` of them: motion, constraints and actuators.
        violation: largest position violation in that rest; not zero for the penalty form.
    """

    roots: NDArray[np.complex128]
    violation: float


class SolverLimits(NamedTuple):
    """Largest steps of one solver.

    Args:
        stabilizer: spectral limit for the stabilization, `None` without one.
        norm: limit in the norm of its Lyapunov function, `None` for multistep methods too.
        field: limit for all roots of the integrated equations.
        growth: factors per step at the step that was asked for: stabilization (or `None`), field.
    """

    stabilizer: StepLimit | None
    norm: StepLimit | None
    field: RootLimit
    growth: tuple[float | None, float] | None


class Control(NamedTuple):
    """What the inputs reach, and the regulator.

    Args:
        reach: controllability on the constraints.
        redundant: controllability of all redundant coordinates.
        feedback: linear-quadratic regulator for identity weights, or `None`.
        regulator: its gain and roots, or `None`.
        failure: why there is none; empty where there is one.
    """

    reach: Controllability
    redundant: Controllability
    feedback: RegulatorFeedback | None
    regulator: Regulator | None
    failure: str


class Analysis(NamedTuple):
    """All findings about one equilibrium."""

    system: System
    formulation: Any
    guess: Any
    equilibrium: Equilibrium
    linearization: Linearization
    spectrum: Spectrum
    lost: LinearizedConstraint | None
    stabilizer: Stabilizer | None
    field: Field
    limits: dict[str, SolverLimits]
    control: Control | None
    dt: float | None
    t1: float


def analyze(
    system: System, rest: Rest, formulation, guess: State, *, t1: float, dt: float | None = None
) -> Analysis:
    """Everything that is known about an equilibrium.

    Args:
        system: the declaration.
        rest: which inputs are found, which coordinates are held.
        formulation: with the stabilization to judge.
        guess: coordinates and actuator state near the equilibrium.
        t1: length of a run, by which slow growth is judged [s].
        dt: a step to compare with the limits [s].

    Returns:
        `Analysis`.

    Raises:
        ValueError: when there is no equilibrium near the guess, or it is singular.
    """
    eq = _equilibrium(system, rest, guess)
    lin = linearize(system, eq)
    m, r = lin.position_constraints, lin.velocity_constraints
    lost = linearized_constraint(system, eq) if m and not r else None
    stabilizer = _stabilizer(getattr(formulation, "stabilization", None), m, r)
    field = _field(system, formulation, eq)
    limits = {name: _limits(solver, stabilizer, field, dt) for name, solver in SOLVERS.items()}
    control = _control(lin) if rest.inputs else None
    return Analysis(
        system,
        formulation,
        guess,
        eq,
        lin,
        spectrum(lin),
        lost,
        stabilizer,
        field,
        limits,
        control,
        dt,
        t1,
    )


def _equilibrium(system, rest: Rest, guess: State) -> Equilibrium:
    u = jnp.zeros(rest.inputs, guess.q.dtype) if rest.inputs else None
    try:
        return equilibrium(
            system,
            guess.q,
            guess.w,
            u,
            free_controls=bool(rest.inputs),
            fixed=rest.fixed,
        )
    except EquilibriumError as error:
        labels = system.labels()
        start = ", ".join(f"{labels.coordinate(i)} = {x:.6g}" for i, x in enumerate(guess.q))
        # What it advises are arguments of the function, not options of the command.
        finding, _, _ = str(error).partition(" Start nearer")
        raise EquilibriumError(
            f"{finding} The guess was {start}; give one nearer to a rest with --at NAME=VALUE,…"
        ) from error


def _stabilizer(stabilization, m: int, r: int) -> Stabilizer | None:
    if stabilization is None or m + r == 0:
        return None
    H = perturbation_matrix(stabilization, m, r)
    roots = clean(*root_bounds(H, np.finfo(float).eps))
    baumgarte = None
    if m and isinstance(stabilization, Baumgarte):
        baumgarte = lyapunov_certificate(stabilization.K_D, stabilization.K_P, m)
    return Stabilizer(H, roots, baumgarte, linear_certificate(H))


def _field(system, formulation, eq: Equilibrium) -> Field:
    phi, jacobian = _rest_of_field(system, formulation, eq)
    roots = clean(*root_bounds(np.asarray(jacobian), float(jnp.finfo(phi.dtype).eps)))
    return Field(roots, float(np.abs(np.asarray(phi)).max(initial=0.0)))


@jit
def _rest_of_field(system, formulation, eq: Equilibrium):
    """Violation where the integrated equations rest near the equilibrium, and their Jacobian."""
    y, unravel = ravel_pytree(formulation.init(system, eq.t, eq.state))

    def rate(y):
        return ravel_pytree(formulation.vector_field(system, eq.t, unravel(y), eq.u))[0]

    jacobian, rtol = jax.jacfwd(rate), float(jnp.finfo(y.dtype).eps) ** (2 / 3)
    y = jax.lax.fori_loop(
        0, _REST_STEPS, lambda _, y: y - jnp.linalg.pinv(jacobian(y), rtol=rtol) @ rate(y), y
    )
    q = formulation.recover(system, eq.t, unravel(y)).q
    return system.position_constraints(eq.t, q), jacobian(y)


def _limits(solver, stabilizer: Stabilizer | None, field: Field, dt) -> SolverLimits:
    spectral = norm = factor = None
    if stabilizer is not None:
        spectral = step_limit(stabilizer.H, solver)
        factor = None if dt is None else growth(solver, stabilizer.roots, dt)
        if hasattr(solver, "order"):
            norm = step_limit(stabilizer.H, solver, version="lyapunov")
    factors = None if dt is None else (factor, growth(solver, field.roots, dt))
    return SolverLimits(spectral, norm, root_limit(solver, field.roots), factors)


def _control(lin: Linearization) -> Control:
    reach, redundant = controllability(lin.A, lin.B), controllability(lin.A_full, lin.B_full)
    try:
        feedback, regulator = lqr_on_constraints(lin)
    except ValueError as error:
        return Control(reach, redundant, None, None, str(error))
    return Control(reach, redundant, feedback, regulator, "")
