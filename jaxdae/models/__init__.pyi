"""Ready systems, each with its source and reference."""

from .andrews import AndrewsMechanism as AndrewsMechanism
from .arm import (
    Ellipsoid as Ellipsoid,
    perturbation_equations as perturbation_equations,
    Plane as Plane,
    PointMassArm as PointMassArm,
    SurfaceArm as SurfaceArm,
)
from .ball_beam import (
    BallBeam as BallBeam,
    SimplifiedBallBeam as SimplifiedBallBeam,
)
from .base import (
    AbstractModel as AbstractModel,
    Model as Model,
    Reference as Reference,
    Rest as Rest,
)
from .car_axis import CarAxis as CarAxis
from .chain import Chain as Chain
from .circuit import TwoLoopCircuit as TwoLoopCircuit
from .constant_speed import (
    AppellHamel as AppellHamel,
    ConstantSpeed as ConstantSpeed,
)
from .disk import RollingDisk as RollingDisk
from .five_bar import (
    EllipticPath as EllipticPath,
    FiveBar as FiveBar,
    path_control as path_control,
)
from .flexible_slider_crank import FlexibleSliderCrank as FlexibleSliderCrank
from .four_bar import FourBar as FourBar
from .kepler import Kepler as Kepler
from .knife_edge import KnifeEdge as KnifeEdge
from .mirror import AdaptiveMirror as AdaptiveMirror
from .motor import (
    AbstractMotorDrive as AbstractMotorDrive,
    ChargeDrive as ChargeDrive,
    CurrentDrive as CurrentDrive,
    MotorPower as MotorPower,
)
from .pendulum import CartesianPendulum as CartesianPendulum
from .registry import (
    get_model as get_model,
    MODELS as MODELS,
    NoRestError as NoRestError,
    rest_of as rest_of,
    UnknownModelError as UnknownModelError,
)
from .robot import DifferentialDriveRobot as DifferentialDriveRobot
from .sleigh import ChaplyginSleigh as ChaplyginSleigh
from .slider_crank import SliderCrank as SliderCrank
from .two_link import (
    AbstractTwoLink as AbstractTwoLink,
    PAPER_RUNS as PAPER_RUNS,
    PaperRun as PaperRun,
    ReachableTwoLink as ReachableTwoLink,
    TwoLinkManipulator as TwoLinkManipulator,
)
