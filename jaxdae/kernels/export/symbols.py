"""Symbols of object files."""

import struct

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
