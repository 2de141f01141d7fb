"""PTX of single instructions, which each thread executes with numbers of its own."""

from collections.abc import Sequence

import numpy as np

from helpers.ptx import Memory, Module
from jaxdae.kernels.cuda.assembler import assemble

HEAD = ".version 8.0\n.target sm_70\n.address_size 64\n"
_NAMES = {"float32": "f32", "float64": "f64"} | {
    f"{x}int{bits}": f"{'u' if x else 's'}{bits}" for x in ("", "u") for bits in (8, 16, 32, 64)
}
# Registers that hold types, by their length in bytes.
_REGISTERS = {1: "%s", 2: "%s", 4: "%w", 8: "%x"}
DECLARED = """
  .reg .pred %p<8>;
  .reg .b16 %s<8>;
  .reg .b32 %w<32>;
  .reg .b64 %x<32>;
"""
# The number of the thread in %w31, and eight times as much in %x31.
NUMBER = """
  mov.u32 %w28, %tid.x;
  mov.u32 %w29, %ntid.x;
  mov.u32 %w30, %ctaid.x;
  mad.lo.s32 %w31, %w29, %w30, %w28;
  mul.wide.u32 %x31, %w31, 8;
"""


def kernel(body: str, parameters: int = 2, before: str = "") -> str:
    """A module with an entry, whose parameters are in %x30, %x29, and so on.

    Args:
        body: statements.
        parameters: their number.
        before: what comes before the entry.
    """
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "".join(f"  ld.param.u64 %x{30 - i}, [p{i}];\n" for i in range(parameters))
    return (
        f"{HEAD}{before}\n.visible .entry kernel({listed})\n"
        f"{{{DECLARED}{NUMBER}{loads}{body}\n  ret;\n}}\n"
    )


def launch(
    text: str, inputs: Sequence[np.ndarray], result: np.ndarray, grid: int = 1, block: int = 4
) -> np.ndarray:
    """What an entry makes of a result and inputs, the addresses of which it is given in this order.

    The text is checked by NVIDIA's assembler, too.
    """
    assemble(text, "sm_70")
    memory = Memory()
    at = memory.allocate(np.asarray(result))
    others = [memory.allocate(np.asarray(x)) for x in inputs]
    Module(text).launch("kernel", grid, block, [at, *others], memory)
    return memory.read(at, result.shape, result.dtype)


def unit(opcode: str, result: str, kinds: Sequence[str]) -> str:
    """A module whose threads execute one instruction each.

    Args:
        opcode: of it.
        result: its type; `pred` for a predicate.
        kinds: types of what it reads.
    """
    lines, operands = [], []
    for i, name in enumerate(kinds):
        memory = "u32" if name == "pred" else name
        size = int(memory[1:]) // 8
        register = f"{_REGISTERS[size]}{i}"
        lines += [
            f"mul.wide.u32 %x20, %w31, {size};",
            f"add.u64 %x20, %x20, %x{29 - i};",
            f"ld.global.{memory} {register}, [%x20];",
        ]
        if name == "pred":
            lines.append(f"setp.ne.u32 %p{i}, {register}, 0;")
        operands.append(f"%p{i}" if name == "pred" else register)
    target = "%p7" if result == "pred" else f"{_REGISTERS[int(result[1:]) // 8]}7"
    lines.append(f"{opcode} {', '.join([target, *operands])};")
    if result == "pred":
        lines.append("selp.u32 %w7, 1, 0, %p7;")
        target, result = "%w7", "u32"
    size = int(result[1:]) // 8
    lines += [
        f"mul.wide.u32 %x20, %w31, {size};",
        "add.u64 %x20, %x20, %x30;",
        f"st.global.{result} [%x20], {target};",
    ]
    return kernel("".join(f"  {x}\n" for x in lines), 1 + len(kinds))


def applied(opcode: str, result: str, *arrays: np.ndarray) -> np.ndarray:
    """What an instruction gives for each entry of arrays.

    Args:
        opcode: of it.
        result: its type; `pred` for a predicate.
        arrays: what it reads; booleans are predicates.
    """
    kinds = ["pred" if x.dtype == np.bool_ else _NAMES[x.dtype.name] for x in arrays]
    inputs = [x.astype(np.uint32) if x.dtype == np.bool_ else x for x in arrays]
    names = {y: x for x, y in _NAMES.items()}
    out = np.zeros(arrays[0].size, "u4" if result == "pred" else names[result])
    text = unit(opcode, result, kinds)

    values = launch(text, inputs, out, 1, arrays[0].size)
    return values.astype(bool) if result == "pred" else values


# The result of a thread is at its number.
STORE = """
  add.u64 %x20, %x30, %x31;
  st.global.u64 [%x20], %x0;
"""


def numbers(body: str, *inputs: np.ndarray, threads: int = 4, before: str = "", grid: int = 1):
    """What threads leave in %x0, each with numbers of its own."""
    text = kernel(body + STORE, 1 + len(inputs), before)
    return launch(text, inputs, np.zeros(threads * grid, np.uint64), grid, threads).tolist()


def run(text: str, *parameters: int, grid: int = 1, block: int = 2, memory: Memory | None = None):
    return Module(text).launch("kernel", grid, block, list(parameters), memory or Memory())
