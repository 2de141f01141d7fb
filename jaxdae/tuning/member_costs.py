"""Costs of the members of a batch, where they need not be run for them."""

from typing import Any

import numpy as np


def costs_of(objective: Any, residuals: Any) -> np.ndarray | None:
    """Cost of every member from the residuals of all, shape (members,), without running them.

    Args:
        objective: a `SimulationObjective` whose cost is a sum of squares.
        residuals: of all members, as it returns them.

    Returns:
        NaN where a run failed; `None` where failures have a price, which hides them.
    """
    if objective.failure_cost is not None:
        return None
    rows = np.asarray(residuals, np.float64).reshape(int(np.prod(objective.shape)), -1)
    return len(rows) * np.sum(rows**2, axis=1)
