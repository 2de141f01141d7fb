"""What is found out about an equilibrium: stability, certificates, step limits, regulator."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from jaxdae.analysis.controllability import Controllability, controllability
from jaxdae.analysis.equilibria import Equilibrium, equilibrium
from jaxdae.analysis.linearization import Linearization, linearize
from jaxdae.analysis.lyapunov import (
    BaumgarteCertificate,
    LinearCertificate,
    lyapunov_certificate,
)
from jaxdae.analysis.riccati import lqr, Regulator
from jaxdae.analysis.shulgin import linearized_constraint, LinearizedConstraint
from jaxdae.analysis.spectra import root_bounds, Spectrum, spectrum
from jaxdae.analysis.steps import (
    clean,
    growth,
    perturbation_matrix,
    root_limit,
    step_limit,
    StepLimit,
)
from jaxdae.compiled import jit
from jaxdae.formulations import Baumgarte
from jaxdae.reprs import shown
from jaxdae.stability.stability_functions import is_multistep
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


class LinearizedField(NamedTuple):
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
    field: StepLimit
    growth: tuple[float | None, float] | None


class ControlAnalysis(NamedTuple):
    """What the inputs reach, and the regulator.

    Args:
        reach: controllability on the constraints.
        redundant: controllability of all redundant coordinates.
        regulator: linear-quadratic, for identity weights, or `None`.
        failure: why there is none; empty where there is one.
    """

    reach: Controllability
    redundant: Controllability
    regulator: Regulator | None
    failure: str


class Analysis(NamedTuple):
    """All findings about one equilibrium.

    Args:
        system: the declaration.
        formulation: with the stabilization that is analyzed.
        guess: state near the equilibrium from which it was found.
        equilibrium: state, multipliers and inputs at rest.
        linearization: about it.
        spectrum: of the linearization.
        lost: what linearizing the constraints first loses, `None` with velocity constraints.
        stabilizer: of the constraints, `None` without one.
        field: the equations that a solver integrates.
        limits: of each solver, by name.
        control: what the inputs reach, `None` without any.
        dt: a step to compare with the limits [s], or `None`.
        t1: length of a run, by which slow growth is measured [s].
    """

    system: System
    formulation: Any
    guess: State
    equilibrium: Equilibrium
    linearization: Linearization
    spectrum: Spectrum
    lost: LinearizedConstraint | None
    stabilizer: Stabilizer | None
    field: LinearizedField
    limits: dict[str, SolverLimits]
    control: ControlAnalysis | None
    dt: float | None
    t1: float

    def __repr__(self) -> str:
        return shown(self)

    @property
    def motion(self) -> NDArray[np.complex128]:
        """Roots of the motion on the constraints."""
        return clean(self.spectrum.others, self.spectrum.tolerances)

    def state_names(self) -> list[str]:
        """Names of the entries of the redundant linear state, those on the constraints first."""
        name = self.linearization.coordinates
        independent, errors, dependent = self.linearization.partition
        return [
            *(name[i] for i in independent),
            *(f"d({name[i]})/dt" for i in independent),
            *(f"w{i + 1}" for i in range(self.equilibrium.w.size)),
            *(f"error of {name[i]}" for i in (*errors, *dependent)),
        ]

    def root_sets(self) -> dict[str, NDArray[np.complex128]]:
        """Named sets of roots for `jaxdae.plotting.plot_roots`; empty ones are left out."""
        spectrum, control, form = self.spectrum, self.control, type(self.formulation).__name__
        sets = {
            "motion": self.motion,
            "position constraints": np.zeros(spectrum.constraint_zeros),
            "velocity constraints": np.zeros(spectrum.nonholonomic_zeros),
            "stabilization": self.stabilizer.roots if self.stabilizer else (),
            "with the regulator": control.regulator.roots if control and control.regulator else (),
            f"as integrated ({form})": () if form == "Multipliers" else self.field.roots,
        }
        return {name: np.asarray(roots, complex) for name, roots in sets.items() if np.size(roots)}


def analyze(
    system: System,
    formulation,
    guess: State,
    solvers: dict[str, Any],
    *,
    inputs: int = 0,
    fixed: tuple[str, ...] = (),
    t1: float,
    dt: float | None = None,
) -> Analysis:
    """Everything that is known about an equilibrium.

    Args:
        system: the declaration.
        formulation: with the stabilization to analyze.
        guess: coordinates and actuator state near the equilibrium.
        solvers: those whose step limits are wanted, by name; see `step_limit`.
        inputs: number of control inputs; those that hold the system at rest are found with it.
        fixed: names of coordinates to hold at their guess, where states of rest form a family.
        t1: length of a run, by which slow growth is measured [s].
        dt: a step to compare with the limits [s].

    Returns:
        `Analysis`.

    Raises:
        EquilibriumError: when there is no equilibrium near the guess.
        ValueError: when it is singular.
    """
    u = jnp.zeros(inputs, guess.q.dtype) if inputs else None
    eq = equilibrium(system, guess.q, guess.w, u, free_controls=bool(inputs), fixed=fixed)
    lin = linearize(system, eq)
    m, r = lin.position_constraints, lin.velocity_constraints
    lost = linearized_constraint(system, eq) if m and not r else None
    stabilizer = _stabilizer(formulation.capabilities.stabilization, m, r)
    field = _field(system, formulation, eq)
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
        {name: _limits(solver, stabilizer, field, dt) for name, solver in solvers.items()},
        _control(lin) if inputs else None,
        dt,
        t1,
    )


def _stabilizer(stabilization, m: int, r: int) -> Stabilizer | None:
    if stabilization is None or m + r == 0:
        return None
    H = perturbation_matrix(stabilization, m, r)
    roots = clean(*root_bounds(H, np.finfo(float).eps))
    baumgarte = None
    if m and isinstance(stabilization, Baumgarte):
        baumgarte = lyapunov_certificate(stabilization.K_D, stabilization.K_P, m)
    return Stabilizer(H, roots, baumgarte, lyapunov_certificate(H=H))


def _field(system, formulation, eq: Equilibrium) -> LinearizedField:
    phi, jacobian = _rest_of_field(system, formulation, eq)
    roots = clean(*root_bounds(np.asarray(jacobian), float(jnp.finfo(phi.dtype).eps)))
    return LinearizedField(roots, float(np.abs(np.asarray(phi)).max(initial=0.0)))


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


def _limits(solver, stabilizer: Stabilizer | None, field: LinearizedField, dt) -> SolverLimits:
    spectral = norm = factor = None
    if stabilizer is not None:
        spectral = step_limit(stabilizer.H, solver)
        factor = None if dt is None else growth(solver, stabilizer.roots, dt)
        if not is_multistep(solver):
            norm = step_limit(stabilizer.H, solver, version="lyapunov")
    factors = None if dt is None else (factor, growth(solver, field.roots, dt))
    return SolverLimits(spectral, norm, root_limit(solver, field.roots), factors)


def _control(lin: Linearization) -> ControlAnalysis:
    reach, redundant = controllability(lin.A, lin.B), controllability(lin.A_full, lin.B_full)
    try:
        return ControlAnalysis(reach, redundant, lqr(lin), "")
    except ValueError as error:
        return ControlAnalysis(reach, redundant, None, str(error))
