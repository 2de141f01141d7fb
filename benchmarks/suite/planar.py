"""Planar mechanisms of the suite with constraints on positions."""

from .mechanism import Mechanism


def rod(mass, one, two):
    """Kinetic energy of a uniform rod from the velocities of its ends."""
    pairs = zip((*one, *one, *two), (*one, *two, *two), strict=True)
    return mass / 6 * sum(a * b for a, b in pairs)


def apart(one, two, length):
    """Square of a distance, less that of a length."""
    return sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) - length**2


def points(q):
    """Pairs of coordinates."""
    return [(q[i], q[i + 1]) for i in range(0, len(q), 2)]


class Pendulum(Mechanism):
    """A point on a massless rod, in Cartesian coordinates."""

    name, kinds = "pendulum", ("planar",)
    source = "textbook problem"
    values = {"mass": 1.5, "length": 1.0, "gravity": 9.81, "angle": 1.2, "rate": 0.5}
    by = ("length", "gravity", "angle", "rate")
    coordinates, t1 = ("x", "y"), 2.0

    def start(self, m, p):
        s, c = m.sin(p.angle), m.cos(p.angle)
        return [p.length * s, -p.length * c], [p.length * p.rate * c, p.length * p.rate * s]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * (v[0] ** 2 + v[1] ** 2)

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * q[1]

    def position_constraints(self, m, t, q, p):
        return [apart(q, (0, 0), p.length)]


class DoublePendulum(Mechanism):
    """Two points on massless rods, in Cartesian coordinates."""

    name, kinds = "double-pendulum", ("planar",)
    source = "textbook problem"
    values = {
        "mass1": 1.0, "mass2": 0.5, "length1": 1.0, "length2": 0.8, "gravity": 9.81,
        "angle1": 1.0, "angle2": 0.3, "rate1": 0.0, "rate2": 1.0,
    }  # fmt: skip
    by = ("mass2", "length2", "angle1", "rate2")
    coordinates, t1 = ("x1", "y1", "x2", "y2"), 1.5

    def start(self, m, p):
        s, c = p.length1 * m.sin(p.angle1), p.length1 * m.cos(p.angle1)
        s2, c2 = p.length2 * m.sin(p.angle2), p.length2 * m.cos(p.angle2)
        vx, vy = p.rate1 * c, p.rate1 * s
        return [s, -c, s + s2, -c - c2], [vx, vy, vx + p.rate2 * c2, vy + p.rate2 * s2]

    def kinetic_energy(self, m, t, q, v, p):
        return (p.mass1 * (v[0] ** 2 + v[1] ** 2) + p.mass2 * (v[2] ** 2 + v[3] ** 2)) / 2

    def potential_energy(self, m, t, q, p):
        return p.gravity * (p.mass1 * q[1] + p.mass2 * q[3])

    def position_constraints(self, m, t, q, p):
        one, two = points(q)
        return [apart(one, (0, 0), p.length1), apart(two, one, p.length2)]


class Chain(Mechanism):
    """Five points on massless rods, in Cartesian coordinates, from a straight line at rest."""

    name, kinds = "chain", ("planar",)
    source = "textbook problem"
    values = {"mass": 0.2, "last": 0.3, "length": 0.2, "gravity": 9.81, "angle": 1.3}
    by = ("last", "length", "angle")
    coordinates, t1 = tuple(f"{x}{i}" for i in range(1, 6) for x in "xy"), 1.0

    def start(self, m, p):
        s, c = p.length * m.sin(p.angle), -p.length * m.cos(p.angle)
        return [x for i in range(1, 6) for x in (i * s, i * c)], [0 * s] * 10

    def kinetic_energy(self, m, t, q, v, p):
        squares = [vx**2 + vy**2 for vx, vy in points(v)]
        return (p.mass * sum(squares[:-1]) + p.last * squares[-1]) / 2

    def potential_energy(self, m, t, q, p):
        heights = [y for _, y in points(q)]
        return p.gravity * (p.mass * sum(heights[:-1]) + p.last * heights[-1])

    def position_constraints(self, m, t, q, p):
        places = points(q)
        return [apart(a, b, p.length) for a, b in zip(places, [(0, 0), *places[:-1]], strict=True)]


