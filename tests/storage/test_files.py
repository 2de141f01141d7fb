"""Files that several threads and processes write, and processes that end while they do."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxdae.storage import files
from jaxdae.storage.files import held, replace_file

ROOT = Path(files.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


class InUseError(Exception):
    """The refusal of these tests."""


@pytest.fixture(autouse=True)
def _nothing_is_cleaned_yet():
    files._remove_leftovers.cache_clear()


WRITER = """
import sys
from jaxdae.storage.files import replace_file
content = sys.argv[2].encode() * 20_000
for _ in range(100):
    replace_file(sys.argv[1], content)
"""


def test_processes_that_write_one_file_leave_one_whole_content_and_nothing_else(tmp_path):
    path = tmp_path / "run.ckpt"
    commands = [[sys.executable, "-c", WRITER, str(path), x] for x in "ab"]
    writers = [subprocess.Popen(x, env=ENVIRONMENT) for x in commands]
    contents = set()
    while any(x.poll() is None for x in writers):
        with contextlib.suppress(FileNotFoundError):
            contents.add(path.read_bytes())
    assert [x.returncode for x in writers] == [0, 0]
    assert contents <= {b"a" * 20_000, b"b" * 20_000}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    path = tmp_path / "run.ckpt"
    replace_file(path, b"old")

    def fail(_):
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(failure)):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_removed_and_what_is_being_written_stays(tmp_path):
    old, new = (tmp_path / f".jaxdae-{x}.partial" for x in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    long_ago = time.time() - 2 * files._LONGEST_WRITE
    os.utime(old, (long_ago, long_ago))
    replace_file(tmp_path / "run.ckpt", b"whole")
    assert not old.exists()
    assert new.exists()


def test_a_file_has_one_run_at_a_time(tmp_path):
    path = tmp_path / "run.ckpt"
    for _ in range(2):  # it is free again afterwards
        with held(path, InUseError):
            who = rf"process {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d$"
            with pytest.raises(InUseError, match=who), held(path, InUseError):
                pass
            with held(tmp_path / "another.ckpt", InUseError):
                pass
        assert not list(tmp_path.iterdir())


def test_many_runs_that_wait_for_a_file_have_it_one_by_one(tmp_path):
    path, inside, most = tmp_path / "run.ckpt", [], []

    def take_turns():
        done = 0
        while done < 20:
            with contextlib.suppress(InUseError), held(path, InUseError):
                inside.append(None)
                most.append(len(inside))
                time.sleep(1e-5)
                inside.pop()
                done += 1

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    assert len(most) == 80
    assert max(most) == 1


HOLDER = """
import sys, time
from jaxdae.storage.files import held
with held(__import__("pathlib").Path(sys.argv[1]), RuntimeError):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_process_that_was_killed_holds_no_file(tmp_path):
    path = tmp_path / "run.ckpt"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(InUseError, match=f"process {process.pid} on"), held(path, InUseError):
            pass
        process.send_signal(signal.SIGKILL)
    with held(path, InUseError):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    (tmp_path / ".run.ckpt.lock").symlink_to(mine)
    with held(tmp_path / "run.ckpt", InUseError):
        assert mine.read_bytes() == b"mine"


def test_a_folder_that_may_not_be_written_is_read_without_a_lock(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(files, "no_link", refuse)
    with held(tmp_path / "run.ckpt", InUseError):
        assert not list(tmp_path.iterdir())
