"""Lengths of four-bars whose crank turns all round, as images of all of R^4."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxdae.systems.checks import is_concrete
from jaxdae.tuning.parametrizations import AbstractParametrization


class CrankRocker(AbstractParametrization):
    r"""Lengths `(a, b, c, d)` of crank, coupler, rocker and ground of a crank-rocker.

    The crank turns all round where crank and ground, in line, close a triangle with the other two
    both ways (Grashof, with the crank the shortest):

        |b - c| < d - a,        a + d < b + c

    These are held as `d - a = a exp(r_1)`, `b - c = (d - a) tanh(r_2)` and
    `b + c = a + d + a exp(r_3)`, with `a = exp(r_0)`: every step of an optimizer stays inside, and
    the two ways to assemble the loop never meet.

    Args:
        lengths: `(a, b, c, d)` [m], shape (4,).

    Raises:
        ValueError: for lengths that make no crank-rocker, with the inequality.
    """

    raw: Float[Array, " 4"]

    def __init__(self, lengths: ArrayLike):
        lengths = jnp.asarray(lengths, dtype=float)
        if lengths.shape != (4,):
            raise ValueError(
                f"CrankRocker: got shape {lengths.shape}, needs (4,): crank, coupler, rocker, "
                "ground."
            )
        _require_crank_rocker(lengths)
        a, b, c, d = lengths
        skew = jnp.arctanh((b - c) / (d - a))
        self.raw = jnp.stack([jnp.log(a), jnp.log((d - a) / a), skew, jnp.log((b + c - a - d) / a)])

    @property
    def value(self) -> Float[Array, " 4"]:
        """The lengths, shape (4,)."""
        a, longer, slack = jnp.exp(self.raw[jnp.array([0, 1, 3])])
        apart = a * longer
        difference, total = apart * jnp.tanh(self.raw[2]), a * (2 + longer + slack)
        return jnp.stack([a, (total + difference) / 2, (total - difference) / 2, a + apart])


def _require_crank_rocker(lengths) -> None:
    if not is_concrete(lengths):
        return
    a, b, c, d = np.asarray(lengths)
    if not (np.isfinite(lengths).all() and a > 0):
        raise ValueError(f"CrankRocker: the lengths are {lengths}; all must be positive numbers.")
    for left, right, words in (
        (abs(b - c), d - a, "|coupler - rocker| < ground - crank"),
        (a + d, b + c, "crank + ground < coupler + rocker"),
    ):
        if not left < right:
            raise ValueError(
                f"CrankRocker: the crank does not turn all round: {words} does not hold, "
                f"{left:.6g} against {right:.6g}; shorten the crank."
            )