class SliderCrank(Mechanism):
    """Crank and rod, both uniform, and a slider on a horizontal line through the crank's axis."""

    name, kinds = "slider-crank", ("planar", "closed loop", "massless coordinate")
    source = "textbook problem"
    values = {
        "crank": 0.3, "rod": 0.8, "crank_mass": 1.0, "rod_mass": 0.7, "slider_mass": 0.5,
        "gravity": 9.81, "angle": 0.6, "rate": 6.0,
    }  # fmt: skip
    by = ("crank", "slider_mass", "angle", "rate")
    coordinates, t1, free = ("crank", "rod", "slider"), 1.0, (0,)

    def start(self, m, p):
        return [p.angle, -0.2, 1.0], [p.rate, 0.0, 0.0]

    def kinetic_energy(self, m, t, q, v, p):
        s, c = p.crank * m.sin(q[0]), p.crank * m.cos(q[0])
        joint = (-s * v[0], c * v[0])
        return (
            p.crank_mass * (p.crank * v[0]) ** 2 / 6
            + rod(p.rod_mass, joint, (v[2], 0.0))
            + p.slider_mass * v[2] ** 2 / 2
        )

    def potential_energy(self, m, t, q, p):
        return p.gravity * (p.crank_mass + p.rod_mass) * p.crank * m.sin(q[0]) / 2

    def position_constraints(self, m, t, q, p):
        return [
            p.crank * m.cos(q[0]) + p.rod * m.cos(q[1]) - q[2],
            p.crank * m.sin(q[0]) + p.rod * m.sin(q[1]),
        ]


class FourBar(Mechanism):
    """A four-bar linkage whose crank turns fully, uniform bars, a torque on the crank."""

    name, kinds = "four-bar", ("planar", "closed loop", "massless coordinate")
    source = "textbook problem"
    values = {
        "crank": 0.3, "coupler": 0.9, "rocker": 0.7, "base": 1.0, "density": 2.0,
        "gravity": 9.81, "torque": 0.5, "angle": 0.4, "rate": 5.0,
    }  # fmt: skip
    by = ("rocker", "torque", "rate")
    coordinates, t1, free = ("crank", "coupler", "rocker"), 0.8, (0,)

    def start(self, m, p):
        return [p.angle, 0.6, 1.9], [p.rate, 0.0, 0.0]

    def kinetic_energy(self, m, t, q, v, p):
        ends = [
            (-length * m.sin(x) * rate, length * m.cos(x) * rate)
            for length, x, rate in ((p.crank, q[0], v[0]), (p.rocker, q[2], v[2]))
        ]
        still = (0.0, 0.0)
        return (
            rod(p.density * p.crank, still, ends[0])
            + rod(p.density * p.coupler, *ends)
            + rod(p.density * p.rocker, still, ends[1])
        )

    def potential_energy(self, m, t, q, p):
        one, two = p.crank * m.sin(q[0]), p.rocker * m.sin(q[2])
        weights = (p.crank + p.coupler) * one + (p.rocker + p.coupler) * two
        return p.density * p.gravity * weights / 2

    def force(self, m, t, q, v, p):
        return [p.torque, 0.0, 0.0]

    def position_constraints(self, m, t, q, p):
        return [
            p.crank * m.cos(q[0]) + p.coupler * m.cos(q[1]) - p.base - p.rocker * m.cos(q[2]),
            p.crank * m.sin(q[0]) + p.coupler * m.sin(q[1]) - p.rocker * m.sin(q[2]),
        ]


