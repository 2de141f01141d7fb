"""Multibody: rigid bodies, joints and loops, declared or read from files."""

from jaxdae import names as _names
from jaxdae.multibody.applied import (
    BallTransmission as BallTransmission,
    GravityCompensation as GravityCompensation,
    PointForce as PointForce,
    Site as Site,
)
from jaxdae.multibody.assembly import assemble as assemble, AssemblyError as AssemblyError
from jaxdae.multibody.bodies import (
    AbstractLoop as AbstractLoop,
    Body as Body,
    Connection as Connection,
    Coupling as Coupling,
    Weld as Weld,
)
from jaxdae.multibody.bushing import Bushing as Bushing
from jaxdae.multibody.closures import (
    CylindricalLoop as CylindricalLoop,
    HingeLoop as HingeLoop,
    Perpendicular as Perpendicular,
    PlanarLoop as PlanarLoop,
    ScrewLoop as ScrewLoop,
    SlideLoop as SlideLoop,
    UniversalLoop as UniversalLoop,
)
from jaxdae.multibody.examination import doctor as doctor, LoopReport as LoopReport
from jaxdae.multibody.fluids import BoxDrag as BoxDrag
from jaxdae.multibody.forces import (
    AbstractForce as AbstractForce,
    Configuration as Configuration,
    Load as Load,
    Marker as Marker,
    Motion as Motion,
    UserForce as UserForce,
)
from jaxdae.multibody.gears import GearPair as GearPair, RackAndPinion as RackAndPinion
from jaxdae.multibody.guides import (
    PointOnCurve as PointOnCurve,
    PointOnLine as PointOnLine,
    PointOnPlane as PointOnPlane,
    PointOnSurface as PointOnSurface,
    Rod as Rod,
)
from jaxdae.multibody.joint_rows import (
    cylindrical as cylindrical,
    planar as planar,
    universal as universal,
)
from jaxdae.multibody.joints import (
    Ball as Ball,
    Free as Free,
    Hinge as Hinge,
    Pose as Pose,
    Screw as Screw,
    Slide as Slide,
    Twist as Twist,
    Wrench as Wrench,
)
from jaxdae.multibody.lengths import (
    AbstractLength as AbstractLength,
    Coordinate as Coordinate,
    Distance as Distance,
)
from jaxdae.multibody.limits import BallAngle as BallAngle
from jaxdae.multibody.motors import ElectricMotor as ElectricMotor, Motor as Motor
from jaxdae.multibody.mujoco import (
    ImportedMechanism as ImportedMechanism,
    read_mujoco as read_mujoco,
)
from jaxdae.multibody.prescribed import (
    PrescribedJoint as PrescribedJoint,
    PrescribedPoint as PrescribedPoint,
)
from jaxdae.multibody.reactions import (
    Reaction as Reaction,
    Reactions as Reactions,
    reactions as reactions,
    reactions_at as reactions_at,
)
from jaxdae.multibody.rolling import (
    RollingSphere as RollingSphere,
    RollingWheel as RollingWheel,
    Skate as Skate,
)
from jaxdae.multibody.springs import (
    Characteristic as Characteristic,
    JointDamper as JointDamper,
    JointSpring as JointSpring,
    SpringDamper as SpringDamper,
    TorsionSpring as TorsionSpring,
)
from jaxdae.multibody.stops import DryFriction as DryFriction, Stop as Stop
from jaxdae.multibody.surfaces import read_surfaces as read_surfaces, Surface as Surface
from jaxdae.multibody.system import Multibody as Multibody
from jaxdae.multibody.tendons import FixedTendon as FixedTendon, SpatialTendon as SpatialTendon
from jaxdae.multibody.wrapping import Cylinder as Cylinder, Sphere as Sphere

__all__ = _names.public(globals())
