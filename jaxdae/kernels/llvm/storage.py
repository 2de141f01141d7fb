"""Machine code on disk, beside the compiled programs of JAX and switched on with them.

A file is named by the hash of what its code was made from, so that it never becomes outdated: what
is made from something else has another name. A checksum does not say who wrote it: code is run, so
that nothing is loaded that others may have written. Layout: a line that says what the file is, a
line with the SHA-256 of the name and the code, the code.
"""

import contextlib
import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax

from jaxdae.storage.files import others_may_write

_FIRST = b"jaxdae machine code, format 1\n"


def folder() -> Path | None:
    """Where machine code is kept, which need not exist yet: in JAX's folder of compiled programs.

    `None` where `jax_compilation_cache_dir` is not set, is not of this machine (`gs://…`), or
    `jax_enable_compilation_cache` is off; and, with a warning, where others may write it.
    """
    base = jax.config.values["jax_compilation_cache_dir"]
    if not base or "://" in str(base) or not jax.config.values["jax_enable_compilation_cache"]:
        return None
    result = Path(base) / "jaxdae-machine-code"
    try:
        reason = others_may_write(result.stat())
    except OSError:  # not there yet, or reading will say what is wrong
        return result
    if reason is None:
        return result
    _warn_of_others(result, reason)
    return None


@cache
def _warn_of_others(path: Path, reason: str) -> None:
    warnings.warn(
        f"machine code in {path} is not used, and none is kept there: {reason}. Take that right "
        f"away (chmod go-w {path}), or set jax_compilation_cache_dir to a folder of your own.",
        RuntimeWarning,
        stacklevel=3,
    )


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Code from the disk by the hash of all that decides on it, or made and then kept there."""
    place = folder()
    result = None if place is None else read(place, key)
    if result is not None:
        return result
    began = time.perf_counter()
    code = make()
    # As JAX would keep a program that took so long to compile.
    least = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    if place is not None and time.perf_counter() - began >= least:
        write(place, key, code)
    return code


def read(folder: Path, key: str) -> bytes | None:
    """Machine code by its key, or `None` where there is none.

    It warns of a file that cannot be read, or that others may write, or whose content is not what
    was written; that one is removed.
    """
    path = folder / key
    try:
        with path.open("rb") as file:
            # Of the file that is open: another may have its name a moment later.
            reason = others_may_write(os.fstat(file.fileno()))
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"{path} cannot be read ({error.strerror}), the kernel is compiled again", "read")
        return None
    if reason is not None:
        _warn_of_others(path, reason)
        return None
    head = len(_FIRST) + 64 + 1
    code = content[head:]
    if content[:head] == _head(key, code):
        return code
    with contextlib.suppress(OSError):
        path.unlink()
    warnings.warn(
        f"{path} is not what was written there ({len(content)} bytes, the checksum does not "
        "match); the kernel is compiled again. If this repeats, check the disk, or set "
        "jax_compilation_cache_dir to another folder.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def write(folder: Path, key: str, code: bytes) -> None:
    """Keep machine code; at every moment the file is not there, or is complete.

    The folder is made where it does not exist, for its owner alone.
    """
    partial = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # A name for each writer: processes that compile the same at once do not share a file.
        handle, partial = tempfile.mkstemp(dir=folder, prefix=".partial-")
        with open(handle, "wb") as file:
            file.write(_head(key, code) + code)
        os.replace(partial, folder / key)
    except OSError as error:
        _warn(f"machine code is not kept: {folder} cannot be written ({error.strerror})", "write")
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)


def _head(key: str, code: bytes) -> bytes:
    return _FIRST + hashlib.sha256(key.encode() + code).hexdigest().encode() + b"\n"


def _warn(what: str, right: str) -> None:
    warnings.warn(
        f"{what}. Give yourself the right to {right} it, or set jax_compilation_cache_dir to "
        "another folder.",
        RuntimeWarning,
        stacklevel=3,
    )
