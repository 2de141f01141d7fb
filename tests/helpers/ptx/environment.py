"""Arithmetic of the host as IEEE 754 has it, wherever it is called from."""

import contextlib
import ctypes
import ctypes.util
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from helpers.ptx.errors import PtxError

# `FE_DFL_ENV` of the C libraries of Linux, and more room than `fenv_t` needs.
_DEFAULT, _ROOM = ctypes.c_void_p(-1), 256


@cache
def _library() -> Any:
    return ctypes.CDLL(ctypes.util.find_library("m"))


@contextlib.contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Rounding to nearest, with subnormal numbers, and without a word about either.

    XLA calls functions of the host with subnormal numbers taken for zeros, which GPUs do not do.
    """
    before = ctypes.create_string_buffer(_ROOM)
    _library().fegetenv(before)
    _library().fesetenv(_DEFAULT)
    try:
        with np.errstate(all="ignore"):
            if not np.array([5e-324]) * 1.0:
                raise PtxError("this machine takes subnormal numbers for zeros")
            yield
    finally:
        _library().fesetenv(before)
