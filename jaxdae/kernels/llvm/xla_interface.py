"""XLA's interface for functions of others: its version, and a handler of machine code for it."""

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jaxdae.kernels.llvm import xla_structures as xla
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer
from jaxdae.kernels.llvm.writer import Writer

# Versions of the interface whose layout is that of `xla_structures`.
_MAJOR, _OLDEST_MINOR, _NEWEST_MINOR = 0, 3, 5


_REFUSAL = (
    b"jaxdae: XLA calls a native kernel by a layout that this release does not know; use "
    b"simulate(..., backend='plain'), or another release of jaxlib\0"
)


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

    Args:
        rank: number of leading axes of the first result, which are the batch.
    """
    w, frame = Writer(), "%frame"
    extension = w.load("ptr", w.field(frame, xla.CallFrame.extension_start))
    extended = w.put("i1", f"icmp ne ptr {extension}, null")
    with (
        w.if_then(extended),
        w.if_then(_read(w, extension, xla.Extension.type).equals(xla.METADATA)),
    ):
        _tell_version(w, w.load("ptr", w.field(extension, xla.Extension.metadata)))
        _return(w, "null")
    with w.if_then(~_is_known(w, frame)):
        _return(w, _error(w, frame))
    arguments, results = (
        _buffers(w, frame, xla.CallFrame.args),
        _buffers(w, frame, xla.CallFrame.rets),
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
    stated = w.field(metadata, xla.Metadata.api_version)
    _write(w, "i32", major, stated, xla.Version.major_version)
    _write(w, "i32", minor, stated, xla.Version.minor_version)
    _write(w, "i32", 0, metadata, xla.Metadata.traits)


def _is_known(w: Writer, frame: str) -> Condition:
    """Whether no structure is smaller than ours; none is read before it is known."""
    known = w.room(1, "i1")
    w.store("i1", "false", known)
    with w.if_then(_is_at_least(w, frame, xla.CallFrame)):
        same = [
            _read(w, w.field(frame, x), xla.Buffers.struct_size).equals(ctypes.sizeof(xla.Buffers))
            for x in (xla.CallFrame.args, xla.CallFrame.rets)
        ]
        with w.if_then(same[0] & same[1]):
            first = w.load("ptr", _buffers(w, frame, xla.CallFrame.rets))
            w.store("i1", _is_at_least(w, first, xla.BufferLayout), known)
    return Condition(w, w.load("i1", known), "i1")


def _is_at_least(w: Writer, structure: str, layout: Any) -> Condition:
    return _read(w, structure, layout.struct_size) >= ctypes.sizeof(layout)


def _buffers(w: Writer, frame: str, table: Any) -> str:
    """Pointers to the buffers of arguments or results."""
    return w.load("ptr", w.field(w.field(frame, table), xla.Buffers.buffers))


def _members(w: Writer, results: str, rank: int) -> Integer:
    """Of the batch: the product of the leading axes of the first result."""
    dimensions = w.load("ptr", w.field(w.load("ptr", results), xla.BufferLayout.dims))
    members = Integer(w, "1")
    for i in range(rank):
        members = members * Integer(w, w.load("i64", w.place("i64", dimensions, i)))
    return members


def _error(w: Writer, frame: str) -> str:
    """The error of an unknown xla."""
    api = w.load("ptr", w.field(frame, xla.CallFrame.api))
    make = w.load("ptr", w.field(api, xla.Api.error_create))
    error = w.room(ctypes.sizeof(xla.Error), "i8")
    size = xla.size_until(xla.Error.errc)
    _write(w, "i64", size, error, xla.Error.struct_size)
    _write(w, "ptr", "null", error, xla.Error.extension_start)
    _write(w, "ptr", "@refusal", error, xla.Error.message)
    _write(w, "i32", xla.INTERNAL, error, xla.Error.errc)
    return w.put("ptr", f"call ptr {make}(ptr {error})")
