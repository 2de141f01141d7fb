"""Results on disk: one `.npy` file for each array, and a record of the chunks that are in them.

    manifest.json                    what batch this is, and its files
    q.npy, success.npy, …            results, leading axis `members`; `….npy.partial` before the end
    finished/000000000-000004096     one file for each finished chunk, with its first member and the
                                     member after its last as its name

A chunk is recorded after its numbers have reached the disk. What is not recorded is computed again.
A directory may come from anywhere: files are found by names that are checked, and never by links.
"""

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, PyTree

from jaxdae.storage.files import held, naming, no_link, replace_file, sync_folder
from jaxdae.storage.fingerprints import differences, leaf_name

_FORMAT, _VERSION = "jaxdae batch", 2
_MANIFEST, _FINISHED, _PARTIAL = "manifest.json", "finished", ".partial"


class StoredBatchError(ValueError):
    """A directory cannot be used: it holds another batch, none, or a damaged one."""


class StoredBatch(NamedTuple):
    """Results of a batch, as far as they are on disk.

    Args:
        results: arrays by name, leading axis of batch members, mapped from disk and not loaded.
        finished: which members are computed, shape (members,); the rows of others mean nothing.
    """

    results: dict[str, np.ndarray]
    finished: Bool[np.ndarray, " members"]


