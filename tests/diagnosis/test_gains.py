"""Gains outside the step limit of a run, and stabilizations with `Phi(., 0, 0) != 0`, are named."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import StabilizedIntegrals
from jaxdae.diagnosis import preconditions
from jaxdae.formulations import (
    AugmentedLagrangian,
    Baumgarte,
    Hamiltonian,
    LinearStabilization,
    Multipliers,
    Penalty,
    QuasiVelocities,
    VelocityElimination,
)
from jaxdae.models import CartesianPendulum
from jaxdae.models.kepler import Kepler
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.solvers import RK4

FAST = Baumgarte.critical(400.0)


def _told(system, formulation, state, step, solver=None, controller=None):
    solver = RK4() if solver is None else solver
    found = preconditions.step_warning(
        system, formulation, controller, state, jnp.zeros(()), solver, step
    )
    return "" if found is None else found


@pytest.mark.parametrize(
    "formulation",
    [Multipliers(FAST), Hamiltonian(FAST), QuasiVelocities(stabilization=FAST)],
    ids=lambda formulation: type(formulation).__name__,
)
def test_a_step_outside_names_root_factor_and_limit(formulation, led_point):
    # |R(-4)| = |1 - 4 + 8 - 32/3 + 32/3| = 5; the real interval ends at 2.7853.
    found = _told(led_point(0.5), formulation, led_point(0.5).start(), 0.01)
    assert "the constraint perturbation equations at the start" in found
    assert "RK4 multiplies the mode of the root -400" in found
    assert "by 5 in each step. All modes shrink for steps below 0.006963 s" in found


@pytest.mark.parametrize(
    "decay", [400.0, jnp.array([400.0, 5.0]), jnp.diag(jnp.array([5.0, 400.0]))]
)
def test_the_decay_of_eliminated_constraints_has_a_step_limit(decay, led_point):
    """One root for each position constraint: velocities obey them by construction."""
    system, state = led_point(0.5), led_point(0.5).start()
    formulation = VelocityElimination((), decay=decay)
    found = _told(system, formulation, state, 0.01)
    assert "RK4 multiplies the mode of the root -400 1/s by 5 in each step" in found
    assert "All modes shrink for steps below 0.006963 s" in found
    assert _told(system, formulation, state, 0.0069) == ""
    assert _told(system, VelocityElimination(()), state, 0.1) == ""


@pytest.mark.slow
def test_a_step_beyond_the_limit_of_the_decay_makes_residuals_grow():
    """Euler's factor `1 - 0.025 * 100` is that of the residual; a start slightly off its rod."""
    pendulum, formulation = CartesianPendulum(), VelocityElimination("x", decay=100.0)
    start = jaxdae.State([0.0, -1.0 - 1e-6], [0.0, 0.0])
    with pytest.warns(RuntimeWarning, match="step of 0.025 s is beyond the step limit of the gai"):
        run = jaxdae.simulate(
            pendulum, formulation, start, t1=0.1, dt=0.025, solver=diffrax.Euler()
        )
    phi = np.asarray(run.violation.phi[:, 0])
    # Residuals are quadratic: their square, of 1e-5, is what differs.
    np.testing.assert_allclose(phi[1:] / phi[:-1], -1.5, rtol=1e-4)


def test_where_nothing_is_constrained_gains_have_no_limit():
    assert _told(Kepler(), Multipliers(FAST), jaxdae.State(*Kepler().start()), 0.1) == ""


@pytest.mark.parametrize(
    ("formulation", "solver", "step"),
    [
        (Multipliers(FAST), RK4(), 0.0069),
        (Multipliers(FAST), diffrax.Kvaerno5(), 0.1),
        (Multipliers(FAST), diffrax.KenCarp4(), 0.1),
        (Multipliers(), RK4(), 0.1),
        # Grows by itself: no step is to blame.
        (Multipliers(LinearStabilization(-100.0, 1.0)), RK4(), 0.1),
    ],
    ids=["inside", "implicit", "no tableau", "not stabilized", "unstable"],
)
def test_nothing_is_said_without_reason(formulation, solver, step, led_point):
    assert _told(led_point(0.5), formulation, led_point(0.5).start(), step, solver) == ""


@pytest.mark.slow
def test_simulate_warns_of_fixed_steps_only(led_point):
    system = led_point(0.5)
    run = {"t1": 0.02, "throw": False}
    with pytest.warns(RuntimeWarning, match="beyond the step limit of the gains"):
        jaxdae.simulate(system, Multipliers(FAST), system.start(), dt=0.01, solver=RK4(), **run)
    # Warnings are errors in these tests.
    assert jaxdae.simulate(system, Multipliers(FAST), system.start(), **run).success


def _servo(system, state, rate):
    gains = jaxdae.control.HurwitzGains.repeated(rate, 4)
    return jaxdae.ServoConstraint(
        system.program, gains, system=system, formulation=Multipliers(), sample=state, degrees=(4,)
    )


@pytest.mark.slow
def test_servo_gains_are_examined_too():
    system = AdaptiveMirror()
    state = system.program_state(0.0)
    law = _servo(system, state, 100.0)
    found = _told(system, Multipliers(), state, 0.05, diffrax.Euler(), law)
    assert "in the servo-constraint perturbation equations at the start" in found
    assert _told(system, Multipliers(), state, 0.01, diffrax.Euler(), law) == ""


