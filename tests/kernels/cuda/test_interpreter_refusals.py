"""What the interpreter of PTX refuses: what a thread must not do, and what is not known."""

import re

import numpy as np
import pytest

from helpers.ptx import Memory, Module, PtxError, running
from helpers.ptx_units import HEAD, kernel, numbers, run
from jaxdae.kernels.cuda.assembler import assemble


@pytest.mark.parametrize(
    ("access", "error"),
    [
        ("ld.global.u64 %x0, [%x1+32];", r"thread 0 reads 8 bytes at 0x\w+, outside"),
        ("ld.u64 %x0, [%x1+8];", r"thread 3 reads 8 bytes at 0x\w+, outside"),
        ("ld.global.u64 %x0, [%x1+-8];", r"thread 0 reads 8 bytes at 0x\w+, outside"),
        ("ld.global.u64 %x0, [%x1+4];", r"thread 0 reads 8 bytes at 0x\w+, which is no multiple"),
        ("ld.global.v2.u64 {%x0, %x2}, [%x1];", r"thread 1 reads 16 bytes at .*no multiple"),
        ("st.global.u64 [%x1+16], 1;", r"thread 2 writes 8 bytes at 0x\w+, outside"),
        ("st.global.u32 [%x1+2], 1;", r"thread 0 writes 4 bytes at 0x\w+, which is no multiple"),
        ("mov.u64 %x2, 0; ld.u64 %x0, [%x2];", r"thread 0 reads 8 bytes at 0x0, outside"),
        ("ld.local.u64 %x0, [depot+16];", r"thread 0 reads 8 bytes at 16 of 16 bytes of local"),
        ("ld.local.u64 %x0, [depot+4];", r"thread 0 reads 8 bytes at 4 of 16 bytes of local"),
        ("ld.shared.u64 %x0, [%x1];", r"thread 0 reads 8 bytes at \d+ of 0 bytes of shared"),
        ("div.s64 %x0, %x1, %x31; rem.s64 %x0, 1, 0;", "thread 0 divides an integer by zero"),
        ("setp.eq.u32 %p0, %w31, 2; @%p0 trap;", "thread 2 stops the launch"),
    ],
)
def test_forbidden_accesses_name_line_instruction_and_thread(access, error):
    memory = Memory()
    text = kernel(f".local .align 16 .b8 depot[16];\n add.u64 %x1, %x30, %x31;\n {access}\n", 1)
    place = memory.allocate(np.arange(4.0))
    assemble(text, "sm_70")
    with pytest.raises(PtxError, match=r"^line \d+: [a-z0-9.]+: " + error):
        run(text, place, block=4, memory=memory)


def test_inactive_threads_touch_no_memory():
    body = """
      add.u64 %x1, %x29, %x31;
      mov.u64 %x0, 9;
      setp.lt.u32 %p0, %w31, 2;
      @%p0 ld.global.u64 %x0, [%x1];
    """
    assert numbers(body, np.arange(2, dtype=np.uint64)) == [0, 1, 9, 9]


def test_a_register_that_is_not_set_is_not_read():
    with pytest.raises(PtxError, match=r"add\.u64: thread 0 reads register %x1, which is not set"):
        run(kernel("add.u64 %x0, %x1, 1;", 0))
    # Set on one side of a branch, by a guard, or in a later turn of a loop.
    half = "setp.eq.u32 %p0, %w31, 0; @%p0 bra over; mov.u64 %x1, 4; over: not.b64 %x0, %x1;"
    with pytest.raises(PtxError, match=r"not\.b64: thread 0 reads register %x1"):
        run(kernel(half, 0))
    guarded = "setp.eq.u32 %p0, %w31, 0; @%p0 mov.u64 %x1, 4; not.b64 %x0, %x1;"
    with pytest.raises(PtxError, match=r"thread 1 reads register %x1"):
        run(kernel(guarded, 0))
    with pytest.raises(PtxError, match=r"bra: thread 0 reads register %p0"):
        run(kernel("again: @%p0 bra again; setp.eq.u32 %p0, %w31, 0;", 0))
    with pytest.raises(PtxError, match=r"st\.u64: thread 0 reads register %x1"):
        run(kernel("st.u64 [%x1], 3;", 0))


