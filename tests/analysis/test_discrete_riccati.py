"""Sampled regulators: against SciPy on exact discretizations by quadrature, and in motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

from helpers.sampled_plants import PERIOD, upright
from jaxdae import dlqr
from jaxdae.analysis import lqr


def random_pair(rng, size=5, inputs=2):
    A, B = rng.normal(size=(size, size)), rng.normal(size=(size, inputs))
    Q, R = rng.normal(size=(size, size)), rng.normal(size=(inputs, inputs))
    return A, B, Q @ Q.T + 0.1 * np.eye(size), R @ R.T + 0.5 * np.eye(inputs)


def sampled_by_quadrature(A, B, Q, R, period):
    """System and cost from sample to sample, by SciPy's exponential and quadrature."""
    (n, _i), size = B.shape, sum(B.shape)
    M = np.zeros((size, size))
    M[:n] = np.concatenate([A, B], axis=1)
    weight = np.asarray(scipy.linalg.block_diag(Q, R), float)

    def cost_rate(t):
        transition = np.asarray(scipy.linalg.expm(M * t))
        return transition.T @ weight @ transition

    cost = scipy.integrate.quad_vec(cost_rate, 0, period, epsabs=1e-13, epsrel=1e-13)[0]
    transition = scipy.linalg.expm(M * period)
    return transition[:n, :n], transition[:n, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:]


def gain(A, B, Q, R, N):
    """Gain and cost by SciPy's solver."""
    P = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
    return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T), P


def test_gains_of_sampled_matrices_agree_with_an_independent_solver(rng):
    for _ in range(10):
        A, B, Q, R = random_pair(rng)
        K, P = gain(A, B, Q, R, np.zeros_like(B))
        found = dlqr(A, B, Q, R)
        np.testing.assert_allclose(found.K, K, atol=1e-10 * np.abs(K).max())
        np.testing.assert_allclose(found.P, P, atol=1e-10 * np.abs(P).max())
        assert found.roots is not None
        assert np.abs(found.roots[0]) == np.abs(found.roots).max() < 1


@pytest.mark.parametrize("period", [0.01, 0.3, 1.0])
def test_held_inputs_and_their_cost_are_exact(rng, period):
    A, B, Q, R = random_pair(rng, 3, 2)
    K, P = gain(*sampled_by_quadrature(A, B, Q, R, period))
    found = dlqr(A, B, Q, R, period=period)
    np.testing.assert_allclose(found.K, K, atol=1e-9 * np.abs(K).max())
    np.testing.assert_allclose(found.P, P, atol=1e-9 * np.abs(P).max())


def test_fast_roots_do_not_overflow_and_fast_samples_are_the_continuous_regulator():
    """`exp(1e4 * 0.1)` is not finite; the root that decays so fast has no part in the cost."""
    A, B = np.diag([-1e4, 0.5]), np.ones((2, 1))
    slow = dlqr(A[1:, 1:], B[1:], period=0.1)
    found = dlqr(A, B, np.diag([0.0, 1.0]), period=0.1)
    np.testing.assert_allclose(found.K, [[0.0, slow.K[0, 0]]], rtol=0, atol=1e-10)
    chain, push = np.diag(np.ones(2), 1), np.array([[0.0], [0.0], [1.0]])
    fast, continuous = dlqr(chain, push, period=1e-4), lqr(chain, push)
    # Held for a period, the input comes half of it late: a relative change of that size.
    np.testing.assert_allclose(fast.K, continuous.K, rtol=1e-3)
    np.testing.assert_allclose(fast.P, continuous.P, rtol=1e-3)


def test_of_a_linearization_it_is_that_of_the_minimal_coordinate():
    """The rod stated three times over: no zero root of constraints stays."""
    system, linear = upright()
    A, B = np.array([[0.0, 1.0], [system.gravity, 0.0]]), np.array([[0.0], [1.0]])
    Q, R = np.diag([2.0, 0.3]), np.array([[0.5]])
    K, _ = gain(*sampled_by_quadrature(A, B, Q, R, PERIOD))
    found = dlqr(linear, Q=Q, R=R, period=PERIOD)
    np.testing.assert_allclose(found.K, K, rtol=1e-9)
    u = found.feedback(0.0, jnp.array([0.1, 0.9]), jnp.array([-0.2, 0.0]), jnp.zeros(0))
    np.testing.assert_allclose(u, -K @ [0.1, -0.2], rtol=1e-9)


