r"""Gains by theory where violations have a finite mass `alpha`.

With the mobility `W = J M^-1 J^T` of the constraints, and `b` the acceleration that they would have
without reactions, the penalty equations say of the residuals

    phi_ddot = P Phi + (I - P) b,        P = I - (I + W alpha)^-1

and `k` iterations of the augmented Lagrangian method likewise, with `P = I - (I + W alpha)^-k`: of
what the stabilization wants a part remains. To follow from the perturbation equations of theory,
`P Phi = -K_D phi_dot - K_P phi`, the stabilization has to ask for `P^-1` times as much. The motion
then stays off the constraints by `K_P^-1 (I - P) b`, whatever the step.
"""

import jax.numpy as jnp

from jaxdae.formulations.gains import as_gain, check_positive, is_number
from jaxdae.formulations.stabilization import Baumgarte, LinearStabilization
from jaxdae.stability.step_gains import StepGains


def weighted_stabilization(
    gains: StepGains, alpha, mobility, *, iterations: int = 1, velocity_constraints: int = 0
) -> Baumgarte | LinearStabilization:
    """The stabilization whose part that remains has gains by theory.

    Args:
        gains: for the step.
        alpha: constraint mass: scalar, diagonal `(m+r,)` or `(m+r, m+r)`.
        mobility: `W`, likewise [1/kg for constraints in m]; that of `constraint_mobility` at a
            typical state, or its diagonal or a number of its size.
        iterations: of the augmented Lagrangian method.
        velocity_constraints: their number `r`, where alpha or the mobility are no numbers.

    Returns:
        `Baumgarte` for scalars and diagonals, `LinearStabilization` for matrices.

    Raises:
        ValueError: for gains that are not positive definite, or of unequal size.
    """
    alpha, mobility, r = as_gain(alpha), as_gain(mobility), velocity_constraints
    for name, value in (("alpha", alpha), ("mobility", mobility)):
        check_positive(name, value)
        if not is_number(value):
            raise ValueError(
                f"{name} is {value!r}; give a positive number, a vector, or a positive definite "
                "matrix: jaxdae.stability.constraint_mobility(system, t, state) is the mobility."
            )
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations must be an integer, at least 1; got {iterations!r}.")
    _check_sizes(alpha, mobility, r)
    if max(jnp.ndim(alpha), jnp.ndim(mobility)) < 2:
        part = 1 - (1 + mobility * alpha) ** -iterations
        return _diagonal(gains, part, r)
    matrix = _square(mobility, alpha) @ _square(alpha, mobility)
    eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    remains = jnp.linalg.matrix_power(jnp.linalg.inv(eye + matrix), iterations)
    return _blocks(gains, jnp.linalg.inv(eye - remains), r)


def _diagonal(gains: StepGains, part, r: int) -> Baumgarte:
    if jnp.ndim(part) == 0:
        return Baumgarte(gains.K_D / part, gains.K_P / part, gains.Gamma / part)
    m = part.shape[0] - r
    Gamma = gains.Gamma / part[m:] if r else None
    if m == 0:
        return Baumgarte(Gamma=Gamma)
    return Baumgarte(gains.K_D / part[:m], gains.K_P / part[:m], Gamma)


def _blocks(gains: StepGains, asked, r: int) -> LinearStabilization:
    """`-P^-1 (K_P phi + K_D dphi/dt, Gamma g)` in the blocks of the general form."""
    m = asked.shape[0] - r
    positions, velocities = -asked[:, :m], -gains.Gamma * asked[:, m:]
    K10, K20 = gains.K_P * positions[:m], gains.K_P * positions[m:]
    K11, K21 = gains.K_D * positions[:m], gains.K_D * positions[m:]
    if r == 0:
        return LinearStabilization(K10, K11)
    return LinearStabilization(K10, K11, velocities[:m], K20, K21, velocities[m:])


def _square(gain, like):
    """A gain as a matrix, of the size of the other where it is a number."""
    if jnp.ndim(gain) == 2:
        return jnp.asarray(gain)
    size = jnp.shape(like)[0] if jnp.ndim(gain) == 0 else jnp.shape(gain)[0]
    return jnp.diag(jnp.broadcast_to(jnp.asarray(gain), (size,)))


def _check_sizes(alpha, mobility, r) -> None:
    sizes = {jnp.shape(x)[0] for x in (alpha, mobility) if jnp.ndim(x)}
    if len(sizes) > 1:
        raise ValueError(
            f"alpha of shape {jnp.shape(alpha)} and the mobility of shape {jnp.shape(mobility)} "
            "are of different numbers of constraints."
        )
    if not isinstance(r, int) or r < 0 or r > min(sizes, default=r):
        raise ValueError(
            f"velocity_constraints is {r!r}; it is their number, of {min(sizes, default=0)} "
            "constraints in all."
        )
