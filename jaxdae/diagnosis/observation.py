"""Runs inside of any function: handed over with their numbers, or made in another way.

A function that is examined may be compiled, batched or differentiated, and make its runs deep
inside. What is asked of them is part of the keys by which JAX keeps programs, so that no program
that was compiled before, or will be after, is one of an examination.
"""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax

from jaxdae.checks import are_known, EXAMINATION
from jaxdae.simulation.problem import default_tolerance
from jaxdae.solvers.grid import known_ends

# The runs of the examination that goes on: one at a time, as callbacks come from other threads.
_OPEN: list[list] = []
_LOCK = threading.RLock()


class Observation(NamedTuple):
    """How runs are made, and whether they are seen.

    Args:
        sees: whether they are handed over.
        backend: that makes them; `None` for the one that was asked for.
        mode: of the derivatives, "forward" or "reverse", which adjoints have to be capable of.
        tolerance: factor of the tolerances of adaptive steps.
        perturbed: whether adaptive steps are those of runs that are differentiated.
    """

    sees: bool = False
    backend: str | None = None
    mode: str | None = None
    tolerance: float = 1.0
    perturbed: bool = False


class SeenRun(NamedTuple):
    """A run, its numbers known.

    Args:
        problem: what was simulated.
        method: how.
        trajectory: what it gave.
        warnings: of gains and steps, before it.
        start_tolerance: largest residual of the start that was asked for; `None` for any.
    """

    problem: Any
    method: Any
    trajectory: Any
    warnings: tuple[str, ...] = ()
    start_tolerance: float | None = None


@contextlib.contextmanager
def observing(asked: Observation) -> Iterator[list[SeenRun]]:
    """Make all runs as asked for, and collect those that are seen until the end of the block.

    Nothing is thrown of a run that fails: it gives NaN, and says why when it is seen.
    """
    with _LOCK:
        seen: list[SeenRun] = []
        _OPEN.append(seen)
        try:
            with EXAMINATION(asked):
                yield seen
        finally:
            jax.effects_barrier()  # what still runs hands over to this examination
            _OPEN.pop()


def as_observed(settings: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """Those of the settings of a run that an examination changes, with their values.

    Args:
        settings: `dt`, `stepsize_controller`, `adjoint`, … as `simulate` takes them.
        dtype: precision of the run.
    """
    asked = EXAMINATION.value
    if asked is None:
        return {}
    # A start that fits the parameters fits those beside them only to first order.
    changed: dict[str, Any] = {"throw": False, "progress": False, "start_tolerance": None}
    if asked.backend is not None:
        changed["backend"] = asked.backend
    adjoint = settings["adjoint"]
    if asked.mode == "forward" and (
        adjoint is None or isinstance(adjoint, diffrax.RecursiveCheckpointAdjoint)
    ):
        changed["adjoint"] = diffrax.ForwardMode()
    if asked.mode == "reverse" and isinstance(adjoint, diffrax.ForwardMode):
        changed["adjoint"] = diffrax.RecursiveCheckpointAdjoint()
    if asked.tolerance != 1.0:
        given = settings["stepsize_controller"]
        changed["stepsize_controller"] = _tightened(given, settings["dt"], asked.tolerance, dtype)
    return changed


def _tightened(controller: Any, dt: Any, factor: float, dtype: Any) -> Any:
    """A step control of smaller tolerances; of fixed steps, and others without one, the same."""
    if controller is None:
        tolerance = factor * default_tolerance(dtype)
        return diffrax.PIDController(rtol=tolerance, atol=tolerance) if dt is None else None
    if not has_tolerance(controller):
        return controller
    inner = known_ends(controller).controller
    tight = eqx.tree_at(
        lambda c: (c.rtol, c.atol), inner, (factor * inner.rtol, factor * inner.atol)
    )
    if inner is controller:
        return tight
    return eqx.tree_at(lambda c: c.controller, controller, tight)


def has_tolerance(controller: Any) -> bool:
    """Whether steps are chosen by a tolerance that can be made smaller."""
    return isinstance(known_ends(controller).controller, diffrax.PIDController)


def hand_over(
    problem: Any,
    method: Any,
    trajectory: Any,
    warnings: tuple[str, ...] = (),
    start_tolerance: float | None = None,
) -> None:
    """Give a run to the examination that sees it, if there is one.

    What is traced is handed over by the program when it runs, each member of a batch by itself.
    """
    asked = EXAMINATION.value
    if asked is None or not asked.sees:
        return
    arrays, rest = eqx.partition((problem, method, trajectory), eqx.is_array)
    deliver = partial(_deliver, rest, (warnings, start_tolerance))
    if are_known(arrays):
        deliver(arrays)
    else:
        jax.debug.callback(deliver, arrays)


def _deliver(rest: Any, more: tuple, arrays: Any) -> None:
    if _OPEN:
        _OPEN[-1].append(SeenRun(*eqx.combine(arrays, rest), *more))
