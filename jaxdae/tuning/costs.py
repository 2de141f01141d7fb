"""Costs of one simulated motion: integrals over its saved times.

A cost is any callable `trajectory -> scalar`; those here integrate by the trapezoidal rule (unless
they say otherwise), so the saved times decide what they see. Times that were not reached
make a cost NaN. Most are sums of squares, and give these as `residuals` too, for least squares.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory

Weight = float | Float[Array, ""] | Float[Array, " c"]


class AbstractCost(Module):
    """The cost of the motion from one start, a scalar."""

    @abc.abstractmethod
    def __call__(self, trajectory: Trajectory) -> Float[Array, ""]:
        """The cost of a trajectory without batch axes."""


class Squares(NamedTuple):
    """What a cost squares and sums up at each saved time."""

    values: Float[Array, "times k"]  # one row for each saved time, shape (times, k)
    weight: Float[Array, " k"]  # of each column, shape (k,)
    # Whether times are weighted by the trapezoidal or the right-endpoint rule.
    trapezoidal: bool = True


class AbstractSquares(AbstractCost):
    """An integral of a weighted sum of squares."""

    @abc.abstractmethod
    def squares(self, trajectory: Trajectory) -> Squares:
        """What is squared and summed up, zero in rows that were not reached."""

    def __call__(self, trajectory: Trajectory) -> Float[Array, ""]:
        """The integral: of the squares, times seconds; NaN for a run that failed."""
        values, weight, trapezoidal = self.squares(trajectory)
        density = jnp.sum(weight * values**2, axis=-1)
        total = jnp.sum(_lengths(trajectory, trapezoidal=trapezoidal) * density)
        return jnp.where(trajectory.success, total, jnp.nan)

    def residuals(self, trajectory: Trajectory) -> Float[Array, " residuals"]:
        """Numbers whose sum of squares is the cost, shape (times k,); NaN for a run that failed."""
        values, weight, trapezoidal = self.squares(trajectory)
        lengths = _lengths(trajectory, trapezoidal=trapezoidal)
        # The root of zero has no derivative: steps of no length, rows that were not reached.
        some = lengths > 0
        roots = jnp.where(some, jnp.sqrt(jnp.where(some, lengths, 1.0)), 0.0)
        rows = roots[:, None] * jnp.sqrt(weight) * values
        return jnp.where(trajectory.success, rows.ravel(), jnp.nan)


class IntegratedViolation(AbstractSquares):
    r"""Violation of the constraints over the motion, each at the level at which it is declared.

        integral of  sum_i a_i phi_i^2 + sum_j b_j y_j^2  dt,    y = (dphi/dt, g)

    with `phi` the position constraints and `g` the velocity constraints. By default `a = 1` and, of
    `y`, `g` alone counts with `b = 1`: rates of position constraints have another unit, and are
    the larger the faster a violation dies out, so that to weigh them like residuals would ask for
    slow gains. `at_both_levels` counts both in one unit. The start is given and not counted.

    Args:
        position: weight `a` of the position residuals: scalar or `(m,)`.
        velocity: weight `b` of the velocity-level residuals: scalar or `(m+r,)`; where
            `dphi/dt` should count too, the square of a time [s^2] brings it to the unit of `phi`.
            `None` for one for velocity constraints, zero for rates of position constraints.
        from_start: `False` for the right-endpoint rule: a start off the constraints is data that
            no gain can change, and it would set a floor below which the objective sees nothing.
            `True` for the trapezoidal rule, which counts it.
    """

    position: Weight = 1.0
    velocity: Weight | None = None
    from_start: bool = eqx.field(static=True, default=False)

    @classmethod
    def at_both_levels(
        cls, time_scale: float, *, from_start: bool = False
    ) -> "IntegratedViolation":
        r"""Violations of positions and velocities in one unit, joined by a time scale `tau`.

            integral of  |phi|^2 + tau^2 |y|^2  dt,    y = (dphi/dt, g)

        A violation `phi0` that is removed in the time `T` takes a rate of the order of `phi0 / T`:
        `tau` says how fast a removal is still welcome. As large as the time in which the motion
        itself changes, rates count as the error of the position that they would make in it.

        Args:
            time_scale: `tau` [s], positive.
            from_start: whether the given start counts.

        Raises:
            ValueError: for a time scale that is not positive and finite.
        """
        if fails(lambda x: 0 < x < np.inf, time_scale):
            raise ValueError(
                f"IntegratedViolation: time_scale is {time_scale}, must be a positive time [s], "
                "in which a rate of the violation counts as the violation that it makes."
            )
        return cls(1.0, time_scale**2, from_start)

    def squares(self, trajectory):
        """Position residuals, then those at velocity level."""
        violation = counted(trajectory.violation, trajectory)
        phi, phi_dot = violation.phi, violation.phi_dot
        m, c = phi.shape[-1], phi_dot.shape[-1]
        declared = (jnp.arange(c) >= m).astype(phi_dot.dtype)
        velocity = declared if self.velocity is None else self.velocity
        weights = (
            _fitting(
                "IntegratedViolation: position", self.position, m, "position constraints", phi
            ),
            _fitting(
                "IntegratedViolation: velocity", velocity, c, "residuals at velocity level", phi
            ),
        )
        values = jnp.concatenate([phi, phi_dot], axis=-1)
        return Squares(values, jnp.concatenate(weights), self.from_start)


class TrackingError(AbstractSquares):
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

    def squares(self, trajectory):
        """Differences of output and target, in the output's unit."""

        def difference(t, q, v):
            return jnp.asarray(self.output(t, q, v) - self.target(t))

        ts, states = _reached_rows(trajectory)
        values = jax.vmap(difference)(ts, states.q, states.v)
        weight = jnp.asarray(self.weight, values.dtype)
        weight = jnp.broadcast_to(weight, values.shape[1:]).ravel()
        return Squares(counted(values.reshape(len(values), -1), trajectory), weight)


