"""Multibody: rigid bodies, joints and loops, declared or read from files."""

from jaxdae import names as _names
from jaxdae.multibody.bodies import (
    Body as Body,
    Connection as Connection,
    Coupling as Coupling,
    Motor as Motor,
    Weld as Weld,
)
from jaxdae.multibody.closures import (
    CylindricalLoop as CylindricalLoop,
    HingeLoop as HingeLoop,
    Perpendicular as Perpendicular,
    PlanarLoop as PlanarLoop,
    ScrewLoop as ScrewLoop,
    SlideLoop as SlideLoop,
    UniversalLoop as UniversalLoop,
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
from jaxdae.multibody.joints import Ball as Ball, Free as Free, Hinge as Hinge, Slide as Slide
from jaxdae.multibody.mujoco import (
    ImportedMechanism as ImportedMechanism,
    read_mujoco as read_mujoco,
)
from jaxdae.multibody.prescribed import (
    PrescribedJoint as PrescribedJoint,
    PrescribedPoint as PrescribedPoint,
)
from jaxdae.multibody.rolling import (
    RollingSphere as RollingSphere,
    RollingWheel as RollingWheel,
    Skate as Skate,
)
from jaxdae.multibody.system import Multibody as Multibody

__all__ = _names.public(globals())
