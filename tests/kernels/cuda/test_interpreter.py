"""The interpreter of PTX on texts written by hand: branches, loops, calls and barriers."""

import pytest

from helpers.ptx import PtxError
from helpers.ptx_units import kernel, numbers, run


def test_threads_of_several_blocks_have_numbers():
    body = """
      mov.u32 %w0, %tid.x; mov.u32 %w1, %ctaid.x; mov.u32 %w2, %ntid.x; mov.u32 %w3, %nctaid.x;
      mad.lo.u32 %w0, %w1, 10, %w0; mad.lo.u32 %w0, %w2, 100, %w0; mad.lo.u32 %w0, %w3, 1000, %w0;
      mov.u32 %w4, %tid.y; add.u32 %w0, %w0, %w4; mov.u32 %w4, %ntid.y;
      mad.lo.u32 %w0, %w4, 10000, %w0;
      cvt.u64.u32 %x0, %w0;
    """
    expected = [12300 + 10 * block + thread for block in range(2) for thread in range(3)]
    assert numbers(body, threads=3, grid=2) == expected


def test_both_sides_of_a_branch():
    body = """
      setp.lt.u32 %p0, %w31, 2;
      @%p0 bra left;
      mov.u64 %x0, 100;
      bra.uni join;
    left:
      mov.u64 %x0, 7;
    join:
      cvt.u64.u32 %x1, %w31;
      add.u64 %x0, %x0, %x1;
    """
    assert numbers(body) == [7, 8, 102, 103]


def test_a_negated_guard_and_instructions_that_some_threads_skip():
    body = """
      setp.eq.u32 %p0, %w31, 1;
      mov.u64 %x0, 3;
      @%p0 mov.u64 %x0, 4;
      @!%p0 add.u64 %x0, %x0, 10;
    """
    assert numbers(body) == [13, 4, 13, 13]