@pytest.mark.slow
def test_servo_gains_may_be_traced_alone():
    """Nothing is examined then, and nothing breaks: eager derivatives with fixed steps."""
    system = AdaptiveMirror()
    state = system.program_state(0.0)

    def last(rate):
        law = _servo(system, state, rate)
        start = jaxdae.State(state.q + 1e-3, state.v, state.w)
        run = jaxdae.simulate(
            system, Multipliers(), start, t1=0.1, dt=0.05, solver=RK4(), controller=law
        )
        return run.q[-1, 0]

    slope = jax.grad(last)(5.0)
    difference = (last(5.0 + 1e-4) - last(5.0 - 1e-4)) / 2e-4
    np.testing.assert_allclose(slope, difference, rtol=1e-5)


def _finite_time(t, q, v, phi, phi_dot):
    return -20 * jnp.sign(phi_dot) * jnp.sqrt(jnp.abs(phi_dot)) - 100 * phi


def test_laws_without_a_derivative_at_rest_have_no_limit(led_point):
    assert _told(led_point(0.5), Multipliers(_finite_time), led_point(0.5).start(), 0.1) == ""


def test_stabilized_integrals_are_examined_with_what_they_stand_on(led_point):
    """Kepler's integrals, and the constraints of an inner formulation."""
    kepler = Kepler()
    start = jaxdae.State(*kepler.start())
    slow, fast = (
        StabilizedIntegrals.at(start, kepler.energy_and_momentum, gain, inner=Multipliers())
        for gain in (1.0, 1000.0)
    )
    assert _told(kepler, slow, start, 0.1) == ""
    assert "the mode of the root -1000 1/s" in _told(kepler, fast, start, 0.1)
    system = led_point(0.5)
    both = StabilizedIntegrals(
        Multipliers(FAST), lambda t, q, v: (q @ q)[None] + 0 * t * v[:1], jnp.ones(1), 2.0
    )
    H = both.perturbation_matrix(system, jnp.zeros(()), system.start())
    np.testing.assert_allclose(np.linalg.eigvals(H)[-1], -2.0)
    assert "root -400" in _told(system, both, system.start(), 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        Multipliers,
        lambda law: Penalty(0.7, law),
        lambda law: AugmentedLagrangian(0.7, law, iterations=2),
    ],
    ids=["multipliers", "penalty", "augmented"],
)
def test_the_matrix_of_a_formulation_is_the_rate_of_its_violations(make, led_point):
    """Derivatives of the constraint accelerations by the residuals, which the gains alone make."""
    system, state = led_point(0.5), led_point(0.5).start()
    K_D, K_P = jnp.array([[3.0, 1.0], [1.0, 5.0]]), jnp.array([7.0, 11.0])
    formulation = make(Baumgarte(K_D, K_P))

    def acceleration(y):
        # Residuals that are shown to the gains, at one and the same state.
        def law(t, q, v, phi, phi_dot):
            return Baumgarte(K_D, K_P)(t, q, v, phi + y[:2], phi_dot + y[2:])

        a = make(law).vector_field(system, 0.0, state, None).v
        return jaxdae.evaluate(system, 0.0, state.q, state.v).jac @ a

    H = formulation.perturbation_matrix(system, 0.0, state)
    expected = jax.jacfwd(acceleration)(jnp.zeros(4))
    np.testing.assert_allclose(H[2:], expected, atol=1e-12)
    np.testing.assert_array_equal(H[:2], np.eye(4)[2:])


FALLING = jaxdae.State([1.0, 0.0], [0.0, 0.0])


def run(offset, formulation=Multipliers, **settings):
    def law(t, q, v, phi, phi_dot):
        return -25 * phi - 10 * phi_dot + offset(t, q, v)

    return jaxdae.simulate(
        CartesianPendulum(), formulation(law), FALLING, t1=1.0, dt=0.01, solver=RK4(), **settings
    )


@pytest.mark.parametrize("formulation", [Multipliers, lambda law: Penalty(1e3, law), Hamiltonian])
@pytest.mark.parametrize("t1", [1.0, -1.0])
def test_a_constant_is_refused(formulation, t1):
    def law(t, q, v, phi, phi_dot):
        return 1 - 25 * phi - 10 * phi_dot

    with pytest.raises(ValueError, match=r"is 1 for residuals of zero, and must be zero there"):
        jaxdae.simulate(CartesianPendulum(), formulation(law), FALLING, t1=t1)


def test_what_depends_on_the_state_is_warned_of_at_the_start():
    with pytest.warns(RuntimeWarning, match=r"is 0\.5 for residuals of zero.* at the start"):
        made = run(lambda t, q, v: 0.5 * q[0])
    # phi'' + 10 phi' + 25 phi = q0 / 2 with q0 of the order of one: up to 0.02.
    assert 1e-3 < np.abs(made.violation.phi).max() < 0.02


def test_what_vanishes_at_the_start_alone_is_warned_of_after_the_run():
    with pytest.warns(RuntimeWarning, match=r"reaches \d.* at t = .* leaves the constraints"):
        run(lambda t, q, v: 0.5 * q[1])


def test_laws_that_vanish_are_not_warned_of():
    made = run(lambda t, q, v: 0.0 * q[0])
    assert np.abs(made.violation.phi).max() < 1e-4
