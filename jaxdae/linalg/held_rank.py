r"""Linear algebra at a rank that is known: scalar operations only, with derivatives, in batches.

Constraints that depend on each other where they hold, such as those of a doubly closed loop, are
independent next to that: at the distance `d` the Jacobian has singular values of the order `d`, and
the right sides have components of that order along them. Their quotient is of order one and means
nothing. No threshold separates such a singular value from a small one that means something; a rank
that is known leaves exactly the right ones out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxdae.linalg.positive_definite import solve_positive_definite


class PivotedRows(NamedTuple):
    """Rows of a matrix in the order of a pivoted Gram-Schmidt process.

    Args:
        sizes: lengths of what is left of them beside the rows before, falling, shape `(c,)`.
        directions: orthonormal basis of the space of the rows, zero beyond the rank, `(c, n)`.
        order: rows of unit vectors, `order @ matrix` has the rows in that order, shape `(c, c)`.
        rank: number of rows of which more than round-off is left.
    """

    sizes: Float[Array, " c"]
    directions: Float[Array, "c n"]
    order: Float[Array, "c c"]
    rank: Float[Array, ""]

    def beside(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The part of a vector that is orthogonal to all rows."""
        for _ in range(2):  # once more takes the round-off away
            vector = vector - (self.directions @ vector) @ self.directions
        return vector


def rank_tolerance(dtype) -> float:
    """Ratio of lengths below which the rest of a row counts as zero.

    Such rows leave no digits in single, and half of them in double precision.
    """
    return max(1e-7, float(jnp.finfo(dtype).eps) ** 0.5)


def _nothing(squares: Float[Array, " c"]) -> Float[Array, ""]:
    """Square of a length that is round-off beside the largest."""
    return (100 * jnp.finfo(squares.dtype).eps) ** 2 * jnp.max(squares, initial=0.0)


def unit_rows(matrix: Float[Array, "c n"]) -> tuple[Float[Array, "c n"], Float[Array, " c"]]:
    """A matrix with its rows scaled to length one, and the scales.

    A row that is zero, or at round-off beside the largest, becomes zero.
    """
    sizes = jnp.sum(matrix * matrix, axis=1)
    nothing = sizes <= _nothing(sizes)
    scales = jnp.where(nothing, 0.0, 1 / jnp.sqrt(jnp.where(nothing, 1.0, sizes)))
    return scales[:, None] * matrix, scales


def pivoted_rows(matrix: Float[Array, "c n"], most: int | None = None) -> PivotedRows:
    """Pivoted Gram-Schmidt process of the rows of a matrix, each time with the longest rest.

    Args:
        matrix: shape `(c, n)`, with rows of length one or zero for a rank that means something.
        most: number of rows to take; by default all.

    Returns:
        `PivotedRows`; without derivatives, since the choice is piecewise constant.
    """
    count = matrix.shape[0]
    if matrix.size == 0:
        nothing = jnp.zeros(count, matrix.dtype)
        return PivotedRows(nothing, matrix, jnp.eye(count, dtype=matrix.dtype), jnp.sum(nothing))

    def step(rest, _):
        lengths = jnp.sum(rest * rest, axis=1)
        chosen = _unit(jnp.argmax(lengths), count, rest.dtype)
        row, length = chosen @ rest, jnp.sqrt(chosen @ lengths)
        direction = row / jnp.where(length > 0, length, 1.0)
        rest = rest - (rest @ direction)[:, None] * direction
        return jnp.where(chosen[:, None] > 0, 0.0, rest), (length, direction, chosen)

    matrix = jax.lax.stop_gradient(matrix)
    _, (sizes, directions, order) = jax.lax.scan(step, matrix, None, most or count)
    counts = sizes > rank_tolerance(sizes.dtype)
    rank = jnp.sum(counts).astype(sizes.dtype)
    return PivotedRows(sizes, jnp.where(counts[:, None], directions, 0.0), order, rank)


