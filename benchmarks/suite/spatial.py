"""Spatial mechanisms of the suite with constraints on positions."""

from itertools import pairwise

from .mechanism import Mechanism
from .planar import apart, rod


def dot(a, b):
    """A scalar product."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def cross(a, b):
    """A vector product."""
    (a1, a2, a3), (b1, b2, b3) = a, b
    return a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1


def triples(q):
    """Points of three coordinates."""
    return [tuple(q[i : i + 3]) for i in range(0, len(q), 3)]


def body_spin(e, rate):
    """Angular velocity in the body's axes from Euler parameters and their rates [rad/s]."""
    turned = cross(e[1:], rate[1:])
    return [2 * (e[0] * rate[i] - rate[0] * e[i] - turned[i - 1]) for i in (1, 2, 3)]


def euler_rates(e, spin):
    """Rates of Euler parameters from an angular velocity in the body's axes [rad/s]."""
    turned = cross(e[1:], spin)
    first = -dot(e[1:], spin) / 2
    return [first, *((e[0] * spin[i] + turned[i]) / 2 for i in range(3))]


class SphericalPendulum(Mechanism):
    """A point on a massless rod on a ball joint."""

    name, kinds = "spherical-pendulum", ("spatial",)
    source = "textbook problem"
    values = {"mass": 1.0, "length": 1.2, "gravity": 9.81, "angle": 0.9, "rate": 0.4, "turn": 1.5}
    by = ("length", "angle", "rate", "turn")
    coordinates, t1 = ("x", "y", "z"), 2.0

    def start(self, m, p):
        s, c = p.length * m.sin(p.angle), p.length * m.cos(p.angle)
        return [s, 0 * s, -c], [c * p.rate, s * p.turn, s * p.rate]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * dot(v, v)

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * q[2]

    def position_constraints(self, m, t, q, p):
        return [apart(q, (0, 0, 0), p.length)]


class Cone(Mechanism):
    """A point on a cone that its apex attracts as a planet is attracted."""

    name, kinds = "cone-orbit", ("spatial",)
    source = "textbook problem"
    values = {
        "mass": 1.0,
        "slope": 0.8,
        "attraction": 4.0,
        "height": 1.0,
        "climb": 0.3,
        "turn": 1.6,
    }
    by = ("slope", "attraction", "height", "turn")
    coordinates, t1 = ("x", "y", "z"), 3.0

    def start(self, m, p):
        q = [p.slope * p.height, 0 * p.height, p.height]
        return q, [p.slope * p.climb, p.turn, p.climb]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * dot(v, v)

    def potential_energy(self, m, t, q, p):
        return -p.mass * p.attraction / m.sqrt(dot(q, q))

    def position_constraints(self, m, t, q, p):
        return [q[0] ** 2 + q[1] ** 2 - p.slope**2 * q[2] ** 2]


class Torus(Mechanism):
    """A heavy point on a torus."""

    name, kinds = "torus", ("spatial",)
    source = "textbook problem"
    values = {
        "mass": 0.7, "radius": 1.0, "tube": 0.4, "gravity": 9.81,
        "angle": 0.5, "rate": 1.0, "turn": 2.0,
    }  # fmt: skip
    by = ("tube", "angle", "rate", "turn")
    coordinates, t1 = ("x", "y", "z"), 1.5

    def start(self, m, p):
        s, c = p.tube * m.sin(p.angle), p.tube * m.cos(p.angle)
        return [p.radius + c, 0 * s, s], [-s * p.rate, (p.radius + c) * p.turn, c * p.rate]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * dot(v, v)

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * q[2]

    def position_constraints(self, m, t, q, p):
        return [(m.sqrt(q[0] ** 2 + q[1] ** 2) - p.radius) ** 2 + q[2] ** 2 - p.tube**2]


