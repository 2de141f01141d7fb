"""Files of exported runs, for other machines than this one too."""

import importlib.util
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jaxdae.kernels.export.entry import Exported, functions
from jaxdae.kernels.export.fused_products import fused_double, fused_single
from jaxdae.kernels.export.header import header
from jaxdae.kernels.export.javascript import javascript
from jaxdae.kernels.llvm.machine_code import host_width, MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule, stack_need
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.names import unknown_name


class ExportTarget(NamedTuple):
    """A machine.

    Args:
        name: as users give it.
        triple: LLVM's name of processor and system.
        cpu: LLVM's name of the processor.
        features: what it can do beside, as LLVM writes it.
        about: in words.
        register: bits of a vector register.
        fused: whether it has an instruction for `a b + c` with one rounding.
        pointer: bits of an address.
    """

    name: str
    triple: str
    cpu: str
    features: str
    about: str
    register: int
    fused: bool = True
    pointer: int = 64

    @property
    def is_web(self) -> bool:
        """Whether it is WebAssembly."""
        return self.triple.startswith("wasm")

    def lanes(self, dtype: Any) -> int:
        """Members of a batch that are integrated at once.

        Vectors win nothing where each fused product is a call for each entry.
        """
        return 1 if self.is_web or not self.fused else self.width(dtype)

    def width(self, dtype: Any) -> int:
        """Numbers of a type in a vector register."""
        return max(self.register // (8 * dtype.itemsize), 1)


_LINUX = "x86_64-unknown-linux-gnu"
_KNOWN = (
    ExportTarget("x86-64-v2", _LINUX, "x86-64-v2", "", "x86-64, since 2008", 128, fused=False),
    ExportTarget("x86-64-v3", _LINUX, "x86-64-v3", "", "x86-64 with AVX2 and FMA", 256),
    ExportTarget("x86-64-v4", _LINUX, "x86-64-v4", "", "x86-64 with AVX-512", 512),
    ExportTarget("aarch64", "aarch64-unknown-linux-gnu", "generic", "", "64-bit ARM", 128),
    ExportTarget("wasm32", "wasm32-unknown-unknown", "mvp", "", "WebAssembly", 64, False, 32),
)
TARGETS = tuple(x.name for x in _KNOWN)


def export_target(name: str) -> ExportTarget:
    """The machine of a name.

    Raises:
        ValueError: where there is none.
    """
    for target in _KNOWN:
        if target.name == name:
            return target
    raise ValueError(unknown_name("target", str(name), TARGETS))


def files(exported: Exported, target: ExportTarget, about: list[str], statuses) -> dict[str, bytes]:
    """Code, and header or module of JavaScript, by the ends of the files' names.

    Raises:
        MachineCodeError: where LLVM or the linker refuses the code.
    """
    dtype, missing = exported.run.problem.dtype, _missing(target)
    made = functions(exported, target.width(dtype), target.lanes(dtype))
    module = LlvmModule([*made, *missing])
    stack = stack_need(module.definitions, quickly=False)
    code = _compiled(_text(module, missing, about[0]), target)
    if target.is_web:
        code = _linked(code, exported.interface.name, stack, target)
        return {"wasm": code, "js": javascript(exported.interface, about, statuses).encode()}
    needs = f"Of the stack it takes {-(-stack // 1024)} kB at most."
    lines = [*about, f"Code for {target.name} ({target.about}). {needs}"]
    return {"o": code, "h": header(exported.interface, lines, statuses).encode()}


def host_module(exported: Exported) -> LlvmModule:
    """The same functions for the processor of this machine, in this process."""
    register = host_width(8 * exported.run.problem.dtype.itemsize)
    return LlvmModule(functions(exported, register, register))


def _memory_functions(pointer: int) -> list[Definition]:
    """`memcpy` and `memset`, byte by byte: what kernels move is short."""
    return [
        _each("memcpy", "ptr %from", pointer, lambda w, i: w.load("i8", w.place("i8", "%from", i))),
        _each("memset", "i32 %byte", pointer, lambda w, i: w.put("i8", "trunc i32 %byte to i8")),  # noqa: ARG005
    ]


def _each(name: str, source: str, pointer: int, value) -> Definition:
    w, size = Writer(), "%size"
    if pointer != 64:
        size = w.put("i64", f"zext i{pointer} %size to i64")
    with w.turns(0, size) as turns:
        w.store("i8", value(w, turns.index), w.place("i8", "%to", turns.index))
    # Without the attribute LLVM makes the loop a call of the same function.
    attributes = '"no-builtins" noinline nounwind '
    return w.define(name, f"ptr %to, {source}, i{pointer} %size", "ptr", "%to", attributes)


# Room for the stack of a page's module beside what its functions need [bytes].
_MARGIN = 2**16
_PAGE = 2**16


@cache
def _llvm():
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def _linked(code: bytes, name: str, stack: int, target: ExportTarget) -> bytes:
    """What a page can load, from an object file whose functions take so much stack [bytes]."""
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


def _missing(target: ExportTarget) -> list[Definition]:
    """Functions that LLVM calls where it has no instructions."""
    fused = [] if target.fused else [*fused_double(), *fused_single()]
    return [*_memory_functions(target.pointer), *fused]


def _text(module: LlvmModule, missing: list[Definition], about: str) -> str:
    """In LLVM's language, with what the file says of itself."""
    words = about.replace("\\", "").replace('"', "")
    named = [f'!llvm.ident = !{{!0}}\n!0 = !{{!"{words}"}}']
    each = [f"ptr @{x.name}" for x in missing]
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
