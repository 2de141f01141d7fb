"""States of rest of the ready systems: where to look for them, and which systems have none."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel
from jaxdae.models.motor import ChargeDrive
from jaxdae.models.registry import get_model, MODELS
from jaxdae.models.slider_crank import SliderCrank


class NoRestError(ValueError):
    """A ready system has no state of rest that could be analyzed."""


@dataclasses.dataclass(frozen=True)
class Rest:
    """Where a ready system rests.

    Args:
        guess: coordinates near the state of rest, from the system, shape `(n,)`; the actuator
            state starts from the system's own.
        inputs: number of control inputs; those that hold the system at rest are found with it.
        fixed: names of coordinates to hold at their guess, where states of rest form a family.
        remark: what a reader has to know about this state; empty where nothing.
        system: builds the system, where it is not that of the registry.
    """

    guess: Callable[[Any], Float[Array, " n"]]
    inputs: int = 0
    fixed: tuple[str, ...] = ()
    remark: str = ""
    system: Callable[[], AbstractModel] | None = None


# Fifth digits of a solution with the crank near its far dead position, by continuation from the
# test set's start; the search for the equilibrium needs no more.
_ANDREWS = (-3.0008, 3.0457, 0.0414, -0.5338, 0.5244, 0.5338, 1.0481)

_BALL_BEAM = Rest(
    guess=lambda system: system.start()[0],
    inputs=1,
    fixed=("r",),
    remark="the ball is held where it is; the voltage that carries its weight is found",
)

RESTS: dict[str, Rest] = {
    "pendulum": Rest(guess=lambda system: system.released_from(0.0)[0], remark="hanging"),
    "chain": Rest(guess=lambda system: system.hanging()[0], remark="hanging"),
    "slider-crank": Rest(
        guess=lambda system: system.at_crank(-0.5 * jnp.pi)[0],
        remark="crank down, with a rod of 1.5 m: links of equal length, as this model has them "
        "elsewhere, rest only in the singular in-line position, where no linearization exists",
        system=lambda: SliderCrank(rod_length=1.5),
    ),
    "andrews": Rest(
        guess=lambda _: jnp.asarray(_ANDREWS),
        remark="driven: the spring holds the motor's constant torque, the crank near its far dead "
        "position",
    ),
    "knife-edge": Rest(
        guess=lambda _: jnp.stack([jnp.zeros(()), jnp.zeros(()), jnp.asarray(0.5 * jnp.pi)]),
        remark="blade across the slope, where it carries the weight; it rests so anywhere",
    ),
    "circuit": Rest(
        guess=lambda system: system.stationary(),
        remark="capacitors charged by the source, no currents",
    ),
    "robot": Rest(
        guess=lambda _: jnp.zeros(5), inputs=2, remark="parked; it may be parked anywhere"
    ),
    "ball-beam": _BALL_BEAM,
    "ball-beam-simplified": _BALL_BEAM,
    "kepler": Rest(
        guess=lambda system: system.start()[0],
        inputs=2,
        fixed=("x", "y"),
        remark="hovering on a thrust that is found; without thrust nothing rests in a central "
        "field, and a circular orbit is a relative equilibrium, which moves",
    ),
    "mirror": Rest(
        guess=lambda system: system.start()[0],
        inputs=1,
        fixed=("phi",),
        remark="at the angle of the program at t = 0, held by the motor's torque; the program "
        "itself moves and is not part of it",
    ),
    "surface-arm": Rest(
        guess=lambda _: jnp.array([0.72, 0.42, -0.55, 1.35, 0.8, 0.13]),
        remark="elbow hanging, tip high on the ellipsoid; one of several",
    ),
    "motor": Rest(
        guess=lambda system: system.at_load(system.mechanism.at_crank(-0.5 * jnp.pi)[0]),
        remark="without voltage, crank down; the charge that has flown does not matter",
        system=lambda: ChargeDrive(voltage=0.0),
    ),
    "motor-actuator": Rest(
        guess=lambda system: system.start()[0],
        inputs=1,
        fixed=("crank",),
        remark="the crank is held where it is; the voltage that carries its weight is found",
    ),
}

# Why the others have none.
_MOVING_TARGET = "its constraints lead the tip after a moving target and leave nothing to rest"
_COASTING = (
    "at rest it stays wherever it is put and every root is zero, which decides nothing; its steady "
    "motions are relative equilibria, which move in these coordinates"
)

NO_REST: dict[str, str] = {
    "two-link": _MOVING_TARGET,
    "two-link-reachable": _MOVING_TARGET,
    "sleigh": _COASTING,
    "disk": _COASTING,
    "arm": "no force acts on it; " + _COASTING,
    "constant-speed": "its constraint keeps it moving",
    "appell-hamel": "at rest its constraint has no gradient, so that no reaction is defined there",
}


def rest_of(model_name: str) -> Rest:
    """Where a ready system rests.

    Args:
        model_name: a name of the registry.

    Returns:
        Its `Rest`.

    Raises:
        UnknownModelError: for a name that is not registered.
        NoRestError: for a system without a state of rest, with the reason and those that have one.
    """
    get_model(model_name)
    if model_name in RESTS:
        return RESTS[model_name]
    reason = NO_REST.get(model_name, "none is listed in jaxdae/models/equilibria.py")
    known = ", ".join(name for name in MODELS if name in RESTS)
    raise NoRestError(
        f"the model {model_name!r} has no state of rest to analyze: {reason}. Models that have "
        f"one: {known}."
    )
