"""Motions that are prescribed, with the torque that drives them by hand."""

import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.multibody import Body, Hinge, Multibody, PrescribedJoint, PrescribedPoint


def test_joints_and_points_move_as_prescribed():
    """And the multiplier is the drive's torque: `-lam = J a + m g l cos(angle)`."""
    J, mgl, W = 0.1 + 2.0 * 0.4**2, 2.0 * 9.81 * 0.4, 3.0
    hinge = Hinge("angle", (0, -1, 0))
    rod = Body("rod", hinge, mass=2.0, centre=(0.4, 0, 0), inertia=(0.0, 0.1, 0.1))
    system = Multibody([rod], [PrescribedJoint("drive", "angle", lambda t: 0.5 * jnp.sin(W * t))])
    t = 0.37
    q, v = 0.5 * np.sin(W * t), 0.5 * W * np.cos(W * t)
    terms = jaxdae.evaluate(system, t, jnp.array([q]), jnp.array([v]))
    np.testing.assert_allclose([*terms.phi, *terms.phi_dot], 0.0, atol=1e-15)
    a = -terms.gamma / terms.jac[0]
    np.testing.assert_allclose(a, -(W**2) * q, rtol=1e-14)
    lam = terms.force - terms.mass[0] * a
    np.testing.assert_allclose(-lam, J * a + mgl * np.cos(q), rtol=1e-13)
    assert system.labels().constraint_units == ("rad",)

    path = PrescribedPoint("tip", "rod", lambda t: jnp.stack([0.0, 0.0, t]), (0.8, 0, 0), "z")
    system = Multibody([rod], [path])
    t = 0.3
    q = np.arcsin(t / 0.8)
    terms = jaxdae.evaluate(system, t, jnp.array([q]), jnp.array([1 / (0.8 * np.cos(q))]))
    np.testing.assert_allclose([*terms.phi, *terms.phi_dot], 0.0, atol=1e-15)
