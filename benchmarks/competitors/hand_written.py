"""The two-link manipulator in C by hand (`two_link.c`), on all cores."""

import ctypes
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from .base import compiler

LANES = 64


def rk4(dtype, steps: int, h: float) -> Callable[[np.ndarray], np.ndarray]:
    """A function that takes starts (4, batch) to their states after fixed steps.

    Args:
        dtype: float64 or float32.
        steps: number of classical Runge-Kutta steps.
        h: step [s].
    """
    advance = _library("double" if np.dtype(dtype) == np.float64 else "float").advance
    advance.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 4, ctypes.c_double]
    pool = ThreadPoolExecutor(os.cpu_count())

    def run(starts: np.ndarray) -> np.ndarray:
        state = np.array(starts, dtype)
        count = state.shape[1]
        if count % LANES:
            raise ValueError(f"the batch must be a multiple of {LANES}; got {count}.")
        spans = itertools.pairwise(_edges(count))
        work = lambda span: advance(state.ctypes.data, count, *span, steps, h)  # noqa: E731
        list(pool.map(work, spans))
        return state

    return run


def _edges(count: int) -> list[int]:
    """Where the parts of a batch begin and end, one for each core."""
    shares = np.linspace(0, count // LANES, (os.cpu_count() or 1) + 1)
    return [LANES * int(x) for x in shares]


def _library(real: str) -> ctypes.CDLL:
    """`two_link.c` compiled for this machine."""
    folder = Path(tempfile.mkdtemp(prefix="two-link-"))
    made, library = str(folder / "two_link.o"), str(folder / "two_link.so")
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fopenmp-simd"]
    source = str(Path(__file__).with_name("two_link.c"))
    compiling = [compiler(), *flags, f"-DREAL={real}", "-fPIC", "-c", source, "-o", made]
    # Linked without those flags: they would have denormal numbers flushed in all of the process.
    linking = [compiler(), "-shared", made, "-o", library, "-lm"]
    for command in (compiling, linking):
        subprocess.run(command, check=True)
    return ctypes.CDLL(library)
