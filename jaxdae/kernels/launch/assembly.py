"""A module of LLVM's intermediate language that XLA can call: a batch loop, threads, a handler."""

from collections.abc import Iterable

import numpy as np

from jaxdae.derivatives.batch_axes import Axes
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.emission.instructions import elementary_calls, emit
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition, Module, stack_need
from jaxdae.kernels.llvm.registers import Integer
from jaxdae.kernels.llvm.threads import share
from jaxdae.kernels.llvm.xla_interface import handler
from jaxdae.kernels.tracing.trace import ScalarProgram


def definitions(program: ScalarProgram, lanes: Lanes, axes: Axes) -> list[Definition]:
    """The function of a program for members of a batch, and what it calls."""
    names, kind = elementary_calls(program), (lanes.width, lanes.dtype)
    elementary = [x for name in names for x in elementary_functions.function(name, *kind)]
    return [*elementary, _run(program, lanes, axes)]


def assembled(definitions: Iterable[Definition], rank: int, threads: int, least: int) -> Module:
    """A module from the definitions that `@run` is one of.

    Args:
        definitions: that, and what it calls.
        rank: number of leading axes of every result, which are the batch.
        threads: threads that share a batch.
        least: members that are worth a thread; parts of a batch are multiples of it.
    """
    each = list(definitions)
    need = stack_need(each, machine_code.quickly())
    return Module([*each, *share(threads, least, need), *handler(rank)])


def _run(program: ScalarProgram, lanes: Lanes, axes: Axes) -> Definition:
    """`@run(arguments, results, begin, end)`: members `begin` to `end - 1` of the batch.

    Blocks of `width` members; the last one begins early enough to be full, and where there are
    fewer members than that, the last is taken again.
    """
    width = lanes.width
    ranks, sizes = axes.ranks(), [int(np.prod(x.shape)) for x in program.inputs]
    arguments = [
        Buffer(lanes, lanes.arguments, i, size, ranks[i], 0) for i, size in enumerate(sizes)
    ]
    results = [
        Buffer(lanes, lanes.results, i, int(np.prod(x.shape)), axes.rank or 1, 0)
        for i, x in enumerate(program.results)
    ]
    last, top = lanes.end - width, lanes.end - 1
    early = (last >= lanes.begin).choose(last, lanes.begin)
    with lanes.turns(lanes.begin, lanes.end, lanes.stride * width) as turns:
        block = Integer(lanes, turns.index)
        first = (block <= last).choose(block, early)
        members = [lanes.minimum(first + i, top) for i in range(width)]
        inputs = [
            _everywhere(lanes, x, j) if x.shared else _gathered(lanes, x, members, j)
            for x, size in zip(arguments, sizes, strict=True)
            for j in range(size)
        ]
        registers = iter(emit(lanes, program, inputs.__getitem__))
        for x in results:
            for j in range(x.size):
                register = next(registers)
                for i, member in enumerate(members):
                    x.write(lanes.entry(register, i), member, j)
    return lanes.finish()


def _gathered(lanes: Lanes, argument: Buffer, members: list[Integer], j: int) -> str:
    vector = "poison"
    for i, member in enumerate(members):
        vector = lanes.with_entry(vector, argument.read(member, j), i)
    return vector


def _everywhere(lanes: Lanes, argument: Buffer, j: int) -> str:
    """A number that all members share."""
    return lanes.repeated(argument.read(0, j))
