"""What every ready system has: a consistent start, and known values to be checked against."""

import abc
import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.systems import System


@dataclasses.dataclass(frozen=True)
class Reference:
    """A published or closed-form result of a model.

    Plain numbers are kept as tuples of Python floats so that building a reference touches no
    device and loses no digit in single precision.

    Args:
        quantity: what is known, with the equation where there is one.
        source: where it comes from.
        t: time the numbers belong to [s]; None for a relation that holds at all times.
        q: coordinates [system's units], n numbers, or None.
        v: velocities, n numbers, or None.
        a: accelerations, n numbers, or None.
        multipliers: multipliers lam of `M a + J^T lam = f`, m numbers, or None.
    """

    quantity: str
    source: str
    t: float | None = None
    q: Sequence[float] | None = None
    v: Sequence[float] | None = None
    a: Sequence[float] | None = None
    multipliers: Sequence[float] | None = None


class AbstractModel(System):
    """A ready system."""

    @abc.abstractmethod
    def start(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Consistent coordinates and velocities at t = 0, each of shape (n,)."""

    def actuators(self) -> Float[Array, " k"]:
        """Actuator state at t = 0, shape (k,); empty unless the model has actuators."""
        return jnp.zeros((0,))

    @abc.abstractmethod
    def references(self) -> tuple[Reference, ...]:
        """What this model is checked against."""
