r"""Gains that no step of an optimizer can take out of a method's stability region.

The roots of `s^2 + K_D s + K_P` with `K_D = 2 zeta omega`, `K_P = omega^2` are `omega` times those
of `s^2 + 2 zeta s + 1`: at a damping ratio `zeta` a method of step `h` damps both as long as
`omega h < L(zeta)`, the first exit of the rays through them from the region where `|R(z)| <= 1`.
`L` has a corner at `zeta = 1`, where complex roots become real. A smooth bound lies below it:

    L(zeta) >= S(log zeta) / (zeta + sqrt(zeta^2 + 1))

with a sum `S` of cubic B-splines, which is a mean of its coefficients, each of them the least value
of what is to be bounded where its own B-spline is not zero.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from jaxdae.formulations.gains import check_positive
from jaxdae.formulations.stabilization import Baumgarte
from jaxdae.stability import step_gains
from jaxdae.stability.arguments import is_real
from jaxdae.stability.damping import REACH
from jaxdae.stability.stability_functions import amplification
from jaxdae.systems.checks import is_concrete
from jaxdae.tuning.parametrizations import AbstractParametrization

# Damping ratios that can be reached; pieces of the spline of their logarithm, and samples of each.
_LEAST, _LARGEST, _PIECES, _SAMPLES = 0.05, 20.0, 240, 4
_LOG_LEAST = math.log(_LEAST)
_LENGTH = math.log(_LARGEST / _LEAST) / _PIECES
# Radii along each ray. Below the exit by more than what lies between samples.
_RADII, _SAFETY = 800, 1 - 1e-3
# Where theory's gains are at the bound, of what it admits the start takes so much.
_START = 0.9


class StableGains(AbstractParametrization):
    r"""Baumgarte's gains with a step limit of at least `margin dt`, wherever the optimizer goes.

    Stands in the place of the stabilization, `Multipliers(StableGains(RK4(), 0.01))`; its `value`
    is a `Baumgarte`. Reached are damping ratios `K_D / (2 sqrt(K_P))` from 0.05 to 20 with all
    positive `K_P` up to a smooth bound inside of the limit. Where a method has no limit, roots end
    at 10 over the step. `raw` holds, for each position constraint, `logit` of `sqrt(K_P)` over its
    bound, then `logit` of the place of the logarithm of the ratio within its range, and then
    `logit` of `Gamma` over its bound for each velocity constraint.

    Args:
        solver: a Runge-Kutta solver, or `AdamsBashforth`.
        dt: largest step at which the gains are used [s].
        K_D: velocity gain to start from [1/s], scalar or diagonal `(m,)`; without `K_D` and `K_P`
            those of `step_gains` for the step `margin dt`.
        K_P: position gain [1/s^2], likewise.
        Gamma: gain of velocity constraints [1/s], scalar or `(r,)`; by default as above.
        margin: the step limit over `dt`, at least 1.

    Raises:
        TypeError: for a step or a margin that is no number.
        ValueError: for gains outside the bound, with how far; or a margin, a step or shapes that
            make no sense.
    """

    raw: Float[Array, " 2*m+r"]
    limits: Float[Array, " coefficients"]
    real_limit: Float[Array, ""]
    largest_step: Float[Array, ""]
    # Whether K_D and K_P, and Gamma, are scalars.
    scalars: tuple[bool, bool] = eqx.field(static=True)
    # How many of them there are.
    counts: tuple[int, int] = eqx.field(static=True)

    def __init__(
        self,
        solver: Any,
        dt: float,
        K_D: ArrayLike | None = None,
        K_P: ArrayLike | None = None,
        Gamma: ArrayLike | None = None,
        *,
        margin: float = 1.0,
    ):
        if (K_D is None) != (K_P is None):
            raise ValueError("StableGains: give K_D and K_P, or neither for those of theory.")
        _check_times(dt, margin)
        # Those for the largest step that has to be damped.
        theory = step_gains(solver, margin * dt)
        limits, real = _limits(solver)
        self.limits, self.real_limit = jnp.asarray(limits), jnp.asarray(real)
        self.largest_step = jnp.asarray(float(margin * dt))
        if K_D is None:
            less = min(1.0, _START / float(np.max(self._fractions(theory.K_D, theory.K_P)[0])))
            K_D, K_P = theory.K_D * less, theory.K_P * less**2
        single = min(theory.Gamma, _START * real / (margin * dt)) if Gamma is None else Gamma
        for name, gain in (("K_D", K_D), ("K_P", K_P), ("Gamma", single)):
            _check_gain(name, gain)
        K_D, K_P, single = (np.asarray(x, float) for x in (K_D, K_P, single))
        self.scalars = (K_D.ndim + K_P.ndim == 0, single.ndim == 0)
        K_D, K_P = np.broadcast_arrays(np.atleast_1d(K_D), np.atleast_1d(K_P))
        self.counts = (K_D.size, single.size)
        self.raw = jnp.concatenate(self._unconstrained(K_D, K_P, np.atleast_1d(single)))

    @property
    def value(self) -> Baumgarte:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The stabilization, of gains with the shapes that were given."""
        real, h = jax.lax.stop_gradient((self.real_limit, self.largest_step))
        m, _ = self.counts
        size, place, single = (jax.nn.sigmoid(x) for x in jnp.split(self.raw, (m, 2 * m)))
        ratio = jnp.exp(_LOG_LEAST + _PIECES * _LENGTH * place)
        omega = size * self._bound(place * _PIECES) / h
        shaped = lambda x, scalar: x[0] if scalar else x  # noqa: E731
        K_D, K_P = (shaped(x, self.scalars[0]) for x in (2 * ratio * omega, omega**2))
        return Baumgarte(K_D, K_P, shaped(single * real / h, self.scalars[1]))

    def __call__(self, t, q, v, phi, phi_dot) -> Float[Array, " c"]:
        """Wanted `d(phi_dot)/dt` with the gains as they are."""
        return self.value(t, q, v, phi, phi_dot)

    def _bound(self, x: Float[Array, " m"]) -> Float[Array, " m"]:
        """The bound below `L`, at places counted in pieces."""
        limits = jax.lax.stop_gradient(self.limits)
        i = jnp.clip(jnp.floor(jax.lax.stop_gradient(x)), 0, _PIECES - 1).astype(int)
        t = x - i
        s = 1 - t
        weights = (s**3, 3 * t**3 - 6 * t**2 + 4, 3 * s**3 - 6 * s**2 + 4, t**3)
        parts = [w * limits[i + k] for k, w in enumerate(weights)]
        ratio = jnp.exp(_LOG_LEAST + _LENGTH * x)
        return (parts[0] + parts[1] + parts[2] + parts[3]) / (6 * _shape(ratio))

    def _fractions(self, K_D, K_P) -> tuple[np.ndarray, np.ndarray]:
        """`sqrt(K_P)` over its bound, and the place of the logarithm of the ratio."""
        omega = np.sqrt(K_P)
        ratio = K_D / (2 * omega)
        if not np.all((ratio > _LEAST) & (ratio < _LARGEST)):
            raise ValueError(
                f"StableGains: the damping ratio K_D / (2 sqrt(K_P)) is {np.array2string(ratio)}, "
                f"must be above {_LEAST:g} and below {_LARGEST:g}; 1 is critical."
            )
        place = np.log(ratio / _LEAST) / (_PIECES * _LENGTH)
        bound = np.asarray(self._bound(jnp.asarray(place * _PIECES)))
        return omega * float(self.largest_step) / bound, place

    def _unconstrained(self, K_D, K_P, Gamma) -> list[Array]:
        """`raw` of given gains."""
        h = float(self.largest_step)
        size, place = self._fractions(K_D, K_P)
        single = Gamma * h / float(self.real_limit)
        for name, x in (("sqrt(K_P)", size), ("Gamma", single)):
            if not np.all(x < 1):
                raise ValueError(
                    f"StableGains: {name} is {np.max(x):.4g} times what is admitted with these "
                    f"ratios for steps up to {h:.4g} s; give smaller gains, a shorter step or a "
                    "smaller margin."
                )
        return [jnp.asarray(np.log(x / (1 - x))) for x in (size, place, single)]


