r"""Soft constraints as MuJoCo has them, and the softness that suits a step.

MuJoCo replaces a constraint `r(q) = 0` by a forced oscillator [Todorov2014]: with the acceleration
`a0` of `r` without the constraint, and an impedance `d` between 0 and 1,

    r'' = (1 - d) a0 - B r' - K r,        K = d k(solref, solimp),    B = d b(solref, solimp)

Under a constant `a0` it comes to rest at `r = (1 - d) a0 / K`: a drift that no step makes smaller.
The impedance is at most 0.9999, so that a stiff oscillator is what is left to choose, and the step
`h` of the integrator limits it. A step multiplies a violation `(r, r')` by a matrix:

- *semi-implicit Euler* (`Euler`, `implicit`, `implicitfast`: forces of constraints from the old
  state, positions by the new velocity): its eigenvalues are the roots of

      z^2 - (2 - h B - h^2 K) z + (1 - h B) = 0

  Both vanish for `h B = 1`, `h^2 K = 1`: a violation is gone after two steps. This is the solref
  `(2 h, 1/2)`, whose time constant is the least that MuJoCo takes; with the usual damping ratio 1
  the same time constant is four times as compliant.
- *RK4*: eigenvalues `R(h s)` for the roots `s` of `s^2 + B s + K` with the stability function `R`
  of the method [HairerWanner1996, section IV.3], as of `jaxdae.stability.step_gains`.
- *discrete*: oscillators at the end of the step, which is the implicit Euler method.
"""

from typing import NamedTuple

import diffrax
import numpy as np

from jaxdae.reprs import shown
from jaxdae.solvers.runge_kutta import RK4
from jaxdae.stability.stability_functions import amplification
from jaxdae.stability.step_gains import step_gains

# Of MuJoCo: positions by the new velocity, forces of constraints by the old state.
_SEMI_IMPLICIT = ("euler", "implicit", "implicitfast")
_RUNGE_KUTTA = {"rk4": RK4(), "discrete": diffrax.ImplicitEuler()}
# The largest impedance that MuJoCo takes.
HARDEST = 0.9999
# Digits of what is suggested, and written into files.
_DIGITS = 6


class Softness(NamedTuple):
    """A soft constraint where it is closed: `r'' = (1 - d) a0 - B r' - K r`.

    Args:
        stiffness: `K` [1/s^2].
        damping: `B` [1/s].
        impedance: `d`, without unit.
    """

    stiffness: float
    damping: float
    impedance: float

    def __repr__(self) -> str:
        return shown(self)

    @property
    def frequency(self) -> float:
        """Natural frequency `sqrt(K)` [rad/s]."""
        return float(np.sqrt(self.stiffness))

    @property
    def damping_ratio(self) -> float:
        """`B / (2 sqrt(K))`, without unit; 1 is critical."""
        return self.damping / (2.0 * self.frequency) if self.stiffness > 0 else float("inf")

    @property
    def compliance(self) -> float:
        """Violation at rest for each unit of `a0`, `(1 - d) / K` [s^2]."""
        return (1.0 - self.impedance) / self.stiffness if self.stiffness > 0 else float("inf")

    def factor(self, integrator: str, dt: float) -> float:
        """Largest factor by which a step multiplies a violation in the long run.

        Args:
            integrator: of MuJoCo, such as `"euler"`.
            dt: its step [s].

        Returns:
            Spectral radius; not a number for an integrator that is not known here.
        """
        if integrator in _SEMI_IMPLICIT:
            damped, stiff = dt * self.damping, dt**2 * self.stiffness
            return float(np.abs(np.roots([1.0, damped + stiff - 2.0, 1.0 - damped])).max())
        if integrator in _RUNGE_KUTTA:
            roots = np.roots([1.0, self.damping, self.stiffness])
            return float(amplification(_RUNGE_KUTTA[integrator], dt * roots).max())
        return float("nan")


class Setting(NamedTuple):
    """Attributes of an equality constraint in MJCF.

    Args:
        solref: `(timeconst, dampratio)`, or `(-stiffness, -damping)` [s and 1; 1/s^2 and 1/s].
        solimp: `(dmin, dmax, width, midpoint, power)`.
    """

    solref: tuple[float, float]
    solimp: tuple[float, ...]

    def __repr__(self) -> str:
        return shown(self)

    def __str__(self) -> str:
        return f'solref="{_words(self.solref)}" solimp="{_words(self.solimp)}"'


def setting_for_step(
    integrator: str, dt: float, solimp: tuple[float, ...], steps: int = 1
) -> Setting | None:
    """The hardest constraint whose violations a step damps best.

    Args:
        integrator: of MuJoCo, such as `"euler"`.
        dt: its step [s].
        solimp: of the file; its width, midpoint and power stay.
        steps: a violation decays as if the step were so many times as long: softer constraints,
            which are better where the steps' own errors are smaller than what stiff ones excite.

    Returns:
        The setting in the digits in which it is written, by time constant and damping ratio where
        MuJoCo takes that time constant, at least `2 dt`; `None` for an unknown integrator.
    """
    if integrator in _SEMI_IMPLICIT:
        damping, stiffness = 1.0 / dt, 1.0 / dt**2
    elif integrator in _RUNGE_KUTTA:
        gains = step_gains(_RUNGE_KUTTA[integrator], dt)
        damping, stiffness = float(gains.K_D), float(gains.K_P)
    else:
        return None
    damping, stiffness = damping / steps, stiffness / steps**2
    time_constant, ratio = 2.0 / damping, damping / (2.0 * np.sqrt(stiffness))
    allowed = time_constant >= 2.0 * dt * (1.0 - 1e-9)
    solref = (time_constant, ratio) if allowed else (-stiffness, -damping)
    return Setting(
        (_rounded(solref[0]), _rounded(solref[1])), (HARDEST, HARDEST, *map(float, solimp[2:]))
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _words(values) -> str:
    return " ".join(f"{x:.{_DIGITS}g}" for x in values)
