"""Digital filters, made of analog ones by the bilinear transformation."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.control.limits import check_above_zero
from jaxdae.reprs import Module


class DigitalFilter(Module):
    r"""A linear filter of signals at samples, `a_0 y_k = sum b_i x_{k-i} - sum_{i>0} a_i y_{k-i}`.

    Its memory are the `l` sums of the transposed direct form II, at first zero.

    Args:
        numerator: `b`, shape `(l+1,)`.
        denominator: `a`, shape `(l+1,)`, with `a_0 = 1`.
        size: number `s` of signals, each filtered by itself.

    Raises:
        ValueError: for coefficients of two lengths, or that are not finite.
    """

    numerator: Float[Array, " o"]
    denominator: Float[Array, " o"]
    size: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        shapes = jnp.shape(self.numerator), jnp.shape(self.denominator)
        if shapes[0] != shapes[1] or len(shapes[0]) != 1:
            raise ValueError(
                f"numerator and denominator must be vectors of one length; got {shapes[0]} and "
                f"{shapes[1]}."
            )
        if fails(
            lambda b, a: np.isfinite([*b, *a]).all() and np.isclose(a[0], 1),
            self.numerator,
            self.denominator,
        ):
            raise ValueError(
                "coefficients of a filter must be finite, and the first of the denominator 1; got "
                f"{self.numerator} and {self.denominator}."
            )

    @classmethod
    def low_pass(cls, cutoff, period, *, order: int = 1, size: int = 1) -> "DigitalFilter":
        r"""Butterworth's low-pass filter, with its gain of `1 / sqrt(2)` exactly at the cutoff.

            1 / (s + 1)   or   1 / (s^2 + sqrt(2) s + 1)
            s = (z - 1) / (z + 1) / tan(cutoff h / 2)

        by the bilinear transformation with prewarping [AstromWittenmark1997, section 8.3].

        Args:
            cutoff: frequency [rad/s].
            period: `h` of the samples [s].
            order: 1 or 2.
            size: number of signals.

        Raises:
            ValueError: for a cutoff that is not positive, or not below the Nyquist frequency
                `pi / h`, or another order.
        """
        _check_frequency("cutoff", cutoff, period)
        c = jnp.tan(jnp.asarray(cutoff, float) * period / 2)
        if order == 1:
            b, a = [c, c], [1 + c, c - 1]
        elif order == 2:
            root = np.sqrt(2.0) * c
            b, a = [c**2, 2 * c**2, c**2], [1 + root + c**2, 2 * (c**2 - 1), 1 - root + c**2]
        else:
            raise ValueError(
                f"order must be 1 or 2, got {order}; use two filters, one behind the other."
            )
        return cls(jnp.stack(b) / a[0], jnp.stack(a) / a[0], size)

    @classmethod
    def notch(cls, frequency, period, *, quality=1.0, size: int = 1) -> "DigitalFilter":
        r"""A filter that takes one frequency out, and leaves slow and fast signals as they are.

            (s^2 + 1) / (s^2 + s / quality + 1),    s = (z - 1) / (z + 1) / tan(frequency h / 2)

        by the bilinear transformation with prewarping [AstromWittenmark1997, section 8.3].

        Args:
            frequency: that is taken out [rad/s].
            period: `h` of the samples [s].
            quality: frequency over the width between gains of `1 / sqrt(2)`.
            size: number of signals.

        Raises:
            ValueError: for a frequency that is not positive, or not below the Nyquist frequency
                `pi / h`, or a quality that is not positive.
        """
        _check_frequency("frequency", frequency, period)
        check_above_zero("quality", quality, "")
        c = jnp.tan(jnp.asarray(frequency, float) * period / 2)
        even, odd, width = 1 + c**2, 2 * (c**2 - 1), c / quality
        b, a = jnp.stack([even, odd, even]), jnp.stack([even + width, odd, even - width])
        return cls(b / a[0], a / a[0], size)

    @property
    def memory(self) -> Float[Array, "l s"]:
        """What the first sample is given."""
        return jnp.zeros((len(self.numerator) - 1, self.size))

    def __call__(self, x, memory):
        b, a = jnp.asarray(self.numerator), jnp.asarray(self.denominator)
        following = jnp.concatenate([memory, jnp.zeros_like(memory, shape=(1, *memory.shape[1:]))])
        y = b[0] * x + following[0]
        return y, following[1:] + b[1:, None] * x - a[1:, None] * y


def _check_frequency(name: str, frequency, period) -> None:
    check_above_zero("period", period, " s")
    check_above_zero(name, frequency, " rad/s")
    if fails(lambda w, h: np.all(w * h < np.pi), frequency, period):
        raise ValueError(
            f"{name} = {frequency} rad/s is not below the Nyquist frequency pi / period = "
            f"{np.pi / float(period):.6g} rad/s: samples do not show it. Sample more often."
        )
