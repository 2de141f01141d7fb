"""Six mechanisms, derived by hand.

Angles of pendulums are from the downward vertical, `e = (sin, -cos)` along a rod and `n = (cos,
sin)` across it. Multipliers follow from balances of single bodies, cut free.
"""

from dataclasses import dataclass
from math import asin, atan2, cos, hypot, pi, sin, sqrt, tan

import numpy as np

from oracles.base import Oracle, Solution

NONE = np.zeros(0)


@dataclass(frozen=True)
class Pendulum(Oracle):
    """`l theta'' = -g sin theta`; the rod carries `S = m (l theta'^2 + g cos theta) = 2 l lam`."""

    mass: float = 1.3
    length: float = 0.9
    gravity: float = 9.81
    amplitude: float = 1.2

    def start(self):
        return [self.amplitude, 0.0]

    def rate(self, y):
        return [y[1], -self.gravity / self.length * sin(y[0])]

    def read(self, y):
        angle, turn, length = *y, self.length
        q = length * np.array([sin(angle), -cos(angle)])
        v = length * turn * np.array([cos(angle), sin(angle)])
        tension = self.mass * (length * turn**2 + self.gravity * cos(angle))
        return Solution(q, v, NONE, np.array([tension / (2 * length)]))


@dataclass(frozen=True)
class Chain(Oracle):
    """Two masses on two rods, with `d = theta1 - theta2` and `m = m1 + m2`:

        m l1 theta1'' + m2 l2 cos d theta2'' = -m2 l2 sin d theta2'^2 - m g sin theta1
        l1 cos d theta1'' + l2 theta2'' = l1 sin d theta1'^2 - g sin theta2

    A rod carries `S_i = 2 l_i lam_i`: `S2 = -m2 (a2 + g e_y) . e2` on the lower mass, and
    `S1 = (S2 e2 - m1 (a1 + g e_y)) . e1` on the upper one.
    """

    length1: float = 0.5
    length2: float = 0.3
    mass1: float = 1.2
    mass2: float = 0.7
    gravity: float = 9.81
    turn: float = 1.5

    def start(self):
        return [0.9, -0.4, self.turn, -2.0]

    def rate(self, y):
        first, second, turn1, turn2 = y
        c, s = cos(first - second), sin(first - second)
        l1, l2, m2, m = self.length1, self.length2, self.mass2, self.mass1 + self.mass2
        matrix = np.array([[m * l1, m2 * l2 * c], [l1 * c, l2]])
        pull1 = -m2 * l2 * s * turn2**2 - m * self.gravity * sin(first)
        pull2 = l1 * s * turn1**2 - self.gravity * sin(second)
        return [turn1, turn2, *np.linalg.solve(matrix, [pull1, pull2])]

    def read(self, y):
        angles, turns = y[:2], y[2:]
        e1, e2 = (np.array([sin(x), -cos(x)]) for x in angles)
        n1, n2 = (np.array([cos(x), sin(x)]) for x in angles)
        l1, l2, up = self.length1, self.length2, np.array([0.0, self.gravity])
        _, _, spin1, spin2 = self.rate(y)
        q1, v1 = l1 * e1, l1 * turns[0] * n1
        q2, v2 = q1 + l2 * e2, v1 + l2 * turns[1] * n2
        a1 = l1 * (spin1 * n1 - turns[0] ** 2 * e1)
        a2 = a1 + l2 * (spin2 * n2 - turns[1] ** 2 * e2)
        lower = -self.mass2 * (a2 + up) @ e2
        upper = (lower * e2 - self.mass1 * (a1 + up)) @ e1
        lam = np.array([upper / (2 * l1), lower / (2 * l2)])
        return Solution(np.append(q1, q2), np.append(v1, v2), NONE, lam)


