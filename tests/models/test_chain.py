"""Chain of point masses against statics, small swings, and conservation of energy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from jaxdae.models import CartesianPendulum, Chain

UNEQUAL = Chain(lengths=(0.3, 0.5, 0.2), masses=(1.0, 0.4, 2.5))


@pytest.mark.slow
def test_declared_mass_matrix_is_the_hessian_of_the_kinetic_energy():
    q, v = np.random.default_rng(0).normal(size=(2, 6))
    hessian = jax.hessian(lambda v: UNEQUAL.kinetic_energy(0.0, q, v))(v)
    np.testing.assert_allclose(UNEQUAL.mass_matrix(0.0, q), hessian, rtol=1e-15)


def test_hanging_chain_rests_and_carries_the_weight_below(saddle_point):
    q, v = UNEQUAL.hanging()
    a, lam = saddle_point(UNEQUAL, 0.0, q, v)
    # forces of 40 N through a well-conditioned 9 x 9 solve: round-off
    np.testing.assert_allclose(a, 0.0, atol=1e-12)
    tension = 2 * np.array([0.3, 0.5, 0.2]) * lam
    np.testing.assert_allclose(tension, 9.81 * np.array([3.9, 2.9, 2.5]), rtol=1e-13)


@pytest.mark.slow
def test_small_swings_of_the_double_pendulum():
    chain = Chain.uniform(2, length=1.0, mass=2.0)
    q, _ = chain.hanging()
    jac = jax.jacfwd(chain.position_constraints, 1)(0.0, q)
    # Link i carries the weight below it with 2 l lam.
    lam = 9.81 * np.array([2.0, 1.0]) / (2 * 0.5)

    def lagrangian(q):
        return chain.potential_energy(0.0, q) + lam @ chain.position_constraints(0.0, q)

    basis = scipy.linalg.null_space(np.asarray(jac))
    stiffness = basis.T @ np.asarray(jax.hessian(lagrangian)(q)) @ basis
    mass = basis.T @ np.asarray(chain.mass_matrix(0.0, q)) @ basis
    squares = scipy.linalg.eigh(stiffness, mass, eigvals_only=True)
    expected = 9.81 / 0.5 * np.array([2 - np.sqrt(2), 2 + np.sqrt(2)])
    np.testing.assert_allclose(squares, expected, rtol=1e-13)


def test_one_link_is_the_pendulum(saddle_point):
    pendulum = CartesianPendulum(mass=0.7, length=1.3)
    chain = Chain(lengths=(1.3,), masses=(0.7,))
    q, v = pendulum.released_from(1.0)
    v = v + 2.0 * jnp.array([-q[1], q[0]])
    for ours, theirs in zip(
        saddle_point(chain, 0.0, q, v), saddle_point(pendulum, 0.0, q, v), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_unequal_numbers_of_links_and_masses_are_refused():
    with pytest.raises(ValueError, match=r"as many masses as lengths.*\(2,\).*\(3,\)"):
        Chain(lengths=(1.0, 1.0), masses=(1.0, 1.0, 1.0))


@pytest.mark.slow
def test_empty_chain_is_refused():
    with pytest.raises(ValueError, match="at least one link; got none"):
        Chain(lengths=(), masses=())
