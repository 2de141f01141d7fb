"""What a kernel takes of a GPU, what it does in a step, and one roofline number: an estimate.

Peaks are those of data sheets and whitepapers: H100, SXM [NvidiaHopper2022], H200 [NvidiaH200],
A100, SXM, of 80 GB [NvidiaAmpere2020], RTX 4090 [NvidiaAda2022], L4 [NvidiaL4].
"""

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.cuda.assembler import assemble, AssemblerMissingError, Resources
from jaxdae.kernels.cuda.ptx import DeviceKernel
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.emission.instructions import angles_of_both
from jaxdae.kernels.graph.array_calls import Factorization, Map, OntoRow, Product, Row
from jaxdae.kernels.graph.expressions import CALL, CONSTANT, INPUT, RESULT
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.subprograms import ConditionalCall, ScalarProgram, Subprogram


class Device(NamedTuple):
    """A GPU, by the numbers that its maker publishes.

    Args:
        name: as it is sold.
        architecture: what its machine code is made for.
        bandwidth: of its memory [bytes/s].
        float64_peak: operations of double precision, a sum and a product counted as two [1/s].
        float32_peak: the same of single precision.
    """

    name: str
    architecture: str
    bandwidth: float
    float64_peak: float
    float32_peak: float


# Of the last two the peak of double precision is 1/64 of that of single precision.
DEVICES = (
    Device("H100", "sm_90", 3.35e12, 34e12, 67e12),
    Device("H200", "sm_90", 4.8e12, 34e12, 67e12),
    Device("A100", "sm_80", 2.039e12, 9.7e12, 19.5e12),
    Device("RTX 4090", "sm_89", 1.008e12, 82.6e12 / 64, 82.6e12),
    Device("L4", "sm_89", 0.3e12, 30.3e12 / 64, 30.3e12),
)
ASSUMED = (
    "A roofline from counted operations and published peaks; nothing was measured on a GPU. It "
    "takes start and results of each member through the GPU's memory once, and all else for free."
)


class KernelReport(NamedTuple):
    """What a kernel of an integration takes and does.

    Args:
        kernel: what is launched.
        architecture: what it was assembled for.
        dtype: "float64" or "float32".
        members: of the batch it was written for.
        steps: of a run; of one with adaptive steps an assumption.
        resources: registers and memory; `None` where there is no assembler.
        missing: then why.
        operations: floating-point operations of a step and a member.
        bytes_per_member: to and from the memory of the GPU, of a run.
    """

    kernel: DeviceKernel
    architecture: str
    dtype: str
    members: int
    steps: int
    resources: Resources | None
    missing: str | None
    operations: int
    bytes_per_member: int

    @property
    def bytes_per_step(self) -> float:
        """To and from the memory of the GPU, for each member and step."""
        return self.bytes_per_member / self.steps

    def roofline(self, device: Device) -> float:
        """Steps per second of all members that neither arithmetic nor memory forbids."""
        peak = device.float64_peak if self.dtype == "float64" else device.float32_peak
        return min(peak / self.operations, device.bandwidth / self.bytes_per_step)

    @property
    def rooflines(self) -> dict[str, float]:
        """Steps per second by the names of known GPUs of this architecture."""
        chosen = (x for x in DEVICES if x.architecture == self.architecture)
        return {x.name: self.roofline(x) for x in chosen}

    def as_json(self) -> dict[str, Any]:
        """All of it as numbers and words."""
        nothing = dict.fromkeys(Resources._fields)
        return {
            "architecture": self.architecture,
            "dtype": self.dtype,
            "members": self.members,
            "steps": self.steps,
            "threads_of_a_block": self.kernel.block,
            **(nothing if self.resources is None else self.resources._asdict()),
            "missing": self.missing,
            "operations": self.operations,
            "bytes_per_member": self.bytes_per_member,
            "bytes_per_step": self.bytes_per_step,
            "roofline_steps_per_second": self.rooflines,
            "assumption": ASSUMED,
        }


def report(
    kernel: DeviceKernel,
    step: Subprogram,
    *,
    architecture: str,
    dtype: Any,
    members: int,
    steps: int,
    bytes_per_member: int,
) -> KernelReport:
    """What a kernel with this step takes and does; the others are fields of its report.

    Raises:
        AssemblerError: for an architecture that the assembler does not know, or that is older than
            the kernel.
    """
    resources, missing = None, None
    try:
        resources = assemble(kernel.ptx, architecture)
    except AssemblerMissingError as error:
        missing = str(error)
    return KernelReport(
        kernel, architecture, str(np.dtype(dtype)), members, steps, resources, missing,
        operations(step, np.dtype(dtype)), bytes_per_member,
    )  # fmt: skip


# Operations of what has no instruction of its own, as ptxas 12.9 writes it for sm_90, and of what
# does two at once; all others, such as comparisons, count as one. Signs are part of the
# instructions that read them.
_OPERATIONS = {"div": 16, "sqrt": 16, "neg": 0, INPUT: 0, CONSTANT: 0, RESULT: 0}
_OF_LLVM = {
    "fdiv": 16, "llvm.sqrt": 16, "llvm.fma": 2, "llvm.fmuladd": 2,
    **dict.fromkeys(
        ("fneg", "insertvalue", "extractvalue", "insertelement", "extractelement", "bitcast",
         "phi", "getelementptr", "alloca"), 0,
    ),
}  # fmt: skip
# Blocks begin with names; those that call other functions are for rare arguments.
_BLOCK, _OTHER = re.compile(r"^\w+:\n", re.MULTILINE), re.compile(r"call .*@(?!llvm)")
_RESULT = re.compile(r" = (?:call .*?@([\w.]+?)(?:\.v1\w+)?\(|(\w+))")


def operations(callee: Any, dtype: np.dtype) -> int:
    """Operations of a program and of all that it calls, or of what stays a loop in it."""
    if isinstance(callee, Product):
        return 2 * int(np.prod(callee.shape))
    if isinstance(callee, Factorization):
        # Two for each multiplication: a third of them factors, two thirds invert; four if complex.
        return 2 * callee.size**3 * callee.parts**2
    if isinstance(callee, Map):
        return callee.size * _operation(callee.operation, dtype)
    if isinstance(callee, Row):
        return callee.size
    if isinstance(callee, OntoRow):
        return callee.rows * callee.size
    if isinstance(callee, ConditionalCall):
        return operations(callee.program, dtype)
    if isinstance(callee, Subprogram):
        return (callee.entries or 1) * _of_program(callee.program, dtype)
    # Of a loop; of one without an end at least one turn.
    return (callee.length or 1) * operations(callee.turn, dtype)


def _of_program(program: ScalarProgram, dtype: np.dtype) -> int:
    graph, total = program.graph, 0
    needed = graph.needed(program.outputs)
    both = angles_of_both(graph, needed)
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation == CALL:
            total += operations(arguments[0], dtype)
        elif operation not in ("sin", "cos") or arguments[0] not in both:
            total += _operation(operation, dtype)
    return total + len(both) * _operation(elementary_functions.BOTH, dtype)


@cache
def _operation(name: str, dtype: np.dtype) -> int:
    """Of an elementary function where its argument is not large."""
    if name in _OPERATIONS or not (name == elementary_functions.BOTH or OPERATIONS[name].function):
        return _OPERATIONS.get(name, 1)
    text = elementary_functions.function(name, 1, dtype)[0].text.partition("entry:\n")[2]
    usual = "\n".join(x for x in _BLOCK.split(text) if _OTHER.search(x) is None)
    return sum(_OF_LLVM.get(called or word, 1) for called, word in _RESULT.findall(usual))
