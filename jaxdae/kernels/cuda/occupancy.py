"""How many threads GPUs hold at once, and how many steps a second they can make: an estimate.

Limits of compute capabilities are those of [NvidiaCuda2025], its tables of technical specifications
and of the throughput of native arithmetic instructions. Numbers of GPUs are those of their data
sheets and whitepapers: H100, SXM [NvidiaHopper2022], H200 [NvidiaH200], A100, SXM, of 80 GB
[NvidiaAmpere2020], RTX 4090 [NvidiaAda2022], L4 [NvidiaL4].
"""

from typing import NamedTuple

# Threads that are issued together.
WARP = 32
# Schedulers of a multiprocessor, each of which issues one instruction for a warp in a cycle.
_SCHEDULERS = 4
# Warps of a block have registers in such groups, one warp for each scheduler.
_GRANULARITY = 4


class Capability(NamedTuple):
    """Limits of a multiprocessor.

    Args:
        warps: resident warps.
        blocks: resident blocks.
        shared_bytes: shared memory.
        float64: sums, products or both in one, of double precision, in a cycle.
        float32: the same of single precision.
        registers: of 32 bits.
        thread_registers: of one thread, at most.
        register_unit: registers that a warp takes are a multiple of it.
        special: reciprocals, roots, and the like, in a cycle.
        cache_bytes: memory beside the processor, the part that is shared memory included.
    """

    warps: int
    blocks: int
    shared_bytes: int
    float64: int
    float32: int
    cache_bytes: int
    registers: int = 65536
    thread_registers: int = 255
    register_unit: int = 256
    special: int = 16


_KIB = 1024
CAPABILITIES = {
    "7.0": Capability(64, 32, 96 * _KIB, 32, 64, 128 * _KIB),
    "7.5": Capability(32, 16, 64 * _KIB, 2, 64, 96 * _KIB),
    "8.0": Capability(64, 32, 164 * _KIB, 32, 64, 192 * _KIB),
    "8.6": Capability(48, 16, 100 * _KIB, 2, 128, 128 * _KIB),
    "8.9": Capability(48, 24, 100 * _KIB, 2, 128, 128 * _KIB),
    "9.0": Capability(64, 32, 228 * _KIB, 64, 128, 256 * _KIB),
}


class Device(NamedTuple):
    """A GPU, by the numbers that its maker publishes.

    Args:
        name: as it is sold.
        capability: compute capability.
        multiprocessors: how many.
        clock_hz: highest clock rate [1/s].
        bandwidth: of its memory [bytes/s].
        float64_peak: operations of double precision, a sum and a product counted as two [1/s].
        float32_peak: the same of single precision.
    """

    name: str
    capability: str
    multiprocessors: int
    clock_hz: float
    bandwidth: float
    float64_peak: float
    float32_peak: float

    @property
    def limits(self) -> Capability:
        """Of one multiprocessor."""
        return CAPABILITIES[self.capability]

    @property
    def architecture(self) -> str:
        """What its machine code is made for: sm_90."""
        return f"sm_{self.capability.replace('.', '')}"


# Of the last two the peak of double precision is 1/64 of that of single precision.
DEVICES = (
    Device("H100", "9.0", 132, 1.98e9, 3.35e12, 34e12, 67e12),
    Device("H200", "9.0", 132, 1.98e9, 4.8e12, 34e12, 67e12),
    Device("A100", "8.0", 108, 1.41e9, 2.039e12, 9.7e12, 19.5e12),
    Device("RTX 4090", "8.9", 128, 2.52e9, 1.008e12, 82.6e12 / 64, 82.6e12),
    Device("L4", "8.9", 58, 2.04e9, 0.3e12, 30.3e12 / 64, 30.3e12),
)


class Occupancy(NamedTuple):
    """What a multiprocessor holds of a kernel.

    Args:
        blocks: resident blocks.
        warps: resident warps.
        fraction: of the warps that it could hold.
        limited_by: "registers", "shared memory", "threads" or "blocks".
    """

    blocks: int
    warps: int
    fraction: float
    limited_by: str


