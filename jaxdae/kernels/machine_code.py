"""Machine code from LLVM's intermediate language."""

import ctypes
import hashlib
import os
from functools import cache
from typing import Any

import jax

# Machine code is kept for the life of the process: compiled programs of JAX point into it.
_ENGINES: list[Any] = []
_REGISTERED: dict[str, None] = {}


@cache
def _llvm():
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise ImportError("native kernels need llvmlite: pip install 'jaxdae[native]'.") from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def host_width(bits: int) -> int:
    """Numbers of so many bits that a vector register of this machine holds."""
    features = _llvm().get_host_cpu_features()
    for name, size in (("avx512f", 512), ("avx", 256)):
        if features.get(name, False):
            return size // bits
    return 128 // bits


def register(text: str) -> str:
    """Compile a module and make its `@handler` known to XLA.

    Args:
        text: the module.

    Returns:
        Name of the target of foreign-function calls; equal modules have one.
    """
    llvm = _llvm()
    host = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    key = hashlib.sha256(f"{llvm.llvm_version_info} {host}\n{text}".encode()).hexdigest()
    name = f"jaxdae_{key[:32]}"
    if name not in _REGISTERED:
        address = _compiled(llvm, text)
        jax.ffi.register_ffi_target(name, _capsule(address), platform="cpu")
        _REGISTERED[name] = None
    return name


def _compiled(llvm, text: str) -> int:
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
    module = llvm.parse_assembly(text)
    module.verify()
    module.triple = llvm.get_process_triple()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    _ENGINES.append(engine)
    return engine.get_function_address("handler")


def _capsule(address: int):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, None, None)


def default_threads() -> int:
    """Threads that share a batch: the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
