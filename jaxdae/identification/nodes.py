"""Intervals of a record, and where the motion is guessed to be between them."""

from typing import Any, NamedTuple

import diffrax
import jax
import numpy as np

from jaxdae.identification.data import Experiment
from jaxdae.runs import simulate
from jaxdae.systems import State


class Piece(NamedTuple):
    """One interval of an experiment.

    Args:
        experiment: its number.
        interval: its number.
        start: when it starts [s].
        end: when it ends [s].
        samples: numbers of its samples.
    """

    experiment: int
    interval: int
    start: float
    end: float
    samples: np.ndarray


def pieces(i: int, experiment: Experiment, intervals: int) -> list[Piece]:
    """Intervals of an experiment, each with about as many samples; they meet at samples."""
    ts, t0 = experiment.ts, float(experiment.t0)
    if not ts[-1] > t0:
        raise ValueError(
            f"identify: experiment {label(i, experiment)} ends where it starts, at t = {t0:g} s; "
            "give samples at later times."
        )
    later = np.flatnonzero(ts > t0)
    if not 1 <= intervals <= later.size:
        raise ValueError(
            f"identify: {intervals} intervals of experiment {label(i, experiment)}, which has "
            f"{later.size} samples after its start; give between 1 and as many."
        )
    blocks = np.array_split(later, intervals)
    blocks[0] = np.arange(blocks[0][-1] + 1)
    starts = [t0, *(float(ts[x[-1]]) for x in blocks[:-1])]
    return [
        Piece(i, k, start, float(ts[x[-1]]), x)
        for k, (start, x) in enumerate(zip(starts, blocks, strict=True))
    ]


def label(i: int, experiment: Experiment) -> str:
    """An experiment's name, or its number counted from one."""
    return repr(experiment.name) if experiment.name else str(i + 1)


def passed(
    parts: Any, settings: Any, experiment: Experiment, first: Piece, start: State, later: list
) -> list[State]:
    """Guesses of the states where later intervals start.

    Those that the experiment gives; else those of a run with the first guess of the parameters.

    Args:
        parts: system, formulation and controller.
        settings: how runs are simulated.
        experiment: what was measured.
        first: its first interval.
        start: guess of the start.
        later: its other intervals.

    Raises:
        ValueError: where that run does not get there.
    """
    if not later:
        return []
    if experiment.guess is not None:
        at = [int(np.flatnonzero(experiment.ts == x.start)[0]) for x in later]
        return [jax.tree.map(lambda x, i=i: x[i], experiment.guess) for i in at]
    system, formulation, controller = parts
    trajectory = simulate(
        system, formulation, start, t0=first.start, t1=experiment.ts[-1], dt=settings.dt,
        solver=settings.solver, stepsize_controller=settings.stepsize_controller,
        saveat=diffrax.SaveAt(ts=jax.numpy.asarray([x.start for x in later])),
        controller=controller, max_steps=settings.max_steps, throw=False, start_tolerance=None,
    )  # fmt: skip
    states = trajectory.states
    if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(states)):
        name = label(first.experiment, experiment)
        raise ValueError(
            f"identify: with the first guess the run of experiment {name} does not reach the start "
            f"of its last interval, t = {later[-1].start:.6g} s; give Experiment(…, guess=…), "
            "states at the times of the samples as the measurements suggest them."
        )
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(later))]
