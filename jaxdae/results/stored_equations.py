"""What is stored of runs of differential-algebraic equations: arrays by name, and words."""

import dataclasses
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.control.base import controller_name
from jaxdae.diagnosis.dae_failure import describe_dae_failure
from jaxdae.events.records import Events
from jaxdae.results.naming import AxisLabels
from jaxdae.results.stored import (
    check_known,
    EVENTS,
    named,
    plain_arrays,
    result_names,
)
from jaxdae.storage.runs import About, EQUATIONS
from jaxdae.systems.dae import is_implicit, Variables
from jaxdae.version import __version__

_VIOLATION = ("residual", "distance")
_STATES = ("before", "after")


def values(run: Any) -> tuple[dict[str, np.ndarray], About]:
    """All that can be read of a run: arrays by name, and what is said of it."""
    check_known(run)
    if run.ts is None:
        raise ValueError(
            "a run with dense output saved no rows: leave dense out of SaveAt, or save what "
            "run.evaluate(t) gives."
        )
    implicit = is_implicit(run.dae)
    second = "y_dot" if implicit else "z"
    rows = {"y": run.y, "z": run.z, "y_dot": run.y_dot, "u": run.u}
    structure = {name: structure_of(name, x) for name, x in rows.items()}
    plain, left_out = plain_arrays({"dae": run.arrays[0], "controller": run.arrays[1]})
    violation = zip(_VIOLATION, run.violation, strict=True)
    found = {
        "ts": run.ts, "final_time": run.final_time, "success": run.success,
        "result": result_names(run.result_code),
        **{x: y for name, tree in rows.items() for x, y in named(name, tree).items()},
        **_of_variables("last", run.last, second),
        **{f"violation.{x}": y for x, y in violation},
        **{f"stats.{k}": x for k, x in run.stats.items() if eqx.is_array(x)},
        **{f"parameters.{name}": x for name, x in plain.items()},
        **({} if run.events is None else _of_events(run.events, second)),
        **({} if run.varied is None else run.varied.arrays()),
    }  # fmt: skip
    # As a list, as dictionaries come back sorted.
    read = jax.device_get([*found.values()])
    arrays = {name: np.asarray(x) for name, x in zip(found, read, strict=True)}
    failed = run.final_time.ndim == 0 and not bool(run.success)
    (first, others), (units, other_units) = run.names, run.units
    about = About(
        kind=EQUATIONS,
        model=type(run.dae).__name__,
        controller=controller_name(run.controller),
        backend=run.backend,
        why_solver=run.why_solver,
        why_not_native=run.why_not_native,
        labels={
            "y": tuple(first),
            second: tuple(others),
            "violation": tuple(run.violation_names),
            "y_units": tuple(units),
            "z_units": () if implicit else tuple(other_units),
        },
        axes=() if run.varied is None else run.varied.axes,
        stats={name: x for name, x in run.stats.items() if not eqx.is_array(x)},
        failure=describe_dae_failure(run) if failed else None,
        left_out=left_out,
        events=() if run.events is None else run.events.names,
        versions={"jaxdae": __version__, "jax": version("jax")},
        structure={**structure, "implicit": implicit, "index": run.index},
    )
    return arrays, about


def _of_variables(head: str, variables: Variables, second: str) -> dict[str, Any]:
    return named(f"{head}.y", variables.y) | named(f"{head}.{second}", variables.z)


def _of_events(events: Events, second: str) -> dict[str, Any]:
    fields = {x.name: getattr(events, x.name) for x in dataclasses.fields(events)}
    del fields["names"]
    found = {}
    for name in _STATES:
        found |= _of_variables(f"{EVENTS}.{name}", fields.pop(name), second)
    return found | {f"{EVENTS}.{x}": y for x, y in fields.items()}


def structure_of(name: str, tree: Any) -> Any:
    """A pytree of dictionaries and lists with names of arrays in place of arrays, as JSON has it.

    What is neither is a dictionary of its fields.
    """
    found: Any = None
    for path, key in zip(jax.tree_util.tree_leaves_with_path(tree), named(name, tree), strict=True):
        found = _put(found, path[0], key)
    return found


def _put(tree: Any, path, value: str) -> Any:
    if not path:
        return value
    first, *rest = path
    if isinstance(first, jax.tree_util.SequenceKey):
        items = [] if tree is None else tree
        items += [None] * (first.idx + 1 - len(items))
        items[first.idx] = _put(items[first.idx], rest, value)
        return items
    items = {} if tree is None else tree
    key = jax.tree_util.keystr((first,), simple=True)
    return {**items, key: _put(items.get(key), rest, value)}


def tree_of(structure: Any, known: Mapping[str, Any], head: str = "") -> Any:
    """The pytree again, of arrays whose names have something before those of the structure."""
    if isinstance(structure, dict):
        return {key: tree_of(x, known, head) for key, x in structure.items()}
    if isinstance(structure, list):
        return [tree_of(x, known, head) for x in structure]
    return None if structure is None else known[head + structure]


def variables_of(about: About, known: Mapping[str, Any], head: str = "") -> Variables:
    """Variables of a stored run, of names with something before them."""
    structure: Any = about.structure
    second = structure["y_dot" if structure["implicit"] else "z"]
    return Variables(tree_of(structure["y"], known, head), tree_of(second, known, head))


def events_of(about: About, known: Mapping[str, Any]) -> Events | None:
    """The events of a stored run; `None` for one without."""
    if not about.events:
        return None
    states: Any = {x: variables_of(about, known, f"{EVENTS}.{x}.") for x in _STATES}
    names = [x.name for x in dataclasses.fields(Events) if x.name not in ("names", *_STATES)]
    fields: Any = {x: known[f"{EVENTS}.{x}"] for x in names}
    return Events(names=about.events, **states, **fields)


def quantities(run: Any) -> dict[str, AxisLabels]:
    """Names and units of what of a stored run has rows, but for the times."""
    rows, found = run.ts.ndim, {}
    units = {name: iter(run.units_of(name)) for name in ("y", "z", "y_dot")}
    for key, x in run.known.items():
        head, _, rest = key.partition(".")
        if head not in ("y", "z", "y_dot", "u", "violation") or key == "violation.distance":
            continue
        if head == "violation":
            names = [f"residual of {name}" for name in run.violation_names]
            found[key] = AxisLabels("equation", names, [""] * len(names))
            continue
        base = rest or head
        base = f"d({base})/dt" if head == "y_dot" else base
        places = [*np.ndindex(*x.shape[rows:])]
        names = [base + "".join(f"[{i}]" for i in place) for place in places]
        own = [next(units.get(head, iter(())), "") for _ in names]
        found[key] = AxisLabels(f"{key}_entry" if x.ndim > rows else "", names, own)
    return found
