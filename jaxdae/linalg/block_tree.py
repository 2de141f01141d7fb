r"""Symmetric positive definite matrices of small blocks that couple along a chain or a tree.

Block `LDL^T` from the leaves to the roots, and substitution back: O(n) for n blocks, no fill.

    D_i = A_ii - sum over children c of  A_ic D_c^-1 A_ci

Which solve is taken where:

- a dense matrix of up to `ELIMINATION_LIMIT` unknowns: Gauss-Jordan elimination inside the compiled
  program, and LAPACK beyond (`solve_positive_definite`);
- a chain or a tree of blocks, declared by these operators or found by `tree_partition`: one loop
  over the blocks. Each is inverted as a dense matrix is: written out up to 3 unknowns, by a loop up
  to `ELIMINATION_LIMIT`, by LAPACK beyond.
"""

from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float

from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT
from jaxdae.linalg.tree_partition import chain, Tree

# A larger block written out entry by entry takes long to compile.
_WRITTEN_OUT = 3


class Eliminated(NamedTuple):
    """Solution of a system of equations, and whether its matrix was regular.

    Args:
        solution: `x`, shape `(n, b)`; all `nan` where the matrix is not regular.
        regular: whether every pivot was positive beyond round-off.
    """

    solution: Float[Array, "n b"]
    regular: Bool[Array, ""]


class BlockTreeLinearOperator(lx.AbstractLinearOperator):
    """Symmetric positive definite matrix of blocks that couple along a tree.

    Vectors have shape `(n, b)`. Made by `block_tridiagonal` and `block_tree`.

    Args:
        diagonal: `A_ii`, symmetric, shape `(n, b, b)`.
        coupling: `A_pi` of node i with its parent p, shape `(n, b, b)`; zero for roots.
        tree: who is whose parent.
    """

    diagonal: Float[Array, "n b b"]
    coupling: Float[Array, "n b b"]
    tree: Tree = eqx.field(static=True)

    def mv(self, vector):
        return multiply(self.tree, self.diagonal, self.coupling, vector)

    def as_matrix(self):
        n, b = self.diagonal.shape[:2]
        unit = jnp.eye(n * b, dtype=self.diagonal.dtype).reshape(n * b, n, b)
        return jax.vmap(self.mv)(unit).reshape(n * b, n * b).T

    def transpose(self):
        return self

    def in_structure(self):
        return jax.ShapeDtypeStruct(self.diagonal.shape[:2], self.diagonal.dtype)

    def out_structure(self):
        return self.in_structure()


class BlockElimination(lx.AbstractLinearSolver):
    """Elimination along a tree of blocks, as a solver for `lineax.linear_solve`.

    Solves `BlockTreeLinearOperator`s, and tridiagonal operators that are tagged positive
    semidefinite. A singular matrix gives `lineax.RESULTS.singular`, and `nan`.

    Args:
        rcond: a pivot below this fraction of the diagonal entry it comes from counts as zero; by
            default ten times the machine epsilon.
    """

    rcond: float | None = eqx.field(static=True, default=None)

    def init(self, operator, options):
        del options
        if isinstance(operator, lx.TaggedLinearOperator) and isinstance(
            operator.operator, BlockTreeLinearOperator
        ):
            return operator.operator
        if isinstance(operator, BlockTreeLinearOperator):
            return operator
        if not (lx.is_tridiagonal(operator) and lx.is_positive_semidefinite(operator)):
            raise ValueError(
                "BlockElimination needs an operator made by block_tridiagonal or block_tree, or a "
                "tridiagonal one tagged lineax.positive_semidefinite_tag; got "
                f"{type(operator).__name__}."
            )
        diagonal, lower, _ = lx.tridiagonal(operator)
        return block_tridiagonal(diagonal[:, None, None], lower[:, None, None])

    def compute(self, state: BlockTreeLinearOperator, vector, options):
        del options
        rhs = vector.reshape(state.diagonal.shape[:2])
        x, regular = eliminate(state.tree, state.diagonal, state.coupling, rhs, self.rcond)
        outcomes: Any = lx.RESULTS
        result = outcomes.where(regular, outcomes.successful, outcomes.singular)
        return x.reshape(vector.shape), result, {}

    def transpose(self, state, options):
        return state, options

    def conj(self, state, options):
        return state, options

    def assume_full_rank(self):
        return True


def block_tridiagonal(
    diagonal: Float[Array, "n b b"], lower: Float[Array, "n-1 b b"]
) -> BlockTreeLinearOperator:
    """Symmetric positive definite block-tridiagonal matrix.

    Args:
        diagonal: `A_ii`, symmetric, shape `(n, b, b)`.
        lower: `A_(i+1)i`, shape `(n-1, b, b)`.

    Raises:
        ValueError: for shapes that do not fit.
    """
    n, *block = jnp.shape(diagonal) if jnp.ndim(diagonal) == 3 else (0,)
    if not n or block[0] != block[1] or jnp.shape(lower) != (n - 1, *block):
        raise ValueError(
            "a block-tridiagonal matrix needs diagonal blocks (n, b, b) and lower ones "
            f"(n-1, b, b); got {jnp.shape(diagonal)} and {jnp.shape(lower)}."
        )
    root = jnp.zeros((1, *block), jnp.result_type(lower))
    return block_tree(chain(n), diagonal, jnp.concatenate([lower, root]))


