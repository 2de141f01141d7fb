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

from helpers.fake_cuda import Device, FakeCuda, Launch
from helpers.ptx import Memory, Module
from jaxdae.kernels.cuda import launch
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.cuda.launch import Handler
from jaxdae.kernels.cuda.modules import Modules

# Of XLA's types, by their numbers: bytes of an entry.
_BYTES = {11: 4, 12: 8}
_CALLED = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# `XLA_FFI_DeviceOrdinal_Get` among the words of XLA's table of functions.
_GET_ORDINAL = 6 + 17


class FakeGpu:
    """A machine with GPUs, one for each of JAX's devices, and the programs made for it."""

    def __init__(self):
        self.cuda = FakeCuda(*[Device()] * 8, run=self._run)
        self._modules = Modules(Driver(self.cuda.library()))
        self._handlers: dict[str, Any] = {}
        self._calls = threading.local()
        # One launch at a time: the interpreter is not made for several threads of the host.
        self._executing = threading.Lock()

    def compiled(self, lowered) -> Callable:
        """A program for a GPU that this machine can call.

        Args:
            lowered: as JAX hands it to XLA, from `lowered`.
        """
        for name in targets(lowered.as_text()):
            if name not in self._handlers:
                self._register(name)
        return lowered.compile()

    def _register(self, name: str) -> None:
        # XLA's streams are those of GPUs: here there is one for each device.
        stream = lambda frame: self.cuda.stream(ordinal(frame))  # noqa: E731
        handler = Handler(launch._REGISTERED[name]._kernel, lambda: self._modules, stream)

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
        with self._executing:
            _module(launched.text).launch("kernel", grid, block, list(launched.words), memory)


GPU = FakeGpu()


def lowered(traced):
    """A program as JAX hands it to XLA for a GPU.

    Args:
        traced: from `jax.jit(function).trace(...)`.
    """
    return traced.lower(lowering_platforms=("cuda",))


def ordinal(frame) -> int:
    """Number of the device that a call is for."""
    table = (ctypes.c_int64 * (_GET_ORDINAL + 1)).from_address(frame.api)
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(table[_GET_ORDINAL])
    request = (ctypes.c_int64 * 4)(28, 0, frame.ctx, -1)
    assert get(ctypes.addressof(request)) is None
    return request[3] & 0xFFFFFFFF


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
