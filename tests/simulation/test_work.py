"""Work of forces, dampers and constraints along a run."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import simpson

import jaxdae
from jaxdae import (
    Baumgarte,
    Multipliers,
    simulate,
)
from jaxdae.solvers import RK4

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def rich(everything):
    """The system with everything in it, its consistent start, and its exact end state."""
    state = jaxdae.consistent_state(everything, [0.9, -1.2, 0.1], [0.5, 0.3, 0.2], w=[0.4])
    run = simulate(everything, Multipliers(GAINS), state, t1=1.0, stepsize_controller=TIGHT)
    return everything, state, run


def _drive(t, q, v, w):
    return jnp.cos(5 * t) - 0.3 * v[2] + 0.1 * q[0] - 0.2 * w[0]


@pytest.fixture(scope="module")
def driven(rich):
    """The richest system under feedback, with the work of everything."""
    system, state, _ = rich
    ts = diffrax.SaveAt(ts=jnp.linspace(0, 1, 401))
    gains = Multipliers(GAINS)
    return simulate(system, gains, state, t1=1.0, controller=_drive, saveat=ts, work=True)


@pytest.mark.slow
def test_work_balances_the_energy_to_integration_accuracy(driven):
    """energy(t) - energy(0) = work of forces, dissipation, constraints and explicit time."""
    work, change = driven.work, driven.energy - driven.energy[0]
    np.testing.assert_allclose(sum(work), change, atol=1e-7)  # tolerance 1e-8 a step
    # Every part takes part: leaving one out would break the balance.
    assert min(np.abs(part).max() for part in work) > 1e-2
    np.testing.assert_array_equal([part[0] for part in work], 0)


@pytest.mark.slow
def test_each_work_is_the_integral_of_its_power(driven):
    """Each part against Simpson's rule on powers written out by hand from the saved states."""
    system, (q, v, w, t) = driven.system, (driven.q, driven.v, driven.w, driven.ts)
    u = np.asarray(driven.u)
    force = w[:, 0] * np.cos(q[:, 2]) * v[:, 0] + np.sin(t) * v[:, 2] * v[:, 1]
    force = force + (w[:, 0] + u) * v[:, 2]
    d = 0.1 * (1 + 0.5 * np.sin(t)) * (v**2).sum(1) + 0.05 * q[:, 0] ** 2 * v[:, 2] ** 2
    # -J v = f_t for the rod, with f_t = -0.4 cos t (x - 0.2 sin t); the other row from g.
    rod = 2 * (q[:, 0] - 0.2 * np.sin(t)) * v[:, 0] + 2 * q[:, 1] * v[:, 1]
    rolling = v[:, 2] + 0.6 * v[:, 0] ** 2 + q[:, 0] * v[:, 1]
    lam = driven.multipliers
    constraint = -lam[:, 0] * rod - lam[:, 1] * rolling
    spring = -np.sin(t) * (q[:, 1] ** 2 + q[:, 0] * q[:, 2])
    explicit = spring - 0.1 * np.cos(t) * v[:, 2] ** 2
    assert system.length == 1.5
    for got, power in zip(driven.work, (force, -2 * d, constraint, explicit), strict=True):
        # Simpson's error at h = 1/400 is h^4 / 180 times a fourth derivative below 1e4.
        np.testing.assert_allclose(got[-1], simpson(power, x=t), atol=1e-6)


@pytest.mark.slow
def test_work_of_a_batch_is_that_of_each_lane(rich):
    """Under vmap every lane's energy balances, and its parts are those of the run alone."""
    system, state, _ = rich

    def run(w):
        start = eqx.tree_at(lambda s: s.w, state, w)
        how = {"t1": 0.2, "dt": 0.01, "solver": RK4(), "work": True}
        return simulate(system, Multipliers(GAINS), start, **how)

    levels = jnp.array([[0.4], [-3.0], [2.0]])
    runs, alone = jax.vmap(run)(levels), run(levels[1])
    assert runs.work.force.shape == (3, 21)
    # RK4 at h = 0.01 errs by about h^4 in the energy and in the integrals.
    np.testing.assert_allclose(sum(runs.work), runs.energy - runs.energy[:, :1], atol=1e-6)
    for batched, single in zip(runs.work, alone.work, strict=True):
        np.testing.assert_allclose(batched[1], single, rtol=1e-9, atol=1e-12)  # round-off
    assert np.ptp(runs.work.force[:, -1]) > 0.1


@pytest.mark.slow
def test_controller_sees_the_state_and_its_output_is_kept(driven):
    """`u` at the saved times is the controller's output there."""
    u = jax.vmap(_drive)(driven.ts, driven.q, driven.v, driven.w)
    np.testing.assert_allclose(driven.u, u, rtol=1e-14, atol=1e-14)
