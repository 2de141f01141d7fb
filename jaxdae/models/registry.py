"""The ready systems by name."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import AbstractFormulation, Baumgarte, Multipliers, Penalty
from jaxdae.models.andrews import AndrewsMechanism
from jaxdae.models.arm import PointMassArm, SurfaceArm
from jaxdae.models.ball_beam import BallBeam, SimplifiedBallBeam
from jaxdae.models.ball_beam_control import linear_regulator
from jaxdae.models.base import AbstractModel
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
    """

    name: str
    summary: str
    source: str
    system: Callable[..., AbstractModel]
    formulation: Callable[[], AbstractFormulation]
    t1: float
    controller: Callable[[Any], Callable[..., Any]] | None = None

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


# [1/s]; distinct, because a root of multiplicity four is moved far by little.
_MIRROR_ROOTS = (-10.0, -8.0, -5.0, -3.0)


@eqx.filter_jit
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
    Model(
        name="pendulum",
        summary="point mass on a rod, in Cartesian coordinates",
        source="Hairer, Wanner, Solving Ordinary Differential Equations II, VII.1",
        system=CartesianPendulum,
        formulation=_stabilized(10.0),
        t1=10.0,
    ),
    Model(
        name="chain",
        summary="chain of point masses in redundant Cartesian coordinates",
        source="Shemelova, constraint perturbation equations (two masses); any number here",
        system=Chain,
        formulation=_stabilized(10.0),
        t1=5.0,
    ),
    Model(
        name="two-link",
        summary="two-link manipulator led through a singular configuration and out of reach",
        source="Mukharlyamov, Deressa (2014), example 1; gains of its Fig. 3",
        system=TwoLinkManipulator,
        formulation=PAPER_RUNS[1].formulation,
        t1=20.0,
    ),
    Model(
        name="two-link-reachable",
        summary="two-link manipulator led through a singular configuration again and again",
        source="Mukharlyamov, Deressa (2014), example 1, with a target that stays within reach",
        system=ReachableTwoLink,
        formulation=PAPER_RUNS[1].formulation,
        t1=20.0,
    ),
    Model(
        name="slider-crank",
        summary="slider-crank with equal links, through its in-line singular position",
        source="Bayo, Ledesma, Nonlinear Dynamics 9 (1996) 113-130",
        system=SliderCrank,
        formulation=lambda: Penalty(alpha=1e4, stabilization=Baumgarte.critical(100.0)),
        t1=4.0,
    ),
    Model(
        name="andrews",
        summary="Andrews' squeezing mechanism, seven bodies in three loops",
        source="Test Set for IVP Solvers; Hairer, Wanner, VII.7",
        system=AndrewsMechanism,
        formulation=Multipliers,
        t1=0.03,
    ),
    Model(
        name="sleigh",
        summary="Chaplygin sleigh: a rigid body on a blade",
        source="Chaplygin (1911); Neimark, Fufaev, ch. III",
        system=ChaplyginSleigh,
        formulation=_rolling,
        t1=6.0,
    ),
    Model(
        name="disk",
        summary="vertical disk that rolls without slipping",
        source="Bloch, Nonholonomic Mechanics and Control, 1.4",
        system=RollingDisk,
        formulation=_rolling,
        t1=6.0,
    ),
    Model(
        name="knife-edge",
        summary="blade on an inclined plane",
        source="Neimark, Fufaev, ch. III; Bloch, 1.6",
        system=KnifeEdge,
        formulation=_rolling,
        t1=6.0,
    ),
    Model(
        name="constant-speed",
        summary="point whose speed is held constant, a constraint not affine in the velocities",
        source="Chetaev (1932-33); Neimark, Fufaev, ch. IV",
        system=ConstantSpeed,
        formulation=_rolling,
        t1=2.0,
    ),
    Model(
        name="appell-hamel",
        summary="point whose horizontal speed is a multiple of its vertical one",
        source="Appell (1911); Hamel (1949); Neimark, Fufaev, ch. IV",
        system=AppellHamel,
        formulation=_rolling,
        t1=2.0,
    ),
    Model(
        name="circuit",
        summary="electric circuit of two loops with coils, resistors and capacitors",
        source="Shemelova, elements of another physical nature; numbers of our own",
        system=TwoLoopCircuit,
        formulation=_stabilized(10.0),
        t1=5.0,
    ),
    Model(
        name="robot",
        summary="mobile robot on two driven wheels, coasting without a controller",
        source="Siegwart, Nourbakhsh, Introduction to Autonomous Mobile Robots, ch. 3",
        system=DifferentialDriveRobot,
        formulation=_rolling,
        t1=6.0,
    ),
    Model(
        name="ball-beam",
        summary="ball on a beam that a motor tilts through a rod",
        source="Krasinskaya, Krasinskii (2013), section 6; numbers of Quanser BB01 and SRV02",
        system=BallBeam,
        formulation=_stabilized(10.0),
        t1=1.0,
        controller=lambda system: linear_regulator(system)[0],
    ),
    Model(
        name="ball-beam-simplified",
        summary="ball and beam with the linear constraint of the literature",
        source="as ball-beam",
        system=SimplifiedBallBeam,
        formulation=Multipliers,
        t1=1.0,
    ),
    Model(
        name="kepler",
        summary="point in a central field of gravity",
        source="Baumgarte (1972); Landau, Lifshitz, section 15",
        system=Kepler,
        formulation=Multipliers,
        t1=20.0,
    ),
    Model(
        name="mirror",
        summary="adaptive-optics mirror whose DC motor keeps a beam on a target",
        source="Mukharlyamov (2019), section 5",
        system=AdaptiveMirror,
        formulation=Multipliers,
        t1=2.0,
        controller=_mirror_servo,
    ),
    Model(
        name="arm",
        summary="plane arm of two point masses, in redundant Cartesian coordinates",
        source="Shemelova, constraint perturbation equations, example; numbers of our own",
        system=PointMassArm,
        formulation=_stabilized(10.0),
        t1=10.0,
    ),
    Model(
        name="surface-arm",
        summary="spatial arm of two point masses whose tip stays on an ellipsoid",
        source="Krasinskaya, Krasinskii (2013), introduction; numbers of our own",
        system=SurfaceArm,
        formulation=_stabilized(10.0),
        t1=5.0,
    ),
    Model(
        name="motor",
        summary="slider-crank driven by a geared DC motor, its charge a coordinate",
        source="Shemelova, elements of another physical nature; numbers of Quanser SRV02",
        system=ChargeDrive,
        formulation=_stabilized(10.0),
        t1=0.5,
    ),
    Model(
        name="motor-actuator",
        summary="the same motor with its current as actuator state",
        source="as motor",
        system=CurrentDrive,
        formulation=_stabilized(10.0),
        t1=0.5,
    ),
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