@dataclass(frozen=True)
class SliderCrank(Oracle):
    """One equation in the crank's angle: `A theta'' = Q - A' theta'^2 / 2 - V'`.

    With the rod's angle `psi`, `r sin theta + l sin psi = 0`, and the slider at `s`,

        psi' = k theta',    k = -r cos theta / (l cos psi),    dk = r sin theta / (l cos psi) + k^2 tan psi
        s' = c theta',      c = -r sin theta - l sin psi k,    dc = -r cos theta - l cos psi k^2 - l sin psi dk
        A = m1 r^2 / 3 + m2 (r^2 + l^2 k^2 / 3 + r l cos(psi - theta) k) + m3 c^2

    where `d` is the derivative by theta. The slider's balance gives `lam1 = m3 s''`, the moments
    about the rod's end on the crank give `lam2`.
    """  # noqa: E501

    crank_length: float = 1.0
    rod_length: float = 1.5
    crank_mass: float = 1.1
    rod_mass: float = 0.8
    slider_mass: float = 0.6
    gravity: float = 9.81
    crank: float = 0.7
    turn: float = 4.0

    def start(self):
        return [self.crank, self.turn]

    def rate(self, y):
        return [y[1], self.spin(y[0], y[1], 0.0, 0.0)]

    def ratios(self, theta: float) -> tuple[float, float, float, float, float]:
        """psi, k, dk, c, dc."""
        r, rod = self.crank_length, self.rod_length
        psi = -asin(r * sin(theta) / rod)
        k = -r * cos(theta) / (rod * cos(psi))
        dk = r * sin(theta) / (rod * cos(psi)) + k**2 * tan(psi)
        c = -r * sin(theta) - rod * sin(psi) * k
        dc = -r * cos(theta) - rod * cos(psi) * k**2 - rod * sin(psi) * dk
        return psi, k, dk, c, dc

    def spin(self, theta: float, turn: float, torque: float, inertia: float) -> float:
        """theta'', under a torque on the crank, which has a further moment of inertia."""
        r, rod, m1, m2, m3 = (
            self.crank_length, self.rod_length, self.crank_mass, self.rod_mass, self.slider_mass,
        )  # fmt: skip
        psi, k, dk, c, dc = self.ratios(theta)
        near, far = cos(psi - theta), sin(psi - theta)
        A = m1 * r**2 / 3 + m2 * (r**2 + rod**2 * k**2 / 3 + r * rod * near * k) + m3 * c**2
        dA = m2 * (2 * rod**2 * k * dk / 3 + r * rod * (near * dk - far * (k - 1) * k))
        dA += 2 * m3 * c * dc
        lift = r * cos(theta) * (m1 / 2 + m2) + m2 * rod / 2 * cos(psi) * k
        return (torque - dA * turn**2 / 2 - self.gravity * lift) / (A + inertia)

    def read(self, y):
        return self.at(y[0], y[1], self.spin(y[0], y[1], 0.0, 0.0))

    def at(self, theta: float, turn: float, spin: float) -> Solution:
        """Coordinates (theta, psi, s), their rates, and the forces at the slider's pin."""
        r, rod, m2 = self.crank_length, self.rod_length, self.rod_mass
        psi, k, dk, c, dc = self.ratios(theta)
        lam1 = self.slider_mass * (c * spin + dc * turn**2)
        swing = rod**2 * (k * spin + dk * turn**2) / 3
        carried = r * rod / 2 * (cos(psi - theta) * spin + sin(psi - theta) * turn**2)
        moment = m2 * (swing + carried + self.gravity * rod / 2 * cos(psi))
        lam2 = (rod * sin(psi) * lam1 - moment) / (rod * cos(psi))
        q = np.array([theta, psi, r * cos(theta) + rod * cos(psi)])
        return Solution(q, turn * np.array([1.0, k, c]), NONE, np.array([lam1, lam2]))


@dataclass(frozen=True)
class Motor(Oracle):
    """A motor with a gear on the crank of a slider-crank, the shaft at `n` times its angle `a`:

        (A + J_r n^2 + J_g) a'' = ... + n eta k i - b a',        L i' = e - R i - k n a'

    The shaft's balance, `J_r n a'' + lam / n = eta k i`, is the gear's multiplier. Beyond that of
    the gear, the multipliers are the slider-crank's.
    """

    resistance: float = 2.6
    inductance: float = 0.05
    motor_constant: float = 7.68e-3
    damping: float = 0.015
    voltage: float = 6.0
    gear_ratio: float = 70.0
    efficiency: float = 0.621
    rotor_inertia: float = 4.606e-7
    gear_inertia: float = 5.28e-5

    @property
    def load(self) -> SliderCrank:
        """The mechanism behind the gear."""
        return SliderCrank(0.1, 0.3, 0.05, 0.1, 0.1, crank=0.25 * pi, turn=4.0)

    def start(self):
        return [*self.load.start(), 0.0]

    def rate(self, y):
        angle, turn, current = y
        n = self.gear_ratio
        torque = n * self.efficiency * self.motor_constant * current - self.damping * turn
        inertia = self.rotor_inertia * n**2 + self.gear_inertia
        drop = self.resistance * current + self.motor_constant * n * turn
        spin = self.load.spin(angle, turn, torque, inertia)
        return [turn, spin, (self.voltage - drop) / self.inductance]

    def read(self, y):
        _, spin, _ = self.rate(y)
        load, n = self.load.at(y[0], y[1], spin), self.gear_ratio
        gear = n * (self.efficiency * self.motor_constant * y[2] - self.rotor_inertia * n * spin)
        q, v = np.append(n * y[0], load.q), np.append(n * y[1], load.v)
        return Solution(q, v, y[2:], np.append(gear, load.lam))


