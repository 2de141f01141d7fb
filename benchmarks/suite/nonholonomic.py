"""Mechanisms of the suite with constraints on velocities."""

from .mechanism import Mechanism
from .spatial import body_spin, cross, dot, euler_rates


class KnifeEdge(Mechanism):
    """A knife edge, or skate, on an inclined plane."""

    name, kinds = "knife-edge", ("planar", "nonholonomic")
    source = "textbook problem"
    values = {
        "mass": 1.0, "inertia": 0.3, "gravity": 9.81, "slope": 0.4, "speed": 0.7, "turn": 2.0,
    }  # fmt: skip
    by = ("inertia", "slope", "speed", "turn")
    coordinates, t1 = ("x", "y", "heading"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        return [zero, zero, zero + 0.5], [p.speed * m.cos(0.5), p.speed * m.sin(0.5), p.turn]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * (v[0] ** 2 + v[1] ** 2) + p.inertia / 2 * v[2] ** 2

    def potential_energy(self, m, t, q, p):
        return -p.mass * p.gravity * m.sin(p.slope) * q[0]

    def velocity_constraints(self, m, t, q, v, p):
        return [v[1] * m.cos(q[2]) - v[0] * m.sin(q[2])]


class Sleigh(Mechanism):
    """Chaplygin's sleigh: a body on a knife edge ahead of which its centre lies."""

    name, kinds = "sleigh", ("planar", "nonholonomic")
    source = "textbook problem"
    values = {"mass": 2.0, "inertia": 0.3, "offset": 0.3, "speed": 0.2, "turn": 3.0}
    by = ("inertia", "offset", "speed", "turn")
    coordinates, t1 = ("x", "y", "heading"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        return [zero, zero, zero], [p.speed, zero, p.turn]

    def kinetic_energy(self, m, t, q, v, p):
        x = v[0] - p.offset * m.sin(q[2]) * v[2]
        y = v[1] + p.offset * m.cos(q[2]) * v[2]
        return p.mass / 2 * (x**2 + y**2) + p.inertia / 2 * v[2] ** 2

    def velocity_constraints(self, m, t, q, v, p):
        return [v[1] * m.cos(q[2]) - v[0] * m.sin(q[2])]


class RollingDisk(Mechanism):
    """A thin disk that rolls on a horizontal plane without slip.

    Coordinates are the place of its centre above the plane, the heading, the angle from upright and
    the angle of rolling.
    """

    name, kinds = "rolling-disk", ("spatial", "nonholonomic", "rolling")
    source = "textbook problem"
    values = {
        "mass": 1.0, "radius": 0.4, "polar": 0.08, "gravity": 9.81,
        "lean": 0.3, "lean_rate": 0.2, "turn": 0.8, "spin": 8.0,
    }  # fmt: skip
    by = ("radius", "polar", "lean", "spin")
    coordinates, t1 = ("x", "y", "heading", "lean", "spin"), 1.5

    def start(self, m, p):
        zero = 0 * p.spin
        forward = p.radius * (p.spin - p.turn * m.sin(p.lean))
        aside = p.radius * p.lean_rate * m.cos(p.lean)
        return [zero, zero, zero, p.lean, zero], [forward, aside, p.turn, p.lean_rate, p.spin]

    def kinetic_energy(self, m, t, q, v, p):
        s, c = m.sin(q[3]), m.cos(q[3])
        centre = v[0] ** 2 + v[1] ** 2 + (p.radius * s * v[3]) ** 2
        across = v[3] ** 2 + (c * v[2]) ** 2
        along = (v[4] - s * v[2]) ** 2
        return p.mass / 2 * centre + p.polar / 4 * across + p.polar / 2 * along

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * p.radius * m.cos(q[3])

    def velocity_constraints(self, m, t, q, v, p):
        s, c = m.sin(q[2]), m.cos(q[2])
        return [
            v[0] * c + v[1] * s - p.radius * (v[4] - m.sin(q[3]) * v[2]),
            v[1] * c - v[0] * s - p.radius * m.cos(q[3]) * v[3],
        ]


class Trailer(Mechanism):
    """A car with one steered heading that draws a trailer; neither axle slips sideways."""

    name, kinds = "trailer", ("planar", "nonholonomic", "rolling")
    source = "textbook problem"
    values = {
        "mass": 1.5, "inertia": 0.2, "offset": 0.2, "hitch": 0.8, "trailer_mass": 0.7,
        "push": 1.0, "torque": 0.5, "angle": -0.5, "speed": 1.0, "turn": 0.4,
    }  # fmt: skip
    by = ("hitch", "torque", "angle", "speed")
    coordinates, t1 = ("x", "y", "heading", "trailer"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        rate = -p.speed * m.sin(p.angle) / p.hitch
        return [zero, zero, zero, p.angle], [p.speed, zero, p.turn, rate]

    def kinetic_energy(self, m, t, q, v, p):
        x = v[0] - p.offset * m.sin(q[2]) * v[2]
        y = v[1] + p.offset * m.cos(q[2]) * v[2]
        back_x = v[0] + p.hitch * m.sin(q[3]) * v[3]
        back_y = v[1] - p.hitch * m.cos(q[3]) * v[3]
        car = p.mass * (x**2 + y**2) + p.inertia * v[2] ** 2
        return (car + p.trailer_mass * (back_x**2 + back_y**2)) / 2

    def force(self, m, t, q, v, p):
        turning = p.torque * m.cos(2.0 * t)
        return [p.push * m.cos(q[2]), p.push * m.sin(q[2]), turning, 0.0]

    def velocity_constraints(self, m, t, q, v, p):
        car = v[1] * m.cos(q[2]) - v[0] * m.sin(q[2])
        return [car, v[1] * m.cos(q[3]) - v[0] * m.sin(q[3]) - p.hitch * v[3]]


class Bicycle(Mechanism):
    """A car as a bicycle: two wheels that do not slip, steered by a torque against a spring."""

    name, kinds = "bicycle", ("planar", "nonholonomic", "rolling")
    source = "textbook problem"
    values = {
        "mass": 2.0, "inertia": 0.4, "base": 0.9, "fork": 0.05, "spring": 1.0, "torque": 0.3,
        "steer": 0.2, "speed": 1.5,
    }  # fmt: skip
    by = ("base", "torque", "steer", "speed")
    coordinates, t1 = ("x", "y", "heading", "steering"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        turn = p.speed * m.sin(p.steer) / (p.base * m.cos(p.steer))
        return [zero, zero, zero, p.steer], [p.speed, zero, turn, zero]

    def kinetic_energy(self, m, t, q, v, p):
        x = v[0] - p.base / 2 * m.sin(q[2]) * v[2]
        y = v[1] + p.base / 2 * m.cos(q[2]) * v[2]
        fork = p.fork / 2 * (v[2] + v[3]) ** 2
        return p.mass / 2 * (x**2 + y**2) + p.inertia / 2 * v[2] ** 2 + fork

    def potential_energy(self, m, t, q, p):
        return p.spring / 2 * q[3] ** 2

    def force(self, m, t, q, v, p):
        return [0.0, 0.0, 0.0, p.torque * m.sin(3.0 * t)]

    def velocity_constraints(self, m, t, q, v, p):
        front = q[2] + q[3]
        across = v[1] * m.cos(front) - v[0] * m.sin(front)
        return [
            v[1] * m.cos(q[2]) - v[0] * m.sin(q[2]),
            across + p.base * v[2] * m.cos(q[3]),
        ]


class Snakeboard(Mechanism):
    """A snakeboard: two wheel sets, steered against each other, and a rotor, driven by torques."""

    name, kinds = "snakeboard", ("planar", "nonholonomic", "rolling")
    source = "A. Lewis, J. Ostrowski, R. Murray, J. Burdick, the snakeboard example, 1994"
    values = {
        "mass": 2.0, "inertia": 0.2, "rotor": 0.1, "wheels": 0.02, "half": 0.4,
        "twist": 0.4, "steer_torque": 0.05, "steer": 0.3, "speed": 0.5,
    }  # fmt: skip
    by = ("half", "twist", "steer", "speed")
    coordinates, t1 = ("x", "y", "heading", "rotor", "steering"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        turn = p.speed * m.sin(p.steer) / (p.half * m.cos(p.steer))
        return [zero, zero, zero, zero, p.steer], [p.speed, zero, turn, zero, zero]

    def kinetic_energy(self, m, t, q, v, p):
        board = p.mass * (v[0] ** 2 + v[1] ** 2) + p.inertia * v[2] ** 2
        wheels = p.wheels * ((v[2] + v[4]) ** 2 + (v[2] - v[4]) ** 2)
        return (board + p.rotor * (v[2] + v[3]) ** 2 + wheels) / 2

    def force(self, m, t, q, v, p):
        twist, steer = p.twist * m.sin(4.0 * t), -p.steer_torque * m.cos(4.0 * t)
        return [0.0, 0.0, 0.0, twist, steer - 0.2 * q[4]]

    def velocity_constraints(self, m, t, q, v, p):
        found = []
        for sign in (1, -1):
            wheel = q[2] + sign * q[4]
            across = v[1] * m.cos(wheel) - v[0] * m.sin(wheel)
            found.append(across + sign * p.half * v[2] * m.cos(q[4]))
        return found


class RollingBall(Mechanism):
    """A ball that rolls on an inclined turntable, in Euler parameters."""

    name, kinds = "ball-on-turntable", ("spatial", "nonholonomic", "rolling")
    source = "textbook problem"
    values = {
        "mass": 1.0, "radius": 0.2, "inertia": 0.016, "gravity": 9.81, "slope": 0.05,
        "table": 3.0, "place": 0.5, "speed": 0.4, "spin": 1.0,
    }  # fmt: skip
    by = ("radius", "table", "place", "speed")
    coordinates, t1 = ("x", "y", "e0", "e1", "e2", "e3"), 2.0

    def start(self, m, p):
        zero = 0 * p.speed
        e = [zero + 1, zero, zero, zero]
        spin = [p.table * p.place / p.radius, p.speed / p.radius, p.spin]
        return [p.place, zero, *e], [p.speed, zero, *euler_rates(e, spin)]

    def kinetic_energy(self, m, t, q, v, p):
        spin, norm = body_spin(q[2:], v[2:]), dot(q[2:], v[2:])
        turning = p.inertia / 2 * (dot(spin, spin) + 4 * norm**2)  # the last term is zero
        return p.mass / 2 * (v[0] ** 2 + v[1] ** 2) + turning

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * m.sin(p.slope) * q[1]

    def position_constraints(self, m, t, q, p):
        return [dot(q[2:], q[2:]) - 1]

    def velocity_constraints(self, m, t, q, v, p):
        e, rate = q[2:], v[2:]
        turned = cross(e[1:], rate[1:])
        x, y = (2 * (e[0] * rate[i] - rate[0] * e[i] + turned[i - 1]) for i in (1, 2))
        return [
            v[0] - p.radius * y + p.table * q[1],
            v[1] + p.radius * x - p.table * q[0],
        ]


class ConstantSpeed(Mechanism):
    """A point of constant speed in a field: a constraint that is not linear in velocities."""

    name, kinds = "constant-speed", ("spatial", "nonholonomic")
    source = "textbook problem; Chetaev's rule"
    values = {
        "mass": 1.0, "gravity": 3.0, "spring": 2.0, "speed": 1.5, "azimuth": 0.4, "rise": 0.9,
    }  # fmt: skip
    by = ("gravity", "spring", "azimuth", "rise")
    coordinates, t1 = ("x", "y", "z"), 2.0

    def start(self, m, p):
        across, up = p.speed * m.cos(p.rise), p.speed * m.sin(p.rise)
        zero = 0 * across
        v = [across * m.cos(p.azimuth), across * m.sin(p.azimuth), up]
        return [zero + 0.6, zero, zero], v

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * dot(v, v)

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * q[2] + p.spring / 2 * (q[0] ** 2 + 2 * q[1] ** 2)

    def velocity_constraints(self, m, t, q, v, p):
        return [dot(v, v) - p.speed**2]
