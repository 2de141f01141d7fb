"""What an oracle is: equations in NumPy, in coordinates of its own, and how SciPy solves them."""

import dataclasses
from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np
from scipy.integrate import solve_ivp


class Solution(NamedTuple):
    """A state in the coordinates of the library, with multipliers; at one time, or times first.

    Args:
        q: coordinates.
        v: velocities.
        w: actuator state.
        lam: multipliers, in the sign of `M a + J^T lam = f`.
    """

    q: np.ndarray
    v: np.ndarray
    w: np.ndarray
    lam: np.ndarray


class Oracle(ABC):
    """A mechanism in its own variables; its fields are the parameters it may be differentiated by.

    Nothing here is the library's: a derivation on paper gave `rate` and `read`, and none of them
    depends on time.
    """

    @abstractmethod
    def start(self) -> list[float]:
        """Own variables at t = 0."""

    @abstractmethod
    def rate(self, y: np.ndarray) -> list[float]:
        """Their derivatives."""

    @abstractmethod
    def read(self, y: np.ndarray) -> Solution:
        """The library's quantities."""

    def motion(self, ts, method: str = "DOP853") -> Solution:
        """At given times, the first of them 0; the rest of the tolerances is round-off."""
        found = solve_ivp(
            lambda _, y: self.rate(y),
            (0.0, ts[-1]),
            self.start(),
            method=method,
            t_eval=ts,
            rtol=1e-12,
            atol=1e-13,
        )
        assert found.success
        rows = [self.read(y) for y in found.y.T]
        return Solution(*(np.array(x) for x in zip(*rows, strict=True)))

    def sensitivity(self, name: str, ts) -> Solution:
        """Derivative of the motion by a parameter, by central differences of fourth order.

        With steps of a thousandth of the parameter their error is 1e-12 of a fifth derivative, and
        of the motion 1e-13 over 1e-3: 1e-9 of the derivative by the parameter's logarithm.
        """
        value = getattr(self, name)
        size = 1e-3 * value
        weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
        moved = {k: self.with_(**{name: value + k * size}).motion(ts) for k in weights}
        return Solution(
            *(sum(c * moved[k][i] for k, c in weights.items()) / size for i in range(4))
        )

    def with_(self, **parameters: float) -> Self:
        """The same mechanism with other parameters."""
        return dataclasses.replace(self, **parameters)  # pyright: ignore[reportArgumentType]