class Andrews(Mechanism):
    """Andrews' squeezing mechanism: seven bodies, three loops, a motor of constant torque."""

    name, kinds = "andrews", ("planar", "closed loop", "stiff")
    source = "test set for initial value problems, problem Andrews' squeezing mechanism"
    values = {
        "torque": 0.033, "stiffness": 4530.0, "relaxed": 0.07785, "crank": 0.007, "coupler": 0.028,
    }  # fmt: skip
    by = ("torque", "stiffness")
    coordinates = ("beta", "Theta", "gamma", "Phi", "delta", "Omega", "epsilon")
    t1, free = 0.03, (1,)

    def start(self, m, p):
        q = [
            -0.0617138900142764, 0.0, 0.45527981916307, 0.222668390165886, 0.487364979543843,
            -0.222668390165886, 1.2305474445498212,
        ]  # fmt: skip
        return q, [0.0] * 7

    def kinetic_energy(self, m, t, q, v, p):
        beta, theta, gamma, phi, delta, omega, epsilon = zip(q, v, strict=True)
        second, fourth, sixth = (
            (a[0] + b[0], a[1] + b[1]) for a, b in ((beta, theta), (phi, delta), (omega, epsilon))
        )
        # Mass [kg], inertia [kg m^2], angle, and the centre as a sum of (along, across) to angles.
        bodies = [
            (0.04325, 2.194e-6, beta, [(0.00092, 0.0, beta)]),
            (0.00365, 4.410e-7, second, [(p.crank, 0.0, beta), (-0.0115, 0.0, second)]),
            (0.02373, 5.255e-6, gamma, [(0.01043, -0.01874, gamma)]),
            (0.00706, 5.667e-7, fourth, [(0.04, 0.0, delta), (0.0, 0.01421 - 0.02, fourth)]),
            (0.07050, 1.169e-5, delta, [(0.02308, 0.00916, delta)]),
            (0.00706, 5.667e-7, sixth, [(0.0, -0.04, epsilon), (0.02 - 0.01421, 0.0, sixth)]),
            (0.05498, 1.912e-5, epsilon, [(-0.00449, -0.01228, epsilon)]),
        ]
        total = 0.0
        for mass, inertia, (_, spin), parts in bodies:
            vx = sum(-(a * m.sin(x) + b * m.cos(x)) * rate for a, b, (x, rate) in parts)
            vy = sum((a * m.cos(x) - b * m.sin(x)) * rate for a, b, (x, rate) in parts)
            total = total + mass / 2 * (vx**2 + vy**2) + inertia / 2 * spin**2
        return total

    def potential_energy(self, m, t, q, p):
        s, c = m.sin(q[2]), m.cos(q[2])
        x = -0.03635 + 0.018 * s + 0.02 * c - 0.014
        y = 0.03273 - 0.018 * c + 0.02 * s - 0.072
        return p.stiffness / 2 * (m.sqrt(x**2 + y**2) - p.relaxed) ** 2

    def force(self, m, t, q, v, p):
        return [p.torque, *[0.0] * 6]

    def position_constraints(self, m, t, q, p):
        beta, theta, gamma, phi, delta, omega, epsilon = q
        s, c = m.sin, m.cos
        x = p.crank * c(beta) - p.coupler * c(beta + theta)
        y = p.crank * s(beta) - p.coupler * s(beta + theta)
        x2, y2 = x + 0.06934, y + 0.00227
        return [
            x + 0.03635 - 0.035 * s(gamma),
            y - 0.03273 + 0.035 * c(gamma),
            x2 - 0.04 * c(delta) - 0.02 * s(phi + delta),
            y2 - 0.04 * s(delta) + 0.02 * c(phi + delta),
            x2 - 0.04 * s(epsilon) - 0.02 * c(omega + epsilon),
            y2 + 0.04 * c(epsilon) - 0.02 * s(omega + epsilon),
        ]


