"""Degrees of freedom along a run, and where its constraints come near to losing rank."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.diagnosis.findings import NearSingularity
from jaxdae.diagnosis.singularities import near_singularities_along, row_scales
from jaxdae.systems import State


class MobilityAlong(NamedTuple):
    """What the constraints leave free along a motion.

    Args:
        ts: times of the rows that were reached [s], shape `(times,)`.
        rank: number of independent constraints where they hold, next to each row, `(times,)`.
        degrees_of_freedom: `n - rank`, shape `(times,)`.
        ratio: least singular value that counts, to the largest of the same row, `(times,)`. Rows of
            the Jacobian are scaled by their largest lengths along the run, so that one that
            vanishes for a moment shows. Infinite without constraints.
        near_singularities: positions passed in which the least singular value falls below a
            hundredth of its median, with its value there; they are searched between rows, too.
    """

    ts: np.ndarray
    rank: np.ndarray
    degrees_of_freedom: np.ndarray
    ratio: np.ndarray
    near_singularities: tuple[NearSingularity, ...]

    def __str__(self) -> str:
        few, many = int(self.degrees_of_freedom.min()), int(self.degrees_of_freedom.max())
        gained = self.ts[self.degrees_of_freedom > few]
        lines = [f"degrees of freedom: {few}"]
        if many > few:
            lines[0] += f", up to {many} at t = {_listed(gained)} s"
        if np.isfinite(self.ratio).any():
            least = int(np.argmin(self.ratio))
            lines.append(
                f"least singular value: {self.ratio[least]:.3g} of the largest, at "
                f"t = {self.ts[least]:.6g} s"
            )
        if self.near_singularities:
            times = np.array([x.time for x in self.near_singularities])
            lines.append(f"near-singular positions: t = {_listed(times)} s")
        return "\n".join(lines)


def mobility_along(run: Any) -> MobilityAlong:
    """What the constraints of a single run leave free, on the host; see `Trajectory.mobility`."""
    if run.batch_shape:
        raise ValueError("mobility is that of a single run: choose a member of the batch, run[i].")
    ts = np.asarray(run.ts)
    kept = np.flatnonzero(np.isfinite(ts))
    if not kept.size:
        raise ValueError("mobility needs rows: this run saved none that it reached.")
    ts, q, rates, jac, rank = (
        np.asarray(x)[kept]
        for x in (ts, run.q, run.coordinate_rates, run.jacobian, run.constraint_rank)
    )
    rank, velocities = np.rint(rank).astype(int), jac.shape[2]
    ratio, found = np.full(len(ts), np.inf), []
    if rank.max():
        values = np.linalg.svd(jac * row_scales(np, jac), compute_uv=False)
        ratio = values[:, rank.max() - 1] / values[:, 0]
        states = State(q, rates)
        found, _ = near_singularities_along(
            run.system, run.formulation, ts, states, jac, most=np.inf
        )
    return MobilityAlong(ts, rank, velocities - rank, ratio, tuple(found))


def _listed(times: np.ndarray) -> str:
    """At most five of some times."""
    return ", ".join(f"{x:.6g}" for x in times[:5]) + (", …" if times.size > 5 else "")
