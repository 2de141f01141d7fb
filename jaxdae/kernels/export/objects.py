"""Object code of exported runs, for other machines than this one too."""

import importlib.util
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from jaxdae.kernels.export.entry import (
    definitions as of_members,
    Exported,
    MEMBERS,
    most_lanes,
    most_members,
    renamed,
    WIDE,
)
from jaxdae.kernels.export.functions import library_functions
from jaxdae.kernels.export.fused_products import fused_double, fused_single
from jaxdae.kernels.export.memory_functions import memory_functions
from jaxdae.kernels.export.targets import ExportTarget
from jaxdae.kernels.llvm.machine_code import host_width, MachineCodeError
from jaxdae.kernels.llvm.module import Definition, Module

# Room for the stack of a page's module beside what its functions need [bytes].
_MARGIN = 2**16
_PAGE = 2**16


@cache
def _llvm():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def object_code(module: Module, target: ExportTarget, about: str) -> bytes:
    """A relocatable object file: ELF, or WebAssembly before it is linked.

    Args:
        module: of the run.
        target: the machine.
        about: what the file says of itself.

    Raises:
        MachineCodeError: where LLVM refuses the module.
    """
    return _compiled(_text(module, target, about), target)


def linked(code: bytes, name: str, stack: int, target: ExportTarget) -> bytes:
    """What a page can load.

    Args:
        code: the object file.
        name: of the run.
        stack: what its functions take of the stack [bytes].
        target: the machine.

    Raises:
        MachineCodeError: where the linker refuses the object.
    """
    room = -(-(stack + _MARGIN) // _PAGE) * _PAGE
    exports = [f"--export={x}" for x in (name, f"{name}_batch", "__heap_base")]
    words = ["wasm-ld", "--no-entry", "--stack-first", "-z", f"stack-size={room}", *exports]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "run.o"), Path(folder, "run")
        source.write_bytes(code)
        command = [sys.executable, "-m", "ziglang", *words, "-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise MachineCodeError(
                f"the linker refuses the run for {target.name}: {done.stderr.strip()}. That is a "
                "mistake in jaxdae; please report it."
            )
        return result.read_bytes()


def check_linker(target: ExportTarget) -> None:
    """That there is a linker where one is needed.

    Raises:
        ImportError: where there is none.
    """
    if target.is_web and importlib.util.find_spec("ziglang") is None:
        raise ImportError(
            f"target {target.name!r} needs a linker, which the package ziglang brings: pip install "
            "'jaxdae[export]'."
        )


def module_of(exported: Exported, target: ExportTarget) -> Module:
    """All functions of a file.

    Args:
        exported: the run.
        target: the machine.
    """
    name, dtype = exported.interface.name, exported.run.problem.dtype
    width = most_lanes(exported.run, target.lanes(dtype))
    parts = [
        renamed(x, f"{name}|{name}_batch", ".inner")  # which leaves names of users free
        for x in of_members(exported, target.width(dtype), width)
    ]
    wide, most = f"{MEMBERS}{WIDE if width > 1 else ''}", most_members(exported.run, width)
    functions = library_functions(name, exported.interface, wide, most)
    return Module([*parts, *_missing(target), *functions])


def host_module(exported: Exported) -> Module:
    """The same functions for the processor of this machine, in this process.

    Args:
        exported: the run.
    """
    name, dtype = exported.interface.name, exported.run.problem.dtype
    register = host_width(8 * dtype.itemsize)
    width = most_lanes(exported.run, register)
    parts = of_members(exported, register, width)
    wide, most = f"{MEMBERS}{WIDE if width > 1 else ''}", most_members(exported.run, width)
    return Module([*parts, *library_functions(name, exported.interface, wide, most)])


def _missing(target: ExportTarget) -> list[Definition]:
    """Functions that LLVM calls where it has no instructions."""
    fused = [] if target.fused else [*fused_double(), *fused_single()]
    return [*memory_functions(target.pointer), *fused]


def _text(module: Module, target: ExportTarget, about: str) -> str:
    """In LLVM's language, with what the file says of itself."""
    words = about.replace("\\", "").replace('"', "")
    named = [f'!llvm.ident = !{{!0}}\n!0 = !{{!"{words}"}}']
    each = [f"ptr @{x.name}" for x in _missing(target)]
    used = (
        f"@llvm.compiler.used = appending global [{len(each)} x ptr] [{', '.join(each)}], "
        'section "llvm.metadata"'
    )
    return "\n\n".join([module.text, used, *named])


def _compiled(text: str, target: ExportTarget) -> bytes:
    llvm = _llvm()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
    )
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise MachineCodeError(
            f"LLVM refuses the module of this run for {target.name}: {str(error).strip()}. That is "
            "a mistake in jaxdae; please report it."
        ) from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)