class TwoLink(Mechanism):
    """A two-link arm of uniform links whose tip slides on a circle."""

    name, kinds = "two-link", ("planar", "closed loop")
    source = "textbook problem"
    values = {
        "length1": 1.0, "length2": 0.8, "mass1": 2.0, "mass2": 1.0, "gravity": 9.81,
        "centre": 1.2, "radius": 0.5, "angle": 0.9, "rate": -1.0,
    }  # fmt: skip
    by = ("length2", "radius", "rate")
    coordinates, t1, free = ("shoulder", "forearm"), 1.0, (0,)

    def start(self, m, p):
        return [p.angle, -0.6], [p.rate, 0.0]

    def kinetic_energy(self, m, t, q, v, p):
        elbow = (-p.length1 * m.sin(q[0]) * v[0], p.length1 * m.cos(q[0]) * v[0])
        along = (-p.length2 * m.sin(q[1]) * v[1], p.length2 * m.cos(q[1]) * v[1])
        tip = (elbow[0] + along[0], elbow[1] + along[1])
        return rod(p.mass1, (0.0, 0.0), elbow) + rod(p.mass2, elbow, tip)

    def potential_energy(self, m, t, q, p):
        elbow = p.length1 * m.sin(q[0])
        return p.gravity * (p.mass1 * elbow / 2 + p.mass2 * (elbow + p.length2 * m.sin(q[1]) / 2))

    def position_constraints(self, m, t, q, p):
        x = p.length1 * m.cos(q[0]) + p.length2 * m.cos(q[1])
        y = p.length1 * m.sin(q[0]) + p.length2 * m.sin(q[1])
        return [apart((x, y), (p.centre, 0), p.radius)]


class FiveBar(Mechanism):
    """A five-bar linkage whose closing equations are three: the third is a sum of the others."""

    name, kinds = "five-bar", ("planar", "closed loop", "redundant")
    source = "textbook problem"
    values = {
        "crank": 0.5, "coupler": 0.8, "base": 0.6, "density": 1.5, "gravity": 9.81,
        "left": 2.0, "right": 0.9, "left_rate": 1.0, "right_rate": -0.5,
    }  # fmt: skip
    by = ("crank", "left", "right_rate")
    coordinates, t1 = ("left crank", "left coupler", "right crank", "right coupler"), 0.5
    free, kept = (0, 2), (0, 1)

    def start(self, m, p):
        return [p.left, 0.6, p.right, 2.3], [p.left_rate, 0.0, p.right_rate, 0.0]

    def kinetic_energy(self, m, t, q, v, p):
        total = 0.0
        for i in (0, 2):
            end = (-p.crank * m.sin(q[i]) * v[i], p.crank * m.cos(q[i]) * v[i])
            x = -p.coupler * m.sin(q[i + 1]) * v[i + 1]
            y = p.coupler * m.cos(q[i + 1]) * v[i + 1]
            total = total + rod(p.density * p.crank, (0.0, 0.0), end)
            total = total + rod(p.density * p.coupler, end, (end[0] + x, end[1] + y))
        return total

    def potential_energy(self, m, t, q, p):
        total = 0.0
        for i in (0, 2):
            end, along = p.crank * m.sin(q[i]), p.coupler * m.sin(q[i + 1])
            total = total + p.crank * end / 2 + p.coupler * (end + along / 2)
        return p.density * p.gravity * total

    def position_constraints(self, m, t, q, p):
        a, b, c, d = q
        x = p.crank * (m.cos(a) - m.cos(c)) + p.coupler * (m.cos(b) - m.cos(d)) - p.base
        y = p.crank * (m.sin(a) - m.sin(c)) + p.coupler * (m.sin(b) - m.sin(d))
        return [x, y, 0.6 * x + 0.8 * y]


