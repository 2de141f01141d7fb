"""Kernels: functions of small arrays as scalar programs, and those as machine code."""

from jaxdae.kernels.kernel import native as native
from jaxdae.kernels.trace import (
    scalarize as scalarize,
    ScalarProgram as ScalarProgram,
    UnsupportedOperationError as UnsupportedOperationError,
)
