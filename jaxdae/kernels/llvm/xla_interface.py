"""XLA's interface for functions of others: its version, its layout in memory, and a handler for it.

The structures are those of `xla/ffi/api/c_api.h`. Each begins with its size, and grows only at its
end as long as the major version stays; nothing is read before versions and sizes have been checked.
"""

import re
from functools import cache
from pathlib import Path

import jax

# Versions of the interface whose layout is the one below.
_MAJOR, _OLDEST_MINOR, _NEWEST_MINOR = 0, 3, 5
# Offsets in a call frame, and what its parts have at least, in bytes.
_EXTENSION, _API, _ARGUMENTS, _RESULTS = 8, 16, 40, 80
_TABLE, _TABLE_SIZE, _FRAME_SIZE = 32, 40, 120
# In a buffer.
DATA, DIMENSIONS = 24, 40
_BUFFER_SIZE = 48
# In the extension that asks for metadata, and in the metadata.
_KIND, _METADATA, _MAJOR_OF, _MINOR_OF, _TRAITS = 8, 24, 24, 28, 32
# In the table of XLA's functions, and in the arguments of that which makes an error.
_MAKE_ERROR, _MESSAGE, _CODE, _ERROR_SIZE = 48, 16, 24, 28
_INTERNAL = 13
_REFUSAL = (
    b"jaxdae: XLA calls a native kernel by a layout that this release does not know; use "
    b"simulate(..., backend='plain'), or another release of jaxlib\0"
)


def obstacle() -> str | None:
    """Why XLA cannot call kernels here; `None` where it can."""
    found = version()
    if found is None:
        return "jaxlib does not say which version its interface for native functions has"
    major, minor = found
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


def handler(rank: int) -> str:
    """Text of `@handler(call frame)`, which XLA calls, and which calls `@share`.

    Args:
        rank: number of leading axes of the first result, which are the batch.
    """
    major, minor = version() or (_MAJOR, _OLDEST_MINOR)
    return f"{_asked(major, minor)}{_checked()}{_executed(rank)}{_refused()}"


def _asked(major: int, minor: int) -> str:
    """Where XLA asks for metadata: the version that a handler is written for."""
    return f"""
define ptr @handler(ptr %frame) {{
entry:
  %xp = getelementptr i8, ptr %frame, i64 {_EXTENSION}
  %x = load ptr, ptr %xp
  %asked = icmp ne ptr %x, null
  br i1 %asked, label %extension, label %sizes
extension:
  %kp = getelementptr i8, ptr %x, i64 {_KIND}
  %k = load i32, ptr %kp
  %about = icmp eq i32 %k, 1
  br i1 %about, label %metadata, label %sizes
metadata:
  %mp = getelementptr i8, ptr %x, i64 {_METADATA}
  %m = load ptr, ptr %mp
  %majorp = getelementptr i8, ptr %m, i64 {_MAJOR_OF}
  store i32 {major}, ptr %majorp
  %minorp = getelementptr i8, ptr %m, i64 {_MINOR_OF}
  store i32 {minor}, ptr %minorp
  %traits = getelementptr i8, ptr %m, i64 {_TRAITS}
  store i32 0, ptr %traits
  ret ptr null
"""


def _checked() -> str:
    """Sizes, before anything is read: no structure may be smaller than ours."""
    return f"""sizes:
  %size = load i64, ptr %frame
  %long = icmp uge i64 %size, {_FRAME_SIZE}
  br i1 %long, label %tables, label %unknown
tables:
  %ap = getelementptr i8, ptr %frame, i64 {_ARGUMENTS}
  %as = load i64, ptr %ap
  %aright = icmp eq i64 %as, {_TABLE_SIZE}
  %rp = getelementptr i8, ptr %frame, i64 {_RESULTS}
  %rs = load i64, ptr %rp
  %rright = icmp eq i64 %rs, {_TABLE_SIZE}
  %right = and i1 %aright, %rright
  br i1 %right, label %buffers, label %unknown
buffers:
  %atp = getelementptr i8, ptr %ap, i64 {_TABLE}
  %a = load ptr, ptr %atp
  %rtp = getelementptr i8, ptr %rp, i64 {_TABLE}
  %r = load ptr, ptr %rtp
  %r0 = load ptr, ptr %r
  %bs = load i64, ptr %r0
  %known = icmp uge i64 %bs, {_BUFFER_SIZE}
  br i1 %known, label %execute, label %unknown
"""


def _executed(rank: int) -> str:
    """The batch, its members counted."""
    dimensions = "\n".join(
        f"""  %d{i}p = getelementptr i64, ptr %dims, i64 {i}
  %d{i} = load i64, ptr %d{i}p
  %n{i + 1} = mul i64 %n{i}, %d{i}"""
        for i in range(rank)
    )
    return f"""execute:
  %dimsp = getelementptr i8, ptr %r0, i64 {DIMENSIONS}
  %dims = load ptr, ptr %dimsp
  %n0 = add i64 0, 1
{dimensions}
  %empty = icmp eq i64 %n{rank}, 0
  br i1 %empty, label %return, label %go
go:
  call void @share(ptr %a, ptr %r, i64 %n{rank})
  br label %return
return:
  ret ptr null
"""


def _refused() -> str:
    """The error of an unknown layout."""
    return f"""unknown:
  %apip = getelementptr i8, ptr %frame, i64 {_API}
  %api = load ptr, ptr %apip
  %makep = getelementptr i8, ptr %api, i64 {_MAKE_ERROR}
  %make = load ptr, ptr %makep
  %error = alloca i8, i64 {_ERROR_SIZE + 4}, align 8
  store i64 {_ERROR_SIZE}, ptr %error
  %ep = getelementptr i8, ptr %error, i64 8
  store ptr null, ptr %ep
  %tp = getelementptr i8, ptr %error, i64 {_MESSAGE}
  store ptr @refusal, ptr %tp
  %cp = getelementptr i8, ptr %error, i64 {_CODE}
  store i32 {_INTERNAL}, ptr %cp
  %made = call ptr %make(ptr %error)
  ret ptr %made
}}

@refusal = internal constant [{len(_REFUSAL)} x i8] [{_bytes(_REFUSAL)}]
"""


def _bytes(text: bytes) -> str:
    return ", ".join(f"i8 {x}" for x in text)
