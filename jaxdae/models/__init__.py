"""Ready systems, each with its source and reference."""

from jaxdae.models.andrews import AndrewsMechanism as AndrewsMechanism
from jaxdae.models.arm import (
    Ellipsoid as Ellipsoid,
    perturbation_equations as perturbation_equations,
    Plane as Plane,
    PointMassArm as PointMassArm,
    SurfaceArm as SurfaceArm,
)
from jaxdae.models.ball_beam import (
    BallBeam as BallBeam,
    SimplifiedBallBeam as SimplifiedBallBeam,
)
from jaxdae.models.base import AbstractModel as AbstractModel, Reference as Reference
from jaxdae.models.chain import Chain as Chain
from jaxdae.models.circuit import TwoLoopCircuit as TwoLoopCircuit
from jaxdae.models.constant_speed import (
    AppellHamel as AppellHamel,
    ConstantSpeed as ConstantSpeed,
)
from jaxdae.models.disk import RollingDisk as RollingDisk
from jaxdae.models.kepler import Kepler as Kepler
from jaxdae.models.knife_edge import KnifeEdge as KnifeEdge
from jaxdae.models.mirror import AdaptiveMirror as AdaptiveMirror
from jaxdae.models.motor import (
    AbstractMotorDrive as AbstractMotorDrive,
    ChargeDrive as ChargeDrive,
    CurrentDrive as CurrentDrive,
    MotorPower as MotorPower,
)
from jaxdae.models.pendulum import CartesianPendulum as CartesianPendulum
from jaxdae.models.registry import (
    get_model as get_model,
    Model as Model,
    MODELS as MODELS,
    UnknownModelError as UnknownModelError,
)
from jaxdae.models.robot import DifferentialDriveRobot as DifferentialDriveRobot
from jaxdae.models.sleigh import ChaplyginSleigh as ChaplyginSleigh
from jaxdae.models.slider_crank import SliderCrank as SliderCrank
from jaxdae.models.two_link import (
    AbstractTwoLink as AbstractTwoLink,
    PAPER_RUNS as PAPER_RUNS,
    PaperRun as PaperRun,
    ReachableTwoLink as ReachableTwoLink,
    TwoLinkManipulator as TwoLinkManipulator,
)
