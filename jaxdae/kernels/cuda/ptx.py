"""PTX, the assembly language of NVIDIA GPUs, from LLVM's intermediate language."""

import hashlib
from functools import cache, lru_cache

from jaxdae.kernels.cuda.kernel import ENTRY
from jaxdae.kernels.llvm import storage
from jaxdae.kernels.llvm.machine_code import MachineCodeError

# The oldest GPUs that are served: the driver makes machine code for newer ones from the same text.
BASELINE = "sm_70"
_TRIPLE = "nvptx64-nvidia-cuda"
# Functions up to this cost become part of those that call them: calls keep registers in memory.
_INLINED = 100_000
# Parameters of a kernel, of eight bytes each: up to so many fit into every version of PTX, and more
# only since PTX 8.1, which drivers know since CUDA 12.1.
_FEW, _MOST_PARAMETERS = 544, 4095
_NEWER = "+ptx81"
# Texts that are kept in a process.
_MOST = 256


@cache
def _llvm():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@lru_cache(_MOST)
def ptx(text: str, architecture: str = BASELINE, unrolled: bool = True) -> str:
    """Compile a module, or take what was made of it before, from the disk where JAX keeps programs.

    Args:
        text: in LLVM's intermediate language, with an entry.
        architecture: the GPU's, as `sm_90`.
        unrolled: whether short loops become straight lines.

    Returns:
        PTX.

    Raises:
        MachineCodeError: where LLVM refuses the module, or it has too many parameters.
    """
    made = f"{_llvm().llvm_version_info} {architecture} {_TRIPLE} {_INLINED} {unrolled}\n{text}"
    key = hashlib.sha256(made.encode()).hexdigest()
    return storage.kept(key, lambda: _compiled(text, architecture, unrolled).encode()).decode()


def _compiled(text: str, architecture: str, unrolled: bool) -> str:
    llvm = _llvm()
    try:
        module = llvm.parse_assembly(text)
        target = llvm.Target.from_triple(_TRIPLE).create_target_machine(
            cpu=architecture, features=_features(module), opt=3
        )
        module.triple, module.data_layout = _TRIPLE, str(target.target_data)
        module.verify()
    except RuntimeError as error:
        raise MachineCodeError(
            f"LLVM refuses the module of this GPU kernel: {str(error).strip()}. That is a mistake "
            "in jaxdae; please report it, and use simulate(..., backend='plain') until then."
        ) from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.inlining_threshold, options.loop_unrolling = _INLINED, unrolled
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(module, passes)
    return target.emit_assembly(module)


def _features(module) -> str:
    """What a module needs beside the oldest version of PTX."""
    count = sum(len(list(x.arguments)) for x in module.functions if x.name == ENTRY)
    if count > _MOST_PARAMETERS:
        raise MachineCodeError(
            f"the kernel has {count} parameters (each array has its address and its dimensions), "
            f"and a GPU takes {_MOST_PARAMETERS}: declare fewer, larger arrays, or use "
            "simulate(..., backend='plain')."
        )
    return _NEWER if count > _FEW else ""
