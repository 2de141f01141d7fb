"""Kernels on GPUs as targets of XLA's calls: what XLA calls, and what it makes of a call."""

import ctypes
import hashlib
import math
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from jaxdae.kernels.cuda import driver as cuda
from jaxdae.kernels.cuda.driver import Context, Driver, DriverError
from jaxdae.kernels.cuda.ptx import DeviceKernel, ENTRY
from jaxdae.kernels.llvm import xla_interface as xla


class Modules:
    """Kernels by the text of their PTX and the context they run in.

    They stay for the life of the process: compiled programs of JAX name them. What fails is not
    remembered, as memory may be free the next time.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self._lock = threading.Lock()
        self._functions: dict[tuple[int, str], int] = {}

    def function(self, digest: str, ptx: str, context: Context) -> int:
        """The kernel of a text with a digest, for a context, which is the current one."""
        key = context.number, digest
        with self._lock:
            if key not in self._functions:
                self._functions[key] = self._compiled(ptx)
            return self._functions[key]

    def _compiled(self, ptx: str) -> int:
        driver = self.driver
        reason = driver.obstacle_of(driver.device())
        if reason is not None:
            raise DriverError(reason)
        module = driver.load(ptx)
        try:
            return driver.function(module, ENTRY)
        except DriverError:
            driver.unload(module)
            raise


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_MAKE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(xla.Error))
_GET_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(xla.StreamRequest))
# Handlers are kept for the life of the process: compiled programs of JAX point to them.
_REGISTERED: "dict[str, Handler]" = {}
# JAX may compile in several threads.
_LOCK = threading.Lock()
_LAYOUT = "XLA calls a kernel by a layout that this release does not know; use another jaxlib"
_OUT_OF_RESOURCES = 701
# Codes of XLA for those of the driver, and for what is found before it is called.
_CODES = {0: xla.FAILED_PRECONDITION, cuda.OUT_OF_MEMORY: xla.RESOURCE_EXHAUSTED}


class CallError(Exception):
    """A call that cannot be served: why, and what to do."""


class XlaError(Exception):
    """An error that XLA gave, at an address, to be handed back to it."""

    def __init__(self, address: int):
        super().__init__(address)
        self.address = address


def obstacle() -> str | None:
    """Why kernels cannot run on the GPUs of this machine, in words; `None` where they can."""
    reason = xla.obstacle()
    if reason is not None:
        return reason
    try:
        return cuda.installed().obstacle()
    except DriverError as error:
        return str(error).rstrip(".")


def register(kernel: DeviceKernel, content: str) -> str:
    """Make a kernel known to XLA on GPUs by NVIDIA.

    Nothing is asked of a driver before the kernel runs: programs for GPUs can be made where there
    are none. Returned is the name of the target of foreign-function calls; equal kernels have one.
    Its first part tells what is computed, in words that are the same on every machine.
    """
    reason = xla.obstacle()
    if reason is not None:
        raise DriverError(f"{reason}; use backend='plain' here.")
    parts = (content.encode(), repr(kernel).encode())
    name = "_".join(["jaxdae", *(hashlib.sha256(x).hexdigest()[:32] for x in parts)])
    with _LOCK:
        if name not in _REGISTERED:
            _REGISTERED[name] = Handler(kernel)
            jax.ffi.register_ffi_target(name, _REGISTERED[name].stages(), platform="CUDA")
    return name


@cache
def _modules() -> Modules:
    """Of the driver of this machine."""
    return Modules(cuda.installed())


def stream_of(frame: Any) -> int | None:
    """The stream that XLA gives a call, or the error that it gives instead."""
    api = xla.Api.from_address(frame.api)
    if api.struct_size < xla.size_until(xla.Api.stream_get):
        raise CallError(f"{_LAYOUT}.")
    size = xla.size_until(xla.StreamRequest.stream)
    request = xla.StreamRequest(struct_size=size, ctx=frame.ctx)
    error = _GET_STREAM(api.stream_get)(ctypes.byref(request))
    if error:
        raise XlaError(error)
    return request.stream


class Handler:
    """What XLA calls: it launches a kernel on XLA's stream, and does not wait for it.

    It is called from threads of XLA, several at once, and for several devices.

    Args:
        kernel: what is launched.
        modules: gives the compiled kernels, once one is to run.
        stream: gives the stream of a call.
    """

    def __init__(
        self,
        kernel: DeviceKernel,
        modules: Callable[[], Modules] = _modules,
        stream: Callable[[Any], int | None] = stream_of,
    ):
        self._kernel, self._modules, self._stream = kernel, modules, stream
        self._digest = hashlib.sha256(kernel.ptx.encode()).hexdigest()
        self.entry = _HANDLER(self._called)

    def stages(self) -> dict[str, Any]:
        """What XLA is given: the entry of the stages that it has work in.

        The driver compiles before anything of a program runs. Where it had to do so in between, it
        could wait for work of other devices, which may wait for this one.
        """
        address = ctypes.cast(self.entry, ctypes.c_void_p).value
        return {stage: xla.capsule(address) for stage in ("initialize", "execute")}

    def _called(self, address: int) -> int | None:
        """The entry: nothing may be raised through it, and nothing is read before its size."""
        frame = xla.CallFrame.from_address(address)
        try:
            if not _is_question(frame):
                self._serve(frame)
            return None
        except XlaError as error:
            return error.address
        except CallError as error:
            return _made_error(frame, str(error), xla.INTERNAL)
        except DriverError as error:
            # What a missing or unsuited driver does not say itself.
            text = str(error) if error.code else f"{error}; use backend='plain'."
            return _made_error(frame, text, _CODES.get(error.code, xla.INTERNAL))
        except BaseException as error:
            # Also an interruption from the keyboard, where JAX calls from the main thread.
            return _made_error(frame, f"{type(error).__name__}: {error}", xla.INTERNAL)

    def _serve(self, frame: Any) -> None:
        if frame.struct_size < ctypes.sizeof(xla.CallFrame):
            raise CallError(f"{_LAYOUT}.")
        if frame.stage == xla.INITIALIZE:
            self._compile(frame)
        elif frame.stage == xla.EXECUTE:
            _check_buffers(frame)
            # Of the batch: the product of the leading axes of the first result.
            members = math.prod(_dimensions(_buffers(frame.rets)[0])[: self._kernel.rank])
            if members:
                self._launch(frame, members)

    def _compile(self, frame: Any) -> None:
        modules = self._modules()
        context = modules.driver.context(self._stream(frame))
        with modules.driver.current(context):
            self._function(modules, context)

    def _launch(self, frame: Any, members: int) -> None:
        modules, stream = self._modules(), self._stream(frame)
        driver, kernel = modules.driver, self._kernel
        context = driver.context(stream)
        buffers = [*_buffers(frame.args), *_buffers(frame.rets)]
        # Of each array where it is, and its dimensions.
        words = [word for x in buffers for word in (x.data or 0, *_dimensions(x))]
        # No more than members need: a part of a batch may be smaller than what is compiled.
        blocks = min(kernel.threads // kernel.block, -(-members // kernel.block))
        with driver.current(context):
            function = self._function(modules, context)
            try:
                driver.launch(function, blocks, kernel.block, stream, [*words, members])
            except DriverError as error:
                if error.code not in (cuda.OUT_OF_MEMORY, _OUT_OF_RESOURCES):
                    raise
                registers, local, most = driver.needs(function)
                raise DriverError(
                    f"{error} The kernel runs {blocks} blocks of {kernel.block} threads (the GPU "
                    f"takes {most} at most), each with {registers} registers and {local} bytes of "
                    f"local memory{driver.memory()}.",
                    error.code,
                ) from None

    def _function(self, modules: Modules, context: Context) -> int:
        return modules.function(self._digest, self._kernel.ptx, context)


# Call frames.


def _is_question(frame: Any) -> bool:
    """Whether a call only asks for the version of the interface; it is then answered.

    Work is never made part of a recorded sequence of launches (its traits say so), as the driver
    may compile in between.
    """
    if not frame.extension_start:
        return False
    extension = xla.Extension.from_address(frame.extension_start)
    if extension.type != xla.METADATA:
        return False
    metadata, version = xla.Metadata.from_address(extension.metadata), xla.version()
    if version is not None:
        metadata.api_version.major_version, metadata.api_version.minor_version = version
    metadata.traits = 0
    return True


def _check_buffers(frame: Any) -> None:
    """Whether structures are those that are known; one that is shorter is not read."""
    tables, size = (frame.args, frame.rets), ctypes.sizeof(xla.BufferLayout)
    known = all(x.struct_size == ctypes.sizeof(xla.Buffers) for x in tables)
    buffers = [x for table in tables for x in _buffers(table)] if known else []
    if not buffers or any(x.struct_size < size for x in buffers):
        raise CallError(f"{_LAYOUT}.")


def _buffers(table: Any) -> list[Any]:
    """Arguments or results."""
    if not table.size:
        return []
    addresses = (ctypes.c_void_p * table.size).from_address(table.buffers)
    return [xla.BufferLayout.from_address(x) for x in addresses]


def _dimensions(buffer: Any) -> list[int]:
    rank = buffer.rank
    return list((ctypes.c_int64 * rank).from_address(buffer.dims)) if rank else []


def _made_error(frame: Any, text: str, code: int) -> int | None:
    """An error of XLA."""
    api = xla.Api.from_address(frame.api)
    message = ctypes.create_string_buffer(f"jaxdae: {text}".encode())
    size = xla.size_until(xla.Error.errc)
    error = xla.Error(struct_size=size, message=ctypes.addressof(message), errc=code)
    return _MAKE_ERROR(api.error_create)(ctypes.byref(error))
