"""The contract of a controller with internal state, and how it becomes part of the system."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.systems import Labels, State, System


class AbstractDynamicController(eqx.Module):
    r"""A controller with an internal state `c`, for example an integral of the error.

        u = output(t, q, v, w, c),        dc/dt = rate(t, q, v, w, c)

    Controllers without internal state need no contract: any callable `u = controller(t, q, v, w)`.
    """

    @abc.abstractmethod
    def initial(self, t, state: State) -> Float[Array, " l"]:
        """Internal state at the start, a vector `(l,)`."""

    @abc.abstractmethod
    def rate(self, t, q, v, w, c) -> Float[Array, " l"]:
        """Rate of the internal state, shape `(l,)`."""

    @abc.abstractmethod
    def output(self, t, q, v, w, c) -> Any:
        """Control input."""


class ControlledSystem(System):
    """A system with the internal state `c` of a controller behind its actuator state: `(w, c)`.

    Everything else is the inner system's.

    Args:
        inner: the system that is controlled.
        controller: its controller.
        actuators: number `k` of the inner system's actuator states.
    """

    inner: System
    controller: AbstractDynamicController
    actuators: int = eqx.field(static=True)

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(t, q, v)

    def potential_energy(self, t, q):
        return self.inner.potential_energy(t, q)

    def dissipation(self, t, q, v):
        return self.inner.dissipation(t, q, v)

    def position_constraints(self, t, q):
        return self.inner.position_constraints(t, q)

    def velocity_constraints(self, t, q, v):
        return self.inner.velocity_constraints(t, q, v)

    def mass_matrix(self, t, q):
        return self.inner.mass_matrix(t, q)

    def labels(self) -> Labels:
        return self.inner.labels()

    def force(self, t, q, v, w, u):
        return self.inner.force(t, q, v, w[: self.actuators], u)

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        return self.inner.reaction_dependent_force(t, q, v, w[: self.actuators], u, lam)

    def actuator_rate(self, t, q, v, w, u):
        w, c = w[: self.actuators], w[self.actuators :]
        return jnp.concatenate(
            [self.inner.actuator_rate(t, q, v, w, u), self.controller.rate(t, q, v, w, c)]
        )


class ControllerOutput(eqx.Module):
    """`u = controller(t, q, v, (w, c))`: the output of a dynamic controller on the joint state."""

    controller: AbstractDynamicController
    actuators: int = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        return self.controller.output(t, q, v, w[: self.actuators], w[self.actuators :])


def attach(
    system: System, controller: AbstractDynamicController, state: State, t=0.0
) -> tuple[ControlledSystem, State, ControllerOutput]:
    """Make the internal state of a controller a part of the actuator state.

    What is returned goes to `simulate(system, formulation, state, controller=output)`; the
    internal state is then the last columns of `Trajectory.w`.

    Args:
        system: what is controlled.
        controller: its controller.
        state: start.
        t: start time [s].

    Returns:
        System, start and controller of the joint state.

    Raises:
        ValueError: when `initial` and `rate` are not vectors of one length.
    """
    k = state.w.shape[-1]
    c = jnp.asarray(controller.initial(t, state), state.q.dtype)
    rate = eqx.filter_eval_shape(
        controller.rate, jnp.asarray(t, c.dtype), state.q, state.v, state.w, c
    )
    if c.ndim != 1 or rate.shape != c.shape:
        name = type(controller).__name__
        raise ValueError(
            f"{name}.initial returned shape {c.shape}, {name}.rate {rate.shape}; both must "
            "be vectors of one length."
        )
    joint = State(state.q, state.v, jnp.concatenate([state.w, c]))
    return ControlledSystem(system, controller, k), joint, ControllerOutput(controller, k)


def control_input(controller, t, state: State) -> Any:
    """`u = controller(t, q, v, w)`, or `None` without a controller."""
    return None if controller is None else controller(t, state.q, state.v, state.w)
