"""Mechanisms whose constraints depend on each other only where they hold, and their exact motions.

Each has one degree of freedom. `curve(angle)` are its coordinates as closed functions of one angle,
derived apart from the constraints; the exact motion is the minimal-coordinate equation on that
curve, integrated by SciPy.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev
from scipy.integrate import solve_ivp
from scipy.spatial.transform import Rotation

import jaxdae

GRAVITY = 9.81
# Out of all axes.
TURN = Rotation.from_rotvec([0.3, -0.5, 0.8]).as_matrix()


class Platform(jaxdae.System):
    """A platform on three equal parallel cranks, the third in Cartesian coordinates.

    Coordinates `(x, y, angle)` of the platform, two crank angles, the tip of the third crank: seven
    constraints of rank six where they hold. The motion is a pendulum.
    """

    mass: float = 2.0
    length: float = 0.8

    def kinetic_energy(self, t, q, v):
        platform = self.mass * (v[0] ** 2 + v[1] ** 2) + 0.3 * v[2] ** 2
        return 0.5 * (platform + 0.05 * (v[3] ** 2 + v[4] ** 2) + 0.4 * (v[5] ** 2 + v[6] ** 2))

    def potential_energy(self, t, q):
        return GRAVITY * (self.mass * q[1] + 0.4 * q[6])

    def position_constraints(self, t, q):
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        ends = [q[:2] + x * jnp.stack([c, s]) for x in (-1.0, 0.0, 1.0)]
        first = jnp.stack([-1 + self.length * jnp.cos(q[3]), self.length * jnp.sin(q[3])])
        second = self.length * jnp.stack([jnp.cos(q[4]), jnp.sin(q[4])])
        rod = q[5:] - np.array([1.0, 0.0], q.dtype)
        closed = [ends[0] - first, ends[1] - second, ends[2] - q[5:]]
        return jnp.concatenate([*closed, (rod @ rod - self.length**2)[None]])

    def labels(self):
        names = "1x", "1y", "2x", "2y", "3x", "3y"
        return jaxdae.Labels(constraints=(*(f"pin {x}" for x in names), "crank 3"))

    def curve(self, angle):
        tip = self.length * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        shift = np.array([1.0, 0.0])
        return jnp.concatenate([tip, jnp.stack([0.0 * angle, angle, angle]), tip + shift])


class Table(jaxdae.System):
    """A plate on a crank and rods that hold it parallel: nothing symmetric, rows of any size.

    Coordinates `(x, y, angle)` of the centre of mass and the angle of the crank, which has a spring
    and a damper. Of three rods and a pin with two rows, three are independent where they hold.
    """

    rods: int = 2
    length: float = 0.7

    # pins on the plate about its centre of mass, turned out of the axes
    pins = ((-0.31, 0.17), (0.62, -0.23), (0.11, 0.49), (-0.4, -0.36))
    sizes = (1.0, 0.05, 8.0, 3.0, 0.3)

    def kinetic_energy(self, t, q, v):
        offset = 0.05 * jnp.cos(q[0]) * v[0] * v[3]
        plate = 1.7 * (v[0] ** 2 + v[1] ** 2) + 0.21 * v[2] ** 2
        return 0.5 * (plate + 0.13 * v[3] ** 2) + offset

    def potential_energy(self, t, q):
        stretch = q[0] - 0.4 * q[1] - 0.3
        return 1.7 * GRAVITY * q[1] + 4.0 * (q[3] - 0.3) ** 2 + 6.0 * stretch**2

    def dissipation(self, t, q, v):
        return 0.08 * v[3] ** 2

    def position_constraints(self, t, q):
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        turn = jnp.stack([jnp.stack([c, -s]), jnp.stack([s, c])])
        pins = np.array(self.pins, q.dtype)
        ends = [q[:2] + turn @ x for x in pins]
        tip = self.length * jnp.stack([jnp.cos(q[3]), jnp.sin(q[3])])
        pin = ends[0] - pins[0] - tip
        rods = [
            jnp.sum((x - p) ** 2) - self.length**2
            for x, p in zip(ends[1 : 1 + self.rods], pins[1:], strict=False)
        ]
        found = jnp.concatenate([pin, jnp.stack(rods)])
        return found * np.array(self.sizes[: found.size], found.dtype)

    def curve(self, angle):
        tip = self.length * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return jnp.concatenate([tip, jnp.stack([0.0 * angle, angle])])


class Bennett(jaxdae.System):
    """Bennett's linkage: four hinges in space, of which generic ones would not move at all.

    Coordinates: the two moving joints and the directions of their hinges, 12 in all. Links have
    lengths `a, b, a, b` and twists with `sin(alpha) / a = sin(beta) / b`; the frame is turned out
    of all axes. 14 constraints of rank 11.
    """

    a: float = 0.9
    alpha: float = 0.7
    beta: float = 1.3

    @property
    def b(self):
        return self.a * jnp.sin(self.beta) / jnp.sin(self.alpha)

    def frame(self):
        """Fixed joints and hinges: those of the link of length `b` between them."""
        turn = TURN.astype(jnp.asarray(self.a).dtype)
        place = jnp.stack([0.0 * self.b, self.b])
        joints = place[:, None] * turn[:, 0]
        hinge = jnp.cos(self.beta) * turn[:, 2] - jnp.sin(self.beta) * turn[:, 1]
        return joints, jnp.stack([turn[:, 2], hinge])

    def kinetic_energy(self, t, q, v):
        p, u = v[:6].reshape(2, 3), v[6:].reshape(2, 3)
        points = 1.2 * p[0] @ p[0] + 0.8 * p[1] @ p[1] + 0.5 * p[0] @ p[1]
        return 0.5 * (points + 0.11 * u[0] @ u[0] + 0.07 * u[1] @ u[1])

    def potential_energy(self, t, q):
        return GRAVITY * (1.4 * q[2] + 0.9 * q[5]) + 0.5 * q[6]

    def position_constraints(self, t, q):
        (o1, o4), (w1, w4) = self.frame()
        p2, p3, u2, u3 = q.reshape(4, 3)

        def link(p, u, r, w, length, twist):
            d = r - p
            rows = [d @ d - length**2, d @ u, d @ w, u @ w - jnp.cos(twist)]
            return jnp.stack(rows)

        units = jnp.stack([u2 @ u2 - 1, u3 @ u3 - 1])
        links = (
            link(o1, w1, p2, u2, self.a, self.alpha),
            link(p2, u2, p3, u3, self.b, self.beta),
            link(p3, u3, o4, w4, self.a, self.alpha),
        )
        return jnp.concatenate([units, *links])

    def curve(self, angle):
        """By the chains from both sides, with Bennett's relation of the angles of the cranks."""
        (o1, o4), (w1, w4) = self.frame()
        x = (o4 - o1) / self.b
        ratio = jnp.sin((self.beta + self.alpha) / 2) / jnp.sin((self.beta - self.alpha) / 2)
        other = -2 * jnp.arctan(ratio * jnp.tan(angle / 2))
        return jnp.concatenate(_cranks(self, (o1, w1, x, angle), (o4, w4, x, other)))