def test_a_register_that_is_set_on_every_way_is_read():
    """In the threads that read it: others may not have set it."""
    body = """
      setp.eq.u32 %p0, %w31, 0;
      @%p0 mov.u64 %x1, 4;
      mov.u64 %x0, 1;
      @%p0 mov.u64 %x0, %x1;
    """
    assert numbers(body) == [4, 1, 1, 1]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("add.rn.f64 %x0, %x1;", "has 2 operands, not 3"),
        ("mul.f64 %x0, %x0, %x0;", r"unknown instruction mul\.f64: without \.rn, an assembler may"),
        ("rcp.approx.ftz.f64 %x0, %x0;", "unknown instruction .*: its result is not specified"),
        ("add.rn.ftz.f32 %w0, %w0, %w0;", "unknown instruction .*subnormal"),
        ("add.rz.f64 %x0, %x0, %x0;", r"unknown instruction add\.rz\.f64$"),
        ("shfl.sync.bfly.b32 %w0, %w0, 1, 31, -1;", r"unknown instruction shfl\.sync"),
        ("mov.u32 %w0, %laneid;", "unknown register %laneid"),
        ("mov.u32 %w99, 1;", "unknown register %w99"),
        ("add.u64 %w0, %x0, %x1;", r"%w0 is a register of \.b32, not \.u64"),
        ("add.rn.f64 %x0, %x0, 0f3F800000;", "0f3F800000 is no literal of type float64"),
        ("ld.global.u64 %x0, [0];", "an address begins with a register or a variable"),
        ("add.rn.f64 %x0, %x0, 1;", "1 is no literal of type float64"),
        ("add.u32 %w0, %w0, 4294967296;", "4294967296 is no literal of type uint32"),
        ("bra nowhere;", "unknown label nowhere"),
        ("ld.param.u64 %x0, [missing];", "unknown parameter missing"),
        ("ld.param.u64 %x0, [p0+8];", "8 bytes at 8 of 8 of a parameter"),
        ("mov.u64 %x0, missing;", "unknown variable missing"),
        ("bar.sync 1;", "only barrier 0"),
        ("@%x0 bra nowhere;", "is no predicate"),
        (".loc 1 2 3;", r"unknown directive '\.loc'"),
        ('.pragma "unroll";', 'unknown pragma "unroll"'),
        (".reg .f16 %h;", r"unknown type \.f16"),
        ("mov.u64 %x0, 1 # 2;", "unexpected '#'"),
        ("same: same: mov.u64 %x0, 1;", "label same is there twice"),
        ("setp.lt.u64 %p0|%p1, %x0, %x0;", "expected ',', not '|'"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(body, error):
    text = kernel(f"\n{body}\n", 1)
    line = next(i for i, x in enumerate(text.splitlines(), 1) if x == body)
    with pytest.raises(PtxError, match=rf"^line {line}: ") as caught:
        run(text, 0)
    assert re.search(error, str(caught.value))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{HEAD}.extern .func (.param .b64 r) f();", r"line 4: unknown directive '\.extern'"),
        (".version 8.0\n.target sm_70\n.address_size 32\n", "line 3: addresses of 32 bits"),
        (f"{HEAD}.global .u64 x = y;", "line 4: 'y' is no number"),
        (f"{HEAD}.func f() {{ ret; }}\n.func f() {{ ret; }}", "line 5: f is defined twice"),
        (f"{HEAD}.global .u32 x[2] = {{1, 2, 3}};", "line 4: 3 values for 2 entries"),
        (f"{HEAD}.visible .entry kernel() {{ .reg .b64 %a; mov.u64 %a, 1; }}", "goes on behind"),
        (f"{HEAD}.visible .entry kernel() {{ .shared .u32 x = 1; ret; }}", "have no values"),
    ],
)
def test_other_texts_are_refused(text, error):
    with pytest.raises(PtxError, match=error):
        run(text)


