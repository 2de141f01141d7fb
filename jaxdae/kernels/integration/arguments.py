"""What callers of an integration give and get: rows, a summary, times at which steps end.

It loads no compiler.
"""

from typing import Any, NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp


class Saving(NamedTuple):
    """Which states a run saves, in rows of time.

    Args:
        start: the start.
        every: then the state after each so many steps; zero for none.
        times: then the states at given times.
    """

    start: bool
    every: int
    times: bool


class StepSummary(NamedTuple):
    """What a run with adaptive steps says of itself, as floating-point numbers.

    Args:
        time: that was reached [s].
        result: code of diffrax's result.
        steps: their number.
        accepted: of them.
        rows: that were saved.
    """

    time: Any
    result: Any
    steps: Any
    accepted: Any
    rows: Any


class StepCounts(NamedTuple):
    """What the iterations of a run with adaptive steps took, as floating-point numbers.

    Args:
        iterations: number of Newton iterations.
        factorizations: number of matrices factored for them.
        unsolved: number of steps whose iterations did not converge.
    """

    iterations: Any
    factorizations: Any
    unsolved: Any


def step_ends(steps, jumps, dtype) -> jax.Array:
    """Times at which steps end as a kernel takes them, from diffrax's two kinds.

    Args:
        steps: times at which a step ends and the next one begins, shape (k,), or `None`.
        jumps: times at which the right-hand side jumps, shape (l,), or `None`: a step ends just
            before, the next begins just after, and neither evaluates it at the jump.
        dtype: of the times.

    Returns:
        For each time, in order, where a step ends and where the next one begins, one after the
        other, shape (2 (k + l),).
    """
    steps, jumps = (jnp.zeros(0) if x is None else jnp.asarray(x) for x in (steps, jumps))
    steps, jumps = steps.astype(dtype), jumps.astype(dtype)
    ends = jnp.concatenate([steps, eqxi.prevbefore(jumps)])
    begins = jnp.concatenate([steps, eqxi.nextafter(jumps)])
    order = jnp.argsort(ends)
    return jnp.stack([ends[order], begins[order]], axis=1).ravel()


def jumps_of(pairs) -> tuple[jax.Array, jax.Array]:
    """The other way round: times at which steps end, and jumps, infinite where there is none."""
    ends, begins = pairs[0::2], pairs[1::2]
    return ends, jnp.where(begins == ends, jnp.inf, eqxi.nextafter(ends))
