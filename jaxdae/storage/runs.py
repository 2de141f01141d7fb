"""Runs as files: arrays by name, and words.

    about       text in JSON: format, versions, model, labels, units, names and shapes of all arrays
    ts, q, …    arrays, the axes of a batch first; times once where all batch members share them
    drawing.…   positions of points, corners of outlines behind them, and their velocities
    reached     of such a batch: which rows each member has come to

`numpy.load(file)["q"]` reads one of them without this package. Nothing in a file is executed.
"""

import dataclasses
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.storage.files import output_file, replace_file

# Works of forces along a run: fields of `Power`.
WORKS = ("work.force", "work.dissipation", "work.constraint", "work.explicit")
# Quantities that have a row for each time.
ROWS = (
    "ts", "q", "v", "w", "u", "multipliers", "phi", "phi_dot", "energy", "kinetic_energy",
    "potential_energy", "coordinate_rates", *WORKS,
)  # fmt: skip
# Positions of points, and their velocities: rows as well.
PLACES, RATES = "drawing.places", "drawing.rates"
_FORMAT, _VERSION, _SUFFIX = "jaxdae trajectory", 1, ".npz"
# Kinds of runs in files, and what of each there is at least: motions of systems, and
# differential-algebraic equations, whose arrays have the names of their variables.
MOTION, EQUATIONS = "", "equations"
_READ_BY = {MOTION: "Trajectory", EQUATIONS: "DAETrajectory"}
# First parts of names of arrays that have rows.
_ROW_HEADS = ("u", "drawing", "y", "z", "y_dot", "violation")
# Of files that `save` does not write.
_OTHERS = (
    ".csv", ".nc", ".h5", ".zarr", ".parquet", ".json", ".xlsx", ".npy", ".mat", ".html", ".txt",
)  # fmt: skip
_NEEDED = {
    MOTION: ("ts", "q", "v", "w", "final_time", "result"),
    EQUATIONS: ("ts", "final_time", "result", "success"),
}
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, MemoryError, RuntimeError,
    AttributeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class About:
    """What is said of a run.

    Args:
        model: class of the system.
        formulation: class of the formulation.
        settings: the formulation with what it was made of, as text.
        controller: class of the controller, `None` without one.
        backend: `"native"` or `"plain"`.
        why_not_native: what kept the native backend from serving, or `None`.
        solver: name of the step method.
        why_solver: why it was chosen, where it was not given.
        labels: fields of `jaxdae.Labels` by name.
        axes: names of the batch axes, as far as they have some.
        stats: statistics that are no arrays.
        failure: why a single run did not reach its end, in words.
        left_out: parameters that are no arrays of numbers.
        versions: releases of `jaxdae` and `jax` that made the run.
        drawing: names of the points and what joins them, where the system declares points.
        events: names of events, as far as the run had some.
        kind: of run, `MOTION` or `EQUATIONS`.
        structure: of pytrees whose leaves are arrays, with the names of these.
    """

    model: str = ""
    formulation: str = ""
    settings: str = ""
    controller: str | None = None
    backend: str = ""
    why_not_native: str | None = None
    solver: str = ""
    why_solver: str | None = None
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    axes: tuple[str, ...] = ()
    stats: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: str | None = None
    left_out: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drawing: Mapping[str, Any] | None = None
    events: tuple[str, ...] = ()
    kind: str = MOTION
    structure: Any = None


class TrajectoryFileError(ValueError):
    """A file holds no trajectory, a damaged one, or one of a later format."""


