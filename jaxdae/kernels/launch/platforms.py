"""Where JAX computes, and how kernels are written and launched there."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.mlir import ir

from jaxdae.derivatives.primitives import Axes
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.batch_loops import Lanes, Signature
from jaxdae.kernels.llvm.module import Definition, LlvmModule, stack_need
from jaxdae.kernels.llvm.threads import share
from jaxdae.kernels.llvm.xla_interface import handler

# XLA's calls whose attributes are typed.
_TYPED = 4


def launched(ctx, target: str, arguments, operand_layouts=None, result_layouts=None) -> Any:
    """Lower a primitive to the call of a registered target.

    JAX writes the attributes of a call, of which ours has none, under a name of its own, from which
    XLA makes a typed call later; in large programs it gives up before it came to all of them, and
    then does not know the target. Here the call is typed from the beginning.

    Args:
        ctx: of the rule.
        target: name from `machine_code.register`.
        arguments: of the rule.
        operand_layouts: axes of each argument, the one whose entries are neighbours first; by
            default the last one is.
        result_layouts: the same of the results.
    """
    rule = jax.ffi.ffi_lowering(
        target, operand_layouts=operand_layouts, result_layouts=result_layouts
    )
    results: Any = rule(ctx, *arguments)
    attributes = results[0].owner.attributes
    attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED)
    attributes["backend_config"] = ir.DictAttr.get({})
    if "mhlo.backend_config" in attributes:
        del attributes["mhlo.backend_config"]
    return results


def members_first(ndim: int, rank: int) -> tuple[int, ...]:
    """Axes of an array, minor ones first, so that the same number of all members lies together."""
    return (*reversed(range(rank)), *reversed(range(rank, ndim)))


class Work(NamedTuple):
    """What is launched.

    Args:
        definitions: functions, of which one is what `Lanes.finish` gives.
        axes: of the batch.
        content: what is computed, in words that are the same on every machine.
        least: members that are worth a thread of a processor.
        scratch: numbers that a thread of a GPU keeps beside its own memory, at most.
        result_ranks: leading axes of each result that are those of the batch, if not all.
    """

    definitions: Iterable[Definition]
    axes: Axes
    content: str
    least: int = 1
    scratch: int = 0
    result_ranks: tuple[int, ...] | None = None


class Platform(NamedTuple):
    """A platform of JAX.

    Args:
        name: as JAX calls it.
        register_width: numbers of so many bits that a vector register holds.
        lanes: what kernels are written to.
        launch: `launch(ctx, arguments, work)` lowers a primitive to the launch of a kernel.
    """

    name: str
    register_width: Callable[[int], int]
    lanes: Callable[..., Lanes]
    launch: Callable[[Any, Any, Work], Any]

    def width(self, dtype: Any, axes: Axes) -> int:
        """Entries of the vectors that serve a batch."""
        return self.register_width(8 * np.dtype(dtype).itemsize) if axes.members > 1 else 1

    def writer(self, dtype: Any, axes: Axes, ctx: Any) -> Lanes:
        """What a kernel is written to, by the context of its lowering."""
        arguments, results = (
            tuple(len(x.shape) for x in avals) for avals in (ctx.avals_in, ctx.avals_out)
        )
        wide = self.register_width(8 * np.dtype(dtype).itemsize)
        signature = Signature(arguments, results)
        return self.lanes(self.width(dtype, axes), dtype, wide, signature)


def assembled(definitions: Iterable[Definition], rank: int, threads: int, least: int) -> LlvmModule:
    """A module from the definitions that `@run` is one of.

    Args:
        definitions: that, and what it calls.
        rank: number of leading axes of every result, which are the batch.
        threads: threads that share a batch.
        least: members that are worth a thread; parts of a batch are multiples of it.
    """
    each = list(definitions)
    need = stack_need(each, machine_code.quickly())
    return LlvmModule([*each, *share(threads, least, need), *handler(rank)])


def _on_processor(ctx, arguments, work: Work) -> Any:
    threads = machine_code.default_threads()
    module = assembled(work.definitions, work.axes.rank, threads, work.least)
    return launched(ctx, machine_code.register(module, work.content), arguments)


def device_kernel(work: Work, dtype: Any) -> Any:
    """What of some work is launched on a GPU, a `jaxdae.kernels.cuda.ptx.DeviceKernel`."""
    from jaxdae.kernels.cuda.ptx import device_kernel

    scratch = work.scratch * np.dtype(dtype).itemsize
    return device_kernel(work.definitions, work.axes.rank, work.axes.members, scratch)


def _on_gpu(ctx, arguments, work: Work) -> Any:
    from jaxdae.kernels.cuda.launch import register

    kernel = device_kernel(work, ctx.avals_out[0].dtype)
    name = register(kernel, work.content)
    room = ctx.avals_out[0].update(shape=(kernel.threads, work.scratch))
    ins = [members_first(x.ndim, n) for x, n in zip(ctx.avals_in, work.axes.ranks(), strict=True)]
    ranks = work.result_ranks or (work.axes.rank,) * len(ctx.avals_out)
    outs = [members_first(x.ndim, n) for x, n in zip(ctx.avals_out, ranks, strict=True)]
    more = ctx.replace(avals_out=[*ctx.avals_out, room])
    return launched(more, name, arguments, ins, [*outs, (1, 0)])[:-1]


def _device_lanes(*arguments) -> Lanes:
    from jaxdae.kernels.cuda.device_lanes import DeviceLanes

    return DeviceLanes(*arguments)


# Through the module, so that its function can be replaced in tests.
HOST = Platform("cpu", lambda bits: machine_code.host_width(bits), Lanes, _on_processor)
CUDA = Platform("cuda", lambda _: 1, _device_lanes, _on_gpu)
PLATFORMS = HOST, CUDA


def on_platforms(rule: Callable) -> dict[str, Callable]:
    """Rules of lowering by names of platforms, of one `rule(platform, ctx, *arguments, **…)`."""
    return {x.name: functools.partial(rule, x) for x in PLATFORMS}
