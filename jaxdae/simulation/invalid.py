"""Values of what failed: NaN, and derivatives that are none."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdae.derivatives.functions import with_nan_safe_derivative


def invalidated(tree: Any, bad: Bool[Array, ""], by: Any = ()) -> Any:
    """The same where all is well; else NaN, with derivatives that are NaN.

    Derivatives in reverse mode are zero for a cotangent of zero: a sum over the members of a batch
    that leaves the failed ones out has the gradient of the others.

    Args:
        tree: floating-point arrays in any pytree.
        bad: whether it failed.
        by: what else the result would depend on had it not failed, arrays in any pytree: where it
            has failed its derivatives by these are NaN, too.
    """
    # Both are made to vary over the same devices of a `shard_map`.
    tree = jax.tree.map(lambda x: jnp.where(bad, x, x), tree)
    scale = jax.tree.map(
        lambda x: jnp.where(bad & (x == x), jnp.nan, 1.0).astype(x.dtype),
        jax.lax.stop_gradient(tree),
    )
    by = [x for x in jax.tree.leaves(by) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    none = jax.lax.stop_gradient(jnp.where(bad, jnp.nan, 0.0)) if by else None
    return with_nan_safe_derivative(_scaled, tree, tree, scale, by, none)


def _scaled(tree, scale, by, none):
    tree = jax.tree.map(jnp.multiply, tree, scale)
    if none is None:
        return tree
    # Infinite parameters, such as bounds, are no numbers times zero.
    terms = [jnp.sum(jnp.where(jnp.isfinite(x), x, 0) * none.astype(x.dtype)) for x in by]
    return jax.tree.map(lambda x: x + sum(y.astype(x.dtype) for y in terms), tree)
