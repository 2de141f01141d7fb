"""Machine code from LLVM's intermediate language."""

import ctypes
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import jax

from jaxdae.kernels.llvm import storage, xla_interface
from jaxdae.kernels.llvm.module import LlvmModule

_REGISTERED: set[str] = set()
# JAX may compile in several threads.
_LOCK = threading.Lock()
# Levels of optimization of the target and of the passes before it, by whether code is to be made
# quickly. They are part of the key of what is on disk.
_LEVELS = {False: (3, 2), True: (0, 0)}
# Of longer modules of single members most passes take half of the time, and win nothing: they are
# equations written out, of which what is equal is computed once already. Vectors of members need
# them.
_MOST_LINES = 6000
_OF_SINGLE_MEMBERS = "<1 x "
_FEW = ("always_inliner", "sroa", "simplify_cfg", "instruction_combine", "loop_rotate")
# Functions of the C library that kernels call.
_WANTED = (
    "malloc", "free", "pthread_create", "pthread_join", "pthread_attr_init",
    "pthread_attr_setstacksize", "pthread_attr_destroy",
)  # fmt: skip


class MachineCodeError(RuntimeError):
    """A kernel that LLVM does not accept, or that needs what this machine does not have."""


class Host(NamedTuple):
    """The processor that machine code is made for.

    Args:
        cpu: LLVM's name of it.
        features: what it can do, as LLVM writes it: `+avx,-avx512f`.
    """

    cpu: str
    features: str


@cache
def _llvm():
    try:
        import llvmlite.binding as llvm
    except ModuleNotFoundError as error:
        raise ImportError("native kernels need llvmlite: pip install llvmlite.") from error
    except (ImportError, OSError) as error:
        raise ImportError(
            f"llvmlite is installed, but does not load: {error}. Install it anew: pip install "
            "--force-reinstall llvmlite."
        ) from error
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _features() -> dict[str, bool]:
    """What the processor can do; nothing in particular where LLVM cannot tell."""
    try:
        return dict(_llvm().get_host_cpu_features())
    except RuntimeError:
        return {}


@cache
def host() -> Host:
    """The processor of this machine."""
    features = (f"{'+' if has else '-'}{name}" for name, has in sorted(_features().items()))
    return Host(_llvm().get_host_cpu_name(), ",".join(features))


def host_width(bits: int) -> int:
    """Numbers of so many bits that a vector register of this machine holds.

    On processors without these registers, or whose features are not known, 128 bits: LLVM takes
    wider vectors apart where a processor has no such ones.
    """
    for name, size in (("avx512f", 512), ("avx", 256)):
        if _features().get(name, False):
            return size // bits
    return 128 // bits


def register(module: LlvmModule, content: str = "") -> str:
    """Compile a module and make its `@handler` known to XLA.

    Where JAX is set to compile quickly (`jax_disable_most_optimizations`), so is the module.
    Where JAX keeps compiled programs on disk (`jax_compilation_cache_dir`), machine code is kept
    there too, if compiling it took as long as JAX asks of a program that it keeps. It is used by
    processes with the same module, LLVM and processor, and by no others.

    Args:
        module: what is compiled.
        content: what the module computes, in words that are the same on every machine.

    Returns:
        Name of the target of foreign-function calls; equal modules have one. Its first part tells
        the content, its second the module (`portable_names`).
    """
    reason = xla_interface.obstacle()
    if reason is not None:
        raise MachineCodeError(f"{reason}; use the function without jaxdae.kernels.native here.")
    key = _key(module.text)
    name = f"jaxdae_{hashlib.sha256(content.encode()).hexdigest()[:32]}_{key[:32]}"
    with _LOCK:
        if name not in _REGISTERED:
            (handler,) = _addresses(module, key, ["handler"])
            jax.ffi.register_ffi_target(name, xla_interface.capsule(handler), platform="cpu")
            _REGISTERED.add(name)
    return name


def functions(module: LlvmModule, names: Sequence[str]) -> list[int]:
    """Addresses of functions of a module, which stay as long as this process."""
    with _LOCK:
        return _addresses(module, _key(module.text), names)


def portable_names(program: str) -> str:
    """Text of a compiled program with names that tell only what its kernels compute.

    It is the same for machines of other processors and other numbers of threads.
    """
    return re.sub(r"(jaxdae_[0-9a-f]{32})_[0-9a-f]{32}", r"\1", program)


def obstacle() -> str | None:
    """What keeps machine code from being made on this machine; `None` where nothing does."""
    missing = without_llvm()
    if missing is not None:
        return missing
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # a system whose processes have no library of C of their own
        library = None
    lacking = [x for x in _WANTED if not hasattr(library, x)]
    if lacking:
        return f"the C library here has no {', '.join(lacking)}"
    return xla_interface.obstacle()


def without_llvm() -> str | None:
    """Why there is no LLVM here, which all other machines have; `None` where there is."""
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed: pip install llvmlite"
    try:
        _llvm()
    except ImportError as error:
        return str(error)
    return None


def _key(text: str) -> str:
    """Hash of all that decides on the machine code of a module."""
    made = f"{_llvm().llvm_version_info} {_levels()} {host().cpu} {host().features}"
    return hashlib.sha256(f"{made}\n{text}".encode()).hexdigest()


def _levels() -> tuple[int, int]:
    return _LEVELS[quickly()]


def quickly() -> bool:
    """Whether JAX compiles without optimization by its settings; kernels are then made so, too."""
    return bool(jax.config.values["jax_disable_most_optimizations"])


def _compiled(text: str) -> bytes:
    """Object code of a module."""
    llvm = _llvm()
    target = _target(llvm)
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise MachineCodeError(
            f"LLVM refuses the module of this kernel, which is a mistake in jaxdae and not in the "
            f"function: {str(error).strip()}. Please report it with the function; until then use "
            "the function without jaxdae.kernels.native, or simulate(..., backend='plain')."
        ) from error
    module.triple = llvm.get_process_triple()
    options = llvm.create_pipeline_tuning_options(speed_level=_levels()[1])
    builder = llvm.create_pass_builder(target, options)
    long = text.count("\n") > _MOST_LINES
    if long and _OF_SINGLE_MEMBERS in text and not quickly():
        passes = llvm.create_new_module_pass_manager()
        for name in _FEW:
            getattr(passes, f"add_{name}_pass")()
    else:
        passes = builder.getModulePassManager()
    passes.run(module, builder)
    return target.emit_object(module)


def _target(llvm):
    triple = llvm.Target.from_default_triple()
    return triple.create_target_machine(
        cpu=host().cpu, features=host().features, opt=_levels()[0], jit=True
    )


def _addresses(module: LlvmModule, key: str, names: Sequence[str]) -> list[int]:
    """Where functions lie once the object code of a module is in memory."""
    llvm, code = _llvm(), storage.kept(key, lambda: _compiled(module.text))
    # The first engine makes the functions of the process known to LLVM.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(llvm))
    # LLVM would end the process at a function that it does not find.
    missing = [name for name in module.library if llvm.address_of_symbol(name) is None]
    if missing:
        raise MachineCodeError(
            f"the kernel calls {', '.join(missing)}, which the C library of this machine does not "
            "have; use the function without jaxdae.kernels.native here."
        )
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = [engine.get_function_address(x) for x in names]
    # Never given back, not even when the interpreter ends: programs of JAX point into the code, and
    # may be running it then in threads of their own.
    engine.detach()
    return addresses


def default_threads() -> int:
    """Threads that share a batch: the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
