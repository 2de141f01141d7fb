"""Kernels: functions of small arrays as scalar programs, and those as machine code."""

from .integration.device_report import (
    kernel_report as kernel_report,
    NoKernelError as NoKernelError,
)
from .launch.kernel import native as native
from .tracing.trace import (
    scalarize as scalarize,
    ScalarProgram as ScalarProgram,
    UnsupportedOperationError as UnsupportedOperationError,
)
