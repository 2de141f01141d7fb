"""Losses by which outliers count less: rows for steps, covariance of the estimate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdae.identification.linearization import LinearizedFit
from jaxdae.identification.uncertainty import (
    kept_entries,
    root_mean_square,
    Sensitivity,
    sensitivity,
    triangular,
)

# Of the slope of the influence, beside the weight, at least: where a loss is linear the slope is
# zero, and rows of nothing would have infinite residuals. Steps take more, so that a start whose
# samples are nearly all outliers is not thrown far away; by the weight itself they would never
# overshoot where models are linear, but come near slowly [Huber1981, section 7.8].
_OF_ERRORS, _OF_STEPS = 1e-4, 0.3

# Expectations of normal numbers are sums up to so many standard deviations, at so many points.
_FAR, _POINTS = 10.0, 4001
# Beside the largest residual, samples nearer to the model than this are met exactly.
_NOTHING = 1e-100


class Shape(NamedTuple):
    """Of a loss, as functions of `z = (r / c)^2`."""

    value: Callable[[Any], Any]  # rho
    weight: Callable[[Any], Any]  # rho'
    slope: Callable[[Any], Any]  # rho' + 2 z rho'', derivative of `r rho'` by `r`


def _huber_weight(z):
    return 1 / np.sqrt(np.maximum(z, 1.0))


_SHAPES = {
    "linear": Shape(lambda z: z, np.ones_like, np.ones_like),
    "huber": Shape(
        lambda z: np.where(z <= 1, z, 2 * np.sqrt(np.maximum(z, 1.0)) - 1),
        _huber_weight,
        lambda z: np.where(z <= 1, 1.0, 0.0),
    ),
    "soft_l1": Shape(
        lambda z: 2 * z / (1 + np.sqrt(1 + z)),
        lambda z: (1 + z) ** -0.5,
        lambda z: (1 + z) ** -1.5,
    ),
}


class Loss(NamedTuple):
    r"""What is summed over the samples in place of the squares of their residuals `r`.

        sum c^2 rho(r^2 / c^2),    influence psi(r) = r rho'(r^2 / c^2)

    Priors, starts and gaps keep their squares.
    """

    name: str = "linear"
    scale: float = 1.0  # c, in units of sigma

    @property
    def robust(self) -> bool:
        """Whether it is another than the square."""
        return self.name != "linear"

    def influence(self, residuals: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
        """`psi`, as which a residual counts."""
        if not self.robust:
            return residuals
        return residuals * self._shape.weight((residuals / self.scale) ** 2)

    def level(self, residuals: Float[np.ndarray, " n"], freedom: float) -> float:
        r"""Standard deviation of the normal bulk of residuals, whatever outliers there are.

            sum psi(r / s)^2 = freedom E[psi(n)^2],    n standard normal

        for `s`: Huber's proposal 2 [Huber1981, section 7.7], of squares their root mean square. It
        is zero where so many residuals are that no `s` is small enough.

        Args:
            residuals: of samples, in any unit, which is that of the result.
            freedom: degrees of freedom that are left to them.
        """
        from scipy.optimize import brentq

        largest = float(np.abs(residuals).max(initial=0.0))
        if not self.robust or not 0 < largest < np.inf:
            return root_mean_square(residuals, freedom)
        relative = np.where(np.abs(residuals) > _NOTHING * largest, residuals / largest, 0.0)
        expected = self._of_normal()
        if np.count_nonzero(relative) * self.scale**2 <= freedom * expected:
            return 0.0

        def excess(logarithm: float) -> float:
            scaled = self.influence(relative * np.exp(-logarithm))
            return float(np.sum(scaled**2)) - freedom * expected

        # Squares of psi are below those of residuals.
        high = float(np.log(root_mean_square(relative, freedom * expected)))
        low = high - 1.0
        while excess(low) < 0:
            low -= 1.0
        found: Any = brentq(excess, low, high + 1e-9, xtol=1e-12)
        return largest * float(np.exp(found))

    def reduced(self, found: LinearizedFit, freedom: float) -> float:
        """Chi-square by degrees of freedom; outliers count in it by their influence.

        Args:
            found: residuals in units of the noise.
            freedom: degrees of freedom.
        """
        if not self.robust:
            return found.squares / freedom
        total = float(np.sum(found.priors**2))
        for g in found.groups:
            counted = np.where(g.rows >= 0, self.influence(g.value), g.value)
            total += float(np.sum(counted**2))
        return total / (freedom * self._of_normal())

    def _of_normal(self) -> float:
        """`E[psi(n)^2]` of a standard normal number."""
        n = np.linspace(-_FAR, _FAR, _POINTS)
        density = np.exp(-0.5 * n**2)
        return float(np.sum(self.influence(n) ** 2 * density) / np.sum(density))

    def beyond(self, found: LinearizedFit) -> int:
        """Number of samples further from the model than the scale, which count less."""
        far = (np.sum(np.abs(g.value[:, g.rows >= 0]) > self.scale) for g in found.groups)
        return int(sum(far)) if self.robust else 0

    def cost(self, found: LinearizedFit) -> float:
        """The sum, with the squares of all that are no samples.

        Args:
            found: residuals in units of the noise.
        """
        if not self.robust:
            return found.squares
        total = float(np.sum(found.priors**2))
        with np.errstate(over="ignore", invalid="ignore"):
            for g in found.groups:
                lost = self.scale**2 * self._shape.value((g.value / self.scale) ** 2)
                total += float(np.sum(np.where(g.rows >= 0, lost, g.value**2)))
        return total

    def rows(self, found: LinearizedFit, *, least: float = _OF_STEPS) -> LinearizedFit:
        r"""Rows whose squares have the gradient and the curvature of the loss.

        `sqrt(psi') J` and `psi / sqrt(psi')` [TriggsEtAl2000, section 4.3]: their product is the
        gradient `J^T psi`, and the curvature is `J^T diag(psi') J`.

        Args:
            found: residuals in units of the noise.
            least: of `psi'`, as a part of `rho'`.
        """

        def changed(r):
            z = (r / self.scale) ** 2
            weight = self._shape.weight(z)
            root = np.sqrt(np.maximum(self._shape.slope(z), least * weight))
            return r * weight / root, root

        return _by_samples(found, changed) if self.robust else found

    def rows_of_errors(self, found: LinearizedFit) -> LinearizedFit:
        """As `rows`, with the curvature itself, of which errors are made."""
        return self.rows(found, least=_OF_ERRORS)

    def sensitivity(self, found: LinearizedFit, units: np.ndarray, samples: int) -> Sensitivity:
        r"""As `uncertainty.sensitivity`, with the covariance of an estimate by this loss.

            (J^T diag(psi') J)^{-1} J^T diag(psi^2) J (J^T diag(psi') J)^{-1} n / (n - p)

        for independent residuals of any distribution [Huber1981, section 7.6; White1980]; priors
        and measured starts count in the middle with the noise that they have.

        Args:
            found: residuals in units of the noise.
            units: of the unknowns.
            samples: number of them.
        """
        seen = sensitivity(self.rows_of_errors(found), units)
        if not self.robust:
            return seen
        enlarged = np.sqrt(samples / max(samples - seen.rank, 1))
        scored = _by_samples(found, lambda r: (r, np.abs(self.influence(r)) * enlarged)).closed()
        spread = triangular(scored)[:, kept_entries(scored)] @ seen.covariance
        return seen._replace(covariance=spread.T @ spread)

    @property
    def _shape(self) -> Shape:
        return _SHAPES[self.name]


SQUARES = Loss()


def loss_of(name: Any, scale: Any) -> Loss:
    """A loss by its name; errors for another name, or a scale that is no positive number."""
    if not isinstance(name, str) or name not in _SHAPES:
        raise ValueError(f"identify: loss is {name!r}, must be one of {', '.join(_SHAPES)}.")
    number = isinstance(scale, float | int | np.number) and not isinstance(scale, bool)
    if not number or not 0 < scale < np.inf:
        raise ValueError(
            f"identify: f_scale is {scale!r}, must be a positive number, in units of sigma, such "
            "as 1.345."
        )
    return Loss(name, float(scale))


def _by_samples(found: LinearizedFit, change: Callable) -> LinearizedFit:
    """With other residuals of the samples, and with factors of their derivatives."""
    groups = []
    for g in found.groups:
        with np.errstate(over="ignore", invalid="ignore"):
            value, factor = change(g.value)
            factor = np.where(g.rows >= 0, factor, 1.0)[..., None]
            groups.append(
                g._replace(
                    value=np.where(g.rows >= 0, value, g.value),
                    shared=g.shared * factor,
                    own=g.own * factor,
                )
            )
    return found._replace(groups=groups)
