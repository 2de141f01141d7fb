"""Kernels of NVIDIA GPUs in their assembly language, PTX, and with how many threads they run."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from jaxdae.kernels.llvm import storage
from jaxdae.kernels.llvm.machine_code import MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule

# Name of kernels in their PTX.
ENTRY = "kernel"
# Threads of a block: two warps, so that blocks fill a processor well whatever registers they need.
_BLOCK = 64
# Members that are served at once, at most; a thread that is done takes the next member. Today's
# largest GPUs hold some 300 000 threads of few registers.
_MOST_THREADS = 2**18
# Memory beside that of arguments and results, for all threads together [bytes].
_SCRATCH_BYTES = 2**30
# The oldest GPUs that are served: the driver makes machine code for newer ones from the same text.
BASELINE = "sm_70"
_TRIPLE = "nvptx64-nvidia-cuda"
# Functions up to this cost become part of those that call them: calls keep registers in memory.
_INLINED = 100_000
# Instructions of all copies of a function that becomes part of those that call it, at most.
_COPIED = 1024
# Parameters of a kernel, of eight bytes each: up to so many fit into every version of PTX, and more
# only since PTX 8.1, which drivers know since CUDA 12.1.
_FEW, _MOST_PARAMETERS = 544, 4095
_NEWER = "+ptx81"
# Texts that are kept in a process.
_MOST = 256
_ROOM = re.compile(r"(= alloca <?(?:1 x )?(\w+)>?.*, align )\d+$", re.MULTILINE)
_CALL = re.compile(r"^  call void @([\w.]+)\(", re.MULTILINE)


class DeviceKernel(NamedTuple):
    """A kernel for a GPU.

    Its parameters, of eight bytes each: of every argument and then of every result, the last of
    which is scratch memory, the pointer to its data and then all its dimensions; then the number of
    members. Thread `t` of `T` serves the members `t`, `t + T`, `t + 2 T`, and so on.

    Args:
        ptx: text with an entry `kernel`.
        rank: leading axes of the first result, which are the batch.
        threads: largest number of threads, a multiple of `block`.
        block: threads of a block.
    """

    ptx: str
    rank: int
    threads: int
    block: int


def device_kernel(
    definitions: Iterable[Definition], rank: int, members: int, scratch: int
) -> DeviceKernel:
    """A kernel from its functions, the entry among them.

    Args:
        definitions: the functions.
        rank: leading axes of the first result, which are the batch.
        members: of the batch.
        scratch: memory of each thread beside its own [bytes].
    """
    functions = list(definitions)
    # Loops of adjoints stay so: too many numbers would wait in a straight line.
    unrolled = not any("transposed" in x.name for x in functions)
    text = ptx(LlvmModule(for_threads(functions)).text, unrolled=unrolled)
    return DeviceKernel(text, rank, threads(members, scratch), _BLOCK)


def threads(members: int, scratch: int) -> int:
    """How many threads serve a batch, each with some memory beside its own [bytes]."""
    wanted = max(min(members, _MOST_THREADS), 1)
    room = max(_SCRATCH_BYTES // max(scratch, 1), 1)
    # In full blocks, one at least.
    return max(min(-(-wanted // _BLOCK), room // _BLOCK), 1) * _BLOCK


def for_threads(definitions: list[Definition]) -> list[Definition]:
    """Functions in a form in which threads take few registers, and short code.

    Elementary functions, loops, and functions of which there would be many copies stay such as are
    called: their numbers then wait beside no others.
    """
    sites = Counter(name for x in definitions for name in _CALL.findall(x.text))

    def stays(one: Definition, lines: list[str]) -> bool:
        if one.name.startswith("vector_"):
            return True
        size = sum("getelementptr" not in x for x in lines)
        many = sites[one.name] > 1 and sites[one.name] * size > _COPIED
        return one.name in sites and (many or any(x.startswith("  br ") for x in lines))

    results = []
    for one in definitions:
        head, separator, rest = one.text.partition("\n")
        if "noinline" not in head and stays(one, one.text.split("\n")):
            head = f"{head.removesuffix('{').rstrip()} noinline {{"
        # Arrays as close to each other as numbers allow: a thread has no vector registers.
        rest = _ROOM.sub(lambda x: f"{x[1]}{4 if x[2] in ('float', 'i32') else 8}", rest)
        results.append(one._replace(text=f"{head}{separator}{rest}"))
    return results


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
