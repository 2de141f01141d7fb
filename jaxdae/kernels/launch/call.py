"""Calls of machine code in the programs of JAX."""

from typing import Any

import jax
from jax.extend.mlir import ir

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

    Returns:
        What the rule returns.
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
    """Axes of an array, minor ones first, so that the same number of all members lies together.

    Args:
        ndim: of the array.
        rank: leading axes that are the batch.
    """
    return (*reversed(range(rank)), *reversed(range(rank, ndim)))
