"""PTX from LLVM's text: for which GPU, kept on disk, and what is refused."""

import jax
import numpy as np
import pytest

from jaxdae.kernels.cuda import ptx as module
from jaxdae.kernels.cuda.assembler import assemble, AssemblerError
from jaxdae.kernels.cuda.device_lanes import DeviceLanes
from jaxdae.kernels.cuda.ptx import BASELINE, for_threads, ptx, threads
from jaxdae.kernels.llvm.batch_loops import Buffer, Signature
from jaxdae.kernels.llvm.machine_code import MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule
from jaxdae.kernels.llvm.registers import Integer


def doubling(factor=2.0):
    """A kernel that multiplies the numbers of members by a factor."""
    lanes = DeviceLanes(1, np.float64, 1, Signature((1,), (1,)))
    x = Buffer(lanes, lanes.arguments, 0, 1, 1, 0)
    y = Buffer(lanes, lanes.results, 0, 1, 1, 0)
    with lanes.turns(lanes.begin, lanes.end, lanes.stride) as turns:
        member = Integer(lanes, turns.index)
        y.write(x.read(member, 0) * factor, member, 0)
    return LlvmModule([lanes.finish()]).text


@pytest.mark.parametrize("architecture", [BASELINE, "sm_90", "sm_120"])
def test_the_text_names_the_gpu_that_it_is_for(architecture):
    text = ptx(doubling(), architecture)
    assert f".target {architecture}" in text
    assert ".visible .entry kernel(" in text


def test_numbers_are_read_and_written_in_global_memory():
    """Generic addresses would cost a look-up each time."""
    text = ptx(doubling())
    assert "ld.global" in text
    assert "st.global" in text
    assert not any(f"\t{x}.b64 \t[" in text or f"\t{x}.b64\t[" in text for x in ("ld", "st"))


def test_a_mistake_in_the_text_is_told_with_the_words_of_llvm():
    with pytest.raises(MachineCodeError, match=r"of this GPU kernel: LLVM IR parsing error"):
        ptx("define nonsense")


@pytest.mark.parametrize(("count", "version"), [(544, "6.0"), (545, "8.1"), (4095, "8.1")])
def test_a_kernel_of_many_arrays_is_one_of_a_newer_version_that_takes_them(count, version):
    """NVIDIA's assembler knows where the room for parameters ends: at 4352 and at 32764 bytes."""
    text = ptx(of_parameters(count))
    assert f".version {version}\n" in text
    assemble(text, BASELINE)
    if count in (544, 4095):
        last = f"kernel_param_{count - 1}\n"
        extended = text.replace(last, f"{last},.param .u64 one_more\n")
        with pytest.raises(AssemblerError, match="too much parameter space"):
            assemble(extended, BASELINE)


def test_more_parameters_than_a_gpu_takes_are_refused():
    with pytest.raises(MachineCodeError, match=r"has 4096 parameters .* takes 4095: declare fewer"):
        ptx(of_parameters(4096))


def of_parameters(count: int) -> str:
    listed = ", ".join(f"i64 %p{i}" for i in range(count))
    return f"define ptx_kernel void @kernel({listed}) {{\n  ret void\n}}"


def test_text_is_kept_on_disk_where_jax_keeps_programs(tmp_path, monkeypatch):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    text, made = doubling(factor=3.0), []
    compile_ = module._compiled
    monkeypatch.setattr(module, "_compiled", lambda *x: (made.append(x), compile_(*x))[1])
    try:
        jax.config.update(names[0], str(tmp_path))
        jax.config.update(names[1], 0.0)
        first = ptx(text)
        ptx.cache_clear()
        assert ptx(text) == first
        assert len(made) == 1
        assert ptx(text, "sm_90") != first
        assert len(made) == 2
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.parametrize(
    ("members", "scratch", "wanted"),
    [(1, 0, 64), (64, 0, 64), (65, 0, 128), (10**7, 0, 2**18), (10**7, 2**20, 1024), (0, 0, 64)],
)
def test_threads_are_full_blocks_within_the_memory_beside(members, scratch, wanted):
    """A gigabyte for all threads: 1024 of them where each keeps a mebibyte."""
    assert threads(members, scratch) == wanted


@pytest.mark.parametrize(("length", "copies"), [(20, 3), (400, 1)])
def test_a_long_function_that_is_called_often_is_there_once(length, copies):
    lines = ["  %r0 = load double, ptr %a"]
    lines += [f"  %r{i} = fadd double %r{i - 1}, 3.0" for i in range(1, length)]
    lines += [f"  store double %r{length - 1}, ptr %a", "  ret void ", "}"]
    f = Definition("f", "define internal void @f(ptr %a) {\nentry:\n" + "\n".join(lines))
    calls = 3 * "  call void @f(ptr %a)\n"
    entry = f"define ptx_kernel void @kernel(ptr %a) {{\nentry:\n{calls}  ret void\n}}"
    made = ptx(LlvmModule(for_threads([f, Definition("kernel", entry)])).text)
    assert made.count("add.rn.f64") == copies * (length - 1)
    assemble(made, BASELINE)
