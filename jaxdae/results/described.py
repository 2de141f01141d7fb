"""Trajectories in a few lines, for the prompt. Nothing is computed for them."""

import math
from collections.abc import Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae.checks import are_known
from jaxdae.control.base import ControlledSystem, controller_name
from jaxdae.events.records import REASONS
from jaxdae.solvers.sampled import SampledEnds

# Members that failed are named up to this number.
_NAMED = 5


def text(run: Any) -> str:
    """A trajectory in a few lines: model, names, times, what drifted, how it ended.

    What is traced has shapes and no numbers.
    """
    try:
        return _lines(run) if _is_known(run) else _traced(run)
    except Exception:  # of a tree whose leaves are something else; at the prompt nothing may fail
        return eqx.tree_pformat(run)


def solver_name(solver: Any) -> str:
    """A step method as it is written, without its settings: `Projected(Dopri8)`."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractWrappedSolver):
        return name
    inner: Any = solver.solver
    return (
        solver_name(inner) if isinstance(solver, SampledEnds) else f"{name}({solver_name(inner)})"
    )


def _lines(run: Any) -> str:
    residual, change = _drift(run)
    lines = {
        "batch": _batch(run),
        "coordinates": ", ".join(_coordinates(run)),
        "constraints": ", ".join(run.labels.constraints),
        "times": _times(run),
        "solver": None if run.why_solver is None else f"{run.solver}: {run.why_solver}",
        "residuals": None if residual is None else f"|phi|, |d(phi)/dt| at most {residual:.3g}",
        "energy": None if change is None else f"changes by at most {change:.3g} J",
        "positions": _unsearched(run),
        "events": _events(run),
        "result": _result(run),
    }
    body = "".join(f"\n  {name:<12} {line}" for name, line in lines.items() if line)
    return f"Trajectory({_head(run)}{body}\n)"


def _head(run: Any) -> str:
    """Model; formulation, controller and backend, as far as they are known."""
    if run.about is not None:
        about = run.about
        model, formulation, controller, backend = (
            about.model or "unknown model", about.formulation, about.controller, about.backend,
        )  # fmt: skip
    else:
        system, controller = run.system, run.controller
        system = system.inner if isinstance(system, ControlledSystem) else system
        controller = controller_name(controller)
        model, formulation = type(system).__name__, type(run.formulation).__name__
        backend = run.backend
    under = None if controller is None else f"under {controller}"
    parts = [model, formulation, under, f"{backend} backend" if backend else None]
    return ", ".join(x for x in parts if x)


def _coordinates(run: Any) -> list[str]:
    if run.about is not None:
        count = run.q.shape[-1]
    else:
        q = getattr(run.final, "q", None)
        count = None if q is None else q.shape[-1]
    return names(run.labels, "coordinates", "units", count)


def _is_known(run: Any) -> bool:
    parts = jax.tree.leaves((run.ts, run.final_time, run.result_code, run.stats))
    return are_known(parts) and all(not isinstance(x, jax.ShapeDtypeStruct) for x in parts)


def _drift(run: Any) -> tuple[float | None, float | None]:
    """Largest residual and change of energy of a single run, as they were found or are stored."""
    if run.batch_shape:
        return None, None
    if run.about is None:
        found = vars(run).get("findings")
        return (None, None) if found is None else (found.residual, found.energy_change)
    residuals = [run.known[x] for x in ("phi", "phi_dot") if x in run.known]
    energy = run.known.get("energy")
    change = None if energy is None else _largest([energy - energy[:1]])
    return _largest(residuals), change


def _unsearched(run: Any) -> str | None:
    """That a run was too large for its positions to be searched, and what searches them."""
    found = vars(run).get("findings")
    if found is None or found.searched:
        return None
    return "near-singular ones were not searched for, as there is much to compute; see mobility()"


def _largest(values: Sequence[np.ndarray]) -> float | None:
    """The largest finite size, if there is one."""
    sizes = np.concatenate([np.zeros(0), *(np.abs(x).ravel() for x in values)])
    finite = sizes[np.isfinite(sizes)]
    return float(finite.max()) if finite.size else None


def _first_sentence(message: str) -> str:
    return message.strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def _traced(run: Any) -> str:
    rows = f"{run.ts.shape[-1]} rows" if run.plain else "no rows"
    coordinates = ", ".join(_coordinates(run)) or "coordinates"
    return f"Trajectory({_head(run)}, traced: {rows} of {coordinates})"


def _batch(run: Any) -> str | None:
    shape, axes = run.batch_shape, () if run.varied is None else run.varied.axes
    if not shape:
        return None
    if not axes:
        plural = "" if math.prod(shape) == 1 else "s"
        return f"{' × '.join(map(str, shape))} member{plural}"
    return " × ".join(f"{name} ({n})" for n, name in zip(shape, axes, strict=True))


def _times(run: Any) -> str | None:
    if not run.plain:
        return None
    ts, rows = np.asarray(run.ts), run.ts.shape[-1]
    if run.batch_shape:
        last = np.max(run.final_time, initial=-np.inf)
        until = f", until t = {last:.6g} s" if np.isfinite(last) else ""
        return f"{rows} rows{until}{_steps(run)}"
    reached = ts[np.isfinite(ts)]
    if not reached.size:
        return f"none of {rows} rows reached"
    missing = "" if reached.size == rows else f"{reached.size} of "
    return f"{missing}{rows} rows, t = {reached[0]:.6g} … {reached[-1]:.6g} s{_steps(run)}"


def _steps(run: Any) -> str:
    steps = run.stats.get("num_steps")
    if steps is None or np.size(steps) == 0:
        return ""
    least, most = int(np.min(steps)), int(np.max(steps))
    return f", {most} steps" if least == most else f", {least} … {most} steps"


def _events(run: Any) -> str | None:
    """How many times each happened; of a batch of members, the least and the most."""
    if run.events is None:
        return None
    texts = []
    for name, count in run.events.counts.items():
        least, most = int(np.min(count, initial=2**31)), int(np.max(count, initial=0))
        text = f"{most}" if least >= most else f"{least} … {most}"
        texts.append(f"{name} did not happen" if most == 0 else f"{name} × {text}")
    return ", ".join(texts)


def _result(run: Any) -> str | None:
    success = np.asarray(run.success)
    if success.size == 0:
        return None
    if run.batch_shape:
        return _failures(run) or "all reached the end"
    end = float(run.final_time)
    if bool(success):
        early = bool(run.result == diffrax.RESULTS.event_occurred)
        return f"ended by an event at t = {end:.6g} s" if early else f"reached t = {end:.6g} s"
    if run.about is None:
        reason = _early(run) or diffrax.RESULTS[run.result_code]
    else:
        reason = run.about.failure or str(run.known["result"])
    return f"FAILED after t = {end:.6g} s: {_first_sentence(reason)}"


def _early(run: Any) -> str | None:
    """Why its events ended a run as a failure; `None` where they did not."""
    return None if run.events is None else REASONS.get(int(run.events.ending))


def names(labels: Any, field: str, units: str, count: int | None) -> list[str]:
    """Names with their units; of those that have none only their number."""
    given = tuple(getattr(labels, field, ()))
    if not given:
        return [str(count)] if count else []
    unit = tuple(getattr(labels, units, ()))
    unit += ("",) * (len(given) - len(unit))
    return [f"{name} [{u}]" if u else name for name, u in zip(given, unit, strict=False)]


def _failures(run: Any) -> str:
    """How many members failed, which, and when the first did; nothing where none has."""
    success = np.asarray(run.success)
    places = np.argwhere(~success)
    if not len(places):
        return ""
    some = ", ".join(_index(place) for place in places[:_NAMED])
    more = ", …" if len(places) > _NAMED else ""
    times = np.asarray(run.final_time)[~success]
    head = f"{len(places)} of {success.size} failed"
    if len(places) == 1:
        return f"{head}: member {some} after t = {times.min():.4g} s"
    return f"{head}: members {some}{more}, the first after t = {times.min():.4g} s"


def _index(place: Any) -> str:
    """As it stands in brackets behind a batch."""
    return str(int(place[0])) if len(place) == 1 else f"[{', '.join(str(int(i)) for i in place)}]"
