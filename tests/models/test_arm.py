"""Arms of point masses against angles, rigid bodies, integrals and the paper's equations."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import jaxdae
from jaxdae import Hamiltonian, State, VelocityElimination
from jaxdae.models.arm import perturbation_equations, PointMassArm
from jaxdae.systems import constraint_residuals

C = (-100.0, -20.0, -64.0, -12.0)
FORCES = (2.0, -14.7, -3.0, -9.8)
ARM = PointMassArm(forces=FORCES)
# Both links stay below the horizontal, where x1 and x2 determine the rest.
LOW = ((-1.2, -0.9), (1.5, -2.0))
FORMULATIONS = {
    "hamiltonian": Hamiltonian(perturbation_equations(*C)),
    "elimination": VelocityElimination(("x1", "x2")),
}
TIGHT: Any = {"stepsize_controller": diffrax.PIDController(rtol=1e-12, atol=1e-12)}
# Solves with fewer than ten unknowns and condition numbers below 1e3.
ROUND_OFF: Any = {"rtol": 1e-10, "atol": 1e-10}


@eqx.filter_jit
def flow(system, formulation, state):
    """Rates of q and v along a formulation's flow, and the multipliers."""
    y = formulation.init(system, 0.0, state)
    rate = formulation.vector_field(system, 0.0, y, None)
    back = lambda y: formulation.recover(system, 0.0, y)  # noqa: E731
    _, motion = jax.jvp(back, (y,), (rate,))
    return motion.q, motion.v, formulation.multipliers(system, 0.0, y, None)


def angular_acceleration(angles, rates):
    """Two links in their angles from the x axis, by hand.

    m11 a1'' + m12 cos(a1 - a2) a2'' + m12 sin(a1 - a2) a2'^2 = l1 e1' . (F_1 + F_2), and so on.
    """
    (a1, a2), (w1, w2) = angles, rates
    l1, l2, m1, m2 = 1.0, 0.8, 1.5, 1.0
    cos, sin = np.cos(a1 - a2), np.sin(a1 - a2)
    mass = np.array([[(m1 + m2) * l1**2, m2 * l1 * l2 * cos], [m2 * l1 * l2 * cos, m2 * l2**2]])
    f = np.array(FORCES)
    turn1, turn2 = np.array([-np.sin(a1), np.cos(a1)]), np.array([-np.sin(a2), np.cos(a2)])
    torque = np.array([l1 * turn1 @ (f[:2] + f[2:]), l2 * turn2 @ f[2:]])
    coriolis = m2 * l1 * l2 * sin * np.array([w2**2, -(w1**2)])
    return np.linalg.solve(mass, torque - coriolis)


def tensions(angles, rates):
    """Multipliers from Newton's second law of each mass along its link."""
    (a1, a2), (w1, w2) = angles, rates
    (b1, b2), f = angular_acceleration(angles, rates), np.array(FORCES)
    e1, e2 = (np.array([np.cos(a), np.sin(a)]) for a in (a1, a2))
    t1, t2 = (np.array([-np.sin(a), np.cos(a)]) for a in (a1, a2))
    elbow = 1.0 * (b1 * t1 - w1**2 * e1)
    tip = elbow + 0.8 * (b2 * t2 - w2**2 * e2)
    # m2 a2 = F2 - 2 lam2 l2 e2 and m1 a1 = F1 - 2 lam1 l1 e1 + 2 lam2 l2 e2
    lam2 = (f[2:] - 1.0 * tip) @ e2 / (2 * 0.8)
    lam1 = (f[:2] - 1.5 * elbow + 2 * lam2 * 0.8 * e2) @ e1 / 2
    return np.array([lam1, lam2])


