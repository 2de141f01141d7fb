"""How fast gradients of long runs grow with their time, and how many digits that costs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxdae.reprs import shown
from jaxdae.systems.calls import check_parameters
from jaxdae.systems.random_states import check_key
from jaxdae.tuning.parametrizations import resolve
from jaxdae.tuning.problem import split


class GradientGrowth(NamedTuple):
    """What `gradient_growth` measures.

    Attributes:
        horizons: times of the runs [s], rising, shape (horizons,).
        norms: norm of the gradient at each, shape (horizons,).
        rate: exponent of the growth [1/s], of the line through the logarithms of the norms.
        digits_lost: decimal digits by which the norm grows from the shortest horizon to the
            longest at which it is finite; 0 where it falls.
        digits: of the precision.
    """

    horizons: Float[np.ndarray, " horizons"]
    norms: Float[np.ndarray, " horizons"]
    rate: float
    digits_lost: float
    digits: float

    def __repr__(self) -> str:
        return shown(self)

    def summary(self) -> str:
        """What was found, and what to do where more than half of the digits are lost."""
        good = np.flatnonzero(np.isfinite(self.norms))
        first, last = (f"{self.norms[i]:.3g} at {self.horizons[i]:g} s" for i in good[[0, -1]])
        words = (
            f"the gradient's norm goes from {first} to {last}, as exp({self.rate:.3g} t): "
            f"{self.digits_lost:.1f} of {self.digits:.1f} digits are lost"
        )
        if good.size < self.horizons.size:
            worst = self.horizons[~np.isfinite(self.norms)][0]
            words += f"; it is not finite at {worst:g} s"
        if good.size == self.horizons.size and self.digits_lost <= self.digits / 2:
            return words
        return f"{words}. Train on shorter runs, or begin with them: Stochastic(…, horizon=…)"


def gradient_growth(
    function: Callable[[PyTree, Array, Array], Float[Array, ""]],
    params: PyTree,
    horizons: Sequence[float] | Float[Array, " horizons"],
    *,
    key: Array | None = None,
) -> GradientGrowth:
    """The norm of an objective's gradient against the time of its runs, for one draw.

    Where the motion is unstable, `|d x(T) / d x(0)|` and with it the gradient grow as
    `exp(rate T)`, and so do errors of round-off. A mean over draws is then decided by a few of
    them, and beyond half of the digits the direction of a step is in doubt [MetzEtAl2021].

    Args:
        function: `function(params, key, horizon)`, as `Stochastic` takes it, or that itself.
        params: pytree of parameters, as `tune` takes it.
        horizons: times of the runs [s], two at least.
        key: random key of the draw; by default `jax.random.key(0)`.

    Returns:
        `GradientGrowth`.

    Raises:
        ValueError: for horizons that are not positive and rising, nothing to train, or gradients
            that are zero or not finite at all horizons but one.
        TypeError: for a key that is none.
    """
    check_parameters("gradient_growth: function", function, ("params", "key", "horizon"))
    key = jax.random.key(0) if key is None else key
    check_key(key)
    times = np.asarray(horizons, float)
    if times.ndim != 1 or times.size < 2 or not (np.diff(times, prepend=0.0) > 0).all():
        raise ValueError(
            f"gradient_growth: horizons are {times}; give two or more positive times, rising."
        )
    trained, frozen = split(params)

    @jax.jit
    def norm(trained, horizon):
        def loss(x):
            return function(resolve(eqx.combine(x, frozen)), key, horizon)

        # Of the squares of what is divided by the largest: squares of large ones overflow.
        entries = jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(jax.grad(loss)(trained))])
        largest = jnp.max(jnp.abs(entries))
        return largest * jnp.linalg.norm(entries / jnp.where(largest > 0, largest, 1.0))

    norms = np.array([norm(trained, jnp.asarray(x)) for x in times], float)
    good = np.isfinite(norms) & (norms > 0)
    if good.sum() < 2:
        raise ValueError(
            f"gradient_growth: the norms of the gradient are {norms}; two of them must be positive "
            "and finite: begin with shorter horizons."
        )
    logarithms = np.log10(norms[good])
    rate = np.polyfit(times[good], logarithms * np.log(10), 1)[0]
    lost = max(float(logarithms[-1] - logarithms[0]), 0.0)
    digits = -np.log10(float(jnp.finfo(jax.tree.leaves(trained)[0].dtype).eps))
    return GradientGrowth(times, norms, float(rate), lost, float(digits))
