"""Regulators of the ball and beam: the linear-quadratic one, and a network tuned on top of it."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxdae.analysis import equilibrium, linearize, lqr_on_constraints, RegulatorFeedback
from jaxdae.control import NeuralFeedback
from jaxdae.models.ball_beam import BallBeam, SimplifiedBallBeam
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.systems import consistent_state, State
from jaxdae.tuning.costs import AbstractCost

# Deviations that count one each: ball [m], wheel [rad], voltage [V]; rates and current count none.
_BALL, _WHEEL, _VOLTAGE = 0.05, 1.0, 1.0
# Largest deviations of the starts: ball [m] and its speed [m/s], wheel [rad].
_OFF, _SPEED, _TURN = 0.1, 0.2, 0.5
_MONOMIALS = tuple(itertools.combinations_with_replacement(range(3), 3))


class RegulationCost(AbstractCost):
    r"""The cost that a linear-quadratic regulator minimizes, of any motion about its equilibrium.

        integral of  s^T Q s + (u - u0)^T R (u - u0)  dt  +  s(t1)^T P s(t1)

    with `s = (q_I - q_I0, v_I, w - w0)` as in `RegulatorFeedback`. With the `P` of the regulator
    the last term is what the rest of the motion would cost under it, where the motion is small; so
    a short run is judged as if it went on, and nothing is gained by leaving work undone.

    Args:
        regulator: gives the equilibrium and the independent coordinates.
        Q: weight of the state, shape `(s, s)`.
        R: weight of the controls, shape `(i, i)`.
        P: weight of the final state, shape `(s, s)`.
    """

    regulator: RegulatorFeedback
    Q: Float[Array, "s s"]
    R: Float[Array, "i i"]
    P: Float[Array, "s s"]

    def __call__(self, trajectory: Trajectory) -> Float[Array, ""]:
        """The cost; NaN for a run that failed."""
        rest, own = self.regulator, jnp.array(self.regulator.independent, int)
        off = (trajectory.q - rest.q)[:, own]
        s = jnp.concatenate([off, trajectory.v[:, own], trajectory.w - rest.w], axis=1)
        u = trajectory.u - rest.u
        density = jnp.sum((s @ self.Q) * s, axis=1) + jnp.sum((u @ self.R) * u, axis=1)
        total = jnp.trapezoid(density, trajectory.ts) + s[-1] @ self.P @ s[-1]
        return jnp.where(trajectory.success, total, jnp.nan)


def linear_regulator(system: BallBeam) -> tuple[RegulatorFeedback, RegulationCost]:
    """The regulator of the simplified model as a controller of the exact one, and its cost.

    A ball 5 cm off its place, a wheel turned by 1 rad and a voltage off by 1 V count the same.

    Args:
        system: the ball and beam; its parameters are those of the simplified model too.

    Returns:
        `(RegulatorFeedback, RegulationCost)`.
    """
    names = ("r", "theta")
    model = SimplifiedBallBeam(**vars(system))
    zero = jnp.zeros(1)
    rest = equilibrium(model, model.start()[0], zero, zero, free_controls=True, fixed=("r",))
    Q = jnp.diag(jnp.array([_BALL**-2, _WHEEL**-2, 0.0, 0.0, 0.0]))
    R = jnp.array([[_VOLTAGE**-2]])
    found, regulator = lqr_on_constraints(linearize(model, rest, independent=names), Q, R)
    q, _ = system.start()
    feedback = RegulatorFeedback(found.K, q, found.w, found.u, (0, 2))
    return feedback, RegulationCost(feedback, Q, R, regulator.P)


def perturbed_rests(system: BallBeam, key: PRNGKeyArray, count: int, spread: float = 1.0) -> State:
    """Consistent starts around the rest: ball off its place and moving, wheel turned.

    Args:
        system: the ball and beam.
        key: random key.
        count: number of starts.
        spread: size; at one the ball is up to 10 cm and 0.2 m/s off, the wheel up to 0.5 rad.

    Returns:
        A `State` with leading axis `count`.
    """
    center = system.rest()
    uniform = jax.random.uniform(key, (count, 3), center.q.dtype, -spread, spread)
    ball, speed, turn = (uniform * jnp.array([_OFF, _SPEED, _TURN], center.q.dtype)).T
    zero = jnp.zeros_like(ball)
    q = center.q + jnp.stack([ball, zero, turn], axis=1)
    v = jnp.stack([speed, zero, zero], axis=1)

    def project(q, v):
        return consistent_state(system, q, v, w=center.w, fixed=("r", "theta"))

    return jax.jit(jax.vmap(project))(q, v)


class CubicNetwork(eqx.Module):
    """Cubic terms of ball, its speed and the wheel's angle: what an odd law adds first.

    Args:
        weights: of the monomials of `(r / 0.1 m, r' / (0.2 m/s), theta / rad)`, shape `(10,)` [V].
    """

    weights: Float[Array, " 10"]

    def __call__(self, x: Float[Array, " 7"]) -> Float[Array, " 1"]:
        """Voltage [V], from the deviation `(q, v, w)`."""
        s = jnp.stack([x[0] / _OFF, x[3] / _SPEED, x[2]])
        return (self.weights @ jnp.prod(s[jnp.array(_MONOMIALS)], axis=1))[None]


class WithNetwork(eqx.Module):
    """Adds a network to a regulator; the equilibrium stays where it is.

    Args:
        regulator: from `linear_regulator`.
        rest: state at the equilibrium.
    """

    regulator: RegulatorFeedback
    rest: State

    def __call__(self, network) -> NeuralFeedback:
        """The controller with a network of the deviation `(q, v, w)`, such as `CubicNetwork`."""
        return NeuralFeedback(network, self.rest, 1.0, self.regulator)
