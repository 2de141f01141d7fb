"""Values of what failed: NaN, and derivatives that are none."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdae.derivatives.functions import with_nan_safe_derivative


def invalidated(tree: Any, bad: Bool[Array, ""]) -> Any:
    """The same where all is well; else NaN, with derivatives that are NaN.

    Derivatives in reverse mode are zero for a cotangent of zero: a sum over the members of a batch
    that leaves the failed ones out has the gradient of the others.

    Args:
        tree: floating-point arrays in any pytree.
        bad: whether it failed.
    """
    # Both are made to vary over the same devices of a `shard_map`.
    tree = jax.tree.map(lambda x: jnp.where(bad, x, x), tree)
    scale = jax.tree.map(
        lambda x: jnp.where(bad & (x == x), jnp.nan, 1.0).astype(x.dtype),
        jax.lax.stop_gradient(tree),
    )
    scaled = lambda tree, scale: jax.tree.map(jnp.multiply, tree, scale)  # noqa: E731
    return with_nan_safe_derivative(scaled, tree, tree, scale)
