"""Averages of parameters over the steps of a descent."""

from typing import Any, NamedTuple, TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxdae.stability.arguments import is_real

# optax is imported where it is used: many programs that import the package never tune.
if TYPE_CHECKING:
    import optax


class AverageState(NamedTuple):
    """State of `parameter_average`; a sum without weight before the first point."""

    weighted_sum: PyTree  # of the points so far
    weight: Any  # sum of their weights


def parameter_average(decay: float = 0.99) -> "optax.GradientTransformation":
    """An exponential average of the parameters, as a part of a chain of optax.

        (p_n + decay p_(n-1) + … + decay^(n-1) p_1) / (1 + decay + … + decay^(n-1))

    It leaves the steps as they are: `optax.chain(optax.adam(1e-3), parameter_average(0.99))`.
    `tune` validates the average and returns it, in place of single parameters, whose noise it does
    not have [PolyakJuditsky1992]. Averaged are unconstrained arrays: of `Positive`, logarithms.

    Args:
        decay: weight of a point relative to the next one, at least 0 and below 1.

    Returns:
        A transformation of optax.

    Raises:
        ValueError: for another decay.
    """
    import optax

    if not is_real(decay) or not 0 <= decay < 1:
        raise ValueError(f"parameter_average: decay is {decay!r}, must be at least 0 and below 1.")

    def init(params) -> AverageState:
        zero = jax.tree.map(jnp.zeros_like, params)
        return AverageState(zero, jnp.zeros((), jnp.result_type(float)))

    def update(updates, state, params=None):
        total, weight = state
        total = jax.tree.map(lambda s, p: (decay * s + p).astype(s.dtype), total, params)
        return updates, AverageState(total, decay * weight + 1)

    return optax.GradientTransformation(init, update)


def averaged(optimizer: PyTree, point: PyTree) -> PyTree:
    """The average that an optimizer's state has of the parameters, or the point where it has none.

    That is `parameter_average`, or a schedule-free optimizer of optax, whose steps are made at
    other points than those that it recommends.
    """
    import optax

    if isinstance(optimizer, optax.contrib.ScheduleFreeState):
        return optax.contrib.schedule_free_eval_params(optimizer, point)
    is_average = lambda x: isinstance(x, AverageState)  # noqa: E731
    found = [*filter(is_average, jax.tree.leaves(optimizer, is_leaf=is_average))]
    if not found:
        return point
    total, weight = found[-1]
    some, divisor = weight > 0, jnp.where(weight > 0, weight, 1.0)
    mean = lambda s, p: jnp.where(some, s / divisor, p).astype(p.dtype)  # noqa: E731
    return jax.tree.map(mean, total, point)
