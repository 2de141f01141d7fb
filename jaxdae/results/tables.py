"""Runs as tables: of text, of pandas, and data sets of xarray; with names and units of columns.

pandas and xarray are loaded here alone.
"""

import csv
import io
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from jaxdae.files import output_file, replace_file
from jaxdae.results.stored import shared_times, WORKS

_LONG_NAMES = {
    "q": "coordinates", "v": "velocities", "w": "actuator states", "u": "control inputs",
    "multipliers": "multipliers", "phi": "residuals at position level",
    "phi_dot": "residuals at velocity level", "energy": "generalized energy",
    "kinetic_energy": "kinetic energy", "potential_energy": "potential energy",
}  # fmt: skip
_RESERVED = ("time", "row", "coordinate", "constraint", "position_constraint", "actuator", "input")


class Named(NamedTuple):
    """What stands along the last axis of a quantity.

    Args:
        dimension: what its entries are of, `"coordinate"`, …; empty for one number in a row.
        names: of the entries.
        units: of the entries; empty where none is claimed.
        pattern: of the name of an entry by itself.
    """

    dimension: str
    names: list[str]
    units: list[str]
    pattern: str = "{}"


def quantities(run: Any) -> dict[str, Named]:
    """Names and units of all quantities of a run that have rows, but for the times.

    A multiplier's unit depends on the scaling of its constraint: none is claimed.
    """
    n, k = run.q.shape[-1], run.w.shape[-1]
    units = _field(run, "units", n, "")
    names = _field(run, "coordinates", n, "q")
    rates = Named("coordinate", names, [*map(per_second, units)], "d({})/dt")
    others = [f"v{i + 1}" for i in range(run.v.shape[-1])]
    results = {
        "q": Named("coordinate", names, units),
        "v": rates if run.velocities_are_rates else Named("velocity", others, [""] * len(others)),
        "coordinate_rates": rates,
        "w": Named("actuator", _field(run, "actuators", k, "w"), _field(run, "actuator_units", k)),
    }
    for name in run.known:
        if name == "u" or name.startswith("u."):
            results[name] = _inputs(run, name)
    results |= _of_constraints(run)
    energies = ("energy", "kinetic_energy", "potential_energy", *WORKS)
    results |= {name: Named("", [name], ["J"]) for name in energies}
    return {name: x for name, x in results.items() if name in run.known}


def _field(run: Any, field: str, count: int, letter: str = "") -> list[str]:
    default = lambda i: f"{letter}{i + 1}" if letter else ""  # noqa: E731
    return label_field(SimpleNamespace(**run.about.labels), field, count, default)


def _inputs(run: Any, name: str) -> Named:
    """A control input may be a number, a vector, or anything else that its system takes."""
    shape = run.known[name].shape[run.ts.ndim :]
    count = int(np.prod(shape, dtype=int))
    if name != "u" or len(shape) > 1:
        names = [name] if not shape else [f"{name}{i + 1}" for i in range(count)]
        return Named(f"{name}_entry" if shape else "", names, [""] * count)
    names, units = _field(run, "inputs", count, "u"), _field(run, "input_units", count)
    return Named("input" if shape else "", names, units)


def _of_constraints(run: Any) -> dict[str, Named]:
    if "phi_dot" not in run.known:
        return {}
    m, c = (run.known[name].shape[-1] for name in ("phi", "phi_dot"))
    names, units = _field(run, "constraints", c, "f"), _field(run, "constraint_units", c)
    rates = [per_second(unit) if i < m else unit for i, unit in enumerate(units)]
    return {
        "multipliers": Named("constraint", names, [""] * c, "lambda({})"),
        "phi": Named("position_constraint", names[:m], units[:m], "phi({})"),
        "phi_dot": Named("constraint", names, rates, "phi_dot({})"),
    }


def axis_names(run: Any) -> tuple[str, ...]:
    """Names of the batch axes; `member`, or `member_1`, …, where they have none."""
    count = len(run.batch_shape)
    unnamed = ("member",) if count == 1 else tuple(f"member_{i + 1}" for i in range(count))
    return run.about.axes or unnamed


def _varied(run: Any) -> dict[str, np.ndarray]:
    """What was varied, by name."""
    return {} if run.varied is None else run.varied.values


def axis_labels(run: Any) -> list[np.ndarray]:
    """Values along each batch axis: those of its name, or numbers from 0."""
    labels, varied = [np.arange(n) for n in run.batch_shape], _varied(run)
    for i, name in enumerate(run.about.axes):
        if name in varied and varied[name].ndim == len(labels):
            labels[i] = varied[name][
                tuple(slice(None) if i == k else 0 for k in range(len(labels)))
            ]
    return labels


def label_field(labels: Any, field: str, count: int, default: Callable[[int], str]) -> list[str]:
    """The entries of one field of `Labels`, filled up to `count` by `default(i)`."""
    values = tuple(getattr(labels, field, ()))
    return [values[i] if i < len(values) else default(i) for i in range(count)]


def per_second(unit: str) -> str:
    """The unit of a rate, `m/s` for `m`, `A` for `C`; nothing for nothing."""
    return {"": "", "C": "A"}.get(unit, f"{unit}/s")


def common_unit(units: list[str]) -> str:
    """The unit that all entries share, or nothing: a norm over mixed units has none."""
    return units[0] if len(set(units)) == 1 else ""


class Column(NamedTuple):
    """One column of a table.

    Args:
        name: which no other column has.
        unit: empty where none is claimed.
        values: one for each row of the table.
    """

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
    varied = _varied(run)
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
    coords |= {name: x for name, x in others.items() if name in _varied(run)}
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


def _coordinates(key: str, about: Named) -> dict[str, Any]:
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
    varied = _varied(run)
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
