"""Devices and processes: the same bits whatever the split, and what a kill leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdae
from helpers import batch_process
from helpers.batch_process import BLOCK, digest, iterate, LANES, slowly, splits, starts
from jaxdae.parallel import load_batch, map_batch

pytestmark = pytest.mark.optimized


def start(pause=0.0, **task):
    environment = os.environ | {"PYTHONPATH": str(Path(jaxdae.__file__).parents[1])}
    environment |= {"PAUSE": str(pause), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    words = [sys.executable, batch_process.__file__, json.dumps(task)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment)


def start_pair(pauses=(0.0, 0.0), **task):
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    together = {"address": address, "processes": 2} | task
    return [start(pause, process=i, **together) for i, pause in enumerate(pauses)]


def found(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1])


@pytest.mark.slow
def test_every_split_over_chunks_devices_and_processes_gives_the_same_bits(tmp_path):
    task: dict[str, Any] = {"kind": "splits", "simulate": True}
    one = splits(task | {"directory": tmp_path / "1"})
    four = found(start(devices=4, directory=f"{tmp_path}/4", **task))
    task["simulate"] = False
    pair = [found(p) for p in start_pair(devices=2, directory=f"{tmp_path}/pair", **task)]
    assert len({value for key, value in one.items() if key.startswith("chunks")}) == 1
    assert one == four
    assert pair[0] == pair[1] == {name: x for name, x in one.items() if name != "simulated"}
    assert "simulated" in one
    files = [sorted((tmp_path / name).rglob("*.npy")) for name in ("1", "4", "pair")]
    assert [x.name for x in files[0]] == ["none.npy", "norm.npy", "ok.npy", "x.npy"]
    for same in zip(*files, strict=True):
        assert len({(x.name, x.read_bytes()) for x in same}) == 1


def records(directory):
    """Finished chunks, and when they were finished."""
    folder = directory / "finished"
    paths = folder.iterdir() if folder.exists() else ()
    return {p.name: p.stat().st_mtime_ns for p in paths if not p.name.startswith(".")}


def wait_for_records(directory, count, *running):
    while len(records(directory)) < count:
        for process in running:
            assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def resume(directory, monkeypatch, **settings):
    """Finish a batch in this process; which members it computed for that, and the results."""
    computed = []

    def pause(seconds):
        computed.append(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    results = map_batch(slowly, starts(), directory=directory, **settings)
    jax.effects_barrier()
    return len(computed), results


def assert_complete(directory, results):
    expected = map_batch(iterate, starts(), block_size=BLOCK)
    for name, value in expected.items():
        stored = np.load(directory / f"{name}.npy", mmap_mode="r")
        assert stored.tobytes() == value.tobytes() == results[name].tobytes()
    assert not list(directory.rglob("*.partial"))


@pytest.mark.slow
def test_a_killed_process_leaves_its_chunks_and_only_the_others_are_computed(tmp_path, monkeypatch):
    process = start(pause=0.02, kind="stored", devices=1, directory=str(tmp_path))
    wait_for_records(tmp_path, 2, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    before = records(tmp_path)
    partly = load_batch(tmp_path)
    assert partly.finished.sum() == len(before) * BLOCK < LANES
    assert not (tmp_path / "x.npy").exists()

    # In larger chunks than before: finished ones may be of any size.
    count, results = resume(tmp_path, monkeypatch, block_size=BLOCK, chunk_size=2 * BLOCK)
    blocks = -(-LANES // BLOCK)
    assert count == (blocks - len(before)) * BLOCK
    after = records(tmp_path)
    assert {name: after[name] for name in before} == before
    assert_complete(tmp_path, results)
    assert load_batch(tmp_path).finished.all()

    # And when all is done, nothing is computed.
    count, results = resume(tmp_path, monkeypatch, block_size=BLOCK)
    assert count == 0
    assert records(tmp_path) == after
    assert_complete(tmp_path, results)


@pytest.mark.slow
def test_a_process_whose_companion_is_killed_finishes_its_share_and_says_so(tmp_path, monkeypatch):
    task = {"kind": "stored", "devices": 1, "directory": str(tmp_path), "patience": 3}
    first, second = start_pair((0.0, 0.2), **task)
    wait_for_records(tmp_path, 4, second)  # of its own four chunks of seven
    second.send_signal(signal.SIGKILL)
    second.communicate()
    _, err = first.communicate(timeout=120)
    assert first.returncode != 0
    assert "BatchError: another of the 2 processes ended before its part of the batch" in err
    assert "finished chunks are kept and not computed again" in err

    own = [f"{BLOCK * i:09d}-{min(BLOCK * (i + 1), LANES):09d}" for i in (0, 2, 4, 6)]
    before = records(tmp_path)
    assert set(own) <= set(before)
    count, results = resume(tmp_path, monkeypatch, block_size=BLOCK)
    assert count == (7 - len(before)) * BLOCK
    assert {name: records(tmp_path)[name] for name in before} == before
    assert_complete(tmp_path, results)


@pytest.mark.slow
def test_what_goes_wrong_in_one_process_ends_the_batch_in_all(tmp_path):
    pair = start_pair(kind="errors", devices=1, directory=str(tmp_path))
    first, second = (found(process) for process in pair)
    other = "process 1 has another batch than process 0"
    remedy = "; make the same call in all of them."
    assert first["other batches"] == f"{other}{remedy}"
    assert second["other batches"].startswith(f"{other} (inputs: batch: float64[4, 1] ")
    assert second["other batches"].endswith(remedy)

    kept = f"Finished chunks are kept in {tmp_path}: the same call goes on from there."
    assert first["full disk"] == (
        f"the share of process 1 of 2 failed; see what it printed. {kept}"
    )
    members = f"members {3 * BLOCK} to {4 * BLOCK - 1}"
    assert second["full disk"].startswith(
        f"{members}: the results could not be written (disk full)"
    )
    assert second["full disk"].endswith(kept)
    assert second["warning, full disk"] == (
        f"{second['full disk']} This process ends when the others have done their share."
    )
    assert first["resumed"] == second["resumed"] == digest(load_batch(tmp_path).results)
    expected = map_batch(iterate, starts(), block_size=BLOCK)
    assert first["resumed"] == digest(expected)
    refused = f"cannot use the directory {tmp_path}: it belongs to another batch; block_size: 8 in"
    assert first["other directory"] == second["other directory"]
    assert first["other directory"].startswith(refused)
