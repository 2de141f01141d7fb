"""Mechanisms of the suite in as many coordinates as they have freedoms: equations derived by hand.

They are what codes of ordinary differential equations integrate, and the second formulation by
which references are computed anew. Declarations of `Mechanism` are not used but for the start.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Numbers = Sequence[Any]


class Reduced(NamedTuple):
    """Ordinary differential equations of a mechanism.

    Args:
        start: y at t = 0 from `(m, p)`.
        rates: dy/dt from `(m, t, y, p)`.
        state: q and v of the mechanism, one after the other, from `(m, t, y, p)`.
    """

    start: Callable[[Any, Any], Numbers]
    rates: Callable[[Any, Any, Numbers, Any], Numbers]
    state: Callable[[Any, Any, Numbers, Any], Numbers]


def _angles(m, p):
    return [p.angle, p.rate]


def _pendulum(m, t, y, p):
    return [y[1], -p.gravity / p.length * m.sin(y[0])]


def _pendulum_state(m, t, y, p):
    s, c = p.length * m.sin(y[0]), p.length * m.cos(y[0])
    return [s, -c, c * y[1], s * y[1]]


def _double_start(m, p):
    return [p.angle1, p.angle2, p.rate1, p.rate2]


def _double(m, t, y, p):
    """The textbook's two equations, solved by Cramer's rule."""
    s, c = m.sin(y[0] - y[1]), m.cos(y[0] - y[1])
    total = p.mass1 + p.mass2
    one = -p.mass2 * p.length2 * y[3] ** 2 * s - total * p.gravity * m.sin(y[0])
    two = p.length1 * y[2] ** 2 * s - p.gravity * m.sin(y[1])
    factor = p.mass1 + p.mass2 * s**2
    first = (one - p.mass2 * c * two) / (p.length1 * factor)
    second = (total * two - c * one) / (p.length2 * factor)
    return [y[2], y[3], first, second]


def _double_state(m, t, y, p):
    s1, c1 = p.length1 * m.sin(y[0]), p.length1 * m.cos(y[0])
    s2, c2 = p.length2 * m.sin(y[1]), p.length2 * m.cos(y[1])
    x, z = c1 * y[2], s1 * y[2]
    return [s1, -c1, s1 + s2, -c1 - c2, x, z, x + c2 * y[3], z + s2 * y[3]]


def _rod_angle(m, y, p):
    """Sine and cosine of the rod's angle, and its derivative by the crank's."""
    s = -p.crank / p.rod * m.sin(y[0])
    c = m.sqrt(1 - s**2)
    return s, c, -p.crank * m.cos(y[0]) / (p.rod * c)


def _slider_crank(m, t, y, p):
    """A(angle) angle'' + A'(angle) angle'^2 / 2 + V'(angle) = 0."""
    sin, cos = m.sin(y[0]), m.cos(y[0])
    s, c, turn = _rod_angle(m, y, p)
    turn2 = (p.crank * sin + p.rod * s * turn**2) / (p.rod * c)
    x = -p.crank * sin - p.rod * s * turn
    x2 = -p.crank * cos - p.rod * c * turn**2 - p.rod * s * turn2
    rod = (p.crank**2 - p.crank * sin * x + x**2) / 3
    rod2 = (2 * x * x2 - p.crank * cos * x - p.crank * sin * x2) / 3
    inertia = p.crank_mass * p.crank**2 / 3 + p.rod_mass * rod + p.slider_mass * x**2
    slope = p.rod_mass * rod2 + 2 * p.slider_mass * x * x2
    weight = p.gravity * (p.crank_mass + p.rod_mass) * p.crank * cos / 2
    return [y[1], -(slope / 2 * y[1] ** 2 + weight) / inertia]


def _slider_crank_state(m, t, y, p):
    s, c, turn = _rod_angle(m, y, p)
    x = -p.crank * m.sin(y[0]) - p.rod * s * turn
    place = p.crank * m.cos(y[0]) + p.rod * c
    return [y[0], m.atan(s / c), place, y[1], turn * y[1], x * y[1]]


def _parallelogram(m, t, y, p):
    weight = p.gravity * (1.5 * p.crank_mass + p.coupler_mass) * m.cos(y[0])
    return [y[1], -weight / ((p.crank_mass + p.coupler_mass) * p.crank)]


def _parallelogram_state(m, t, y, p):
    s, c, zero = p.crank * m.sin(y[0]), p.crank * m.cos(y[0]), 0 * y[0]
    rates = [y[1], y[1], y[1], -s * y[1], c * y[1], zero]
    return [y[0], y[0], y[0], p.pitch + c, s, zero, *rates]


def _folded(m, t, y, p):
    return [y[1], -7 * p.gravity * m.cos(y[0]) / (6 * p.length)]


def _folded_state(m, t, y, p):
    s, c = p.length * m.sin(y[0]), p.length * m.cos(y[0])
    return [*(x for i in range(3) for x in (i * p.length + c, s)), *[-s * y[1], c * y[1]] * 3]


