"""What is stored of a run: all that is read of one, as arrays by name and words."""

import dataclasses
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.control.base import ControlledSystem, controller_name
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.events.records import Events
from jaxdae.results import derived_quantities
from jaxdae.results.naming import WORKS as WORKS
from jaxdae.storage.runs import About, PLACES, RATES, with_head
from jaxdae.systems import Points, State
from jaxdae.systems.kinematics import along_motion
from jaxdae.version import __version__

_PARTS = ("system", "formulation", "controller")
# Of diffrax; codes that a later release adds are named by their number.
SUCCESS = ("successful", "event_occurred")
_RESULTS = (
    "successful", "max_steps_reached", "singular", "breakdown", "stagnation", "conlim",
    "nonfinite_input", "nonlinear_max_steps_reached", "nonlinear_divergence", "nonfinite",
    "dt_min_reached", "event_occurred", "max_steps_rejected", "internal_error",
)  # fmt: skip
# Numbers of all positions and rates together: half a gigabyte.
_MOST_VALUES = 2**26
# Arrays of events have this name before their own.
EVENTS, _STATES = "events", ("before", "after")
_JOINED = ("links", "lines", "bodies")
_NAMED = ("trace", "fixed")


def values(run, *, drawn: bool) -> tuple[dict[str, np.ndarray], About]:
    """All that can be read of a run: arrays by name, and what is said of it."""
    check_known(run)
    read = jax.device_get(_read(run))
    plain, left_out = parameters(run)
    read |= {f"parameters.{name}": x for name, x in plain.items()}
    arrays = {name: np.asarray(x) for name, x in read.items()}
    places, words = _drawing(run) if drawn else ({}, None)
    return arrays | places, dataclasses.replace(_about(run, left_out), drawing=words)


def check_known(run: Any) -> None:
    """Refuse a run that is traced."""
    if not are_known(run):
        raise ValueError(
            "inside jax.jit, jax.vmap or jax.grad a trajectory has no numbers yet: return it, and "
            "save or export what the transformed function returns."
        )


def _read(run) -> dict[str, Any]:
    """Arrays by name, some of them still on the device."""
    rows = derived_quantities.read_rows(run, derived_quantities.everything)
    end, last = run.final_state, run.last_state
    results = {
        "ts": run.ts, **named("u", rows.pop("u")), **rows, "final_time": run.final_time,
        "final_state.q": end.q, "final_state.v": end.v, "final_state.w": end.w,
        "last_state.q": last.q, "last_state.v": last.v, "last_state.w": last.w,
        "result": result_names(run.result_code),
    }  # fmt: skip
    if run.work_integrals is not None:
        results |= dict(zip(WORKS, run.work_integrals, strict=True))
    if run.events is not None:
        # Events that end a run early as a failure have no result code of their own.
        results |= {"success": run.success, **_of_events(run.events)}
    if run.held_rank is not None:
        results["held_rank"] = run.held_rank
    results |= {} if run.varied is None else run.varied.arrays()
    return results | {f"stats.{k}": x for k, x in run.stats.items() if eqx.is_array(x)}


def _of_events(events: Events) -> dict[str, Any]:
    """Arrays of the events of a run by name."""
    fields = {x.name: getattr(events, x.name) for x in dataclasses.fields(events)}
    del fields["names"]
    states = {x: fields.pop(x) for x in _STATES}
    parts = {f"{x}.{y}": getattr(z, y) for x, z in states.items() for y in "qvw"}
    return {f"{EVENTS}.{x}": y for x, y in {**fields, **parts}.items()}


def events_from(known: Mapping[str, Any], names: tuple[str, ...]) -> Events | None:
    """The events of a stored run; `None` for one without."""
    if not names:
        return None
    fields = with_head(known, f"{EVENTS}.")
    states = {x: state(*(fields.pop(f"{x}.{y}") for y in "qvw")) for x in _STATES}
    parts: Any = {**fields, **states}
    return Events(names=names, **parts)


def named(head: str, tree: Any) -> dict[str, Any]:
    """Leaves of a pytree by their places in it, behind a name; a single leaf has that name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    text = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")  # noqa: E731
    return {f"{head}.{text(path)}" if path else head: x for path, x in leaves}


def result_names(result) -> np.ndarray:
    """Names of diffrax's result codes, of the shape of the batch."""
    known = {int(jax.tree.leaves(getattr(diffrax.RESULTS, x))[0]): x for x in _RESULTS}
    codes = np.asarray(jax.tree.leaves(result)[0])
    names = [known.get(code, f"result {code}") for code in np.ravel(codes).tolist()]
    return np.array(names, dtype="U32").reshape(codes.shape)


def results_of(names: np.ndarray) -> Any:
    """Diffrax's result codes of such names."""
    items = [getattr(diffrax.RESULTS, name) for name in np.ravel(names).tolist()]
    return jax.tree.map(lambda *x: np.stack(x).reshape(names.shape), *items)


def state(*parts) -> State:
    """A state without JAX's conversion, which knows no double precision unless it is set so."""
    empty = State(np.zeros(0), np.zeros(0))
    return jax.tree.unflatten(jax.tree.structure(empty), parts)


def parameters(run) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arrays of numbers of system, formulation and controller, and names of other arrays."""
    return plain_arrays(dict(zip(_PARTS, run.arrays, strict=True)))


def plain_arrays(parts: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arrays of numbers of parts by name, and names of other arrays."""
    leaves = {}
    for part, tree in parts.items():
        leaves |= named(part, tree)
    plain = {name: x for name, x in leaves.items() if _is_plain(x)}
    return plain, tuple(name for name in leaves if name not in plain)


