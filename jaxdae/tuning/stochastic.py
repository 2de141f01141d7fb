"""Objectives of fresh draws: other starts, plants and noise in every step, of one random key."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxdae.checks import fails
from jaxdae.reprs import Module
from jaxdae.systems.calls import check_parameters

# optax is imported where it is used: many programs that import the package never tune.
if TYPE_CHECKING:
    import optax

# The step that a validation draws for: every schedule of horizons has come to its end there.
LAST_STEP = np.iinfo(np.int32).max


class Stochastic(Module):
    """An objective of `tune` that is drawn anew in each step.

    Step `i` minimizes `function(params, k)` with `k = jax.random.fold_in(training, i)` and
    `training, validating = jax.random.split(key)`, where `key` is that of `tune`: a run that is
    resumed draws what it would have drawn. All `starts` of a run are given the same draws. A
    function that does not use its key is refused.

    Gradients of long unstable runs grow with their time. `horizon` lets runs begin short and become
    longer: a schedule, whose value is the third argument of the function. It is traced, so that
    runs of all lengths are one program: `simulate(…, t1=horizon, dt=0.02, max_steps=100,
    saveat=diffrax.SaveAt(ts=horizon * jnp.linspace(0, 1, 50)))`.

    Args:
        function: maps the resolved parameters and a random key, and a horizon where there is one,
            to a scalar; traceable.
        horizon: of each step, a sequence [s], whose last value holds on, or a traceable function of
            the number of the step, such as `optax.linear_schedule(0.5, 4.0, 300)`.

    Raises:
        TypeError: if `horizon` is neither a function nor numbers.
        ValueError: if `function` does not take these arguments, or a horizon is not positive and
            finite.
    """

    function: Callable
    horizon: Callable | Float[Array, " steps"] | None

    def __init__(
        self, function: Callable, *, horizon: Callable | Sequence[float] | Array | None = None
    ):
        names = ("params", "key") if horizon is None else ("params", "key", "horizon")
        check_parameters("Stochastic: function", function, names)
        self.function = function
        self.horizon = horizon if horizon is None or callable(horizon) else _horizons(horizon)

    def __call__(self, params: PyTree, key: Array, *horizon) -> Float[Array, ""]:
        """The loss of one draw.

        Args:
            params: resolved parameters.
            key: random key.
            horizon: where there is a schedule [s].
        """
        return self.function(params, key, *horizon)

    def drawn(self, key: Array, step) -> Callable[[PyTree], Float[Array, ""]]:
        """The objective of one step, a function of the parameters alone.

        Args:
            key: of all steps.
            step: number of the step; may be traced.
        """
        return partial(self._drawn, jax.random.fold_in(key, step), step)

    def _drawn(self, key: Array, step, params: PyTree) -> Float[Array, ""]:
        if self.horizon is None:
            return self.function(params, key)
        if callable(self.horizon):
            return self.function(params, key, jnp.asarray(self.horizon(step), float))
        last = self.horizon.shape[0] - 1
        return self.function(params, key, self.horizon[jnp.minimum(step, last)])


def _horizons(values) -> Float[Array, " steps"]:
    try:
        horizons = jnp.atleast_1d(jnp.asarray(values, float))
    except (TypeError, ValueError):
        raise TypeError(
            f"Stochastic: horizon is {values!r}; give times [s], one for each step, or a function "
            "of the number of the step."
        ) from None
    good = lambda x: x.ndim == 1 and x.size and np.isfinite(x).all() and (x > 0).all()  # noqa: E731
    if fails(good, horizons):
        raise ValueError(
            f"Stochastic: horizon is {np.asarray(horizons)}; all times must be positive and finite."
        )
    return horizons


def stochastic_optimizer() -> "optax.GradientTransformation":
    """Adam with the rate `0.01 / sqrt(1 + step / 100)`, after clipping the gradient to norm 1.

    Losses of different draws cannot be compared, so that no rate may depend on them. This one does
    not ask how many steps there will be: a run that is continued with more of them is the same run.
    """
    import optax

    def rate(count):
        return 0.01 / jnp.sqrt(1 + count / 100)

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
