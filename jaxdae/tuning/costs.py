"""Costs of one simulated motion: integrals over its saved times.

A cost is any callable `trajectory -> scalar`; those here integrate by the trapezoidal rule (unless
they say otherwise), so the saved times decide what they see. Times that were not reached
make a cost NaN.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.simulation.trajectory import Trajectory

Weight = float | Float[Array, ""] | Float[Array, " c"]


class AbstractCost(eqx.Module):
    """A scalar that judges the motion from one start."""

    @abc.abstractmethod
    def __call__(self, trajectory: Trajectory) -> Float[Array, ""]:
        """The cost of a trajectory without batch axes."""


class IntegratedViolation(AbstractCost):
    r"""Violation of the constraints over the motion, each at the level at which it is declared.

        integral of  sum_i a_i f_i^2 + sum_j b_j y_j^2  dt,    y = (df/dt, g)

    with `f` the position constraints and `g` the velocity constraints. By default `a = 1` and, of
    `y`, `g` alone counts with `b = 1`: rates of position constraints have another unit, and are
    the larger the faster a violation dies out, so that to weigh them like residuals would ask for
    slow gains. The start is given and not counted.

    Args:
        position: weight `a` of the position residuals: scalar or `(m,)`.
        velocity: weight `b` of the velocity-level residuals: scalar or `(m+r,)`; where `df/dt`
            should count too, the square of a time [s^2] brings it to the unit of `f`. `None` for
            one for velocity constraints, zero for rates of position constraints.
        from_start: `False` for the right-endpoint rule: a start off the constraints is data that
            no gain can change, and it would set a floor below which the objective sees nothing.
            `True` for the trapezoidal rule, which counts it.
    """

    position: Weight = 1.0
    velocity: Weight | None = None
    from_start: bool = eqx.field(static=True, default=False)

    def __call__(self, trajectory):
        """The integral, in the square of the residuals' units times seconds."""
        violation = _counted(trajectory.violation, trajectory)
        phi, phi_dot = violation.phi, violation.phi_dot
        m, c = phi.shape[-1], phi_dot.shape[-1]
        declared = (jnp.arange(c) >= m).astype(phi_dot.dtype)
        velocity = declared if self.velocity is None else self.velocity
        density = jnp.sum(self.position * phi**2, axis=-1)
        density += jnp.sum(velocity * phi_dot**2, axis=-1)
        return _integral(density, trajectory, trapezoidal=self.from_start)


class TrackingError(AbstractCost):
    r"""Weighted distance of an output from a target over the motion.

        integral of  sum_i c_i (output(t, q, v)_i - target(t)_i)^2  dt

    Args:
        output: `output(t, q, v)`, returns shape `(p,)` or `()`.
        target: `target(t)`, returns the same shape.
        weight: `c`, scalar or `(p,)`.
    """

    output: Callable
    target: Callable
    weight: Weight = 1.0

    def __call__(self, trajectory):
        """The integral, in the square of the output's unit times seconds."""

        def density(t, q, v):
            return jnp.sum(self.weight * (self.output(t, q, v) - self.target(t)) ** 2)

        # User functions do not meet the inf and NaN of unused rows, which would spoil gradients.
        reached, last = jnp.isfinite(trajectory.ts), trajectory.final_state
        rows = (trajectory.ts, trajectory.q, trajectory.v)
        ends = (trajectory.final_time, last.q, last.v)
        one = lambda r, x, end: jnp.where(r, x, end)  # noqa: E731
        rows = [
            jax.vmap(one, (0, 0, None))(reached, x, end) for x, end in zip(rows, ends, strict=True)
        ]
        return _integral(jax.vmap(density)(*rows), trajectory)


class ControlEffort(AbstractCost):
    r"""Weighted control input over the motion: integral of `u^T R u dt`.

    The input is a scalar or an array; its `s` entries are taken in the order of `ravel`.

    Args:
        weight: `R`, scalar, diagonal `(s,)` or matrix `(s, s)`.
    """

    weight: Weight | Float[Array, "s s"] = 1.0

    def __call__(self, trajectory):
        """The integral, in the square of the input's unit times seconds."""
        if trajectory.u is None:
            raise ValueError(
                "ControlEffort: the simulation has no controller, so there is no effort; give the "
                "objective a controller, or leave this cost out."
            )
        u, weight = _counted(_rows(trajectory.u), trajectory), jnp.asarray(self.weight)
        count = u.shape[1]
        if weight.shape not in {(), (count,), (count, count)}:
            raise ValueError(
                f"ControlEffort: weight has shape {weight.shape}, which does not fit {count} "
                f"inputs; give a scalar, a vector of {count}, or a {count} x {count} matrix."
            )
        weighted = u @ weight if weight.ndim == 2 else weight * u
        return _integral(jnp.sum(u * weighted, axis=-1), trajectory)


class EnergyDrift(AbstractCost):
    r"""Change of the energy over a motion that should conserve it: integral of `(E - E(t0))^2 dt`.

    For systems without dissipation, input and explicit time only; elsewhere energy has to change.
    """

    def __call__(self, trajectory):
        """The integral [J^2 s]."""
        energy = trajectory.energy
        return _integral(_counted(energy - energy[0], trajectory) ** 2, trajectory)


class WeightedSum(AbstractCost):
    """Sum of costs with weights.

    Args:
        terms: pairs `(weight, cost)`.
    """

    terms: tuple[tuple[float | Float[Array, ""], Callable], ...]

    def __call__(self, trajectory):
        """The weighted sum."""
        return sum((w * cost(trajectory) for w, cost in self.terms), start=jnp.zeros(()))


def _rows(u) -> Float[Array, "times s"]:
    """Inputs at the saved times, one row each."""
    if not eqx.is_array(u):
        raise ValueError(
            f"ControlEffort: the controller returns a {type(u).__name__}, not an array; let it "
            "return jnp.concatenate of its parts, or give a cost of your own: any function "
            "trajectory -> scalar."
        )
    return u.reshape(u.shape[0], -1)


def _counted(values, trajectory: Trajectory):
    """Values of rows, zero in those that were not reached, whose NaN would spoil gradients."""
    reached = jnp.isfinite(trajectory.ts)
    column = lambda x: reached.reshape(-1, *[1] * (x.ndim - 1))  # noqa: E731
    return jax.tree.map(lambda x: jnp.where(column(x), x, 0.0), values)


def _integral(density, trajectory: Trajectory, *, trapezoidal: bool = True) -> Float[Array, ""]:
    """Integral over the rows that were reached, by the trapezoidal or the right-endpoint rule.

    NaN for a run that failed.
    """
    ts = trajectory.ts
    reached = jnp.isfinite(ts)
    density = jnp.where(reached, density, 0.0)
    both = reached[1:] & reached[:-1]
    steps = jnp.where(both, ts[1:], 0.0) - jnp.where(both, ts[:-1], 0.0)
    heights = 0.5 * (density[1:] + density[:-1]) if trapezoidal else density[1:]
    return jnp.where(trajectory.success, jnp.sum(steps * heights), jnp.nan)