class Hoop(Mechanism):
    """A bead on a hoop that turns about its vertical diameter at a given rate."""

    name, kinds = "hoop", ("spatial", "driven")
    source = "textbook problem"
    values = {
        "mass": 1.0, "radius": 0.5, "gravity": 9.81, "turn": 5.0, "angle": 0.7, "rate": 1.0,
    }  # fmt: skip
    by = ("radius", "turn", "angle", "rate")
    coordinates, t1 = ("x", "y", "z"), 1.5

    def start(self, m, p):
        s, c = p.radius * m.sin(p.angle), p.radius * m.cos(p.angle)
        return [s, 0 * s, -c], [c * p.rate, s * p.turn, s * p.rate]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * dot(v, v)

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * q[2]

    def position_constraints(self, m, t, q, p):
        s, c = m.sin(p.turn * t), m.cos(p.turn * t)
        return [apart(q, (0, 0, 0), p.radius), c * q[1] - s * q[0]]


class HeavyTop(Mechanism):
    """An asymmetric heavy top on a point, in Euler parameters."""

    name, kinds = "heavy-top", ("spatial",)
    source = "textbook problem"
    values = {
        "moment1": 0.5, "moment2": 0.6, "moment3": 0.2, "weight": 5.0, "arm": 0.4,
        "angle": 0.6, "turn": 1.0, "spin": 12.0,
    }  # fmt: skip
    by = ("moment2", "angle", "spin")
    coordinates, t1 = ("e0", "e1", "e2", "e3"), 1.5

    def start(self, m, p):
        s, c = m.sin(p.angle / 2), m.cos(p.angle / 2)
        spin = [0 * s, p.turn * m.sin(p.angle), p.spin + p.turn * m.cos(p.angle)]
        e = [c, s, 0 * s, 0 * s]
        return e, euler_rates(e, spin)

    def kinetic_energy(self, m, t, q, v, p):
        a, b, c = body_spin(q, v)
        turning = (p.moment1 * a**2 + p.moment2 * b**2 + p.moment3 * c**2) / 2
        return turning + 2 * p.moment1 * dot(q, v) ** 2  # zero, and makes the mass matrix regular

    def potential_energy(self, m, t, q, p):
        return p.weight * p.arm * (q[0] ** 2 - q[1] ** 2 - q[2] ** 2 + q[3] ** 2)

    def position_constraints(self, m, t, q, p):
        return [dot(q, q) - 1]


class Bricard(Mechanism):
    """Bricard's linkage of six hinges at corners of a cube, movable although the count forbids it.

    Coordinates are the places of the four hinges that move and unit vectors along them.
    """

    name, kinds = "bricard", ("spatial", "closed loop", "redundant")
    source = "IFToMM library of benchmark problems, A04"
    values = {"mass": 1.0, "hinge": 0.05, "gravity": 9.81, "rate": 1.0}
    by = ("mass", "hinge", "rate")
    coordinates = (
        *(f"{x}{i}" for i in range(1, 5) for x in "xyz"),
        *(f"{x} of axis {i}" for i in range(1, 5) for x in "xyz"),
    )
    t1, free, kept = 0.8, (2,), tuple(i for i in range(24) if i != 19)

    def start(self, m, p):
        places = [1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1]
        axes = [0, 0, 1, 1, 0, 0, 0, -1, 0, 0, 0, 1]
        zero = 0 * p.rate
        return [zero + x for x in (*places, *axes)], [zero, zero, p.rate, *[zero] * 21]

    def kinetic_energy(self, m, t, q, v, p):
        still = (0.0, 0.0, 0.0)
        ends = [still, *triples(v[:12]), still]
        rods = sum(rod(p.mass, a, b) for a, b in pairwise(ends))
        return rods + p.hinge / 2 * dot(v[12:], v[12:])

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * (q[2] + q[5] + q[8] + q[11])

    def position_constraints(self, m, t, q, p):
        places = [(0.0, 0.0, 0.0), *triples(q[:12]), (0.0, 0.0, 1.0)]
        axes = [(0.0, -1.0, 0.0), *triples(q[12:]), (1.0, 0.0, 0.0)]
        found = []
        for i in range(5):
            along = [b - a for a, b in zip(places[i], places[i + 1], strict=True)]
            found += [dot(along, along) - 1, dot(along, axes[i]), dot(along, axes[i + 1])]
            found.append(dot(axes[i], axes[i + 1]))
        return [*found, *(dot(x, x) - 1 for x in axes[1:5])]


