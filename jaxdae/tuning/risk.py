"""What is made of the costs of a batch: their mean, the worst, the mean of a tail."""

from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known
from jaxdae.reprs import Module
from jaxdae.stability.arguments import is_real


def _as_fraction(value: Any) -> float:
    """A real number of any kind as that of Python, which may be static."""
    if not is_real(value) or not are_known(value):
        raise TypeError(f"CVaR: fraction is {value!r}, must be a number in (0, 1].")
    return float(value)


class CVaR(Module):
    r"""Conditional value at risk: the mean of the worst costs, a fraction of all.

    With `k = fraction N` of `N` costs in falling order `c_1 >= c_2 >= ...`,

        (c_1 + ... + c_floor(k) + (k - floor(k)) c_(floor(k) + 1)) / k,

    which for any `N` is the least value over `a` of `a + mean(max(c - a, 0)) / fraction`
    [RockafellarUryasev2000, theorem 1]. A fraction of 1 is the mean, one of `1 / N` or less is the
    worst.

    Args:
        fraction: of the members, in (0, 1].

    Raises:
        TypeError: for what is no real number.
        ValueError: for another fraction.
    """

    fraction: float = eqx.field(static=True, converter=_as_fraction)

    def __check_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"CVaR: fraction is {self.fraction}, must be above 0 and at most 1; take "
                'risk="worst" for the worst member alone, risk="mean" for the mean of all.'
            )


Risk = Literal["mean", "worst"] | CVaR


def check_risk(risk: Any) -> None:
    """Require a known risk."""
    if not (isinstance(risk, CVaR) or risk in ("mean", "worst")):
        raise ValueError(
            f'SimulationObjective: risk is {risk!r}, must be "mean", "worst" or CVaR(fraction).'
        )


def is_mean(risk: Risk) -> bool:
    """Whether all members count equally."""
    return risk == "mean" or (isinstance(risk, CVaR) and risk.fraction == 1)


def at_risk(costs: Float[Array, " members"], risk: Risk) -> Float[Array, ""]:
    """One number for the costs of all members; NaN if one of them is.

    The worst and CVaR are continuous, and differentiable where the members that count are the
    same nearby: almost everywhere. Elsewhere the derivative is that of one of the orders.
    """
    if is_mean(risk):
        return jnp.mean(costs)
    count = costs.shape[0]
    tail = min(max(risk.fraction * count, 1.0), count) if isinstance(risk, CVaR) else 1.0
    weights = np.clip(tail - np.arange(count), 0.0, 1.0)
    kept = int(np.count_nonzero(weights))
    # NaN is sorted behind everything else, and is then the first.
    falling = jnp.sort(costs)[::-1][:kept]
    return jnp.sum(falling * (weights[:kept] / tail).astype(costs.dtype))


def in_words(risk: Risk) -> str:
    """For a budget: "" for the mean, the default."""
    if isinstance(risk, CVaR):
        return f"mean of the worst {100 * risk.fraction:g} %"
    return "" if risk == "mean" else "the worst"
