"""Gains by theory for penalties with finite constraint mass."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.fixed_steps import FixedSteps
from jaxdae.analysis import perturbation_matrix
from jaxdae.formulations import AugmentedLagrangian, Penalty
from jaxdae.models.registry import get_model
from jaxdae.solvers import RK4
from jaxdae.stability import constraint_mobility, step_gains

DT = 0.01


def weights(size):
    return (10.0, jnp.linspace(5.0, 8.0, size), jnp.diag(jnp.linspace(5.0, 8.0, size)) + 0.3)


def roots(law, alpha, mobility, r, iterations):
    """Step times the roots of `y' = H y`, with the part `P` that is left of the wanted rates."""
    size = len(mobility)
    m = size - r
    full = alpha * np.eye(size) if np.ndim(alpha) < 2 else np.asarray(alpha)
    eye = np.eye(size)
    part = eye - np.linalg.matrix_power(np.linalg.inv(eye + mobility @ full), iterations)
    H = np.array(perturbation_matrix(law, m, r))
    H[m:] = part @ H[m:]
    return np.linalg.eigvals(H) * DT


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("r", [0, 1])
@pytest.mark.parametrize("iterations", [1, 3])
def test_violations_have_the_roots_of_theory_whatever_the_mass(size, r, iterations):
    gains = step_gains(RK4(), DT)
    expected = np.array([*(gains.roots if size > r else ()), *([-gains.Gamma * DT] * bool(r))])
    factor = np.random.default_rng(size).normal(size=(size, size))
    mobility = factor @ factor.T + np.eye(size)
    for alpha in weights(size):
        options = {"velocity_constraints": r}
        made: Any = (
            Penalty.for_step(RK4(), DT, alpha, mobility, **options)
            if iterations == 1
            else AugmentedLagrangian.for_step(
                RK4(), DT, alpha, mobility, iterations=iterations, **options
            )
        )
        found = roots(made.stabilization, alpha, mobility, r, iterations)
        distances = np.abs(found[:, None] - expected)
        # Roots that coincide in pairs, of entries up to 1e5.
        np.testing.assert_allclose(distances.min(axis=1), 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Penalty, AugmentedLagrangian])
def test_the_formulation_itself_has_these_roots_at_a_state(kind):
    system = get_model("two-link-reachable").system()
    state, t = jaxdae.State(*system.start()), jnp.array(0.0)
    formulation = kind.for_step(RK4(), DT, 7.0, constraint_mobility(system, t, state))
    H = np.asarray(jax.jit(lambda: formulation.perturbation_matrix(system, t, state))())
    distances = np.abs(np.linalg.eigvals(H)[:, None] * DT - step_gains(RK4(), DT).roots)
    np.testing.assert_allclose(distances.min(axis=1), 0.0, atol=1e-6)


def test_numbers_and_diagonals_give_baumgartes_gains():
    gains = step_gains(RK4(), DT)
    law: Any = Penalty.for_step(RK4(), DT, 3.0, 2.0).stabilization
    np.testing.assert_allclose(law.K_P, gains.K_P * (1 + 1 / 6.0), rtol=1e-12)
    vector: Any = Penalty.for_step(RK4(), DT, jnp.array([3.0, 5.0]), 2.0, velocity_constraints=1)
    law = vector.stabilization
    np.testing.assert_allclose(law.K_D, [gains.K_D * (1 + 1 / 6.0)], rtol=1e-12)
    np.testing.assert_allclose(law.Gamma, [gains.Gamma * 1.1], rtol=1e-12)
    alone: Any = Penalty.for_step(RK4(), DT, jnp.array([3.0]), 2.0, velocity_constraints=1)
    assert alone.stabilization.K_D is None
    # A mass without end leaves all of what is asked for.
    stiff: Any = Penalty.for_step(RK4(), DT, 1e12, 2.0).stabilization
    np.testing.assert_allclose(stiff.K_D, gains.K_D, rtol=1e-11)


class Hanging(jaxdae.System):
    """2 kg on a constraint `x = 0`, from which gravity pulls them."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * 2.0 * v @ v

    def potential_energy(self, t, q):
        del t
        return -2.0 * 9.81 * q[0]

    def position_constraints(self, t, q):
        del t
        return q


def test_the_motion_stays_off_by_what_the_reactions_take():
    """`K_P^-1 (1 - P) b` with `P = alpha W / (1 + alpha W)`."""
    formulation: Any = Penalty.for_step(RK4(), DT, 4.0, 0.5)
    law = formulation.stabilization
    runs = FixedSteps(Hanging(), partial(Penalty, 4.0))
    found = runs.run(RK4(), DT, 20, [[law.K_D, law.K_P, 1.0]], np.zeros(1), np.zeros(1))
    expected = 9.81 * (1 - 2.0 / 3.0) / step_gains(RK4(), DT).K_P
    np.testing.assert_allclose(found.phi[-1, 0], [expected], rtol=1e-9)


def test_the_gains_can_be_differentiated_by_mass_and_step():
    def K_P(alpha, dt):
        law: Any = Penalty.for_step(RK4(), dt, alpha, 2.0).stabilization
        return law.K_P

    value, slopes = jax.value_and_grad(K_P, argnums=(0, 1))(3.0, DT)
    expected = [-value / (1 + 1 / 6.0) / (2.0 * 9.0), -2 * value / DT]
    np.testing.assert_allclose(slopes, expected, rtol=1e-12)


BAD = [
    ({"alpha": -1.0}, "alpha must be positive definite"),
    ({"mobility": 0.0}, "mobility must be positive definite"),
    ({"mobility": None}, "mobility is None; give a positive number"),
    ({"alpha": jnp.ones(2), "mobility": jnp.ones(3)}, "of different numbers of constraints"),
    ({"alpha": jnp.ones(2), "velocity_constraints": 3}, "velocity_constraints is 3"),
    ({"velocity_constraints": -1}, "velocity_constraints is -1"),
]


@pytest.mark.parametrize(("wrong", "words"), BAD)
def test_what_is_no_mass_or_no_mobility_is_refused(wrong, words):
    arguments = {"solver": RK4(), "dt": DT, "alpha": 3.0, "mobility": 2.0, **wrong}
    with pytest.raises(ValueError, match=words):
        Penalty.for_step(**arguments)


def test_no_iterations_are_refused():
    with pytest.raises(ValueError, match="iterations must be an integer, at least 1; got 0"):
        AugmentedLagrangian.for_step(RK4(), DT, 3.0, 2.0, iterations=0)
