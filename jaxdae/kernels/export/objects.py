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
    RESULT,
    WIDE,
)
from jaxdae.kernels.export.fused_products import fused_double, fused_single
from jaxdae.kernels.export.interface import Interface
from jaxdae.kernels.export.targets import ExportTarget
from jaxdae.kernels.llvm.machine_code import host_width, MachineCodeError
from jaxdae.kernels.llvm.module import Definition, Module
from jaxdae.kernels.llvm.registers import Integer, Number
from jaxdae.kernels.llvm.writer import Writer

_MEMBER = "ptr %inputs, ptr %times, ptr %outputs"


def library_functions(name: str, interface: Interface, wide: str, most: int) -> list[Definition]:
    """`NAME(inputs, times, outputs)` and `NAME_batch(count, inputs, times, outputs)`.

    The first returns the status, the second how many members have one that is not zero.

    Args:
        name: of the first.
        interface: what it takes and gives.
        wide: the function for several members.
        most: how many it takes.
    """
    one = Writer()
    _members(one, interface, MEMBERS, Integer(one, "0"), Integer(one, "1"))
    code = _status(one, interface, Integer(one, "0"))
    one.line(f"  ret i32 {one.put('i32', f'fptosi {code.kind} {code} to i32')}")
    batch = Writer()
    failed = batch.room(1, "i64")
    batch.store("i64", 0, failed)
    with batch.turns(0, "%count", most) as turns:
        first = Integer(batch, turns.index)
        rest = Integer(batch, "%count") - first
        _members(batch, interface, wide, first, (rest < most).choose(rest, rest.constant(most)))
    with batch.turns(0, "%count") as turns:
        bad = _status(batch, interface, Integer(batch, turns.index)).differs(0.0).as_integer()
        batch.store("i64", bad + Integer(batch, batch.load("i64", failed)), failed)
    batch.line(f"  ret i64 {batch.load('i64', failed)}")
    return [
        one.returned("i32", name, _MEMBER, "nounwind "),
        batch.returned("i64", f"{name}_batch", f"i64 %count, {_MEMBER}", "nounwind "),
    ]


def _scalar(interface: Interface) -> str:
    """LLVM's name of the type of numbers."""
    return "double" if interface.dtype.itemsize == 8 else "float"


def _members(w: Writer, interface: Interface, called: str, first: Integer, count: Integer) -> None:
    """Run some members of a batch."""
    kind = _scalar(interface)
    inputs = w.place(kind, "%inputs", first * interface.inputs.size)
    outputs = w.place(kind, "%outputs", first * interface.outputs.size)
    words = f"ptr {inputs}", "ptr %times", f"ptr {outputs}", f"i64 {count}"
    w.invoke("void", called, *words)


def _status(w: Writer, interface: Interface, member: Integer) -> Number:
    kind = _scalar(interface)
    place = w.place(kind, "%outputs", member * interface.outputs.size + RESULT)
    return Number(w, w.load(kind, place), kind)


def memory_functions(pointer: int) -> list[Definition]:
    """`memcpy` and `memset`, byte by byte: what kernels move is short.

    Args:
        pointer: bits of an address.
    """
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
