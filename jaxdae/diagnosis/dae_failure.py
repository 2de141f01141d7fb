"""A run of differential-algebraic equations that ended early, in words."""

from typing import Any

import diffrax
import jax
import numpy as np

from jaxdae.diagnosis.event_failure import failure_of_events
from jaxdae.diagnosis.failure import reason_of
from jaxdae.systems.dae_checks import index_of
from jaxdae.systems.dae_equations import DAEEquations
from jaxdae.systems.dae_names import variable_names

_NONFINITE: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix


def describe_dae_failure(run) -> str:
    """What failed, when, and what to try, as a paragraph.

    Args:
        run: a failed `DAETrajectory`; of a batch, one member.
    """
    of_events = failure_of_events(run)
    if of_events is not None:
        return of_events
    t, last = float(run.final_time), run.last
    equations = DAEEquations(run.dae, run.controller)
    head = f"the run stopped at t = {t:.6g} s ({reason_of(run.result)})."
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(last)):
        return (
            f"{head} The start is not finite; or inside of a transformation it was refused, as it "
            "is not consistent or the index is too high: solve this member by itself to see which."
        )
    try:
        index_of(equations, run.final_time, last)
    except ValueError as error:
        return f"{head} There, {error}"
    names = [x for part in variable_names(last, equations.implicit) for x in part]
    sizes = np.concatenate([np.abs(np.ravel(x)) for x in jax.tree.leaves(last)])
    i = int(np.argmax(sizes))
    largest = f"The largest variable there is {names[i]}, of size {sizes[i]:.3g}."
    if bool(run.result == _NONFINITE):
        return (
            f"{head} The next step has no end: the iteration for its stages does not converge, or "
            f"the equations are not defined beyond. {largest} Reduce dt, or leave it out for "
            "adaptive steps, which stop at the place of the failure; begin at "
            "jaxdae.consistent_start(dae, y, z)."
        )
    return (
        f"{head} {largest} Steps become short where a solution grows without bound, equations jump "
        "(give the times, ClipStepSizeController(…, jump_ts=…)), or the tolerance is below "
        "round-off: loosen rtol and atol, or raise max_steps where steps are merely many."
    )
