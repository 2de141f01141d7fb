"""Which unknowns a set of linear equations should be solved for."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def split_columns(
    matrix: Float[Array, "c n"], sizes: Float[Array, " n"] | None = None
) -> tuple[Int[Array, " n-c"], Int[Array, " c"]]:
    """Split the columns of `A` into free ones and ones that `A x = b` is well solved for.

    Orthogonalization with column pivoting: the next column taken is the one farthest from the span
    of those already taken, rows being scaled to unit length first. A choice is not differentiable;
    as far as derivatives go, it is fixed.

    Args:
        matrix: `A`, shape `(c, n)`, with `c <= n`.
        sizes: typical sizes of the unknowns, shape `(n,)`, so that their units do not decide;
            by default one.

    Returns:
        Indices `(free (n-c,), basic (c,))`, each in increasing order; `A[:, basic]` is regular if
        `A` has full rank.

    Raises:
        ValueError: for more equations than unknowns.
    """
    c, n = matrix.shape
    if c > n:
        raise ValueError(f"{c} constraints on {n} coordinates cannot be independent.")
    # Not jax.scipy.linalg.qr(pivoting=True), which needs the MAGMA library on a GPU.
    table = jax.lax.stop_gradient(matrix if sizes is None else matrix * sizes)
    tiny = jnp.finfo(table.dtype).tiny
    lengths = jnp.linalg.norm(table, axis=1, keepdims=True)
    start = table / jnp.maximum(lengths, tiny), jnp.zeros(n, bool)
    _, taken = jax.lax.fori_loop(0, c, _take_farthest, start)
    order = jnp.argsort(taken, stable=True)
    return order[: n - c], order[n - c :]


def _take_farthest(_, carry):
    table, taken = carry
    squares = jnp.where(taken, -1.0, jnp.sum(table**2, axis=0))
    j = jnp.argmax(squares)
    direction = table[:, j] / jnp.sqrt(jnp.maximum(squares[j], jnp.finfo(table.dtype).tiny))
    return table - direction[:, None] * (direction @ table), taken.at[j].set(True)
