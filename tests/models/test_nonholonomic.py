"""Velocity constraints, affine in the velocities and not, beside the laws of all closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.models import (
    AppellHamel,
    ChaplyginSleigh,
    ConstantSpeed,
    DifferentialDriveRobot,
    KnifeEdge,
)


def test_sleigh_keeps_its_heading_and_speed_laws_for_any_inertia(saddle_point):
    """The positions have no elementary form then, and say so; heading and speeds do."""
    model = ChaplyginSleigh(inertia=0.9)
    assert np.isnan(model.exact_position(1.0)[:2]).all()
    k = np.sqrt(model.offset**2 + model.inertia / model.mass)

    def velocity(t):
        s, theta = model.phase + model.offset * model.speed * t / k**2, model.exact_position(t)[2]
        along = model.speed * jnp.tanh(s) * jnp.stack([jnp.cos(theta), jnp.sin(theta)])
        return jnp.append(along, model.speed / k / jnp.cosh(s))

    for t in (0.0, 0.7, 2.0):
        q, v = model.exact_position(t).at[:2].set(0.0), velocity(t)
        a, lam = saddle_point(model, 0.0, q, v)
        np.testing.assert_allclose(a, jax.jacfwd(velocity)(t), atol=1e-13)
        np.testing.assert_allclose(model.multiplier(q, v), lam[0], atol=1e-13)


def test_knife_edge_drifts_across_the_slope_and_not_down():
    """After each half turn it is back at its height, `pi g sin(alpha) / (2 w^2)` to the side."""
    model = KnifeEdge()
    half_turn = np.pi / model.turn_rate
    drift = np.pi * model.gravity * np.sin(model.slope) / (2 * model.turn_rate**2)
    # sin(pi) is 1e-16
    expected = [0.0, drift, np.pi]
    np.testing.assert_allclose(model.exact_position(half_turn), expected, atol=1e-14)


@pytest.mark.parametrize("torques", [(0.3, -0.1), (0.0, 0.0)])
def test_robot_accelerates_by_the_balances_of_momentum(torques, saddle_point):
    model, (right, left) = DifferentialDriveRobot(), torques
    heading, speed, rate = 0.7, 0.9, -1.3
    q = jnp.asarray([0.1, 0.2, heading, 0.3, 0.4])
    r, b, c, d = model.wheel_radius, model.half_track, model.friction, model.offset
    wheels = [(speed + b * rate) / r, (speed - b * rate) / r]
    v = jnp.asarray([speed * np.cos(heading), speed * np.sin(heading), rate, *wheels])
    a, _ = saddle_point(model, 0.0, q, v, None, jnp.asarray(torques))
    wheel = 2 * model.wheel_inertia / r**2
    forward = (right + left) / r - 2 * c * speed / r**2 + model.mass * d * rate**2
    turning = b * (right - left) / r - 2 * c * b**2 * rate / r**2 - model.mass * d * speed * rate
    moment = model.inertia + model.mass * d**2 + wheel * b**2
    along = a[0] * np.cos(heading) + a[1] * np.sin(heading)
    # 8 unknowns, wheels of 0.004 kg m^2 beside a body of 8 kg
    assert along == pytest.approx(forward / (model.mass + wheel), rel=1e-10)
    assert a[2] == pytest.approx(turning / moment, rel=1e-10)


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
