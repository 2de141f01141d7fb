"""Budgets in words: a checkpoint is continued where they are the same."""

from collections.abc import Iterable

import diffrax
import numpy as np

from jaxdae.solvers.projected import parts_of


def named(solver: diffrax.AbstractSolver) -> str:
    """A solver in words, with the one that it wraps."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractWrappedSolver):
        return name
    projection = parts_of(solver).projection
    more = "" if projection is None else f", {projection.iterations} iterations"
    return f"{name}({named(solver.solver)}{more})"


def listed(values: Iterable[float]) -> str:
    """Numbers in a row."""
    return ", ".join(f"{x:g}" for x in values)


def counted(shape: tuple[int, int, int, int]) -> str:
    """Numbers of variations, starts and runs of a batch of steps, horizons, variations, starts."""
    _, _, variations, starts = shape
    first = f"{variations} variations, " if variations > 1 else ""
    runs = f": {np.prod(shape)} runs" if np.prod(shape) > starts else ""
    return f"{first}{starts} starts{runs}"
