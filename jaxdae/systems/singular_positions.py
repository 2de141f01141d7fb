"""How near a single position is to one in which the constraints lose rank."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.systems.dynamics import constraint_residuals

# A least singular value below this is a singular position.
SINGULAR = 1e-4
# Constraints with less than this weight in a combination take no part in it.
_PART = 1e-3


class Nearness(NamedTuple):
    """How near a position is to a singular one.

    Args:
        least: least singular value of the constraint Jacobian, rows scaled by `|J_i| + |dJ_i/dq|`.
        involved: indices of the constraints that take part in the loss of rank.
    """

    least: float
    involved: tuple[int, ...]

    @property
    def singular(self) -> bool:
        """Whether it counts as singular."""
        return self.least < SINGULAR


def nearness(system, t, q, v) -> Nearness:
    """How near a position is to a singular one, on the host.

    Rows of unit length hide a row that vanishes, as that of a target which an arm can only just
    reach. So each row is scaled by the length it has a unit of the coordinates away.
    """
    rows = np.asarray(_scaled_rows(system, jnp.asarray(t, q.dtype), q, v), np.float64)
    if rows.shape[0] == 0 or not np.isfinite(rows).all():
        return Nearness(np.inf, ())
    left, values, _ = np.linalg.svd(rows)
    least = values[-1] if rows.shape[0] <= rows.shape[1] else 0.0
    return Nearness(float(least), tuple(np.flatnonzero(np.abs(left[:, -1]) > _PART).tolist()))


@jit(options=BRIEFLY)
def _scaled_rows(system, t, q, v):
    def jacobian(q):
        return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)

    jac, change = jacobian(q), jax.jacfwd(jacobian)(q)
    lengths = jnp.linalg.norm(jac, axis=1) + jnp.sqrt(jnp.sum(change * change, axis=(1, 2)))
    return jac / jnp.where(lengths > 0, lengths, 1.0)[:, None]