def _cranks(linkage, one, other):
    (p2, u2), (p3, u3) = _crank(linkage, *one), _crank(linkage, *other)
    return p2, p3, u2, u3


def _crank(linkage, origin, hinge, x, angle):
    """End and hinge of a crank that is turned by an angle from the link of the frame."""
    y = jnp.cross(hinge, x)
    arm = jnp.cos(angle) * x + jnp.sin(angle) * y
    far = jnp.cos(linkage.alpha) * hinge + jnp.sin(linkage.alpha) * jnp.cross(arm, hinge)
    return origin + linkage.a * arm, far


class Shape(NamedTuple):
    """What an angle makes of a mechanism: polynomials that are exact to round-off on an interval.

    Args:
        inertia: `m` in `T = m(s) s'^2 / 2`.
        potential: energy `V(s)`.
        damping: `D = damping s'^2`.
    """

    inertia: Chebyshev
    potential: Chebyshev
    damping: Chebyshev


def shape(system, low: float, high: float) -> Shape:
    """Energies of a mechanism on its curve."""
    at = jax.jit(jax.vmap(lambda s: _energies(system, s)))
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(160) + 0.5) / 160)
    values = at(jnp.asarray(nodes))
    return Shape(*(Chebyshev.fit(nodes, x, 120, [low, high]) for x in values))


def _energies(system, s):
    q, rate = jax.jvp(system.curve, (s,), (jnp.ones_like(s),))
    parts = system.kinetic_energy(0.0, q, rate), system.potential_energy(0.0, q)
    return 2 * parts[0], parts[1], system.dissipation(0.0, q, rate)


def exact_motion(system, angle: float, rate: float, ts, reach: float = 6.0) -> np.ndarray:
    """Coordinates by Lagrange's equation in the angle, `m s'' + m' s'^2 / 2 + V' + dD/ds' = 0`."""
    m, V, D = shape(system, angle - reach, angle + reach)
    m_slope, V_slope = m.deriv(), V.deriv()

    def field(_, y):
        s, s_dot = y
        pull = 0.5 * m_slope(s) * s_dot**2 + V_slope(s) + 2 * D(s) * s_dot
        return s_dot, -pull / m(s)

    start, end = [angle, rate], (0.0, ts[-1])
    found = solve_ivp(field, end, start, method="DOP853", rtol=1e-12, atol=1e-13, dense_output=True)
    assert np.abs(found.y[0] - angle).max() < reach
    angles = jnp.asarray(found.sol(ts)[0])  # pyright: ignore[reportOptionalCall]
    return np.asarray(jax.vmap(system.curve)(angles))


MECHANISMS = {"platform": Platform, "table": Table, "Bennett": Bennett}


def on_curve(system, angle, rate, off=0.0) -> jaxdae.State:
    """A state on the curve of a mechanism, moved off the constraints by `off`."""
    q, v = jax.jvp(system.curve, (jnp.asarray(angle),), (jnp.asarray(rate),))
    # In all directions, which have nothing to do with the mechanism.
    return jaxdae.State(q + off * jnp.cos(jnp.arange(1.0, q.size + 1) ** 2), v)