def split_columns(
    matrix: Float[Array, "c n"], sizes: Float[Array, " n"] | None = None
) -> tuple[Int[Array, " n-c"], Int[Array, " c"]]:
    """Split the columns of `A` into free ones and ones that `A x = b` is well solved for.

    The next column taken is the one farthest from the span of those already taken, rows being
    scaled to unit length first. A choice is not differentiable; as far as derivatives go, it is
    fixed.

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
    taken = jnp.sum(pivoted_rows(unit_rows(table)[0].T, c).order, axis=0) if c else jnp.zeros(n)
    order = jnp.argsort(taken > 0, stable=True)
    return order[: n - c], order[n - c :]


class Shares(NamedTuple):
    """Two solutions of `A x = b`, equal but for what the rank leaves out.

    `least` is of least norm; `weighted` with each entry taken in parts of `1 / sqrt(a_ii)`.
    """

    weighted: Float[Array, " c"]
    least: Float[Array, " c"]


def solve_at_rank(
    matrix: Float[Array, "c c"], rhs: Float[Array, " c"], rank: Float[Array, ""]
) -> Shares:
    r"""Solutions of `A x = b` for a positive semidefinite `A` of known rank.

    Cholesky elimination with `rank` pivots of the matrix with a diagonal of ones, `D A D`, each the
    largest that is left, gives `D A D = G G^T` up to what the rank leaves out, and
    `x = D G (G^T G)^-2 G^T D b`. The columns of `G` are combinations of those of `D A D`; they span
    the eigenvectors of its `rank` largest eigenvalues up to the ratio of the others to these. For
    `A = J M^-1 J^T` at the distance `d` from where the rank of `J` falls, that is of the order
    `d^2`, and so are jumps where the choice of pivots changes. What `A x = b` cannot have at that
    rank is shared by the equations in parts of their sizes, so that no unit of one matters.

    Args:
        matrix: `A`, shape `(c, c)`.
        rhs: `b`, shape `(c,)`.
        rank: number of pivots, an integer in floating point; may be traced. NaN gives NaN.

    Returns:
        `Shares`, NaN where one of the pivots is not positive.
    """
    diagonal = jnp.diagonal(matrix)
    # An equation at round-off beside the others is none, and no pivot, unless the rank counts it.
    large = diagonal > _nothing(diagonal)
    enough = jnp.sum(jnp.where(large, 1.0, 0.0).astype(matrix.dtype)) >= rank
    regular = jnp.where(enough, large, diagonal > 0)
    scale = jnp.where(regular, 1 / jnp.sqrt(jnp.where(regular, diagonal, 1.0)), 0.0)
    columns = _factor(scale[:, None] * matrix * scale, rank)
    spare = jnp.diag(jnp.where(jnp.arange(rhs.shape[0]) < rank, 0.0, 1.0).astype(matrix.dtype))
    inner = columns @ columns.T + spare
    once = solve_positive_definite(inner, columns @ (scale * rhs))
    result = scale * (solve_positive_definite(inner, once) @ columns)
    result = jnp.where(rank >= 0, result, jnp.nan)
    # Onto the span of the columns of A.
    sized = columns * jnp.where(regular, jnp.sqrt(jnp.where(regular, diagonal, 1.0)), 0.0)
    return Shares(result, solve_positive_definite(sized @ sized.T + spare, sized @ result) @ sized)


def _factor(matrix: Float[Array, "c c"], rank) -> Float[Array, "c c"]:
    """Rows `g_k`, zero from the rank on, with `A = sum g_k g_k^T`."""
    count = matrix.shape[0]

    def step(state, number):
        rest, untaken = state
        left = jnp.where(untaken > 0, jnp.diagonal(rest), -1.0)
        chosen = _unit(jnp.argmax(jax.lax.stop_gradient(left)), count, rest.dtype)
        column = rest @ chosen
        pivot, used = column @ chosen, number < rank
        good = pivot > 0
        size = jnp.where(good, jnp.sqrt(jnp.where(good, pivot, 1.0)), jnp.nan)
        column = jnp.where(used, column / jnp.where(used, size, 1.0), 0.0)
        return (rest - column[:, None] * column, untaken * (1 - chosen)), column

    start = (matrix, jnp.ones(count, matrix.dtype))
    return jax.lax.scan(step, start, jnp.arange(count, dtype=matrix.dtype))[1]


def _unit(index, count: int, dtype) -> Float[Array, " c"]:
    return (jnp.arange(count) == index).astype(dtype)