def block_tree(
    tree: Tree, diagonal: Float[Array, "n b b"], coupling: Float[Array, "n b b"]
) -> BlockTreeLinearOperator:
    """Symmetric positive definite matrix of blocks that couple along a tree.

    Args:
        tree: `Tree(parents)`.
        diagonal: `A_ii`, symmetric, shape `(n, b, b)`.
        coupling: `A_pi` of node i with its parent p, shape `(n, b, b)`; that of a root is not used.

    Raises:
        ValueError: for shapes that do not fit.
    """
    shape = jnp.shape(diagonal)
    fits = len(shape) == 3 and shape[0] == tree.size and shape[1] == shape[2]
    if not fits or jnp.shape(coupling) != shape:
        raise ValueError(
            f"a tree of {tree.size} nodes needs diagonal and coupling blocks ({tree.size}, b, b); "
            f"got {shape} and {jnp.shape(coupling)}."
        )
    dtype = jnp.result_type(diagonal, coupling)
    inner = (tree.parent < tree.size)[:, None, None]
    coupling = jnp.where(inner, coupling, 0).astype(dtype)
    return BlockTreeLinearOperator(jnp.asarray(diagonal, dtype), coupling, tree)


def solve_block_tree(
    tree: Tree,
    diagonal: Float[Array, "n b b"],
    coupling: Float[Array, "n b b"],
    rhs: Float[Array, "n b"],
    rcond: float | None = None,
) -> Float[Array, "n b"]:
    """Solve `A x = b` for a symmetric positive definite matrix of blocks along a tree.

    Derivatives of every order are those of the solution, `A dx = db - dA x`.

    Args:
        tree: who is whose parent.
        diagonal: `A_ii`, symmetric, shape `(n, b, b)`.
        coupling: `A_pi` of node i with its parent p, shape `(n, b, b)`; that of a root must be
            finite and is not used.
        rhs: `b`, shape `(n, b)`.
        rcond: as for `BlockElimination`.

    Returns:
        `x`, shape `(n, b)`; all `nan` where the matrix is not positive definite beyond round-off.
    """
    # As a function of its own, so that a program that calls it several times is traced once.
    solve = _call(tree, rcond)
    return jax.lax.custom_linear_solve(
        lambda x: multiply(tree, diagonal, coupling, x),
        rhs,
        lambda _, b: solve(diagonal, coupling, b),
        symmetric=True,
    )


def multiply(tree: Tree, diagonal, coupling, x: Float[Array, "n b"]) -> Float[Array, "n b"]:
    """`A x`, of the arguments of `solve_block_tree`."""
    parent = tree.parent
    above = jnp.concatenate([x, jnp.zeros_like(x[:1])])[parent]
    product = jnp.einsum("nij,nj->ni", diagonal, x) + jnp.einsum("nji,nj->ni", coupling, above)
    onto_parents = jnp.einsum("nij,nj->ni", coupling, x)
    # The number after the last node, a root's parent, is dropped.
    return product.at[parent].add(onto_parents, mode="drop")


def eliminate(tree: Tree, diagonal, coupling, rhs, rcond: float | None) -> Eliminated:
    """Solve without a rule for derivatives; arguments as for `solve_block_tree`."""
    n, b = rhs.shape
    rcond = 10 * float(jnp.finfo(rhs.dtype).eps) if rcond is None else rcond
    least = rcond * jnp.diagonal(diagonal, axis1=1, axis2=2)
    order, parent = jnp.asarray(tree.order), jnp.asarray(tree.parent)
    # One more node stands for the parent of the roots; its solution is zero.
    spare = jnp.zeros((1, b, b), rhs.dtype)
    blocks, known = jnp.concatenate([diagonal, spare]), jnp.concatenate([rhs, spare[0]])

    def forward(k, carry):
        blocks, known, inverses = carry
        i = order[k]
        inverse = inverse_of_block(blocks[i], least[i])
        factor = _product(coupling[i], inverse)
        blocks = _add_to(blocks, parent[i], -_product(factor, coupling[i].T))
        known = _add_to(known, parent[i], -_product(factor, known[i]))
        return blocks, known, inverses.at[i].set(inverse, mode="promise_in_bounds")

    start = (blocks, known, jnp.zeros((n, b, b), rhs.dtype))
    _, known, inverses = jax.lax.fori_loop(0, n, forward, start)

    def backward(k, x):
        i = order[n - 1 - k]
        left = known[i] - _product(coupling[i].T, x[parent[i]])
        return x.at[i].set(_product(inverses[i], left), mode="promise_in_bounds")

    x = jax.lax.fori_loop(0, n, backward, jnp.zeros_like(known))[:n]
    regular = jnp.all(jnp.isfinite(inverses))
    return Eliminated(jnp.where(regular, x, jnp.nan), regular)