@pytest.fixture(scope="module")
def reference():
    """Angles and their rates at five times, by another code from the equations by hand."""
    ts = np.linspace(0.0, 1.0, 5)
    solution = scipy.integrate.solve_ivp(
        lambda t, y: np.concatenate([y[2:], angular_acceleration(y[:2], y[2:])]),
        (0, 1), np.ravel(LOW), method="DOP853", rtol=1e-12, atol=1e-12, t_eval=ts,
    )  # fmt: skip
    return ts, solution.y[:2].T, solution.y[2:].T


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULATIONS)
def test_the_motion_is_that_of_two_links_in_their_angles(name, reference):
    ts, angles, rates = reference
    run = jaxdae.simulate(
        ARM, FORMULATIONS[name], State(*ARM.from_angles(*LOW)), t1=1.0,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)), work=True, **TIGHT,
    )  # fmt: skip
    expected = [ARM.from_angles(a, w) for a, w in zip(angles, rates, strict=True)]
    # Two codes at 1e-12, some 100 steps, errors that grow tenfold; multipliers of 20 N/m.
    np.testing.assert_allclose(run.q, [q for q, _ in expected], atol=1e-9)
    np.testing.assert_allclose(run.v, [v for _, v in expected], atol=1e-9)
    lam = [tensions(a, w) for a, w in zip(angles, rates, strict=True)]
    np.testing.assert_allclose(run.multipliers, lam, atol=1e-8)
    assert np.abs(lam).min() > 1.0
    # Kinetic energy is all there is; what it gains the forces have given, the links nothing.
    gained = sum(np.asarray(part) for part in run.work)
    np.testing.assert_allclose(run.energy - run.energy[0], gained, atol=1e-9)
    np.testing.assert_allclose(run.work.constraint, 0.0, atol=1e-9)
    np.testing.assert_allclose(
        run.work.force, (np.asarray(run.q) - np.asarray(run.q[0])) @ np.array(FORCES), atol=1e-9
    )
    assert np.ptp(run.energy) > 1.0


@pytest.mark.slow
def test_the_papers_equations_written_out_are_the_derived_ones(rng):
    """Equations (6), off the constraints, the two slips corrected."""
    masses = np.array([1.5, 1.5, 1.0, 1.0])
    for _ in range(3):
        q, v = (jnp.asarray(rng.normal(size=4)) for _ in range(2))
        q_dot, p_dot, lam = ARM.canonical_rates(q, masses * v, jnp.asarray(C))
        expected = flow(ARM, FORMULATIONS["hamiltonian"], State(q, v))
        for got, exact in zip((q_dot, p_dot / masses, lam), expected, strict=True):
            np.testing.assert_allclose(got, exact, **ROUND_OFF)


@pytest.mark.parametrize(
    ("slip", "off"),
    [({"sign_as_printed": True}, (False, True)), ({"drift_as_printed": True}, (True, True))],
)
def test_as_printed_the_constraints_would_not_hold(slip, off):
    """The last row's sign spoils the second link; `P` without `(J q')_q q'` spoils both."""
    q, v = ARM.start()
    masses = np.array([1.5, 1.5, 1.0, 1.0])
    q_dot, p_dot, _ = ARM.canonical_rates(q, masses * v, jnp.asarray(C), **slip)
    residual = lambda q, v: constraint_residuals(ARM, 0.0, q, v).phi_dot  # noqa: E731
    _, rate = jax.jvp(residual, (q, v), (q_dot, p_dot / masses))
    # On the constraints the perturbation equations ask for zero; round-off or metres per second.
    for value, spoiled in zip(np.abs(rate), off, strict=True):
        assert value > 1.0 if spoiled else value < 1e-12


@pytest.mark.slow
def test_violations_follow_the_perturbation_equations_in_closed_form():
    """y(t) = exp(A t) y(0), for the two links apart, whatever the arm does meanwhile."""
    q, v = ARM.start()
    state = State(q + jnp.array([0.02, -0.01, 0.03, 0.02]), v + jnp.array([0.1, 0.0, -0.2, 0.1]))
    ts = np.linspace(0.0, 0.6, 7)
    run = jaxdae.simulate(
        ARM, FORMULATIONS["hamiltonian"], state, t1=0.6, start_tolerance=None,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)), **TIGHT,
    )  # fmt: skip
    y = np.stack([run.violation.phi, run.violation.phi_dot], axis=-1)
    for i, (position, velocity) in enumerate((C[:2], C[2:])):
        A = np.array([[0.0, 1.0], [position, velocity]])
        expected = [scipy.linalg.expm(A * t) @ y[0, i] for t in ts]
        np.testing.assert_allclose(y[:, i], expected, atol=1e-10)
    assert np.abs(y[0]).min() > 0.01
