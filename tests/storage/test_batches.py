"""Results on disk: what is in the directory, what a failure leaves there, what is refused."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.parallel import BatchError, load_batch, map_batch, StoredBatchError
from jaxdae.storage.batches import Store

BATCH = (np.linspace(0.0, 1.0, 11), np.array([2.0, 3.0]))
SETTINGS = {"in_axes": (0, None), "block_size": 2, "chunk_size": 4}


def shifted(member):
    x, table = member
    return {"sum": x + table, "count": jnp.array(7, jnp.int32), "sign": {"up": x > 0.5}}


def run(directory, function=shifted, batch=BATCH, **settings):
    return map_batch(function, batch, directory=directory, **(SETTINGS | settings))


@pytest.fixture
def complete(tmp_path):
    run(tmp_path / "folder" / "batch")
    return tmp_path / "folder" / "batch"


def records(directory):
    return {p.name: p.stat().st_mtime_ns for p in (directory / "finished").iterdir()}


def test_numpy_alone_reads_the_results(complete):
    expected = {
        "sum": BATCH[0][:, None] + BATCH[1],
        "count": np.full(11, 7, np.int32),
        "sign.up": BATCH[0] > 0.5,
    }
    assert {p.stem for p in complete.glob("*.npy")} == set(expected)
    for name, value in expected.items():
        stored = np.load(complete / f"{name}.npy", mmap_mode="r")
        assert stored.dtype == value.dtype
        np.testing.assert_array_equal(stored, value)


def test_results_are_mapped_from_disk_in_the_structure_of_the_function(complete):
    results = run(complete)
    assert isinstance(results["sign"]["up"], np.memmap)
    loaded = load_batch(complete)
    assert loaded.finished.all()
    assert set(loaded.results) == {"sum", "count", "sign.up"}
    np.testing.assert_array_equal(loaded.results["sum"], results["sum"])
    with pytest.raises(ValueError, match="read-only"):
        results["sum"][0] = 1.0


def test_a_finished_batch_is_read_and_not_computed(complete, monkeypatch):
    before = records(complete)
    assert sorted(before) == ["000000000-000000004", "000000004-000000008", "000000008-000000011"]
    monkeypatch.setattr("jaxdae.parallel.batch.start_chunk", None)
    run(complete, chunk_size=2)
    assert records(complete) == before


def full_disk(monkeypatch, after):
    """Writing fails after some chunks."""
    write, count = Store.write, []

    def failing(self, start, stop, arrays):
        count.append(start)
        if len(count) > after:
            raise OSError(28, "No space left on device")
        write(self, start, stop, arrays)

    monkeypatch.setattr(Store, "write", failing)


def test_a_full_disk_is_an_error_that_keeps_what_is_finished(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full_disk(patch, after=1)
        message = (
            r"members \d to \d+: the results could not be written \(.*No space left on device\); "
            f"make room, and make the same call again. Finished chunks are kept in {tmp_path}"
        )
        with pytest.raises(BatchError, match=message):
            run(tmp_path)
    before = records(tmp_path)
    assert len(before) == 1
    assert load_batch(tmp_path).finished.sum() == 4
    resumed = run(tmp_path, chunk_size=2)
    assert len(records(tmp_path)) == 1 + 4  # of the seven members left, by two
    assert {name: records(tmp_path)[name] for name in before} == before
    jax.tree.map(np.testing.assert_array_equal, resumed, map_batch(shifted, BATCH, **SETTINGS))


def test_a_chunk_is_recorded_after_its_numbers_are_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        return fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    run(tmp_path, chunk_size=11)
    arrays = {path.stat().st_ino for path in tmp_path.glob("*.npy")}
    (record,) = ((tmp_path / "finished") / name for name in records(tmp_path))
    place = synced.index(record.stat().st_ino)
    # Each array when it is made and when it is written, and none afterwards.
    assert sorted(x for x in synced[:place] if x in arrays) == sorted(2 * list(arrays))
    assert not arrays & set(synced[place:])


def test_what_is_computed_when_another_chunk_fails_is_kept(tmp_path, monkeypatch):
    from jaxdae.parallel import batch

    start_chunk = batch.start_chunk

    def failing(members, layout, start, stop):
        if start == 8:
            raise MemoryError("too much")
        return start_chunk(members, layout, start, stop)

    monkeypatch.setattr(batch, "start_chunk", failing)
    message = r"members 8 to 10: out of memory \(too much\); give a smaller chunk_size"
    with pytest.raises(BatchError, match=message):
        run(tmp_path)
    assert sorted(records(tmp_path)) == ["000000000-000000004", "000000004-000000008"]


def test_a_process_killed_before_the_manifest_is_no_obstacle(tmp_path):
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "000000000-000000011").touch()
    (tmp_path / "sum.npy.partial").write_bytes(b"\x93NUM")
    results = run(tmp_path)
    np.testing.assert_array_equal(results["count"], 7)
    assert len(records(tmp_path)) == 3


def test_a_process_killed_between_the_last_chunk_and_the_names_is_no_obstacle(complete):
    os.replace(complete / "sum.npy", complete / "sum.npy.partial")
    before = records(complete)
    results = run(complete)
    np.testing.assert_array_equal(results["sum"], BATCH[0][:, None] + BATCH[1])
    assert records(complete) == before
    assert (complete / "sum.npy").exists()


OTHER = [
    ({"batch": (BATCH[0] + 1, BATCH[1])}, r"inputs: batch\[0\]: float64\[11\] [0-9a-f]{16} in the"),
    ({"batch": (BATCH[0], BATCH[1] + 1)}, r"shared inputs: batch\[1\]: float64\[2\] [0-9a-f]+ in"),
    ({"batch": (BATCH[0][:9], BATCH[1])}, r"members: 11 in the directory, 9 here \(and 1 more\)"),
    ({"block_size": 4}, "block_size: 2 in the directory, 4 here"),
    ({"function": lambda x: shifted((x[0] + 1e-300, x[1]))}, "program of the function"),
    ({"function": lambda x: {"total": shifted(x)["sum"]}}, "program of the function"),
]


@pytest.mark.parametrize(("changed", "message"), OTHER)
def test_a_directory_of_another_batch_is_refused(complete, changed, message):
    before = {p: p.read_bytes() for p in complete.rglob("*") if p.is_file()}
    with pytest.raises(StoredBatchError, match=f"it belongs to another batch; {message}") as caught:
        run(complete, **changed)
    assert f"cannot use the directory {complete}" in str(caught.value)
    assert "give another directory, or start afresh with `overwrite=True`" in str(caught.value)
    assert {p: p.read_bytes() for p in complete.rglob("*") if p.is_file()} == before


def test_too_small_a_disk_is_refused_before_the_work(tmp_path):
    def large(member):
        return jnp.full((2, 10**15), member[0])

    message = r"the results take 1.76e\+08 GB, .* GB are free there; return less of each member"
    with pytest.raises(StoredBatchError, match=message):
        run(tmp_path, function=large)
    assert not list(tmp_path.glob("*.npy*"))


MANIFESTS = [
    (lambda _: "{", r"its manifest.json is damaged \(.*\); delete it, or give another directory"),
    (lambda _: '{"format": "other"}', "its format is 'other' None, this program reads 'jaxdae bat"),
    (lambda x: x | {"version": 9}, "its format is 'jaxdae batch' 9, this"),
    (
        lambda x: x | {"results": {"../../mine": x["results"]["sum"]}},
        r"manifest\.json is damaged \('\.\./\.\./mine' is no name of a result",
    ),
    (lambda x: x | {"members": -11}, "damaged .members is -11, not a positive integer"),
    (lambda x: {k: y for k, y in x.items() if k != "fingerprint"}, "damaged .'fingerprint'"),
]


@pytest.mark.parametrize(("edit", "message"), MANIFESTS)
def test_a_damaged_or_crafted_manifest_is_refused_and_deletes_nothing(complete, edit, message):
    """Each of its names is one in this folder; nothing outside of it is read or deleted."""
    mine = complete.parents[1] / "mine.npy"
    mine.write_text("mine")
    edited = edit(json.loads((complete / "manifest.json").read_text()))
    text = edited if isinstance(edited, str) else json.dumps(edited)
    (complete / "manifest.json").write_text(text)
    before = sorted(complete.rglob("*"))
    for use in (run, load_batch, lambda path: run(path, overwrite=True)):
        with pytest.raises(StoredBatchError, match=message):
            use(complete)
    assert mine.read_text() == "mine"
    assert sorted(complete.rglob("*")) == before


def test_a_batch_of_other_software_results_or_without_a_fingerprint_is_another(complete):
    manifest = json.loads((complete / "manifest.json").read_text())
    known, results = manifest["fingerprint"], manifest["results"]
    for changes, words in (
        ({"fingerprint": {}}, ""),
        (
            {"fingerprint": known | {"software": {"jaxlib": "0.1"}}},
            r"; software: jax\w*: .* in the",
        ),
        ({"results": {"sum": results["sum"]}}, "; results: .* in the directory, "),
    ):
        (complete / "manifest.json").write_text(json.dumps(manifest | changes))
        with pytest.raises(StoredBatchError, match=f"it belongs to another batch{words}"):
            run(complete)


def test_other_files_are_neither_taken_for_a_batch_nor_deleted(complete, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    message = r"it holds no batch, but other files .'folder' is one of 2.; give a new or an"
    with pytest.raises(StoredBatchError, match=message):
        run(tmp_path)
    with pytest.raises(StoredBatchError, match=r"holds no batch \(no manifest.json\); give anothe"):
        load_batch(tmp_path)
    (complete / "notes.txt").write_text("mine")
    with pytest.raises(StoredBatchError, match=r"it holds no batch, but other files .'notes\.txt'"):
        run(complete, function=lambda member: member[0], overwrite=True)
    (complete / "notes.txt").unlink()
    run(complete, function=lambda member: member[0], overwrite=True)
    assert sorted(p.name for p in complete.iterdir()) == ["finished", "manifest.json", "result.npy"]


def test_a_missing_or_foreign_array_is_refused(complete):
    for content, words in ((None, r"partial is missing or damaged"), (b"x", "missing or damaged")):
        (complete / "count.npy").unlink()
        if content is not None:
            (complete / "count.npy").write_bytes(content)
        with pytest.raises(StoredBatchError, match=rf"count\.npy.*{words}"):
            load_batch(complete)
        np.save(complete / "count.npy", np.zeros(11))
    with pytest.raises(StoredBatchError, match=r"count.npy holds float64\[11\], not what the m"):
        load_batch(complete)


def test_links_in_a_directory_lead_nowhere(tmp_path):
    """A folder from anywhere, whose partial files are links: what they point to stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("sum.npy.partial", ".manifest.json.partial"):
        (tmp_path / "batch").mkdir(exist_ok=True)
        (tmp_path / "batch" / name).symlink_to(victim)
    run(tmp_path / "batch")
    assert victim.read_text() == "mine"
    store = tmp_path / "batch"
    shutil.rmtree(store / "finished")
    (store / "finished").mkdir()
    (store / "sum.npy").unlink()
    (store / "sum.npy").symlink_to(victim)
    with pytest.raises((OSError, BatchError, StoredBatchError)):
        run(store)
    assert victim.read_text() == "mine"


