"""Files that are complete at every moment."""

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def replace_file(path: str | Path, data: bytes) -> None:
    """Write a file so that at every moment it is the old one or the new one, complete.

    Args:
        path: the file; its folder must exist.
        data: all of the new content.

    Raises:
        OSError: if it cannot be written; the old file is left as it is.
    """
    # Same folder, hence same file system: os.replace is atomic only within one. The name is
    # fixed, so that files of killed processes do not pile up; one that is there may be a link.
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with naming(path):
        partial.unlink(missing_ok=True)
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)


def output_file(path: str | Path, example: str) -> Path:
    """Where a result goes: `~` is the home folder, and folders that are missing are made.

    Args:
        path: the file.
        example: a usual name for it, which an error proposes.

    Returns:
        The path, its folder made.

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
    """Write a result so that an interrupted write leaves the old file.

    Args:
        path: file; its folder is made.
        content: numbers, text, NumPy and JAX arrays, nested.
    """
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
    """Name the file in errors of the system: a full disk names none, a closed folder a partial one.

    Args:
        path: the file that is written.

    Raises:
        OSError: of the same kind, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename != str(path) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, after files in it were made or renamed.

    Args:
        folder: the folder.
    """
    # Windows cannot open folders and needs no such call.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may read and write, or make one so.

    Args:
        path: the folder; made with the folders above it where it does not exist.

    Returns:
        The same path.

    Raises:
        OSError: if it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(PermissionError):  # of somebody else
        path.chmod(0o700)
    return path


def others_may_write(status: os.stat_result) -> str | None:
    """Who else may have written a file or a folder, in words; `None` where nobody else may.

    The administrator may write everything, and is trusted.

    Args:
        status: from `os.stat`.
    """
    # Windows has lists of rights instead, which are not read here.
    if os.name != "posix":
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it is owned by user {status.st_uid}, not by you"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it (its mode is {stat.S_IMODE(status.st_mode):o})"
    return None
