"""Files of an exported run: code, and how programs call it."""

from typing import NamedTuple

from jaxdae.kernels.export.entry import Exported
from jaxdae.kernels.export.header import header
from jaxdae.kernels.export.javascript import javascript
from jaxdae.kernels.export.objects import check_linker as check_linker, linked, object_code
from jaxdae.kernels.export.symbols import undefined_symbols
from jaxdae.kernels.export.targets import ExportTarget

_UNTESTED = "Untested: no GPU has run this code yet."


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
    more = [_UNTESTED] if target.is_gpu else []
    code = object_code(exported, target, " ".join([about[0], *more]))
    undefined = () if target.is_web else undefined_symbols(code)
    if target.is_linked:
        code = linked(code, exported, target)
    if target.is_web:
        text = javascript(exported.interface, about, statuses)
        return Files({"wasm": code, "js": text.encode()}, undefined)
    needs = f"It expects functions from elsewhere: {', '.join(undefined) or 'none'}."
    lines = [*about, *more, f"Code for {target.name} ({target.about}). {needs}"]
    text = header(exported.interface, lines, statuses, target.is_gpu)
    return Files({"hsaco" if target.is_gpu else "o": code, "h": text.encode()}, undefined)
