"""Processes that are interrupted at any moment end with a line of words, and lose nothing."""

import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

import jaxdae
from jaxdae.cli import main
from jaxdae.interruptions import heard, LINE
from jaxdae.storage.files import held

ROOT = Path(jaxdae.__file__).parents[1]


# A shell that starts the tests in the background would have interruptions ignored.
HEARING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def started(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", HEARING, *words],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Work that takes longer than anybody waits.
WORK = r"""
import sys, time, weakref
from jaxdae import cli
from jaxdae.storage import files

class Thing: pass

def dropped(_):
    while True: sum(range(100))  # Python drops what is raised here

def collecting():
    thing = Thing()
    keep = weakref.ref(thing, dropped)
    print("begun", flush=True)
    del thing

def joining():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 60)
        print("begun", flush=True)

def writing():
    import os
    really = os.fsync
    def slow(handle):
        print("begun", flush=True)
        time.sleep(0.3)
        really(handle)
    os.fsync = slow
    files.replace_file(sys.argv[2], b"new")
    time.sleep(60)

def printing():
    import os
    print("what was found", end="")
    os.write(1, b"begun\n")
    time.sleep(60)

work = globals()[sys.argv[1]]
cli._run = lambda _: work() or 0
sys.exit(cli.main())
"""


@pytest.mark.parametrize("work", ["collecting", "joining", "writing", "printing"])
@pytest.mark.parametrize("times", [1, 3])
def test_whatever_a_command_does_an_interruption_ends_it(tmp_path, work, times):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    process = started("-c", WORK, work, str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    for _ in range(times):
        time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == f"{LINE}\n"
    if times == 1 and work == "writing":  # what is being written is finished
        assert path.read_bytes() == b"new"
        assert list(tmp_path.iterdir()) == [path]
    if times == 1 and work == "printing":
        assert output == "what was found"


def test_a_run_that_has_ended_is_not_interrupted_any_more(tmp_path):
    """While the interpreter ends there is nothing left to keep."""
    path = tmp_path / "late.py"
    path.write_text(
        "import atexit, sys, time\nfrom jaxdae import cli\ncli._run = lambda _: 0\n"
        "atexit.register(lambda: (print('ending', flush=True), time.sleep(0.3)))\n"
        "sys.exit(cli.main())\n"
    )
    process = started(str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=30)[1], process.returncode) == ("", 0)


@pytest.mark.slow
def test_errors_of_the_work_are_those_of_the_command():
    process = started("-m", "jaxdae", "simulate", "no-such-model")
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert errors.startswith("jaxdae: ")
    process = started("-m", "jaxdae", "fly")
    assert "invalid choice: 'fly'" in process.communicate(timeout=30)[1]
    assert process.returncode == 2


def test_two_runs_into_one_folder_are_refused_before_anything_is_moved(tmp_path, capsys):
    (tmp_path / "multipliers.checkpoint").write_bytes(b"of the other run")
    with held(tmp_path / "result.json", RuntimeError):
        assert main(["tune", "two-link", "--out", str(tmp_path)]) == 2
    assert f"another run writes to the folder {tmp_path} (process {os.getpid()} on" in (
        capsys.readouterr().err
    )
    assert [x.name for x in tmp_path.iterdir()] == ["multipliers.checkpoint"]


@pytest.mark.slow
def test_tuning_that_is_interrupted_ends_with_a_line_and_nothing_half_written(tmp_path, rng):
    """Two studies at a time: one may be compiling in a thread while the process ends."""
    words = ("tune", "two-link", "--steps", "100000", "--out", str(tmp_path))
    for delay in (1.5, 6.0):
        process = started("-m", "jaxdae", *words, "--resume")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay)
        for pause in rng.uniform(0.0, 0.5, size=rng.integers(1, 4)):
            process.send_signal(signal.SIGINT)
            time.sleep(pause)
        errors = process.communicate(timeout=60)[1]
        assert (process.returncode, errors) == (130, f"{LINE}\n")
    assert not list(tmp_path.glob(".*.partial"))


def test_an_interruption_that_python_drops_comes_again(monkeypatch):
    """Raised in a callback of the collection of garbage, from where it reaches nobody."""
    others = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Thing:
        pass

    def fail(_):
        raise ValueError("of somebody else")

    def interrupt(_):
        signal.raise_signal(signal.SIGINT)

    def call_back_and_wait(callback, seconds):
        thing = Thing()
        reference = weakref.ref(thing, callback)
        del thing
        time.sleep(seconds)
        assert reference() is None

    try:
        with heard():
            call_back_and_wait(fail, 0.0)
        assert [x.exc_type for x in others] == [ValueError]
        with pytest.raises(KeyboardInterrupt), heard():
            call_back_and_wait(interrupt, 30.0)
        assert len(others) == 1
        assert sys.unraisablehook == others.append
    finally:
        signal.signal(signal.SIGINT, before)