def check_parameters(run: Any, system: Any) -> None:
    """See that a system has the parameters that were stored, as far as it has their names."""
    known = run.parameters
    for name, x in named("system", system).items():
        if name not in known or not eqx.is_array_like(x):
            continue
        here, there = np.asarray(x), known[name]
        if here.shape == there.shape and np.array_equal(
            here.astype(there.dtype), there, equal_nan=there.dtype.kind == "f"
        ):
            continue
        remedy = "choose a member first, run[i]" if run.batch_shape else "make one that agrees"
        raise ValueError(f"{name} is {here} here, and {there} in the stored run; {remedy}.")


def _is_plain(x) -> bool:
    """Whether files of NumPy have a type for an array: keys of random numbers have none."""
    extended = jax.numpy.issubdtype(x.dtype, jax.dtypes.extended)
    return not extended and np.dtype(x.dtype).kind in "biufc"


def _about(run, left_out: tuple[str, ...]) -> About:
    system, formulation, controller = run.system, run.formulation, run.controller
    system = system.inner if isinstance(system, ControlledSystem) else system
    labels = run.labels
    failed = run.final_time.ndim == 0 and not bool(run.success)
    return About(
        model=type(system).__name__,
        formulation=type(formulation).__name__,
        settings=repr(formulation),
        controller=controller_name(controller),
        backend=run.backend,
        solver=run.solver,
        why_solver=run.why_solver,
        why_not_native=run.why_not_native,
        labels={x.name: getattr(labels, x.name) for x in dataclasses.fields(labels)},
        axes=() if run.varied is None else run.varied.axes,
        stats={name: x for name, x in run.stats.items() if not eqx.is_array(x)},
        failure=describe_failure(run) if failed else None,
        left_out=left_out,
        events=() if run.events is None else run.events.names,
        versions={"jaxdae": __version__, "jax": version("jax")},
    )


def _drawing(run: Any) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """Positions `(*batch, times, k, d)` of points and corners, their rates, and words on them.

    No words where the system declares none; where they cannot be had, a warning says why.
    """
    try:
        points, rates = jax.device_get(derived_quantities.at_rows(run, _points_and_rates))
    except Exception as error:  # of a user's method, after a run that may have taken hours
        name = type(run.system).__name__
        _warn(f"{name}.points failed ({type(error).__name__}: {error})")
        return {}, None
    if points is None:
        return {}, None
    if not isinstance(points, Points):
        _warn(f"{type(run.system).__name__}.points returned {type(points).__name__}")
        return {}, None
    values = 2 * sum(np.size(x) for x in jax.tree.leaves(points))
    if values > _MOST_VALUES:
        _warn(f"positions and their rates are {values} numbers, more than {_MOST_VALUES}")
        return {}, None
    rows = run.ts.ndim
    return {PLACES: _joined(points, rows), RATES: _joined(rates, rows)}, _words(points)


def _warn(reason: str) -> None:
    warnings.warn(
        f"{reason}: the run is stored without a drawing of its mechanism; draw it with "
        "run.with_system(system).",
        RuntimeWarning,
        stacklevel=2,
    )


def _points_and_rates(run: Any, t, y):
    """Positions and their velocities, as two trees of one structure; `(None, None)` for none."""
    state, system = derived_quantities.state_of(run, t, y), run.system
    # Constants among places may be integers, which have no rates.
    in_floats = lambda tree, q: jax.tree.map(lambda x: jnp.asarray(x, q.dtype), tree)  # noqa: E731
    points = lambda t, q: in_floats(system.points(t, q), q)  # noqa: E731
    return jax.jvp(points, (t, state.q), along_motion(system, t, state.q, state.v))


def _joined(points: Points, rows: int) -> np.ndarray:
    places = [np.expand_dims(x, rows) for x in points.places.values()]
    return np.concatenate([*places, *points.outlines.values()], axis=rows)


def _words(points: Points) -> dict[str, Any]:
    joined = {name: [list(x) for x in getattr(points, name)] for name in _JOINED}
    named = {name: list(getattr(points, name)) for name in _NAMED}
    return {
        "places": list(points.places),
        "outlines": {name: int(x.shape[-2]) for name, x in points.outlines.items()},
        "unit": points.unit,
        **joined,
        **named,
    }


def points_of(places: np.ndarray, words: Mapping[str, Any]) -> Points:
    """The points of a drawing again, from positions of shape `(..., k, d)` and its words."""
    names = words["places"]
    by_name = {name: places[..., i, :] for i, name in enumerate(names)}
    ends = np.cumsum([len(names), *words["outlines"].values()])
    parts = np.split(places, ends, axis=-2)[1:-1]
    outlines = dict(zip(words["outlines"], parts, strict=True))
    joined = {name: tuple(map(tuple, words[name])) for name in _JOINED}
    named = {name: tuple(words[name]) for name in _NAMED}
    # One position first, for the checks of names: arrays with rows are put in afterwards.
    first = {name: np.zeros(places.shape[-1]) for name in names}
    parts_of: Any = {**joined, **named}
    points = Points(first, unit=words["unit"], **parts_of)  # pyright: ignore[reportArgumentType]
    return eqx.tree_at(lambda x: (x.places, x.outlines), points, (by_name, outlines))
