"""The mobility of constraints, and where the linear theory of their violations ends."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.reprs import shown
from jaxdae.stability.arguments import check_positive_number
from jaxdae.systems import mass_and_jacobian, State, System
from jaxdae.systems.kinematics import coordinate_rate


def constraint_mobility(system: System, t, state: State):
    """`W = J M^-1 J^T`: the acceleration of the constraints for a unit reaction, `(m+r, m+r)`.

    Args:
        system: the declaration, with a regular mass matrix.
        t: time [s].
        state: where it is taken.
    """
    mass, jac = mass_and_jacobian(system, t, state.q, state.v)
    return jac @ jnp.linalg.solve(mass, jac.T)


class LinearRange(NamedTuple):
    """Where linear theory ends at a state.

    Args:
        violation: size of position residuals up to which curvature changes what a removal leaves by
            no more than the tolerance asked for [units of the constraints]; infinite where they are
            linear in the coordinates.
        rate: at which the motion turns the constraints' normals, relative to their lengths [1/s]:
            a step of size `dt` changes the factors of the theory by about `rate dt`.
    """

    violation: float
    rate: float

    def __repr__(self) -> str:
        return shown(self)


def linear_range(system: System, t, state: State, *, tolerance: float = 0.05) -> LinearRange:
    r"""The violations and steps for which stability functions say what happens.

    The stabilized constraint is linear exactly, `phi_ddot = -K_D phi_dot - K_P phi`, for violations
    of any size. Steps are not: they follow a straight line where the constraint bends. The columns
    of `N = M^-1 J^T W^-1` displace the coordinates so that one residual changes by one, with the
    least motion. To remove `phi` the coordinates move by `p = -N phi`, in whatever stages, and

        phi(q + p) = phi + J p + phi_qq[p, p] / 2 + O(p^3) = phi_qq[N phi, N phi] / 2 + O(p^3)

    so that a fraction of at most `|B| |phi| / 2` remains, with the Frobenius norm of `B_ij =
    phi_qq[N_i, N_j]`: the condition of Newton's method. It is `tolerance` at the violation that is
    returned; stages that go further than the step itself leave several times as much. Near a
    singular position `W` is almost singular, and the range shrinks with the square of the least
    singular value. The motion adds `phi_qq[dt v, p]`, linear in the violation: `|phi_qq[v, N]| dt`
    is what the other number tells.

    Args:
        system: the declaration, with a regular mass matrix and independent constraints.
        t: time [s].
        state: where it is taken.
        tolerance: fraction that curvature may leave.

    Returns:
        `LinearRange`.

    Raises:
        ValueError: for a tolerance that is not positive, or a system without position constraints.
    """
    check_positive_number("tolerance", tolerance)
    q, v = state.q, state.v
    if system.position_constraints(t, q).size == 0:
        raise ValueError("linear_range is about position constraints; the system has none.")
    bend, turn = _curvatures(system, jnp.asarray(t, q.dtype), q, v)
    size, rate = float(np.linalg.norm(bend)), float(np.linalg.norm(turn))
    if not np.isfinite(size):  # the normals are dependent
        return LinearRange(0.0, np.inf)
    return LinearRange(2 * float(tolerance) / size if size else np.inf, rate)


def _curvatures(system, t, q, v):
    """`phi_qq[N_i, N_j]`, shape `(m, m, m)`, and `phi_qq[v, N_j]`, shape `(m, m)`."""
    mass, jac = mass_and_jacobian(system, t, q, v)
    jac = jac[: system.position_constraints(t, q).size]
    towards = jnp.linalg.solve(mass, jac.T)
    least = towards @ jnp.linalg.inv(jac @ towards)
    normals = jax.vmap(lambda x: coordinate_rate(system, t, q, x), 1, 1)(least)
    hessian = jax.hessian(lambda x: system.position_constraints(t, x))(q)
    along = hessian @ normals
    rate = coordinate_rate(system, t, q, v)
    return np.asarray(normals.T @ along), np.asarray(rate @ along)
