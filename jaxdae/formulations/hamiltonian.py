"""Hamilton's equations with constraints, on coordinates and momenta."""

import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from jaxdae.compiled import shared
from jaxdae.formulations.base import AbstractFormulation, holding_rank
from jaxdae.formulations.stabilization import desired_rate, Stabilization
from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve, AutomaticSolve
from jaxdae.reprs import Module
from jaxdae.systems import constraint_residuals, momentum, State, System
from jaxdae.systems.dynamics import other_force
from jaxdae.systems.kinematics import (
    along_motion,
    coordinate_rate,
    frame_force,
    generalized_force,
)

# From rest, Newton's method on the momenta of a convex kinetic energy either converges
# quadratically or has left the energy's domain.
_NEWTON_STEPS = 32


class CanonicalState(Module):
    """Coordinates `q (n,)`, momenta `p = dT/dv` of the shape of `v`, actuator state `w (k,)`."""

    q: Float[Array, " n"]
    p: Float[Array, " n"]
    w: Float[Array, " k"]


class Hamiltonian(AbstractFormulation):
    r"""Hamilton's equations with multipliers and constraint stabilization.

        q' = dH/dp,        p' + J^T lam = F - dH/dq - dD/dv,        H(t, q, p) = p . v - T + V

    [Shemelova]; of velocities that are not rates of coordinates, `q' = N v` (`System.rate`),

        q' = N dH/dp,      p' + J^T lam = F - N^T dH/dq + C^T p - dD/dv

    with the momenta `p = dT/dv` that belong to them and the terms `C^T p` of Boltzmann and Hamel:
    (Euler's `p' = p x v + ...` of angular velocities in axes of the body). The function `v(t, q,
    p)` inverts `p = dT/dv`. The multipliers follow from the perturbation equations of the
    constraints as functions of `(t, q, p)`: with `g(t, q, p)` the velocity-level residual at
    `v = dH/dp`,

        dg/dt + dg/dq q' + dg/dp p' = Phi,        dg/dp = J M^-1,        M^-1 = d2H/dp2.

    `dH/dq`, `dH/dp` and the rate of `g` along the flow come from automatic differentiation of `H`
    and `g`; neither accelerations nor Coriolis terms are ever formed.

    The Legendre transform is one linear solve where `T` is quadratic in the velocities: where
    `mass_matrix` is declared, or the program of `d2T/dv2` does not use `v`. Otherwise it is
    Newton's method from rest, which needs a convex `T`; where it does not converge, the result
    is NaN.

    Args:
        stabilization: `Baumgarte`, `LinearStabilization`, any callable
            `Phi(t, q, v, phi, phi_dot)`, or `None` (violations then grow linearly in time).
        solve: `AutomaticSolve()`, which is `FullRankSolve()` or, for dependent constraints,
            `MinimumNormSolve()`.

    Raises:
        ValueError: for a `solve` that admits a singular mass matrix: the momenta then do not
            determine the velocities; for one that does not take arrays.
    """

    stabilization: Stabilization | None = None
    solve: AbstractSaddlePointSolve = AutomaticSolve()

    def __check_init__(self):
        capabilities = self.solve.capabilities
        if not capabilities.arrays:
            raise ValueError(
                f"Hamiltonian takes matrices as arrays, {type(self.solve).__name__} has none; use "
                f"Multipliers(..., solve={type(self.solve).__name__}())."
            )
        if not capabilities.regular_mass:
            raise ValueError(
                f"Hamiltonian cannot use {type(self.solve).__name__}: where the mass matrix is "
                "singular the momenta do not determine the velocities. Leave solve out, or "
                "use the formulation Multipliers(..., solve=SingularMassSolve())."
            )

    @property
    def capabilities(self):
        capabilities = self.solve.capabilities
        return capabilities._replace(stabilization=self.stabilization, finds_reaction_forces=False)

    def init(self, system, t, state, like=None):
        t = jnp.asarray(t, state.q.dtype)
        return CanonicalState(state.q, momentum(system, t, state.q, state.v), state.w)

    def recover(self, system, t, y):
        return State(y.q, velocity(system, t, y.q, y.p), y.w)

    def rate_and_multipliers(self, system, t, y, u):
        t, q, p = jnp.asarray(t, y.q.dtype), y.q, y.p
        dH_dq, v = jax.grad(hamiltonian, argnums=(2, 3))(system, t, q, p)
        dissipative = jax.grad(system.dissipation, argnums=2)(t, q, v)
        inertial = frame_force(system, t, q, v, p) - generalized_force(system, t, q, v, dH_dq)
        free = other_force(system, t, q, v, y.w, u) + inertial - dissipative

        def residual(t, q, p):
            result = constraint_residuals(system, t, q, velocity(system, t, q, p))
            return result.phi_dot, result.phi

        drift = (*along_motion(system, t, q, v), jnp.zeros_like(p))
        phi_dot, rate, phi = jax.jvp(residual, (t, q, p), drift, has_aux=True)
        wanted = desired_rate(self.stabilization, t, q, v, phi, phi_dot) - rate
        jac = jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)
        # d(phi_dot)/dp p' = wanted with d(phi_dot)/dp = J M^-1, and p' = free - J^T lam.
        solve = holding_rank(self.solve, system, t, State(q, v, y.w))
        _, lam = solve(_mass(system, t, q, v), free, jac, wanted)
        w_dot = system.actuator_rate(t, q, v, y.w, u)
        return CanonicalState(coordinate_rate(system, t, q, v), free - jac.T @ lam, w_dot), lam


@shared
def hamiltonian(system: System, t, q, p) -> Float[Array, ""]:
    """Hamilton's function `H = p . v - T + V` [J] at `v(t, q, p)`.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.
        p: momenta `dT/dv`, of the shape of the velocities.
    """
    v = velocity(system, t, q, p)
    return p @ v - system.kinetic_energy(t, q, v) + system.potential_energy(t, q)


@shared
def velocity(system: System, t, q, p) -> Float[Array, " n"]:
    """Velocities with momenta `p`, `dT/dv(t, q, v) = p`: the inverse of `jaxdae.systems.momentum`.

    NaN where Newton's method does not find them. The mass matrix must be positive definite.
    """
    t, rest = jnp.asarray(t, q.dtype), jnp.zeros_like(p)
    if is_quadratic(system, q, p):
        return solve_positive_definite(_mass(system, t, q, rest), p - momentum(system, t, q, rest))
    eps = float(jnp.finfo(q.dtype).eps)
    solution = optx.root_find(
        lambda v, args: momentum(system, args[0], args[1], v) - args[2],
        optx.Newton(rtol=eps**0.75, atol=eps**0.75),
        rest,
        args=(t, q, p),
        max_steps=_NEWTON_STEPS,
        throw=False,
    )
    return jnp.where(solution.result == optx.RESULTS.successful, solution.value, jnp.nan)


def is_quadratic(system: System, q, v) -> bool:
    """Whether the kinetic energy is known to be quadratic in the velocities. Computes nothing."""
    t, q, v = (jnp.zeros(shape, q.dtype) for shape in ((), q.shape, v.shape))
    if system.mass_matrix(t, q) is not None:
        return True
    return not depends_on(jax.hessian(system.kinetic_energy, argnums=2), 2, t, q, v)


@shared
def _mass(system, t, q, v):
    declared = system.mass_matrix(t, q)
    if declared is not None:
        return jnp.asarray(declared, q.dtype)
    return jax.hessian(system.kinetic_energy, argnums=2)(t, q, v)
