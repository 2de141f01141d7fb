"""Digital filters against SciPy's designs, and as SciPy filters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

from jaxdae.control import DigitalFilter

PERIOD = 0.01


def coefficients(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of one of SciPy's designs."""
    b, a = found
    return np.asarray(b), np.asarray(a)


def filtered(digital, signal):
    """All outputs for a signal `(samples, s)`."""

    def sample(memory, x):
        y, memory = digital(x, memory)
        return memory, y

    return jax.lax.scan(sample, digital.memory, jnp.asarray(signal))[1]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("cutoff", [3.0, 100.0, 300.0])
def test_the_low_pass_is_butterworths_of_scipy(order, cutoff):
    found = DigitalFilter.low_pass(cutoff, PERIOD, order=order)
    b, a = coefficients(scipy.signal.butter(order, cutoff / (2 * np.pi), fs=1 / PERIOD))
    np.testing.assert_allclose(found.numerator, b, rtol=1e-9)
    np.testing.assert_allclose(found.denominator, a, rtol=1e-9, atol=1e-13)
    z = np.exp(1j * cutoff * PERIOD)
    gain = np.polyval(found.numerator, z) / np.polyval(found.denominator, z)
    np.testing.assert_allclose(abs(gain), np.sqrt(0.5), rtol=1e-9)


@pytest.mark.parametrize("frequency", [3.0, 100.0, 300.0])
def test_the_notch_is_the_bilinear_one_of_scipy_and_takes_its_frequency_out(frequency):
    found = DigitalFilter.notch(frequency, PERIOD, quality=3.0)
    w = 2 / PERIOD * np.tan(frequency * PERIOD / 2)
    analog = [1, 0, w**2], [1, w / 3.0, w**2]
    b, a = coefficients(scipy.signal.bilinear(*analog, fs=1 / PERIOD))
    np.testing.assert_allclose(found.numerator, b, rtol=1e-9)
    np.testing.assert_allclose(found.denominator, a, rtol=1e-9)
    gains = [np.polyval(found.numerator, z) for z in (np.exp(1j * frequency * PERIOD), 1.0)]
    np.testing.assert_allclose(gains[0], 0, atol=1e-12)
    np.testing.assert_allclose(gains[1], np.polyval(found.denominator, 1.0), rtol=1e-9)


def test_signals_are_filtered_as_by_scipy_each_by_itself(rng):
    signal = rng.normal(size=(40, 2))
    digital = DigitalFilter.low_pass(60.0, PERIOD, order=2, size=2)
    wanted = scipy.signal.lfilter(digital.numerator, digital.denominator, signal, axis=0)
    np.testing.assert_allclose(filtered(digital, signal), wanted, rtol=1e-11, atol=1e-14)
    b, a = coefficients(scipy.signal.cheby1(3, 1.0, 0.2))
    other = DigitalFilter(jnp.asarray(b), jnp.asarray(a), size=2)
    wanted = scipy.signal.lfilter(b, a, signal, axis=0)
    np.testing.assert_allclose(filtered(other, signal), wanted, rtol=1e-10, atol=1e-13)


def test_gradients_by_the_frequency_agree_in_both_modes_with_differences(rng):
    signal = rng.normal(size=(10, 1))

    @jax.jit
    def energy(x):
        low = filtered(DigitalFilter.low_pass(x, PERIOD, order=2), signal)
        return jnp.sum(filtered(DigitalFilter.notch(x, PERIOD, quality=0.02 * x), low) ** 2)

    difference = (energy(60.001) - energy(59.999)) / 0.002
    np.testing.assert_allclose(jax.grad(energy)(60.0), difference, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(energy)(60.0), difference, rtol=1e-6)


def test_what_is_no_filter_is_refused():
    for make in (DigitalFilter.low_pass, DigitalFilter.notch):
        with pytest.raises(ValueError, match=r"not below the Nyquist frequency .* 314\.159 rad/s"):
            make(315.0, PERIOD)
        with pytest.raises(ValueError, match="must be positive and finite; got 0 rad/s"):
            make(0, PERIOD)
        with pytest.raises(ValueError, match=r"period must be positive and finite; got nan s"):
            make(1.0, np.nan)
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        DigitalFilter.low_pass(1.0, PERIOD, order=3)
    with pytest.raises(ValueError, match="quality must be positive"):
        DigitalFilter.notch(1.0, PERIOD, quality=-1.0)
    with pytest.raises(ValueError, match=r"vectors of one length; got \(1,\) and \(2,\)"):
        DigitalFilter(jnp.ones(1), jnp.ones(2))
    with pytest.raises(ValueError, match="must be finite, and the first of the denominator 1"):
        DigitalFilter(jnp.ones(2), jnp.array([2.0, 1.0]))
    with pytest.raises(ValueError, match="must be finite, and the first of the denominator 1"):
        DigitalFilter(jnp.array([jnp.nan, 1.0]), jnp.array([1.0, 1.0]))
