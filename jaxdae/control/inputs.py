"""Inputs on a grid of times: held, or interpolated by polynomials between the times."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import fails
from jaxdae.control.base import AbstractHybridController
from jaxdae.names import unknown_name
from jaxdae.solvers.clocks import Listed, time_tolerance

HELD = "held"
LINEAR, CUBIC, B_SPLINE = KINDS = ("linear", "cubic", "b-spline")


class _AbstractInput(AbstractHybridController):
    """An input that is given at times, and known between them."""

    times: eqx.AbstractVar[Any]
    values: eqx.AbstractVar[Any]
    kind: eqx.AbstractVar[str]

    def __call__(self, t):
        """Its value at a time [s]."""
        pieces = self._pieces()
        return pieces.at(t, *pieces.piece(pieces.passed(jnp.asarray(t, pieces.table.dtype))))

    def prepared(self, t, state):
        del t, state
        return self._pieces()

    def _pieces(self) -> "InputPieces":
        table = _coefficients(self.kind, self.times, self.values)
        return InputPieces(self.times, table, self.name)

    @property
    def clocks(self):
        return (Listed(self.times),)

    def initial(self, t, state):
        return self._pieces().initial(t, state)

    def renew(self, t, q, v, w, c):
        return self._pieces().renew(t, q, v, w, c)

    def moving(self, t, state):
        del t, state
        return 0

    def rate(self, t, q, v, w, c):
        del t, q, v, w
        return jnp.zeros_like(c)

    def output(self, t, q, v, w, c):
        return self._pieces().output(t, q, v, w, c)


class Held(_AbstractInput):
    """An input that jumps at given times and is held between them.

        u(t) = values[k]        from times[k] to times[k + 1]

    As the controller of a run its steps end at the jumps, for all solvers, and the value that is
    held is one of the last columns of `Trajectory.w`; `held(t)` is its value in other functions.
    Before the first time it is the first value, behind the last time the last one.

    Args:
        times: [s], increasing, shape (times,).
        values: of the input, first axis those of the times.

    Raises:
        ValueError: for times that do not increase, and another number of values.
    """

    times: Any
    values: Any
    kind: str = eqx.field(static=True, default=HELD)

    def __init__(self, times, values):
        self.times, self.values, self.kind = _as_times(times), jnp.asarray(values), HELD
        check_grid("Held", self.times, self.values, 0)


class Interpolated(_AbstractInput):
    """An input that is interpolated between given times.

    As the controller of a run its steps end at the times, where it is less smooth, and the
    polynomial of the interval is kept in the last columns of `Trajectory.w`; `interpolated(t)` is
    its value in other functions. Before the first time and behind the last one it is what it is
    there.

    Args:
        times: [s], increasing, shape (times,), two at least.
        values: of the input, first axis those of the times; of a B-spline its control points, of
            which there are two more than times.
        kind: `"linear"`; `"cubic"`, the natural spline through the values, with two continuous
            derivatives; `"b-spline"`, the cubic B-spline with its knots at the times, fourfold at
            both ends, which stays within the limits of its control points.

    Raises:
        ValueError: for times that do not increase, another number of values, other kinds.
    """

    times: Any
    values: Any
    kind: str = eqx.field(static=True, default=LINEAR)

    def __init__(self, times, values, kind: str = LINEAR):
        if kind not in KINDS:
            raise ValueError(unknown_name("interpolation", kind, KINDS))
        self.times, self.values, self.kind = _as_times(times), jnp.asarray(values), kind
        check_grid("Interpolated", self.times, self.values, 2 if kind == B_SPLINE else 0)
        if self.times.shape[0] < 2:
            raise ValueError("Interpolated takes two times or more.")


class InputPieces(AbstractHybridController):
    """Polynomials of the time, one for each interval: what runs take for an input on a grid.

    Kept are the number of times that have passed, the beginning of the interval, and the
    coefficients there.

    Args:
        times: [s], shape (times,).
        table: coefficients of powers of the time since the beginning of the interval: before the
            times, between them, behind them; shape (times + 1, powers, …).
        given_as: name of the input.
    """

    times: Any
    table: Any
    given_as: str = eqx.field(static=True)

    @property
    def name(self):
        return self.given_as

    @property
    def clocks(self):
        return (Listed(self.times),)

    def passed(self, t):
        """How many of the times are not behind a time [s], as a number."""
        times = jnp.asarray(self.times, t.dtype)
        return jnp.sum((times <= t + time_tolerance(t)).astype(t.dtype))

    def piece(self, count):
        """Beginning of the interval behind so many times, and its coefficients."""
        last = jnp.shape(self.times)[0]
        begin = jnp.asarray(self.times)[jnp.clip(count - 1, 0, last - 1).astype(int)]
        return begin, self.table[jnp.clip(count, 0, last).astype(int)]

    def at(self, t, begin, coefficients):
        """Value of a polynomial."""
        value, since = coefficients[-1], t - begin
        for one in coefficients[-2::-1]:
            value = value * since + one
        return value

    def initial(self, t, state):
        return self._kept(self.passed(jnp.asarray(t, state.q.dtype)), state.q.dtype)

    def renew(self, t, q, v, w, c):
        del q, v, w
        last = jnp.shape(self.times)[0]
        following = jnp.asarray(self.times, c.dtype)[jnp.clip(c[0], 0, last - 1).astype(int)]
        due = (c[0] < last) & (following <= t + time_tolerance(t))
        return self._kept(c[0] + due.astype(c.dtype), c.dtype)

    def moving(self, t, state):
        del t, state
        return 0

    def rate(self, t, q, v, w, c):
        del t, q, v, w
        return jnp.zeros_like(c)

    def output(self, t, q, v, w, c):
        del q, v, w
        return self.at(t, c[1], c[2:].reshape(self.table.shape[1:]))

    def _kept(self, count, dtype):
        begin, coefficients = self.piece(count)
        parts = (count[None], begin[None], coefficients.ravel())
        return jnp.concatenate([x.astype(dtype) for x in parts])


def _as_times(times) -> Any:
    """As floating-point numbers; what is known stays so where JAX traces."""
    if not isinstance(times, jax.Array):
        return np.asarray(times, float)
    return times if jnp.issubdtype(times.dtype, jnp.floating) else times.astype(float)


def check_grid(name: str, times, values, more: int) -> None:
    """Refuse times that do not increase, and another number of values than times and `more`."""
    if jnp.ndim(times) != 1 or jnp.shape(times)[0] < 1:
        raise ValueError(f"the times of {name} have shape {jnp.shape(times)}; give (times,).")
    if fails(_increase, times):
        raise ValueError(f"the times of {name} must be finite and increasing; got {times}.")
    wanted = jnp.shape(times)[0] + more
    if values.ndim == 0 or values.shape[0] != wanted:
        raise ValueError(
            f"{name} has values of shape {values.shape} at {wanted - more} times; the first axis "
            f"must be {wanted}."
        )


def _increase(times) -> bool:
    times = np.asarray(times, float)
    return bool(np.all(np.isfinite(times)) and np.all(np.diff(times) > 0))


def _coefficients(kind: str, times, values) -> Any:
    """Coefficients of the polynomials, those before and behind the times included."""
    times = jnp.asarray(times, values.dtype)
    if kind == HELD:
        return jnp.concatenate([values[:1], values])[:, None]
    lengths = jnp.diff(times).reshape(-1, *[1] * (values.ndim - 1))
    if kind == LINEAR:
        inner = [values[:-1], jnp.diff(values, axis=0) / lengths]
    elif kind == CUBIC:
        inner = _natural_spline(lengths, values)
    else:
        inner = _b_spline(times, values)
    between = jnp.stack(jnp.broadcast_arrays(*inner), 1)
    degree = jnp.arange(between.shape[1]).reshape(-1, *[1] * (values.ndim - 1))
    end = jnp.sum(between[-1] * lengths[-1] ** degree, 0)
    ends = [jnp.zeros_like(between[:1]).at[0, 0].set(x) for x in (between[0, 0], end)]
    return jnp.concatenate([ends[0], between, ends[1]])


def _natural_spline(lengths, values) -> list:
    """With second derivatives that are zero at both ends."""
    slopes = jnp.diff(values, axis=0) / lengths
    n, h = values.shape[0], lengths.ravel()
    if n == 2:
        return [values[:-1], slopes]
    # h_{i-1} m_{i-1} + 2 (h_{i-1} + h_i) m_i + h_i m_{i+1} = 6 (s_i - s_{i-1})
    right = 6 * jnp.diff(slopes, axis=0).reshape(n - 2, -1)
    lower = jnp.concatenate([jnp.zeros_like(h[:1]), h[1:-1]])
    upper = jnp.concatenate([h[1:-1], jnp.zeros_like(h[:1])])
    diagonal = 2 * (h[:-1] + h[1:])
    inside = jax.lax.linalg.tridiagonal_solve(lower, diagonal, upper, right)
    second = jnp.pad(inside, ((1, 1), (0, 0))).reshape(values.shape)
    a, b = second[:-1], second[1:]
    return [values[:-1], slopes - lengths * (2 * a + b) / 6, a / 2, (b - a) / (6 * lengths)]


def _b_spline(times, values) -> list:
    """By the recursion of Cox and de Boor, on polynomials of the time since an interval began."""
    n = times.shape[0] - 1
    knots = jnp.concatenate([jnp.repeat(times[:1], 3), times, jnp.repeat(times[-1:], 3)])
    m = np.arange(n) + 3
    here = knots[m]
    # Of each interval the functions that are not zero there, as coefficients (intervals, powers).
    functions = [jnp.zeros((n, 4), values.dtype).at[:, 0].set(1.0)]
    for degree in (1, 2, 3):
        rising = [jnp.zeros((n, 4), values.dtype) for _ in range(degree + 1)]
        for i, one in enumerate(functions):
            begin, end = knots[m - degree + 1 + i], knots[m + 1 + i]
            width = (end - begin)[:, None]
            times_x = jnp.roll(one, 1, axis=1)
            up = (times_x + (here - begin)[:, None] * one) / width
            rising[i + 1] = rising[i + 1] + up
            rising[i] = rising[i] + one - up
        functions = rising
    points = [values[np.arange(n) + i] for i in range(4)]
    shape = (n, *[1] * (values.ndim - 1))
    return [
        sum(f[:, k].reshape(shape) * p for f, p in zip(functions, points, strict=True))
        for k in range(4)
    ]
