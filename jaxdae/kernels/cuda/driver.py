"""The driver of GPUs by NVIDIA, called through its C interface: no compiler and no toolkit.

Functions and numbers are those of `cuda.h`. The library comes with the driver of the machine; it is
loaded when a kernel is to run, and not before.
"""

import contextlib
import ctypes
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

# Versions as the driver counts them: 1000 times the major one, and 10 times the minor one.
OLDEST_VERSION = 12000
OLDEST_CAPABILITY = (7, 0)

_POINTER, _INT, _UINT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_OUT, _WORDS = ctypes.POINTER, ctypes.POINTER(ctypes.c_void_p)
_Text = ctypes.c_char_p

#: Functions that are called, by name in the library, with the types of their arguments.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_OUT(_INT),),
    "cuGetErrorName": (_INT, _OUT(_Text)),
    "cuGetErrorString": (_INT, _OUT(_Text)),
    "cuDeviceGetCount": (_OUT(_INT),),
    "cuDeviceGet": (_OUT(_INT), _INT),
    "cuDeviceGetName": (_POINTER, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT(_INT), _INT, _INT),
    "cuStreamGetCtx": (_POINTER, _OUT(_POINTER)),
    "cuCtxGetId": (_POINTER, _OUT(ctypes.c_ulonglong)),
    "cuCtxGetCurrent": (_OUT(_POINTER),),
    "cuCtxGetDevice": (_OUT(_INT),),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_OUT(_POINTER),),
    "cuMemGetInfo_v2": (_OUT(_SIZE), _OUT(_SIZE)),
    "cuModuleLoadDataEx": (_OUT(_POINTER), _POINTER, _UINT, _OUT(_INT), _WORDS),
    "cuModuleGetFunction": (_OUT(_POINTER), _POINTER, _Text),
    "cuModuleUnload": (_POINTER,),
    "cuFuncGetAttribute": (_OUT(_INT), _INT, _POINTER),
    "cuLaunchKernel": (_POINTER, *[_UINT] * 7, _POINTER, _WORDS, _WORDS),
}
# Attributes of devices and of functions, and options of the compiler in the driver.
_MAJOR, _MINOR = 75, 76
_MOST_THREADS, _LOCAL_BYTES, _REGISTERS = 0, 3, 4
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 8192

OUT_OF_MEMORY = 2
# What is to be done, by the code of the error.
_NEWER_DRIVER = (
    "The driver of this GPU is too old for the kernel: update it, or use backend='plain'."
)
_RESTART = (
    "After this error the GPU serves this process no longer: restart the process. If it comes "
    "again, use backend='plain' and report it with the model."
)
_REMEDIES = {
    OUT_OF_MEMORY: (
        "Leave the GPU more memory beside JAX's: set XLA_PYTHON_CLIENT_MEM_FRACTION to less than "
        "its 0.75 before JAX starts. Or take a smaller batch in one "
        "call (jaxdae.parallel splits one)."
    ),
    3: "In a process made by fork start a new interpreter instead (multiprocessing: 'spawn').",
    100: "Check with nvidia-smi that there is a GPU, and CUDA_VISIBLE_DEVICES.",
    209: "The GPU is too old for the kernel: use backend='plain'.",
    218: "That is a mistake in jaxdae; please report it, and use backend='plain' until then.",
    221: "The driver lacks its compiler (libnvidia-ptxjitcompiler.so.1): install it anew.",
    222: _NEWER_DRIVER,
    223: "Unset CUDA_DISABLE_PTX_JIT: kernels are compiled by the driver.",
    701: "Its threads need more registers than the GPU has: use backend='plain'.",
    702: f"{_RESTART} A GPU with a display stops long kernels: take fewer steps in one call.",
    803: "Driver and its library are of different releases: restart the machine.",
} | dict.fromkeys((201, 214, 220, 700, 709, 710, 714, 715, 716, 717, 718, 719, 999), _RESTART)


class DriverError(RuntimeError):
    """The driver is missing, unsuited, or refused a call.

    Args:
        text: what happened, and what to do.
        code: of the driver; 0 where it was not called.
    """

    def __init__(self, text: str, code: int = 0):
        super().__init__(text)
        self.code = code


class Context(NamedTuple):
    """A context: a device as one process uses it.

    Args:
        handle: of the driver.
        number: which no other context of this process has, also after this one has ended.
    """

    handle: int | None
    number: int


