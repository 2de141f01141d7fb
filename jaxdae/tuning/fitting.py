"""What of an objective has to fit together."""

from typing import Any

from jaxdae.tuning.per_start import check_per_start


def check_fitting(objective: Any) -> None:
    """Require conditions, costs and saved times that fit the rest of an objective.

    Args:
        objective: a `SimulationObjective`.

    Raises:
        ValueError: naming what does not fit, and the remedy.
    """
    if objective.adaptive and objective.conditions.dt is not None:
        raise ValueError(
            "SimulationObjective: conditions give steps, but adaptive runs choose theirs; "
            "leave dt out of the conditions, or the stepsize_controller out of the objective."
        )
    if objective.system is not None and objective.conditions.variations is not None:
        raise ValueError(
            "SimulationObjective: variations are the second argument of `build(params, "
            "variation)`; give `build` in place of `system`."
        )
    _, horizons, variations, starts = objective.shape
    check_per_start(objective.cost, variations, starts)
    subs: Any = None if objective.saveat is None else objective.saveat.subs
    if horizons > 1 and getattr(subs, "ts", None) is not None:
        raise ValueError(
            "SimulationObjective: saveat gives times, but the horizons differ; leave saveat "
            "out: every run then saves times up to its own end."
        )
    if objective.several_grids and getattr(subs, "steps", 0) > 1:
        raise ValueError(
            f"SimulationObjective: saveat asks for one step of {subs.steps}, and rows are then "
            "at other times in runs of other steps; leave saveat out to save every step."
        )
