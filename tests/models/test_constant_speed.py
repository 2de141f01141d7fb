"""Constraints that are not affine in the velocities, against their closed forms."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, State
from jaxdae.models import AppellHamel, ConstantSpeed

TIGHT = diffrax.PIDController(rtol=1e-11, atol=1e-11)
STRAIGHT = ConstantSpeed(climb=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("model", [ConstantSpeed(), AppellHamel()], ids=["speed", "thread"])
def test_motion_and_multiplier_follow_the_closed_form(model):
    state, ts = State(*model.start()), jnp.linspace(0.0, 1.5, 7)
    run = jaxdae.simulate(
        model, Multipliers(), state, t1=1.5, saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=TIGHT,
    )  # fmt: skip
    q, v = jax.jit(jax.vmap(model.exact_motion))(ts)
    # The tolerance; between steps the interpolant's.
    np.testing.assert_allclose(run.q, q, atol=1e-7)
    np.testing.assert_allclose(run.v, v, atol=1e-6)
    np.testing.assert_allclose(run.multipliers, jax.vmap(model.multiplier)(run.v), atol=1e-6)


def test_from_the_horizontal_the_path_falls_by_the_hyperbolic_tangent():
    ts = np.linspace(0.0, 2.0, 9)
    _, v = jax.vmap(STRAIGHT.exact_motion)(jnp.asarray(ts))
    sine = np.asarray(v[:, 1]) / np.linalg.norm(v, axis=1)
    np.testing.assert_allclose(sine, -np.tanh(9.81 * ts / 4.0), rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("model", [ConstantSpeed(), AppellHamel()], ids=["speed", "thread"])
def test_the_reaction_does_no_work_on_virtual_displacements_of_chetaev(model, saddle_point):
    """`M a - f` vanishes on every `dq` with `(dg/dv) dq = 0`: d'Alembert with Chetaev's rule."""
    q, v = model.start()
    a, _ = saddle_point(model, 0.0, q, v)
    d = jaxdae.evaluate(model, 0.0, q, v)
    gradient = jax.jacfwd(model.velocity_constraints, argnums=2)(0.0, q, v)
    virtual = np.linalg.svd(np.asarray(gradient))[2][1:]
    np.testing.assert_allclose(virtual @ (d.mass @ a - d.force), 0.0, atol=1e-12)
    assert np.abs(d.mass @ a - d.force).max() > 1.0
