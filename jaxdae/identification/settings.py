"""Checks of how a fit is asked for, before anything is compiled."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdae.identification.data import Experiment
from jaxdae.identification.nodes import label
from jaxdae.systems.calls import check_instance
from jaxdae.tuning.counts import check_counts, check_least


def check_search(*, steps: Any, starts: Any, intervals: Any, spread: Any, key: Any) -> None:
    """Numbers of steps, starts and intervals, and how far starts are spread.

    Raises:
        ValueError: for a number that is no integer, or too small.
        TypeError: for a key that is none.
    """
    check_counts("identify", steps=(steps, 1), starts=(starts, 1), intervals=(intervals, 1))
    if not isinstance(spread, float | int | np.number | np.ndarray | jax.Array):
        raise ValueError(f"identify: spread is {spread!r}, must be a number of at least 0.")
    check_least("identify", spread=(spread, 0))
    if not np.isfinite(spread):
        raise ValueError(f"identify: spread is {spread}, must be finite.")
    if key is not None:
        check_instance("identify: key", key, jax.Array | np.ndarray, "jax.random.key(0)")


def check_step(dt: Any, experiments: Sequence[Experiment]) -> None:
    """A step that is positive, and no longer than any record.

    Raises:
        ValueError: saying what it is, and what it is for.
        TypeError: for a step that is no number.
    """
    if dt is None:
        return
    numbers = isinstance(dt, float | int | np.number | np.ndarray | jax.Array)
    if not numbers or isinstance(dt, bool) or np.ndim(dt) != 0:
        raise TypeError(f"identify: dt is {dt!r}, must be one number, the step in seconds.")
    if not 0 < dt < np.inf:
        raise ValueError(
            f"identify: dt is {dt} s, must be positive and finite; leave it out for adaptive steps."
        )
    for i, experiment in enumerate(experiments):
        duration = float(experiment.ts[-1]) - float(experiment.t0)
        if 0 < duration * (1 + 1e-9) < dt:
            raise ValueError(
                f"identify: dt is {dt} s, longer than experiment {label(i, experiment)}, which "
                f"lasts {duration:.6g} s; give a step that resolves its motion."
            )