class Driver:
    """The driver's library, which has its functions as attributes.

    Raises:
        DriverError: where a function is missing, or returns an error.
    """

    def __init__(self, library: Any):
        missing = [name for name in PROTOTYPES if not hasattr(library, name)]
        if missing:
            raise DriverError(
                f"the driver of this machine's GPUs has no {', '.join(missing)}: it is older than "
                f"CUDA {_dotted(OLDEST_VERSION)}, which kernels need: update it"
            )
        # Its functions are called by their addresses, which are good as long as it is there.
        self._library = library
        self._functions = {
            name: _function(getattr(library, name), arguments)
            for name, arguments in PROTOTYPES.items()
        }
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Call a function; `about` says what was to be done, for the text of an error."""
        code = self._functions[name](*arguments)
        if code:
            raise DriverError(self._text(name, code, about), code)

    def _text(self, name: str, code: int, about: str) -> str:
        words = {}
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = _Text()
            # A driver need not know the code; it then leaves no text.
            self._functions[function](code, ctypes.byref(text))
            words[function] = (text.value or b"an unknown error").decode(errors="replace")
        happened = f"{name} gave {words['cuGetErrorName']} ({code}): {words['cuGetErrorString']}"
        remedy = _REMEDIES.get(code, "Use backend='plain'.")
        return f"{happened}{about}. {remedy}"

    def _answer(self, kind: Any, name: str, *arguments: Any) -> Any:
        """What a function writes where its first argument points to."""
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def version(self) -> int:
        """Newest version of CUDA that it knows, as it counts them."""
        return self._answer(_INT, "cuDriverGetVersion")

    def devices(self) -> list[int]:
        """Devices that this process may use."""
        count = self._answer(_INT, "cuDeviceGetCount")
        return [self._answer(_INT, "cuDeviceGet", i) for i in range(count)]

    def name(self, device: int) -> str:
        """What a device is called."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", ctypes.addressof(text), len(text), device)
        return text.value.decode(errors="replace")

    def capability(self, device: int) -> tuple[int, int]:
        """Compute capability of a device: its generation."""
        major, minor = (
            self._answer(_INT, "cuDeviceGetAttribute", x, device) for x in (_MAJOR, _MINOR)
        )
        return major, minor

    def obstacle(self) -> str | None:
        """Why it cannot run kernels, in words; `None` where it can."""
        version = self.version()
        if version < OLDEST_VERSION:
            return (
                f"the driver of this machine's GPUs knows CUDA {_dotted(version)}, and kernels "
                f"need {_dotted(OLDEST_VERSION)} at least: update it"
            )
        return next((x for x in map(self.obstacle_of, self.devices()) if x is not None), None)

    def obstacle_of(self, device: int) -> str | None:
        """Why a device cannot run kernels, in words; `None` where it can."""
        capability = self.capability(device)
        if capability >= OLDEST_CAPABILITY:
            return None
        has, needs = (".".join(map(str, x)) for x in (capability, OLDEST_CAPABILITY))
        return (
            f"{self.name(device)} has compute capability {has}, and kernels need {needs} at least"
        )

    def context(self, stream: int | None) -> Context:
        """The context that a stream belongs to."""
        handle, number = _POINTER(), ctypes.c_ulonglong()
        self.call("cuStreamGetCtx", stream, ctypes.byref(handle))
        self.call("cuCtxGetId", handle, ctypes.byref(number))
        return Context(handle.value, number.value)

    @contextlib.contextmanager
    def current(self, context: Context) -> Iterator[None]:
        """Meanwhile a context is the current one of this thread."""
        if self._answer(_POINTER, "cuCtxGetCurrent") == context.handle:
            yield
            return
        self.call("cuCtxPushCurrent_v2", context.handle)
        try:
            yield
        finally:
            self._answer(_POINTER, "cuCtxPopCurrent_v2")

    def device(self) -> int:
        """The device of the current context."""
        return self._answer(_INT, "cuCtxGetDevice")

    def memory(self) -> str:
        """In words what memory the device of the current context has left; empty if not known."""
        free, total = _SIZE(), _SIZE()
        if self._functions["cuMemGetInfo_v2"](ctypes.byref(free), ctypes.byref(total)):
            return ""
        return f", with {_mebibytes(free.value)} of {_mebibytes(total.value)} free"

    def load(self, ptx: str) -> int:
        """A module of PTX, compiled for the device of the current context."""
        text, log = ptx.encode() + b"\0", ctypes.create_string_buffer(_LOG_BYTES)
        names = (_INT * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        # As values of pointers, also the number of bytes.
        values = (_POINTER * 2)(ctypes.addressof(log), _LOG_BYTES)
        result = _POINTER()
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(result), text, 2, names, values)
        except DriverError as error:
            said = log.value.decode(errors="replace").strip()
            raise DriverError(
                f"{error} The driver's compiler says: {said}" if said else str(error), error.code
            ) from None
        return result.value or 0

    def unload(self, module: int) -> None:
        """Free a module of the current context."""
        self.call("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        """A kernel of a module, by its name."""
        return self._answer(_POINTER, "cuModuleGetFunction", module, name.encode()) or 0

    def needs(self, function: int) -> list[int]:
        """Registers and local bytes of a thread of a kernel, and the most threads of a block."""
        attributes = (_REGISTERS, _LOCAL_BYTES, _MOST_THREADS)
        return [self._answer(_INT, "cuFuncGetAttribute", x, function) for x in attributes]

    def launch(
        self, function: int, blocks: int, block: int, stream: int | None, words: Sequence[int]
    ) -> None:
        """Let a kernel begin once a stream comes to it; do not wait for it.

        Args:
            function: the kernel.
            blocks: how many run.
            block: threads of each.
            stream: where it runs.
            words: its parameters, each of 64 bits.
        """
        values = (ctypes.c_uint64 * len(words))(*words)
        first, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_uint64)
        pointers = (_POINTER * len(words))(*(first + size * i for i in range(len(words))))
        self.call("cuLaunchKernel", function, blocks, 1, 1, block, 1, 1, 0, stream, pointers, None)


@cache
def installed() -> Driver:
    """The driver of this machine; an error where there is none, or it is unsuited."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise DriverError(
            f"the driver of GPUs by NVIDIA is not installed: {name} does not load ({error})"
        ) from None
    return Driver(library)


def _function(declared: Any, arguments: Sequence[Any]) -> Any:
    """A function of the library as one of Python; others run while it waits."""
    prototype = ctypes.CFUNCTYPE(_INT, *arguments)
    return prototype(ctypes.cast(declared, _POINTER).value or 0)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
