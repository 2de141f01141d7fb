"""Dry friction whose sticking and sliding are switched by events."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.control.base import AbstractDynamicController, control_input
from jaxdae.events.declaration import Event
from jaxdae.formulations.realizing import (
    RealizingForces,
    responses,
    SignLaw,
    SwitchedLaw,
    value_of,
)
from jaxdae.linalg.box_quadratic import minimize_in_box
from jaxdae.reprs import Module
from jaxdae.systems import constraint_residuals, evaluate, State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.wrapped import AbstractWrappedSystem

# Constraint functions at the start that are this small, relative to 1 + max |v|, are zero; in
# units of the round-off.
_AT_REST = 4096
# Part of the bound that a sticking force has to leave.
_REST_OF_BOUND = 1e-9


class StickSlip(NamedTuple):
    """What `jaxdae.stick_slip` makes, for `simulate(system, formulation, state, events=events)`.

    Args:
        system: the declaration, with a mode for each constraint function behind its actuator
            states.
        formulation: realizing forces in these modes.
        state: the start with its modes.
        events: one for each constraint function, "stick-slip 1" and so on.
    """

    system: System
    formulation: RealizingForces
    state: State
    events: tuple[Event, ...]


class _Switched(AbstractWrappedSystem):
    """A system with modes behind its actuator states, and its controller.

    Args:
        inner: the system.
        controller: `u = controller(t, q, v, w)`, or `None`.
        actuators: number of its actuator states.
    """

    controller: Any
    actuators: int = eqx.field(static=True)

    def _input(self, t, q, v, w, u):
        if u is not None:
            raise ValueError(
                "what switches between sticking and sliding depends on the control input: give the "
                "controller to jaxdae.stick_slip(..., controller=...), and none to the run."
            )
        return control_input(self.controller, t, State(q, v, w))

    def force(self, t, q, v, w, u):
        w = w[: self.actuators]
        return self.inner.force(t, q, v, w, self._input(t, q, v, w, u))

    def stiff_force(self, t, q, v, w, u):
        w = w[: self.actuators]
        return self.inner.stiff_force(t, q, v, w, self._input(t, q, v, w, u))

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        w = w[: self.actuators]
        return self.inner.reaction_dependent_force(t, q, v, w, self._input(t, q, v, w, u), lam)

    def actuator_rate(self, t, q, v, w, u):
        modes, w = w[self.actuators :], w[: self.actuators]
        rate = self.inner.actuator_rate(t, q, v, w, self._input(t, q, v, w, u))
        return jnp.concatenate([rate, jnp.zeros_like(modes)])


class _Friction(Module):
    """Forces and modes of dry friction.

    Args:
        system: with modes.
        law: of the forces.
        static: bound of sticking, shape `(c,)` or a number.
    """

    system: System
    law: SwitchedLaw
    static: Any

    def responses(self, t, q, v, w):
        """`psi'`, `J M^-1 J^T`, and `psi''` without realizing forces."""
        d = evaluate(self.system, t, q, v, w, None)
        _, _, response, drift = responses(d)
        return d.phi_dot, response, drift

    def modes(self, t, q, v, w, resting, slips):
        """Modes of those that rest, out of the forces that would hold all of them.

        Args:
            t: time [s].
            q: coordinates.
            v: velocities.
            w: actuator states with modes as they are.
            resting: which constraint functions are zero, shape (c,).
            slips: which of them begin to slide, whatever holds them, shape (c,).
        """
        psi_dot, response, drift = self.responses(t, q, v, w)
        count = psi_dot.size
        before = w[self.law.first : self.law.first + count]
        sliding = jnp.where(resting, 0.0, -value_of(self.law.law.bound) * before)
        both = resting[:, None] & resting[None, :]
        matrix = jnp.where(both, response, jnp.eye(count, dtype=response.dtype))
        linear = jnp.where(resting, drift + response @ sliding, 0.0)
        bound = jnp.broadcast_to(jnp.asarray(self.static, drift.dtype), drift.shape)
        force = minimize_in_box(matrix, linear, -bound, bound)
        over = slips | (jnp.abs(force) >= bound * (1 - _REST_OF_BOUND))
        return jnp.where(resting, jnp.where(over, -jnp.sign(force), 0.0), before)


class _Margin(Module):
    """What is left until a constraint function sticks or slides: of its speed, or of its force.

    Args:
        friction: of all of them.
        i: number of the constraint function.
    """

    friction: _Friction
    i: int = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        psi_dot, response, drift = self.friction.responses(t, q, v, w)
        law, i = self.friction.law, self.i
        force, mode = law.force(response, drift, w)[i], w[law.first + i]
        bound = jnp.broadcast_to(jnp.asarray(self.friction.static, drift.dtype), drift.shape)[i]
        return jnp.where(mode == 0, bound - jnp.abs(force), mode * psi_dot[i])


class _Switch(Module):
    """The modes behind an event of a constraint function.

    Args:
        friction: of all of them.
        i: number of the constraint function.
    """

    friction: _Friction
    i: int = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        friction, first = self.friction, self.friction.law.first
        psi_dot = constraint_residuals(friction.system, t, q, v).phi_dot
        modes = w[first : first + psi_dot.size]
        this = jnp.arange(psi_dot.size) == self.i
        found = friction.modes(t, q, v, w, this | (modes == 0), this & (modes == 0))
        return q, v, jnp.concatenate([w[:first], found, w[first + psi_dot.size :]])


def stick_slip(
    system: System, law: SignLaw, state: State, *, static=None, t0=0.0, controller=None
) -> StickSlip:
    r"""Dry friction on the constraint functions, with sticking and sliding as events.

    Each constraint function `psi'_i` slides, with `R_i = -bound_i sign psi'_i`, or sticks, with the
    force that keeps it zero [Matyukhin1999, eqs. 6.4, 6.8]; see `jaxdae.formulations.SignLaw`. It
    sticks from where it comes to zero, if a force below `static` holds it, and slides from where
    that force reaches `static`. Both are events, at exact times and with derivatives; between
    them the equations are smooth and not stiff, unlike with the layer of `SignLaw` itself.

    Modes are actuator states behind those of the system: 1 and -1 where it slides up and down, 0
    where it sticks.

    Args:
        system: the declaration; its constraint functions are what friction acts on.
        law: with the bound of sliding.
        state: start.
        static: bound of sticking, at least that of sliding, a number or shape `(m+r,)`; that of
            sliding by default.
        t0: time of the start [s].
        controller: `u = controller(t, q, v, w)` without internal state; here and not in the run.

    Returns:
        `StickSlip`, for `simulate(system, formulation, state, events=events)`.

    Raises:
        TypeError: for another system or law, or a controller with internal state.
        ValueError: for a static bound below that of sliding, or a system without constraints.
    """
    check_instance("system", system, System, "an instance of your jaxdae.System")
    check_instance("law", law, SignLaw, "jaxdae.formulations.SignLaw(bound)")
    if isinstance(controller, AbstractDynamicController):
        raise TypeError(
            f"{type(controller).__name__} has an internal state: give its output and its state as "
            "jaxdae.control.attach makes them."
        )
    count = sum(constraint_counts(system, state))
    if not count:
        raise ValueError(f"{type(system).__name__} has no constraints for friction to act on.")
    law.check(count)
    bound = value_of(law.bound)
    static = bound if static is None else static
    if are_known((static, bound)) and not np.all(np.asarray(static) >= np.asarray(bound)):
        raise ValueError(f"static is {static}, must be at least the bound of sliding, {bound}.")
    if np.shape(static) not in {(), (count,)}:
        raise ValueError(
            f"static has shape {np.shape(static)}; give a number, or shape ({count},)."
        )
    first = state.w.shape[-1]
    switched = _Switched(system, controller, first)
    friction = _Friction(switched, SwitchedLaw(law, first), static)
    t = jnp.asarray(t0, state.q.dtype)
    w = jnp.concatenate([state.w, jnp.zeros(count, state.q.dtype)])
    psi_dot = constraint_residuals(system, t, state.q, state.v).phi_dot
    eps = float(jnp.finfo(state.q.dtype).eps)
    resting = jnp.abs(psi_dot) <= _AT_REST * eps * (1 + jnp.max(jnp.abs(state.v)))
    w = w.at[first:].set(jnp.where(resting, 0.0, jnp.sign(psi_dot)))
    modes = friction.modes(t, state.q, state.v, w, resting, jnp.zeros(count, bool))
    events = tuple(
        Event(_Margin(friction, i), reset=_Switch(friction, i), name=f"stick-slip {i + 1}")
        for i in range(count)
    )
    formulation = RealizingForces(friction.law)
    return StickSlip(
        switched, formulation, State(state.q, state.v, w.at[first:].set(modes)), events
    )
