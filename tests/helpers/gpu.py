"""Kernels for GPUs, executed on the host: XLA calls the true handler, the driver is a fake one.

JAX computes on processors and lowers kernels as for GPUs. XLA's own memory is the GPU's; launches
go to the interpreter of PTX, which refuses every access that is outside of the arrays of the call.
"""

import contextlib
import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import pytest

from helpers.fake_cuda import Device, FakeCuda, Launch
from helpers.ptx import Memory, Module
from jaxdae.kernels.cuda import launch as launching
from jaxdae.kernels.cuda.assembler import assemble
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.cuda.kernel import DeviceKernel
from jaxdae.kernels.cuda.launch import Handler
from jaxdae.kernels.cuda.modules import Modules
from jaxdae.kernels.launch import platforms

# Bytes of numbers, by XLA's codes of their types.
_BYTES = {11: 4, 12: 8}
# `XLA_FFI_DeviceOrdinal_Get` among the words of XLA's table of functions.
_GET_ORDINAL = 6 + 17
# A context at a time: what is executed is set aside for it.
_BUFFERS = threading.local()


class Executed(NamedTuple):
    """One launch.

    Args:
        text: PTX.
        grid: blocks.
        block: threads of each.
        members: of the batch.
        instructions: that were executed, each counted once for threads that did so together.
    """

    text: str
    grid: int
    block: int
    members: int
    instructions: int


class Gpu:
    """A machine with GPUs, one for each of JAX's devices."""

    def __init__(self, most_threads: int | None = None):
        self.cuda = FakeCuda(*[Device()] * 8, run=self._run)
        self.modules = Modules(Driver(self.cuda.library()))
        self.launches: list[Executed] = []
        self.kernels: list[DeviceKernel] = []
        self._most = most_threads
        # Of compiled programs, which may run once more.
        self.handlers: list[_Handler] = []
        self._known: set[str] = set()
        # One launch at a time: the interpreter is not made for several threads of the host.
        self._executing = threading.Lock()

    def compiled(self, lowered: Any) -> Callable:
        """A program for GPUs that this machine can call.

        Args:
            lowered: as JAX hands it to XLA, from `lowered`.
        """
        for name in targets(lowered.as_text()):
            if name not in self._known:
                self._known.add(name)
                self._make_known(name, launching._REGISTERED[name]._kernel)
        return lowered.compile()

    def register(self, kernel: DeviceKernel, content: str) -> str:
        """In place of the registration for GPUs: for processors."""
        if self._most is not None:
            block = min(self._most, kernel.block)
            threads = min(kernel.threads, max(self._most // block, 1) * block)
            kernel = kernel._replace(threads=threads, block=block)
        del content
        name = f"executed_{id(self)}_{len(self.kernels)}"
        self._make_known(name, kernel)
        return name

    def _make_known(self, name: str, kernel: DeviceKernel) -> None:
        self.kernels.append(kernel)
        self.handlers.append(_Handler(kernel, self))
        jax.ffi.register_ffi_target(name, self.handlers[-1].stages(), platform="cpu")

    def _run(self, launch: Launch) -> None:
        memory = Memory()
        for address, nbytes in _BUFFERS.each:
            memory.register(address, nbytes)
        words = list(launch.words)
        grid, block = launch.grid[0], launch.block[0]
        with self._executing:
            count = read(launch.text).launch("kernel", grid, block, words, memory)
        done = Executed(launch.text, launch.grid[0], launch.block[0], words[-1], count)
        self.launches.append(done)


class _Handler(Handler):
    """The handler, which says where the arrays of a call are before it launches."""

    def __init__(self, kernel: DeviceKernel, gpu: Gpu):
        super().__init__(kernel, lambda: gpu.modules, lambda x: gpu.cuda.stream(ordinal(x)))
        self._gpu = gpu

    def _launch(self, frame: Any, members: int) -> None:
        buffers = [x for y in (frame.args, frame.rets) for x in launching._buffers(y)]
        _BUFFERS.each = [(x.data, _nbytes(x)) for x in buffers if x.data]
        self._gpu.cuda.make_current(ordinal(frame))
        super()._launch(frame, members)


def ordinal(frame: Any) -> int:
    """Number of the device that a call is for."""
    table = (ctypes.c_int64 * (_GET_ORDINAL + 1)).from_address(frame.api)
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(table[_GET_ORDINAL])
    request = (ctypes.c_int64 * 4)(28, 0, frame.ctx, -1)
    assert get(ctypes.addressof(request)) is None
    return request[3] & 0xFFFFFFFF


def lowered(traced: Any) -> Any:
    """A program as JAX hands it to XLA for a GPU.

    Args:
        traced: from `jax.jit(function).trace(...)`.
    """
    return traced.lower(lowering_platforms=("cuda",))


def targets(program: str) -> list[str]:
    """Kernels that a program calls."""
    return re.findall(r"custom_call @(jaxdae_\w+)", program)


def _nbytes(buffer: Any) -> int:
    count = 1
    for x in (ctypes.c_int64 * buffer.rank).from_address(buffer.dims) if buffer.rank else ():
        count *= x
    return count * _BYTES[buffer.dtype]


@cache
def read(text: str) -> Module:
    """A module, read once, and accepted by NVIDIA's assembler."""
    assemble(text, "sm_70")
    return Module(text)


@contextlib.contextmanager
def on_gpu(most_threads: int | None = None) -> Iterator[Gpu]:
    """Programs that JAX compiles meanwhile have their kernels executed as on a GPU.

    Args:
        most_threads: largest number of threads of a launch, if fewer than on GPUs.
    """
    gpu = Gpu(most_threads)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("register_width", "lanes", "launch"):
            value = getattr(platforms.CUDA, name)
            patch.setattr(platforms.Platform, name, property(lambda _, x=value: x))
        patch.setattr(launching, "register", gpu.register)
        yield gpu
