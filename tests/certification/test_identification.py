"""`identify` examines the derivatives that its standard errors are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.measured_oscillator import build, CHANNELS, record
from jaxdae.identification import identify

GUESS = {"stiffness": jnp.array(3.0), "damping": jnp.array(0.4)}


@pytest.mark.slow
def test_derivatives_at_the_estimate_are_certified():
    data = record(np.random.default_rng(1))
    found = identify(build, GUESS, data, channels=CHANNELS, dt=0.1, certify=True)
    assert found.gradient_certificate is not None
    assert found.gradient_certificate.passed, found.gradient_certificate.reason
    assert found.gradient_certificate.digits > 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:identify. the method stopped")
def test_derivatives_that_are_wrong_are_warned_of():
    """Damping enters the model at a tenth of its influence, by its derivative alone."""

    def wrong(params):
        damping = params["damping"]
        held = jax.lax.stop_gradient(damping)
        return build({**params, "damping": held + 0.1 * (damping - held)})

    data = record(np.random.default_rng(1))
    with pytest.warns(RuntimeWarning, match=r"at the estimate, gradient not certified"):
        found = identify(wrong, GUESS, data, channels=CHANNELS, dt=0.1, certify=True, steps=20)
    assert found.gradient_certificate.fault == "derivative"
