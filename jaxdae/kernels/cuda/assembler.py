"""NVIDIA's assembler, which needs no GPU: what a kernel takes of one in registers and memory.

`ptxas` comes with the package nvidia-cuda-nvcc-cu12, which JAX for CUDA installs, too; or it is
found on the PATH.
"""

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

# The package that knows the oldest architectures first.
_PACKAGES = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")
# Seconds after which the assembler is taken to hang; large kernels take some.
_PATIENCE = 600.0
# Modules whose code is kept in a process.
_MOST = 64
_TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
_FUNCTION = re.compile(
    r"Function properties for (\S+)\s+(\d+) bytes stack frame, (\d+) bytes spill stores"
)
_ENTRY = re.compile(r"Compiling entry function '([^']+)'.*?Used (\d+) registers([^\n]*)", re.DOTALL)


class AssemblerMissingError(RuntimeError):
    """There is no `ptxas` on this machine."""


class AssemblerError(ValueError):
    """The assembler refuses PTX, or an architecture."""


class Resources(NamedTuple):
    """What a kernel takes of a GPU.

    Args:
        registers: of 32 bits, of a thread.
        spill_bytes: of registers that a thread stores for want of others, in the code.
        stack_bytes: local memory of a thread, that of functions it calls included.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int


@functools.cache
def assembler() -> Path:
    """Where `ptxas` is: in an installed package, else on the PATH.

    Raises:
        AssemblerMissingError: where it is in neither.
    """
    for package in _PACKAGES:
        path = _in_package(package)
        if path is not None:
            return path
    on_path = shutil.which("ptxas")
    if on_path is None:
        raise AssemblerMissingError(
            "NVIDIA's assembler ptxas is not installed, so nothing can be said of registers: "
            "pip install 'jaxdae[gpu-test]'."
        )
    return Path(on_path)


def _in_package(name: str) -> Path | None:
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(x.locate())) for x in files if x.name in ("ptxas", "ptxas.exe"))
    return next((x for x in paths if os.access(x, os.X_OK)), None)


@functools.cache
def architectures() -> tuple[str, ...]:
    """Architectures that the assembler knows, the oldest first: sm_70, sm_80, ….

    Variants of one (sm_90a) are left out: their code runs on no other.

    Raises:
        AssemblerMissingError: where there is none.
        AssemblerError: where it does not run.
    """
    numbers = {int(x) for x in re.findall(r"'sm_(\d+)'", _run("--help"))}
    return tuple(f"sm_{x}" for x in sorted(numbers))


@functools.lru_cache(_MOST)
def assemble(ptx: str, architecture: str = "sm_90") -> Resources:
    """What a module with one kernel takes of a GPU, `sm_XX`.

    Raises:
        AssemblerMissingError: where there is no assembler.
        AssemblerError: for an architecture that it does not know, and for PTX that it refuses, with
            its words.
    """
    known = architectures()
    if architecture not in known:
        raise AssemblerError(f"ptxas does not know {architecture!r}; it knows {', '.join(known)}.")
    target = _TARGET.search(ptx)
    if target is not None and int(architecture.removeprefix("sm_")) < int(target[1]):
        raise AssemblerError(
            f"this kernel is for GPUs from sm_{target[1]} on, and {architecture} is older."
        )
    with tempfile.TemporaryDirectory(prefix="jaxdae-") as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        words = ("--verbose", "-arch", architecture, str(source), "-o", str(Path(folder, "cubin")))
        return parsed(_run(*words).replace(str(source), "kernel.ptx"))


def parsed(log: str) -> Resources:
    """What the one kernel of a module takes, from what the assembler says with `--verbose`.

    Raises:
        AssemblerError: where these are no such words.
    """
    entries = _ENTRY.findall(log)
    if len(entries) != 1:
        raise AssemblerError(
            f"ptxas reported on {len(entries)} kernels, where there is to be one: {log.strip()}"
        )
    ((name, registers, rest),) = entries
    each = {x[0]: (int(x[1]), int(x[2])) for x in _FUNCTION.findall(log)}
    stacks = map(int, re.findall(r"(\d+) bytes cumulative stack size", rest))
    frame = each[name][0] if name in each else 0
    return Resources(int(registers), sum(x[1] for x in each.values()), max(frame, *stacks, 0))


def _run(*words: str) -> str:
    """What the assembler says."""
    path = assembler()
    try:
        done = subprocess.run(
            [path, *words], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except OSError as error:
        raise AssemblerError(
            f"the assembler {path} does not run ({error.strerror}); install it anew: pip install "
            "--force-reinstall nvidia-cuda-nvcc-cu12."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise AssemblerError(f"ptxas did not end within {_PATIENCE:.0f} s.") from error
    text = f"{done.stdout}{done.stderr}"
    if done.returncode != 0:
        raise AssemblerError(f"ptxas refuses this ({' '.join(words[:3])}): {text.strip()}")
    return text
