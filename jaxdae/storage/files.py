"""Files that are complete at every moment, and that one run writes at a time."""

import contextlib
import errno
import json
import math
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# A process that wants to end waits for it: nothing is left half written.
_WRITING = threading.Lock()
# Of unfinished files. No write takes as long as that [s]: what is older is of a killed process.
_PARTIAL, _LONGEST_WRITE = (".jaxdae-", ".partial"), 3600.0


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file so that at every moment it is the old one or the new one, complete.

    Several threads and processes may write the same one: the last to finish has written it.

    Raises:
        OSError: if it cannot be written; the old file is left as it is, and nothing beside it.
    """
    path = Path(path)
    with naming(path), _WRITING:
        _remove_leftovers(path.parent)
        # Same folder, hence same file system: os.replace is atomic only within one. Each writer
        # has a name of its own, which no link can lead elsewhere.
        partial = path.with_name(os.urandom(8).hex().join(_PARTIAL))
        try:
            with open(partial, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@cache
def _remove_leftovers(folder: Path) -> None:
    """Delete, once in a process, what killed processes have left unfinished."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*".join(_PARTIAL)):
            if time.time() - path.lstat().st_mtime > _LONGEST_WRITE:
                path.unlink(missing_ok=True)


def stop_writing(seconds: float) -> None:
    """Wait for the file that is being written, and let no other begin: the process ends."""
    _WRITING.acquire(timeout=seconds)


@contextlib.contextmanager
def held(path: Path, refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Keep other runs from a file while this one writes it.

    The lock is the system's, which takes it back from a process however that ends. Where none can
    be made, as in a folder that may not be written, runs are not kept from each other.

    Args:
        path: the file, which need not exist; its folder must.
        refusal: the error for another run that has it, from words for that run.

    Raises:
        Exception: that one.
    """
    lock = path.with_name(f".{path.name}.lock")
    file = _locked(lock, refusal)
    try:
        yield
    finally:
        if file is not None:
            # Before it is free: afterwards it may be another's.
            with contextlib.suppress(OSError):
                lock.unlink()
            file.close()


def _locked(lock: Path, refusal: Callable[[str], Exception]) -> FileIO | None:
    while True:
        try:
            # Open as long as it is held.
            file = open(lock, "a+b", buffering=0, opener=no_link)  # noqa: SIM115
        except OSError:
            return None
        try:
            _lock(file)
            # Whoever had it before may have removed the name since it was opened.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                import platform  # which the command needs for nothing else

                who = f"process {os.getpid()} on {platform.node()} since"
                with contextlib.suppress(OSError):  # of a full disk
                    file.truncate(0)
                    file.write(f"{who} {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip()
            file.close()
            raise refusal(holder or "another process") from None
        except OSError:  # a file system without locks
            file.close()
            return None
        file.close()


def _lock(file: FileIO) -> None:
    """Lock a file, or raise `BlockingIOError`."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    file.seek(1 << 30)  # what is locked there cannot be read
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(*error.args) from error


def no_link(path: str, flags: int) -> int:
    """An opener for folders that may come from anywhere, where a link would lead elsewhere."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def output_file(path: str | Path, example: str) -> Path:
    """Where a result goes: `~` is the home folder, and folders that are missing are made.

    Args:
        path: the file.
        example: a usual name for it, which an error proposes.

    Raises:
        IsADirectoryError: where the path is a folder, or ends like one.
        OSError: where its folder cannot be made, or not be written.
    """
    text = os.fspath(path)
    path = Path(path).expanduser()
    if text.endswith(("/", os.sep)) or path.is_dir():
        raise IsADirectoryError(
            errno.EISDIR, f"this is a folder; name a file in it, such as {example!r}", str(path)
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            errno.ENOTDIR, f"its folder {str(path.parent)!r} leads through a file", str(path)
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(
            errno.EACCES, f"its folder {str(path.parent)!r} may not be written", str(path)
        )
    return path


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a result so that an interrupted write leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"
    replace_file(path, text.encode())


def _plain(x: Any) -> Any:
    """JSON has no arrays, no NaN and no infinity: lists, and `null` for what is not finite."""
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if x is None or isinstance(x, str | bool | int):
        return x
    if hasattr(x, "tolist"):
        return _plain(x.tolist())
    return float(x) if math.isfinite(x) else None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the system: a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.filename != str(path) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, after files in it were made or renamed."""
    # Windows cannot open folders and needs no such call.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may read and write, or make one so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(PermissionError):  # of somebody else
        path.chmod(0o700)
    return path


def others_may_write(status: os.stat_result) -> str | None:
    """Who else may have written a file or a folder, in words; `None` where nobody else may.

    The administrator may write everything, and is trusted.
    """
    # Windows has lists of rights instead, which are not read here.
    if os.name != "posix":
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it is owned by user {status.st_uid}, not by you"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it (its mode is {stat.S_IMODE(status.st_mode):o})"
    return None
