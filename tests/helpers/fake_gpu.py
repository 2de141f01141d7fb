"""Programs for GPUs, run on this machine: from JAX through XLA, our handler and a driver to PTX.

The program is lowered as for a GPU and compiled for processors. Its calls reach the handler that a
GPU's would reach, and a driver that executes what is launched, instruction by instruction.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax

from helpers.fake_cuda import FakeCuda, Launch
from helpers.ptx import Memory, Module
from jaxdae.kernels.cuda import launch
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.cuda.launch import Handler
from jaxdae.kernels.cuda.modules import Modules

# Of XLA's types, by their numbers: bytes of an entry.
_BYTES = {11: 4, 12: 8}
_CALLED = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class FakeGpu:
    """A machine with a GPU, and the programs that were made for it."""

    def __init__(self):
        self.cuda = FakeCuda(run=self._run)
        self._modules = Modules(Driver(self.cuda.library()))
        self._handlers: dict[str, Any] = {}
        self._calls = threading.local()

    def lowered(self, function: Callable, *arguments):
        """A function as JAX hands it to XLA for a GPU."""
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))

    def compiled(self, function: Callable, *arguments) -> Callable:
        """A function for a GPU that this machine can call."""
        lowered = self.lowered(function, *arguments)
        for name in targets(lowered.as_text()):
            if name not in self._handlers:
                self._register(name)
        return lowered.compile()

    def _register(self, name: str) -> None:
        # XLA's streams are those of GPUs; here there is one for all calls.
        handler = Handler(launch._REGISTERED[name]._kernel, lambda: self._modules, lambda _: 0x2000)

        def called(address):
            self._calls.buffers = list(buffers(address))
            return handler.entry(address)

        # As it is called by XLA: both are kept.
        self._handlers[name] = handler, _CALLED(called)
        address = ctypes.cast(self._handlers[name][1], ctypes.c_void_p).value
        jax.ffi.register_ffi_target(name, {"execute": launch._capsule(address)}, platform="cpu")

    def _run(self, launched: Launch) -> None:
        memory = Memory()
        for address, size in self._calls.buffers:
            memory.register(address, size)
        grid, block = launched.grid[0], launched.block[0]
        _module(launched.text).launch("kernel", grid, block, list(launched.words), memory)


GPU = FakeGpu()


@lru_cache(64)
def _module(text: str) -> Module:
    return Module(text)


def targets(program: str) -> list[str]:
    """Kernels that a program calls."""
    return re.findall(r"custom_call @(jaxdae_\w+)", program)


def buffers(address: int):
    """Addresses and sizes in bytes of all buffers of a call of XLA, which is not a question."""
    frame = (ctypes.c_int64 * 21).from_address(address)
    if frame[1]:
        return
    for first in (5, 10):
        count = frame[first + 2]
        table = (ctypes.c_int64 * count).from_address(frame[first + 4]) if count else ()
        for x in table:
            fields = (ctypes.c_int64 * 6).from_address(x)
            size = _BYTES[fields[2] & 0xFFFFFFFF]
            for length in (ctypes.c_int64 * fields[4]).from_address(fields[5]) if fields[4] else ():
                size *= length
            yield fields[3], size
