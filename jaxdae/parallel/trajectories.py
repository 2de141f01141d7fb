"""Batches of runs as one stored trajectory, which pictures and exports take."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.parallel.manifest import error
from jaxdae.parallel.store import load_batch
from jaxdae.results.about import About
from jaxdae.results.trajectory import Trajectory
from jaxdae.systems import System

_NEEDED = ("ts", "q", "v", "success", "final_time")
_OTHERS = ("w", "u")


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
