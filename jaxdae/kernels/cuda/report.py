"""What a kernel takes of a GPU, what it does in a step, and an estimate of its steps per second."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.cuda.assembler import assemble, AssemblerMissingError, Resources
from jaxdae.kernels.cuda.kernel import DeviceKernel
from jaxdae.kernels.cuda.occupancy import Device, DEVICES, Estimate, estimate, WARP, Work
from jaxdae.kernels.cuda.work import Count

# Instructions of one operation without an instruction of its own, as ptxas 12.9 writes them for
# sm_90 where arguments are neither subnormal nor near the largest numbers: arithmetic, special
# (an approximate reciprocal or root to begin with), others. Of a division they are six steps of
# Newton's iteration and its rounding, one after the other.
_SEQUENCES = {
    ("div", "float64"): (8, 1, 6),
    ("sqrt", "float64"): (8, 1, 6),
    ("div", "float32"): (5, 1, 3),
    ("sqrt", "float32"): (4, 1, 5),
}
# Cycles from an instruction to one that needs its result, as measured on Volta [Jia2018].
_LATENCY = {"float64": 8.0, "float32": 4.0}
_ASSUMED = (
    "An estimate from counts of instructions and published peaks; nothing was measured on a GPU.",
    "The batch is several times larger than the number of threads that the GPU holds at once.",
    "A division or square root is {div} and {sqrt} instructions, as ptxas writes them for numbers "
    "that are neither subnormal nor near the largest; angles are below the limit from which on "
    "they are reduced exactly.",
    "A result is waited for {latency:.0f} cycles, as measured on Volta [Jia2018]; threads of other "
    "warps fill the time.",
    "Arrays of a thread that are not in registers come from the first cache, 128 bytes a cycle; "
    "where those of all resident threads do not fit into it, the GPU does less than this.",
    "Start and results of each member pass through the memory of the GPU once; parameters that "
    "members share stay in caches.",
)


class DeviceEstimate(NamedTuple):
    """A kernel on a GPU.

    Args:
        device: the GPU.
        resources: what the kernel takes of it.
        estimate: steps per second.
    """

    device: Device
    resources: Resources
    estimate: Estimate

    @property
    def stack_bytes(self) -> int:
        """Local memory of the resident threads of a multiprocessor."""
        return self.resources.stack_bytes * WARP * self.estimate.occupancy.warps


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
        instructions: of a step.
        bytes_per_member: to and from the memory of the GPU, of a run.
        plain_bytes_per_step: of `vmap` of the same step by XLA, for each member; `None` where it
            was not asked for.
        devices: estimates for GPUs, none where there is no assembler.
    """

    kernel: DeviceKernel
    architecture: str
    dtype: str
    members: int
    steps: int
    resources: Resources | None
    missing: str | None
    instructions: Count
    bytes_per_member: int
    plain_bytes_per_step: float | None
    devices: tuple[DeviceEstimate, ...]

    @property
    def bytes_per_step(self) -> float:
        """To and from the memory of the GPU, for each member and step."""
        return self.bytes_per_member / self.steps

    @property
    def fewer_bytes(self) -> float | None:
        """How many times fewer bytes of memory a step moves than `vmap` of it by XLA."""
        plain = self.plain_bytes_per_step
        return None if plain is None else plain / self.bytes_per_step

    @property
    def fewer_bytes_at_least(self) -> float | None:
        """The same were nothing of a thread's local memory in caches."""
        if self.plain_bytes_per_step is None or self.resources is None:
            return None
        return self.plain_bytes_per_step / (self.bytes_per_step + self.local_bytes_per_step)

    @property
    def local_bytes_per_step(self) -> float:
        """To and from local memory, for each member and step: arrays of calls, and spills."""
        return (
            0.0 if self.resources is None else _local(self.instructions, self.resources, self.dtype)
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the estimates rest on, in words."""
        words = {name: sum(_SEQUENCES[name, self.dtype]) for name in ("div", "sqrt")} | {
            "latency": _LATENCY[self.dtype]
        }
        return tuple(x.format(**words) for x in _ASSUMED)

    def as_json(self) -> dict[str, Any]:
        """All of it as numbers and words."""
        resources = None if self.resources is None else self.resources._asdict()
        return {
            "architecture": self.architecture,
            "dtype": self.dtype,
            "members": self.members,
            "steps": self.steps,
            "threads_of_a_block": self.kernel.block,
            "registers": None if self.resources is None else self.resources.registers,
            "spill_bytes": None if self.resources is None else self.resources.spill_bytes,
            "stack_bytes": None if self.resources is None else self.resources.stack_bytes,
            "resources": resources,
            "missing": self.missing,
            "operations": dict(self.instructions.classes),
            "operations_one_after_the_other": dict(self.instructions.depth),
            "bytes_per_member": self.bytes_per_member,
            "bytes_per_step": self.bytes_per_step,
            "local_bytes_per_step": None if resources is None else self.local_bytes_per_step,
            "vmap_bytes_per_step": self.plain_bytes_per_step,
            "fewer_bytes_than_vmap": self.fewer_bytes,
            "fewer_bytes_than_vmap_without_caches": self.fewer_bytes_at_least,
            "estimated_steps_per_second": {
                x.device.name: _as_json(x) for x in self.devices
            } or None,
            "assumptions": list(self.assumptions),
        }  # fmt: skip


def _as_json(x: DeviceEstimate) -> dict[str, Any]:
    return {
        "value": x.estimate.steps_per_second,
        "limited_by": x.estimate.limited_by,
        "limits": x.estimate.limits,
        "registers": x.resources.registers,
        "spill_bytes": x.resources.spill_bytes,
        "resident_warps": x.estimate.occupancy.warps,
        "occupancy": x.estimate.occupancy.fraction,
        "local_bytes_of_resident_threads": x.stack_bytes,
        "first_cache_bytes": x.device.limits.cache_bytes,
        "fits_first_cache": x.stack_bytes <= x.device.limits.cache_bytes,
    }


def report(
    kernel: DeviceKernel,
    count: Count,
    *,
    architecture: str,
    dtype: Any,
    members: int,
    steps: int,
    bytes_per_member: int,
    plain_bytes_per_step: float | None = None,
) -> KernelReport:
    """What a kernel takes and does.

    Args:
        kernel: what is launched.
        count: instructions of a step.
        architecture: what it is assembled for, `sm_XX`.
        dtype: float64 or float32.
        members: of the batch.
        steps: of a run.
        bytes_per_member: to and from the memory of the GPU, of a run.
        plain_bytes_per_step: of `vmap` of the same step by XLA, for each member.

    Raises:
        AssemblyError: for an architecture that the assembler does not know, or that is older than
            the kernel.
    """
    name = str(np.dtype(dtype))
    resources, missing, devices = None, None, ()
    try:
        resources = assemble(kernel.ptx, architecture).resources
        devices = tuple(
            _on_device(x, kernel, count, name, bytes_per_member / steps) for x in DEVICES
        )
    except AssemblerMissingError as error:
        missing = str(error)
    return KernelReport(
        kernel, architecture, name, members, steps, resources, missing, count, bytes_per_member,
        plain_bytes_per_step, devices,
    )  # fmt: skip


def _on_device(
    device: Device, kernel: DeviceKernel, count: Count, dtype: str, memory_bytes: float
) -> DeviceEstimate:
    resources = assemble(kernel.ptx, device.architecture).resources
    work = work_of(count, resources, dtype, memory_bytes)
    return DeviceEstimate(
        device, resources, estimate(work, device, resources.registers, kernel.block)
    )


def work_of(count: Count, resources: Resources, dtype: str, memory_bytes: float) -> Work:
    """What a step is for a GPU.

    Args:
        count: its instructions.
        resources: what the kernel takes.
        dtype: "float64" or "float32".
        memory_bytes: to and from the memory of the GPU.
    """
    local = _local(count, resources, dtype)
    single = ("fma", "add", "mul")
    totals = np.array([sum(count.classes[x] for x in single), 0, count.classes["other"]], float)
    depth = sum(count.depth[x] for x in (*single, "other"))
    for name in ("div", "sqrt"):
        arithmetic, special, others = _SEQUENCES[name, dtype]
        totals += count.classes[name] * np.array([arithmetic, special, others])
        depth += count.depth[name] * (arithmetic + special)
    arithmetic, special, other = (float(x) for x in totals)
    loads = local / np.dtype(dtype).itemsize
    return Work(
        dtype, arithmetic, special, other + loads, depth * _LATENCY[dtype], memory_bytes, local
    )


def _local(count: Count, resources: Resources, dtype: str) -> float:
    """Bytes to and from local memory: arrays that functions are given and give, and spills."""
    if resources.stack_bytes == 0:
        return 0.0
    own = count.numbers * np.dtype(dtype).itemsize
    return float(own + resources.spill_stores + resources.spill_loads)
