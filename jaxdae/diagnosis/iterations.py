"""Steps that were rejected because Newton's iteration for them did not converge."""

from typing import Any

import numpy as np

from jaxdae.diagnosis.findings import Finding
from jaxdae.solvers.projected import parts_of

# Some are made at a first step that is too long, or beside a singular position that is passed.
_FEWEST, _SHARE = 10, 0.1


def unsolved_steps(stats: dict[str, Any], solver, *, failed: bool = False) -> Finding | None:
    """What there is to say of steps whose iterations did not converge, where they were many.

    Args:
        stats: of a run; without counts, such as those of a method that iterates nothing, there is
            nothing to say.
        solver: the method.
        failed: whether the run ended early: then a share of them is enough, however few.
    """
    if "num_unsolved_steps" not in stats:
        return None
    unsolved, steps = (int(np.asarray(stats[f"num_{x}steps"])) for x in ("unsolved_", ""))
    if unsolved < (1 if failed else _FEWEST) or unsolved < _SHARE * steps:
        return None
    name = type(parts_of(solver).method).__name__
    mean = int(np.asarray(stats["num_iterations"])) / max(steps, 1)
    message = (
        f"Newton's iteration of {name} did not converge in {unsolved} of {steps} steps, which were "
        f"tried again with shorter ones (num_unsolved_steps in its stats; {mean:.3g} iterations a "
        "step). Equations that jump within a step do this, such as dry friction or a controller "
        "that switches: give the times of jumps, "
        "diffrax.ClipStepSizeController(…, jump_ts=…), make them smooth, or declare an event; so "
        "does a first step that is too long (give dt beside a stepsize_controller), and a position "
        "in which constraints lose rank."
    )
    return Finding(message, float(unsolved))