class Parallelogram(Mechanism):
    """A rigid coupler on three equal parallel cranks: one freedom, one equation too many."""

    name, kinds = "parallelogram", ("planar", "closed loop", "redundant")
    source = "textbook problem"
    values = {
        "crank": 0.5, "pitch": 0.4, "crank_mass": 0.6, "coupler_mass": 2.0, "gravity": 9.81,
        "angle": -1.0, "rate": 2.0,
    }  # fmt: skip
    by = ("crank", "pitch", "coupler_mass", "rate")
    coordinates = ("crank 1", "crank 2", "crank 3", "x", "y", "tilt")
    t1, kept = 1.2, (0, 1, 2, 3, 4)

    def start(self, m, p):
        s, c = p.crank * m.sin(p.angle), p.crank * m.cos(p.angle)
        q = [p.angle, p.angle, p.angle, p.pitch + c, s, 0 * s]
        return q, [p.rate, p.rate, p.rate, -s * p.rate, c * p.rate, 0 * s]

    def kinetic_energy(self, m, t, q, v, p):
        cranks = p.crank_mass * p.crank**2 / 6 * (v[0] ** 2 + v[1] ** 2 + v[2] ** 2)
        tilting = p.coupler_mass * (2 * p.pitch) ** 2 / 24 * v[5] ** 2
        return cranks + p.coupler_mass / 2 * (v[3] ** 2 + v[4] ** 2) + tilting

    def potential_energy(self, m, t, q, p):
        cranks = p.crank_mass * p.crank / 2 * (m.sin(q[0]) + m.sin(q[1]) + m.sin(q[2]))
        return p.gravity * (cranks + p.coupler_mass * q[4])

    def position_constraints(self, m, t, q, p):
        found = []
        for i in range(3):
            along = (i - 1) * p.pitch
            found.append(i * p.pitch + p.crank * m.cos(q[i]) - q[3] - along * m.cos(q[5]))
            found.append(p.crank * m.sin(q[i]) - q[4] - along * m.sin(q[5]))
        return found


class Leg(Mechanism):
    """Jansen's leg: a crank, eleven rods between points, masses in the points."""

    name, kinds = "leg", ("planar", "closed loop")
    source = "T. Jansen, The Great Pretender, 2007: lengths in decimetres"
    values = {
        "crank": 0.15, "shank": 0.49, "mass": 0.2, "gravity": 9.81, "torque": 0.6,
        "angle": 0.3, "rate": 4.0,
    }  # fmt: skip
    by = ("crank", "torque", "rate")
    coordinates = ("angle", *(f"{x}{i}" for i in range(1, 6) for x in "xy"))
    t1, free = 0.4, (0,)

    def start(self, m, p):
        guess = [-0.2, 0.42, -0.15, -0.39, -0.78, 0.03, -0.5, -0.36, -0.35, -0.84]
        return [p.angle, *guess], [p.rate, *[0.0] * 10]

    def kinetic_energy(self, m, t, q, v, p):
        end = p.mass / 2 * (p.crank * v[0]) ** 2
        return end + p.mass / 2 * sum(x**2 + y**2 for x, y in points(v[1:]))

    def potential_energy(self, m, t, q, p):
        return p.mass * p.gravity * (p.crank * m.sin(q[0]) + sum(y for _, y in points(q[1:])))

    def force(self, m, t, q, v, p):
        return [p.torque, *[0.0] * 10]

    def position_constraints(self, m, t, q, p):
        end = (p.crank * m.cos(q[0]), p.crank * m.sin(q[0]))
        fixed = (-0.38, -0.078)
        upper, lower, back, knee, foot = points(q[1:])
        return [
            apart(end, upper, 0.50),
            apart(fixed, upper, 0.415),
            apart(end, lower, 0.619),
            apart(fixed, lower, 0.393),
            apart(upper, back, 0.558),
            apart(fixed, back, 0.401),
            apart(back, knee, 0.394),
            apart(lower, knee, 0.367),
            apart(knee, foot, 0.657),
            apart(lower, foot, p.shank),
        ]


