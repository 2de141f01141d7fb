"""Derivatives along a line by central differences, with what their own steps say of the function.

Values at `0, h, -h, 2h, -2h` give a derivative of fourth order, and by their second differences
tell a smooth function, of which these grow as `h^2`, from a kink (`h`) and a jump (`1`). Where they
leave that open a second step does: shorter where the function bends within the first, longer where
its noise decides. Noise is estimated from fourth differences [MoreWild2011], [Ridders1982].
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Values after the first stencil, and those of a second step.
FIRST, SECOND = (1.0, -1.0, 2.0, -2.0), (1.0, -1.0)
# The second step is shorter by this factor, or longer, than the first; by the next factor where
# slopes over both of the first differ by so much that the function bends within them.
SHORTER, LONGER = 1 / 8, 4.0
MUCH_SHORTER, _BENT = 1 / 64, 0.3
# Exponents of second differences: of a jump 0, of a kink 1, of a smooth function 2.
_JUMP, _KINK = 0.4, 1.5
# A slope over an eighth of the step that is larger by this factor is that of a jump.
_GROWS = 6.0
# Part of the slope by which that on both sides has to differ.
_SIDES = 1e-3
# A value that round-off alone changes is off by about so many units in the last place.
_UNITS = 8.0


class Line(NamedTuple):
    """Values of a function along a line, weighted so that each of their entries is of order one.

    Args:
        at: the function of the distance, an array of shape (m,).
        zero: its value at zero.
        epsilon: round-off of its precision.
    """

    at: Callable[[float], np.ndarray]
    zero: np.ndarray
    epsilon: float


class Differences(NamedTuple):
    """A derivative by differences.

    Attributes:
        estimates: of the derivative, each of shape (m,): fourth order at the first step, and what a
            second step gives.
        error: of the best, estimated, in the norm of the values.
        noise: of the function's values, estimated, in that norm.
        step: the shortest step.
        variation: largest change of the values within the longest step, by that.
        bent: part of the slope by which two steps, one twice the other, differ.
        shape: "smooth", "kink", "jump", "constant" (no value differs), or "not finite".
        steps: all distances at which the function was evaluated.
    """

    estimates: tuple[np.ndarray, ...]
    error: float
    noise: float
    step: float
    variation: float
    bent: float
    shape: str
    steps: tuple[float, ...]

    def distance(self, derivative: np.ndarray) -> float:
        """Of a derivative to the nearest estimate, in the norm of the values."""
        return min(float(np.linalg.norm(derivative - x)) for x in self.estimates)


def first_step(line: Line, slope: float, tolerance: float) -> float:
    """A step that suits a smooth function of a slope, whose values are as good as a tolerance.

    The fifth root of the noise balances it against the bend of a function that changes over a
    distance of one; a steep one changes over a shorter distance.

    Args:
        line: the function.
        slope: norm of its derivative, as it is claimed.
        tolerance: of its values, relative.
    """
    noise = max(_UNITS * line.epsilon, min(tolerance, 1e-6))
    least, most = line.epsilon ** (1 / 3), 0.05
    size = max(float(np.linalg.norm(line.zero)), 1e-3)
    steep = 0.03 * size / slope if np.isfinite(slope) and slope > 0 else np.inf
    return float(np.clip(min(noise**0.2, steep), least, most))


def differences(line: Line, step: float, claimed: np.ndarray | None) -> Differences:
    """The derivative at zero by central differences, with a second step where it is needed.

    Args:
        line: the function.
        step: the first step.
        claimed: the derivative that is examined, with which no second step is needed where the
            first agrees with it; `None` where there is none.
    """
    values = {x * step: line.at(x * step) for x in FIRST}
    found = _of_values(line, step, values)
    if found.shape == "not finite" or found.shape == "constant":
        return found
    off = np.inf if claimed is None else found.distance(claimed)
    size = max(float(np.linalg.norm(found.estimates[0])), found.variation)
    if found.shape == "smooth" and off <= max(1e-7 * size, 3 * found.noise / step):
        return found
    noisy = found.noise / step > 0.3 * found.error and found.shape == "smooth"
    bent = found.bent > _BENT and step * MUCH_SHORTER > line.epsilon ** (1 / 3)
    shorter = MUCH_SHORTER if bent else SHORTER
    second = step * (LONGER if noisy and not bent and step * LONGER <= 0.2 else shorter)
    values |= {x * second: line.at(x * second) for x in SECOND}
    return _of_values(line, step, values, second)


def _of_values(
    line: Line, step: float, values: dict[float, np.ndarray], second: float | None = None
) -> Differences:
    """What values say."""
    norm = lambda x: float(np.linalg.norm(x))  # noqa: E731
    central = lambda h: (values[h] - values[-h]) / (2 * h)  # noqa: E731
    bend = lambda h: values[h] - 2 * line.zero + values[-h]  # noqa: E731
    floor = _UNITS * line.epsilon * max(norm(x) for x in (line.zero, *values.values()))
    one, two = central(step), central(2 * step)
    fourth = (4 * one - two) / 3
    longest = max(abs(x) for x in values)
    variation = max(norm(x - line.zero) / abs(h) for h, x in values.items() if abs(h) == longest)
    bent = norm(one - two) / max(norm(one), norm(two), np.finfo(float).tiny)
    about = {
        "step": min(abs(x) for x in values), "steps": tuple(values), "variation": variation,
        "bent": bent,
    }  # fmt: skip
    if not all(np.isfinite(x).all() for x in (line.zero, *values.values())):
        return Differences((fourth,), np.inf, np.inf, shape="not finite", **about)
    if all(np.array_equal(x, line.zero) for x in values.values()):
        return Differences((fourth,), 0.0, floor, shape="constant", **about)
    # Where the function is smooth its fourth difference is noise, of variance 70, or less.
    rough = norm(bend(2 * step) - 4 * bend(step)) / np.sqrt(70.0)
    noise, size = max(floor, rough), max(norm(one), norm(two), np.finfo(float).tiny)
    ratio = norm(one - two) / (3 * size)
    estimates, other = [fourth], fourth
    errors = [3 * ratio**2 * size + noise / step]
    if second is not None:
        other = central(second)
        if second < step:  # error h^2 of both, the shorter of which is off by a 64th
            better = (one - other) / ((step / second) ** 2 - 1)
            estimates += [other - better, other]
            errors += [max(norm(better), floor / second), norm(one - other) + floor / second]
        else:
            better = (two - other) / 3
            estimates += [two + better]
            errors += [norm(better) * ratio * 16 + noise / second]
        errors.append(norm(estimates[1] - fourth) + floor / min(step, second))
    shape = _shape(norm(bend(step)), norm(bend(2 * step)), size * step)
    if second is not None and second < step and norm(other) > _GROWS * norm(one):
        shape = "jump"
    elif shape != "smooth" and second is not None and second < step:
        again = _shape(norm(bend(second)), norm(bend(step)), size * second, second / step)
        shape = again if again in (shape, "smooth") else "smooth"
    floor_error = floor / longest
    return Differences(tuple(estimates), max(min(errors), floor_error), noise, shape=shape, **about)


def _shape(near: float, far: float, change: float, factor: float = 0.5) -> str:
    """What second differences at two steps, one a part of the other, say of a function.

    Args:
        near: of the shorter.
        far: of the longer.
        change: of the function in the shorter, by its slope.
        factor: shorter by longer step.
    """
    if near <= _SIDES * change:
        return "smooth"
    exponent = np.log(far / near) / np.log(1 / factor) if far > 0 else 0.0
    return "jump" if abs(exponent) < _JUMP else "kink" if exponent < _KINK else "smooth"
