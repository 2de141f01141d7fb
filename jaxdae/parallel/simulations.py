"""Simulations of a batch of systems, gains, starts and controllers, and pictures of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from jaxdae.control.base import AbstractDynamicController
from jaxdae.formulations import AbstractFormulation
from jaxdae.parallel.batch import map_batch
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import simulate
from jaxdae.storage.batches import error, load_batch
from jaxdae.storage.runs import About
from jaxdae.systems import State, System
from jaxdae.systems.precision import in_dtype

_NEEDED = ("ts", "q", "v", "success", "final_time")
_OTHERS = ("w", "u")


def motion(run: Trajectory) -> dict[str, Any]:
    """What is kept of a run if nothing else is asked for.

    Args:
        run: one run.

    Returns:
        `ts`, `q`, `v`, and `w` and `u` where there are any, at the saved times; `success`,
        `final_time` [s] and `num_steps` of the run.
    """
    return {
        "ts": run.ts,
        "q": run.q,
        "v": run.v,
        "w": run.w if run.w.shape[-1] else None,
        "u": run.u,
        "success": run.success,
        "final_time": run.final_time,
        "num_steps": run.stats["num_steps"],
    }


def simulate_batch(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    controller: Callable | AbstractDynamicController | None = None,
    quantities: Callable[[Trajectory], PyTree] = motion,
    in_axes: int | dict[str, Any] = 0,
    block_size: int | None = None,
    chunk_size: int | None = None,
    devices: Any = None,
    directory: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = False,
    **options: Any,
) -> PyTree:
    """Simulate a batch of systems, gains, starts and controllers.

    `map_batch` of `simulate(..., throw=False)`: see there for blocks, chunks, devices, processes
    and directories. Starts are not checked to be consistent, as under `jax.vmap`. For example,
    1000 starts, each with its own gains:

        starts = perturbed_states(state, jax.random.key(0), 1000, system=system)
        rates = jnp.geomspace(1.0, 100.0, 1000)
        gains = jax.vmap(lambda rate: Multipliers(Baumgarte.critical(rate)))(rates)
        runs = simulate_batch(system, gains, starts, t1=10.0, directory="results/starts")
        runs["q"].shape             # (1000, 201, n), mapped from disk
        runs["success"].mean()      # which share of the runs reached t1

    Args:
        system: what moves; one whose arrays have a leading axis of batch members, or one for all.
        formulation: the same, how constraints are enforced.
        state: the same, start.
        controller: the same, `u = controller(t, q, v, w)`.
        quantities: what to keep of each `Trajectory`, a pytree of arrays; by default `motion`.
        in_axes: axis of the members in all arrays of the four above (numbers and functions are
            shared); or a dictionary by their names, with axes as `jax.vmap` takes them, where
            those not named are shared.
        block_size: as in `map_batch`.
        chunk_size: as in `map_batch`.
        devices: as in `map_batch`.
        directory: as in `map_batch`.
        overwrite: as in `map_batch`.
        progress: as in `map_batch`, one bar for the batch.
        options: of `simulate`, the same for all members: `t0`, `t1`, `dt`, `solver`, `saveat`, ….

    Returns:
        The quantities with a leading axis `members`. Rows that a run did not reach are marked as in
        `Trajectory`.

    Raises:
        ValueError: for `throw`, an unknown name in `in_axes`, and as `map_batch` and `simulate`.
        TypeError: as `map_batch` and `simulate`.
        StoredBatchError: as `map_batch`.
        BatchError: as `map_batch`.
    """
    if "throw" in options:
        raise ValueError("simulate_batch takes no throw: a failure is the value of its member.")
    batch = {
        "system": system,
        "formulation": formulation,
        "state": state,
        "controller": controller,
    }
    axes = _axes(in_axes, batch)
    batch, numbers = _without_numbers(batch, state.q.dtype)
    return map_batch(
        _Simulation(quantities, options, numbers),
        batch,
        in_axes=axes,
        block_size=block_size,
        chunk_size=chunk_size,
        devices=devices,
        directory=directory,
        overwrite=overwrite,
        progress=progress,
    )


class _Simulation(eqx.Module):
    """One run of a batch."""

    quantities: Callable
    options: dict[str, Any]
    numbers: dict[str, Any]

    def __call__(self, member: dict[str, Any]) -> PyTree:
        run = eqx.combine(member, self.numbers)
        return self.quantities(simulate(**run, throw=False, **self.options))


def _without_numbers(batch: dict[str, Any], dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch without its plain numbers, and these as arrays, which compile nothing anew."""
    leaves, structure = jax.tree.flatten(batch)
    cast = jax.tree.leaves(in_dtype(batch, dtype))
    number = [not eqx.is_array(x) and eqx.is_array(y) for x, y in zip(leaves, cast, strict=True)]
    kept = [None if a else x for a, x in zip(number, leaves, strict=True)]
    numbers = [y if a else None for a, y in zip(number, cast, strict=True)]
    return jax.tree.unflatten(structure, kept), jax.tree.unflatten(structure, numbers)


def _axes(in_axes: int | dict[str, Any], batch: dict[str, Any]) -> PyTree:
    if not isinstance(in_axes, dict):
        return in_axes
    unknown = sorted(set(in_axes) - set(batch))
    if unknown:
        raise ValueError(f"in_axes names {unknown[0]!r}; it may name {', '.join(batch)}.")
    return {name: in_axes.get(name) for name in batch}


def as_trajectory(
    batch: dict[str, Any] | str | Path, system: System | None = None, /, **varied: Any
) -> Trajectory:
    """The results of `simulate_batch` as a trajectory whose members are chosen by index.

        runs = as_trajectory("results/starts", system, rate=rates)
        plot_histories(runs[3])
        plot_batch(runs)

    Arrays stay where they are: of results on disk only the members that are asked for are read.

    Args:
        batch: what `simulate_batch` returned, or the directory it wrote; of the quantities that are
            kept by default.
        system: the system, or a batch of them, for names and units.
        varied: what was varied, by name; numbers or texts with one entry for each member.

    Returns:
        A `Trajectory` of `ts`, `q`, `v`, and `w` and `u` where there are any, with one batch
        axis.

    Raises:
        ValueError: for results without the default quantities, or `varied` that does not fit.
        StoredBatchError: for a directory that holds no batch, a damaged one, or an unfinished one.
    """
    results = _finished(Path(batch)) if isinstance(batch, str | Path) else batch
    missing = [name for name in _NEEDED if results.get(name) is None]
    if missing:
        raise ValueError(
            f"the batch has no {missing[0]}; a trajectory needs {', '.join(_NEEDED)}, which "
            "simulate_batch keeps unless it is given other `quantities`."
        )
    arrays = {name: results[name] for name in (*_NEEDED, *_OTHERS) if results.get(name) is not None}
    arrays.setdefault("w", np.zeros((*np.shape(arrays["ts"]), 0), arrays["q"].dtype))
    if results.get("num_steps") is not None:
        arrays["stats.num_steps"] = results["num_steps"]
    labels = {} if system is None else dict(vars(system.labels()))
    about = About(model="" if system is None else type(system).__name__, labels=labels)
    run = Trajectory.from_arrays(arrays, about)
    return run.varying(**varied) if varied else run


def _finished(directory: Path) -> dict[str, np.ndarray]:
    stored = load_batch(directory)
    if not stored.finished.all():
        count = f"{stored.finished.sum()} of {stored.finished.size}"
        remedy = "make the same call again, which computes the others, or read it with load_batch"
        raise error(directory, f"{count} members are finished", remedy)
    return stored.results
