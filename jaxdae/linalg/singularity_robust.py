"""Accelerations and multipliers through positions in which the constraints lose rank."""

import equinox as eqx
import jax.numpy as jnp

from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve, Capabilities


class SingularityRobust(AbstractSaddlePointSolve):
    r"""Singular positions allowed: damped least squares, repeated, with every step projected.

        (A + c I) (lam_{k+1} - lam_k) = J M^-1 f - s - A lam_k,    A = J M^-1 J^T,    lam_0 = 0

    With `c = damping^2 max_i A_ii` the reaction in a direction whose relative singular value is
    `sigma` comes out `1 - (damping^2 / (sigma^2 + damping^2))^iterations` times its exact value: to
    round-off away from a singular position; next to one it fades out smoothly while
    `sigma < damping`, where the exact multiplier grows without bound. What a motion loses there is
    a velocity of the order of `damping` across the constraints, which a projection in the mass
    metric takes away again at the cost of an energy of the order of `damping^2`. Therefore
    `simulate` projects every step with this policy, as if the solver were `Projected(solver)`.

    Damping next to singular positions is that of [NakamuraHanafusa1986]; repeated it is an
    augmented Lagrangian with mass-orthogonal projections [BayoLedesma1996].

    Derivatives: next to such a position round-off and what a step leaves of a violation are divided
    by powers of `sigma`, and next to a position with forces across the branch the reaction is lost
    in a stage with `sigma < damping`. Adaptive steps see that, fixed ones do not. Of 1000 slider-
    cranks with friction, past one or two in-line positions, steps to a tolerance of 1e-8 kept every
    value to 3e-7 rad or rad/s and every derivative by masses, length, gravity and friction to 1e-6
    of the largest; with fixed steps of 0.01 s by RK4 ten had derivatives wrong by more than 0.1 %,
    the worst by a factor of 17. Take adaptive steps where derivatives are wanted. By a parameter
    that alone moves the constraints apart there, such as one of two equal lengths, a motion through
    the position has no derivative, whatever the formulation: two branches that cross become a
    hyperbola, and the motion turns into the other one. `jaxdae.identify` names such parameters.
    Multipliers grow without bound towards the position and have no derivative in it.

    A constraint whose rows are `damping` times shorter than those of others, in the metric of
    `M^-1`, is damped as well: write constraints in units that make their rows comparable.

    Args:
        damping: relative singular value below which reactions fade, positive; by default the cube
            root of the machine epsilon, 6e-6 in double precision.
        iterations: number of solves, at least 1.

    Raises:
        ValueError: for a damping outside (0, 1), or less than one iteration.
    """

    damping: float | None = eqx.field(static=True, default=None)
    iterations: int = eqx.field(static=True, default=3)

    def __check_init__(self):
        if self.damping is not None and not 0 < self.damping < 1:
            raise ValueError(
                f"SingularityRobust: damping is {self.damping!r}, must lie between 0 and 1."
            )
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(
                f"SingularityRobust: iterations is {self.iterations!r}, must be a positive integer."
            )

    @property
    def capabilities(self):
        return Capabilities(independent_constraints=False, passes_singular_positions=True)

    def damping_in(self, dtype) -> float:
        """The damping that is taken in a precision."""
        return float(jnp.finfo(dtype).eps) ** (1 / 3) if self.damping is None else self.damping

    def __call__(self, mass, force, jac, rhs):
        columns = solve_positive_definite(mass, jnp.concatenate([jac.T, force[:, None]], axis=1))
        mobility, free = columns[:, :-1], columns[:, -1]
        if rhs.size == 0:
            return free, rhs
        response, defect = jac @ mobility, jac @ free - rhs
        size = jnp.max(jnp.diagonal(response))
        damping = self.damping_in(rhs.dtype)
        # Where no constraint acts at all, no reaction does.
        damped = response + jnp.where(size > 0, damping**2 * size, 1.0) * jnp.eye(
            rhs.size, dtype=rhs.dtype
        )
        lam = jnp.zeros_like(rhs)
        for _ in range(self.iterations):
            lam = lam + solve_positive_definite(damped, defect - response @ lam)
        return free - mobility @ lam, lam
