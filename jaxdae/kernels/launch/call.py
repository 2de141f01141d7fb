"""Calls of machine code in the programs of JAX."""

from typing import Any

import jax
from jax.extend.mlir import ir

# XLA's calls whose attributes are typed.
_TYPED = 4


def launched(ctx, target: str, arguments) -> Any:
    """Lower a primitive to the call of a registered target.

    JAX writes the attributes of a call, of which ours has none, under a name of its own, from which
    XLA makes a typed call later; in large programs it gives up before it came to all of them, and
    then does not know the target. Here the call is typed from the beginning.

    Args:
        ctx: of the rule.
        target: name from `machine_code.register`.
        arguments: of the rule.

    Returns:
        What the rule returns.
    """
    results: Any = jax.ffi.ffi_lowering(target)(ctx, *arguments)
    attributes = results[0].owner.attributes
    attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _TYPED)
    attributes["backend_config"] = ir.DictAttr.get({})
    if "mhlo.backend_config" in attributes:
        del attributes["mhlo.backend_config"]
    return results