def with_head(known: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Entries whose names begin so, without that beginning."""
    return {x.removeprefix(head): y for x, y in known.items() if x.startswith(head)}


def with_suffix(path: str | Path) -> Path:
    """The name of a file of NumPy's format: `.npz` behind a name that does not end so."""
    path = Path(path)
    return path if path.suffix.lower() == _SUFFIX else path.with_name(path.name + _SUFFIX)


def write(known: Mapping[str, np.ndarray], about: About, path: str | Path) -> Path:
    """Write a trajectory, for `Trajectory.save`; `ValueError` for arrays that do not fit."""
    _check_shapes({name: np.shape(x) for name, x in known.items()})
    if Path(path).suffix.lower() in _OTHERS:
        raise ValueError(
            f"save writes {_SUFFIX} files, not {str(path)!r}; other kinds are written by "
            "run.to_csv(path), run.to_dataframe() and run.to_xarray()."
        )
    path = output_file(with_suffix(output_file(path, f"run{_SUFFIX}")), f"run{_SUFFIX}")
    arrays = dict(known)
    shared = shared_times(arrays["ts"])
    if shared is not None:
        arrays["ts"], arrays["reached"] = shared
    words = {
        "format": _FORMAT,
        "version": _VERSION,
        **dataclasses.asdict(about),
        "arrays": {name: [x.dtype.str, list(x.shape)] for name, x in arrays.items()},
    }
    content = io.BytesIO()
    text = np.array(json.dumps(words, ensure_ascii=False, default=str))
    np.savez(content, allow_pickle=False, **{"about": text, **arrays})
    replace_file(path, content.getvalue())
    return path


def shared_times(ts: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Times of all members of a batch, and which rows each has come to.

    `None` for a single run, and where members have different times.
    """
    ts = np.asarray(ts)
    if ts.ndim < 2 or ts.size == 0:
        return None
    reached = np.isfinite(ts)
    axes = tuple(range(ts.ndim - 1))
    times = np.min(ts, axis=axes)  # inf where no member has come to
    same = np.where(reached, times, np.asarray(np.inf, ts.dtype))
    return (times, reached) if same.tobytes() == ts.tobytes() else None


def read(path: str | Path, kind: str = MOTION) -> tuple[dict[str, np.ndarray], About]:
    """The arrays of a trajectory that `write` has written, and what is said of it."""
    asked = Path(path).expanduser()
    # The folder "." has no name that a suffix could be put behind.
    path = asked if asked.is_file() or not asked.name else with_suffix(asked)
    if not path.is_file():
        hint = f" {asked} is a folder: name a file in it." if asked.is_dir() else ""
        raise FileNotFoundError(f"there is no file {path}.{hint}")
    try:
        # NumPy alone says so in words that not everybody knows.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            about: Any = json.loads(str(file["about"])) if "about" in file else None
            if not isinstance(about, dict) or about.get("format") != _FORMAT:
                raise _error(
                    path, f"holds no trajectory; give one that {_READ_BY[kind]}.save has written"
                )
            if about.get("kind", MOTION) != kind:
                found = _READ_BY.get(about["kind"], "a later release")
                raise _error(path, f"holds a run of another kind: read it by {found}.load(path)")
            if int(about["version"]) > _VERSION:
                release = about.get("versions", {}).get("jaxdae", "a later release")
                raise _error(
                    path,
                    f"was written by jaxdae {release} in format {about['version']}, and this "
                    f"release reads formats up to {_VERSION}; update jaxdae",
                )
            arrays = {name: file[name] for name in about["arrays"]}
        return _checked(about, arrays)
    except TrajectoryFileError:
        raise
    except _UNREADABLE as reason:
        # A file cut short has lost the table of contents by which a ZIP archive is known.
        text = f"holds no trajectory, or a damaged one ({reason}); save it again"
        raise _error(path, text) from reason


def _checked(about: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, np.ndarray], About]:
    """Arrays and words of a file, which have the types and shapes that are declared, and fit."""
    for name, (dtype, shape) in about["arrays"].items():
        x = arrays[name]
        if x.dtype.str != dtype or list(x.shape) != shape:
            raise ValueError(f"{name} is {x.dtype}{list(x.shape)}, not {dtype}{shape}")
    missing = [name for name in _NEEDED[about.get("kind", MOTION)] if name not in arrays]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    reached = arrays.pop("reached", None)
    if reached is not None:
        every = np.broadcast_to(arrays["ts"], reached.shape)
        infinity = np.asarray(np.inf, every.dtype)
        arrays["ts"] = every if reached.all() else np.where(reached, every, infinity)
    _check_shapes({name: x.shape for name, x in arrays.items()})
    # Earlier releases wrote no drawings, solvers, events and kinds.
    earlier = {"drawing": None, "solver": "", "why_solver": None, "events": ()}
    about = earlier | {"kind": MOTION, "structure": None} | about
    fields = {x.name: about[x.name] for x in dataclasses.fields(About)}
    fields["labels"] = {name: tuple(x) for name, x in fields["labels"].items()}
    fields |= {name: tuple(fields[name]) for name in ("axes", "left_out", "events")}
    return arrays, About(**fields)


def _check_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Axes of the batch come first in every array, then time in those that have rows."""
    batch, rows = shapes["final_time"], shapes["ts"]
    for name, shape in shapes.items():
        first = rows if name in ROWS or name.partition(".")[0] in _ROW_HEADS else batch
        if rows[:-1] != batch or shape[: len(first)] != first:
            raise ValueError(f"{name} has shape {shape}, times {rows} and members {batch}")


def _error(path: Path, reason: str) -> TrajectoryFileError:
    return TrajectoryFileError(f"the file {path} {reason}.")
