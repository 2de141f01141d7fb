"""Solves that ask for the rank of the constraints, given the one that holds along a motion."""

from collections.abc import Callable

import jax

from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve
from jaxdae.systems.base import State, System
from jaxdae.systems.independence import constraint_rank


def holding_rank(tree, system: System, t, state: State):
    """A formulation or solve whose solves hold the rank that the constraints have at a state.

    Args:
        tree: a formulation, a solve, or anything that has some in it.
        system: the declaration.
        t: time [s].
        state: start of the motion; may be traced.

    Returns:
        The same, with ranks where they are asked for.
    """
    if not any(x.asks_for_rank for x in solves(tree)):
        return tree
    rank = constraint_rank(system, t, state).held()
    return with_solves(tree, lambda solve: solve.with_rank(rank))


def solves(tree) -> list[AbstractSaddlePointSolve]:
    """Policies in a formulation, not those inside of others."""
    return [x for x in jax.tree.leaves(tree, is_leaf=_is_solve) if _is_solve(x)]


def with_solves(tree, change: Callable):
    """A formulation with its policies changed."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_solve)
    changed = [change(x) if _is_solve(x) else x for x in leaves]
    same = all(x is y for x, y in zip(leaves, changed, strict=True))
    return tree if same else structure.unflatten(changed)


def _is_solve(x) -> bool:
    return isinstance(x, AbstractSaddlePointSolve)