@dataclass(frozen=True)
class TwoLink(Oracle):
    """Tip at `(x0 - u t, L1 - L2)`: two equations of constraint say the motion, hand-written.

    The tip's velocity, `J_tip q' = (-u, 0)`, is integrated, and nothing else; accelerations follow
    from `J_tip q'' = -J_tip' q'`, for the tip does not accelerate. Multipliers balance
    `M q'' + h + g`, with `c = m2 L1 L2 / 2`:

        M = [[m1 L1^2 / 3 + m2 L1^2 + m2 L2^2 / 3 + 2 c cos q2, .], [m2 L2^2 / 3 + c cos q2, m2 L2^2 / 3]]
        h = c sin q2 (-2 q1' q2' - q2'^2, q1'^2)
    """  # noqa: E501

    mass1: float = 2.0
    mass2: float = 1.0
    gravity: float = 9.81
    target_speed: float = 0.6
    length1: float = 1.0
    length2: float = 0.5
    target_offset: float = 0.295953

    def start(self):
        """By the law of cosines, on the side where the elbow is that of a positive abscissa."""
        l1, l2, x = self.length1, self.length2, self.target_offset
        height = l1 - l2
        fold = 2 * asin(x / (2 * sqrt(l1 * l2)))
        away = atan2(l2 * sin(fold), l1 - l2 * cos(fold))
        assert abs(hypot(x, height) ** 2 - (l1**2 + l2**2 - 2 * l1 * l2 * cos(fold))) < 1e-12
        return [atan2(height, x) + away, pi + fold]

    def rate(self, y):
        return np.linalg.solve(self._jacobian(y), [-self.target_speed, 0.0]).tolist()

    def _jacobian(self, q):
        l1, l2, first, second = self.length1, self.length2, q[0], q[0] + q[1]
        x = [-l1 * sin(first) - l2 * sin(second), -l2 * sin(second)]
        return np.array([x, [l1 * cos(first) + l2 * cos(second), l2 * cos(second)]])

    def read(self, y):
        v = np.array(self.rate(y))
        l1, l2, m1, m2 = self.length1, self.length2, self.mass1, self.mass2
        first, second, turn1, turn2 = y[0], y[0] + y[1], v[0], v[0] + v[1]
        bend = -l1 * turn1**2 * np.array([cos(first), sin(first)])
        bend -= l2 * turn2**2 * np.array([cos(second), sin(second)])
        jac = self._jacobian(y)
        a = np.linalg.solve(jac, -bend)
        c, own = m2 * l1 * l2 / 2, m2 * l2**2 / 3
        across = own + c * cos(y[1])
        corner = m1 * l1**2 / 3 + m2 * l1**2 + own + 2 * c * cos(y[1])
        inertia = np.array([[corner, across], [across, own]])
        swing = c * sin(y[1]) * np.array([-2 * v[0] * v[1] - v[1] ** 2, v[0] ** 2])
        tip = m2 * l2 / 2 * cos(second)
        weight = self.gravity * np.array([(m1 / 2 + m2) * l1 * cos(first) + tip, tip])
        x, height = np.linalg.solve(jac.T, -(inertia @ a + swing + weight))
        return Solution(y, v, NONE, np.array([height, x]))


@dataclass(frozen=True)
class KnifeEdge(Oracle):
    """A blade on a slope runs where it heads: `u' = g sin(alpha) cos theta`, `theta'' = 0`.

    Across it, to the right, the acceleration is `-u theta'`: `lam = m (u theta' + g sin(alpha) sin theta)`.
    """  # noqa: E501

    mass: float = 1.4
    slope: float = 0.4
    turn_rate: float = 1.9
    speed: float = 0.7
    gravity: float = 9.81
    inertia: float = 0.3

    def start(self):
        return [0.0, 0.0, 0.0, self.speed]

    def rate(self, y):
        theta, along = y[2:]
        pull = self.gravity * sin(self.slope) * cos(theta)
        return [along * cos(theta), along * sin(theta), self.turn_rate, pull]

    def read(self, y):
        theta, along = y[2:]
        v = np.array([along * cos(theta), along * sin(theta), self.turn_rate])
        side = along * self.turn_rate + self.gravity * sin(self.slope) * sin(theta)
        return Solution(y[:3], v, NONE, np.array([self.mass * side]))