class ControlEffort(AbstractSquares):
    r"""Weighted control input over the motion: integral of `u^T R u dt`.

    The input is a scalar or an array; its `s` entries are taken in the order of `ravel`.

    Args:
        weight: `R`, scalar or diagonal `(s,)`; not negative.

    Raises:
        ValueError: for a weight by which some effort would be a gain.
    """

    weight: Weight = 1.0

    def __check_init__(self):
        if fails(lambda x: np.min(x) >= 0, self.weight):
            raise ValueError(
                f"ControlEffort: weight has a value {np.min(self.weight):.6g}, must not be "
                "negative, or effort would be a gain; give positive weights."
            )

    def squares(self, trajectory):
        """Inputs at the saved times, one row each."""
        if trajectory.u is None:
            raise ValueError(
                "ControlEffort: the simulation has no controller, so there is no effort; give the "
                "objective a controller, or leave this cost out."
            )
        if not eqx.is_array(trajectory.u):
            raise ValueError(
                f"ControlEffort: the controller returns a {type(trajectory.u).__name__}, not an "
                "array; let it return jnp.concatenate of its parts, or give a cost of your own: "
                "any function trajectory -> scalar."
            )
        u = counted(trajectory.u.reshape(trajectory.u.shape[0], -1), trajectory)
        return Squares(u, _fitting("ControlEffort: weight", self.weight, u.shape[1], "inputs", u))


class EnergyDrift(AbstractSquares):
    r"""Change of the energy over a motion that should conserve it: integral of `(E - E(t0))^2 dt`.

    For systems without dissipation, input and explicit time only; elsewhere energy has to change.
    """

    def squares(self, trajectory):
        """Energy less that of the start [J]."""
        energy = trajectory.energy
        change = counted(energy - energy[0], trajectory)[:, None]
        return Squares(change, jnp.ones(1, change.dtype))


class WeightedSum(AbstractCost):
    """Sum of costs with weights.

    Args:
        terms: pairs `(weight, cost)`.
    """

    terms: tuple[tuple[float | Float[Array, ""], Callable], ...]

    def __call__(self, trajectory):
        """The weighted sum."""
        return sum((w * cost(trajectory) for w, cost in self.terms), start=jnp.zeros(()))

    @property
    def residuals(self) -> Callable[[Trajectory], Float[Array, " residuals"]]:
        """The function that gives numbers whose sum of squares is the cost, term by term.

        Raises:
            AttributeError: where a term has no residuals, or a negative weight.
        """
        for weight, cost in self.terms:
            if not hasattr(cost, "residuals"):
                name = getattr(cost, "__name__", type(cost).__name__)
                raise AttributeError(
                    f"WeightedSum has no residuals: its term {name} is no sum of squares."
                )
            if fails(lambda x: np.all(np.asarray(x) >= 0), weight):
                raise AttributeError(
                    f"WeightedSum has no residuals: a weight is {weight}, and no sum of squares "
                    "falls where a cost rises."
                )
        return self._residuals

    def _residuals(self, trajectory: Trajectory) -> Float[Array, " residuals"]:
        parts = [jnp.sqrt(w) * cost.residuals(trajectory) for w, cost in self.terms]  # pyright: ignore[reportFunctionMemberAccess]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)


def _reached_rows(trajectory: Trajectory):
    """Times and states of rows, of those that were not reached the last one.

    Functions of users do not meet the inf and NaN there, which would spoil gradients.
    """
    reached = jnp.isfinite(trajectory.ts)
    rows = trajectory.ts, trajectory.states
    ends = trajectory.final_time, trajectory.last_state
    one = lambda r, x, end: jnp.where(r, x, end)  # noqa: E731
    return jax.tree.map(lambda x, end: jax.vmap(one, (0, 0, None))(reached, x, end), rows, ends)


def counted(values, trajectory: Trajectory):
    """Values of rows, zero in those that were not reached, whose NaN would spoil gradients."""
    reached = jnp.isfinite(trajectory.ts)
    column = lambda x: reached.reshape(-1, *[1] * (x.ndim - 1))  # noqa: E731
    return jax.tree.map(lambda x: jnp.where(column(x), x, 0.0), values)


def _lengths(trajectory: Trajectory, *, trapezoidal: bool) -> Float[Array, " times"]:
    """Weights of the rows that were reached, by the trapezoidal or the right-endpoint rule [s]."""
    ts = trajectory.ts
    if ts.shape[0] < 2:
        raise ValueError(
            f"a cost that is an integral over the saved times has {ts.shape[0]} of them, and would "
            "always be zero; let saveat save the start, the end and times between."
        )
    reached = jnp.isfinite(ts)
    both = reached[1:] & reached[:-1]
    # Also of a run backward in time.
    steps = jnp.abs(jnp.where(both, ts[1:], 0.0) - jnp.where(both, ts[:-1], 0.0))
    after = jnp.pad(steps, (1, 0))
    return 0.5 * (after + jnp.pad(steps, (0, 1))) if trapezoidal else after


def _fitting(name: str, weight, count: int, of: str, like: Array) -> Float[Array, " count"]:
    """A weight for each of so many numbers."""
    weight = jnp.asarray(weight, like.dtype)
    if weight.shape not in {(), (count,)}:
        raise ValueError(
            f"{name} has shape {weight.shape}, which does not fit {count} {of}; give a scalar or "
            f"a vector of {count}."
        )
    return jnp.broadcast_to(weight, (count,))