class SuspendedPlate(Mechanism):
    """A triangular plate, heavy at its corners, on three rods; coordinates are its corners."""

    name, kinds = "plate", ("spatial", "closed loop")
    source = "textbook problem"
    values = {"mass": 1.0, "extra": 0.5, "gravity": 9.81, "sway": 0.6, "side": -0.4, "turn": 0.3}
    by = ("extra", "sway", "turn")
    coordinates = tuple(f"{x}{i}" for i in range(1, 4) for x in "xyz")
    t1, free = 1.0, (0, 1, 4)

    # Multiples of 1/16, of which squares of distances are exact in any arithmetic.
    anchors = ((0.0, 0.0, 0.0), (1.0, 0.125, 0.0625), (0.3125, 0.875, -0.125))
    corners = ((0.25, -0.125, -0.75), (1.125, 0.3125, -0.875), (0.1875, 1.0, -0.6875))

    def start(self, m, p):
        zero = 0 * p.sway
        q = [zero + x for corner in self.corners for x in corner]
        return q, [p.sway, p.side, zero, zero, p.turn, *[zero] * 4]

    def kinetic_energy(self, m, t, q, v, p):
        one, two, three = triples(v)
        centre = [(a + b + c) / 3 for a, b, c in zip(one, two, three, strict=True)]
        corners = dot(one, one) + dot(two, two) + dot(three, three)
        # A uniform triangle: a twelfth of its mass in each corner, three quarters in the centre.
        plate = p.mass / 24 * corners + 3 * p.mass / 8 * dot(centre, centre)
        return plate + p.extra / 2 * dot(one, one)

    def potential_energy(self, m, t, q, p):
        return p.gravity * (p.mass / 3 * (q[2] + q[5] + q[8]) + p.extra * q[2])

    def _squares(self, corners):
        a, b, c = corners
        pairs = [(a, b), (b, c), (c, a), *zip(corners, self.anchors, strict=True)]
        return [apart(x, y, 0) for x, y in pairs]

    def position_constraints(self, m, t, q, p):
        now, begun = self._squares(triples(q)), self._squares(self.corners)
        return [x - y for x, y in zip(now, begun, strict=True)]


class Governor(Mechanism):
    """Watt's governor: two balls on a rhombus of rods, and a stiff spring with a damper."""

    name, kinds = "governor", ("spatial", "closed loop", "stiff")
    source = "after the IFToMM library of benchmark problems, A05"
    values = {
        "rod": 0.5, "ball": 5.0, "sleeve": 3.0, "shaft": 0.2, "gravity": 9.81,
        "stiffness": 8e5, "damping": 4e4, "relaxed": 0.52, "angle": 1.0, "turn": 6.0,
    }  # fmt: skip
    by = ("ball", "angle", "turn")
    coordinates, t1 = ("turn", "radius", "depth", "sleeve"), 0.5

    def start(self, m, p):
        s, c = p.rod * m.sin(p.angle), p.rod * m.cos(p.angle)
        zero = 0 * s
        return [zero, s, c, 2 * c], [p.turn, zero, zero, zero]

    def kinetic_energy(self, m, t, q, v, p):
        balls = p.ball * (v[1] ** 2 + v[2] ** 2 + (q[1] * v[0]) ** 2)
        return balls + p.shaft / 2 * v[0] ** 2 + p.sleeve / 2 * v[3] ** 2

    def potential_energy(self, m, t, q, p):
        weight = p.gravity * (2 * p.ball * q[2] + p.sleeve * q[3])
        return p.stiffness / 2 * (q[3] - p.relaxed) ** 2 - weight

    def force(self, m, t, q, v, p):
        return [0.0, 0.0, 0.0, -p.damping * v[3]]

    def position_constraints(self, m, t, q, p):
        return [q[1] ** 2 + q[2] ** 2 - p.rod**2, q[1] ** 2 + (q[3] - q[2]) ** 2 - p.rod**2]
