"""Controllers as an argument of `simulate`."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import PID


class Cart(jaxdae.System):
    """A cart pushed by the control against a constant load."""

    mass: float = 1.5
    load: float = 2.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        del t, q, v, w
        return u - self.load


@pytest.mark.slow
def test_a_pid_controller_leaves_no_steady_error():
    """Its integral takes over the load: error zero, control equal to the load."""
    pid = PID(lambda t, q: 1.0 - q + 0.0 * t, K_P=12.0, K_I=8.0, K_D=6.0)
    start = jaxdae.State(jnp.zeros(1), jnp.zeros(1))
    # The slowest root of 1.5 s^3 + 6 s^2 + 12 s + 8 is -1.12: below 1e-12 after 30 s.
    run = jaxdae.simulate(Cart(), jaxdae.Multipliers(), start, t1=30.0, controller=pid)
    np.testing.assert_allclose(run.q[-1], 1.0, atol=1e-6)
    np.testing.assert_allclose(run.u[-1], 2.0, atol=1e-5)


def test_the_adjoint_that_cannot_save_rows_is_refused():
    start = jaxdae.State(jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(TypeError, match=r"use diffrax\.RecursiveCheckpointAdjoint"):
        jaxdae.simulate(
            Cart(),
            jaxdae.Multipliers(),
            start,
            t1=1.0,
            controller=lambda t, q, v, w: -q,  # noqa: ARG005
            adjoint=diffrax.BacksolveAdjoint(),
        )
