"""Feedback laws, all tunable: state feedback, PD, PID with internal state, neural networks."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.control.base import AbstractDynamicController
from jaxdae.formulations.gains import apply_gain, check_finite_gain, check_kind, Gain, is_number
from jaxdae.reprs import Module
from jaxdae.systems import State
from jaxdae.systems.calls import check_instance, check_parameters, describe_shape

# A fixed state or input, or a function of time that gives it.
Reference = State | Callable[..., State]
Input = Float[Array, " s"] | Callable[..., Float[Array, " s"]]


class StateFeedback(Module):
    r"""Linear state feedback around an equilibrium or a trajectory.

        u = u0(t) - K (x - x0(t)),        x = (q, v, w)

    Args:
        K: gains, shape `(s, 2n + k)`.
        reference: `x0`, a `State` (not differentiated: tuning leaves it) or a function of time that
            returns one.
        feedforward: `u0`, shape `(s,)`, or a function of time; by default zero.

    Raises:
        ValueError: when the shape of `K` does not fit a fixed reference or feedforward.
    """

    takes_rates: ClassVar[bool] = False  # its velocities are rates of coordinates

    K: Float[Array, "s x"]
    reference: Reference
    feedforward: Input | None = None

    def __check_init__(self):
        check_kind("K", self.K)
        if not callable(self.reference):
            example = "jaxdae.State(q, v), or a function of time that returns one"
            check_instance("reference", self.reference, State, example)
        if not is_number(self.K):
            return
        if jnp.ndim(self.K) != 2:
            raise ValueError(f"K has shape {jnp.shape(self.K)}; it must be a matrix (s, 2n + k).")
        if isinstance(self.reference, State):
            size = state_vector(self.reference).size
            if jnp.shape(self.K)[1] != size:
                raise ValueError(
                    f"K has {jnp.shape(self.K)[1]} columns; the state (q, v, w) has {size} entries."
                )
        rows = jnp.shape(self.K)[0]
        values = getattr(self.feedforward, "shape", (rows,))
        if values != (rows,):
            raise ValueError(f"feedforward has shape {values}; K has {rows} rows.")

    def __call__(self, t, q, v, w):
        x0 = _reference(self.reference, t)
        u = -self.K @ (state_vector(State(q, v, w)) - state_vector(x0))
        return fed_forward(self.feedforward, t, u)


class PD(Module):
    r"""Proportional-derivative control, `u = u0(t) + K_P e + K_D de/dt`.

    The rate of the error is exact: `de/dt` along the velocities, by forward differentiation.

    Args:
        error: `e(t, q) -> (s,)`, wanted minus actual; for several inputs one error for each.
        K_P: proportional gain: scalar, diagonal `(s,)`, or matrix `(s, s)`.
        K_D: derivative gain, likewise.
        feedforward: `u0`, shape `(s,)`, or a function of time; by default zero.

    Raises:
        TypeError: for what is no gain.
        ValueError: for an error that takes other arguments, or returns no array.
    """

    takes_rates: ClassVar[bool] = False  # its velocities are rates of coordinates

    error: Callable[..., Float[Array, " s"]]
    K_P: Gain
    K_D: Gain
    feedforward: Input | None = None

    def __check_init__(self):
        _check_law(self.error, K_P=self.K_P, K_D=self.K_D)

    def __call__(self, t, q, v, w):
        del w
        e, e_dot = _error(self.error, t, q, v)
        u = apply_gain(self.K_P, e, "K_P") + apply_gain(self.K_D, e_dot, "K_D")
        return fed_forward(self.feedforward, t, u)


class PID(AbstractDynamicController):
    r"""Proportional-integral-derivative control, `u = K_P e + K_I c + K_D de/dt`, `dc/dt = e`.

    The integral removes what a constant disturbance leaves of the error.

    Args:
        error: `e(t, q) -> (s,)`, wanted minus actual.
        K_P: proportional gain: scalar, diagonal `(s,)`, or matrix `(s, s)`.
        K_I: integral gain, likewise.
        K_D: derivative gain, likewise.

    Raises:
        TypeError: for what is no gain.
        ValueError: for an error that takes other arguments, or returns no array.
    """

    takes_rates: ClassVar[bool] = False  # its velocities are rates of coordinates

    error: Callable[..., Float[Array, " s"]]
    K_P: Gain
    K_I: Gain
    K_D: Gain

    def __check_init__(self):
        _check_law(self.error, K_P=self.K_P, K_I=self.K_I, K_D=self.K_D)

    def initial(self, t, state):
        error = self.error(jnp.asarray(t, state.q.dtype), state.q)
        _require_array(error)
        return jnp.zeros_like(error)

    def rate(self, t, q, v, w, c):
        del v, w, c
        return self.error(t, q)

    def output(self, t, q, v, w, c):
        del w
        e, e_dot = _error(self.error, t, q, v)
        return (
            apply_gain(self.K_P, e, "K_P")
            + apply_gain(self.K_I, c, "K_I")
            + apply_gain(self.K_D, e_dot, "K_D")
        )


class NeuralFeedback(Module):
    r"""A neural network on the deviation of the state, added to another controller.

        u = base(t, q, v, w) + scale * (net(x - x0) - net(0)),        x = (q, v, w)

    It vanishes at the reference, which therefore stays an equilibrium whatever the weights.

    Args:
        network: maps `(2n + k,)` to `(s,)`, for example `eqx.nn.MLP`.
        reference: `x0`, a `State` (not differentiated: tuning leaves it) or a function of time that
            returns one.
        scale: size of its contribution, scalar or `(s,)`.
        base: another controller, whose output is added; by default nothing.
    """

    network: Callable
    reference: Reference
    scale: Float[Array, ""] | Float[Array, " s"] | float = 1.0
    base: Callable | None = None

    def __call__(self, t, q, v, w):
        x0 = _reference(self.reference, t)
        x = state_vector(State(q, v, w)) - state_vector(x0)
        u = self.scale * (self.network(x) - self.network(jnp.zeros_like(x)))
        return u if self.base is None else u + self.base(t, q, v, w)


def fed_forward(feedforward: Input | None, t, u):
    """`u0(t) + u`."""
    if feedforward is None:
        return u
    return u + (feedforward(t) if callable(feedforward) else feedforward)


def _reference(reference: Reference, t) -> State:
    """The reference at a time; what is wanted is given, so that tuning does not move it."""
    return jax.lax.stop_gradient(reference) if isinstance(reference, State) else reference(t)


def state_vector(state: State) -> Float[Array, " x"]:
    """`(q, v, w)` as one vector, shape `(2n + k,)`."""
    return jnp.concatenate([state.q, state.v, state.w])


def _error(error, t, q, v):
    """An error and its rate along the velocities."""
    t = jnp.asarray(t, q.dtype)
    e, e_dot = jax.jvp(error, (t, q), (jnp.ones_like(t), v))
    _require_array(e)
    return e, e_dot


def _check_law(error, **gains) -> None:
    """An error that can be called, and gains that are some."""
    check_parameters("the error", error, ("t", "q"))
    for name, gain in gains.items():
        check_finite_gain(name, gain)


def _require_array(error) -> None:
    if not hasattr(error, "shape"):
        raise ValueError(
            f"the error returned {describe_shape(error)}; it must return an array of one error for "
            "each control input, jnp.stack([…])."
        )
