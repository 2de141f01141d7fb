"""What controllers are capable of, and how one with internal state becomes part of the system."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.checks import are_known
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.formulations.base import says_nothing
from jaxdae.reprs import Module
from jaxdae.solvers.clocks import AbstractClock, Multiples
from jaxdae.systems import State, System
from jaxdae.systems.wrapped import AbstractWrappedSystem


class ControllerCapabilities(NamedTuple):
    """What a controller gives beside its control input.

    Args:
        perturbation_matrix: `(t, q, v, w)`, `H` of the equations `dy/dt = H y` by which it
            stabilizes constraints of its own, which limits the step; `None` without.
        stop: `(trajectory)`, why a failed run ended where it is the reason, in words.
        review: `(trajectory)`, what to warn of after a run that reached its end, in words.
        program: `(t, q, v)`, residuals of constraints that it enforces; `None` without.
        names: of these.
    """

    perturbation_matrix: Callable[..., Float[Array, "p p"] | None] = says_nothing
    stop: Callable[[Any], str | None] = says_nothing
    review: Callable[[Any], str | None] = says_nothing
    program: Callable[..., Float[Array, " r"]] | None = None
    names: tuple[str, ...] | None = None


class AbstractController(Module):
    """A controller that gives more than its control input.

    Others need no contract: any callable `u = controller(t, q, v, w)`.
    """

    @property
    @abc.abstractmethod
    def capabilities(self) -> ControllerCapabilities:
        """What it gives beside its control input."""

    @abc.abstractmethod
    def __call__(self, t, q, v, w) -> Any:
        """Control input."""


def capabilities_of(controller) -> ControllerCapabilities:
    """Capabilities of a controller; none of one that is any callable."""
    if isinstance(controller, AbstractController):
        return controller.capabilities
    return ControllerCapabilities()


class AbstractDynamicController(Module):
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


class AbstractHybridController(AbstractDynamicController):
    """A controller of whose internal state `c` the last part is kept, and changes at times alone.

    Steps end at the times of its clocks, and a row there has what is kept after the change.
    """

    @property
    @abc.abstractmethod
    def clocks(self) -> tuple[AbstractClock, ...]:
        """Times at which what is kept may change, those of `jaxdae.solvers.clocks`."""

    @abc.abstractmethod
    def renew(self, t, q, v, w, c) -> Float[Array, " l"]:
        """Internal state after the end of a step, shape `(l,)`: what is due is done there."""

    @abc.abstractmethod
    def moving(self, t, state: State) -> int:
        """How many entries come first and move along `rate`; others are kept."""

    @property
    def name(self) -> str:
        """By which messages and results have it."""
        return type(self).__name__

    def prepared(self, t, state: State) -> "AbstractHybridController":
        """What a run from a state takes in its place, with what is the same in all of it made."""
        del t, state
        return self


class AbstractSampledController(AbstractHybridController):
    r"""A controller that is asked at multiples of a period, with a memory `c` that it keeps.

        c_k = sample(t_k, q, v, w, c_{k-1})  at t_k = k period,        u = output(t, q, v, w, c_k)

    until the next sample: what is held, such as the control input of a digital controller, is part
    of the memory. The first sample is taken at the start of the run. Steps end at the samples, and
    a row there has the memory of after the sample. `Sampled` is made of a function alone.
    """

    period: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def memory(self, t, state: State) -> Float[Array, " l"]:
        """What the first sample is given, a vector `(l,)`."""

    @abc.abstractmethod
    def sample(self, t, q, v, w, c) -> Float[Array, " l"]:
        """Memory after a sample, shape `(l,)`."""

    @property
    def clocks(self):
        return (Multiples(self.period),)

    def initial(self, t, state):
        return self.sample(t, state.q, state.v, state.w, self.memory(t, state))

    def renew(self, t, q, v, w, c):
        (clock,) = self.clocks
        return jnp.where(clock.is_due(t), self.sample(t, q, v, w, c), c)

    def moving(self, t, state):
        del t, state
        return 0

    def rate(self, t, q, v, w, c):
        del t, q, v, w
        return jnp.zeros_like(c)


class ControlledSystem(AbstractWrappedSystem):
    """A system with the internal state `c` of a controller behind its actuator state: `(w, c)`.

    Everything else is the inner system's.

    Args:
        inner: the system that is controlled.
        controller: its controller; `None` for one whose state changes at times alone.
        actuators: number `k` of the inner system's actuator states.
    """

    controller: AbstractDynamicController | None
    actuators: int = eqx.field(static=True)

    def force(self, t, q, v, w, u):
        return self.inner.force(t, q, v, w[: self.actuators], u)

    def stiff_force(self, t, q, v, w, u):
        return self.inner.stiff_force(t, q, v, w[: self.actuators], u)

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        return self.inner.reaction_dependent_force(t, q, v, w[: self.actuators], u, lam)

    def actuator_rate(self, t, q, v, w, u):
        w, c = w[: self.actuators], w[self.actuators :]
        inner = self.inner.actuator_rate(t, q, v, w, u)
        controller = self.controller
        rate = jnp.zeros_like(c) if controller is None else controller.rate(t, q, v, w, c)
        return jnp.concatenate([inner, rate])


class ControllerOutput(Module):
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
    c = jnp.asarray(_initial(controller, t, state), state.q.dtype)
    if isinstance(controller, AbstractHybridController):
        controller = controller.prepared(t, state)
    rate = eqx.filter_eval_shape(
        controller.rate, jnp.asarray(t, c.dtype), state.q, state.v, state.w, c
    )
    if c.ndim != 1 or rate.shape != c.shape:
        name = type(controller).__name__
        raise ValueError(
            f"{name}.initial returned shape {c.shape}, {name}.rate {rate.shape}; both must "
            "be vectors of one length."
        )
    if isinstance(controller, AbstractSampledController):
        _check_memory(controller, t, state, c)
    joint = State(state.q, state.v, jnp.concatenate([state.w, c]))
    kept = isinstance(controller, AbstractHybridController) and not controller.moving(t, state)
    moved = ControlledSystem(system, None if kept else controller, k)
    return moved, joint, ControllerOutput(controller, k)


def _initial(controller, t, state: State):
    """Its state at the start; that of a start without numbers spoils no derivative of others."""
    given = controller, t, state
    if are_known(given):
        return controller.initial(t, state)
    begin = lambda controller, t, state: controller.initial(t, state)  # noqa: E731
    return with_nan_safe_derivative(begin, eqx.filter_eval_shape(begin, *given), *given)


def _check_memory(controller: AbstractSampledController, t, state: State, c) -> None:
    given = eqx.filter_eval_shape(controller.memory, t, state)
    t = jnp.asarray(t, c.dtype)
    found = eqx.filter_eval_shape(controller.sample, t, state.q, state.v, state.w, c)
    if not given.shape == c.shape == found.shape:
        name = type(controller).__name__
        raise ValueError(
            f"{name}.memory has shape {given.shape}, and {name}.sample makes {c.shape} of it and "
            f"{found.shape} of that; a memory keeps its shape."
        )


def hybrid_part(controller, state: State) -> tuple[AbstractHybridController, int] | None:
    """A controller that keeps a part of the joint state, and how many entries; `None` for others.

    Args:
        controller: without internal state, as `closed_loop` or `attach` have made it.
        state: with that state behind the actuators'.
    """
    if not isinstance(controller, ControllerOutput):
        return None
    inner, k = controller.controller, controller.actuators
    if not isinstance(inner, AbstractHybridController):
        return None
    begun = State(state.q, state.v, state.w[:k])
    return inner, state.w.size - k - inner.moving(0.0, begun)


def controller_name(controller: Any) -> str | None:
    """Name of a function, or of the class of a controller; `None` for none."""
    inner = controller.controller if isinstance(controller, ControllerOutput) else controller
    if inner is None:
        return None
    if isinstance(inner, AbstractHybridController):
        return inner.name
    return getattr(inner, "__name__", type(inner).__name__)


def clocks_of(controller) -> tuple[AbstractClock, ...]:
    """Clocks of a controller without internal state, as `closed_loop` has made it."""
    inner = controller.controller if isinstance(controller, ControllerOutput) else None
    return inner.clocks if isinstance(inner, AbstractHybridController) else ()


def control_input(controller, t, state: State) -> Any:
    """`u = controller(t, q, v, w)`, or `None` without a controller."""
    return None if controller is None else controller(t, state.q, state.v, state.w)


class ClosedLoop(NamedTuple):
    """A system and its controller, which has no internal state any more."""

    system: System  # what is simulated
    state: State  # its start
    controller: Callable | None  # `u = controller(t, q, v, w)`, or `None`
    # Takes the system without the controller out of what is simulated.
    plant: Callable[[Any], System]


def closed_loop(system: System, controller, state: State, t=0.0) -> ClosedLoop:
    """A system under any controller, one with internal state attached to it by `attach`."""
    if not isinstance(controller, AbstractDynamicController):
        return ClosedLoop(system, state, controller, lambda system: system)
    return ClosedLoop(*attach(system, controller, state, t), lambda system: system.inner)
