"""Controllers as an argument of `simulate`."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import PID
from jaxdae.control.base import ControlledSystem
from jaxdae.plotting import shapes


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

    def points(self, t, q):
        del t
        return jaxdae.Points({"cart": jnp.stack([q[0], 0.0 * q[0]])}, trace=("cart",))


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


@pytest.mark.slow
def test_a_run_under_a_controller_with_a_state_is_drawn():
    pid = PID(lambda t, q: 1.0 - q + 0.0 * t, K_P=12.0, K_I=8.0, K_D=6.0)
    start = jaxdae.State(jnp.array([0.25]), jnp.zeros(1))
    run = jaxdae.simulate(Cart(), jaxdae.Multipliers(), start, t1=0.5, dt=0.25, controller=pid)
    assert isinstance(run.system, ControlledSystem)
    for found in (shapes.along(run, run.ts), shapes.along(run.stored(), run.ts)):
        np.testing.assert_array_equal(found.places["cart"][:, 0], run.q[:, 0])
