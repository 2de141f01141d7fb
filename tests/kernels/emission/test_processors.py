"""Operations of kernels on processors of all kinds: LLVM makes code of them that calls nothing."""

import re
import struct
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from helpers.device_threads import launch
from helpers.host_functions import arguments, definitions, on_host, without_fma
from jaxdae.kernels.cuda import ptx
from jaxdae.kernels.cuda.assembler import assemble
from jaxdae.kernels.emission.elementary_functions import (
    BOTH,
    call,
    function,
    LIMITED,
    VECTOR_FUNCTIONS,
)
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.module import Module
from jaxdae.kernels.llvm.registers import Integer, Number
from jaxdae.kernels.llvm.writer import Writer

# Triple and processor; a name that ends in `small` is of one that joins no products and sums.
PROCESSORS = {
    "x86-64 small": ("x86_64-unknown-linux-gnu", "x86-64-v2"),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic"),
    "wasm32 small": ("wasm32-unknown-unknown", "generic"),
    "nvptx64": ("nvptx64-nvidia-cuda", "sm_70"),
}
# The assembler wants a kernel.
ENTRY = "\n\ndefine ptx_kernel void @kernel() {\n  ret void\n}"
# The linker's own, not a function.
_TABLE = "_GLOBAL_OFFSET_TABLE_"


@cache
def initialized():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def compiled(name, dtype, operations, fused=True):
    """Assembly, or object code."""
    initialized()
    triple, processor = PROCESSORS[name]
    made = definitions(operations, 1, dtype)
    text = Module(made).text if fused else without_fma(made)
    target = llvm.Target.from_triple(triple).create_target_machine(cpu=processor, opt=1)
    module = llvm.parse_assembly(text + (ENTRY if name == "nvptx64" else ""))
    module.triple, module.data_layout = triple, str(target.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    if name.split()[0] in ("wasm32", "nvptx64"):
        return target.emit_assembly(module), b""
    return "", target.emit_object(module)


def undefined(code):
    """Names that object code asks for: those of its table of symbols that are in no section."""
    sections = {x.name(): x.data() for x in llvm.ObjectFileRef.from_data(code).sections()}
    symbols, names = sections[b".symtab"], sections[b".strtab"]
    entries = struct.iter_unpack("<IBBHQQ", symbols)
    asked = {entry[0] for entry in entries if entry[3] == 0 and entry[0]}
    return {names[i : names.index(b"\0", i)].decode() for i in asked} - {_TABLE}


def asked_for(name, text, code):
    """Functions that a linker would have to find."""
    if name == "nvptx64":
        return set(re.findall(r"^\.extern.*", text, re.MULTILINE))
    if code:
        return undefined(code)
    defined = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    return set(re.findall(r"\.functype\s+(\w+)", text)) - defined


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", PROCESSORS)
def test_operations_call_no_library(name, dtype):
    # To single precision numbers are rounded in programs of double precision alone.
    names = [x for x in OPERATIONS if dtype == np.float64 or x != "single"]
    text, code = compiled(name, dtype, [*names, BOTH], "small" not in name)
    assert asked_for(name, text, code) == set()
    if name == "nvptx64":
        assemble(text, "sm_70")


@pytest.mark.parametrize("name", [x for x in PROCESSORS if "small" in x])
def test_a_call_of_a_library_is_seen(name):
    """Without what takes the place of fused products, LLVM calls the C library's."""
    assert asked_for(name, *compiled(name, np.float32, ["exp"])) == {"fmaf"}


def thread_function(names, dtype):
    """A kernel of which each thread has two numbers, and two results of each function."""
    w = Writer(1, dtype)
    sizes, number = ["ctaid", "ntid", "tid"], "llvm.nvvm.read.ptx.sreg.{}.x"
    block, length, thread = (w.invoke("i32", number.format(x), declared="") for x in sizes)
    index = Integer(w, block, "i32") * Integer(w, length, "i32") + Integer(w, thread, "i32")
    place = index.resized("i64")
    given = [Number(w, w.load(w.vector, w.place(w.scalar, x, place))) for x in ("%a0", "%a1")]
    for name in names:
        for i, x in enumerate(call(name, *given[: arguments(name)])):
            w.store(w.vector, x, w.place(w.scalar, f"%{name}{i}", place))
    w.line("  ret void")
    results = [f"%{name}{i}" for name in names for i in range(2)]
    pointers = ", ".join(f"ptr {x}" for x in ["%a0", "%a1", *results])
    return w.returned("ptx_kernel void", "kernel", pointers, "")


def on_gpu(names, dtype, *x):
    """Results of threads, executed one by one."""
    threads, results = 32, np.zeros((len(names), 2, x[0].size), dtype)
    arrays = [*x, *results.reshape(-1, x[0].size)]
    needed = [y for name in names for y in function(name, 1, dtype)]
    text = ptx.ptx(Module([*needed, thread_function(names, dtype)]).text)
    words = [a.ctypes.data for a in arrays]
    launch(text, x[0].size // threads, threads, words)
    return dict(zip(names, results, strict=True))


OTHERS = tuple(x for x in VECTOR_FUNCTIONS if x not in LIMITED)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("names", [LIMITED, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_threads_of_gpus_compute_what_processors_do(names, dtype, rng):
    """Large arguments too, and special ones; threads of a warp part where some have them."""
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, np.finfo(dtype).max, np.finfo(dtype).tiny, 3.0]
    large = rng.normal(size=60) * 2.0 ** rng.uniform(-60, 120, 60)
    x = rng.permutation(np.concatenate([special, large, 9 * rng.normal(size=60)])).astype(dtype)
    y = rng.permutation(x)
    found, there = on_gpu(names, dtype, x, y), on_host(names, 1, dtype)
    for name, compute in there.items():
        expected = compute(*(x, y)[: arguments(name)])
        np.testing.assert_array_equal(np.isnan(found[name]), np.isnan(expected))
        defined = ~np.isnan(expected)
        # Processors that do not join products and sums round once more.
        np.testing.assert_array_max_ulp(found[name][defined], expected[defined], 2)
