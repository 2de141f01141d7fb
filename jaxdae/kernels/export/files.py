"""Files of an exported run: code, and how programs call it."""

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
from jaxdae.kernels.export.symbols import undefined_symbols
from jaxdae.kernels.export.targets import ExportTarget
from jaxdae.kernels.llvm.module import stack_need

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
    module = module_of(exported, target)
    stack = stack_need(module.definitions, quickly=False)
    code = object_code(module, target, " ".join([about[0], *more]))
    undefined = () if target.is_web else undefined_symbols(code)
    if target.is_linked:
        code = linked(code, exported.interface.name, stack, target)
    if target.is_web:
        text = javascript(exported.interface, about, statuses)
        return Files({"wasm": code, "js": text.encode()}, undefined)
    needs = f"It expects functions from elsewhere: {', '.join(undefined) or 'none'}."
    if not target.is_gpu:
        needs += f" Of the stack it takes {-(-stack // 1024)} kB at most."
    lines = [*about, *more, f"Code for {target.name} ({target.about}). {needs}"]
    text = header(exported.interface, lines, statuses, target.is_gpu)
    return Files({"hsaco" if target.is_gpu else "o": code, "h": text.encode()}, undefined)