def occupancy(
    registers: int, block: int, shared_bytes: int = 0, capability: str = "9.0"
) -> Occupancy:
    """Resident blocks and warps.

    Args:
        registers: of a thread.
        block: threads of a block.
        shared_bytes: shared memory of a block.
        capability: compute capability.

    Raises:
        ValueError: for a block or a thread that no multiprocessor holds.
    """
    x = CAPABILITIES[capability]
    warps = -(-block // WARP)
    if not 1 <= block <= 1024 or registers > x.thread_registers or shared_bytes > x.shared_bytes:
        raise ValueError(
            f"a block of {block} threads with {registers} registers each and {shared_bytes} bytes "
            f"of shared memory does not fit: at most 1024, {x.thread_registers} and "
            f"{x.shared_bytes}."
        )
    per_warp = _up(max(registers, 1) * WARP, x.register_unit)
    by_registers = x.registers // per_warp // _GRANULARITY * _GRANULARITY
    rooms = {
        "registers": by_registers // warps,
        "threads": x.warps // warps,
        "blocks": x.blocks,
        "shared memory": x.shared_bytes // _shared(shared_bytes, capability),
    }
    # Of equal limits the one that a kernel cannot change.
    limit = min(rooms, key=lambda name: (rooms[name], name == "registers"))
    blocks = rooms[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / x.warps, limit)


def _shared(size: int, capability: str) -> int:
    """Shared memory that a block of so many bytes takes."""
    since_ampere = float(capability) >= 8.0
    # From 8.0 on the system keeps 1 KiB of each block's.
    return max(_up(size + since_ampere * _KIB, 128 if since_ampere else 256), 1)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class Work(NamedTuple):
    """What a step of one thread is.

    Args:
        precision: "float64" or "float32".
        arithmetic: instructions of that precision.
        special: reciprocals, roots and the like that these begin with.
        other: all other instructions.
        depth: cycles that the longest sequence of dependent instructions takes.
        memory_bytes: bytes to and from the memory of the GPU.
        cache_bytes: bytes to and from local memory, which caches hold.
    """

    precision: str
    arithmetic: float
    special: float
    other: float
    depth: float
    memory_bytes: float
    cache_bytes: float


# Bytes that the first cache gives in a cycle.
_CACHE_RATE = 128


class Estimate(NamedTuple):
    """Steps a second, and what limits them.

    Args:
        steps_per_second: of all members together [1/s].
        limited_by: "arithmetic", "issue", "memory", "cache" or "latency".
        limits: steps per second that each of these allows [1/s].
        occupancy: what a multiprocessor holds.
    """

    steps_per_second: float
    limited_by: str
    limits: dict[str, float]
    occupancy: Occupancy


def estimate(work: Work, device: Device, registers: int, block: int) -> Estimate:
    """Steps a second that a GPU can make, were nothing else in the way [Williams2009].

    The least of what its arithmetic, its issue of instructions, its memory and its first cache
    allow, and of what resident threads can do that wait for each instruction's result.

    Args:
        work: of a step.
        device: the GPU.
        registers: of a thread.
        block: threads of a block.
    """
    x = device.limits
    resident = occupancy(registers, block, capability=device.capability)
    cycles_a_second = device.multiprocessors * device.clock_hz
    rate = x.float64 if work.precision == "float64" else x.float32
    issued = work.arithmetic + work.special + work.other
    rates = {
        "arithmetic": max(work.arithmetic / rate, work.special / x.special),
        "issue": issued / (_SCHEDULERS * WARP),
        "cache": work.cache_bytes / _CACHE_RATE,
        "latency": work.depth / max(WARP * resident.warps, 1),
    }
    limits = {name: cycles_a_second / cycles for name, cycles in rates.items() if cycles > 0}
    if work.memory_bytes > 0:
        limits["memory"] = device.bandwidth / work.memory_bytes
    limit = min(limits, key=lambda name: limits[name])
    return Estimate(limits[limit], limit, limits, resident)
