"""Runs as tables: of text, of pandas, and data sets of xarray; with names and units of columns.

pandas and xarray are loaded here alone.
"""

import csv
import io
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdae.results.naming import (
    axis_labels,
    axis_names,
    AxisLabels,
    common_unit,
    quantities,
    varied_values,
)
from jaxdae.storage.files import output_file, replace_file
from jaxdae.storage.runs import shared_times

_LONG_NAMES = {
    "q": "coordinates", "v": "velocities", "w": "actuator states", "u": "control inputs",
    "multipliers": "multipliers", "phi": "residuals at position level",
    "phi_dot": "residuals at velocity level", "energy": "generalized energy",
    "kinetic_energy": "kinetic energy", "potential_energy": "potential energy",
}  # fmt: skip
_RESERVED = ("time", "row", "coordinate", "constraint", "position_constraint", "actuator", "input")


class Column(NamedTuple):
    """One column of a table."""

    name: str
    unit: str
    values: np.ndarray

    @property
    def heading(self) -> str:
        """`name [unit]`, or the name alone."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def columns(run: Any) -> list[Column]:
    """The table of a run: labels of batch members first, then times, then quantities.

    Rows that were not reached are left out.
    """
    reached = np.isfinite(run.ts)
    parts = [*_member_columns(run, reached), Column("time", "s", run.ts[reached])]
    for key, about in quantities(run).items():
        rows = run.known[key][reached]
        rows = rows.reshape(len(rows), len(about.names))
        for i, (name, unit) in enumerate(zip(about.names, about.units, strict=True)):
            parts.append(Column(about.pattern.format(name), unit, rows[:, i]))
    return _with_names_of_their_own(parts)


def _member_columns(run: Any, reached: np.ndarray) -> list[Column]:
    """What says of which batch member a row is."""
    names, labels = axis_names(run), axis_labels(run)
    shaped = [
        x.reshape(*[-1 if i == j else 1 for j in range(len(names))]) for i, x in enumerate(labels)
    ]
    varied = varied_values(run)
    values = dict(zip(names, shaped, strict=True))
    values |= {k: x for k, x in varied.items() if k not in names and x.shape == run.batch_shape}
    if not run.batch_shape:
        values = {k: x for k, x in varied.items() if np.ndim(x) == 0}
    return [
        Column(name, "", np.broadcast_to(np.asarray(x)[..., None], reached.shape)[reached])
        for name, x in values.items()
    ]


def _with_names_of_their_own(parts: list[Column]) -> list[Column]:
    """Two of one name could not be distinguished."""
    seen: dict[str, int] = {}
    results = []
    for part in parts:
        seen[part.name] = seen.get(part.name, 0) + 1
        number = "" if seen[part.name] == 1 else f" ({seen[part.name]})"
        results.append(part._replace(name=part.name + number))
    return results


def write_csv(run: Any, path: str | Path) -> Path:
    """Write the table of a run as text; if that fails, the old file stays."""
    path = output_file(path, "run.csv")
    parts, text = columns(run), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([part.heading for part in parts])
    writer.writerows(zip(*(map(str, part.values) for part in parts), strict=True))
    replace_file(path, text.getvalue().encode())
    return path


def _library(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{method} needs {name}, which is not installed: pip install 'jaxdae[data]'."
        ) from error


def to_dataframe(run: Any) -> Any:
    """For `Trajectory.to_dataframe`."""
    pandas = _library("pandas", "to_dataframe")
    parts = columns(run)
    table = pandas.DataFrame({part.name: part.values for part in parts})
    table.attrs |= {"units": {part.name: part.unit for part in parts if part.unit}, **_attrs(run)}
    return table


def to_xarray(run: Any) -> Any:
    """For `Trajectory.to_xarray`."""
    xarray = _library("xarray", "to_xarray")
    axes = axis_names(run)
    taken = [name for name in axes if name in _RESERVED or name in run.known]
    if taken:
        raise ValueError(
            f"a batch axis is called {taken[0]!r}, which is the name of something else in the data "
            "set; give it another one with varying."
        )
    kept = np.isfinite(run.ts).any(axis=tuple(range(run.ts.ndim - 1)))
    coords, row = _times(run, axes, kept)
    coords |= dict(zip(axes, zip(axes, axis_labels(run), strict=True), strict=True))
    variables = {}
    for key, about in quantities(run).items():
        entries = (len(about.names),) if about.dimension else ()
        values = run.known[key].reshape(*run.ts.shape, *entries)
        values = np.compress(kept, values, axis=run.ts.ndim - 1)
        coords |= _coordinates(key, about)
        attrs = {"long_name": _LONG_NAMES.get(key, key)}
        unit = common_unit(about.units or [""])
        attrs |= {"units": unit} if unit else {}
        dimensions = (about.dimension,) if about.dimension else ()
        variables[key] = ((*axes, row, *dimensions), values, attrs)
    others = _of_members(run, axes)
    coords |= {name: x for name, x in others.items() if name in varied_values(run)}
    variables |= {name: x for name, x in others.items() if name not in coords}
    attrs = _attrs(run) | {"rows_not_reached": int(np.sum(~kept))}
    return xarray.Dataset(variables, coords, attrs)


def _times(run: Any, axes, kept) -> tuple[dict[str, Any], str]:
    """The coordinate of the times, and the dimension of the rows."""
    about = {"units": "s", "long_name": "time"}
    shared = shared_times(run.ts)
    ts = run.ts if shared is None else shared[0]
    if ts.ndim == 1:
        return {"time": ("time", ts[kept], about)}, "time"
    return {"time": ((*axes, "row"), ts[..., kept], about)}, "row"


def _coordinates(key: str, about: AxisLabels) -> dict[str, Any]:
    """Names along a dimension, and their units, which need not be one."""
    if not about.dimension:
        return {}
    names = {about.dimension: (about.dimension, np.array(about.names, str))}
    if not any(about.units):
        return names
    return {**names, f"{key}_unit": (about.dimension, np.array(about.units, str))}


def _of_members(run: Any, axes) -> dict[str, Any]:
    """What each member came to, was made of, and differs in from the others."""
    ends = {"final_time": run.final_time, "success": run.success, "result": run.known["result"]}
    stats = {name: x for name, x in run.stats.items() if isinstance(x, np.ndarray)}
    varied = varied_values(run)
    others = {name: x for name, x in varied.items() if name not in axes}
    return {
        name: ((*axes, *(f"{name}_{i + 1}" for i in range(np.ndim(x) - len(axes)))), x)
        for name, x in (ends | stats | run.parameters | others).items()
    }


def _attrs(run: Any) -> dict[str, Any]:
    """What is said of the run, as far as it is said."""
    about = run.about
    texts = {
        "model": about.model, "formulation": about.settings, "controller": about.controller,
        "backend": about.backend, "failure": about.failure,
        **{f"{name}_version": x for name, x in about.versions.items()},
    }  # fmt: skip
    return {name: x for name, x in texts.items() if x}
