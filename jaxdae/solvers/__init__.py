"""Solvers: Runge–Kutta methods that diffrax does not ship, and projection of any method's steps."""

from jaxdae import names as _names
from jaxdae.solvers.constrained_term import ConstrainedTerm as ConstrainedTerm
from jaxdae.solvers.projected import Projected as Projected
from jaxdae.solvers.runge_kutta import RK4 as RK4

__all__ = _names.public(globals())