class Platform(Mechanism):
    """A plate on three legs of two links each, cranks with inertia and light forearms."""

    name, kinds = "platform", ("planar", "closed loop")
    source = "C. Gosselin, J. Angeles, design of a planar parallel manipulator, 1988"
    values = {
        "crank": 0.5, "forearm": 0.6, "side": 0.25, "mass": 1.0, "inertia": 0.02,
        "crank_inertia": 0.05, "torque": 0.4, "x": 0.05, "tilt": 0.1, "spin": 1.0,
    }  # fmt: skip
    by = ("forearm", "mass", "spin")
    coordinates = ("x", "y", "tilt", "crank 1", "crank 2", "crank 3")
    t1, free = 1.0, (0, 1, 2)

    def start(self, m, p):
        return [p.x, 0.02, p.tilt, 1.2, 3.3, 5.4], [0.1, 0.0, p.spin, 0.0, 0.0, 0.0]

    def kinetic_energy(self, m, t, q, v, p):
        plate = (p.mass * (v[0] ** 2 + v[1] ** 2) + p.inertia * v[2] ** 2) / 2
        return plate + p.crank_inertia / 2 * (v[3] ** 2 + v[4] ** 2 + v[5] ** 2)

    def potential_energy(self, m, t, q, p):
        return 2.0 * (q[0] ** 2 + q[1] ** 2)

    def force(self, m, t, q, v, p):
        return [0.0, 0.0, 0.0, p.torque * m.cos(3.0 * t), 0.0, -p.torque]

    def position_constraints(self, m, t, q, p):
        found = []
        for base, corner, crank in (
            ((-0.7, -0.4), -2.6, q[3]), ((0.7, -0.4), -0.5, q[4]), ((0.0, 0.8), 1.57, q[5]),
        ):  # fmt: skip
            end = (base[0] + p.crank * m.cos(crank), base[1] + p.crank * m.sin(crank))
            x, y = q[0] + p.side * m.cos(q[2] + corner), q[1] + p.side * m.sin(q[2] + corner)
            found.append(apart(end, (x, y), p.forearm))
        return found


class FoldedFourBars(Mechanism):
    """Two coupled four-bars of equal bars, which fold into a line where constraints lose rank."""

    name, kinds = "folded-four-bars", ("planar", "closed loop", "singular position")
    source = "IFToMM library of benchmark problems, A02"
    values = {"length": 1.0, "density": 1.0, "gravity": 9.81, "angle": 1.0, "rate": -1.0}
    by = ("density", "gravity", "angle", "rate")
    coordinates, t1 = tuple(f"{x}{i}" for i in range(3) for x in "xy"), 0.8

    def start(self, m, p):
        s, c = p.length * m.sin(p.angle), p.length * m.cos(p.angle)
        q = [x for i in range(3) for x in (i * p.length + c, s)]
        return q, [-s * p.rate, c * p.rate] * 3

    def kinetic_energy(self, m, t, q, v, p):
        ends, mass = points(v), p.density * p.length
        cranks = sum(rod(mass, (0.0, 0.0), x) for x in ends)
        return cranks + rod(mass, ends[0], ends[1]) + rod(mass, ends[1], ends[2])

    def potential_energy(self, m, t, q, p):
        return p.gravity * p.density * p.length * (q[1] + 1.5 * q[3] + q[5])

    def position_constraints(self, m, t, q, p):
        ends = points(q)
        cranks = [apart(x, (i * p.length, 0), p.length) for i, x in enumerate(ends)]
        return [*cranks, apart(ends[1], ends[0], p.length), apart(ends[2], ends[1], p.length)]


class CarAxis(Mechanism):
    """A car's axle on two springs, one of which runs over a bumpy road."""

    name, kinds = "car-axis", ("planar", "driven")
    source = "test set for initial value problems, problem car axis"
    values = {"epsilon": 1e-2, "mass": 10.0, "length": 1.0, "relaxed": 0.5, "bump": 0.1}
    by = ("mass", "relaxed", "bump")
    coordinates, t1 = ("xl", "yl", "xr", "yr"), 1.0

    def start(self, m, p):
        one = p.length / p.length
        return [0 * one, one / 2, one, one / 2], [-one / 2, 0 * one, -one / 2, 0 * one]

    def _inertia(self, p):
        return p.mass * p.epsilon**2 / 2

    def _road(self, m, t, p):
        y = p.bump * m.sin(10.0 * t)
        return m.sqrt(p.length**2 - y**2), y

    def kinetic_energy(self, m, t, q, v, p):
        return self._inertia(p) / 2 * (v[0] ** 2 + v[1] ** 2 + v[2] ** 2 + v[3] ** 2)

    def potential_energy(self, m, t, q, p):
        x, y = self._road(m, t, p)
        left = m.sqrt(q[0] ** 2 + q[1] ** 2) - p.relaxed
        right = m.sqrt((q[2] - x) ** 2 + (q[3] - y) ** 2) - p.relaxed
        return (left**2 + right**2) / 2 + self._inertia(p) * (q[1] + q[3])

    def position_constraints(self, m, t, q, p):
        x, y = self._road(m, t, p)
        return [x * q[0] + y * q[1], apart(q[:2], q[2:], p.length)]


