"""Multibody: rigid bodies, joints and loops, declared or read from files."""

from jaxdae import names as _names
from jaxdae.multibody.assembly import assemble as assemble, AssemblyError as AssemblyError
from jaxdae.multibody.bodies import (
    Body as Body,
    Connection as Connection,
    Coupling as Coupling,
    Motor as Motor,
    Weld as Weld,
)
from jaxdae.multibody.joints import Ball as Ball, Free as Free, Hinge as Hinge, Slide as Slide
from jaxdae.multibody.mujoco import (
    ImportedMechanism as ImportedMechanism,
    read_mujoco as read_mujoco,
)
from jaxdae.multibody.reactions import (
    Reaction as Reaction,
    Reactions as Reactions,
    reactions as reactions,
    reactions_at as reactions_at,
)
from jaxdae.multibody.system import Multibody as Multibody

__all__ = _names.public(globals())
