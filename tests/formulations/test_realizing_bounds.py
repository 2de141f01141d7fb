"""Theorem 1: threshold and rate of linear realizing forces, against motions known exactly."""

import jax
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
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import RK4


class Pushed(jaxdae.System):
    """A mass `m` that a constraint keeps on a line, and a force `c psi'` pushes off it.

    `m psi'' = (c - k) psi'` under linear forces: stable exactly for `k > c`.
    """

    mass: float = 8.0
    push: float = 2.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        return jnp.stack([jnp.zeros_like(v[0]), self.push * v[1]])

    def velocity_constraints(self, t, q, v):
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


def test_constants_of_coupled_inertia_are_those_of_the_linear_system(rng):
    """Constant `M`, force `D v` at rest: `W = S J M^-1 D M^-1 J^T S`, by hand."""
    root, rate, jac = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=(2, 3))
    inertia = root @ root.T + np.eye(3)

    class Linear(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ inertia @ v

        def force(self, t, q, v, w, u):
            return rate @ v

        def velocity_constraints(self, t, q, v):
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


def reaction_along(run) -> np.ndarray:
    """`|r|` at the states of a sleigh, its sideways velocity left out, by the model's formula."""
    sleigh = ChaplyginSleigh()
    spread = lambda q, v: project(sleigh, q, v)  # noqa: E731
    return np.abs(jax.vmap(lambda q, v: sleigh.multiplier(q, spread(q, v)))(run.q, run.v))


def project(sleigh, q, v):
    """Velocities without `psi'`, the other quasi-velocities kept."""
    d = jaxdae.evaluate(sleigh, 0.0, q, v)
    mobility = jnp.linalg.solve(d.mass, d.jac.T)
    return v - mobility @ jnp.linalg.solve(d.jac @ mobility, d.phi_dot)


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, -1.0])
def test_a_pushed_sleigh_obeys_the_bound_with_its_reaction_and_no_other(speed):
    """Straight on without reactions; pushed sideways it turns, and then needs one."""
    sleigh = ChaplyginSleigh()
    q, v = jnp.zeros(3), jnp.array([speed, 0.0, 0.0])
    found = realizing_constants(sleigh, 0.0, State(q, v))
    forward = realizing_constants(sleigh, 0.0, State(q, jnp.array([1.0, 0.0, 0.0])))
    k = 8 * linear_threshold(forward.rho2, forward.A)
    assert k > linear_threshold(found.rho2, found.A)
    d = jaxdae.evaluate(sleigh, 0.0, q, v)
    S = 1 / (d.jac @ jnp.linalg.solve(d.mass, d.jac.T))
    off = State(q, v + jnp.linalg.solve(d.mass, d.jac.T) @ S[0] * 1e-4)
    run = jaxdae.simulate(
        sleigh, RealizingForces(LinearLaw(k)), off, t1=6.0, dt=0.01, solver=RK4(),
        start_tolerance=None,
    )  # fmt: skip
    psi = np.asarray(run.violation.phi_dot)[:, 0]
    energy = 0.5 * float(S[0, 0]) * psi**2
    # Constants along the motion, which turns a little: the largest and the least.
    places = [
        realizing_constants(sleigh, 0.0, State(run.q[i], run.v[i])) for i in range(0, 600, 60)
    ]
    A, rho2 = max(x.A for x in places), max(x.rho2 for x in places)
    rho1, r = min(x.rho1 for x in places), float(reaction_along(run).max())
    bound = linear_decay_bound(run.ts, energy[0], k, rho2, A, reaction=r, rho1=rho1)
    assert (energy <= bound * (1 + 1e-6)).all()
    # That of the start alone is exceeded by orders of magnitude.
    alone = linear_decay_bound(run.ts, energy[0], k, rho2, A)
    assert energy[-1] > 1e5 * alone[-1]
    # At first the rate is the promised one, later that of the constrained motion, a v / k^2 = 0.5.
    late = -np.polyfit(run.ts[300:], np.log(np.abs(psi[300:])), 1)[0]
    early = -np.polyfit(run.ts[:4], np.log(np.abs(psi[:4])), 1)[0]
    assert early > 0.9 * linear_decay_rate(k, found.rho2, found.A)
    assert late == pytest.approx(0.5 * speed, abs=0.15)


def test_a_bound_with_a_reaction_is_the_solution_of_its_equation():
    """`dy/dt = -c y + B y^2 / 2 + e` by SciPy."""
    k, rho, A, B, energy, rho1 = 9.0, 1.3, 0.3, 0.4, 0.8, 1.1
    times = np.linspace(0.0, 2.0, 9)
    c = linear_decay_rate(k, rho, A)
    for b, r in ((0.0, 0.7), (B, 0.7), (0.0, 0.0), (B, 0.0)):
        e = r / (2 * rho1)
        exact = solve_ivp(
            lambda _, y, b=b, e=e: -c * y + b * y**2 / 2 + e, (0, 2), [np.sqrt(energy)],
            t_eval=times, rtol=1e-11, atol=1e-13,
        ).y[0] ** 2  # fmt: skip
        bound = linear_decay_bound(times, energy, k, rho, A, b, reaction=r, rho1=rho1)
        np.testing.assert_allclose(bound, exact, rtol=1e-8)
    assert np.isinf(linear_decay_bound(1.0, energy, k, rho, A, B, reaction=100.0, rho1=rho1))
    with pytest.raises(ValueError, match="a reaction needs rho1"):
        linear_decay_bound(1.0, energy, k, rho, reaction=1.0)
