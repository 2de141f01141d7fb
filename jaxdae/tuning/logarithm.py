"""The logarithm of an objective, whose gradients are relative."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.reprs import Module
from jaxdae.tuning.certificate import Certificate


class Logarithm(Module):
    """Natural logarithm of a positive objective, with the same minima.

    Gradients become relative. A violation that falls by many powers of ten is then descended on
    at one pace; its budget and mode are those of the objective. Where the objective is not
    positive, the logarithm is not finite (NaN, or `-inf` at zero), and `tune` takes no such step.

    Args:
        objective: positive scalar function of the parameters.
    """

    objective: Callable

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """Logarithm of the objective.

        Args:
            params: resolved parameters.
        """
        return jnp.log(self.objective(params))

    @property
    def mode(self) -> str | None:
        """How to differentiate: as the objective says, if it does."""
        return getattr(self.objective, "mode", None)

    @property
    def budget(self) -> str:
        """Step or work budget of the objective, in words; "" if it states none."""
        return getattr(self.objective, "budget", "")

    @property
    def certificate(self) -> Callable[[PyTree], Certificate]:
        """The function of parameters that says what is known of them, if the objective has one."""
        return self.objective.certificate  # pyright: ignore[reportFunctionMemberAccess]
