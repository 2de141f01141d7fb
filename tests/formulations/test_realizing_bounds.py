"""Theorem 1: threshold and rate of linear realizing forces, against motions known exactly."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from jaxdae import RealizingForces, State
from jaxdae.formulations import (
    linear_decay_bound,
    linear_decay_rate,
    linear_threshold,
    LinearLaw,
    realizing_constants,
)
from jaxdae.models.disk import RollingDisk
from jaxdae.solvers import RK4
from jaxdae.systems import constraint_residuals


class Pushed(jaxdae.System):
    """A mass `m` that a constraint keeps on a line, and a force `c psi'` pushes off it.

    `m psi'' = (c - k) psi'` under linear forces: stable exactly for `k > c`.
    """

    mass: float = 8.0
    push: float = 2.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        del t, q, w, u
        return jnp.stack([jnp.zeros_like(v[0]), self.push * v[1]])

    def velocity_constraints(self, t, q, v):
        del t, q
        return v[1:]


PUSHED, ALONG = Pushed(), State([0.0, 0.0], [1.0, 0.0])


def test_threshold_and_rate_are_those_of_the_exact_motion():
    found = realizing_constants(PUSHED, 0.0, ALONG)
    np.testing.assert_allclose(found, (2 * 2.0 / 8.0, 2.0, 2.0), rtol=1e-14)
    assert linear_threshold(found.rho2, found.A) == pytest.approx(2.0, rel=1e-14)
    assert linear_decay_rate(3.0, found.rho2, found.A) == pytest.approx((3 - 2) / 8, rel=1e-14)


@pytest.mark.slow
def test_the_printed_inequality_promises_stability_where_the_motion_grows():
    """`A < k / rho2` holds for k = 1.5, between `rho2 A = 1` and the threshold `rho2^2 A = 2`."""
    found = realizing_constants(PUSHED, 0.0, ALONG)
    k = 1.5
    assert k / found.rho2 > found.A
    assert k < linear_threshold(found.rho2, found.A)
    off = State([0.0, 0.0], [1.0, 0.01])
    options = {"t1": 4.0, "dt": 0.1, "solver": RK4(), "start_tolerance": None}
    for k, grows in ((1.5, True), (3.0, False)):
        run = jaxdae.simulate(PUSHED, RealizingForces(LinearLaw(k)), off, **options)
        # The method's error, (0.1 / 8)^5 / 120 a step, is below round-off of the exponential.
        assert run.v[-1, 1] == pytest.approx(0.01 * np.exp((2.0 - k) / 8.0 * 4.0), rel=1e-10)
        assert (abs(run.v[-1, 1]) > 0.01) == grows


@pytest.mark.parametrize(("A", "B"), [(0.0, 0.0), (0.7, 0.0), (0.3, 0.4), (0.0, 1.0)])
def test_bound_solves_the_inequality_of_the_theorem(A, B):
    k, rho, energy, times = 5.0, 1.3, 0.8, np.linspace(0.0, 3.0, 7)
    equation = lambda t, G: (A - k / rho**2) * G + B * G**1.5  # noqa: ARG005, E731
    exact = solve_ivp(equation, (0, 3), [energy], t_eval=times, rtol=1e-11, atol=1e-14).y[0]
    # The tolerance of the reference, as it grows in three seconds.
    np.testing.assert_allclose(linear_decay_bound(times, energy, k, rho, A, B), exact, rtol=1e-8)


def test_nothing_is_promised_at_the_threshold():
    k = linear_threshold(1.3, 0.3, 0.4, 0.8)
    assert np.isinf(linear_decay_bound(1.0, 0.8, k, 1.3, 0.3, 0.4))
    assert np.isfinite(linear_decay_bound(1.0, 0.8, 1.0001 * k, 1.3, 0.3, 0.4))


def test_constants_of_coupled_inertia_are_those_of_the_linear_system(rng):
    """Constant `M`, force `D v` at rest: `W = S J M^-1 D M^-1 J^T S`, by hand."""
    root, rate, jac = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=(2, 3))
    inertia = root @ root.T + np.eye(3)

    class Linear(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            del t, q
            return 0.5 * v @ inertia @ v

        def force(self, t, q, v, w, u):
            del t, q, w, u
            return rate @ v

        def velocity_constraints(self, t, q, v):
            del t, q
            return jac @ v

    found = realizing_constants(Linear(), 0.0, State(np.zeros(3), np.zeros(3)))
    spread = np.linalg.solve(inertia, jac.T)
    S = np.linalg.inv(jac @ spread)
    W = S @ spread.T @ rate @ spread @ S
    values = np.linalg.eigvals(np.linalg.solve(S, W + W.T)).real
    # Small matrices with condition numbers below 100.
    assert max(values.max(), 0.0) == pytest.approx(found.A, rel=1e-11, abs=1e-12)
    np.testing.assert_allclose(
        (found.rho1, found.rho2), np.sqrt(np.linalg.eigvalsh(S) / 2), rtol=1e-12
    )


@pytest.mark.slow
def test_a_disk_rolling_straight_forgets_a_push_within_the_bound():
    """Two constraints with a coupled inertia; the slower of its modes is as fast as the bound."""
    disk, k = RollingDisk(turn_rate=0.0), 20.0
    q, v = disk.start()
    found = realizing_constants(disk, 0.0, State(q, v))
    assert pytest.approx(0.0, abs=1e-12) == found.A
    off = State(q, v + jnp.array([0.1, 0.1, 0.0, 0.0]))
    options = {"t1": 0.5, "dt": 0.01, "solver": RK4(), "start_tolerance": None}
    run = jaxdae.simulate(disk, RealizingForces(LinearLaw(k)), off, **options)
    psi = np.asarray(run.violation.phi_dot)
    d = jaxdae.evaluate(disk, 0.0, q, v)
    S = np.linalg.inv(d.jac @ np.linalg.solve(d.mass, d.jac.T))
    energy = 0.5 * np.einsum("ti,ij,tj->t", psi, S, psi)
    bound = linear_decay_bound(run.ts, energy[0], k, found.rho2, found.A)
    # Equality, but for the method's error, in the mode of the largest inertia.
    assert (energy <= bound * (1 + 1e-4)).all()
    assert energy[-1] > 0.1 * bound[-1]
    assert not np.asarray(constraint_residuals(disk, 0.0, q, v).phi_dot).any()
