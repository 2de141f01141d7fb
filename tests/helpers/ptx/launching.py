"""Modules of PTX, and their launches."""

from helpers.ptx.environment import exact_arithmetic
from helpers.ptx.errors import PtxError
from helpers.ptx.flow import ENDS
from helpers.ptx.memory import Memory
from helpers.ptx.parsing import Parser
from helpers.ptx.records import Function, Instruction
from helpers.ptx.running import INSTRUCTIONS, Run
from helpers.ptx.threads import initial_bytes, Shape

_REASONS = {
    "approx": "its result is not specified to the last bit",
    "ftz": "its result is not specified to the last bit on subnormal numbers here",
}


class Module:
    """A module of PTX.

    Args:
        text: of it.

    Raises:
        PtxError: where something in it is not known.
    """

    def __init__(self, text: str):
        self.program = Parser(text).parse()
        for function in self.program.functions.values():
            for one in function.instructions:
                if one.opcode not in INSTRUCTIONS and one.opcode not in ENDS:
                    raise PtxError(f"line {one.line}: unknown instruction {one.opcode}{_why(one)}")
        self._variables = [x for x in self.program.variables if x.space != "shared"]
        # Kept with the module, as a GPU does; where they are is not known to other launches.
        self._own = Memory()
        self._addresses = {x.name: self._own.allocate(initial_bytes(x)) for x in self._variables}

    def launch(
        self, entry: str, grid: int, block: int, parameters: list[int], memory: Memory
    ) -> int:
        """Run all threads to their end.

        Args:
            entry: name of the entry.
            grid: number of blocks.
            block: threads of each.
            parameters: of the entry, as integers.
            memory: buffers that the threads may use; variables of the module are added while they
                run.

        Returns:
            How many instructions were executed, each counted once for all threads that it served
            at the same time.

        Raises:
            PtxError: where a thread does what it must not do, with the line and the thread.
        """
        function = self.program.functions.get(entry)
        if function is None or not function.entry:
            raise PtxError(f"no entry {entry}")
        _check_size(function, block)
        for x in self._variables:
            memory.register(self._addresses[x.name], x.nbytes)
        try:
            run = Run(self.program, function, Shape(grid, block), memory, self._addresses)
            run.set_parameters(parameters)
            with exact_arithmetic():
                return run.to_end()
        finally:
            for x in self._variables:
                memory.release(self._addresses[x.name])

    @property
    def addresses(self) -> dict[str, int]:
        """Of global and constant variables."""
        return self._addresses


def _why(instruction: Instruction) -> str:
    for word, reason in _REASONS.items():
        if word in instruction.opcode.split("."):
            return f": {reason}"
    name, _, kind = instruction.opcode.partition(".")
    unrounded = kind in ("f32", "f64") and name in ("add", "sub", "mul")
    return ": without .rn, an assembler may contract it" if unrounded else ""


def _check_size(function: Function, block: int) -> None:
    if function.block not in (None, block):
        raise PtxError(f"{function.name} needs blocks of {function.block} threads, not {block}")
    if block > (function.largest or 1024):
        raise PtxError(f"blocks of {function.name} have at most {function.largest or 1024} threads")
