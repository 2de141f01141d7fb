"""Dense output: the state between the ends of a step."""

import abc
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp


class AbstractDenseOutput(diffrax.AbstractLocalInterpolation):
    """Dense output of a step by the state at a time, as all of the library's own have it."""

    t0: eqx.AbstractVar[Any]
    t1: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def at(self, t) -> Any:
        """The state at a time [s]."""

    def evaluate(self, t0, t1=None, left: bool = True):
        """The state at a time [s], or its change between two."""
        return self.at(t0) if t1 is None else jax.tree.map(jnp.subtract, self.at(t1), self.at(t0))

    def part(self, t) -> Any:
        """Part of the step that is over at a time [s]; one of no length has its end everywhere."""
        step = self.t1 - self.t0
        return jnp.where(step == 0, 1.0, (t - self.t0) / jnp.where(step == 0, 1.0, step))
