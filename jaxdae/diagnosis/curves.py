"""Cubic curves through rows, by NumPy or by JAX: pictures of stored runs load no JAX for them."""

# What trapezoids of the velocities may miss of a change: about 1 rad of an oscillation in a row.
_RESOLVED = 0.1


def hermite(xp, h, s, q, v):
    """Cubic Hermite interpolation of `q`, and its rate, at a part `s` of steps `h`.

    Steps have shape `(k, 1, 1)`, parts `(k, places, 1)`; `q` and `v` are pairs of coordinates and
    velocities at both ends, each `(k, 1, n)`.
    """
    (q0, q1), (v0, v1) = q, v
    position = (
        (1 + 2 * s) * (1 - s) ** 2 * q0
        + s * (1 - s) ** 2 * h * v0
        + s**2 * (3 - 2 * s) * q1
        + s**2 * (s - 1) * h * v1
    )
    step = xp.where(h == 0, 1.0, h)
    rate = 6 * s * (s - 1) * (q0 - q1) / step + (1 - s) * (1 - 3 * s) * v0 + s * (3 * s - 2) * v1
    return position, rate


def resolved(xp, ts, q, v):
    """Which intervals are short enough for the Hermite curve to follow the motion.

    There the trapezoidal rule on the velocities nearly gives the change of the coordinates.
    """
    h = (ts[1:] - ts[:-1])[:, None]
    largest = lambda x: xp.max(xp.abs(x), axis=1)  # noqa: E731
    missed = largest(q[1:] - q[:-1] - 0.5 * h * (v[1:] + v[:-1]))
    return missed <= _RESOLVED * xp.maximum(largest(h * v[1:]), largest(h * v[:-1]))
