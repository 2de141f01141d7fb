"""Trajectories in files of NumPy: arrays by name, and beside them what is said of the run.

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

from jaxdae.files import output_file, replace_file
from jaxdae.simulation.stored import About, ROWS, StoredTrajectory

FORMAT, VERSION = "jaxdae trajectory", 1
_SUFFIX = ".npz"
# What writes files of other kinds.
_OTHERS = {
    ".csv": "run.to_csv(path)",
    ".nc": "run.to_xarray().to_netcdf(path)",
    ".h5": "run.to_xarray().to_netcdf(path, engine='h5netcdf')",
    ".zarr": "run.to_xarray().to_zarr(path)",
    ".parquet": "run.to_dataframe().to_parquet(path)",
    ".json": "run.to_dataframe().to_json(path)",
    ".xlsx": "run.to_dataframe().to_excel(path)",
    ".npy": "numpy.save(path, run.q)",
    ".mat": "scipy.io.savemat(path, dict(t=run.ts, q=run.q))",
    ".html": "jaxdae.plotting.save_page(run, path)",
}
_NEEDED = ("ts", "q", "v", "w", "final_time", "result")
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, MemoryError, RecursionError,
    AttributeError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class TrajectoryFileError(ValueError):
    """A file holds no trajectory, a damaged one, or one of a later format."""


def with_suffix(path: str | Path) -> Path:
    """The name of a file of NumPy's format: `.npz` behind a name that does not end so."""
    path = Path(path)
    return path if path.suffix.lower() == _SUFFIX else path.with_name(path.name + _SUFFIX)


def _place(path: str | Path) -> Path:
    """Where it is written, and no file of a kind that it would not be."""
    other = _OTHERS.get(Path(path).suffix.lower())
    if other is not None:
        raise ValueError(f"save writes {_SUFFIX} files, not {str(path)!r}; for that kind: {other}.")
    return output_file(with_suffix(output_file(path, f"run{_SUFFIX}")), f"run{_SUFFIX}")


def write(run: StoredTrajectory, path: str | Path) -> Path:
    """Write a trajectory; at every moment the file is the old one or the new one, complete.

    Args:
        run: what is written.
        path: the file; `.npz` is added where it is missing, `~` is the home folder, folders are
            made.

    Returns:
        The path that was written.

    Raises:
        ValueError: for arrays that do not fit each other, which could not be read back, or a
            suffix of files of another kind.
        OSError: if it cannot be written, or names a folder.
    """
    _check_shapes(run.arrays)
    path = _place(path)
    arrays = dict(run.arrays)
    shared = shared_times(arrays["ts"])
    if shared is not None:
        arrays["ts"], arrays["reached"] = shared
    about = {
        "format": FORMAT,
        "version": VERSION,
        **dataclasses.asdict(run.about),
        "arrays": {name: [x.dtype.str, list(x.shape)] for name, x in arrays.items()},
    }
    content = io.BytesIO()
    text = np.array(json.dumps(about, ensure_ascii=False, default=str))
    np.savez(content, allow_pickle=False, **{"about": text, **arrays})
    replace_file(path, content.getvalue())
    return path


def shared_times(ts: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Times of all members of a batch, and which rows each has come to.

    Args:
        ts: times, `inf` in rows that were not reached, shape `(*batch, times)`.

    Returns:
        Shapes `(times,)` and `(*batch, times)`; `None` for a single run, and where members have
        different times.
    """
    ts = np.asarray(ts)
    if ts.ndim < 2 or ts.size == 0:
        return None
    reached = np.isfinite(ts)
    axes = tuple(range(ts.ndim - 1))
    times = np.min(ts, axis=axes)  # inf where no member has come to
    same = np.where(reached, times, np.asarray(np.inf, ts.dtype))
    return (times, reached) if same.tobytes() == ts.tobytes() else None


def read(path: str | Path) -> StoredTrajectory:
    """Read a trajectory that `write` has written.

    Args:
        path: the file; `.npz` is added where there is none without.

    Raises:
        FileNotFoundError: if there is no such file.
        TrajectoryFileError: if it holds something else, is damaged, or is of a later format.
    """
    asked = Path(path).expanduser()
    # The folder "." has no name that a suffix could be put behind.
    path = asked if asked.is_file() or not asked.name else with_suffix(asked)
    if not path.is_file():
        hint = f" {asked} is a folder: name a file in it." if asked.is_dir() else ""
        raise FileNotFoundError(f"there is no file {path}.{hint}")
    try:
        # NumPy takes every other file for pickled data.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an archive of arrays")
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = file.files if isinstance(file, np.lib.npyio.NpzFile) else []
            about = json.loads(str(file["about"][()])) if "about" in names else None
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise _error(path, "holds no trajectory; give one that Trajectory.save has written")
            _require_known(path, about)
            arrays = {name: file[name] for name in about["arrays"]}
        return _trajectory(about, arrays)
    except TrajectoryFileError:
        raise
    except _UNREADABLE as reason:
        # A file cut short has lost the table of contents by which a ZIP archive is known.
        text = f"holds no trajectory, or a damaged one ({reason}); save it again"
        raise _error(path, text) from reason


def _require_known(path: Path, about: dict[str, Any]) -> None:
    version = about["version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"its format has the number {version!r}")
    if version > VERSION:
        release = about.get("versions", {}).get("jaxdae", "a later release")
        text = f"was written by jaxdae {release} in format {version}"
        raise _error(path, f"{text}, and this release reads formats up to {VERSION}; update jaxdae")


def _trajectory(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> StoredTrajectory:
    for name, (dtype, shape) in about["arrays"].items():
        x = arrays[name]
        if x.dtype.str != dtype or list(x.shape) != shape:
            raise ValueError(f"{name} is {x.dtype}{list(x.shape)}, not {dtype}{shape}")
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    reached = arrays.pop("reached", None)
    if reached is not None:
        every = np.broadcast_to(arrays["ts"], reached.shape)
        infinity = np.asarray(np.inf, every.dtype)
        arrays["ts"] = every if reached.all() else np.where(reached, every, infinity)
    _check_shapes(arrays)
    # Earlier releases wrote no drawings.
    about = {"drawing": None} | about
    fields = {x.name: about[x.name] for x in dataclasses.fields(About)}
    fields["labels"] = {name: tuple(x) for name, x in fields["labels"].items()}
    fields |= {name: tuple(fields[name]) for name in ("axes", "left_out")}
    return StoredTrajectory(arrays, About(**fields))


def _check_shapes(arrays: Mapping[str, np.ndarray]) -> None:
    """Axes of the batch come first in every array, then time in those that have rows."""
    batch, rows = arrays["final_time"].shape, arrays["ts"].shape
    for name, x in arrays.items():
        first = rows if name in ROWS or name.startswith(("u.", "drawing.")) else batch
        if rows[:-1] != batch or x.shape[: len(first)] != first:
            raise ValueError(f"{name} has shape {x.shape}, times {rows} and members {batch}")


def _error(path: Path, reason: str) -> TrajectoryFileError:
    return TrajectoryFileError(f"the file {path} {reason}.")
