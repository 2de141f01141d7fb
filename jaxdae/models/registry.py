"""The ready systems by name."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdae.compiled import jit
from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import AbstractFormulation, Baumgarte, Multipliers, Penalty
from jaxdae.models.andrews import AndrewsMechanism
from jaxdae.models.arm import PointMassArm, SurfaceArm
from jaxdae.models.ball_beam import BallBeam, SimplifiedBallBeam
from jaxdae.models.ball_beam_control import linear_regulator
from jaxdae.models.base import AbstractModel
from jaxdae.models.catalogue import CATALOGUE
from jaxdae.models.chain import Chain
from jaxdae.models.circuit import TwoLoopCircuit
from jaxdae.models.constant_speed import AppellHamel, ConstantSpeed
from jaxdae.models.disk import RollingDisk
from jaxdae.models.kepler import Kepler
from jaxdae.models.knife_edge import KnifeEdge
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.models.motor import ChargeDrive, CurrentDrive
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.models.robot import DifferentialDriveRobot
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.models.slider_crank import SliderCrank
from jaxdae.models.two_link import PAPER_RUNS, ReachableTwoLink, TwoLinkManipulator
from jaxdae.systems import State


class UnknownModelError(ValueError):
    """No ready system has the name that was asked for."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A ready system and what to run it with.

    Args:
        name: name on the command line.
        summary: one line.
        source: where the system, its numbers or its reference come from.
        system: builds the system; called without arguments it takes the default parameters.
        formulation: builds the formulation to start with.
        t1: suggested end of the simulation [s].
        controller: builds the controller that a system built by `system` runs under, if it has one.
        departure: of a system that starts where its controller has nothing to do: takes that start
            to one on the constraints that shows what the controller does.
    """

    name: str
    summary: str
    source: str
    system: Callable[..., AbstractModel]
    formulation: Callable[[], AbstractFormulation]
    t1: float
    controller: Callable[[Any], Callable[..., Any]] | None = None
    departure: Callable[[State], State] | None = None

    def start(self, system: AbstractModel | None = None):
        """Consistent coordinates and velocities to start from.

        Args:
            system: a system that `self.system` built; None for the default parameters.

        Returns:
            Coordinates and velocities at t = 0, each of shape (n,).
        """
        return (self.system() if system is None else system).start()


def _stabilized(rate: float) -> Callable[[], Multipliers]:
    """Multipliers whose constraint violation decays at a rate [1/s], critically damped."""
    return lambda: Multipliers(Baumgarte.critical(rate))


def _rolling() -> Multipliers:
    """Multipliers for velocity constraints alone."""
    return Multipliers(Baumgarte(Gamma=10.0))


def _ball_aside(start: State) -> State:
    """The ball 5 cm further out, on a level beam."""
    return State(start.q.at[0].add(0.05), start.v, start.w)


def _beam_off_target(start: State) -> State:
    """The mirror turned by 0.02 rad from the angle of its program."""
    return State(start.q + 0.02, start.v, start.w)


def _model(name: str, **parts) -> Model:
    """The entry of a model, its summary and source from the catalogue."""
    entry = CATALOGUE[name]
    return Model(name, entry.summary, entry.source, **parts)


# [1/s]; distinct, because a root of multiplicity four is moved far by little.
_MIRROR_ROOTS = (-10.0, -8.0, -5.0, -3.0)


@jit
def _mirror_servo(system: AdaptiveMirror) -> ServoConstraint:
    """Keeps the beam on the target; four derivatives of the program until the voltage appears."""
    return ServoConstraint(
        system.program,
        HurwitzGains(np.poly(_MIRROR_ROOTS)[:0:-1]),
        system=system,
        formulation=Multipliers(),
        sample=system.program_state(0.0),
        degrees=(4,),
        names=("beam on target",),
    )


_MODELS = (
    _model("pendulum", system=CartesianPendulum, formulation=_stabilized(10.0), t1=10.0),
    _model("chain", system=Chain, formulation=_stabilized(10.0), t1=5.0),
    _model("two-link", system=TwoLinkManipulator, formulation=PAPER_RUNS[1].formulation, t1=20.0),
    _model(
        "two-link-reachable",
        system=ReachableTwoLink,
        formulation=PAPER_RUNS[1].formulation,
        t1=20.0,
    ),
    _model(
        "slider-crank",
        system=SliderCrank,
        formulation=lambda: Penalty(alpha=1e4, stabilization=Baumgarte.critical(100.0)),
        t1=4.0,
    ),
    _model("andrews", system=AndrewsMechanism, formulation=Multipliers, t1=0.03),
    _model("sleigh", system=ChaplyginSleigh, formulation=_rolling, t1=6.0),
    _model("disk", system=RollingDisk, formulation=_rolling, t1=6.0),
    _model("knife-edge", system=KnifeEdge, formulation=_rolling, t1=6.0),
    _model("constant-speed", system=ConstantSpeed, formulation=_rolling, t1=2.0),
    _model("appell-hamel", system=AppellHamel, formulation=_rolling, t1=2.0),
    _model("circuit", system=TwoLoopCircuit, formulation=_stabilized(10.0), t1=5.0),
    _model("robot", system=DifferentialDriveRobot, formulation=_rolling, t1=6.0),
    _model(
        "ball-beam",
        system=BallBeam,
        formulation=_stabilized(10.0),
        t1=1.0,
        controller=lambda system: linear_regulator(system)[0],
        departure=_ball_aside,
    ),
    _model("ball-beam-simplified", system=SimplifiedBallBeam, formulation=Multipliers, t1=1.0),
    _model("kepler", system=Kepler, formulation=Multipliers, t1=20.0),
    _model(
        "mirror",
        system=AdaptiveMirror,
        formulation=Multipliers,
        t1=2.0,
        controller=_mirror_servo,
        departure=_beam_off_target,
    ),
    _model("arm", system=PointMassArm, formulation=_stabilized(10.0), t1=10.0),
    _model("surface-arm", system=SurfaceArm, formulation=_stabilized(10.0), t1=5.0),
    _model("motor", system=ChargeDrive, formulation=_stabilized(10.0), t1=0.5),
    _model("motor-actuator", system=CurrentDrive, formulation=_stabilized(10.0), t1=0.5),
)

MODELS: dict[str, Model] = {model.name: model for model in _MODELS}


def get_model(name: str) -> Model:
    """The ready system of a given name.

    Args:
        name: one of the keys of `MODELS`.

    Returns:
        Its entry.

    Raises:
        UnknownModelError: if there is none; the message lists the names and the closest one.
    """
    if name in MODELS:
        return MODELS[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), MODELS, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownModelError(f"No model is named {name!r}.{hint} Available: {', '.join(MODELS)}.")
