"""Gains for runs that choose their steps."""

import numpy as np

from jaxdae.stability.arguments import check_positive_number, check_ratio
from jaxdae.stability.stationary import turn_of_error
from jaxdae.stability.step_gains import step_gains, StepGains


def expected_step(solver, tolerance: float, frequency: float) -> float:
    """The step that a controller will choose, about [s].

    The one whose error, relative to the motion, is the tolerance: `C (omega h)^(p+1) = tolerance`
    with the method's order and error constant. A controller adds a safety factor below one, and
    follows the fastest part of the motion.

    Args:
        solver: a Runge-Kutta solver.
        tolerance: relative, of one step.
        frequency: rate of the motion [1/s].
    """
    check_positive_number("tolerance", tolerance)
    check_positive_number("frequency", frequency)
    return turn_of_error(solver, float(tolerance)) / float(frequency)


def adaptive_gains(
    solver,
    stepsize_controller,
    step: float,
    *,
    spread: float = 4.0,
    regime: str = "steps",
    time_scale: float | None = None,
) -> StepGains:
    """Gains for a run whose controller chooses steps about an expected one.

    A controller asks for steps whose error estimate is small, and the estimate suffers from stiff
    gains as the constraint does: it loses orders, and the controller takes smaller steps, so that a
    violation does not vanish sooner. Hence the regime "steps" by default, at the rate of motion at
    which the expected step has the controller's relative tolerance as its error. These gains cost
    few steps, and hold the violation near the tolerance. With "violation" they have the least worst
    damping over the range; the steps they cause are several times as many where tolerances are
    tight.

    The range is `step / sqrt(spread)` to `step sqrt(spread)`, or to the controller's largest step;
    the factors hold for steps of the range in any order.

    Args:
        solver: a Runge-Kutta solver with an error estimate.
        stepsize_controller: of diffrax, with a relative tolerance `rtol`, such as
            `diffrax.PIDController`; its `dtmax` counts.
        step: the expected one [s], as that of an earlier run (`t1` over its number of steps) or
            `expected_step`.
        spread: largest step over smallest, at least 1.
        regime: see `step_gains`.
        time_scale: likewise; of the regime "steps" alone.

    Returns:
        `StepGains` for the largest step.

    Raises:
        TypeError: for a controller without a tolerance.
        ValueError: for numbers out of range, or a time scale with the regime "violation".
    """
    rtol = getattr(stepsize_controller, "rtol", None)
    if rtol is None:
        raise TypeError(
            f"{type(stepsize_controller).__name__} has no relative tolerance rtol; give the "
            "controller of the run, such as diffrax.PIDController(rtol=1e-6, atol=1e-6)."
        )
    check_positive_number("rtol", rtol)
    check_positive_number("step", step)
    check_ratio("spread", spread)
    smallest, largest = float(step) / np.sqrt(spread), float(step) * np.sqrt(spread)
    limit = getattr(stepsize_controller, "dtmax", None)
    if limit is not None and float(limit) < largest:
        largest = float(limit)
    margin = max(largest / smallest, 1.0)
    if regime == "violation":
        if time_scale is not None:
            raise ValueError(
                f"time_scale is {time_scale!r}, but the regime 'violation' does not use one; leave "
                "it out, or take regime='steps'."
            )
        return step_gains(solver, largest, margin=margin)
    frequency = turn_of_error(solver, float(rtol)) / float(step)
    return step_gains(
        solver,
        largest,
        margin=margin,
        regime=regime,
        frequency=frequency,
        time_scale=time_scale,
    )
