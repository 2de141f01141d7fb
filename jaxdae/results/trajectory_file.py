"""Trajectories in files of NumPy: arrays by name, and beside them what is said of the run.

    about       text in JSON: format, versions, model, labels, units, names and shapes of all arrays
    ts, q, …    arrays, the axes of a batch first; times once where all batch members share them
    drawing.…   positions of points, corners of outlines behind them, and their velocities
    reached     of such a batch: which rows each member has come to

`numpy.load(file)["q"]` reads one of them without this package. Nothing in a file is executed.
"""

import contextlib
import dataclasses
import io
import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdae.files import output_file, replace_file
from jaxdae.results.about import About, LABELS, ROWS

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
    OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, MemoryError, RuntimeError,
    AttributeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_FIELDS = tuple(x.name for x in dataclasses.fields(About))
# What `about` says of a drawing.
DRAWN = ("places", "outlines", "unit", "links", "lines", "bodies", "trace", "fixed")
# Of `about` [bytes], which is read before anything says how large it should be.
_LONGEST_ABOUT = 2**26


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


def write(known: Mapping[str, np.ndarray], about: About, path: str | Path) -> Path:
    """Write a trajectory; at every moment the file is the old one or the new one, complete.

    Args:
        known: arrays by name.
        about: what is said of the run.
        path: the file; `.npz` is added where it is missing, `~` is the home folder, folders are
            made.

    Returns:
        The path that was written.

    Raises:
        ValueError: for arrays that do not fit each other, which could not be read back, or a
            suffix of files of another kind.
        OSError: if it cannot be written, or names a folder.
    """
    _check_shapes({name: np.shape(x) for name, x in known.items()})
    path = _place(path)
    arrays = dict(known)
    shared = shared_times(arrays["ts"])
    if shared is not None:
        arrays["ts"], arrays["reached"] = shared
    words = {
        "format": FORMAT,
        "version": VERSION,
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


def read(path: str | Path) -> tuple[dict[str, np.ndarray], About]:
    """Read the arrays of a trajectory that `write` has written, and what is said of it.

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
        # `ZipFile` alone says so in words that not everybody knows.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an archive of arrays")
        with zipfile.ZipFile(path) as file:
            about: Any = _about(file)
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise _error(path, "holds no trajectory; give one that Trajectory.save has written")
            _require_known(path, about)
            # Earlier releases wrote no drawings.
            about = {"drawing": None} | about
            _check_words(about)
            # Before any is read: it may be larger than the memory.
            _check_headers(file, about["arrays"])
            arrays = {name: _array(file, name) for name in about["arrays"]}
        return _parts(about, arrays)
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


class _Header(NamedTuple):
    """What a file of NumPy says of its array."""

    dtype: np.dtype
    shape: tuple[int, ...]


def _header(file: zipfile.ZipFile, name: str) -> _Header:
    """Type and shape of an array that fills its place in the archive; no number of it is read."""
    if f"{name}.npy" not in file.namelist():
        raise ValueError(f"it has no {name}")
    with _naming(name), file.open(f"{name}.npy") as opened:
        # Headers of later formats may themselves be as long as gigabytes; none is written here.
        version = np.lib.format.read_magic(opened)
        if version != (1, 0):
            raise ValueError(f"its format is {version[0]}.{version[1]}, must be 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(opened)
        here = file.getinfo(f"{name}.npy").file_size - opened.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which would have to be executed")
    promised = math.prod(shape) * dtype.itemsize
    if promised != here:
        what = f"{name} says that it is {dtype}{list(shape)}, {promised} bytes"
        raise ValueError(f"{what}, and has {here} bytes")
    return _Header(dtype, shape)


def _array(file: zipfile.ZipFile, name: str) -> np.ndarray:
    with _naming(name), file.open(f"{name}.npy") as opened:
        return np.lib.format.read_array(opened, allow_pickle=False)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the array in errors."""
    try:
        yield
    except _UNREADABLE as reason:
        raise ValueError(f"{name}.npy: {reason}") from reason


def _about(file: zipfile.ZipFile) -> Any:
    """What is said of the run; `None` where nothing is."""
    if "about.npy" not in file.namelist():
        return None
    dtype, shape = _header(file, "about")
    if dtype.kind != "U" or shape or dtype.itemsize > _LONGEST_ABOUT:
        raise ValueError(f"about is {dtype}{list(shape)}, must be one text of 16 MB at most")
    return json.loads(str(_array(file, "about")[()]))


def _check_words(about: dict[str, Any]) -> None:
    """Names of arrays, labels and parts of the drawing, as they are used later."""
    absent = [x for x in ("arrays", *_FIELDS) if x not in about]
    if absent:
        raise ValueError(f"about has no {absent[0]}")
    for name in ("arrays", "labels", "stats"):
        if not isinstance(about[name], dict):
            raise ValueError(f"{name} is {about[name]!r}, must have names and values")
    for name, x in about["labels"].items():
        if name not in LABELS:
            raise ValueError(f"labels has {name!r}, must have only {', '.join(LABELS)}")
        if not isinstance(x, list) or not all(isinstance(y, str) for y in x):
            raise ValueError(f"the labels of {name} are {x!r}, must be texts")
    for name, x in about["arrays"].items():
        if not (isinstance(x, list) and len(x) == 2 and isinstance(x[1], list)):
            raise ValueError(f"arrays has {x!r} for {name}, must have its type and shape")
    drawing = about["drawing"]
    missing = [x for x in DRAWN if drawing is not None and x not in drawing]
    if missing:
        raise ValueError(f"its drawing has no {missing[0]}")


def _check_headers(file: zipfile.ZipFile, declared: dict[str, Any]) -> None:
    """Arrays have the types and shapes that are declared, and these fit each other."""
    shapes = {}
    for name, (dtype, shape) in declared.items():
        x = _header(file, name)
        if x.dtype.str != dtype or list(x.shape) != shape:
            raise ValueError(f"{name} is {x.dtype}{list(x.shape)}, not {dtype}{shape}")
        if x.dtype.kind not in _kinds(name):
            raise ValueError(f"{name} is of the type {x.dtype}, which it cannot be")
        shapes[name] = x.shape
    missing = [name for name in _NEEDED if name not in shapes]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    reached = shapes.pop("reached", None)
    if reached is not None:
        if shapes["ts"] != reached[-1:]:
            raise ValueError(f"ts has shape {shapes['ts']}, reached {reached}")
        shapes["ts"] = reached
    _check_shapes(shapes)


def _kinds(name: str) -> str:
    """Letters of NumPy for the types that an array may have."""
    if name in ("result", "reached"):
        return {"result": "U", "reached": "b"}[name]
    heads = ("drawing.", "final_state.", "last_state.")
    real = (name in ROWS and name != "u") or name == "final_time" or name.startswith(heads)
    return "f" if real else "biufcU"


def _parts(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[dict, About]:
    reached = arrays.pop("reached", None)
    if reached is not None:
        every = np.broadcast_to(arrays["ts"], reached.shape)
        infinity = np.asarray(np.inf, every.dtype)
        arrays["ts"] = every if reached.all() else np.where(reached, every, infinity)
    fields = {name: about[name] for name in _FIELDS}
    fields["labels"] = {name: tuple(x) for name, x in fields["labels"].items()}
    fields |= {name: tuple(fields[name]) for name in ("axes", "left_out")}
    return arrays, About(**fields)


def _check_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Axes of the batch come first in every array, then time in those that have rows."""
    batch, rows = shapes["final_time"], shapes["ts"]
    for name, shape in shapes.items():
        first = rows if name in ROWS or name.startswith(("u.", "drawing.")) else batch
        if rows[:-1] != batch or shape[: len(first)] != first:
            raise ValueError(f"{name} has shape {shape}, times {rows} and members {batch}")


def _error(path: Path, reason: str) -> TrajectoryFileError:
    return TrajectoryFileError(f"the file {path} {reason}.")