def test_a_full_disk_is_named_with_the_file(complete, monkeypatch):
    """Of a write that does not say which file it was."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    shutil.rmtree(complete / "finished")
    (complete / "finished").mkdir()
    with pytest.raises((OSError, BatchError), match=r"No space left on device.*count\.npy"):
        run(complete)


@pytest.mark.parametrize("name", ["000000008-000000012", "000000004-000000004", "9-3"])
def test_records_of_chunks_that_the_batch_does_not_have_are_refused(complete, name):
    (complete / "finished" / name).touch()
    for use in (run, load_batch):
        with pytest.raises(StoredBatchError, match=r"a chunk of members \d+ to \d+ is recorded"):
            use(complete)


def test_missing_records_of_chunks_are_refused(complete):
    shutil.rmtree(complete / "finished")
    for use in (run, load_batch):
        with pytest.raises(StoredBatchError, match="the record of its chunks, is missing; make"):
            use(complete)
    run(complete, overwrite=True)


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


def piped(directory):
    (directory / PARTIAL).unlink()
    os.mkfifo(directory / PARTIAL)


def too_large(directory):
    content = (directory / PARTIAL).read_bytes()
    (directory / PARTIAL).write_bytes(content.replace(b"(4, 2), ", b"(4611686018427387904, 8), "))


@pytest.mark.parametrize("damage", [cut, piped, too_large])
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
