"""Theorems about the ball and beam; those about its motion are in the tests of its experiment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.analysis import (
    controllability,
    equilibrium,
    linearize,
    linearized_constraint,
    lqr,
    RegulatorFeedback,
    spectrum,
)
from jaxdae.models.ball_beam import BallBeam, SimplifiedBallBeam

EXACT, SIMPLE = BallBeam(), SimplifiedBallBeam()
INDEPENDENT = ("r", "theta")


def rest(system):
    return equilibrium(
        system, system.start()[0], jnp.zeros(1), jnp.zeros(1), free_controls=True, fixed=("r",)
    )


@pytest.fixture(scope="module")
def exact():
    return linearize(EXACT, rest(EXACT), independent=INDEPENDENT)


@pytest.fixture(scope="module")
def simple():
    return linearize(SIMPLE, rest(SIMPLE), independent=INDEPENDENT)


@pytest.fixture(scope="module")
def regulator(simple):
    """The regulator of the simplified model, as a controller of the exact one."""
    feedback = lqr(simple).feedback
    q, _ = EXACT.start()
    return RegulatorFeedback(feedback.K, q, feedback.w, feedback.u, (0, 2))


@pytest.mark.slow
def test_the_five_state_matrix_is_that_of_the_paper(simple):
    """Krasinskaya, Krasinskii (2013), eq. 37, written out by hand; states (r, theta, r', ...)."""
    s = SIMPLE
    b, weight = s.wheel_radius / s.beam_length, s.ball_mass * s.gravity
    rolling = s.ball_inertia * b / s.ball_radius
    mass = np.array(
        [
            [s.ball_mass + s.ball_inertia / s.ball_radius**2, -rolling],
            [
                -rolling,
                s.wheel_inertia + b**2 * (s.ball_mass * s.rest_position**2 + s.ball_inertia),
            ],
        ]
    )
    forces = np.array(
        [[0, -weight * b, 0, 0, 0], [-weight * b, 0, 0, -s.wheel_damping, s.torque_constant]]
    )
    A = np.zeros((5, 5))
    A[0, 2] = A[1, 3] = 1
    A[2:4] = np.linalg.solve(mass, forces)
    A[4, 3:] = np.array([-s.emf_constant, -s.resistance]) / s.inductance
    # Entries up to 1e4, each a few operations.
    np.testing.assert_allclose(simple.A, A, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(
        simple.B[:, 0], [0, 0, 0, 0, s.supply_gain / s.inductance], rtol=1e-13, atol=1e-13
    )


@pytest.mark.slow
def test_both_models_share_five_roots_and_the_sixth_is_zero(exact, simple):
    six, five = spectrum(exact), spectrum(simple)
    assert exact.A_full.shape == (6, 6)
    assert (six.constraint_zeros, five.constraint_zeros) == (1, 0)
    assert np.all(np.asarray(exact.A_full)[-1] == 0)
    # Relative: the electrical root is -1.4e4, and round-off scales with it.
    np.testing.assert_allclose(six.others, five.others, rtol=1e-10)
    np.testing.assert_allclose(six.others[0], 0.568716, rtol=1e-5)
    assert six.verdict == "unstable"


@pytest.mark.slow
def test_the_linear_constraint_loses_nothing_here(exact):
    """The paper's reason why the simplified model serves: C_B vanishes at level rest."""
    lost = linearized_constraint(EXACT, exact.equilibrium, independent=INDEPENDENT)
    assert lost.valid
    np.testing.assert_allclose(lost.roots, lost.wrong_roots, atol=1e-12)


def test_every_root_but_the_constraints_can_be_moved(exact):
    assert controllability(exact.A, exact.B).rank == 5
    whole = controllability(exact.A_full, exact.B_full)
    assert whole.rank == 5
    np.testing.assert_allclose(whole.roots, 0, atol=1e-9)
    assert not whole.stabilizable


STRICT = BallBeam(centre_height=BallBeam().ball_radius)


def test_strict_energies_are_those_of_a_ball_that_rolls_on_the_beam():
    """Remark 4: the centre at `r e + R n` by its path, the spin from rolling at the contact."""
    r, alpha, r_dot, alpha_dot, radius = 0.13, 0.4, 0.7, -1.9, STRICT.ball_radius

    def centre(t):
        a, s = alpha + alpha_dot * t, r + r_dot * t
        e, n = jnp.stack([jnp.cos(a), jnp.sin(a)]), jnp.stack([-jnp.sin(a), jnp.cos(a)])
        return s * e + radius * n

    velocity = np.asarray(jax.jacfwd(centre)(0.0))
    e, n = np.array([np.cos(alpha), np.sin(alpha)]), np.array([-np.sin(alpha), np.cos(alpha)])
    # The ball's material point at the contact moves with the beam's: c' + w x (-R n) = r alpha' n.
    spin = (velocity - r * alpha_dot * n) @ e / -radius
    kinetic = 0.5 * STRICT.ball_mass * velocity @ velocity + 0.5 * STRICT.ball_inertia * spin**2
    q, v = jnp.array([r, alpha, 0.0]), jnp.array([r_dot, alpha_dot, 0.0])
    assert float(STRICT.kinetic_energy(0.0, q, v)) == pytest.approx(kinetic, rel=1e-13)
    height = float(centre(0.0)[1])
    weight = STRICT.ball_mass * STRICT.gravity
    assert float(STRICT.potential_energy(0.0, q)) == pytest.approx(weight * height, rel=1e-13)
    assert abs(float(EXACT.kinetic_energy(0.0, q, v)) / kinetic - 1) > 1e-2
