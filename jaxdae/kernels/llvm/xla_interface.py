"""XLA's interface for functions of others: its version, and a handler of machine code for it.

Structures in memory are those of `xla/ffi/api/c_api.h`, with its names of their fields. Each begins
with its size, and grows only at its end as long as the major version stays; nothing is read before
versions and sizes have been checked.
"""

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer
from jaxdae.kernels.llvm.writer import Writer

# Versions of the interface whose layout is known.
_MAJOR, _OLDEST_MINOR, _NEWEST_MINOR = 0, 3, 5


_REFUSAL = (
    b"jaxdae: XLA calls a native kernel by a layout that this release does not know; use "
    b"simulate(..., backend='plain'), or another release of jaxlib\0"
)


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def _structure(name: str, **fields: Any) -> Any:
    """A structure of C, which begins with its size."""
    first = {"struct_size": ctypes.c_size_t}
    return type(name, (ctypes.Structure,), {"_fields_": list((first | fields).items())})


_EXTENDED = {"extension_start": _POINTER}
BufferLayout = _structure(
    "Buffer", **_EXTENDED, dtype=_INT, data=_POINTER, rank=_LONG, dims=_POINTER
)
# Arguments or results.
Buffers = _structure("Buffers", **_EXTENDED, size=_LONG, types=_POINTER, buffers=_POINTER)
CallFrame = _structure(
    "CallFrame", **_EXTENDED, api=_POINTER, ctx=_POINTER, stage=_INT, args=Buffers, rets=Buffers
)
Extension = _structure("Extension", type=_INT, next=_POINTER, metadata=_POINTER)
Version = _structure("Version", **_EXTENDED, major_version=_INT, minor_version=_INT)
Metadata = _structure("Metadata", api_version=Version, traits=_INT)
Api = _structure(
    "Api", **_EXTENDED, api_version=Version, internal_api=_POINTER, error_create=_POINTER,
    error_text=_POINTER, error_destroy=_POINTER, handler_register=_POINTER, stream_get=_POINTER,
)  # fmt: skip
Error = _structure("Error", **_EXTENDED, message=_POINTER, errc=_INT)
StreamRequest = _structure("StreamRequest", **_EXTENDED, ctx=_POINTER, stream=_POINTER)
# A value of `type`.
METADATA = 1
# Values of `stage`.
INITIALIZE, EXECUTE = 2, 3
# Values of `errc`.
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INTERNAL = 8, 9, 13


def size_until(field: Any) -> int:
    """Size of a structure as XLA counts it: without what comes behind its last field."""
    return field.offset + field.size


def obstacle() -> str | None:
    """Why XLA cannot call kernels here; `None` where it can."""
    result = version()
    if result is None:
        return "jaxlib does not say which version its interface for native functions has"
    major, minor = result
    if major == _MAJOR and _OLDEST_MINOR <= minor <= _NEWEST_MINOR:
        return None
    return (
        f"jaxlib has version {major}.{minor} of the interface for native functions, and kernels "
        f"know {_MAJOR}.{_OLDEST_MINOR} to {_MAJOR}.{_NEWEST_MINOR}"
    )


@cache
def version() -> tuple[int, int] | None:
    """Version of the interface, from the header that came with jaxlib; `None` if it has none."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    numbers = [re.search(rf"#define XLA_FFI_API_{x} (\d+)", text) for x in ("MAJOR", "MINOR")]
    major, minor = (None if x is None else int(x[1]) for x in numbers)
    return None if major is None or minor is None else (major, minor)


def capsule(address: int | None) -> Any:
    """The address of a handler, as JAX takes it."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, None, None)