def test_loops_of_different_length():
    """Thread i adds 0 to i."""
    body = """
      mov.u64 %x0, 0;
      mov.u32 %w0, 0;
    again:
      cvt.u64.u32 %x1, %w0;
      add.u64 %x0, %x0, %x1;
      add.u32 %w0, %w0, 1;
      setp.le.u32 %p0, %w0, %w31;
      @%p0 bra again;
    """
    assert numbers(body, threads=9) == [i * (i + 1) // 2 for i in range(9)]


def test_nested_loops_with_exits_in_the_middle():
    """Collatz's sequence from i + 1 to 1: turns of two loops are counted, in Python below."""
    body = """
      cvt.u64.u32 %x1, %w31; add.u64 %x1, %x1, 1;
      mov.u64 %x0, 0;
    head:
      setp.eq.u64 %p0, %x1, 1; @%p0 bra done;
      setp.ge.u64 %p0, %x0, 100; @%p0 bra done;
      add.u64 %x0, %x0, 1;
    halve:
      and.b64 %x2, %x1, 1; setp.eq.u64 %p1, %x2, 1; @%p1 bra odd;
      shr.u64 %x1, %x1, 1;
      setp.eq.u64 %p0, %x1, 1; @%p0 bra head;
      add.u64 %x0, %x0, 1; bra halve;
    odd:
      mad.lo.u64 %x1, %x1, 3, 1;
      bra head;
    done:
    """

    def steps(x: int) -> int:
        count = 0
        while x != 1 and count < 100:
            count += 1
            while x % 2 == 0:
                x //= 2
                if x == 1:
                    return count
                count += 1
            x = 3 * x + 1
        return count

    assert numbers(body, threads=12) == [steps(i + 1) for i in range(12)]


def test_threads_that_end_early_leave_the_others_alone():
    body = """
      mov.u64 %x0, 1;
      setp.eq.u32 %p0, %w31, 0; @%p0 ret;
      setp.eq.u32 %p0, %w31, 1; @%p0 exit;
      setp.eq.u32 %p0, %w31, 2; @%p0 bra last;
      mov.u64 %x0, 2;
    last:
    """
    assert numbers(body) == [0, 0, 1, 2]


def test_a_branch_by_table():
    body = """
      rem.u32 %w0, %w31, 3;
    targets: .branchtargets zero, one, two;
      brx.idx %w0, targets;
    two: mov.u64 %x0, 22; bra join;
    one: mov.u64 %x0, 11; bra join;
    zero: mov.u64 %x0, 100;
    join:
    """
    assert numbers(body, threads=5) == [100, 11, 22, 100, 11]


def test_a_branch_by_table_beyond_its_end_is_an_error():
    body = """
    targets: .branchtargets zero, one;
      brx.idx %w31, targets;
    zero: one: mov.u64 %x0, 100;
    """
    with pytest.raises(PtxError, match=r"brx\.idx: thread 2 takes label 2 of 2"):
        numbers(body)


SQUARE = """
.func (.param .b64 result) square(.param .b64 number)
{
  .reg .b64 %x<4>; .reg .pred %p<2>;
  ld.param.b64 %x0, [number];
  mul.lo.s64 %x1, %x0, %x0;
  st.param.b64 [result], %x1;
  setp.eq.s64 %p0, %x0, 2;
  @%p0 ret;
  add.s64 %x1, %x1, 1000;
  st.param.b64 [result], %x1;
  ret;
}
.func (.param .align 16 .b8 result[16]) both(.param .align 16 .b8 pair[16])
{
  .reg .b64 %x<6>;
  ld.param.v2.b64 {%x0, %x1}, [pair];
  { .param .b64 in; .param .b64 out;
    st.param.b64 [in], %x0; call.uni (out), square, (in); ld.param.b64 %x2, [out]; }
  { .param .b64 in; .param .b64 out;
    st.param.b64 [in+0], %x1; call.uni (out), square, (in); ld.param.b64 %x3, [out]; }
  st.param.v2.b64 [result], {%x3, %x2};
  ret;
}
"""


def test_calls_in_branches_and_of_functions_that_call():
    """Threads come to one function from two places, and each returns to its own."""
    body = """
      cvt.u64.u32 %x1, %w31;
      setp.lt.u32 %p0, %w31, 2;
      @%p0 bra left;
      { .param .align 16 .b8 pair[16]; .param .align 16 .b8 out[16];
        add.u64 %x2, %x1, 1;
        st.param.v2.b64 [pair], {%x1, %x2};
        call.uni (out), both, (pair);
        ld.param.b64 %x0, [out]; ld.param.b64 %x2, [out+8]; }
      mad.lo.u64 %x0, %x0, 100000, %x2;
      bra join;
    left:
      { .param .b64 in; .param .b64 out;
        st.param.b64 [in], %x1; call.uni (out), square, (in); ld.param.b64 %x0, [out]; }
    join:
    """
    square = {0: 1000, 1: 1001, 2: 4, 3: 1009, 4: 1016, 5: 1025}
    expected = [square[0], square[1], *(square[i + 1] * 100000 + square[i] for i in (2, 3, 4))]
    assert numbers(body, threads=5, before=SQUARE) == expected


def test_recursion_and_unknown_functions_are_refused():
    before = ".func again() { call.uni again; ret; }\n"
    with pytest.raises(PtxError, match="again calls itself"):
        run(kernel("call.uni again;", 0, before))
    with pytest.raises(PtxError, match=r"line \d+: calls missing, which is no function"):
        run(kernel("call.uni missing;", 0))
    with pytest.raises(PtxError, match=r"parameters of square have \[8\] bytes, and \[\] are"):
        run(kernel("{ .param .b64 out; call.uni (out), square, (); }", 0, SQUARE))


def test_barriers_hold_all_threads_of_a_block():
    """Shared memory is read only after all threads have written it; blocks have their own."""
    before = ".shared .align 8 .b8 room[32];\n"
    body = """
      mov.u64 %x1, room;
      mul.wide.u32 %x2, %w28, 8; add.u64 %x2, %x1, %x2;
      cvt.u64.u32 %x3, %w31;
      setp.ne.u32 %p0, %w28, 0; @%p0 bra write;
      mov.u64 %x3, 1000;
    write:
      st.shared.u64 [%x2], %x3;
      bar.sync 0;
      xor.b32 %w0, %w28, 3; mul.wide.u32 %x2, %w0, 8; add.u64 %x2, %x1, %x2;
      ld.shared.u64 %x0, [%x2];
      bar.sync 0;
    """
    assert numbers(body, before=before, grid=2) == [3, 2, 1, 1000, 7, 6, 5, 1000]


def test_barriers_hold_threads_that_come_to_them_in_other_places():
    """Threads whose text comes first wait for the one whose text comes last."""
    before = ".shared .align 8 .u64 room;\n"
    body = """
      setp.eq.u32 %p0, %w28, 2; @%p0 bra late;
      bar.sync 0;
      ld.shared.u64 %x0, [room]; bra done;
    late:
      st.shared.u64 [room], 77; mov.u64 %x0, 1;
      bar.sync 0;
    done:
    """
    assert numbers(body, before=before) == [77, 77, 1, 77]


def test_instructions_are_counted_once_for_threads_that_go_together():
    """So that threads which parted at a branch are seen to run together again behind it."""
    branch = """
      setp.eq.u32 %p0, %w31, 0; @%p0 bra left;
      mov.u64 %x0, 1; bra.uni join;
    left: mov.u64 %x0, 2;
    join:
    """
    behind = "add.u64 %x0, %x0, 1;\n" * 50
    count = run(kernel(branch + behind, 0), block=32)
    alone = run(kernel(branch + behind, 0), block=1)
    assert alone < count < alone + 5
