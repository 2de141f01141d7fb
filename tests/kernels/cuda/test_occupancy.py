"""Resident warps by the tables of NVIDIA's guide, and what limits an estimate of throughput."""

import pytest

from jaxdae.kernels.cuda.occupancy import (
    DEVICES,
    estimate,
    occupancy,
    WARP,
    Work,
)

# registers, threads of a block, capability: blocks and warps that NVIDIA's occupancy calculator
# gives. A warp of 255 registers takes 8192 of 65536, one of 160 takes 5120, one of 63 takes 2048;
# warps come in fours.
CASES = [
    (255, 128, "9.0", 2, 8, "registers"),
    (255, 128, "7.0", 2, 8, "registers"),
    (160, 128, "8.0", 3, 12, "registers"),
    (168, 128, "8.9", 3, 12, "registers"),
    (169, 128, "8.9", 2, 8, "registers"),
    (128, 128, "8.0", 4, 16, "registers"),
    (64, 256, "8.0", 4, 32, "registers"),
    (63, 256, "8.0", 4, 32, "registers"),
    (32, 256, "8.0", 8, 64, "threads"),
    (32, 256, "8.9", 6, 48, "threads"),
    (32, 256, "7.5", 4, 32, "threads"),
    (16, 32, "8.0", 32, 32, "blocks"),
    (16, 32, "8.9", 24, 24, "blocks"),
    (255, 1024, "9.0", 0, 0, "registers"),
]  # fmt: skip


@pytest.mark.parametrize(("registers", "block", "capability", "blocks", "warps", "limit"), CASES)
def test_resident_warps_are_those_of_the_calculator(
    registers, block, capability, blocks, warps, limit
):
    result = occupancy(registers, block, capability=capability)
    assert (result.blocks, result.warps, result.limited_by) == (blocks, warps, limit)


def test_a_warp_has_registers_in_units_of_256():
    """150 registers are 4800 of a warp, which takes 4864: twelve warps, and not thirteen."""
    assert occupancy(150, 32, capability="9.0").warps == 12
    assert occupancy(72, 32, capability="9.0").warps == 28


def test_shared_memory_limits_blocks():
    """48 KiB and the 1 KiB of the system: three of them in 164 KiB."""
    result = occupancy(32, 128, 48 * 1024, "8.0")
    assert (result.blocks, result.limited_by) == (3, "shared memory")
    # Before 8.0 the system takes none: two in 96 KiB.
    assert occupancy(32, 128, 48 * 1024, "7.0").blocks == 2


@pytest.mark.parametrize(
    ("registers", "block", "shared"), [(256, 32, 0), (32, 1025, 0), (32, 32, 2**20)]
)
def test_what_no_multiprocessor_holds_is_refused(registers, block, shared):
    with pytest.raises(ValueError, match="does not fit: at most 1024, 255 and"):
        occupancy(registers, block, shared)


@pytest.mark.parametrize("device", DEVICES, ids=lambda x: x.name)
def test_published_peaks_are_those_of_the_rates(device):
    """Multiprocessors, clock and rate of an instruction give the peaks of the data sheets, to the
    two or three digits that these have."""
    cycles = 2 * device.multiprocessors * device.clock_hz
    assert cycles * device.limits.float64 == pytest.approx(device.float64_peak, rel=0.02)
    assert cycles * device.limits.float32 == pytest.approx(device.float32_peak, rel=0.02)


H100 = DEVICES[0]
NOTHING = Work("float64", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_arithmetic_alone_is_done_at_the_peak():
    """A million products and sums a step at 33.5e12 operations a second, of two each."""
    result = estimate(NOTHING._replace(arithmetic=1e6), H100, 255, 128)
    assert result.limited_by == "arithmetic"
    assert result.steps_per_second == pytest.approx(H100.float64_peak / 2e6, rel=0.02)


def test_memory_alone_is_read_at_the_bandwidth():
    result = estimate(NOTHING._replace(memory_bytes=1e3), H100, 255, 128)
    assert (result.limited_by, result.steps_per_second) == ("memory", 3.35e9)


def test_few_threads_wait_for_results():
    """256 threads of 8 warps on each of 132 multiprocessors, 1000 cycles a step; twice as many with
    half the registers."""
    work = NOTHING._replace(depth=1e3, arithmetic=1.0)
    few, many = (estimate(work, H100, registers, 128) for registers in (255, 128))
    assert few.limited_by == many.limited_by == "latency"
    assert few.steps_per_second == pytest.approx(132 * 8 * WARP * 1.98e9 / 1e3)
    assert many.steps_per_second == pytest.approx(2 * few.steps_per_second)


def test_other_instructions_take_cycles_of_the_schedulers():
    """Four warps issue in a cycle: 128 threads."""
    result = estimate(NOTHING._replace(other=128.0), H100, 32, 128)
    assert result.limited_by == "issue"
    assert result.steps_per_second == pytest.approx(132 * 1.98e9)


def test_caches_give_128_bytes_a_cycle():
    result = estimate(NOTHING._replace(cache_bytes=256.0), H100, 32, 128)
    assert result.limited_by == "cache"
    assert result.steps_per_second == pytest.approx(132 * 1.98e9 / 2)