def handler(rank: int) -> list[Definition]:
    """Definition of `@handler(call frame)`, which XLA calls, and which calls `@share`.

    So many leading axes of the first result are the batch.
    """
    w, frame = Writer(), "%frame"
    extension = w.load("ptr", w.field(frame, CallFrame.extension_start))
    extended = w.put("i1", f"icmp ne ptr {extension}, null")
    with (
        w.if_then(extended),
        w.if_then(_read(w, extension, Extension.type).equals(METADATA)),
    ):
        _tell_version(w, w.load("ptr", w.field(extension, Extension.metadata)))
        _return(w, "null")
    with w.if_then(~_is_known(w, frame)):
        _return(w, _error(w, frame))
    arguments, results = (
        _buffers(w, frame, CallFrame.args),
        _buffers(w, frame, CallFrame.rets),
    )
    members = _members(w, results, rank)
    with w.if_then(members.differs(0)):
        w.invoke("void", "share", f"ptr {arguments}", f"ptr {results}", f"i64 {members}")
    w.line("  ret ptr null")
    words = ", ".join(f"i8 {x}" for x in _REFUSAL)
    text = f"@refusal = internal constant [{len(_REFUSAL)} x i8] [{words}]"
    return [w.returned("ptr", "handler", "ptr %frame"), Definition("refusal", text)]


def _return(w: Writer, value: str) -> None:
    """End a block by returning; what follows is never reached."""
    w.line(f"  ret ptr {value}")
    w.start_block(w.label("never"))


def _read(w: Writer, structure: str, field: Any) -> Integer:
    kind = f"i{8 * field.size}"
    return Integer(w, w.load(kind, w.field(structure, field)), kind)


def _write(w: Writer, kind: str, value: Any, structure: str, field: Any) -> None:
    w.store(kind, value, w.field(structure, field))


def _tell_version(w: Writer, metadata: str) -> None:
    """Answer the question for which version the handler is written."""
    major, minor = version() or (_MAJOR, _OLDEST_MINOR)
    stated = w.field(metadata, Metadata.api_version)
    _write(w, "i32", major, stated, Version.major_version)
    _write(w, "i32", minor, stated, Version.minor_version)
    _write(w, "i32", 0, metadata, Metadata.traits)


def _is_known(w: Writer, frame: str) -> Condition:
    """Whether no structure is smaller than ours; none is read before it is known."""
    known = w.room(1, "i1")
    w.store("i1", "false", known)
    with w.if_then(_is_at_least(w, frame, CallFrame)):
        same = [
            _read(w, w.field(frame, x), Buffers.struct_size).equals(ctypes.sizeof(Buffers))
            for x in (CallFrame.args, CallFrame.rets)
        ]
        with w.if_then(same[0] & same[1]):
            first = w.load("ptr", _buffers(w, frame, CallFrame.rets))
            w.store("i1", _is_at_least(w, first, BufferLayout), known)
    return Condition(w, w.load("i1", known), "i1")


def _is_at_least(w: Writer, structure: str, layout: Any) -> Condition:
    return _read(w, structure, layout.struct_size) >= ctypes.sizeof(layout)


def _buffers(w: Writer, frame: str, table: Any) -> str:
    """Pointers to the buffers of arguments or results."""
    return w.load("ptr", w.field(w.field(frame, table), Buffers.buffers))


def _members(w: Writer, results: str, rank: int) -> Integer:
    """Of the batch: the product of the leading axes of the first result."""
    dimensions = w.load("ptr", w.field(w.load("ptr", results), BufferLayout.dims))
    members = Integer(w, "1")
    for i in range(rank):
        members = members * Integer(w, w.load("i64", w.place("i64", dimensions, i)))
    return members


def _error(w: Writer, frame: str) -> str:
    """The error of an unknown layout."""
    api = w.load("ptr", w.field(frame, CallFrame.api))
    make = w.load("ptr", w.field(api, Api.error_create))
    error = w.room(ctypes.sizeof(Error), "i8")
    size = size_until(Error.errc)
    _write(w, "i64", size, error, Error.struct_size)
    _write(w, "ptr", "null", error, Error.extension_start)
    _write(w, "ptr", "@refusal", error, Error.message)
    _write(w, "i32", INTERNAL, error, Error.errc)
    return w.put("ptr", f"call ptr {make}(ptr {error})")
