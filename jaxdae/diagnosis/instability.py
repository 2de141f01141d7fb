"""Runs with fixed steps that an explicit method cannot make: errors that grow from step to step.

They end in NaN where they have time for it. Before that the numbers are finite and mean nothing.
"""

from typing import Any

import jax
import numpy as np

from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.stiffness import is_explicit
from jaxdae.simulation.linear_field import linear_field
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.reach import reach
from jaxdae.stability.stability_functions import amplification, is_multistep
from jaxdae.tables import root_text

# The energy's change in all rows over that in the first half of them, above which a run is asked
# whether its steps are stable: errors that have grown less are no part of what is to be seen.
_GROWN = 10.0
# Rows at which the vector field is linearized, of those before the energy has grown.
_ROWS = 4


def unstable_steps(problem, method, examined: Any, energy) -> Finding | None:
    """What there is to say of fixed steps that are too long for an explicit method to be stable.

    Args:
        problem: what was simulated.
        method: how.
        examined: rows that the run reached.
        energy: there [J].
    """
    if examined.tolerance is not None or len(examined.ts) < 3:
        return None
    if not (is_explicit(method.solver) or is_multistep(method.solver)):
        return None
    change, grid = np.abs(energy - energy[0]), problem.times.grid
    half = change[: (len(change) + 1) // 2].max()
    if not change.max() > _GROWN * half:
        return None
    early = np.flatnonzero(np.maximum.accumulate(change) <= half)
    rows = np.unique(np.linspace(0, early[-1], _ROWS).round().astype(int))
    ts, ys = np.asarray(examined.ts)[rows], jax.tree.map(lambda x: np.asarray(x)[rows], examined.ys)
    found = linear_field(problem.parts, ts, ys)
    if found is None:
        return None
    steps = np.array([examined.ts[-1] - examined.ts[0]]) / examined.steps
    steps = steps if grid is None else np.diff(np.asarray(grid))
    step = float(steps[np.argmax(np.abs(steps))])
    # Backward in time what decays grows, and growing modes are part of the motion.
    roots = found.fastest
    decays = np.real(np.sign(step) * roots) <= 1e-6 * np.abs(roots)
    method = parts_of(method.solver).method
    limits = reach(method, np.sign(step) * roots)
    share = np.where(decays, np.abs(step * roots) / limits, 0.0)
    if not (share > 1).any():
        return None
    i = int(np.argmax(share > 1))  # the first: behind it may be what has grown
    product, at, name = float(abs(step * roots[i])), float(found.ts[i]), type(method).__name__
    grows = float(amplification(method, np.asarray(step * roots[i])))
    message = (
        f"the steps of {abs(step):.3g} s are too long for {name} to be stable, and the numbers of "
        f"this run mean nothing: step times the fastest root {root_text(complex(roots[i]), 4)} 1/s "
        f"of the linearized equations, at t = {at:.4g} s, is {product:.3g}, where {name} is stable "
        f"up to {float(limits[i]):.3g}; errors grow by {grows:.3g} in each step, and the energy "
        f"has changed by {float(change.max()):.3g} J, in the first half of the rows by "
        f"{float(half):.3g} J. Take steps below {abs(step) / share[i]:.2g} s, adaptive ones (leave "
        "dt out), or a solver for stiff equations, solver=jaxdae.solvers.Rodas5P()."
    )
    return Finding(message, product, at)
