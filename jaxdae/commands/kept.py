"""Programs of runs on disk, beside the machine code of their kernels and under the same rules.

A file is named by all that decides on the program: the package's code, the versions of what it is
built from, the options, JAX's settings, the processor. It holds the compiled program with its
inputs, and what was said of the run together with a digest of its numbers. A program that is read
back makes the run again; only where it gives the same numbers to the last bit do the words hold.
"""

import hashlib
import os
import pickle
import re
import sys
import uuid
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxdae.commands.record import Record, Words
from jaxdae.kernels.llvm import machine_code, storage

_BUILT_FROM = ("jax", "jaxlib", "numpy", "equinox", "diffrax", "optimistix", "lineax", "llvmlite")
# Of what an executable calls besides kernels these are known to be there in another process.
_LAPACK = re.compile(r"lapack_\w+_ffi")
_CALLED = re.compile(r"custom_call\s*@(?:\"([^\"]+)\"|(\S+?))\(")
# Options that change what is written of a run, and not the run.
_OF_NO_RUN = ("out", "progress", "keep", "page", "open")


class Program(NamedTuple):
    """A compiled run.

    Args:
        executable: of XLA.
        kernels: machine code that it calls, by name.
        lapack: whether it calls LAPACK.
        inputs: arrays that it takes.
        outputs: number of arrays that it gives.
        names: names of the first of them.
        digest: of their contents.
    """

    executable: bytes
    kernels: dict[str, machine_code.Kernel]
    lapack: bool
    inputs: list[np.ndarray]
    outputs: int
    names: list[str]
    digest: str


def compiled_apart(function, *inputs):
    """Compile a function past JAX's own cache: XLA writes no program that was read from a disk.

    Args:
        function: of arrays.
        inputs: its arguments.

    Returns:
        The program as XLA takes it, and what XLA made of it.
    """
    least = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[least]
    function.__name__ = f"run_{uuid.uuid4().hex}"  # so that the cache does not have it
    jax.config.update(least, 1e9)  # nor get it
    try:
        lowered = jax.jit(function).lower(*inputs)
        return lowered, lowered.compile()
    finally:
        jax.config.update(least, before)


def program_of(lowered, compiled, inputs, read, kernels) -> Program | None:
    """What is to be kept of a run; `None` where its program would not run in another process.

    Args:
        lowered: the program as XLA takes it.
        compiled: what XLA made of it.
        inputs: arrays that it takes.
        read: its first outputs by name, in the order of the names.
        kernels: machine code made in this process, by name.
    """
    called = {a or b for a, b in _CALLED.findall(lowered.as_text())}
    lapack = {name for name in called if _LAPACK.fullmatch(name)}
    if not called - lapack <= set(kernels):
        return None
    try:
        executable, _, outputs = serialize_executable.serialize(compiled)
    except jax.errors.JaxRuntimeError:  # XLA writes no program that sorts
        return None
    return Program(
        executable,
        {name: kernels[name] for name in sorted(called - lapack)},
        bool(lapack),
        [np.asarray(x) for x in inputs],
        outputs.num_leaves,
        sorted(read),
        _digest(read),
    )


def again(options) -> Record | None:
    """The run that was made before with the same options, made again; `None` where there is none.

    Args:
        options: of the command.

    Warns:
        RuntimeWarning: what was warned of then.
    """
    folder = storage.folder()
    content = None if folder is None else storage.read(folder, _key(options))
    if content is None:
        return None
    try:
        program, words = pickle.loads(content)
        read = _run(program)
    except Exception as error:  # whatever it is, the run can be made without what is kept
        warnings.warn(f"a kept program is of no use here: {error}", RuntimeWarning, stacklevel=2)
        return None
    if _digest(read) != program.digest:
        return None
    for text in words.announced:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return Record.of(read, words)


def keep(options, program: Program, words: Words) -> None:
    """Write a program for the next process.

    Args:
        options: of the command.
        program: from `program_of`.
        words: what was said of its run.
    """
    folder = storage.folder()
    if folder is not None:
        storage.write(folder, _key(options), pickle.dumps((program, words)))


def _run(program: Program) -> dict[str, np.ndarray]:
    if program.lapack:  # JAX finds its functions when it first lowers a program that calls one
        jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(1))
    for name, kernel in program.kernels.items():
        machine_code.load(name, kernel)
    chosen = jax.tree.structure((tuple(program.inputs), {}))
    taken = jax.tree.structure([0] * program.outputs)
    compiled = serialize_executable.deserialize_and_load(program.executable, chosen, taken)
    result = compiled(*program.inputs)[: len(program.names)]
    return dict(zip(program.names, jax.device_get(result), strict=True))


def _digest(read: dict[str, Any]) -> str:
    """Of arrays: names, shapes, kinds and every bit."""
    result = hashlib.sha256()
    for name in sorted(read):
        x = np.ascontiguousarray(read[name])
        result.update(f"{name} {x.shape} {x.dtype}\n".encode() + x.tobytes())
    return result.hexdigest()


def _key(options) -> str:
    """Hash of all that decides on a run and its program."""
    asked = {k: v for k, v in vars(options).items() if k not in _OF_NO_RUN}
    made = (
        _sources(),
        sys.version,
        [version(name) for name in _BUILT_FROM],
        sorted(asked.items()),
        sorted(jax.config.values.items()),
        os.environ.get("XLA_FLAGS"),
        machine_code.host(),
        machine_code.default_threads(),
    )
    return hashlib.sha256(repr(made).encode()).hexdigest()


def _sources() -> str:
    """Hash of the package's files."""
    root = Path(__file__).parents[1]
    result = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        result.update(str(path.relative_to(root)).encode() + b"\n" + path.read_bytes())
    return result.hexdigest()
