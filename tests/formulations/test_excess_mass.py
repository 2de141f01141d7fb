"""Constraint masses that depend on time, position and velocity: oracle, energies, derivatives."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from jaxdae import AugmentedLagrangian, Baumgarte, Multipliers, Penalty, simulate, State
from jaxdae.models import CartesianPendulum
from jaxdae.systems import evaluate

# Of derived formulas and programs, some tens of operations on numbers of order one to a hundred.
ROUND_OFF: Any = {"rtol": 1e-11, "atol": 1e-11}


class Rail(jaxdae.System):
    """A point of mass 2 that shall stay on the z axis: `phi = (x, y)`, `J` constant."""

    def kinetic_energy(self, t, q, v):
        return v @ v

    def potential_energy(self, t, q):
        return 2.0 * 9.81 * q[2] + 3.0 * q[0]

    def position_constraints(self, t, q):
        return q[:2]


class HeavierBelow(eqx.Module):
    """`alpha = a (1 + z^2 / 2) [[2, c], [c, 1]] (1 + v_z^2 / 10)` with `c = sin(t) / 2`."""

    size: float | jax.Array = 5.0

    def __call__(self, t, q, v):
        c = 0.5 * jnp.sin(t)
        matrix = jnp.stack([jnp.stack([2.0 + 0 * c, c]), jnp.stack([c, 1.0 + 0 * c])])
        return self.size * (1 + 0.5 * q[2] ** 2) * (1 + 0.1 * v[2] ** 2) * matrix


OFF = State([0.1, -0.2, 0.3], [0.5, 0.2, 1.5])
GAINS = Baumgarte(K_D=3.0, K_P=40.0)


def by_hand(t, state):
    """`(2 + alpha) y'' = -(3, 0) - alpha (K_D y' + K_P y) - alpha' y' / 2`, `z'' = -g`."""
    y, z, y_dot, z_dot = state[:2], state[2], state[3:5], state[5]
    c = np.array([[2.0, 0.5 * np.sin(t)], [0.5 * np.sin(t), 1.0]])
    c_dot = np.array([[0.0, 0.5 * np.cos(t)], [0.5 * np.cos(t), 0.0]])
    factor, by_v = 5.0 * (1 + 0.5 * z**2), 1 + 0.1 * z_dot**2
    alpha = factor * by_v * c
    change = by_v * (factor * c_dot + 5.0 * z * z_dot * c)
    load = alpha @ (3.0 * y_dot + 40.0 * y) + 0.5 * change @ y_dot + np.array([3.0, 0.0])
    a = -np.linalg.solve(2 * np.eye(2) + alpha, load)
    return np.concatenate([state[3:], a, [-9.81]])


@pytest.mark.slow
def test_motions_are_those_of_the_equations_by_hand():
    made = simulate(
        Rail(), Penalty(HeavierBelow(), GAINS), OFF, t1=1.0, start_tolerance=None,
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
    )  # fmt: skip
    assert made.backend == "native"
    start = np.concatenate([OFF.q, OFF.v])
    oracle = solve_ivp(by_hand, (0.0, 1.0), start, rtol=1e-11, atol=1e-12, method="DOP853")
    found = np.concatenate([made.q[-1], made.v[-1]])
    # Two integrations at 1e-11, errors of whose steps add up.
    np.testing.assert_allclose(found, oracle.y[:, -1], rtol=0, atol=1e-9)


def test_multipliers_are_the_force_of_the_violation():
    """`M a + J^T lam = f` and `lam = alpha (y'' - Phi) + alpha' y' / 2`, off the constraints."""
    formulation, t = Penalty(HeavierBelow(), GAINS), jnp.asarray(0.4)
    rate, lam = formulation.rate_and_multipliers(Rail(), t, OFF, None)
    d = evaluate(Rail(), t, OFF.q, OFF.v, OFF.w)
    np.testing.assert_allclose(d.mass @ rate.v + d.jac.T @ lam, d.force, **ROUND_OFF)
    expected = by_hand(0.4, np.concatenate([OFF.q, OFF.v]))
    np.testing.assert_allclose(rate.v, expected[3:], **ROUND_OFF)


def heavier_above(t, q, v):
    """Of the pendulum, a function of its position."""
    return 100.0 * (1 + 0.5 * q[1] ** 2)


@pytest.mark.slow
def test_the_energy_of_the_violation_is_kept_but_for_its_dissipation():
    """`T + V + y'^T alpha y' / 2 + y^T K y / 2` falls by the integral of `y'^T C y'`."""
    system, damping = CartesianPendulum(1.3, 0.9), 30.0

    def law(t, q, v, phi, phi_dot):
        return -(1000.0 * phi + damping * phi_dot) / heavier_above(t, q, v)

    def changes(alpha):
        made = simulate(
            system, Penalty(alpha, law), State(*system.start()), t1=1.0, dt=1e-3,
            saveat=diffrax.SaveAt(t0=True, steps=True),
        )  # fmt: skip
        alphas = jax.vmap(lambda q: heavier_above(0.0, q, q))(made.q)
        y, y_dot = made.violation.phi[:, 0], made.violation.phi_dot[:, 0]
        energy = made.energy + 0.5 * alphas * y_dot**2 + 500.0 * y**2
        lost = damping * y_dot**2
        # Simpson's rule over pairs of steps.
        lost = (lost[:-2:2] + 4 * lost[1:-1:2] + lost[2::2]) * 1e-3 / 3
        left = np.asarray(energy)[2::2] - energy[0] + np.cumsum(lost)
        return np.abs(left).max(), np.abs(y).max()

    kept, violation = changes(heavier_above)
    assert violation > 1e-3
    assert kept < 1e-8  # of Simpson's rule; of steps of order 8 it is 1e-12
    # Without what its change asks for the same mass makes and takes energy.
    frozen = lambda t, q, v: heavier_above(t, jax.lax.stop_gradient(q), v)  # noqa: E731
    made, _ = changes(lambda t, q, v: stopped(frozen, t, q, v))
    assert made > 1e3 * kept


@eqx.filter_custom_jvp
def stopped(function, t, q, v):
    """A function that counts as a constant."""
    return function(t, q, v)


@stopped.def_jvp
def _stopped_jvp(primals, tangents):
    out = stopped(*primals)
    return out, jnp.zeros_like(out)


def test_the_augmented_lagrangian_begins_with_the_penalty_and_ends_at_the_multipliers():
    t, mass = jnp.asarray(0.4), HeavierBelow()
    of = lambda x: x.rate_and_multipliers(Rail(), t, OFF, None)  # noqa: E731
    one, penalty = of(AugmentedLagrangian(mass, GAINS, iterations=1)), of(Penalty(mass, GAINS))
    many, exact = of(AugmentedLagrangian(mass, GAINS, iterations=40)), of(Multipliers(GAINS))
    for found, expected in ((one, penalty), (many, exact)):
        np.testing.assert_allclose(found[0].v, expected[0].v, **ROUND_OFF)
        np.testing.assert_allclose(found[1], expected[1], **ROUND_OFF)
    assert float(jnp.abs(one[1] - exact[1]).max()) > 1.0


@pytest.mark.slow
def test_constraint_perturbation_equations_know_the_change_of_the_mass():
    """`y'' = H y` of a rail without forces on it, exactly, as the constraints are linear."""
    rail, t, formulation = Rail(), jnp.asarray(0.4), Penalty(HeavierBelow(), GAINS)
    H = formulation.perturbation_matrix(rail, t, OFF)
    assert H is not None
    rate, _ = formulation.rate_and_multipliers(rail, t, OFF, None)
    still = State(OFF.q.at[:2].set(0.0), OFF.v.at[:2].set(0.0))
    pushed, _ = formulation.rate_and_multipliers(rail, t, still, None)
    y = jnp.concatenate([OFF.q[:2], OFF.v[:2]])
    np.testing.assert_allclose(H[:2] @ y, OFF.v[:2], **ROUND_OFF)
    np.testing.assert_allclose(H[2:] @ y, (rate.v - pushed.v)[:2], **ROUND_OFF)


@pytest.mark.slow
def test_gradients_by_a_parameter_of_the_mass():
    """Both modes, the other backend, and central differences."""

    def end(size, backend, adjoint):
        made = simulate(
            Rail(), Penalty(HeavierBelow(size), GAINS), OFF, t1=0.5, dt=0.02, backend=backend,
            adjoint=adjoint, start_tolerance=None,
        )  # fmt: skip
        return made.q[-1, 0] + made.v[-1, 1]

    reverse, forward = diffrax.RecursiveCheckpointAdjoint(), diffrax.ForwardMode()
    native = jax.jit(jax.value_and_grad(lambda x: end(x, "native", reverse)))
    by_forward = (
        jax.jit(jax.jacfwd(lambda x, b=backend: end(x, b, forward)))(5.0)
        for backend in ("plain", "native")
    )
    found = [float(x) for x in (*by_forward, native(5.0)[1])]
    np.testing.assert_allclose(found, found[0], rtol=1e-11)
    value = lambda x: native(x)[0]  # noqa: E731
    # Truncation of the difference: the third derivative times step^2 / 6.
    np.testing.assert_allclose(found[0], (value(5.001) - value(4.999)) / 2e-3, rtol=1e-6)


BAD = [
    (lambda *x: x[1][0] - 5, r"alpha has a value -4\.5 at t = 0; give positive numbers"),
    (lambda *x: x[1][0] * jnp.nan, r"alpha is not finite at t = 0: nan"),
    (lambda *x: x[1], r"alpha returned shape \(2,\), which does not fit 1 constraints; it must"),
    (lambda q: q[0], r"alpha is declared with the parameters \(q\); it must take \(t, q, v\)"),
    (lambda *x: 1j * x[1][0], r"alpha returned complex numbers"),
    (lambda *_: 2.0 + 1j, r"alpha returned complex numbers"),
]


@pytest.mark.parametrize(("alpha", "message"), BAD)
def test_functions_that_are_no_mass_are_refused(alpha, message):
    start = State([0.5, -((0.81 - 0.25) ** 0.5)], [0.0, 0.0])
    with pytest.raises(ValueError, match=message):
        simulate(CartesianPendulum(1.3, 0.9), Penalty(alpha), start, t1=0.1)


def test_matrices_that_are_no_mass_are_refused():
    for matrix, message in (
        ([[1.0, 2.0], [2.0, 1.0]], r"alpha has an eigenvalue -1 at t = 0; give positive numbers"),
        (
            [[1.0, 0.5], [0.0, 1.0]],
            r"alpha is not symmetric at t = 0: entries differ by up to 0\.5",
        ),
    ):
        alpha = lambda t, q, v, x=matrix: jnp.asarray(x) + 0 * q[0]  # noqa: E731
        with pytest.raises(ValueError, match=message):
            simulate(Rail(), Penalty(alpha), State([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]), t1=0.1)


@pytest.mark.parametrize("matrix", [False, True])
def test_a_mass_that_does_not_stay_positive_ends_the_run_and_says_so(matrix):
    """Though mass and constraint mass together stay positive."""

    def alpha(t, q, v):
        return jnp.diag(jnp.stack([0.51 - t, 1.0])) if matrix else 0.51 - t

    start = State([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    value = "an eigenvalue" if matrix else "a value"
    with pytest.raises(jaxdae.SimulationError, match=rf"alpha has {value} -0\.09 at t = 0\.6"):
        simulate(Rail(), Penalty(alpha), start, t1=1.0, dt=0.1, solver=diffrax.Euler())


def test_energy_that_violations_take_is_no_matter_of_the_tolerance():
    system = CartesianPendulum(1.3, 0.9)
    with pytest.warns(RuntimeWarning, match="off by.*Violations of constraints with a mass"):
        simulate(system, Penalty(100.0), State(*system.start()), t1=5.0)
