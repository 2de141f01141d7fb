"""Periodic functions by trigonometric interpolation: what paths and feedforwards are cheap as."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Periodic(eqx.Module):
    """A periodic function by its harmonics.

    Args:
        cosines: of each harmonic from the mean on, shape (harmonics, size).
        sines: likewise.
        period: of its argument.
    """

    cosines: Float[Array, "harmonics size"]
    sines: Float[Array, "harmonics size"]
    period: float = eqx.field(static=True)

    def __call__(self, t) -> Float[Array, " size"]:
        phases = 2 * jnp.pi * t / self.period * jnp.arange(len(self.cosines))
        return jnp.cos(phases) @ self.cosines + jnp.sin(phases) @ self.sines


class Interpolation(NamedTuple):
    """A periodic function, and how far it is from what it interpolates.

    Args:
        function: the interpolation.
        error: largest, halfway between the samples.
    """

    function: Periodic
    error: Float[Array, ""]


def interpolated(function, period: float, samples: int = 32) -> Interpolation:
    """Through values of a function at equal arguments of a period, and held against others.

    Args:
        function: of one number, to shape (size,); its harmonics must fall off within the samples.
        period: of it.
        samples: an even number; half as many harmonics.
    """
    values = jax.vmap(function)(jnp.arange(2 * samples) * period / (2 * samples))
    spectrum = 2 * jnp.fft.rfft(values[::2], axis=0)[: samples // 2] / samples
    result = Periodic(spectrum.real.at[0].divide(2), -spectrum.imag, period)
    halfway = jax.vmap(result)((jnp.arange(samples) + 0.5) * period / samples)
    return Interpolation(result, jnp.abs(halfway - values[1::2]).max())
