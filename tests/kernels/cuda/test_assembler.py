"""The assembler: where it is found, what is read of its words, and what it says of bad input."""

import importlib.metadata
import os
import stat

import pytest

from jaxdae.kernels.cuda import assembler
from jaxdae.kernels.cuda.assembler import (
    architectures,
    assemble,
    AssemblerError,
    AssemblerMissingError,
    parsed,
    Resources,
)

# y = a x + b for each thread, with an array in shared memory.
KERNEL = """
.version 6.4
.target sm_70
.address_size 64
.visible .entry kernel(.param .u64 x)
{
  .shared .align 8 .b8 room[64];
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  .reg .f64 %fd<3>;
  ld.param.u64 %rd1, [x];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 8;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.f64 %fd1, [%rd3];
  st.shared.f64 [room], %fd1;
  bar.sync 0;
  ld.shared.f64 %fd2, [room+8];
  fma.rn.f64 %fd1, %fd1, 0d4000000000000000, %fd2;
  st.global.f64 [%rd3], %fd1;
  ret;
}
"""


@pytest.fixture(autouse=True)
def _found_anew():
    """Each test looks for the assembler itself."""
    functions = assembler.assembler, architectures, assemble
    for one in functions:
        one.cache_clear()
    yield
    for one in functions:
        one.cache_clear()


def test_a_kernel_takes_what_it_declares():
    """No stack, nothing spilled, few registers."""
    resources = assemble(KERNEL, "sm_90")
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert 4 <= resources.registers <= 32


def test_an_unknown_architecture_is_named_with_those_known():
    with pytest.raises(AssemblerError, match=r"does not know 'sm_1'; it knows sm_\d+, .*sm_90"):
        assemble(KERNEL, "sm_1")


def test_a_gpu_older_than_the_kernel_is_refused():
    with pytest.raises(AssemblerError, match="for GPUs from sm_70 on, and sm_60 is older"):
        assemble(KERNEL, "sm_60")


def test_what_is_wrong_in_ptx_is_said_in_the_words_of_the_assembler():
    with pytest.raises(AssemblerError, match=r"(?s)refuses this.*kernel.ptx, line \d+.*fmo"):
        assemble(KERNEL.replace("fma.rn.f64", "fmo.rn.f64"))


def test_modules_have_one_kernel():
    second = KERNEL[KERNEL.index(".visible") :].replace(" kernel(", " other(")
    with pytest.raises(AssemblerError, match="reported on 2 kernels, where there is to be one"):
        assemble(KERNEL + second)


def test_spills_of_all_functions_count_and_stacks_are_those_of_the_deepest_call():
    log = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kernel' for 'sm_70'
ptxas info    : Function properties for kernel
    16 bytes stack frame, 8 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, 392 bytes \
cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for rhs
    32 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""
    assert parsed(log) == Resources(255, 12, 48)


def test_where_there_is_none_the_extra_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(AssemblerMissingError, match=r"pip install 'jaxdae\[gpu-test\]'"):
        assemble(KERNEL)


def test_without_the_package_it_is_found_on_the_path(monkeypatch, tmp_path):
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: None)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert assembler.assembler() == path
    with pytest.raises(AssemblerError, match="ptxas refuses this"):
        architectures()


def test_a_file_that_does_not_run_is_named(monkeypatch, tmp_path):
    path = tmp_path / "ptxas"
    path.write_bytes(b"\x00")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(assembler, "assembler", lambda: path)
    with pytest.raises(AssemblerError, match=r"ptxas does not run .*install it anew"):
        architectures()


def test_an_assembler_that_hangs_is_given_up(monkeypatch, tmp_path):
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\nexec sleep 5\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(assembler, "assembler", lambda: path)
    monkeypatch.setattr(assembler, "_PATIENCE", 0.05)
    with pytest.raises(AssemblerError, match="did not end within"):
        architectures()
