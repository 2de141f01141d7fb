"""Runs as tables of pandas and data sets of xarray, which are loaded here and nowhere else."""

from importlib import import_module
from typing import Any

import numpy as np

from jaxdae.results import columns, naming
from jaxdae.results.labelled import common_unit
from jaxdae.results.stored import StoredTrajectory
from jaxdae.results.trajectory_file import shared_times

_LONG_NAMES = {
    "q": "coordinates", "v": "velocities", "w": "actuator states", "u": "control inputs",
    "multipliers": "multipliers", "phi": "residuals at position level",
    "phi_dot": "residuals at velocity level", "energy": "generalized energy",
    "kinetic_energy": "kinetic energy", "potential_energy": "potential energy",
}  # fmt: skip
_RESERVED = ("time", "row", "coordinate", "constraint", "position_constraint", "actuator", "input")


def _library(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{method} needs {name}, which is not installed: pip install 'jaxdae[data]'."
        ) from error


def to_dataframe(run: StoredTrajectory) -> Any:
    """For `Trajectory.to_dataframe`."""
    pandas = _library("pandas", "to_dataframe")
    parts = columns.columns(run)
    table = pandas.DataFrame({part.name: part.values for part in parts})
    table.attrs |= {"units": {part.name: part.unit for part in parts if part.unit}, **_attrs(run)}
    return table


def to_xarray(run: StoredTrajectory) -> Any:
    """For `Trajectory.to_xarray`."""
    xarray = _library("xarray", "to_xarray")
    axes = naming.axis_names(run)
    taken = [name for name in axes if name in _RESERVED or name in run.arrays]
    if taken:
        raise ValueError(
            f"a batch axis is called {taken[0]!r}, which is the name of something else in the data "
            "set; give it another one with varying."
        )
    kept = np.isfinite(run.ts).any(axis=tuple(range(run.ts.ndim - 1)))
    coords, row = _times(run, axes, kept)
    coords |= dict(zip(axes, zip(axes, naming.axis_labels(run), strict=True), strict=True))
    variables = {}
    for key, about in naming.quantities(run).items():
        entries = (len(about.names),) if about.dimension else ()
        values = run.arrays[key].reshape(*run.ts.shape, *entries)
        values = np.compress(kept, values, axis=run.ts.ndim - 1)
        coords |= _coordinates(key, about)
        attrs = {"long_name": _LONG_NAMES.get(key, key)}
        unit = common_unit(about.units or [""])
        attrs |= {"units": unit} if unit else {}
        dimensions = (about.dimension,) if about.dimension else ()
        variables[key] = ((*axes, row, *dimensions), values, attrs)
    others = _of_members(run, axes)
    coords |= {name: x for name, x in others.items() if name in run.tree("varied")}
    variables |= {name: x for name, x in others.items() if name not in coords}
    attrs = _attrs(run) | {"rows_not_reached": int(np.sum(~kept))}
    return xarray.Dataset(variables, coords, attrs)


def _times(run: StoredTrajectory, axes, kept) -> tuple[dict[str, Any], str]:
    """The coordinate of the times, and the dimension of the rows."""
    about = {"units": "s", "long_name": "time"}
    shared = shared_times(run.ts)
    ts = run.ts if shared is None else shared[0]
    if ts.ndim == 1:
        return {"time": ("time", ts[kept], about)}, "time"
    return {"time": ((*axes, "row"), ts[..., kept], about)}, "row"


def _coordinates(key: str, about: naming.Named) -> dict[str, Any]:
    """Names along a dimension, and their units, which need not be one."""
    if not about.dimension:
        return {}
    names = {about.dimension: (about.dimension, np.array(about.names, str))}
    if not any(about.units):
        return names
    return {**names, f"{key}_unit": (about.dimension, np.array(about.units, str))}


def _of_members(run: StoredTrajectory, axes) -> dict[str, Any]:
    """What each member came to, was made of, and differs in from the others."""
    ends = {"final_time": run.final_time, "success": run.success, "result": run.arrays["result"]}
    stats = {name: x for name, x in run.stats.items() if isinstance(x, np.ndarray)}
    varied = run.tree("varied")
    others = {name: x for name, x in varied.items() if name not in axes}
    return {
        name: ((*axes, *(f"{name}_{i + 1}" for i in range(np.ndim(x) - len(axes)))), x)
        for name, x in (ends | stats | run.parameters | others).items()
    }


def _attrs(run: StoredTrajectory) -> dict[str, Any]:
    """What is said of the run, as far as it is said."""
    about = run.about
    texts = {
        "model": about.model, "formulation": about.settings, "controller": about.controller,
        "backend": about.backend, "failure": about.failure,
        **{f"{name}_version": x for name, x in about.versions.items()},
    }  # fmt: skip
    return {name: x for name, x in texts.items() if x}
