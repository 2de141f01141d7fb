"""Files of an exported run: code, and how programs call it."""

import struct
from typing import NamedTuple

from jaxdae.kernels.export.entry import Exported
from jaxdae.kernels.export.header import header
from jaxdae.kernels.export.javascript import javascript
from jaxdae.kernels.export.objects import (
    check_linker as check_linker,
    linked,
    module_of,
    object_code,
)
from jaxdae.kernels.export.targets import ExportTarget
from jaxdae.kernels.llvm.module import stack_need

# Of ELF with 64 bits, little-endian: offsets and sizes of what is read [bytes].
_SECTIONS_AT, _COUNT_AT, _SECTION, _SYMBOL = 40, 60, 64, 24
_SYMBOL_TABLE = 2


def undefined_symbols(code: bytes) -> tuple[str, ...]:
    """Names that an object file (ELF) expects to be defined elsewhere.

    Args:
        code: the file.
    """
    (table,) = struct.unpack_from("<Q", code, _SECTIONS_AT)
    (count,) = struct.unpack_from("<H", code, _COUNT_AT)
    sections = [_section(code, table + i * _SECTION) for i in range(count)]
    names = []
    for kind, offset, size, link in sections:
        if kind == _SYMBOL_TABLE:
            strings = sections[link][1]
            # The first symbol is none.
            names += [_undefined(code, offset + i, strings) for i in range(_SYMBOL, size, _SYMBOL)]
    return tuple(sorted(x for x in names if x))


def _section(code: bytes, at: int) -> tuple[int, int, int, int]:
    """Kind, offset, size and linked section."""
    _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", code, at)
    return kind, offset, size, link


def _undefined(code: bytes, at: int, strings: int) -> str:
    """The name of a symbol that is defined nowhere in the file; empty for others."""
    name, _, _, section = struct.unpack_from("<IBBH", code, at)
    start = strings + name
    return "" if section else code[start : code.index(b"\0", start)].decode()


class Files(NamedTuple):
    """What is written.

    Args:
        contents: by the ends of the files' names, the code first.
        undefined: functions that the code expects from elsewhere.
    """

    contents: dict[str, bytes]
    undefined: tuple[str, ...]


def made(exported: Exported, target: ExportTarget, about: list[str], statuses) -> Files:
    """Code and header, or module of JavaScript.

    Args:
        exported: the run.
        target: the machine.
        about: lines on what it is.
        statuses: names of its statuses.
    """
    module = module_of(exported, target)
    stack = stack_need(module.definitions, quickly=False)
    code = object_code(module, target, about[0])
    undefined = () if target.is_web else undefined_symbols(code)
    if target.is_web:
        code = linked(code, exported.interface.name, stack, target)
        text = javascript(exported.interface, about, statuses)
        return Files({"wasm": code, "js": text.encode()}, undefined)
    needs = f"It expects functions from elsewhere: {', '.join(undefined) or 'none'}."
    needs += f" Of the stack it takes {-(-stack // 1024)} kB at most."
    lines = [*about, f"Code for {target.name} ({target.about}). {needs}"]
    text = header(exported.interface, lines, statuses)
    return Files({"o": code, "h": text.encode()}, undefined)