def inverse_of_block(block: Float[Array, "b b"], least: Float[Array, " b"]) -> Float[Array, "b b"]:
    """Inverse of a symmetric positive definite block.

    Args:
        block: shape `(b, b)`.
        least: pivots must be larger; shape `(b,)`.

    Returns:
        Shape `(b, b)`, symmetric; not finite where a pivot is too small.
    """
    b = block.shape[0]
    if b > ELIMINATION_LIMIT:
        return _inverse_by_cholesky(block, least)
    if b > _WRITTEN_OUT:
        return jax.lax.fori_loop(0, b, lambda _, x: _sweep_first(x), (block, least))[0]
    return _inverse_written_out(block, least)


@cache
def _call(tree: Tree, rcond: float | None):
    def solve_block_tree(diagonal, coupling, rhs):
        return eliminate(tree, diagonal, coupling, rhs, rcond).solution

    return jax.jit(solve_block_tree)


def _inverse_written_out(block, least):
    """Gauss-Jordan sweeps, entry by entry: the compiler joins them into one operation."""
    b = block.shape[0]
    entries = {(i, j): block[i, j] for i in range(b) for j in range(i, b)}
    for k in range(b):
        entries = _swept(entries, k, least[k])
    rows = [[-_entry(entries, i, j) for j in range(b)] for i in range(b)]
    return jnp.stack([jnp.stack(row) for row in rows])


def _swept(entries: dict, k: int, least) -> dict:
    """The sweep operator on pivot k of a symmetric matrix; over all pivots `-A^-1`."""
    pivot = _inverse_of_pivot(_entry(entries, k, k), least)
    swept = {}
    for i, j in entries:
        value = _entry(entries, i, j)
        if k not in (i, j):
            swept[i, j] = value - _entry(entries, i, k) * _entry(entries, k, j) * pivot
        else:
            swept[i, j] = -pivot if i == j else value * pivot
    return swept


def _entry(entries: dict, i: int, j: int):
    return entries[min(i, j), max(i, j)]


def _sweep_first(carry):
    """Gauss-Jordan elimination in place, after which the first row and column become the last.

    By the rotation all steps have the same shapes and constant indices.
    """
    table, least = carry
    pivot = _inverse_of_pivot(table[0, 0], least[0])
    row, column = table[:1, 1:] * pivot, -table[1:, :1] * pivot
    upper = jnp.concatenate([table[1:, 1:] - table[1:, :1] * row, column], axis=1)
    lower = jnp.concatenate([row, pivot[None, None]], axis=1)
    return jnp.concatenate([upper, lower]), jnp.concatenate([least[1:], least[:1]])


def _inverse_of_pivot(pivot, least):
    # Zero is not above the bound of a zero diagonal, nor is a negative pivot above a negative one.
    return 1 / jnp.where((pivot > least) & (pivot > 0), pivot, jnp.nan)


def _inverse_by_cholesky(block, least):
    factor = jnp.linalg.cholesky(block)
    inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(*block.shape, dtype=block.dtype))
    return jnp.where(jnp.all(jnp.diagonal(factor) ** 2 > least), inverse, jnp.nan)


def _add_to(array, index, value):
    return array.at[index].add(value, mode="promise_in_bounds")


def _product(a, b):
    """`a @ b`, without a call to a library; small ones entry by entry."""
    if a.shape[1] > ELIMINATION_LIMIT:
        return a @ b
    if a.shape[1] > _WRITTEN_OUT:
        return jnp.sum(a.reshape(*a.shape, *[1] * (b.ndim - 1)) * b[None], axis=1)
    if b.ndim == 1:
        return sum(a[:, k] * b[k] for k in range(a.shape[1]))
    return jnp.stack([_product(a, b[:, j]) for j in range(b.shape[1])], axis=1)


def _is_true(operator) -> bool:
    del operator
    return True


def _is_false(operator) -> bool:
    del operator
    return False


for _ask in (lx.is_symmetric, lx.is_positive_semidefinite):
    _ask.register(BlockTreeLinearOperator)(_is_true)
for _ask in (
    lx.is_diagonal,
    lx.is_tridiagonal,
    lx.is_lower_triangular,
    lx.is_upper_triangular,
    lx.has_unit_diagonal,
    lx.is_negative_semidefinite,
):
    _ask.register(BlockTreeLinearOperator)(_is_false)
for _same in (lx.linearise, lx.materialise, lx.conj):
    _same.register(BlockTreeLinearOperator)(lambda operator: operator)


@lx.diagonal.register(BlockTreeLinearOperator)
def _(operator):
    return jnp.diagonal(operator.diagonal, axis1=1, axis2=2).reshape(-1)
