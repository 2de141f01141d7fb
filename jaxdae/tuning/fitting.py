"""What of an objective has to fit together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.stability.arguments import is_real
from jaxdae.systems import State
from jaxdae.systems.calls import described
from jaxdae.systems.checks import is_concrete


def check_states(states: State) -> None:
    """Require a batch of finite starts.

    Args:
        states: of an objective.

    Raises:
        ValueError: for a single start, or one that is not finite.
    """
    if jnp.ndim(states.q) != 2:
        raise ValueError(
            f"SimulationObjective: states.q has shape {jnp.shape(states.q)}, needs "
            "(starts, n); make a batch with perturbed_states(state, key, count)."
        )
    if is_concrete(states) and not all(
        np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(states)
    ):
        raise ValueError("SimulationObjective: a start is not finite.")


def check_times(objective: Any) -> None:
    """Require an end time, steps that lead there, and a budget of adaptive runs.

    Args:
        objective: a `SimulationObjective`.

    Raises:
        ValueError: naming what is missing, or leads elsewhere.
    """
    if objective.end_times is None:
        raise ValueError("SimulationObjective: give the end time `t1`.")
    t0 = objective.t0
    for t1 in objective.end_times:
        for dt in objective.steps_given or ():
            if is_concrete((t0, t1, dt)) and not dt * (t1 - t0) > 0:
                raise ValueError(
                    f"SimulationObjective: dt = {dt} does not lead from t0 = {t0} to t1 = {t1}."
                )
    if objective.adaptive and objective.max_steps is None:
        raise ValueError(
            "SimulationObjective: an adaptive run has no work budget, and gains have an "
            "optimum only for one; give max_steps, or a fixed step dt."
        )


def checked_parts(returned: Any) -> tuple[Any, Any, Any]:
    """What `build` of an objective returned: system, formulation and controller.

    Args:
        returned: by it.

    Raises:
        TypeError: for anything but these three.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        count = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise TypeError(
            f"SimulationObjective: build returned {described(returned)}{count}, must return "
            "(system, formulation, controller), with None where there is no controller."
        )
    system, formulation, controller = returned
    return system, formulation, controller


def _check_price(objective: Any) -> None:
    """Require a price of failures that is a number, and no reward for a cost of squares.

    Args:
        objective: a `SimulationObjective`.

    Raises:
        ValueError: naming the price.
    """
    price = objective.failure_cost
    if price is None:
        return
    if not is_real(price) or not np.isfinite(price):
        raise ValueError(
            f"SimulationObjective: failure_cost is {price!r}; give a finite price, or None for an "
            "objective that is NaN where a member fails."
        )
    if price < 0 and hasattr(objective.cost, "residuals"):
        raise ValueError(
            f"SimulationObjective: failure_cost is {price:g}, but the cost is a sum of squares, "
            "below which failing would be a gain; give a price above the costs of runs that reach "
            "their end."
        )


def check_fitting(objective: Any) -> None:
    """Require conditions, costs and saved times that fit the rest of an objective.

    Args:
        objective: a `SimulationObjective`.

    Raises:
        ValueError: naming what does not fit, and the remedy.
        TypeError: for a `start` that is no function.
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
    if objective.start is not None and not callable(objective.start):
        raise TypeError(
            f"SimulationObjective: start is {described(objective.start)}; give a function of "
            "(params, state), or of (params, state, variation). Starts themselves are `states`."
        )
    _check_price(objective)
    _, horizons, _, _ = objective.shape
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