def _spherical(m, t, y, p):
    s, c = m.sin(y[0]), m.cos(y[0])
    angle = s * c * y[3] ** 2 - p.gravity / p.length * s
    return [y[2], y[3], angle, -2 * y[2] * y[3] * c / s]


def _spherical_state(m, t, y, p):
    s, c = p.length * m.sin(y[0]), p.length * m.cos(y[0])
    sa, ca = m.sin(y[1]), m.cos(y[1])
    out = c * y[2]
    across = s * y[3]
    v = [out * ca - across * sa, out * sa + across * ca, s * y[2]]
    return [s * ca, s * sa, -c, *v]


def _hoop(m, t, y, p):
    s = m.sin(y[0])
    return [y[1], s * m.cos(y[0]) * p.turn**2 - p.gravity / p.radius * s]


def _hoop_state(m, t, y, p):
    full = [y[0], p.turn * t, y[1], p.turn]
    return _spherical_state(m, t, full, _Length(p.radius))


class _Length(NamedTuple):
    length: Any


def _knife_start(m, p):
    zero = 0 * p.speed
    return [zero, zero, p.speed]


def _knife(m, t, y, p):
    heading = 0.5 + p.turn * t
    s, c = m.sin(heading), m.cos(heading)
    return [y[2] * c, y[2] * s, p.gravity * m.sin(p.slope) * c]


def _knife_state(m, t, y, p):
    x, z, _ = _knife(m, t, y, p)
    return [y[0], y[1], 0.5 + p.turn * t, x, z, p.turn]


def _sleigh_start(m, p):
    zero = 0 * p.speed
    return [zero, zero, zero, p.speed, p.turn]


def _sleigh(m, t, y, p):
    turn = -p.mass * p.offset * y[3] * y[4] / (p.inertia + p.mass * p.offset**2)
    return [y[3] * m.cos(y[2]), y[3] * m.sin(y[2]), y[4], p.offset * y[4] ** 2, turn]


def _sleigh_state(m, t, y, p):
    return [*y[:3], *_sleigh(m, t, y, p)[:3]]


def _disk_start(m, p):
    zero = 0 * p.spin
    roll = p.spin - p.turn * m.sin(p.lean)
    return [zero, zero, zero, p.lean, zero, p.turn, p.lean_rate, roll]


def _disk(m, t, y, p):
    """Euler's equations in axes along the heading, the axle and the radius to the contact."""
    _, _, heading, lean, _, turn, lean_rate, roll = y
    s, c = m.sin(lean), m.cos(lean)
    contact, about = p.mass * p.radius**2, p.polar / 2
    fall = p.mass * p.gravity * p.radius * s - (p.polar + contact) * turn * c * roll
    fall = (fall - about * turn**2 * s * c) / (about + contact)
    rolling = contact * turn * c * lean_rate / (p.polar + contact)
    turning = lean_rate * (2 * turn * s + 2 * roll) / c
    forward, aside = p.radius * roll, p.radius * c * lean_rate
    sh, ch = m.sin(heading), m.cos(heading)
    place = [forward * ch - aside * sh, forward * sh + aside * ch]
    return [*place, turn, lean_rate, roll + turn * s, turning, fall, rolling]


def _disk_state(m, t, y, p):
    return [*y[:5], *_disk(m, t, y, p)[:5]]


def _speed_start(m, p):
    zero = 0 * p.speed
    return [zero + 0.6, zero, zero, p.azimuth, p.rise]


def _speed(m, t, y, p):
    """Only the part of the force across the velocity acts."""
    sa, ca, sr, cr = m.sin(y[3]), m.cos(y[3]), m.sin(y[4]), m.cos(y[4])
    fx, fy, fz = -p.spring * y[0], -2 * p.spring * y[1], -p.mass * p.gravity
    momentum = p.mass * p.speed
    around = (fy * ca - fx * sa) / (momentum * cr)
    up = (fz * cr - sr * (fx * ca + fy * sa)) / momentum
    return [p.speed * cr * ca, p.speed * cr * sa, p.speed * sr, around, up]


def _speed_state(m, t, y, p):
    return [*y[:3], *_speed(m, t, y, p)[:3]]


def _spherical_start(m, p):
    return [p.angle, 0 * p.angle, p.rate, p.turn]


REDUCED = {
    "pendulum": Reduced(_angles, _pendulum, _pendulum_state),
    "double-pendulum": Reduced(_double_start, _double, _double_state),
    "slider-crank": Reduced(_angles, _slider_crank, _slider_crank_state),
    "parallelogram": Reduced(_angles, _parallelogram, _parallelogram_state),
    "folded-four-bars": Reduced(_angles, _folded, _folded_state),
    "spherical-pendulum": Reduced(_spherical_start, _spherical, _spherical_state),
    "hoop": Reduced(_angles, _hoop, _hoop_state),
    "knife-edge": Reduced(_knife_start, _knife, _knife_state),
    "sleigh": Reduced(_sleigh_start, _sleigh, _sleigh_state),
    "rolling-disk": Reduced(_disk_start, _disk, _disk_state),
    "constant-speed": Reduced(_speed_start, _speed, _speed_state),
}
