"""Which velocities to take for the independent ones, and in words where a choice ends."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.formulations.elimination import best_split, eliminate, Split, velocity_rows
from jaxdae.linalg.rank import numerical_rank
from jaxdae.systems import System
from jaxdae.systems.independence import involved
from jaxdae.systems.singular_positions import nearness

# A choice this many times closer to singular than the constraints costs two digits.
_CLOSE = 100.0


def choose_independent(system: System, t, q) -> tuple[str, ...]:
    """Names of the independent coordinates that determine the other velocities best.

    Column pivoting on the constraint Jacobian with rows of unit length, in the metric of the
    diagonal of the mass matrix: the dependent coordinates are those that the constraints move most
    for their inertia. For use on the host.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.

    Returns:
        Names by `System.labels`, in the order of the coordinates, as
        `VelocityElimination(independent=…)` takes them.

    Raises:
        ValueError: where the constraints are dependent, so that no choice is good.
    """
    q = jnp.asarray(q, jnp.result_type(q, float))
    t, labels = jnp.asarray(t, q.dtype), system.labels()
    jac = np.asarray(velocity_rows(system, t, q)[0])
    result = numerical_rank(jac)
    if result.rank < jac.shape[0]:
        values = ", ".join(f"{x:.3g}" for x in result.singular_values)
        raise ValueError(
            f"the constraints are dependent at t = {float(t):.6g} (singular values [{values}] of "
            f"the rows of J, scaled to unit length; {involved(labels, result)}), so no velocities "
            "can be eliminated there. Where they are so in every position, drop the superfluous "
            "ones or use Multipliers(..., solve=MinimumNormSolve()); at a singular position, use "
            "Multipliers(..., solve=SingularityRobust())."
        )
    return tuple(labels.coordinate(int(i)) for i in best_split(system, t, q).free)


def why_undetermined(system: System, t, q, split: Split, limit: float) -> str | None:
    """What is wrong with a choice whose `B` has an entry above a limit; else `None`."""
    if not np.isfinite(np.asarray(q)).all():
        return None
    t, labels = jnp.asarray(t, q.dtype), system.labels()
    jac, kernel = _rows_and_kernel(system, split, t, q)
    largest = float(jnp.max(jnp.abs(kernel), initial=0.0))
    if largest <= limit:
        return None
    free, basic = (np.asarray(x) for x in split)
    values = np.linalg.svd(_unit_rows(jac)[:, basic], compute_uv=False)
    return (
        f"the independent coordinates ({_names(labels, free)}) do not determine the velocities "
        f"of ({_names(labels, basic)}) at t = {float(t):.6g}: the singular values of the "
        f"dependent columns of J, with rows of unit length, are "
        f"[{', '.join(f'{x:.3g}' for x in values)}], and B has entries up to {largest:.3g} "
        f"(allowed {limit:.3g}). {_remedy(system, t, q)}"
    )


def why_close(system: System, ts, qs, splits: Split) -> str | None:
    """Where a run came close to a singular choice; `None` if it did not.

    The measure is the ratio of the least singular values of `J` and of its dependent columns, rows
    of unit length: how many times closer to singular the choice is than the constraints are. It is
    at most `sqrt(1 + |B|^2)`, the factor from errors of `v_I` to those of `v`.

    Args:
        system: the declaration.
        ts: times [s].
        qs: coordinates there, shape `(times, n)`.
        splits: the choice there, times first.
    """
    jac = np.asarray(_rows_of_run(system, ts, qs))
    good = np.flatnonzero(np.isfinite(jac).all(axis=(1, 2)))
    if good.size == 0 or jac.shape[1] == 0:
        return None
    free, basic = (np.asarray(x)[good] for x in splits)
    rows = _unit_rows(jac[good])
    columns = np.take_along_axis(rows, basic[:, None], axis=2)
    of_all, least = (np.linalg.svd(x, compute_uv=False)[:, -1] for x in (rows, columns))
    ratios = of_all / np.maximum(least, np.finfo(least.dtype).tiny)
    i, labels = int(np.argmax(ratios)), system.labels()
    if ratios[i] <= _CLOSE:
        return None
    t, q = ts[good[i]], qs[good[i]]
    return (
        f"the independent coordinates ({_names(labels, free[i])}) came close to a singular choice "
        f"at t = {float(t):.6g}: the least singular value of the columns of J that belong to "
        f"({_names(labels, basic[i])}), with rows of unit length, is {least[i]:.3g}, which is "
        f"{ratios[i]:.3g} times less than that of J. Errors of the independent velocities can "
        f"grow as much in the others, and steps get short. {_remedy(system, t, q)}"
    )


# Compiled: operation by operation the checks on the host would take seconds.
@jit
def _rows_and_kernel(system, split, t, q):
    return velocity_rows(system, t, q)[0], eliminate(system, split, t, q).kernel


@jit
def _rows_of_run(system, ts, qs):
    return jax.vmap(lambda t, q: velocity_rows(system, t, q)[0])(ts, qs)


def _unit_rows(jac) -> np.ndarray:
    """Rows of `J`, scaled to unit length."""
    rows = np.asarray(jac, float)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _remedy(system, t, q) -> str:
    """What to use where a choice ends: another one, unless `J` itself loses rank there."""
    result = nearness(system, t, q, jnp.zeros_like(q))
    if result.singular:
        return (
            f"J itself is nearly singular there, with the least singular value {result.least:.3g}: "
            "no choice of independent coordinates passes that position, nor does NullSpace. Use "
            "Multipliers(..., solve=SingularityRobust())."
        )
    better = ", ".join(repr(k) for k in choose_independent(system, t, q))
    return (
        f"There, use VelocityElimination(independent=({better},)), or NullSpace, which needs no "
        "choice."
    )


def _names(labels, indices) -> str:
    return ", ".join(labels.coordinate(int(i)) for i in indices)