@pytest.mark.slow
def test_gradients_by_weights_matrices_and_period_agree_in_both_modes_with_differences(rng):
    pair = [jnp.asarray(x) for x in random_pair(rng, 3, 1)]
    direction = [jnp.asarray(rng.normal(size=x.shape)) for x in pair]
    direction[2], direction[3] = (d + d.T for d in direction[2:])
    mix = jnp.asarray(rng.normal(size=(1, 3)))

    @jax.jit
    def scalar(e):
        moved = [x + e * d for x, d in zip(pair, direction, strict=True)]
        found = dlqr(*moved, period=0.3 + 0.1 * e)
        return jnp.sum(mix * found.K) + found.P[0, 0]

    h = 1e-5
    difference = (scalar(h) - scalar(-h)) / (2 * h)
    # h^2 = 1e-10 of the third derivative; round-off 1e-14 / 1e-5 of gains of order 10.
    np.testing.assert_allclose(jax.jit(jax.grad(scalar))(0.0), difference, rtol=1e-6)
    forward = jax.jit(lambda e: jax.jvp(scalar, (e,), (1.0,))[1])(0.0)
    np.testing.assert_allclose(forward, difference, rtol=1e-6)


def test_batches_and_single_precision(rng):
    pairs = [random_pair(rng, 3, 1) for _ in range(3)]
    batch = [jnp.stack(x) for x in zip(*pairs, strict=True)]
    periods = jnp.array([0.1, 0.2, 0.7])
    together = jax.vmap(lambda *x: dlqr(*x[:-1], period=x[-1]).P)(*batch, periods)
    for P, pair, period in zip(together, pairs, periods, strict=True):
        np.testing.assert_allclose(P, dlqr(*pair, period=float(period)).P, rtol=1e-8)
    chain = np.array([[0, 1], [0, 0]], np.float32), np.array([[0], [1]], np.float32)
    single = dlqr(*chain, period=0.5)
    assert single.K.dtype == jnp.float32
    double = dlqr(*(x.astype(float) for x in chain), period=0.5)
    np.testing.assert_allclose(single.K, double.K, rtol=1e-5)


def test_what_is_not_stabilizable_is_refused_with_its_root():
    swing, push = np.array([[0.0, 1.0], [-(np.pi**2), 0.0]]), np.array([[0.0], [1.0]])
    roots = dlqr(swing, push, period=0.9).roots
    assert roots is not None
    assert np.abs(roots[0]) < 1
    with pytest.raises(ValueError, match=r"as it is sampled, every 1\.0 s; take another.* z = -1"):
        dlqr(swing, push, period=1.0)
    hidden = np.diag([0.5, 0.0]), np.array([[0.0], [1.0]])
    with pytest.raises(ValueError, match=r"no feedback moves the root 0\.5"):
        dlqr(*hidden, period=0.1)
    with pytest.raises(ValueError, match=r"no feedback moves the root z = 1\.5"):
        dlqr(np.diag([1.5, 0.1]), hidden[1])


def test_what_does_not_fit_is_refused():
    A, B = np.diag([0.5, 0.2]), np.ones((2, 1))
    _, linear = upright()
    with pytest.raises(TypeError, match=r"is sampled: dlqr\(linearization, period=…\)"):
        dlqr(linear)
    with pytest.raises(TypeError, match=r"has its own B"):
        dlqr(linear, B, period=0.1)
    with pytest.raises(TypeError, match="matrix B of the inputs is missing"):
        dlqr(A)
    with pytest.raises(TypeError, match="errors are those of a linearization"):
        dlqr(A, B, errors=(0,))
    for period in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="period must be a positive number of seconds"):
            dlqr(A, B, period=period)
    with pytest.raises(ValueError, match=r"Q must have shape \(2, 2\)"):
        dlqr(A, B, np.eye(3))
    with pytest.raises(ValueError, match="Q must be finite"):
        dlqr(A, B, np.diag([np.nan, 1.0]))
    with pytest.raises(ValueError, match="no stabilizing solution: the cost does not see a crit"):
        dlqr(np.diag([1.0, 0.5]), B, np.diag([0.0, 1.0]))


def test_a_critical_root_that_the_cost_hardly_sees_is_refused():
    with pytest.raises(ValueError, match=r"the root z = 1 stays: the cost does not see it"):
        dlqr(np.diag([1.0, 0.5]), np.ones((2, 1)), np.diag([1e-40, 1.0]))