def _check_gain(name: str, gain: Any) -> None:
    check_positive(name, gain)
    if np.ndim(gain) > 1:
        raise ValueError(
            f"StableGains: {name} has shape {np.shape(gain)}; give a number or a diagonal as a "
            "vector: the roots of full matrices are not those of their entries."
        )


def _limits(solver) -> tuple[np.ndarray, float]:
    """Coefficients of the spline below `L`, and the exit from the region along the real axis."""
    real = float(_exits(solver, np.array([-1.0 + 0.0j]))[0])
    # Two pieces beyond both ends, and a sample beyond these.
    reach = (2 * _SAMPLES) + 1
    places = np.arange(-_SAMPLES - reach, (_PIECES + 1) * _SAMPLES + reach + 1) / _SAMPLES
    ratio = _LEAST * np.exp(places * _LENGTH)
    swinging = ratio < 1
    rays = -ratio[swinging] + 1j * np.sqrt(1 - ratio[swinging] ** 2)
    fast = ratio[~swinging] + np.sqrt(ratio[~swinging] ** 2 - 1)
    limit = np.concatenate([_exits(solver, rays), real / fast]) * _shape(ratio)
    windows = np.lib.stride_tricks.sliding_window_view(limit, 2 * reach + 1)
    return _SAFETY * windows.min(axis=1)[::_SAMPLES], _SAFETY * real


def _shape(ratio):
    """What `L` is nearly inverse to, away from critical damping."""
    return ratio + (ratio**2 + 1) ** 0.5


def _exits(solver, rays) -> np.ndarray:
    """Distance at which each ray leaves the region where the method does not amplify."""
    radii = np.linspace(0.0, REACH, _RADII + 1)[1:]
    beyond = amplification(solver, rays[:, None] * radii) > 1 + 1e-12
    first = np.where(beyond.any(axis=1), beyond.argmax(axis=1), _RADII)
    low = np.where(first > 0, radii[first - 1], 0.0)
    high = radii[np.minimum(first, _RADII - 1)]
    for _ in range(40):
        middle = 0.5 * (low + high)
        out = amplification(solver, rays * middle) > 1
        low, high = np.where(out, low, middle), np.where(out, middle, high)
    return low


def _check_times(dt: Any, margin: Any) -> None:
    for name, value, least in (("dt", dt, "positive"), ("margin", margin, "at least 1")):
        if not is_real(value) or not is_concrete(value):
            raise TypeError(
                f"StableGains: {name} is {value!r}, must be a number that is not traced; after the "
                "solver comes the step: StableGains(solver, dt, K_D, K_P)."
            )
        if not (np.isfinite(value) and (value > 0 if name == "dt" else value >= 1)):
            raise ValueError(f"StableGains: {name} is {value}, must be finite and {least}.")
