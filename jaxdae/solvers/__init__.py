"""Solvers that diffrax does not ship, one for stiff equations too, and projected steps."""

from jaxdae import names as _names
from jaxdae.solvers.adams_bashforth import AdamsBashforth as AdamsBashforth
from jaxdae.solvers.constrained_term import ConstrainedTerm as ConstrainedTerm
from jaxdae.solvers.dae_term import DAETerm as DAETerm
from jaxdae.solvers.generalized_alpha import GeneralizedAlpha as GeneralizedAlpha
from jaxdae.solvers.half_explicit import HalfExplicit as HalfExplicit
from jaxdae.solvers.projected import Projected as Projected
from jaxdae.solvers.radau import RadauIIA as RadauIIA
from jaxdae.solvers.rattle import Rattle as Rattle
from jaxdae.solvers.rodas5p import Rodas5P as Rodas5P
from jaxdae.solvers.runge_kutta import RK4 as RK4

__all__ = _names.public(globals())
