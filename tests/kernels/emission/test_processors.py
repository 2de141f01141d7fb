"""Operations of kernels on processors of all kinds: LLVM makes code of them that calls nothing."""

import re
import struct
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from helpers.host_functions import definitions, without_fma
from jaxdae.kernels.cuda.assembler import assemble
from jaxdae.kernels.emission.elementary_functions import (
    BOTH,
)
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm.module import LlvmModule

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
    text = LlvmModule(made).text if fused else without_fma(made)
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
@pytest.mark.parametrize(
    ("name", "dtype"), [*((x, np.float64) for x in PROCESSORS), ("wasm32 small", np.float32)]
)
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
