"""Where functions of time fall to zero within a step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optimistix as optx

# Pieces of a step between which functions of events are evaluated.
_PIECES = 4
# Of a piece on which a cubic comes as near to zero as this, relative to the ends, the lowest value
# is looked for, in so many iterations: each leaves about a fifth of the error of its place.
_NEAR, _ITERATIONS = 0.25, 6


class Watch(NamedTuple):
    """What functions of events do within a step.

    Args:
        time: where one of them is at or below zero, of the first to fall; the end of the step
            where all stay above.
        low: the least value there, or at the end.
        misfit: by how much a function differs from the cubics through its neighbours, relative to
            its largest value in the step: of a sine 0.04 at six pieces to the period, 0.2 at four,
            2 at two.
        which: number of the function of which that is.
        end: the least value at the end.
    """

    time: Any
    low: Any
    misfit: Any
    which: Any
    end: Any


def lowest(functions: Callable, before, after) -> Watch:
    """Where functions of time are at or below zero within a step.

    The step is cut in equal pieces. On each a function is nearly the cubic of its values and slopes
    at the two ends; where that comes near to zero, its lowest value is looked for.

    Args:
        functions: of a time, shape (k,), in the order of time.
        before: beginning of the step, where they are positive.
        after: its end.
    """

    def node(t):
        return jax.jvp(functions, (t,), (jnp.ones_like(t),))

    length = (after - before) / _PIECES
    times = jnp.stack([*(before + i * length for i in range(_PIECES)), after])
    g, slope = jax.lax.map(node, times)
    rises = jnp.where(jnp.isfinite(slope), slope, 0.0) * length
    lows = jnp.minimum(_valley(g[:-1], g[1:], rises[:-1], rises[1:])[1], g[1:])
    # Of each function the first piece on which it seems to fall, or else the lowest.
    first, least = jnp.zeros(lows[0].shape, int), lows[0]
    for i in range(1, _PIECES):
        better = (least > 0) & (lows[i] < least)
        first, least = jnp.where(better, i, first), jnp.where(better, lows[i], least)
    pick = lambda rows: sum(jnp.where(first == i, rows[i], 0.0) for i in range(_PIECES))  # noqa: E731
    left = (pick(times[:-1, None]), pick(g[:-1]), pick(slope[:-1]))
    right = (pick(times[1:, None]), pick(g[1:]), pick(slope[1:]))
    at, low = _refined(functions, left, right)
    fallen = low <= 0
    time = jnp.min(jnp.where(fallen, at, after))
    end = jnp.min(g[-1])
    misfit, which = _misfit(g, rises)
    return Watch(time, jnp.minimum(end, jnp.min(low)), misfit, which, end)


def _valley(a, b, rise_a, rise_b):
    """Place in a piece, from 0 to 1, and value of the lowest point of a cubic; 1 for none within.

    By values `a` and `b` at the ends of the piece, and slopes there times its length.
    """
    second, third = 3 * (b - a) - 2 * rise_a - rise_b, 2 * (a - b) + rise_a + rise_b
    within = second**2 - 3 * rise_a * third
    # The root at which the cubic bends upwards, without cancellation for those that come first.
    below = second + jnp.sqrt(jnp.where(within > 0, within, 0.0))
    place = -rise_a / jnp.where(below > 0, below, 1.0)
    inside = (within > 0) & (below > 0) & (place > 0) & (place < 1)
    place = jnp.where(inside, place, 1.0)
    value = a + place * (rise_a + place * (second + place * third))
    return place, jnp.where(inside, value, b)


def _refined(functions: Callable, left, right):
    """Time and value of a point of each function, on its piece, at or below zero if there is one.

    `left` and `right` are time, value and slope at the ends of the pieces, each of shape (k,).
    """
    count = left[0].size

    def valley(left, right):
        length = right[0] - left[0]
        place, value = _valley(left[1], right[1], length * left[2], length * right[2])
        near = value <= _NEAR * jnp.maximum(jnp.abs(left[1]), jnp.abs(right[1]))
        return left[0] + place * length, (place < 1) & near

    def unsettled(carry):
        turn, left, right, (_, low) = carry
        return (turn < _ITERATIONS) & jnp.any(valley(left, right)[1] & (low > 0))

    def turn(carry):
        number, left, right, (at, low) = carry
        t, within = valley(left, right)
        ones = [jax.jvp(lambda t, i=i: functions(t)[i], (t[i],), (jnp.ones_like(t[i]),))
                for i in range(count)]  # fmt: skip
        value, slope = (jnp.stack(x) for x in zip(*ones, strict=True))
        new = (t, value, slope)
        falling = within & (slope < 0)
        rising = within & ~falling
        left = tuple(jnp.where(falling, x, y) for x, y in zip(new, left, strict=True))
        right = tuple(jnp.where(rising, x, y) for x, y in zip(new, right, strict=True))
        lower = within & (value < low)
        return number + 1, left, right, (jnp.where(lower, t, at), jnp.where(lower, value, low))

    first = (jnp.zeros((), left[0].dtype), left, right, (right[0], right[1]))
    return jax.lax.while_loop(unsettled, turn, first)[-1]


def _misfit(g, rises):
    """By how much functions differ from cubics between the neighbours of each point within a step.

    By values at points of equal distance, shape (points, k), and slopes times that distance.
    """
    expected = 0.5 * (g[:-2] + g[2:]) + 0.25 * (rises[:-2] - rises[2:])
    scale = jnp.max(jnp.abs(g), axis=0)
    off = jnp.max(jnp.abs(g[1:-1] - expected), axis=0)
    found = jnp.where(scale > 0, off / jnp.where(scale > 0, scale, 1.0), 0.0)
    found = jnp.where(jnp.isfinite(found), found, 0.0)
    largest, which = found[0], jnp.zeros((), found.dtype)
    for i in range(1, found.size):
        which = jnp.where(found[i] > largest, i, which)
        largest = jnp.maximum(largest, found[i])
    return largest, which


class _Halving(optx.AbstractRootFinder):
    """Bisection between `options["lower"]` and `options["upper"]` until both are neighbours.

    The function is positive at the lower end. `optimistix.Bisection` ends by a tolerance in units
    of the function, which those of an event have not got.
    """

    rtol: float = 0.0
    atol: float = 0.0
    norm: Any = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags):
        lower, upper = (jnp.asarray(options[x], y.dtype) for x in ("lower", "upper"))
        return lower, upper, jnp.array(False)

    def step(self, fn, y, args, options, state, tags):
        value, aux = fn(y, args)
        lower, upper, _ = state
        ahead = value > 0
        lower, upper = jnp.where(ahead, y, lower), jnp.where(ahead, upper, y)
        middle = lower + 0.5 * (upper - lower)
        done = (middle <= lower) | (middle >= upper)
        return jnp.where(done, upper, middle), (lower, upper, done), aux

    def terminate(self, fn, y, args, options, state, tags):
        return state[2], optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        return y, aux, {}


HALVING = _Halving()


def fall(function, before, after) -> Any:
    """Where a function falls to zero.

    Args:
        function: of a time; positive at the first, zero or negative at the second of these.
        before: time [s].
        after: time [s].

    Returns:
        The first time found, next to one at which the function is positive.
    """
    ends = {"lower": before, "upper": after}
    return optx.root_find(lambda t, _: function(t), HALVING, after, options=ends, throw=False).value
