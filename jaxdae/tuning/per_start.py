"""Data that differ from start to start, in the cost of an objective."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxdae.reprs import Module


class PerStart(Module):
    """Data of all starts, anywhere in a cost; `SimulationObjective` puts in those of each member.

    Args:
        data: pytree whose arrays have the leading axes `(variations, starts)`, of which the first
            is 1 without variations.
    """

    data: PyTree

    def __call__(self, *arguments: Any) -> Any:  # noqa: ARG002
        """Refuse to be called in place of the data of one start.

        Raises:
            ValueError: saying where data are picked.
        """
        raise ValueError(
            "PerStart holds data of all starts, and only SimulationObjective knows which start a "
            "trajectory has; elsewhere give the cost PerStart.pick(variation, start)."
        )

    def pick(self, variation, start) -> PyTree:
        """Data of one start.

        Args:
            variation: number of the variation; may be traced.
            start: number of the start; may be traced.
        """
        return jax.tree.map(lambda x: x[variation, start] if eqx.is_array(x) else x, self.data)


def of_member(cost: Any, variation, start) -> Any:
    """A cost with the data of one start in place of those of all.

    Args:
        cost: of an objective.
        variation: number of the variation.
        start: number of the start.
    """

    def picked(x):
        return x.pick(variation, start) if _is_per_start(x) else x

    return jax.tree.map(picked, cost, is_leaf=_is_per_start)


def check_per_start(cost: Any, variations: int, starts: int) -> None:
    """Require data of as many variations and starts as there are.

    Raises:
        ValueError: naming the shapes.
    """
    for one in jax.tree.leaves(cost, is_leaf=_is_per_start):
        shapes = {jnp.shape(x)[:2] for x in jax.tree.leaves(one) if eqx.is_array(x)}
        if _is_per_start(one) and shapes - {(variations, starts)}:
            raise ValueError(
                f"SimulationObjective: data of the cost have the leading axes {shapes.pop()}, but "
                f"there are {variations} variations and {starts} starts; make them for these."
            )


def _is_per_start(x: Any) -> bool:
    return isinstance(x, PerStart)