class Store:
    """A directory that takes the results of one batch."""

    def __init__(self, directory: str | Path, fingerprint: dict[str, Any], results: dict[str, Any]):
        self.directory, self._held = Path(directory), contextlib.ExitStack()
        members = fingerprint["members"]
        self.manifest = {
            "format": _FORMAT, "version": _VERSION, "members": members, "fingerprint": fingerprint,
            "results": {
                name: {
                    "file": f"{name}.npy", "shape": [members, *x.shape[1:]],
                    "dtype": np.dtype(x.dtype).str,
                }
                for name, x in results.items()
            },
        }  # fmt: skip

    @property
    def kept(self) -> str:
        """What is left if the batch ends early, in words."""
        return f"Finished chunks are kept in {self.directory}: the same call goes on from there."

    def open(self, overwrite: bool) -> list[tuple[int, int]]:
        """Make the directory ready, or see that it is one of this batch; keep others from it."""
        self.close()  # where it is opened again
        self.directory.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(held(self.directory / _MANIFEST, self._in_use))
        if (self.directory / _MANIFEST).exists():
            if not overwrite:
                stored = _read_manifest(self.directory)
                self._require_same(stored)
                # A file that was cut short would be filled up with zeros, and those be believed.
                _mapped_results(self.directory, stored)
                return _finished_chunks(self.directory, stored["members"])
            _delete(self.directory)
        self._create()
        return []

    def write(self, start: int, stop: int, arrays: list[np.ndarray]) -> None:
        """Put the results of a chunk to the disk, and then record that they are there."""
        for (name, entry), array in zip(self.manifest["results"].items(), arrays, strict=True):
            # Not through a mapping: a full disk is an error of `write`, but the end of the process
            # in a mapping.
            path = _path(self.directory, name)
            with naming(path), open(path, "r+b", opener=no_link) as file:
                offset = _data_offset(file)
                file.seek(offset + start * (array.nbytes // len(array)))
                file.write(np.ascontiguousarray(array, entry["dtype"]).tobytes())
                file.flush()
                os.fsync(file.fileno())
        record = self.directory / _FINISHED / f"{start:09d}-{stop:09d}"
        replace_file(record, b"")

    def close(self) -> None:
        """Let others have the directory."""
        self._held.close()

    def _in_use(self, holder: str) -> Exception:
        remedy = "wait until that ends, or end it, or give another folder"
        return error(self.directory, f"another call computes it ({holder})", remedy)

    def complete(self) -> None:
        """Give the files their final names: all chunks are finished."""
        for name in self.manifest["results"]:
            final = self.directory / f"{name}.npy"
            # It has its name already where a batch was complete before.
            with contextlib.suppress(FileNotFoundError):
                os.replace(final.with_name(final.name + _PARTIAL), final)
        sync_folder(self.directory)

    def results(self) -> list[np.ndarray]:
        """The arrays of a complete batch, leading axis `members`, mapped from disk."""
        return list(load_batch(self.directory).results.values())

    def _require_same(self, stored: dict[str, Any]) -> None:
        here = json.loads(json.dumps(self.manifest))
        differing = differences(stored["fingerprint"], here["fingerprint"], "in the directory")
        if not differing and stored["results"] != here["results"]:
            differing = [f"results: {stored['results']} in the directory, {here['results']} here"]
        if differing:
            more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            raise error(self.directory, f"it belongs to another batch; {differing[0]}{more}")

    def _create(self) -> None:
        names = sorted(path.name for path in self.directory.iterdir())
        # Without a manifest, partial files and records were left by a process killed too early.
        others = [x for x in names if x != _FINISHED and not x.endswith((_PARTIAL, ".lock"))]
        if others:
            reason = f"it holds no batch, but other files ({others[0]!r} is one of {len(others)})"
            raise error(self.directory, reason, "give a new or an empty folder")
        self._require_space()
        _delete_records(self.directory)
        (self.directory / _FINISHED).mkdir()
        for name, entry in self.manifest["results"].items():
            _allocate(self.directory / f"{name}.npy{_PARTIAL}", entry)
        replace_file(self.directory / _MANIFEST, json.dumps(self.manifest, indent=2).encode())

    def _require_space(self) -> None:
        needed = sum(_bytes(entry) for entry in self.manifest["results"].values())
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            reason = f"the results take {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free there"
            remedy = "return less of each member (fewer saved times), or give another disk"
            raise error(self.directory, reason, remedy)


def result_names(shapes: PyTree) -> dict[str, Any]:
    """Leaves of results under names that can be names of files; a single one is called "result"."""
    names: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = re.sub(r"\W+", ".", leaf_name(path)).strip(".") or "result"
        while name in names:
            name += "_"
        names[name] = leaf
    return names


def load_batch(directory: str | Path) -> StoredBatch:
    """Results that `map_batch` has put to disk, finished or not.

    Each file of a finished batch is an ordinary `.npy` file, which `numpy.load(file,
    mmap_mode="r")` reads by itself.

    Args:
        directory: the folder.

    Returns:
        `StoredBatch`.

    Raises:
        StoredBatchError: if it holds no batch, or a damaged one.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    results = _mapped_results(directory, manifest)
    finished = np.zeros(manifest["members"], bool)
    for start, stop in _finished_chunks(directory, manifest["members"]):
        finished[start:stop] = True
    return StoredBatch(results, finished)


def _read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory: a number of `members`, and `results` by names of files."""
    path = directory / _MANIFEST
    if not path.is_file():  # a pipe would be waited for, and a folder is none
        raise error(directory, "it holds no batch (no manifest.json)", "give another folder")
    try:
        manifest = json.loads(path.read_bytes())
        found = manifest["format"], manifest.get("version")
        if found == (_FORMAT, _VERSION):
            members, names = manifest["members"], dict(manifest["results"])
            if type(members) is not int or members < 1:
                raise ValueError(f"members is {members!r}, not a positive integer")
            for name in names:  # another one would lead out of the directory
                if re.fullmatch(r"\w[\w.]*", name) is None:
                    raise ValueError(f"{name!r} is no name of a result")
            dict(manifest["fingerprint"])
            return manifest
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as reason:
        remedy = "delete it, or give another directory"
        raise error(directory, f"its manifest.json is damaged ({reason})", remedy) from reason
    text = f"its format is {found[0]!r} {found[1]}, this program reads {_FORMAT!r} {_VERSION}"
    raise error(directory, text)


def _finished_chunks(directory: Path, members: int) -> list[tuple[int, int]]:
    """Chunks that are recorded as finished, each the first member and the member after the last."""
    folder = directory / _FINISHED
    if not folder.is_dir():
        raise error(directory, f"its folder {_FINISHED!r}, the record of its chunks, is missing")
    names = (re.fullmatch(r"([0-9]+)-([0-9]+)", x.name) for x in folder.iterdir())
    chunks = sorted((int(name[1]), int(name[2])) for name in names if name)
    for start, stop in chunks:
        if not start < stop <= members:
            reason = f"a chunk of members {start} to {stop - 1} is recorded, and it has {members}"
            raise error(directory, reason)
    return chunks


def error(directory: Path, reason: str, remedy: str | None = None) -> StoredBatchError:
    """The error of a directory that cannot be used, why not, and what to do about it."""
    if remedy is None:
        remedy = (
            "make the same call as then, give another directory, or start afresh with "
            "`overwrite=True`"
        )
    return StoredBatchError(f"cannot use the directory {directory}: {reason}; {remedy}.")


def _mapped_results(directory: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: _mapped(directory, name, x) for name, x in manifest["results"].items()}


def _mapped(directory: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    path = _path(directory, name)
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no file")
        with np.errstate(over="raise"):
            array = np.lib.format.open_memmap(path, mode="r")
        same = (list(array.shape), array.dtype.str) == (entry["shape"], entry["dtype"])
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError) as reason:
        raise error(directory, f"{path.name} is missing or damaged ({reason})") from reason
    if not same:
        reason = f"{path.name} holds {array.dtype}{list(array.shape)}, not what the manifest says"
        raise error(directory, reason)
    return array


def _path(directory: Path, name: str) -> Path:
    """The file of a result, whether or not it has its final name."""
    final = directory / f"{name}.npy"
    return final if final.exists() else final.with_name(final.name + _PARTIAL)


def _allocate(path: Path, entry: dict[str, Any]) -> None:
    """An array of the right size, none of it written yet."""
    header = {"descr": entry["dtype"], "fortran_order": False, "shape": tuple(entry["shape"])}
    path.unlink(missing_ok=True)  # left over, or a link that leads elsewhere
    with naming(path), open(path, "wb") as file:
        np.lib.format.write_array_header_2_0(file, header)
        file.truncate(file.tell() + _bytes(entry))
        os.fsync(file.fileno())


def _data_offset(file) -> int:
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_2_0(file)
    return file.tell()


def _bytes(entry: dict[str, Any]) -> int:
    return int(np.prod(entry["shape"], dtype=object)) * np.dtype(entry["dtype"]).itemsize


def _delete(directory: Path) -> None:
    """Remove the files of a batch, and nothing else."""
    manifest = _read_manifest(directory)
    # The manifest first: what is left over of a batch without one is never continued.
    (directory / _MANIFEST).unlink()
    for name in manifest["results"]:
        _path(directory, name).unlink(missing_ok=True)
    _delete_records(directory)


def _delete_records(directory: Path) -> None:
    folder = directory / _FINISHED
    if folder.is_symlink() or folder.is_file():
        folder.unlink()  # the link, and nothing that it leads to
    shutil.rmtree(folder, ignore_errors=True)
