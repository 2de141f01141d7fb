"""A driver of GPUs where there is none: it records calls, fails when it is asked to, runs launches.

It is called as the true one is, through C. Prototypes are those of NVIDIA's `cuda.h`, written down
here once more: what the library declares must agree with them.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

# Types of arguments: pointer, int, unsigned, text.
KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "s": ctypes.c_char_p}
PROTOTYPES = {
    "cuInit": "u",
    "cuDriverGetVersion": "p",
    "cuGetErrorName": "ip",
    "cuGetErrorString": "ip",
    "cuDeviceGetCount": "p",
    "cuDeviceGet": "pi",
    "cuDeviceGetName": "pii",
    "cuDeviceGetAttribute": "pii",
    "cuStreamGetCtx": "pp",
    "cuCtxGetId": "pp",
    "cuCtxGetCurrent": "p",
    "cuCtxGetDevice": "p",
    "cuCtxPushCurrent_v2": "p",
    "cuCtxPopCurrent_v2": "p",
    "cuMemGetInfo_v2": "pp",
    "cuModuleLoadDataEx": "ppupp",
    "cuModuleGetFunction": "pps",
    "cuModuleUnload": "p",
    "cuFuncGetAttribute": "pip",
    "cuLaunchKernel": "puuuuuuuppp",
}
ERRORS = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    222: (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the provided PTX was compiled with an unsupported toolchain.",
    ),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
}
# A context of a device, one of its streams, modules and functions, as handles.
CONTEXT, STREAM, MODULE, FUNCTION = 0x1000, 0x2000, 0x3000, 0x7000


class Device(NamedTuple):
    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)


class Load(NamedTuple):
    context: int
    text: str
    options: dict[int, int]


class Launch(NamedTuple):
    context: int
    text: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int | None
    words: tuple[int, ...]


class FakeCuda:
    """A machine with GPUs.

    Args:
        devices: what it has.
        version: of its driver.
        run: runs a launch, where results are wanted.
    """

    def __init__(self, *devices: Device, version: int = 12080, run: Callable | None = None):
        self.devices, self.version, self.run = devices or (Device(),), version, run
        self.calls: list[str] = []
        self.loads: list[Load] = []
        self.unloaded: list[int] = []
        self.launches: list[Launch] = []
        #: Codes of functions that fail, and what the compiler then says.
        self.failures: dict[str, int] = {}
        self.log = b""
        #: Waits in the compiler, where set.
        self.compiling: Callable[[], Any] | None = None
        self._threads = threading.local()
        self._lock = threading.Lock()

    def library(self) -> SimpleNamespace:
        """What loading the driver gives, for as long as the machine is there: C calls it."""
        self._library = SimpleNamespace(**{name: self._function(name) for name in PROTOTYPES})
        return self._library

    def stream(self, device: int) -> int:
        return STREAM + device

    def make_current(self, device: int) -> None:
        """As XLA does around its calls."""
        self.current = [CONTEXT + device]

    @property
    def current(self) -> list[int]:
        """Contexts of this thread, the current one last."""
        if not hasattr(self._threads, "contexts"):
            self._threads.contexts = []
        return self._threads.contexts

    @current.setter
    def current(self, contexts: list[int]) -> None:
        self._threads.contexts = contexts

    def _function(self, name: str):
        answer = getattr(self, "_" + name)

        def called(*arguments):
            with self._lock:
                self.calls.append(name)
            return self.failures.get(name) or answer(*arguments) or 0

        kinds = (KINDS[x] for x in PROTOTYPES[name])
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(called)

    # Functions of the driver.

    def _cuInit(self, flags):
        assert flags == 0

    def _cuDriverGetVersion(self, out):
        write(ctypes.c_int, out, self.version)

    def _error(self, code, out, which):
        if code not in ERRORS:
            return 1
        write(ctypes.c_char_p, out, ERRORS[code][which].encode())

    def _cuGetErrorName(self, code, out):
        return self._error(code, out, 0)

    def _cuGetErrorString(self, code, out):
        return self._error(code, out, 1)

    def _cuDeviceGetCount(self, out):
        write(ctypes.c_int, out, len(self.devices))

    def _cuDeviceGet(self, out, number):
        write(ctypes.c_int, out, number)

    def _cuDeviceGetName(self, out, size, device):
        name = self.devices[device].name.encode()
        assert len(name) < size
        ctypes.memmove(out, name + b"\0", len(name) + 1)

    def _cuDeviceGetAttribute(self, out, attribute, device):
        write(ctypes.c_int, out, self.devices[device].capability[{75: 0, 76: 1}[attribute]])

    def _cuStreamGetCtx(self, stream, out):
        context = self.current[-1] if stream is None else stream - STREAM + CONTEXT
        write(ctypes.c_void_p, out, context)

    def _cuCtxGetId(self, context, out):
        write(ctypes.c_ulonglong, out, 77 + context)

    def _cuCtxGetCurrent(self, out):
        write(ctypes.c_void_p, out, self.current[-1] if self.current else None)

    def _cuCtxGetDevice(self, out):
        write(ctypes.c_int, out, self.current[-1] - CONTEXT)

    def _cuCtxPushCurrent_v2(self, context):
        self.current.append(context)

    def _cuCtxPopCurrent_v2(self, out):
        write(ctypes.c_void_p, out, self.current.pop())

    def _cuMemGetInfo_v2(self, free, total):
        write(ctypes.c_size_t, free, 3 * 2**20)
        write(ctypes.c_size_t, total, 80 * 2**30)

    def _cuModuleLoadDataEx(self, out, image, count, names, values):
        names = (ctypes.c_int * count).from_address(names)
        values = (ctypes.c_void_p * count).from_address(values)
        load = Load(
            self.current[-1],
            ctypes.string_at(image).decode(),
            dict(zip(names, values, strict=True)),
        )
        if self.compiling is not None:
            self.compiling()
        if self.log:  # into the room that is offered: options 5 and 6 of the compiler
            assert len(self.log) < load.options[6]
            ctypes.memmove(load.options[5], self.log, len(self.log))
            return self.failures.get("the compiler", 218)
        with self._lock:
            self.loads.append(load)
            write(ctypes.c_void_p, out, MODULE + len(self.loads) - 1)

    def _cuModuleGetFunction(self, out, module, name):
        number = module - MODULE
        if f".entry {name.decode()}(" not in self.loads[number].text:
            return 500
        write(ctypes.c_void_p, out, FUNCTION + number)

    def _cuModuleUnload(self, module):
        self.unloaded.append(module)

    def _cuFuncGetAttribute(self, out, attribute, function):
        assert function >= FUNCTION
        write(ctypes.c_int, out, {0: 256, 3: 3568, 4: 255}[attribute])

    def _cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        load = self.loads[function - FUNCTION]
        # A module serves its own context alone.
        assert load.context == self.current[-1]
        assert extra is None
        count = parameter_count(load.text)
        places = (ctypes.c_void_p * count).from_address(parameters)
        words = tuple(ctypes.c_uint64.from_address(x).value for x in places)
        launch = Launch(load.context, load.text, (gx, gy, gz), (bx, by, bz), shared, stream, words)
        with self._lock:
            self.launches.append(launch)
        if self.run is not None:
            self.run(launch)


def parameter_count(ptx: str) -> int:
    """Parameters of 64 bits of the entry: the driver reads as many."""
    entry = re.search(r"\.entry\s+kernel\s*\(([^)]*)\)", ptx)
    assert entry is not None
    return len(re.findall(r"\.param\s+\.[bu]64", entry[1]))


def write(kind: Any, address: int, value: Any) -> None:
    kind.from_address(address).value = value
