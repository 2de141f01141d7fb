"""The models that oracles test, from the oracles' parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

import oracles
from jaxdae import State
from jaxdae.models import (
    AbstractModel,
    CartesianPendulum,
    Chain,
    KnifeEdge,
    SliderCrank,
    TwoLinkManipulator,
)
from jaxdae.models.motor import CurrentDrive


class OracleModel(NamedTuple):
    """An oracle and the model that must move as it does.

    Args:
        oracle: the equations by hand.
        parameters: fields of the oracle to differentiate by.
        make: the model and its start, from the values of those; traceable.
        t1: end of the motion [s].
        steps: equal ones, of an eighth-order method.
    """

    oracle: oracles.Oracle
    parameters: tuple[str, ...]
    make: Callable[..., tuple[AbstractModel, State]]
    t1: float
    steps: int = 40

    def start(self) -> tuple[AbstractModel, State]:
        """With the values that the oracle has."""
        return self.make(*(jnp.asarray(getattr(self.oracle, x)) for x in self.parameters))


def _pendulum(mass, length, gravity, amplitude):
    model = CartesianPendulum(mass, length, gravity)
    return model, State(*model.released_from(amplitude))


def _chain(mass1, mass2, length2, gravity, turn):
    def swing(angle, rate, length):
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        return length * jnp.stack([sin, -cos]), length * rate * jnp.stack([cos, sin])

    q1, v1 = swing(jnp.asarray(0.9), turn, 0.5)
    q2, v2 = swing(jnp.asarray(-0.4), -2.0, length2)
    lengths, masses = jnp.stack([0.5, length2]), jnp.stack([mass1, mass2])
    state = State(jnp.append(q1, q1 + q2), jnp.append(v1, v1 + v2))
    return Chain(lengths, masses, gravity), state


def _slider_crank(rod_length, rod_mass, slider_mass, gravity, turn):
    model = SliderCrank(1.0, rod_length, 1.1, rod_mass, slider_mass, gravity)
    return model, State(*model.at_crank(0.7, turn))


def _motor(resistance, inductance, motor_constant, damping, voltage):
    model: Any = CurrentDrive(
        resistance=resistance,
        inductance=inductance,
        motor_constant=motor_constant,
        damping=damping,
        voltage=voltage,
    )
    q, v = model.start()
    return model, State(q, v, model.actuators())


def _two_link(mass1, mass2, gravity, target_speed):
    model = TwoLinkManipulator(mass1=mass1, mass2=mass2, gravity=gravity, target_speed=target_speed)
    return model, State(*model.start())


def _knife_edge(mass, slope, turn_rate, speed):
    model = KnifeEdge(mass, 0.3, slope=slope, turn_rate=turn_rate, speed=speed)
    return model, State(*model.start())


ORACLE_MODELS = {
    # It hangs straight, where y is no choice of an independent coordinate, at t = 0.52 s.
    "pendulum": OracleModel(
        oracles.Pendulum(), ("mass", "length", "gravity", "amplitude"), _pendulum, 0.45
    ),
    "chain": OracleModel(
        oracles.Chain(), ("mass1", "mass2", "length2", "gravity", "turn"), _chain, 0.5, 60
    ),
    "slider-crank": OracleModel(
        oracles.SliderCrank(),
        ("rod_length", "rod_mass", "slider_mass", "gravity", "turn"),
        _slider_crank,
        0.6,
    ),
    "motor": OracleModel(
        oracles.Motor(),
        ("resistance", "inductance", "motor_constant", "damping", "voltage"),
        _motor,
        0.1,
        100,
    ),
    # The arm folds at t = 0.4933 s.
    "two-link": OracleModel(
        oracles.TwoLink(), ("mass1", "mass2", "gravity", "target_speed"), _two_link, 0.25
    ),
    "knife edge": OracleModel(
        oracles.KnifeEdge(), ("mass", "slope", "turn_rate", "speed"), _knife_edge, 0.9
    ),
}
