"""Runge–Kutta methods that diffrax does not ship."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import numpy as np


class RK4(diffrax.AbstractERK):
    """The classical fourth-order Runge–Kutta method [Kutta1901].

    Four stages, no embedded error estimate: for fixed steps only. Saved times between steps use
    cubic Hermite interpolation.
    """

    # diffrax wants an error estimate in every tableau; all zeros means that there is none, and
    # `simulate` refuses to choose the step from it.
    tableau: ClassVar[Any] = diffrax.ButcherTableau(
        a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
        b_sol=np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]),
        b_error=np.zeros(4),
        c=np.array([0.5, 0.5, 1.0]),
    )
    interpolation_cls: ClassVar[Callable[..., diffrax.ThirdOrderHermitePolynomialInterpolation]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation.from_k
    )

    def order(self, terms):
        """Order of convergence: 4."""
        return 4
