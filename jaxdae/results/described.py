"""Trajectories in a few lines, for the prompt.

Of what is known nothing is computed for them, but for the residuals and energies of a batch, once.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae.control.base import ControlledSystem
from jaxdae.results.stored import StoredTrajectory
from jaxdae.systems.checks import is_concrete

# Rows of all members of a batch together, up to which they are read for the prompt.
_MOST_ROWS = 1_000_000
# Members that failed are named up to this number.
_NAMED = 5


class Worst(NamedTuple):
    """The largest of a run, and where.

    Args:
        value: it.
        member: place in the batch, empty for a single run.
    """

    value: float
    member: tuple[int, ...] = ()

    def text(self, unit: str = "") -> str:
        """The number, and of which member it is."""
        return f"{self.value:.3g}{unit}" + (f", of {_member(self.member)}" if self.member else "")


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
    residual: Worst | None
    energy: Worst | None


def live(run: Any) -> str:
    """A `Trajectory`; what is traced has shapes and no numbers."""
    try:
        return text(_of_live(run)) if _is_known(run) else _traced(run)
    except Exception:  # of a tree whose leaves are something else; at the prompt nothing may fail
        return eqx.tree_pformat(run)


def _is_known(run: Any) -> bool:
    parts = jax.tree.leaves((run.ts, run.final_time, run.result_code, run.stats))
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
    residual, energy = _drift(run)
    ends, codes = np.asarray(run.final_time), np.asarray(jax.tree.leaves(run.result_code)[0])
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
        reason=_first_sentence(diffrax.RESULTS[run.result_code]) if ends.ndim == 0 else "",
        steps=np.asarray(run.stats["num_steps"]) if "num_steps" in run.stats else None,
        residual=residual,
        energy=energy,
    )


def _drift(run: Any) -> tuple[Worst | None, Worst | None]:
    """What the review of a run has noted; of a batch it is read, and kept beside the fields."""
    known = vars(run)
    noted = known.get("noted")
    if noted is not None:
        return Worst(noted.residual), Worst(noted.energy)
    if "worst" not in known and run.batch_shape and run.plain and 0 < run.ts.size <= _MOST_ROWS:
        object.__setattr__(run, "worst", _read(run))
    return known.get("worst", (None, None))


def _read(run: Any) -> tuple[Worst | None, Worst | None]:
    try:
        violation, energy = run.violation, np.asarray(run.energy)
        residuals = [np.asarray(violation.phi), np.asarray(violation.phi_dot)]
    except Exception:  # inside a transformation, or of a system that has none
        return None, None
    rows = run.ts.ndim
    return worst(residuals, rows), worst([energy - energy[..., :1]], rows)


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
    energy, rows = arrays.get("energy"), run.ts.ndim
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
            residual=worst([arrays.get("phi"), arrays.get("phi_dot")], rows),
            energy=worst([change], rows),
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
        else f"|phi|, |d(phi)/dt| at most {facts.residual.text()}",
        "energy": None if facts.energy is None else f"changes by at most {facts.energy.text(' J')}",
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
        return _failures(facts) or "all reached the end"
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


def _failures(facts: Facts) -> str:
    """How many members failed, which, and when the first did; nothing where none has."""
    places = np.argwhere(~np.asarray(facts.success))
    if not len(places):
        return ""
    some = ", ".join(_index(place) for place in places[:_NAMED])
    more = ", …" if len(places) > _NAMED else ""
    times = np.asarray(facts.ends)[~np.asarray(facts.success)]
    head = f"{len(places)} of {np.size(facts.success)} failed"
    if len(places) == 1:
        return f"{head}: member {some} after t = {times.min():.4g} s"
    return f"{head}: members {some}{more}, the first after t = {times.min():.4g} s"


def _member(place: Sequence[int]) -> str:
    return f"member {_index(place)}"


def _index(place: Any) -> str:
    """As it stands in brackets behind a batch."""
    return str(int(place[0])) if len(place) == 1 else f"[{', '.join(str(int(i)) for i in place)}]"


def worst(values: Sequence[Any], rows: int) -> Worst | None:
    """The largest finite size in arrays in memory; `None` without any, or on a disk.

    Args:
        values: the first axes are those of the batch, then of time.
        rows: number of these axes.
    """
    if any(x is None or isinstance(x, np.memmap) for x in values):
        return None
    sizes = [np.where(np.isfinite(x), np.abs(x), -1.0) for x in map(np.asarray, values)]
    members = [np.max(x, axis=tuple(range(rows - 1, x.ndim)), initial=-1.0) for x in sizes]
    largest = np.max(members, axis=0)
    if largest.size == 0 or largest.max() < 0.0:
        return None
    place = np.unravel_index(np.argmax(largest), largest.shape)
    return Worst(float(largest.max()), tuple(map(int, place)) if largest.size > 1 else ())
