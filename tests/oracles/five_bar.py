"""A five-bar by hand, in the plane of its tip: two arms and a load that meet there."""

from dataclasses import dataclass
from math import acos, atan2, cos, hypot, sin

import numpy as np

from oracles.base import Oracle, Solution

NONE = np.zeros(0)
LEFT, RIGHT = 0, 1
DOWN = np.array([0.0, -1.0])


@dataclass(frozen=True)
class FiveBar(Oracle):
    """`y = (P, P')` of the tip. Each arm, cut free there, obeys, with `k = m2 l1 c2 l2`,

        A a + h = J^T F,    A = [[I1 + m1 (c1 l1)^2 + m2 l1^2, k cos(psi - theta)], [., I2 + m2 (c2 l2)^2]]
        h = k sin(psi - theta) (-psi'^2, theta'^2) + weights + friction - torque

    with `J` from `(theta', psi')` to `P'`, so that `a = J^-1 (P'' - J' v)`. The forces on both arms
    and the load's inertia and weight balance: a linear equation for `P''`.
    """  # noqa: E501

    lengths: tuple = (0.25, 0.35, 0.22, 0.38)
    masses: tuple = (0.6, 0.35, 0.5, 0.4)
    centres: tuple = (0.4, 0.5, 0.45, 0.55)
    inertias: tuple = (3.5e-3, 3.6e-3, 2.3e-3, 4.8e-3)
    base: float = 0.2
    tip_mass: float = 0.3
    friction: float = 0.05
    gravity: float = 9.81
    torques: tuple = (0.0, 0.0)
    tip: tuple = (0.18, 0.42)
    speed: tuple = (0.0, 0.2)

    def start(self):
        return [*self.tip, *self.speed]

    def rate(self, y):
        return [*y[2:], *self.push(y)[0]]

    def links(self, arm):
        return (np.array(x)[2 * arm : 2 * arm + 2] for x in self._properties)

    @property
    def _properties(self):
        return self.lengths, self.masses, self.centres, self.inertias

    def angles(self, arm, tip):
        """Crank and coupler; elbows outside."""
        l1, l2 = np.array(self.lengths)[2 * arm : 2 * arm + 2]
        x, y = tip[0] - arm * self.base, tip[1]
        far = hypot(x, y)
        crank = atan2(y, x) + (1 - 2 * arm) * acos((l1**2 + far**2 - l2**2) / (2 * l1 * far))
        return np.array([crank, atan2(y - l1 * sin(crank), x - l1 * cos(crank))])

    def arm(self, arm, y):
        """Angles, rates, J, J' v, A and h of an arm."""
        (l1, l2), (m1, m2), (c1, c2), (i1, i2) = self.links(arm)
        q = self.angles(arm, y[:2])
        jac = np.array([[-l1 * sin(q[0]), -l2 * sin(q[1])], [l1 * cos(q[0]), l2 * cos(q[1])]])
        v = np.linalg.solve(jac, y[2:])
        turning = -l1 * v[0] ** 2 * np.array([cos(q[0]), sin(q[0])])
        turning -= l2 * v[1] ** 2 * np.array([cos(q[1]), sin(q[1])])
        k, bend = m2 * l1 * c2 * l2, q[1] - q[0]
        across, own = k * cos(bend), i2 + m2 * (c2 * l2) ** 2
        inertia = np.array([[i1 + m1 * (c1 * l1) ** 2 + m2 * l1**2, across], [across, own]])
        h = k * sin(bend) * np.array([-(v[1] ** 2), v[0] ** 2])
        h += self.gravity * np.array([(m1 * c1 + m2) * l1 * cos(q[0]), m2 * c2 * l2 * cos(q[1])])
        h += np.array([self.friction * v[0] - self.torques[arm], 0.0])
        return q, v, jac, turning, inertia, h

    def push(self, y):
        """Acceleration of the tip, and the force on the right arm there."""
        matrix, right, forces = self.tip_mass * np.eye(2), self.tip_mass * self.gravity * DOWN, []
        for arm in (LEFT, RIGHT):
            _, _, jac, turning, inertia, h = self.arm(arm, y)
            inverse = np.linalg.inv(jac)
            heavy = inverse.T @ inertia @ inverse
            constant = inverse.T @ h - heavy @ turning
            matrix, right = matrix + heavy, right - constant
            forces.append((heavy, constant))
        a = np.linalg.solve(matrix, right)
        heavy, constant = forces[RIGHT]
        return a, heavy @ a + constant

    def read(self, y):
        arms = [self.arm(arm, y) for arm in (LEFT, RIGHT)]
        q, v = (np.concatenate([x[i] for x in arms]) for i in (0, 1))
        return Solution(q, v, NONE, self.push(y)[1])
