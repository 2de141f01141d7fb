"""Kernels: functions of small arrays as scalar programs, and those as machine code."""

from jaxdae.kernels.kernel import native as native
from jaxdae.kernels.portable import as_jax as as_jax
from jaxdae.kernels.trace import (
    scalarize as scalarize,
    ScalarProgram as ScalarProgram,
    UnsupportedOperationError as UnsupportedOperationError,
)
