"""Values of what failed: NaN, and derivatives that are none."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdae.kernels.launch.derivatives import shielded


def invalidated(tree: Any, bad: Bool[Array, ""]) -> Any:
    """The same where all is well; else NaN, with derivatives that are NaN.

    Derivatives in reverse mode are zero for a cotangent of zero: a sum over the members of a batch
    that leaves the failed ones out has the gradient of the others.

    Args:
        tree: floating-point arrays in any pytree.
        bad: whether it failed.
    """
    scale = jnp.where(bad, jnp.nan, 1.0)
    scaled = lambda tree, scale: jax.tree.map(lambda x: x * scale.astype(x.dtype), tree)  # noqa: E731
    return shielded(scaled, tree, tree, scale)
