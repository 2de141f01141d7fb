r"""Error constants of Runge-Kutta methods, from their order conditions.

One step differs from the exact solution by

    sum over rooted trees t of order p+1 of  h^(p+1) (Phi(t) - 1 / gamma(t)) / sigma(t) F(t)(y)

with the elementary weight `Phi`, the density `gamma` and the symmetry `sigma` of a tree
[HairerNorsettWanner1993, section II.2]. The norm of the coefficients measures a method by itself.
"""

from collections import Counter
from functools import cache, lru_cache
from math import factorial, prod
from typing import NamedTuple

import numpy as np

from jaxdae.reprs import shown

# Coefficients of published methods satisfy their conditions to about nine digits or better.
_SATISFIED = 1e-8
_HIGHEST = 10


class ErrorConstant(NamedTuple):
    """Order of a method and the size of its first error term.

    Args:
        order: `p`.
        norm: Euclidean norm of the coefficients of order `p+1`.
    """

    order: int
    norm: float

    def __repr__(self) -> str:
        return shown(self)


def error_constant(a, b) -> ErrorConstant:
    """The first error term of a tableau.

    Args:
        a: shape `(stages, stages)`.
        b: shape `(stages,)`.

    Returns:
        `ErrorConstant`.

    Raises:
        ValueError: for a method without order 1, or of an order above 9.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    return _from_bytes(a.tobytes(), b.tobytes())


@lru_cache(64)
def _from_bytes(a: bytes, b: bytes) -> ErrorConstant:
    weights = np.frombuffer(b)
    return _first_term(np.frombuffer(a).reshape(weights.size, weights.size), weights)


def _first_term(a, b) -> ErrorConstant:
    for order in range(1, _HIGHEST + 1):
        norm = float(np.linalg.norm(order_residuals(a, b, order)))
        if norm > _SATISFIED:
            break
    else:
        raise ValueError(f"the method has an order above {_HIGHEST - 1}.")
    if order == 1:
        raise ValueError(f"the method's weights add up to {np.sum(b):.6g}, not to 1.")
    return ErrorConstant(order - 1, norm)


def order_residuals(a, b, order: int) -> np.ndarray:
    """`(Phi(t) - 1 / gamma(t)) / sigma(t)` of all rooted trees of an order."""
    weights: dict[tuple, np.ndarray] = {(): np.ones(len(b))}

    def stage_weight(tree: tuple) -> np.ndarray:
        if tree not in weights:
            weights[tree] = np.prod([a @ stage_weight(x) for x in tree], axis=0)
        return weights[tree]

    trees = rooted_trees(order)
    return np.array([(b @ stage_weight(x) - 1 / _density(x)) / _symmetry(x) for x in trees])


@cache
def rooted_trees(order: int) -> tuple[tuple, ...]:
    """All rooted trees with `order` nodes, each the sorted tuple of the subtrees at its root."""
    return tuple(sorted(_forests(order - 1, order - 1)))


def _forests(nodes: int, largest: int) -> set[tuple]:
    """Sorted tuples of trees with so many nodes in all and at most `largest` in each."""
    if nodes == 0:
        return {()}
    return {
        tuple(sorted((tree, *rest)))
        for size in range(1, min(nodes, largest) + 1)
        for tree in rooted_trees(size)
        for rest in _forests(nodes - size, size)
    }


@cache
def _nodes(tree: tuple) -> int:
    return 1 + sum(_nodes(x) for x in tree)


@cache
def _density(tree: tuple) -> int:
    return _nodes(tree) * prod(_density(x) for x in tree)


@cache
def _symmetry(tree: tuple) -> int:
    return prod(factorial(n) * _symmetry(x) ** n for x, n in Counter(tree).items())
