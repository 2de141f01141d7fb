"""Kernels of GPUs on this processor: LLVM's text, from which PTX is made, as machine code.

Each thread is a call, one after the other; what a GPU gives to each is in four numbers. That the
PTX of the same text is one that GPUs take is for NVIDIA's assembler to say.
"""

import ctypes
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from jaxdae.kernels.cuda import ptx as module
from jaxdae.kernels.cuda.assembler import assemble

# The text that PTX was made of, by the PTX.
SOURCES: dict[str, str] = {}
_SPECIAL = ("tid.x", "ctaid.x", "ntid.x", "nctaid.x")
_READ = "llvm.nvvm.read.ptx.sreg."
# Bytes beside an array, which nobody may write to.
_FENCE, _MARK = 256, 0xA5
_made = module.ptx


def _recorded(text: str, *how, **named) -> str:
    result = _made(text, *how, **named)
    SOURCES[result] = text
    return result


_recorded.cache_clear = _made.cache_clear  # pyright: ignore[reportFunctionMemberAccess]
module.ptx = _recorded


@cache
def _entry(text: str) -> tuple[Callable, ctypes.Array]:
    """The kernel of a PTX as a function of addresses and numbers; special registers of a thread."""
    assemble(text, "sm_70")
    source = SOURCES[text].replace("ptx_kernel void @kernel(", "void @kernel(")
    source = re.sub(rf"^declare .*{re.escape(_READ)}.*$", "", source, flags=re.MULTILINE)
    numbers = (ctypes.c_int32 * len(_SPECIAL))()
    registers = "\n".join(
        f"define internal i32 @special.{name}() {{\n"
        f"  %place = inttoptr i64 {ctypes.addressof(numbers) + 4 * i} to ptr\n"
        "  %number = load volatile i32, ptr %place\n  ret i32 %number\n}"
        for i, name in enumerate(_SPECIAL)
    )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1,
        jit=True,
    )  # fmt: skip
    code = llvm.parse_assembly(source.replace(f"@{_READ}", "@special.") + "\n" + registers)
    code.verify()
    count = len(list(code.get_function("kernel").arguments))
    engine = llvm.create_mcjit_compiler(code, target)
    engine.finalize_object()
    address = engine.get_function_address("kernel")
    engine.detach()
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address), numbers


def launch(text: str, grid: int, block: int, words: list[int]) -> None:
    """Execute a kernel: all threads of all blocks.

    Args:
        text: PTX.
        grid: number of blocks.
        block: threads of each.
        words: parameters of the kernel.
    """
    # Threads of XLA take subnormal numbers for zeros, which GPUs do not.
    _WORKER.submit(_execute, text, grid, block, words).result()


def _execute(text: str, grid: int, block: int, words: list[int]) -> None:
    kernel, numbers = _entry(text)
    for i in range(grid):
        for j in range(block):
            numbers[:] = [j, i, block, grid]
            kernel(*words)


_WORKER = ThreadPoolExecutor(1)
_WORKER.submit(int).result()  # begun here, with the arithmetic of this thread


class Fenced:
    """An array with bytes around it that stay as they are.

    Args:
        content: bytes; a number of bytes for a result, which holds no numbers at first.
    """

    def __init__(self, content: np.ndarray | int):
        given = np.full(content, 0xFF, np.uint8) if isinstance(content, int) else content
        self.size = given.nbytes
        self._bytes = np.full(self.size + 2 * _FENCE, _MARK, np.uint8)
        self.content[:] = given.reshape(-1).view(np.uint8)

    @property
    def content(self) -> np.ndarray:
        """The bytes of the array."""
        return self._bytes[_FENCE : _FENCE + self.size]

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._bytes.ctypes.data + _FENCE

    def is_whole(self) -> bool:
        """Whether nothing was written beside it."""
        ends = self._bytes[:_FENCE], self._bytes[_FENCE + self.size :]
        return all((x == _MARK).all() for x in ends)