class ElasticPendulum(Mechanism):
    """A point on a rigid rod, and a second one on a stiff spring with a damper."""

    name, kinds = "elastic-pendulum", ("planar", "stiff")
    source = "textbook problem"
    values = {
        "mass": 1.0, "length": 1.0, "gravity": 9.81, "stiffness": 1e6, "damping": 2e3,
        "angle": 1.0, "rate": 0.5,
    }  # fmt: skip
    by = ("length", "stiffness", "angle", "rate")
    coordinates, t1 = ("x1", "y1", "x2", "y2"), 0.5

    def start(self, m, p):
        s, c = p.length * m.sin(p.angle), p.length * m.cos(p.angle)
        v = [p.rate * c, p.rate * s]
        return [s, -c, 2 * s, -2 * c], [*v, 2 * v[0], 2 * v[1]]

    def kinetic_energy(self, m, t, q, v, p):
        return p.mass / 2 * (v[0] ** 2 + v[1] ** 2 + v[2] ** 2 + v[3] ** 2)

    def _between(self, m, q):
        x, y = q[2] - q[0], q[3] - q[1]
        return x, y, m.sqrt(x**2 + y**2)

    def potential_energy(self, m, t, q, p):
        stretch = self._between(m, q)[2] - p.length
        return p.mass * p.gravity * (q[1] + q[3]) + p.stiffness / 2 * stretch**2

    def force(self, m, t, q, v, p):
        x, y, d = self._between(m, q)
        pull = p.damping * (x * (v[2] - v[0]) + y * (v[3] - v[1])) / d**2
        return [pull * x, pull * y, -pull * x, -pull * y]

    def position_constraints(self, m, t, q, p):
        return [apart(q[:2], (0, 0), p.length)]


class PendulumStop(Mechanism):
    """A pendulum in Cartesian coordinates that hits a vertical wall."""

    name, kinds = "pendulum-stop", ("planar", "impacts")
    source = "textbook problem"
    values = {**Pendulum.values, "wall": -0.3, "angle": 1.0}
    by = ("length", "wall", "angle", "rate")
    coordinates, t1, restitution, events = ("x", "y"), 2.4, 0.7, 2

    start = Pendulum.start
    kinetic_energy = Pendulum.kinetic_energy
    potential_energy = Pendulum.potential_energy
    position_constraints = Pendulum.position_constraints

    def gap(self, m, q, p):
        return q[0] - p.wall


class Dumbbell(Mechanism):
    """Two points on a massless rod, thrown; its first point bounces on the floor."""

    name, kinds = "dumbbell", ("planar", "impacts")
    source = "textbook problem"
    values = {
        "mass1": 1.0, "mass2": 0.6, "length": 0.5, "gravity": 9.81,
        "height": 0.8, "tilt": 1.3, "spin": 0.8, "speed": 0.5,
    }  # fmt: skip
    by = ("mass2", "length", "height", "spin")
    coordinates, t1, restitution, events = ("x1", "y1", "x2", "y2"), 1.0, 0.6, 2

    def start(self, m, p):
        s, c = p.length * m.sin(p.tilt), p.length * m.cos(p.tilt)
        q = [0 * s, p.height, c, p.height + s]
        return q, [p.speed, 0 * s, p.speed - s * p.spin, c * p.spin]

    def kinetic_energy(self, m, t, q, v, p):
        return (p.mass1 * (v[0] ** 2 + v[1] ** 2) + p.mass2 * (v[2] ** 2 + v[3] ** 2)) / 2

    def potential_energy(self, m, t, q, p):
        return p.gravity * (p.mass1 * q[1] + p.mass2 * q[3])

    def position_constraints(self, m, t, q, p):
        return [apart(q[:2], q[2:], p.length)]

    def gap(self, m, q, p):
        return q[1]
