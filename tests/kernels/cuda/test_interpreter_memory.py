"""The interpreter of PTX on texts written by hand: memory of all spaces."""

import numpy as np
import pytest

from helpers.ptx import Memory, PtxError
from helpers.ptx_units import kernel, numbers, run


def test_vectors_are_loaded_and_stored():
    data = np.arange(16, dtype=np.uint32)
    body = """
      mul.wide.u32 %x1, %w31, 16; add.u64 %x1, %x29, %x1;
      ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%x1];
      ld.global.nc.v2.u64 {%x2, %x3}, [%x1];
      mov.b64 %x4, {%w3, %w2};
      mov.b64 {%w4, %w5}, %x2;
      add.u32 %w4, %w4, %w5; cvt.u64.u32 %x5, %w4;
      st.global.v2.u64 [%x1], {%x4, %x5};
      ld.global.u64 %x0, [%x1+8];
    """
    assert numbers(body, data) == [8 * i + 1 for i in range(4)]


def test_short_loads_extend_by_sign_or_zero_and_short_stores_cut():
    data = np.array([0x80, 0x7F, 0xFE, 1], np.uint8)
    body = """
      cvt.u64.u32 %x1, %w31; add.u64 %x1, %x29, %x1;
      ld.global.s8 %x2, [%x1]; ld.global.u8 %x3, [%x1];
      add.s64 %x0, %x2, %x3;
      ld.global.s8 %s0, [%x1]; cvt.s64.s16 %x4, %s0; add.s64 %x0, %x0, %x4;
      add.s64 %x5, %x0, 256; st.global.u8 [%x1], %x5; ld.global.u8 %x5, [%x1];
      mad.lo.s64 %x0, %x5, 65536, %x0;
    """
    sums = [2 * (x - 256 * (x > 127)) + x for x in data.tolist()]
    expected = [(x + 65536 * (x % 256)) % 2**64 for x in sums]
    assert numbers(body, data) == expected


def test_local_memory_is_each_threads_own():
    """By its own addresses, by generic ones, and at places that depend on the thread."""
    body = """
      .local .align 16 .b8 depot[64];
      mov.b64 %x1, depot; cvta.local.u64 %x2, %x1;
      cvt.u64.u32 %x3, %w31;
      st.u64 [%x2+8], %x3;
      add.u64 %x4, %x2, %x31; st.u64 [%x4+16], 5;
      ld.local.u64 %x5, [%x1+8];
      ld.local.u64 %x6, [depot+16];
      setp.eq.u32 %p0, %w31, 0; selp.u64 %x6, %x6, 0, %p0;
      cvta.to.local.u64 %x7, %x4; ld.local.u64 %x8, [%x7+16];
      add.u64 %x0, %x5, %x6; add.u64 %x0, %x0, %x8;
    """
    assert numbers(body) == [10, 6, 7, 8]


def test_what_was_not_stored_is_no_number():
    """Local memory and new buffers are full of ones: every float there is NaN."""
    body = ".local .align 8 .b8 depot[8];\n ld.local.u64 %x0, [depot];"
    assert np.isnan(np.array(numbers(body), np.uint64).view(float)).all()
    memory = Memory()
    assert np.isnan(memory.read(memory.allocate(24), (3,), float)).all()


def test_variables_of_the_module():
    before = """
    .global .align 8 .u64 counts[4] = {10, 0x20, 30};
    .const .align 8 .f64 angle = 0d400921FB54442D18;
    .global .align 4 .b8 bytes[4] = {1, 2, 255, -1};
    """
    body = """
      mov.u64 %x1, counts; cvta.global.u64 %x1, %x1; add.u64 %x1, %x1, %x31;
      ld.u64 %x2, [%x1];
      ld.const.f64 %x3, [angle]; cvt.rni.u64.f64 %x3, %x3;
      mov.u64 %x4, bytes; cvt.u64.u32 %x5, %w31; add.u64 %x4, %x4, %x5;
      ld.global.u8 %x5, [%x4];
      mad.lo.u64 %x0, %x2, 10, %x3; mad.lo.u64 %x0, %x5, 10000, %x0;
    """
    assert numbers(body, before=before) == [10103, 20323, 2550303, 2550003]


def test_generic_addresses_of_several_spaces_at_once():
    before = ".shared .align 8 .u64 room;\n"
    body = """
      .local .align 8 .u64 own;
      mov.u64 %x1, own; cvta.local.u64 %x1, %x1;
      mov.u64 %x2, room; cvta.shared.u64 %x2, %x2;
      st.u64 [%x1], 1; st.u64 [%x2], 2;
      rem.u32 %w0, %w31, 3;
      setp.eq.u32 %p0, %w0, 0; selp.u64 %x3, %x1, %x2, %p0;
      setp.eq.u32 %p0, %w0, 2; selp.u64 %x3, %x29, %x3, %p0;
      ld.u64 %x0, [%x3];
    """
    data = np.array([7], np.uint64)
    assert numbers(body, data, threads=6, before=before) == [1, 2, 7, 1, 2, 7]


def test_buffers_beside_each_other_are_told_apart():
    """Threads that read two buffers at once."""
    body = """
      setp.eq.u32 %p0, %w31, 2; selp.u64 %x1, %x28, %x29, %p0;
      add.u64 %x1, %x1, %x31; ld.global.u64 %x0, [%x1];
    """
    first, second = np.arange(4, dtype=np.uint64), np.arange(10, 14, dtype=np.uint64)
    assert numbers(body, first, second) == [0, 1, 12, 3]


def test_atomic_addition_counts_every_thread():
    body = """
      atom.global.add.u64 %x1, [%x29], 3;
      mov.u64 %x0, %x1;
    """
    assert numbers(body, np.array([5], np.uint64)) == [5, 8, 11, 14]


def test_memory_of_the_process_is_used_where_it_is():
    data, result = np.arange(4.0), np.zeros(4)
    body = """
      add.u64 %x1, %x29, %x31; ld.global.f64 %x2, [%x1];
      add.rn.f64 %x2, %x2, %x2;
      add.u64 %x1, %x30, %x31; st.global.f64 [%x1], %x2;
    """
    memory = Memory()
    for x in (data, result):
        memory.register(x.ctypes.data, x.nbytes)
    run(kernel(body), result.ctypes.data, data.ctypes.data, memory=memory, block=4)
    assert result.tolist() == [0, 2, 4, 6]


def test_buffers_may_not_overlap_and_can_be_taken_away():
    memory, data = Memory(), np.zeros(8)
    memory.register(data.ctypes.data, 32)
    for start, nbytes in ((8, 8), (-8, 16), (24, 40)):
        with pytest.raises(PtxError, match="overlap"):
            memory.register(data.ctypes.data + start, nbytes)
    memory.release(data.ctypes.data)
    memory.register(data.ctypes.data + 8, 8)
    with pytest.raises(PtxError, match="no buffer begins at"):
        memory.release(data.ctypes.data)
    with pytest.raises(PtxError, match=r"16 bytes at \w+ are outside of all buffers"):
        memory.read(data.ctypes.data + 8, (2,), float)


def test_new_buffers_are_far_from_each_other():
    """What runs over the end of one does not come to another one."""
    memory = Memory()
    at = sorted(memory.allocate(np.zeros(5)) for _ in range(20))
    assert min(np.diff(at)) > 2**15
    assert all(x % 256 == 0 for x in at)
