"""What a kernel takes of a GPU, what it does in a step, and one roofline number: an estimate.

Peaks are those of data sheets and whitepapers: H100, SXM [NvidiaHopper2022], H200 [NvidiaH200],
A100, SXM, of 80 GB [NvidiaAmpere2020], RTX 4090 [NvidiaAda2022], L4 [NvidiaL4].
"""

import re
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.cuda.assembler import assemble, AssemblerMissingError, Resources
from jaxdae.kernels.cuda.ptx import DeviceKernel
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.graph.dense_products import Product
from jaxdae.kernels.graph.expressions import CALL, CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.graph.fused_terms import fused_terms
from jaxdae.kernels.graph.maps import Map
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.subprograms import Subprogram
from jaxdae.kernels.tracing.trace import ScalarProgram


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
# Operations of what has no instruction of its own, as ptxas 12.9 writes it for sm_90; all others
# that are no arithmetic, such as comparisons, count as one.
_OPERATIONS = {"fma": 2, "div": 16, "sqrt": 16}
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
        instructions: of a step, by what they are.
        bytes_per_member: to and from the memory of the GPU, of a run.
    """

    kernel: DeviceKernel
    architecture: str
    dtype: str
    members: int
    steps: int
    resources: Resources | None
    missing: str | None
    instructions: Counter[str]
    bytes_per_member: int

    @property
    def operations(self) -> int:
        """Floating-point operations of a step and a member."""
        return sum(n * _OPERATIONS.get(x, 1) for x, n in self.instructions.items())

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
        found = self.resources
        return {
            "architecture": self.architecture,
            "dtype": self.dtype,
            "members": self.members,
            "steps": self.steps,
            "threads_of_a_block": self.kernel.block,
            "registers": None if found is None else found.registers,
            "spill_bytes": None if found is None else found.spill_bytes,
            "stack_bytes": None if found is None else found.stack_bytes,
            "missing": self.missing,
            "instructions": dict(self.instructions),
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
    """What a kernel takes and does.

    Args:
        kernel: what is launched.
        step: of the integration.
        architecture: what it is assembled for, `sm_XX`.
        dtype: float64 or float32.
        members: of the batch.
        steps: of a run.
        bytes_per_member: to and from the memory of the GPU, of a run.

    Raises:
        AssemblyError: for an architecture that the assembler does not know, or that is older than
            the kernel.
    """
    resources, missing = None, None
    try:
        resources = assemble(kernel.ptx, architecture).resources
    except AssemblerMissingError as error:
        missing = str(error)
    return KernelReport(
        kernel, architecture, str(np.dtype(dtype)), members, steps, resources, missing,
        instructions(step), bytes_per_member,
    )  # fmt: skip


# What gives a class its name in LLVM's language.
_NAMED = {
    "fadd": "add", "fsub": "add", "fmul": "mul", "fdiv": "div", "llvm.fma": "fma",
    "llvm.fmuladd": "fma", "llvm.sqrt": "sqrt",
}  # fmt: skip
_CLASS = {"add": "add", "sub": "add", "mul": "mul", "div": "div", "sqrt": "sqrt"}
# Signs are part of the instructions that read them; all others of these are none.
_FREE = (
    "fneg", "insertvalue", "extractvalue", "insertelement", "extractelement", "bitcast", "phi",
    "getelementptr", "alloca",
)  # fmt: skip
# Blocks begin with names; those that call other functions are for rare arguments.
_BLOCK, _OTHER = re.compile(r"^\w+:\n", re.MULTILINE), re.compile(r"call .*@(?!llvm)")


def instructions(callee: Any, dtype: Any = None) -> Counter[str]:
    """Instructions of a program and of all that it calls: sums, products, and so on.

    Args:
        callee: the program, or what stays a loop in it.
        dtype: of its numbers; by default that of its first input.
    """
    if isinstance(callee, Product):
        m, k, n = callee.shape
        return Counter(fma=m * k * n)
    if isinstance(callee, Map):
        return _times(_operation(callee.operation, dtype), callee.size)
    if isinstance(callee, Subprogram):
        inputs = callee.program.inputs
        own = _program(callee.program, dtype or (inputs[0].dtype if inputs else np.float64))
        return own if callee.entries is None else _times(own, callee.entries)
    # Of a loop; of one without an end at least one turn.
    return _times(instructions(callee.turn, dtype), callee.length or 1)


def _times(one: Counter[str], count: int) -> Counter[str]:
    return Counter({x: n * count for x, n in one.items()})


def _program(program: ScalarProgram, dtype: Any) -> Counter[str]:
    graph = program.graph
    needed = graph.needed(program.outputs)
    terms = fused_terms(graph, needed, program.outputs)
    within = {x for term in terms.values() for x in term.within}
    both, total = _pairs(graph, needed), Counter()
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation == CALL:
            total += instructions(arguments[0], dtype)
        elif node in terms:
            total["fma"] += 1
        elif operation not in (INPUT, CONSTANT, RESULT) and node not in within:
            total += _operation(both.get(node, operation), dtype)
    return total


def _pairs(graph: Graph, needed: list[int]) -> dict[int, str]:
    """Sines and cosines of one angle: the first is both, the other is nothing more."""
    first: dict[int, int] = {}
    result = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation in ("sin", "cos"):
            other = first.setdefault(arguments[0], node)
            if other != node:
                result |= {other: elementary_functions.BOTH, node: "neg"}
    return result


def _operation(name: str, dtype: Any) -> Counter[str]:
    if name == "neg":
        return Counter()
    if name == elementary_functions.BOTH or OPERATIONS[name].function:
        return _function(name, str(np.dtype(dtype)))
    return Counter({_CLASS.get(name, "other"): 1})


@cache
def _function(name: str, dtype: str) -> Counter[str]:
    """Of an elementary function where its argument is not large."""
    definition = elementary_functions.function(name, 1, np.dtype(dtype))[0]
    blocks = _BLOCK.split(definition.text.partition("entry:\n")[2])
    usual = "\n".join(x for x in blocks if _OTHER.search(x) is None)
    lines = [x for x in usual.split("\n") if " = " in x]
    classes = (_class_of(x.partition(" = ")[2]) for x in lines)
    return Counter(x for x in classes if x)


def _class_of(instruction: str) -> str | None:
    first = instruction.split(maxsplit=1)[0]
    if first in _FREE:
        return None
    if first == "call":
        called = instruction.partition("@")[2].partition("(")[0]
        return _NAMED.get(called.rpartition(".v1")[0], "other")
    return _NAMED.get(first, "other")
