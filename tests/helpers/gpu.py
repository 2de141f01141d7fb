"""Kernels for GPUs, executed on the host: XLA calls the true handler, the driver is a fake one.

A program is lowered as for a GPU, and compiled for processors. Launches are executed thread by
thread, on arrays beside which nothing may be written.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from helpers.device_threads import Fenced, launch as execute
from helpers.fake_cuda import Device, FakeCuda, Launch
from jaxdae.kernels.cuda import launch as launching
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.cuda.launch import Handler, Modules
from jaxdae.kernels.cuda.ptx import DeviceKernel

# Bytes of numbers, by XLA's codes of their types.
_BYTES = {11: 4, 12: 8}
# `XLA_FFI_DeviceOrdinal_Get` among the words of XLA's table of functions.
_GET_ORDINAL = 6 + 17
# Arrays of the call that a thread of XLA serves, and what went wrong in it.
_CALL = threading.local()


class Gpu:
    """A machine with GPUs, one for each of JAX's devices."""

    def __init__(self):
        self.cuda = FakeCuda(*[Device()] * 8, run=self._run)
        self.modules = Modules(Driver(self.cuda.library()))
        # Compiled programs of JAX point to them.
        self._handlers: dict[str, _Handler] = {}
        # One launch at a time: numbers of a thread are kept in one place.
        self._executing = threading.Lock()

    def compiled(self, lowered: Any) -> Callable:
        """A program for GPUs that this machine can call.

        Args:
            lowered: as JAX hands it to XLA, from `lowered`.
        """
        for name in targets(lowered.as_text()):
            if name not in self._handlers:
                self._handlers[name] = _Handler(launching._REGISTERED[name]._kernel, self)
                stages = self._handlers[name].stages()
                jax.ffi.register_ffi_target(name, stages, platform="cpu")
        return lowered.compile()

    def _run(self, launch: Launch) -> None:
        """Execute a launch on copies of the arrays, each far from the others.

        What is outside of one is outside of all of them; results hold no numbers before they are
        written, and nothing is raised through C.
        """
        arguments, results = _CALL.arguments, _CALL.results
        arrays = {address: Fenced(x) for address, x in arguments.items()}
        arrays |= {address: Fenced(x.nbytes) for address, x in results.items()}
        words = [arrays[x].address if x in arrays else x for x in launch.words]
        try:
            with self._executing:
                execute(launch.text, launch.grid[0], launch.block[0], words)
            for address, x in results.items():
                x[:] = arrays[address].content
            assert all(x.is_whole() for x in arrays.values())
            for address, x in arguments.items():
                assert np.array_equal(arrays[address].content, x)
        except Exception as error:
            _CALL.error = error


class _Handler(Handler):
    """The handler, which says where the arrays of a call are before it launches."""

    def __init__(self, kernel: DeviceKernel, gpu: Gpu):
        super().__init__(kernel, lambda: gpu.modules, lambda x: gpu.cuda.stream(ordinal(x)))
        self._gpu = gpu

    def _launch(self, frame: Any, members: int) -> None:
        _CALL.arguments, _CALL.results = (
            {x.data: _bytes(x) for x in launching._buffers(y) if _nbytes(x)}
            for y in (frame.args, frame.rets)
        )
        _CALL.error = None
        self._gpu.cuda.make_current(ordinal(frame))
        super()._launch(frame, members)
        if _CALL.error is not None:
            raise _CALL.error


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


def _bytes(buffer: Any) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * _nbytes(buffer)).from_address(buffer.data))
