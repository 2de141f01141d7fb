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
