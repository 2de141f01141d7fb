r"""A barrier at the step limit, for gains that no parametrization keeps inside.

A step of size `h` multiplies violations by `R(h H)`. For any `k`

    rho(R) <= |R^k|^(1/k)

in the Frobenius norm, and the right side falls to the spectral radius as `k` grows. Other than that
radius it is smooth, also where roots coincide, and its derivative is that of products of matrices.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.reprs import Module
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.stability_functions import linear_stages
from jaxdae.tuning.certificate import Certificate, perturbation_matrices

# R^64: of two by two matrices within 1 % of the spectral radius where roots are apart.
_SQUARINGS = 6


class StepBarrier(Module):
    r"""An objective with a logarithmic barrier at the step limit of what is stabilized.

        objective - weight log(1 - bound / theta)

    with `bound` no less than the largest factor by which any of the objective's steps multiplies a
    mode of the violation, at any start and variation. Short steps damp little: under several steps
    a small `theta` may be out of reach. Where it is `theta` or more the value is NaN, and `tune`
    takes no step to there: gains of every kind and formulation, full matrices among them, stay
    where each step damps by `theta`. For scalar and diagonal gains `StableGains` needs no weight.

    Args:
        objective: a `SimulationObjective` of fixed steps by a method with a stability function.
        weight: of the barrier, in the unit of the objective; the smaller, the nearer to the limit.
        theta: largest factor that is allowed, in (0, 1].

    Raises:
        ValueError: for a weight or a factor that makes no sense, adaptive steps, or a method
            without a stability function.
    """

    objective: Any
    weight: float | Float[Array, ""]
    theta: float = 1.0

    def __check_init__(self):
        if not 0 < self.theta <= 1:
            raise ValueError(f"StepBarrier: theta is {self.theta}, must be in (0, 1].")
        if isinstance(self.weight, float | int) and not self.weight > 0:
            raise ValueError(f"StepBarrier: weight is {self.weight}, must be positive.")
        if self.objective.adaptive:
            raise ValueError(
                "StepBarrier: the objective's steps are adaptive, so that no gains have a step "
                "limit; leave the barrier out."
            )
        linear_stages(parts_of(self.objective.solver_used).method)

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """The objective and the barrier; NaN where a step does not damp by `theta`.

        Args:
            params: resolved parameters.
        """
        # Its logarithm is NaN where the bound is above theta.
        room = 1 - self.bound(params) / self.theta
        return self.objective(params) - self.weight * jnp.log(jnp.where(room > 0, room, jnp.nan))

    def bound(self, params: PyTree) -> Float[Array, ""]:
        """No less than the factor of any mode; 0 where nothing is stabilized.

        Args:
            params: resolved parameters.
        """
        solver = parts_of(self.objective.solver_used).method
        steps = jnp.asarray(sorted(set(self.objective.steps_made)))
        found = [x for x in perturbation_matrices(self.objective, params) if x is not None]
        bounds = [
            jnp.max(jax.vmap(lambda H: _radius(step_matrix(solver, H)))(x))
            for x in (_with_steps(steps, x) for x in found if x.size)
        ]
        return jnp.max(jnp.stack(bounds)) if bounds else jnp.zeros(())

    @property
    def mode(self) -> str:
        """How to differentiate: as the objective says."""
        return self.objective.mode

    @property
    def budget(self) -> str:
        """Budget of the objective, and the barrier, in words."""
        return f"{self.objective.budget}, steps that damp by {self.theta:g}"

    def certificate(self, params: PyTree) -> Certificate:
        """What is known of parameters under the conditions of the objective.

        Args:
            params: resolved parameters.
        """
        return self.objective.certificate(params)


def step_matrix(solver, H: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """`R(H)` of a step method, differentiable.

    Args:
        solver: one with a stability function.
        H: step times matrix of the perturbation equations, shape (p, p).
    """
    (a, b), eye, rates = linear_stages(solver), jnp.eye(len(H), dtype=H.dtype), []
    for i in range(b.size):
        known = eye + sum((float(a[i, j]) * x for j, x in enumerate(rates) if a[i, j]), 0 * eye)
        rate = H @ known
        rates.append(jnp.linalg.solve(eye - float(a[i, i]) * H, rate) if a[i, i] else rate)
    return eye + sum((float(w) * x for w, x in zip(b, rates, strict=True)), 0 * eye)


def _with_steps(steps: Float[Array, " steps"], matrices: Array) -> Float[Array, "products p p"]:
    """All steps times all matrices."""
    rows = matrices.reshape(-1, *matrices.shape[-2:])
    products = steps.astype(rows.dtype)[:, None, None, None] * rows
    return products.reshape(-1, *rows.shape[1:])


def _radius(matrix: Float[Array, "p p"]) -> Float[Array, ""]:
    """`|R^k|^(1/k)`, with powers scaled to a norm of one."""
    tiny = jnp.finfo(matrix.dtype).tiny ** 0.5
    logarithm = jnp.zeros((), matrix.dtype)
    for power in range(_SQUARINGS + 1):
        # Not zero where the method damps in one step, which would have no logarithm.
        norm = jnp.sqrt(jnp.sum(matrix**2) + tiny)
        logarithm = logarithm + jnp.log(norm) / 2**power
        matrix = (matrix / norm) @ (matrix / norm)
    return jnp.exp(logarithm)
