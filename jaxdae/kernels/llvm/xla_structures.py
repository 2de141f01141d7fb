"""Structures in memory by which XLA calls functions of others.

They are those of `xla/ffi/api/c_api.h`, with its names of their fields. Each begins with its size,
and grows only at its end as long as the major version stays; nothing is read before versions and
sizes have been checked.
"""

import ctypes
from typing import Any

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