def test_launches_are_checked():
    text = kernel("", 2)
    with pytest.raises(PtxError, match="kernel has 2 parameters, and 1 were given"):
        run(text, 1)
    with pytest.raises(PtxError, match="no entry other"):
        Module(text).launch("other", 1, 1, [], Memory())
    with pytest.raises(PtxError, match="blocks of kernel have at most 1024 threads"):
        run(text, 0, 0, block=1025)
    sized = text.replace("p1)", "p1) .reqntid 64, 1, 1")
    assemble(sized, "sm_70")
    with pytest.raises(PtxError, match="kernel needs blocks of 64 threads, not 2"):
        run(sized, 0, 0)
    run(sized, 0, 0, block=64)
    with pytest.raises(PtxError, match="blocks of kernel have at most 32 threads"):
        run(text.replace("p1)", "p1) .maxntid 32"), 0, 0, block=33)


def test_parameters_of_32_bits_and_pointers_with_attributes():
    text = (
        f"{HEAD}.visible .entry kernel(.param .u64 .ptr .global .align 8 out, .param .u32 n)\n"
        "{ .reg .b64 %x<3>; .reg .b32 %w<3>;\n ld.param.u64 %x0, [out]; ld.param.u32 %w0, [n];\n"
        " st.global.u32 [%x0], %w0; ret; }"
    )
    assemble(text, "sm_70")
    memory = Memory()
    at = memory.allocate(np.zeros(1))
    run(text, at, -5, memory=memory, block=1)
    assert memory.read(at, (1,), np.int32) == [-5]


def test_two_threads_do_not_store_different_numbers_at_one_place():
    """PTX does not say which of them stays; equal ones may."""
    memory = Memory()
    place = memory.allocate(np.zeros(2))
    text = kernel("shr.u32 %w0, %w31, 1; cvt.u64.u32 %x0, %w0; st.global.u64 [%x30], %x0;", 1)
    run(text, place, memory=memory, block=2)
    with pytest.raises(PtxError, match=r"thread 2 writes to 0x.* same time as thread 1, and some"):
        run(text, place, memory=memory, block=3)
    shared = ".shared .u64 room;\n"
    text = kernel("cvt.u64.u32 %x0, %w31; st.shared.u64 [room], %x0;", 0, shared)
    with pytest.raises(PtxError, match=r"thread 1 writes to .* at the same time as thread 0"):
        run(text)


def test_a_function_begins_anew_each_time():
    """What an earlier call left in its registers and its memory is not there."""
    before = """
    .func keep(.param .b64 first)
    {
      .reg .b64 %x<4>; .reg .pred %p<2>; .local .align 8 .u64 room;
      ld.param.b64 %x0, [first];
      setp.eq.u64 %p0, %x0, 1;
      @%p0 mov.u64 %x1, 5;
      @%p0 st.local.u64 [room], %x1;
      ld.local.u64 %x2, [room];
      CHECK
      ret;
    }
    """
    call = "{{ .param .b64 in; st.param.b64 [in], {}; call.uni keep, (in); }}"
    body = "\n".join(call.format(x) for x in (1, 0))
    register = before.replace("CHECK", "add.u64 %x3, %x1, %x2;")
    with pytest.raises(PtxError, match="reads register %x1, which is not set"):
        run(kernel(body, 0, register))
    run(kernel(call.format(1), 0, register))
    stale = before.replace("CHECK", "setp.eq.u64 %p1, %x2, 5; @!%p1 trap;")
    with pytest.raises(PtxError, match="thread 0 stops the launch"):
        run(kernel(body, 0, stale))
    run(kernel(call.format(1), 0, stale))


def test_an_endless_loop_is_an_error(monkeypatch):
    monkeypatch.setattr(running, "_MOST", 1000)
    with pytest.raises(PtxError, match=r"line \d+: no end after 1000 instructions"):
        run(kernel("again: bra again;", 0))
