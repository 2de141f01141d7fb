"""A slider-crank of equal links with friction, and its motion in one coordinate."""

import numpy as np
from scipy.integrate import solve_ivp

from jaxdae.models import SliderCrank


class RubbingCrank(SliderCrank):
    """Crank and rod of one length, with viscous friction in the bearing of the crank.

    Args:
        length: of both [m].
        damping: of the bearing [N m s/rad].
        slider_mass: [kg]; the links have 1 kg each.
    """

    damping: float = 0.5

    def __init__(self, length=1.0, damping=0.5, slider_mass=1.0):
        self.crank_length, self.rod_length, self.damping = length, length, damping
        self.crank_mass = self.rod_mass = 1.0
        self.slider_mass, self.gravity = slider_mass, 9.81

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v[0] ** 2


def rubbing_motion(ts, length=1.0, damping=0.5, slider_mass=1.0):
    """Crank's angle and rate by SciPy: on the branch `psi = -theta` there is one equation.

    `A theta'' = -A' theta'^2 / 2 - V' - damping theta'`, `A = r^2 (2/3 + (2 + 4 m) sin^2 theta)`,
    `V = g r sin theta`.
    """

    def rate(t, y):
        growth = length**2 * (2 + 4 * slider_mass)
        inertia = length**2 * 2 / 3 + growth * np.sin(y[0]) ** 2
        force = -0.5 * growth * np.sin(2 * y[0]) * y[1] ** 2
        force -= 9.81 * length * np.cos(y[0]) + damping * y[1]
        return [y[1], force / inertia]

    span, begin = (0.0, ts[-1]), [0.25 * np.pi, 4.0]
    return solve_ivp(rate, span, begin, method="DOP853", rtol=1e-11, atol=1e-11, t_eval=ts).y
