"""All that is read of a run, once, as plain arrays and words."""

import dataclasses
from importlib.metadata import version
from typing import Any

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae.control.base import ControlledSystem, ControllerOutput
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.results import readings
from jaxdae.results.about import About, PLACES, RATES, WORKS
from jaxdae.results.drawing import drawing_of
from jaxdae.systems import State
from jaxdae.systems.checks import is_concrete
from jaxdae.version import __version__

_PARTS = ("system", "formulation", "controller")
# Of diffrax; codes that a later release adds are named by their number.
SUCCESS = ("successful", "event_occurred")
_RESULTS = (
    "successful", "max_steps_reached", "singular", "breakdown", "stagnation", "conlim",
    "nonfinite_input", "nonlinear_max_steps_reached", "nonlinear_divergence", "nonfinite",
    "dt_min_reached", "event_occurred", "max_steps_rejected", "internal_error",
)  # fmt: skip


def values(run, *, drawn: bool) -> tuple[dict[str, np.ndarray], About]:
    """All that can be read of a run: arrays by name, and what is said of it.

    Args:
        run: a `Trajectory` of saved states, batches included.
        drawn: whether with the positions of the points that its system declares.

    Raises:
        ValueError: inside a JAX transformation, or for a run that saved no states.
    """
    if not is_concrete(run):
        raise ValueError(
            "inside jax.jit, jax.vmap or jax.grad a trajectory has no numbers yet: return it, and "
            "save or export what the transformed function returns."
        )
    read = jax.device_get(_read(run))
    plain, left_out = parameters(run)
    read |= {f"parameters.{name}": x for name, x in plain.items()}
    arrays = {name: np.asarray(x) for name, x in read.items()}
    about, drawing = _about(run, left_out), drawing_of(run) if drawn else None
    if drawing is not None:
        arrays |= {PLACES: drawing.places, RATES: drawing.rates}
        about = dataclasses.replace(about, drawing=drawing.words)
    return arrays, about


def _read(run) -> dict[str, Any]:
    """Arrays by name, some of them still on the device."""
    rows = readings.read_rows(run, readings.everything)
    end, last = run.final_state, run.last_state
    results = {
        "ts": run.ts, **named("u", rows.pop("u")), **rows, "final_time": run.final_time,
        "final_state.q": end.q, "final_state.v": end.v, "final_state.w": end.w,
        "last_state.q": last.q, "last_state.v": last.v, "last_state.w": last.w,
        "result": result_names(run.result_code),
    }  # fmt: skip
    if run.work_integrals is not None:
        results |= dict(zip(WORKS, run.work_integrals, strict=True))
    if run.held_rank is not None:
        results["held_rank"] = run.held_rank
    varied = {} if run.varied is None else run.varied.values
    results |= {f"varied.{name}": x for name, x in varied.items()}
    return results | {f"stats.{k}": x for k, x in run.stats.items() if eqx.is_array(x)}


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
    leaves = {}
    for part, tree in zip(_PARTS, run.arrays, strict=True):
        leaves |= named(part, tree)
    plain = {name: x for name, x in leaves.items() if _is_plain(x)}
    return plain, tuple(name for name in leaves if name not in plain)


def check_parameters(run: Any, system: Any) -> None:
    """See that a system has the parameters that were stored, as far as it has their names.

    Raises:
        ValueError: naming the first that differs, and both values.
    """
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
    inner = controller.controller if isinstance(controller, ControllerOutput) else controller
    labels = run.labels
    failed = run.final_time.ndim == 0 and not bool(run.success)
    return About(
        model=type(system).__name__,
        formulation=type(formulation).__name__,
        settings=repr(formulation),
        controller=None if inner is None else getattr(inner, "__name__", type(inner).__name__),
        backend=run.backend,
        why_not_native=run.why_not_native,
        labels={x.name: getattr(labels, x.name) for x in dataclasses.fields(labels)},
        axes=() if run.varied is None else run.varied.axes,
        stats={name: x for name, x in run.stats.items() if not eqx.is_array(x)},
        failure=describe_failure(run) if failed else None,
        left_out=left_out,
        versions={"jaxdae": __version__, "jax": version("jax")},
    )
