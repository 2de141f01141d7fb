"""Kernels: functions of small arrays as scalar programs, and those as machine code."""

from .kernel import native as native
from .portable import as_jax as as_jax
from .trace import (
    scalarize as scalarize,
    ScalarProgram as ScalarProgram,
    UnsupportedOperationError as UnsupportedOperationError,
)
