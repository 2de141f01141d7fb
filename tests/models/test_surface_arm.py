"""The arm whose tip stays on a surface."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import jaxdae
from jaxdae import Baumgarte, Hamiltonian, State
from jaxdae.models.arm import Ellipsoid, SurfaceArm
from jaxdae.systems import constraint_residuals

TIGHT: Any = {"stepsize_controller": diffrax.PIDController(rtol=1e-12, atol=1e-12)}


def rigid_body(arm, q, v, ts):
    """Turning matrices and angular velocities of the rigid body that the arm is on a sphere.

    `R' = [w] R` with `w = I^-1 L`, `I = R I0 R^T` and the constant angular momentum `L`.
    """
    points, masses = np.asarray(q).reshape(2, 3), np.array([arm.mass1, arm.mass2])
    eye = np.eye(3)
    inertia = sum(m * (r @ r * eye - np.outer(r, r)) for m, r in zip(masses, points, strict=True))
    velocities = np.asarray(v).reshape(2, 3)
    momentum = sum(m * np.cross(r, s) for m, r, s in zip(masses, points, velocities, strict=True))

    def spin(R):
        return np.linalg.solve(R @ inertia @ R.T, momentum)

    def rate(t, y):
        R = y.reshape(3, 3)
        return np.cross(spin(R), R.T).T.ravel()

    solution = scipy.integrate.solve_ivp(
        rate, (0, ts[-1]), eye.ravel(), method="DOP853", rtol=1e-12, atol=1e-12, t_eval=ts
    )
    turns = solution.y.T.reshape(-1, 3, 3)
    return turns, np.stack([spin(R) for R in turns]), momentum


@pytest.mark.slow
def test_on_a_sphere_about_the_base_the_arm_is_a_rigid_body():
    """Euler's equations, and the contact force from Newton's law of both masses."""
    radius = float(np.linalg.norm([1.08, 0.64, 0.2]))
    arm = SurfaceArm(
        Ellipsoid(axes=radius), gravity=0.0, near=(0.6, 0, 0.8, 1.08, 0.64, 0.2),
        speed=(1.0, 2.0, -0.5, 0.3, 1.0, 3.0),
    )  # fmt: skip
    q, v = arm.start()
    ts = np.linspace(0.0, 1.0, 5)
    run = jaxdae.simulate(
        arm, Hamiltonian(Baumgarte.critical(10.0)), State(q, v), t1=1.0,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)), **TIGHT,
    )  # fmt: skip
    turns, spins, momentum = rigid_body(arm, q, v, ts)
    points = np.asarray(q).reshape(2, 3)
    moved = np.einsum("tij,kj->tki", turns, points)
    np.testing.assert_allclose(run.q, moved.reshape(-1, 6), atol=1e-9)
    # Its spin is not constant: the body tumbles.
    assert np.ptp(spins, axis=0).max() > 0.5
    for i, (r, w) in enumerate(zip(moved, spins, strict=True)):
        inertia = sum(
            m * (x @ x * np.eye(3) - np.outer(x, x)) for m, x in zip((1.5, 1.0), r, strict=True)
        )
        w_dot = np.linalg.solve(inertia, -np.cross(w, momentum))
        a = np.cross(w_dot, r) + np.cross(w, np.cross(w, r))
        # m1 a1 = -2 lam1 r1 + 2 lam2 d: two multipliers from three equations that are consistent.
        d = r[1] - r[0]
        lam, residual, *_ = np.linalg.lstsq(np.stack([-2 * r[0], 2 * d], 1), 1.5 * a[0])
        assert residual[0] < 1e-15
        contact = 1.0 * a[1] + 2 * lam[1] * d
        np.testing.assert_allclose(run.multipliers[i, :2], lam, atol=1e-8)
        got = arm.contact_force(run.q[i], run.multipliers[i])
        np.testing.assert_allclose(got, contact, atol=1e-8)


@pytest.mark.slow
def test_any_smooth_function_is_a_surface():
    """A corrugated floor, given as a plain function: the start is brought onto it."""

    def floor(point):
        return point[2] - 0.1 - 0.05 * jnp.sin(5 * point[0])

    arm = SurfaceArm(floor)
    q, v = arm.start()
    violation = constraint_residuals(arm, 0.0, q, v)
    # Newton's method to its last digits.
    assert max(np.abs(violation.phi).max(), np.abs(violation.phi_dot).max()) < 1e-12
    run = jaxdae.simulate(arm, Hamiltonian(Baumgarte.critical(10.0)), State(q, v), t1=0.5, **TIGHT)
    np.testing.assert_allclose(jax.vmap(floor)(run.q[:, 3:]), 0.0, atol=1e-10)
    np.testing.assert_allclose(run.energy, run.energy[0], atol=1e-9)
