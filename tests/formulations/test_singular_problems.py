"""Dependent constraints and singular mass matrices under the formulations that take them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    SingularMassSolve,
    State,
)
from jaxdae.formulations import FullRankSolve
from jaxdae.models import Chain

# Sums and solves of systems of at most six unknowns with condition numbers below 1e3.
ROUND_OFF: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


@eqx.filter_jit
def rates(system, formulation, state, t=0.0, u=None):
    """Rate of the state and multipliers, through the public methods of a formulation."""
    y = formulation.init(system, t, state)
    return formulation.vector_field(system, t, y, u), formulation.multipliers(system, t, y, u)


def motion(*args):
    """Acceleration and multipliers."""
    rate, lam = rates(*args)
    return rate.v, lam


def _random_state(rng, n, k=0):
    return State(*(jnp.asarray(rng.normal(size=size)) for size in (n, n, k)))


@pytest.fixture(scope="module")
def two_links():
    """A chain off its constraints, with its exact motion under GAINS."""
    system = Chain.uniform(2)
    rng = np.random.default_rng(5)
    q, v = system.start()
    state = State(q + 0.05 * rng.normal(size=q.size), v + rng.normal(size=q.size))
    return system, state, motion(system, Multipliers(GAINS), state)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 2.0, -0.5)])
def test_minimum_norm_shares_the_reaction_of_a_repeated_constraint(weights, repeated_rod, rng):
    """Same acceleration as with one row; multipliers in proportion to the rows."""
    state = _random_state(rng, 2)
    gains = Baumgarte(20.0, 100.0)
    a, lam = motion(repeated_rod((1.0,)), Multipliers(gains), state)
    formulation = Multipliers(gains, solve=MinimumNormSolve())
    many_a, many = motion(repeated_rod(weights), formulation, state)
    c = np.array(weights)
    np.testing.assert_allclose(many_a, a, **ROUND_OFF)
    np.testing.assert_allclose(many, lam * c / (c @ c), **ROUND_OFF)


@pytest.mark.slow
def test_penalty_and_augmented_lagrangian_stand_dependent_constraints(repeated_rod, rng):
    """Two equal constraints of weight alpha are one of weight 2 alpha."""
    state = _random_state(rng, 2)
    gains = Baumgarte(20.0, 100.0)
    for formulation in (Penalty, AugmentedLagrangian):
        one, _ = motion(repeated_rod((1.0,)), formulation(20.0, gains), state)
        two, lam = motion(repeated_rod((1.0, 1.0)), formulation(10.0, gains), state)
        np.testing.assert_allclose(two, one, **ROUND_OFF)
        np.testing.assert_allclose(lam[0], lam[1], **ROUND_OFF)


def test_full_rank_policy_is_not_finite_where_the_constraints_depend(repeated_rod):
    """No finite garbage: a singular J gives NaN or infinity, never a plausible number."""
    state = State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    a, lam = motion(repeated_rod((1.0, 1.0)), Multipliers(), state)
    assert not np.isfinite(np.concatenate([a, lam])).any()


def _massless_exact(system, q, v):
    """Reduced system: m x'' = -k x^3 / 2, y = x^2 / 2; the multiplier balances y's force."""
    ax = -system.stiffness * q[0] ** 3 / (2 * system.mass)
    return np.array([ax, q[0] * ax + v[0] ** 2]), np.array([-system.stiffness * q[1]])


@pytest.mark.parametrize("inner", [FullRankSolve(), MinimumNormSolve()])
def test_singular_mass_agrees_with_the_reduced_system(inner, massless):
    """A massless coordinate: acceleration and multiplier are those of the eliminated system."""
    q, v = jnp.array([0.9, 0.405]), jnp.array([1.3, 1.17])
    a, lam = motion(massless, Multipliers(solve=SingularMassSolve(inner)), State(q, v))
    exact_a, exact_lam = _massless_exact(massless, q, v)
    np.testing.assert_allclose(a, exact_a, **ROUND_OFF)
    np.testing.assert_allclose(lam, exact_lam, **ROUND_OFF)


class Guided(jaxdae.System):
    """A point without inertia, led along `y = x^2` with `x = sin(rate t)`, and pulled down."""

    frequency: float = 2.0
    weight: float = 3.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.0 * v @ v

    def potential_energy(self, t, q):
        del t
        return self.weight * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q[0] - jnp.sin(self.frequency * t), q[1] - q[0] ** 2])


@pytest.mark.parametrize("inner", [FullRankSolve(), MinimumNormSolve()])
def test_singular_mass_may_be_zero_where_the_constraints_determine_everything(inner):
    """M = 0: the acceleration is that of the guide, and J^T lam = f balances the weight."""
    system, t = Guided(), 0.3
    x, rate = np.sin(2 * t), 2 * np.cos(2 * t)
    state = State(jnp.array([x, x**2]), jnp.array([rate, 2 * x * rate]))
    a, lam = motion(system, Multipliers(GAINS, solve=SingularMassSolve(inner)), state, t)
    exact = [-4 * x, 2 * rate**2 - 8 * x**2]
    np.testing.assert_allclose(a, exact, **ROUND_OFF)
    np.testing.assert_allclose(lam, [-6 * x, -3], **ROUND_OFF)


@pytest.mark.slow
def test_a_point_without_any_inertia_can_be_simulated_where_it_is_led():
    """The start is taken, though M = 0, and the run keeps to the guide."""
    system, state = Guided(), State([0.0, 0.0], [2.0, 0.0])
    formulation = Multipliers(GAINS, solve=SingularMassSolve())
    run = jaxdae.simulate(system, formulation, state, t1=0.5)
    x = np.sin(2 * np.asarray(run.ts))
    # Steps are good to 1e-8, the interpolant between them to some 1e-7.
    np.testing.assert_allclose(run.q, np.stack([x, x**2], axis=1), atol=1e-6)
    np.testing.assert_allclose(run.multipliers, np.stack([-6 * x, 0 * x - 3], axis=1), atol=1e-5)


def test_penalty_stands_a_singular_mass_matrix(massless):
    """Penalty and the augmented Lagrangian approach the reduced system as alpha grows."""
    q, v = jnp.array([0.9, 0.405]), jnp.array([1.3, 1.17])
    exact_a, exact_lam = _massless_exact(massless, q, v)
    for formulation in (Penalty(1e8), AugmentedLagrangian(1e4, iterations=4)):
        a, lam = motion(massless, formulation, State(q, v))
        # 1/alpha = 1e-8, or 1e-16 after four iterations; round-off alpha eps = 1e-8.
        np.testing.assert_allclose(a, exact_a, atol=1e-6)
        np.testing.assert_allclose(lam, exact_lam, atol=1e-6)


@pytest.mark.slow
def test_minimum_norm_and_singular_mass_agree_with_full_rank_where_all_apply(two_links):
    """Three policies, one answer."""
    system, state, exact = two_links
    for solve in (MinimumNormSolve(), SingularMassSolve(), SingularMassSolve(MinimumNormSolve())):
        got = motion(system, Multipliers(GAINS, solve=solve), state)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), got, exact
        )
