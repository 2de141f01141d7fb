"""Drawings of the suite's mechanisms, at the times for which references have rows.

A sketch gives lines in the plane or in space from the time, coordinates, velocities and values of
a mechanism; those in space are seen from above at an angle.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

Point = tuple[float, ...]
Line = list[Point]
Sketch = Callable[[float, Sequence[float], Sequence[float], Any], list[Line]]

WIDTH, HEIGHT, MARGIN = 420.0, 300.0, 24.0
AROUND = [2 * math.pi * i / 40 for i in range(41)]


def drawing(reference: dict[str, Any]) -> str:
    """A mechanism at all times of its reference as a part of HTML, the last one in colour.

    Args:
        reference: what its file has.
    """
    p = SimpleNamespace(**reference["values"])
    n = sum(x.startswith("rate of ") for x in reference["columns"])
    rows = [[float(x) for x in row] for row in reference["rows"]]
    sketch = SKETCHES[reference["mechanism"]]
    poses = [
        [[_seen(x) for x in line] for line in sketch(t, row[:n], row[n : 2 * n], p)]
        for t, row in zip(reference["t"], rows, strict=True)
    ]
    every = [x for pose in poses for line in pose for x in line]
    low, high = [min(x) for x in zip(*every)], [max(x) for x in zip(*every)]  # noqa: B905
    sizes = [b - a or 1.0 for a, b in zip(low, high, strict=True)]
    scale = min((WIDTH - 2 * MARGIN) / sizes[0], (HEIGHT - 2 * MARGIN) / sizes[1])
    left, down = (WIDTH - scale * sizes[0]) / 2, (HEIGHT + scale * sizes[1]) / 2

    def placed(point: Point) -> str:
        x, y = left + scale * (point[0] - low[0]), down - scale * (point[1] - low[1])
        return f"{x:.1f},{y:.1f}"

    parts = []
    for i, pose in enumerate(poses):
        last = i == len(poses) - 1
        color, faint = "#1f8dd6" if last else "currentColor", 1.0 if last else 0.2 + 0.1 * i
        parts.append(
            f'<g fill="none" stroke="{color}" opacity="{faint:.1f}" stroke-width="2" '
            'stroke-linejoin="round" stroke-linecap="round">'
        )
        for line in pose:
            parts.append(f'<polyline points="{" ".join(map(placed, line))}"/>')
            if len(line) < len(AROUND):
                ends = (placed(x).split(",") for x in line)
                parts += [f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y in ends]
        parts.append("</g>")
    title = f"{reference['mechanism'].replace('-', ' ')} at five times"
    head = f'<svg role="img" viewBox="0 0 {WIDTH:g} {HEIGHT:g}"><title>{title}</title>'
    return "\n".join(['<div class="plot">', head, *parts, "</svg>", "</div>"])


def _seen(point: Point) -> Point:
    """A point of space as a picture has it."""
    if len(point) == 2:
        return point
    x, y, z = point
    return 0.9 * x - 0.55 * y, z + 0.22 * x + 0.32 * y


def _from(place: Point, angle: float, length: float) -> Point:
    return place[0] + length * math.cos(angle), place[1] + length * math.sin(angle)


def _points(q: Sequence[float], size: int = 2) -> Line:
    return [tuple(q[i : i + size]) for i in range(0, len(q), size)]


def _circle(centre: Point, radius: float, one: Point = (1.0, 0.0), two: Point = (0.0, 1.0)) -> Line:
    """A circle in the plane of two unit vectors."""
    return [
        tuple(
            c + radius * (math.cos(x) * a + math.sin(x) * b)
            for c, a, b in zip(centre, one, two, strict=True)
        )
        for x in AROUND
    ]


def _blade(place: Point, heading: float, half: float = 0.12) -> Line:
    return [_from(place, heading, -half), _from(place, heading, half)]


def _turned(e: Sequence[float], x: Point) -> Point:
    """A vector by Euler parameters."""
    w, a, b, c = e
    rows = (
        (1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b)),
        (2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a)),
        (2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)),
    )
    return tuple(sum(r * y for r, y in zip(row, x, strict=True)) for row in rows)


O2, O3 = (0.0, 0.0), (0.0, 0.0, 0.0)


def _slider_crank(t, q, v, p):
    return [[O2, _from(O2, q[0], p.crank), (q[2], 0.0)], [(0.3, 0.0), (1.2, 0.0)]]


def _four_bar(t, q, v, p):
    base = (p.base, 0.0)
    return [[O2, _from(O2, q[0], p.crank), _from(base, q[2], p.rocker), base]]


def _andrews(t, q, v, p):
    beta, theta, gamma, _, delta, _, epsilon = q
    a, b, c = (-0.06934, -0.00227), (-0.03635, 0.03273), (0.014, 0.072)
    crank = _from(O2, beta, p.crank)
    end = _from(crank, beta + theta, -p.coupler)
    s, k = math.sin(gamma), math.cos(gamma)
    spring = (b[0] + 0.018 * s + 0.02 * k, b[1] - 0.018 * k + 0.02 * s)
    one = _from(a, delta, 0.04)
    two = (a[0] + 0.04 * math.sin(epsilon), a[1] - 0.04 * math.cos(epsilon))
    return [[O2, crank, end, b, spring, end], [spring, c], [a, one, end, two, a]]


def _two_link(t, q, v, p):
    elbow = _from(O2, q[0], p.length1)
    return [[O2, elbow, _from(elbow, q[1], p.length2)], _circle((p.centre, 0.0), p.radius)]


def _five_bar(t, q, v, p):
    base = (p.base, 0.0)
    left, right = _from(O2, q[0], p.crank), _from(base, q[2], p.crank)
    return [[O2, left, _from(left, q[1], p.coupler), right, base]]


def _parallelogram(t, q, v, p):
    places = [(i * p.pitch, 0.0) for i in range(3)]
    cranks = [[x, _from(x, q[i], p.crank)] for i, x in enumerate(places)]
    return [*cranks, [_from((q[3], q[4]), q[5], i * p.pitch) for i in (-1, 0, 1)]]


def _leg(t, q, v, p):
    end, fixed = _from(O2, q[0], p.crank), (-0.38, -0.078)
    upper, lower, back, knee, foot = _points(q[1:])
    return [
        [O2, end, upper, fixed, lower, end],
        [upper, back, fixed],
        [back, knee, lower],
        [knee, foot, lower],
    ]


def _platform(t, q, v, p):
    legs, corners = [], []
    places = (((-0.7, -0.4), -2.6), ((0.7, -0.4), -0.5), ((0.0, 0.8), 1.57))
    for i, (base, corner) in enumerate(places):
        at = _from((q[0], q[1]), q[2] + corner, p.side)
        legs.append([base, _from(base, q[3 + i], p.crank), at])
        corners.append(at)
    return [*legs, [*corners, corners[0]]]


def _folded(t, q, v, p):
    ends = _points(q)
    return [*([(i * p.length, 0.0), x] for i, x in enumerate(ends)), ends]


def _car_axis(t, q, v, p):
    y = p.bump * math.sin(10.0 * t)
    left, right = _points(q)
    return [[O2, left, right, (math.sqrt(p.length**2 - y**2), y)]]


def _hoop(t, q, v, p):
    turned = (math.cos(p.turn * t), math.sin(p.turn * t), 0.0)
    return [_circle(O3, p.radius, turned, (0.0, 0.0, 1.0)), [tuple(q)]]


def _top(t, q, v, p):
    tip = _turned(q, (0.0, 0.0, p.arm))
    one, two = _turned(q, (1.0, 0.0, 0.0)), _turned(q, (0.0, 1.0, 0.0))
    rim = tuple(a + 0.15 * b for a, b in zip(tip, one, strict=True))
    return [[O3, tip], _circle(tip, 0.15, one, two), [tip, rim]]


def _bricard(t, q, v, p):
    return [[O3, *_points(q[:12], 3), (0.0, 0.0, 1.0), O3]]


def _plate(t, q, v, p):
    anchors = ((0.0, 0.0, 0.0), (1.0, 0.125, 0.0625), (0.3125, 0.875, -0.125))
    corners = _points(q, 3)
    rods = [[a, b] for a, b in zip(anchors, corners, strict=True)]
    return [*rods, [*corners, corners[0]]]


def _governor(t, q, v, p):
    x, y = q[1] * math.cos(q[0]), q[1] * math.sin(q[0])
    sleeve = (0.0, 0.0, -q[3])
    return [[O3, (x, y, -q[2]), sleeve, (-x, -y, -q[2]), O3]]


def _cone(t, q, v, p):
    return [[O3, tuple(q)], _ring(1.2 * p.slope, 1.2)]


def _ring(radius: float, height: float) -> Line:
    return _circle((0.0, 0.0, height), radius, (1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def _torus(t, q, v, p):
    angle = math.atan2(q[1], q[0])
    out = (math.cos(angle), math.sin(angle), 0.0)
    middle = (p.radius * out[0], p.radius * out[1], 0.0)
    tube = _circle(middle, p.tube, out, (0.0, 0.0, 1.0))
    return [_ring(p.radius, 0.0), tube, [middle, tuple(q)]]


def _sleigh(t, q, v, p):
    place = (q[0], q[1])
    return [_blade(place, q[2]), [place, _from(place, q[2], p.offset)]]


def _disk(t, q, v, p):
    s, c = math.sin(q[2]), math.cos(q[2])
    sl, cl = math.sin(q[3]), math.cos(q[3])
    ahead, up = (c, s, 0.0), (s * sl, -c * sl, cl)
    centre = (q[0], q[1], p.radius * cl)
    rim = _circle(centre, p.radius, ahead, up)
    turned = tuple(
        z + p.radius * (math.sin(q[4]) * a + math.cos(q[4]) * b)
        for z, a, b in zip(centre, ahead, up, strict=True)
    )
    return [rim, [centre, turned]]


def _trailer(t, q, v, p):
    car = (q[0], q[1])
    back = _from(car, q[3], -p.hitch)
    return [_blade(car, q[2]), [car, back], _blade(back, q[3])]


def _bicycle(t, q, v, p):
    rear = (q[0], q[1])
    front = _from(rear, q[2], p.base)
    return [[rear, front], _blade(rear, q[2]), _blade(front, q[2] + q[3])]


def _snakeboard(t, q, v, p):
    place = (q[0], q[1])
    lines = [[_from(place, q[2], -p.half), _from(place, q[2], p.half)]]
    for sign in (1, -1):
        at = _from(place, q[2], sign * p.half)
        lines.append(_blade(at, q[2] + sign * q[4], 0.08))
    return [*lines, _blade(place, q[2] + q[3], 0.15)]


def _ball(t, q, v, p):
    place = (q[0], q[1], p.radius)
    one, two, three = (
        _turned(q[2:], x) for x in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    )
    return [_circle(place, p.radius, one, two), _circle(place, p.radius, one, three)]


def _speed(t, q, v, p):
    return [[tuple(q), tuple(a + 0.15 * b for a, b in zip(q, v, strict=True))]]


SKETCHES: dict[str, Sketch] = {
    "pendulum": lambda t, q, v, p: [[O2, *_points(q)]],
    "double-pendulum": lambda t, q, v, p: [[O2, *_points(q)]],
    "chain": lambda t, q, v, p: [[O2, *_points(q)]],
    "elastic-pendulum": lambda t, q, v, p: [[O2, *_points(q)]],
    "pendulum-stop": lambda t, q, v, p: [[O2, *_points(q)], [(p.wall, -1.1), (p.wall, -0.1)]],
    "dumbbell": lambda t, q, v, p: [_points(q), [(-0.2, 0.0), (1.0, 0.0)]],
    "slider-crank": _slider_crank,
    "four-bar": _four_bar,
    "andrews": _andrews,
    "two-link": _two_link,
    "five-bar": _five_bar,
    "parallelogram": _parallelogram,
    "leg": _leg,
    "platform": _platform,
    "folded-four-bars": _folded,
    "car-axis": _car_axis,
    "spherical-pendulum": lambda t, q, v, p: [[O3, tuple(q)]],
    "cone-orbit": _cone,
    "torus": _torus,
    "hoop": _hoop,
    "heavy-top": _top,
    "bricard": _bricard,
    "plate": _plate,
    "governor": _governor,
    "knife-edge": lambda t, q, v, p: [_blade((q[0], q[1]), q[2])],
    "sleigh": _sleigh,
    "rolling-disk": _disk,
    "trailer": _trailer,
    "bicycle": _bicycle,
    "snakeboard": _snakeboard,
    "ball-on-turntable": _ball,
    "constant-speed": _speed,
}
