"""Theorems about controllability and linear-quadratic regulators."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxdae
from helpers.drifting import drifting
from jaxdae.analysis import controllability, equilibrium, linearize, lqr
from jaxdae.solvers import RK4


def random_pair(rng, size=5, inputs=2):
    A, B = rng.normal(size=(size, size)), rng.normal(size=(size, inputs))
    Q, R = rng.normal(size=(size, size)), rng.normal(size=(inputs, inputs))
    return A, B, Q @ Q.T + 0.1 * np.eye(size), R @ R.T + 0.5 * np.eye(inputs)


def test_gains_agree_with_an_independent_solver(rng):
    for _ in range(10):
        A, B, Q, R = random_pair(rng)
        P = scipy.linalg.solve_continuous_are(A, B, Q, R)
        K = np.linalg.solve(R, B.T @ P)
        found = lqr(A, B, Q, R)
        np.testing.assert_allclose(found.K, K, atol=1e-10 * np.abs(K).max())
        np.testing.assert_allclose(found.P, P, atol=1e-10 * np.abs(P).max())
        assert found.roots is not None
        assert found.roots.real.max() < 0


def test_stiff_and_defective_pairs_agree_too():
    """Ten orders between the roots; a chain of integrators."""
    stiff = np.diag([-1e4, -1.0, 1e-3, 2.0]) + np.diag(np.ones(3), 1)
    chain = np.diag(np.ones(3), 1)
    B = np.array([[0.0], [0.0], [0.0], [1.0]])
    for A in (stiff, chain):
        P = scipy.linalg.solve_continuous_are(A, B, np.eye(4), np.eye(1))
        np.testing.assert_allclose(lqr(A, B).P, P, atol=1e-10 * np.abs(P).max())


@pytest.mark.slow
def test_gradients_agree_with_finite_differences_in_both_modes(rng):
    A, B, Q, R = map(jnp.asarray, random_pair(rng, 4, 2))
    direction = [jnp.asarray(rng.normal(size=x.shape)) for x in (A, B, Q, R)]
    direction[2], direction[3] = (d + d.T for d in direction[2:])
    mix = jnp.asarray(rng.normal(size=(2, 4)))

    @jax.jit
    def scalar(e):
        moved = [x + e * d for x, d in zip((A, B, Q, R), direction, strict=True)]
        return jnp.sum(mix * lqr(*moved).K)

    slope = jax.jit(jax.grad(scalar))
    h = 1e-5
    difference = (scalar(h) - scalar(-h)) / (2 * h)
    # h^2 = 1e-10 of the third derivative; round-off 1e-14 / 1e-5 of gains of order 10.
    np.testing.assert_allclose(slope(0.0), difference, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(scalar, (0.0,), (1.0,))[1], difference, rtol=1e-6)
    second = (slope(h) - slope(-h)) / (2 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(slope))(0.0), second, rtol=1e-5)


@pytest.mark.slow
def test_batches_and_single_precision(rng):
    pairs = [random_pair(rng, 3, 1) for _ in range(4)]
    batch = [jnp.stack(x) for x in zip(*pairs, strict=True)]
    together = jax.vmap(lambda *pair: lqr(*pair).P)(*batch)
    for P, pair in zip(together, pairs, strict=True):
        np.testing.assert_allclose(P, lqr(*pair).P, rtol=1e-8)
    chain = np.array([[0, 1], [0, 0]], np.float32), np.array([[0], [1]], np.float32)
    single = lqr(*chain)
    assert single.K.dtype == jnp.float32
    # A double integrator with unit weights: K = (1, sqrt 3). Ten units of single precision.
    np.testing.assert_allclose(single.K, [[1.0, np.sqrt(3.0)]], rtol=1e-6)


def hidden_pair(rng, hidden):
    """A pair whose `hidden` root no input reaches, in scrambled coordinates."""
    A = np.zeros((4, 4))
    A[:3, :3], A[:3, 3], A[3, 3] = rng.normal(size=(3, 3)), rng.normal(size=3), hidden
    B = np.concatenate([rng.normal(size=(3, 1)), np.zeros((1, 1))])
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    return turn @ A @ turn.T, turn @ B, turn[:, 3]


def test_the_staircase_finds_the_hidden_root(rng):
    A, B, direction = hidden_pair(rng, -0.7)
    found = controllability(A, B)
    assert found.rank == 3
    assert found.stairs == (1, 1, 1)
    np.testing.assert_allclose(found.roots, [-0.7], atol=1e-12)
    np.testing.assert_allclose(np.abs(found.uncontrollable[:, 0] @ direction), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.basis.T @ found.uncontrollable, 0, atol=1e-13)
    assert found.stabilizable


def test_a_hidden_stable_root_stays_and_a_hidden_unstable_one_is_refused(rng):
    A, B, _ = hidden_pair(rng, -0.7)
    roots = lqr(A, B).roots
    assert roots is not None
    np.testing.assert_allclose(np.abs(roots + 0.7).min(), 0, atol=1e-9)
    A, B, _ = hidden_pair(rng, 0.7)
    with pytest.raises(ValueError, match=r"no feedback moves the root 0\.7.*dimension 3 of 4"):
        lqr(A, B)
    A, B, _ = hidden_pair(rng, 0.0)
    with pytest.raises(ValueError, match="not stabilizable"):
        lqr(A, B)


@pytest.mark.slow
def test_what_is_neither_a_pair_nor_a_linearization_is_refused():
    """One function of both, which says what is missing or too many."""
    _, linear = drifting()
    with pytest.raises(TypeError, match=r"(?s)A is Equilibrium\(.*give jaxdae\.linearize\("):
        lqr(linear.equilibrium)
    with pytest.raises(TypeError, match=r"matrix B of the inputs is missing: lqr\(A, B\)"):
        lqr(np.eye(2))
    with pytest.raises(TypeError, match=r"has its own B; give weights by name, .*Q=…, R=…"):
        lqr(linear, np.eye(5))
    with pytest.raises(TypeError, match="errors are those of a linearization"):
        lqr(np.eye(2), np.ones((2, 1)), errors=(0,))
    with pytest.raises(ValueError, match=r"no controls; find it with equilibrium\(…, u=…"):
        lqr(eqx.tree_at(lambda x: x.equilibrium.u, linear, None))


def test_what_does_not_fit_is_refused():
    A, B = np.eye(2), np.ones((2, 1))
    with pytest.raises(ValueError, match=r"shapes \(2, 2\) and \(3, 1\)"):
        lqr(A, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"Q must have shape \(2, 2\)"):
        lqr(A, B, np.eye(3))
    with pytest.raises(ValueError, match="R must be positive definite, but has an eigenvalue 0"):
        lqr(A, B, np.eye(2), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="Q is not symmetric"):
        lqr(A, B, np.array([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="A and B must be finite"):
        controllability(np.full((2, 2), np.nan), B)
    with pytest.raises(ValueError, match="the cost does not see"):
        lqr(np.diag([0.0, -1.0]), B, np.diag([0.0, 1.0]))


def closed_loop(system, feedback, size):
    """Matrix of `(q, v1)` by hand: the ideal constrained motion, whose first force is free."""

    def rate(x):
        q, v = x[:-1], x[-1:]
        first = system.growth * q[1] + system.pull * q[0]
        others = [a * q[0] + b * q[1] for a, b in system.rates]
        velocities = jnp.stack([v[0], first, *others, 2 * q[0] * v[0]])
        push = feedback(0.0, q, velocities, jnp.zeros(0))
        # q_last = q1^2 has no weight in the linear motion.
        return jnp.concatenate([velocities, push])

    return np.asarray(jax.jit(jax.jacfwd(rate))(jnp.zeros(size)))


@pytest.mark.slow
def test_errors_of_velocity_constraints_that_move_are_regulated():
    """Left out, the closed loop keeps the root 0.5 while -0.87 +- 0.5i are reported."""
    system, linear = drifting()
    regulator = lqr(linear)
    feedback = regulator.feedback
    assert feedback.errors is not None
    assert regulator.roots is not None
    A = closed_loop(system, feedback, 4)
    # The row of q3, which its position constraint determines, is zero.
    roots = np.linalg.eigvals(np.delete(np.delete(A, 2, 0), 2, 1))
    np.testing.assert_allclose(np.sort(roots.real), np.sort(regulator.roots.real), atol=1e-9)
    assert regulator.roots.real.max() < -0.3
    assert feedback.errors.shape == (1, 3)
    q = jnp.array([1e-3, 1e-3, 1e-6])
    start = jaxdae.State(q, jnp.stack([0.0, 0.5 * q[1] + q[0], 0.0]))
    run = jaxdae.simulate(
        system,
        jaxdae.Multipliers(),
        start,
        t1=8.0,
        dt=0.02,  # errs by 0.02^4 of the start
        solver=RK4(),
        controller=feedback,
        backend="plain",
    )
    linear_motion = scipy.linalg.expm(A * 8.0) @ np.array([*q, 0.0])
    # What is not linear is of second order in a start of 1e-3, and grows by less than tenfold.
    np.testing.assert_allclose(run.q[-1, :2], linear_motion[:2], atol=1e-5)
    assert np.abs(run.q[-1, :2]).max() < 0.1 * np.abs(run.q[:, :2]).max()


@pytest.mark.slow
@pytest.mark.parametrize("rates", [((0.0, 0.0),), ((2.0, 1.0),)], ids=["at rest", "dependent"])
def test_errors_that_stay_constant_are_left_out(rates):
    """`v3 = 0` holds at rest; `v3 = 2 v2` leaves the combination `z3 - 2 z2` constant."""
    system, linear = drifting(rates=rates)
    regulator = lqr(linear)
    assert regulator.roots is not None
    assert len(regulator.roots) == 3
    roots = np.sort(np.linalg.eigvals(closed_loop(system, regulator.feedback, 5)).real)
    # Two are zero: of the constant combination, and of the position constraint.
    np.testing.assert_allclose(np.abs(roots[-2:]), 0, atol=1e-9)
    np.testing.assert_allclose(roots[:3], np.sort(regulator.roots.real), atol=1e-9)


def test_under_a_transformation_errors_that_move_are_named():
    _, linear = drifting()
    named = jax.jit(lambda lin: lqr(lin, errors=("q2",)).K)(linear)
    np.testing.assert_allclose(named, lqr(linear).K, rtol=1e-9)
    with pytest.raises(ValueError, match="name them"):
        jax.jit(lambda lin: lqr(lin).K)(linear)
    with pytest.raises(ValueError, match=r"'q1' is none of the coordinates.* these are: q2"):
        lqr(linear, errors=("q1",))


@pytest.mark.slow
def test_gradients_reach_from_a_curvature_to_the_gains_of_the_regulator(bead):
    """Through equilibrium, linearization and Riccati equation, in both modes."""

    @jax.jit
    def gains(curvature):
        system = bead(mass=1.0, curvature=curvature, drag=0.0)
        rest = equilibrium(system, jnp.array([0.1, 0.0]), u=jnp.zeros(1))
        return lqr(linearize(system, rest, independent=("x",))).K.ravel()

    def exact(curvature):
        # x'' = -(k + g c) x + u, with unit weights.
        stiffness = 2.0 + 9.81 * curvature
        place = -stiffness + np.sqrt(stiffness**2 + 1)
        return np.array([place, np.sqrt(1 + 2 * place)])

    at, h = 0.8, 1e-5
    value, forward = jax.jvp(gains, (at,), (1.0,))
    np.testing.assert_allclose(value, exact(at), rtol=1e-10)
    # h^2 of the third derivative, which is of order 10.
    slope = (exact(at + h) - exact(at - h)) / (2 * h)
    np.testing.assert_allclose(forward, slope, rtol=1e-7)
    np.testing.assert_allclose(jax.jacrev(gains)(at), slope, rtol=1e-7)
