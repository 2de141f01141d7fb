"""Costs of what separates a motion from a fine run of the same start."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.results.trajectory import Trajectory
from jaxdae.tuning.costs import AbstractSquares, counted, Squares, Weight
from jaxdae.tuning.fine_runs import Spline
from jaxdae.tuning.per_start import PerStart


class AbstractReferenceError(AbstractSquares):
    r"""Weighted distance of a quantity from that of a fine run of the same start.

    integral of  sum_i c_i (x_i - x_fine,i)^2  dt
    """

    reference: eqx.AbstractVar[PerStart | Spline]
    weight: eqx.AbstractVar[Weight]

    @abc.abstractmethod
    def quantity(self, trajectory: Trajectory) -> Float[Array, "times k"]:
        """What is compared."""

    def squares(self, trajectory):
        """Differences from the fine run, in the quantity's unit."""
        fine = self.reference(trajectory.ts)
        difference = counted(self.quantity(trajectory), trajectory) - counted(fine, trajectory)
        weight = jnp.asarray(self.weight, difference.dtype)
        return Squares(difference, jnp.broadcast_to(weight, difference.shape[1:]))


class EnergyError(AbstractReferenceError):
    r"""Error of the energy: integral of `c (E - E_fine)^2 dt`, in J^2 s times the weight.

    Other than `EnergyDrift` it holds for systems with dissipation, inputs and explicit time, too.

    Args:
        reference: `FineRuns.energy` in an objective; of one start a `Spline`.
        weight: `c`, scalar.
    """

    reference: PerStart | Spline
    weight: Weight = 1.0

    def quantity(self, trajectory):
        """Generalized energy [J], one column."""
        return trajectory.energy[:, None]


class MultiplierError(AbstractReferenceError):
    r"""Error of the multipliers: integral of `sum_i c_i (lam_i - lam_fine,i)^2 dt`.

    In the square of the multipliers' units (N for a constraint in m) times seconds. What stabilizes
    a constraint is part of its multiplier: gains that fight a violation show here.

    Args:
        reference: `FineRuns.multipliers` in an objective; of one start a `Spline`.
        weight: `c`, scalar or `(m+r,)`.
    """

    reference: PerStart | Spline
    weight: Weight = 1.0

    def quantity(self, trajectory):
        """Multipliers, shape (times, m+r)."""
        return trajectory.multipliers


class CoordinateError(AbstractReferenceError):
    r"""Error of the coordinates: integral of `sum_i c_i (q_i - q_fine,i)^2 dt`.

    Args:
        reference: `FineRuns.coordinates` in an objective; of one start a `Spline`.
        weight: `c`, scalar or `(n,)`.
    """

    reference: PerStart | Spline
    weight: Weight = 1.0

    def quantity(self, trajectory):
        """Coordinates [m or rad], shape (times, n)."""
        return trajectory.q
