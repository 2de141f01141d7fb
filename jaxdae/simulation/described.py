"""Trajectories in a few lines, for the prompt: of what is known, nothing is computed for them."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae.control.base import ControlledSystem
from jaxdae.simulation.diagnostics import Noted
from jaxdae.simulation.stored import StoredTrajectory
from jaxdae.systems.checks import is_concrete


class Facts(NamedTuple):
    """What is known of a run.

    Args:
        kind: name of the class.
        model: class of the system.
        how: formulation, controller, backend, as far as they are known.
        coordinates: names with units.
        constraints: names.
        shape: of the batch.
        axes: names of its axes.
        ts: times [s], or `None`.
        ends: last times [s], shape of the batch.
        success: which members reached their end.
        reason: why a single run failed.
        steps: of the solver, shape of the batch, or `None`.
        residual: largest constraint residual, or `None`.
        energy: largest change of the energy [J], or `None`.
    """

    kind: str
    model: str
    how: Sequence[str | None]
    coordinates: list[str]
    constraints: list[str]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    ts: Any
    ends: Any
    success: Any
    reason: str
    steps: Any
    residual: float | None
    energy: float | None


def live(run: Any) -> str:
    """A `Trajectory`; what is traced has shapes and no numbers."""
    try:
        return text(_of_live(run)) if _is_known(run) else _traced(run)
    except Exception:  # of a tree whose leaves are something else; at the prompt nothing may fail
        return eqx.tree_pformat(run)


def _is_known(run: Any) -> bool:
    parts = jax.tree.leaves((run.ts, run.final_time, run.result, run.stats))
    return is_concrete(parts) and all(not isinstance(x, jax.ShapeDtypeStruct) for x in parts)


def _names_of(run: Any) -> tuple[str, list[str | None], list[str], list[str]]:
    """Model; formulation, controller and backend; coordinates; constraints."""
    system, controller = run.system, run.controller
    system = system.inner if isinstance(system, ControlledSystem) else system
    under = None if controller is None else f"under {type(controller).__name__}"
    how = [type(run.formulation).__name__, under, f"{run.backend} backend"]
    labels, q = run.labels, getattr(run.final, "q", None)
    count = None if q is None else q.shape[-1]
    coordinates = names(labels, "coordinates", "units", count)
    return type(system).__name__, how, coordinates, list(labels.constraints)


def _of_live(run: Any) -> Facts:
    model, how, coordinates, constraints = _names_of(run)
    noted = vars(run).get("noted") or Noted(None, None)  # pyright: ignore[reportArgumentType]
    ends, codes = np.asarray(run.final_time), np.asarray(jax.tree.leaves(run.result)[0])
    success = codes == np.asarray(jax.tree.leaves(diffrax.RESULTS.successful)[0])
    return Facts(
        kind=type(run).__name__,
        model=model,
        how=how,
        coordinates=coordinates,
        constraints=constraints,
        shape=ends.shape,
        axes=() if run.varied is None else run.varied.axes,
        ts=np.asarray(run.ts) if run.plain else None,
        ends=ends,
        success=success,
        reason=_first_sentence(diffrax.RESULTS[run.result]) if ends.ndim == 0 else "",
        steps=np.asarray(run.stats["num_steps"]) if "num_steps" in run.stats else None,
        residual=noted.residual,
        energy=noted.energy,
    )


def _first_sentence(message: str) -> str:
    return message.strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _traced(run: Any) -> str:
    model, how, coordinates, _ = _names_of(run)
    head = ", ".join([model, *(x for x in how if x)])
    rows = f"{run.ts.shape[-1]} rows" if run.plain else "no rows"
    return f"Trajectory({head}, traced: {rows} of {', '.join(coordinates) or 'coordinates'})"


def of_stored(run: StoredTrajectory) -> str:
    """A `StoredTrajectory`."""
    about, arrays = run.about, run.arrays
    labels = run.labels
    under = None if about.controller is None else f"under {about.controller}"
    energy = arrays.get("energy")
    change = None if energy is None else energy - energy[..., :1]
    return text(
        Facts(
            kind=type(run).__name__,
            model=about.model,
            how=[about.formulation, under, f"{about.backend} backend" if about.backend else None],
            coordinates=names(labels, "coordinates", "units", run.q.shape[-1]),
            constraints=list(labels.constraints),
            shape=run.batch_shape,
            axes=about.axes,
            ts=run.ts,
            ends=np.asarray(run.final_time),
            success=np.asarray(run.success),
            reason=_first_sentence(about.failure or str(arrays.get("result", ""))),
            steps=arrays.get("stats.num_steps"),
            residual=largest([arrays.get("phi"), arrays.get("phi_dot")]),
            energy=largest([change]),
        )
    )


def text(facts: Facts) -> str:
    """A few lines: model, names, times, what drifted, how it ended."""
    head = ", ".join([facts.model or "unknown model", *(x for x in facts.how if x)])
    lines = {
        "batch": _batch(facts),
        "coordinates": ", ".join(facts.coordinates),
        "constraints": ", ".join(facts.constraints),
        "times": _times(facts),
        "residuals": None
        if facts.residual is None
        else f"|phi|, |d(phi)/dt| at most {facts.residual:.3g}",
        "energy": None if facts.energy is None else f"changes by at most {facts.energy:.3g} J",
        "result": _result(facts),
    }
    body = "".join(f"\n  {name:<12} {line}" for name, line in lines.items() if line)
    return f"{facts.kind}({head}{body}\n)"


def _batch(facts: Facts) -> str | None:
    if not facts.shape:
        return None
    if not facts.axes:
        plural = "" if math.prod(facts.shape) == 1 else "s"
        return f"{' × '.join(map(str, facts.shape))} member{plural}"
    return " × ".join(f"{name} ({n})" for n, name in zip(facts.shape, facts.axes, strict=True))


def _times(facts: Facts) -> str | None:
    if facts.ts is None:
        return None
    rows = facts.ts.shape[-1]
    if facts.shape:
        last = np.max(facts.ends, initial=-np.inf)
        until = f", until t = {last:.6g} s" if np.isfinite(last) else ""
        return f"{rows} rows{until}{_steps(facts)}"
    reached = facts.ts[np.isfinite(facts.ts)]
    if not reached.size:
        return f"none of {rows} rows reached"
    missing = "" if reached.size == rows else f"{reached.size} of "
    return f"{missing}{rows} rows, t = {reached[0]:.6g} … {reached[-1]:.6g} s{_steps(facts)}"


def _steps(facts: Facts) -> str:
    if facts.steps is None or np.size(facts.steps) == 0:
        return ""
    least, most = int(np.min(facts.steps)), int(np.max(facts.steps))
    return f", {most} steps" if least == most else f", {least} … {most} steps"


def _result(facts: Facts) -> str | None:
    if np.size(facts.success) == 0:
        return None
    if facts.shape:
        failed = int(np.size(facts.success) - np.sum(facts.success))
        return f"{failed} of {np.size(facts.success)} failed" if failed else "all reached the end"
    if bool(facts.success):
        return f"reached t = {float(facts.ends):.6g} s"
    return f"FAILED after t = {float(facts.ends):.6g} s: {facts.reason}"


def names(labels: Any, field: str, units: str, count: int | None) -> list[str]:
    """Names with their units; of those that have none only their number."""
    given = tuple(getattr(labels, field, ()))
    if not given:
        return [str(count)] if count else []
    unit = tuple(getattr(labels, units, ()))
    unit += ("",) * (len(given) - len(unit))
    return [f"{name} [{u}]" if u else name for name, u in zip(given, unit, strict=False)]


def largest(values: Sequence[Any]) -> float | None:
    """The largest finite size in arrays in memory; `None` without any, or on a disk."""
    if any(x is None or isinstance(x, np.memmap) for x in values):
        return None
    finite = [np.abs(x[np.isfinite(x)]) for x in map(np.asarray, values)]
    return max((float(x.max()) for x in finite if x.size), default=None)
