"""Directories of results that are damaged on purpose: refused in words, nothing else touched."""

import json
import os

import jax
import numpy as np
import pytest

from jaxdae.parallel import load_batch, StoredBatchError
from jaxdae.parallel.store import Store

PARTIAL = "q.npy.partial"


@pytest.fixture
def half(tmp_path):
    """A batch of four members, of which the first two are recorded as finished."""
    store = Store(tmp_path / "batch", {"members": 4}, {"q": jax.ShapeDtypeStruct((4, 2), float)})
    store.open(overwrite=False)
    store.write(0, 2, [np.ones((2, 2))])
    return store


def cut(directory):
    os.truncate(directory / PARTIAL, (directory / PARTIAL).stat().st_size - 64)


def emptied(directory):
    (directory / PARTIAL).write_bytes(b"")


def archived(directory):
    np.savez(directory / "q.npz", q=np.ones((4, 2)))
    os.replace(directory / "q.npz", directory / PARTIAL)


def piped(directory):
    (directory / PARTIAL).unlink()
    os.mkfifo(directory / PARTIAL)


def too_large(directory):
    content = (directory / PARTIAL).read_bytes()
    (directory / PARTIAL).write_bytes(content.replace(b"(4, 2), ", b"(4611686018427387904, 8), "))


@pytest.mark.parametrize("damage", [cut, emptied, archived, piped, too_large])
def test_a_damaged_array_is_refused_before_it_is_continued(half, damage):
    """A file that was cut short would be filled up with zeros, in members recorded as finished."""
    damage(half.directory)
    for use in (load_batch, lambda _: half.open(overwrite=False)):
        with pytest.raises(StoredBatchError, match=r"q\.npy\.partial is missing or damaged \("):
            use(half.directory)
    assert half.open(overwrite=True) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_manifest_that_is_no_file_is_refused_at_once(half, make):
    manifest = half.directory / "manifest.json"
    manifest.unlink()
    make(manifest)
    for use in (load_batch, lambda _: half.open(overwrite=True)):
        with pytest.raises(StoredBatchError, match=r"it holds no batch \(no manifest\.json\)"):
            use(half.directory)


def test_more_members_than_fit_into_memory_are_refused(half):
    manifest = half.directory / "manifest.json"
    crafted = json.loads(manifest.read_text()) | {"members": 10**15, "results": {}}
    manifest.write_text(json.dumps(crafted))
    with pytest.raises(StoredBatchError, match="1000000000000000 members are too many"):
        load_batch(half.directory)


def test_records_that_are_a_link_are_deleted_as_one(half, tmp_path):
    """What the link leads to stays."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000000000-000000004").touch()
    folder = half.directory / "finished"
    os.rename(folder, tmp_path / "moved")
    folder.symlink_to(tmp_path / "mine")
    assert half.open(overwrite=True) == []
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert [x.name for x in (tmp_path / "mine").iterdir()] == ["000000000-000000004"]


def test_a_directory_has_one_batch_at_a_time(half, tmp_path):
    shapes = {"q": jax.ShapeDtypeStruct((4, 2), float)}
    other = Store(tmp_path / "batch", {"members": 4}, shapes)
    for overwrite in (False, True):
        with pytest.raises(StoredBatchError, match=r"another call computes it \(process \d+ on"):
            other.open(overwrite)
    half.close()
    assert other.open(overwrite=False) == [(0, 2)]
