"""Kalman filters and what is regulated by them: against SciPy on the minimal coordinate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import jaxdae
from helpers.drifting import drifting
from helpers.sampled_plants import PERIOD, place, upright
from jaxdae.analysis import dlqr, KalmanFilter, lqg

NOISE, SENSOR = np.diag([0.01, 0.4]), np.array([[2e-3]])


def matrices(period=PERIOD, gravity=9.81):
    """`A`, `B`, `C`, `W`, `V` of the pendulum from sample to sample, by SciPy."""
    A, B = np.array([[0.0, 1.0], [gravity, 0.0]]), np.array([[0.0], [1.0]])
    held = scipy.linalg.expm(np.block([[A, B], [np.zeros((1, 3))]]) * period)

    def rate(t):
        transition = scipy.linalg.expm(A * t)
        return transition @ NOISE @ transition.T

    W = scipy.integrate.quad_vec(rate, 0, period, epsabs=1e-14, epsrel=1e-12)[0]
    return held[:2, :2], held[:2, 2:], np.array([[1.0, 0.0]]), W, SENSOR


def arrays():
    return tuple(jnp.asarray(x) for x in matrices())


def steady_gain(A, C, W, V):
    P = scipy.linalg.solve_discrete_are(A.T, C.T, W, V)
    return P @ C.T @ np.linalg.inv(C @ P @ C.T + V), P


def test_lqg_of_a_linearization_agrees_with_scipy_on_the_minimal_coordinate():
    """The rod is stated three times over."""
    _, linear = upright()
    law = lqg(linear, place, period=PERIOD, W=NOISE, V=SENSOR)
    A, B, C, W, V = matrices()
    gain, _ = steady_gain(A, C, W, V)
    found = law.filter
    assert found.gain is not None
    assert law.roots is not None
    for one, wanted in zip((found.A, found.B, found.C, found.W), (A, B, C, W), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(found.gain, gain, rtol=1e-9)
    np.testing.assert_allclose(law.K, dlqr(linear, period=PERIOD).K, rtol=1e-12)
    roots = [np.linalg.eigvals(A - B @ law.K), np.linalg.eigvals(A - A @ gain @ C)]
    np.testing.assert_allclose(
        np.sort_complex(law.roots), np.sort_complex(np.concatenate(roots)), rtol=0, atol=1e-9
    )


def test_estimates_of_varying_gain_are_those_of_all_measurements_at_once(rng):
    """The recursion against the conditional mean of one Gaussian vector of all that happened."""
    A, B, C, W, V = arrays()
    first = np.diag([0.3, 0.2])
    estimator = KalmanFilter(A, B, C, W, V, covariance=jnp.asarray(first))
    inputs, measured = rng.normal(size=(4, 1)), rng.normal(size=(5, 1))
    memory = estimator.memory
    for y, u in zip(measured, inputs, strict=False):
        memory = estimator.predict(estimator.correct(memory, y), u)
    memory = estimator.correct(memory, measured[-1])
    # States x_k = mean_k + rows_k (x_0, w_0, …, w_3).
    sources = jnp.asarray(scipy.linalg.block_diag(first, *[np.asarray(W)] * 4))
    rows, mean = jnp.eye(2, 10), jnp.zeros(2)
    seen, expected = [], []
    for k, u in enumerate([*inputs, None]):
        seen, expected = [*seen, C @ rows], [*expected, C @ mean]
        if u is not None:
            rows, mean = A @ rows, A @ mean + B @ u
            rows = rows.at[:, 2 * k + 2 : 2 * k + 4].add(jnp.eye(2))
    H = np.concatenate(seen)
    spread = H @ sources @ H.T + V * np.eye(5)
    cross = rows @ sources @ H.T
    state = mean + cross @ np.linalg.solve(spread, (measured - expected).ravel())
    covariance = rows @ sources @ rows.T - cross @ np.linalg.solve(spread, cross.T)
    np.testing.assert_allclose(memory.state, state, rtol=1e-9)
    assert memory.covariance is not None
    np.testing.assert_allclose(memory.covariance, covariance, rtol=1e-9, atol=1e-14)


def test_the_varying_gain_becomes_the_constant_one():
    A, B, C, W, V = arrays()
    steady = KalmanFilter.steady(A, B, C, W, V)
    estimator = KalmanFilter(A, B, C, W, V, covariance=jnp.eye(2))
    memory = estimator.memory
    for _ in range(300):
        memory = estimator.predict(estimator.correct(memory, jnp.zeros(1)), jnp.zeros(1))
    _, P = steady_gain(A, C, W, V)
    assert memory.covariance is not None
    np.testing.assert_allclose(memory.covariance, P, rtol=1e-9)
    y = jnp.array([0.3])
    one = steady.correct(steady.memory, y)
    other = estimator.correct(memory._replace(state=jnp.zeros(2)), y)
    np.testing.assert_allclose(one.state, other.state, rtol=1e-9)
    assert one.covariance is None
    assert estimator.roots is None


@pytest.mark.slow
def test_gradients_by_noise_and_weights_agree_in_both_modes_with_differences():
    _, linear = upright()

    @jax.jit
    def scalar(x):
        law = lqg(
            linear, place, period=PERIOD * (1 + x), Q=jnp.diag(jnp.array([1.0, 1.0 + x])),
            W=NOISE * (1 + x), V=SENSOR * (1 - x), errors=(),
        )  # fmt: skip
        assert law.filter.gain is not None
        return law.filter.gain.sum() + law.K.sum()

    h = 1e-5
    difference = (scalar(h) - scalar(-h)) / (2 * h)
    # h^2 of the third derivative, and round-off 1e-14 / 1e-5 of gains of order 10.
    np.testing.assert_allclose(jax.jit(jax.grad(scalar))(0.0), difference, rtol=1e-6)
    forward = jax.jit(lambda x: jax.jvp(scalar, (x,), (1.0,))[1])(0.0)
    np.testing.assert_allclose(forward, difference, rtol=1e-6)


class Driven(jaxdae.System):
    """A mass pushed by an actuator, `w' = u - 2 w`."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return w

    def actuator_rate(self, t, q, v, w, u):
        return u - 2.0 * w


def test_measurements_of_errors_that_move_and_of_actuators():
    """`v2 = q2 / 2 + q1` in the state `(q1, v1, z2)`, and an actuator in `(q, v, w)`."""
    _, linear = drifting()
    law = lqg(linear, lambda t, q, v, w: jnp.stack([q[1], v[1]]), period=PERIOD)
    np.testing.assert_allclose(law.filter.C, [[0, 0, 1], [1, 0, 0.5]], atol=1e-12)
    assert law.roots is not None
    assert len(law.roots) == 6
    assert np.abs(law.roots).max() < 1
    rest = jaxdae.equilibrium(Driven(), jnp.ones(1), jnp.zeros(1), jnp.zeros(1))
    both = jaxdae.linearize(Driven(), rest)
    law = lqg(both, lambda t, q, v, w: jnp.concatenate([w, 3 * q + v * q]), period=PERIOD)
    np.testing.assert_allclose(law.filter.C, [[0, 0, 1], [3, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(law.y, [0, 3], atol=1e-12)


def test_the_input_is_kept_within_bounds_and_predicted_with_them():
    _, linear = upright()
    law = lqg(linear, place, period=PERIOD, lower=-0.2, upper=0.1)
    memory = law.memory._replace(state=jnp.array([0.5, 0.0]))
    u, after = law(0.0, jnp.array([0.5]), memory)
    np.testing.assert_allclose(u, [-0.2])
    A, B = law.filter.A, law.filter.B
    np.testing.assert_allclose(after.state, A @ memory.state + B @ u, rtol=1e-12)


def test_what_no_measurement_shows_is_refused_with_its_root():
    _, linear = upright()
    with pytest.raises(ValueError, match=r"no measurement shows the root 3\.13209"):
        lqg(linear, lambda t, q, v, w: 0 * q[:1], period=PERIOD)
    _A, B, _C, W, V = matrices()
    with pytest.raises(ValueError, match=r"not detectable: .* root z = 1\.5 of the step"):
        KalmanFilter.steady(np.diag([1.5, 0.1]), B, np.array([[0.0, 1.0]]), W, V)
    with pytest.raises(ValueError, match=r"noise does not reach .*some of the noise W"):
        KalmanFilter.steady(np.diag([1.0, 0.1]), B, np.ones((1, 2)), np.diag([0.0, 1.0]), V)


def test_what_does_not_fit_is_refused():
    system, linear = upright()
    A, B, C, W, V = arrays()
    with pytest.raises(TypeError, match=r"linearization is .*give jaxdae\.linearize"):
        lqg(system, place, period=PERIOD)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"measured returned shape \(\); it must return a vector"):
        lqg(linear, lambda t, q, v, w: q[0], period=PERIOD)
    with pytest.raises(ValueError, match=r"measured is declared .* must take \(t, q, v, w\)"):
        lqg(linear, lambda t, q: q, period=PERIOD)
    with pytest.raises(ValueError, match="period must be a positive number"):
        lqg(linear, place, period=-1.0)
    with pytest.raises(ValueError, match=r"bounds cross: lower = 1\.0 must be below upper = 0\.5"):
        lqg(linear, place, period=PERIOD, lower=1.0, upper=0.5)
    with pytest.raises(ValueError, match="V must be positive definite"):
        lqg(linear, place, period=PERIOD, V=[[0.0]])
    with pytest.raises(ValueError, match="W must be positive semidefinite"):
        lqg(linear, place, period=PERIOD, W=np.diag([1.0, -1.0]))
    with pytest.raises(ValueError, match=r"either the covariance .* or a constant gain"):
        KalmanFilter(A, B, C, W, V)
    with pytest.raises(ValueError, match=r"either the covariance .* or a constant gain"):
        KalmanFilter(A, B, C, W, V, covariance=jnp.eye(2), gain=jnp.ones((2, 1)))
    with pytest.raises(ValueError, match=r"C must have shape \(p, 2\); got \(1, 3\)"):
        KalmanFilter.steady(A, B, np.ones((1, 3)), W, V)


def test_covariances_gains_and_measurements_that_do_not_fit_are_refused():
    A, B, C, W, V = arrays()
    with pytest.raises(ValueError, match="covariance must be positive semidefinite"):
        KalmanFilter(A, B, C, W, V, covariance=-jnp.eye(2))
    with pytest.raises(ValueError, match=r"covariance must have shape \(2, 2\); got \(3, 3\)"):
        KalmanFilter(A, B, C, W, V, covariance=jnp.eye(3))
    with pytest.raises(ValueError, match=r"gain must have shape \(s, p\) = \(2, 1\); got \(3, 1\)"):
        KalmanFilter(A, B, C, W, V, gain=jnp.ones((3, 1)))
    estimator = KalmanFilter(A, B, C, W, V, covariance=jnp.eye(2))
    for y in (0.1, jnp.ones(2), jnp.ones((1, 1))):
        with pytest.raises(ValueError, match=r"a measurement has shape .* must be \(1,\)"):
            estimator.correct(estimator.memory, y)
    _, linear = upright()
    law = lqg(linear, place, period=PERIOD)
    with pytest.raises(ValueError, match=r"a measurement has shape \(\); it must be \(1,\)"):
        law(0.0, jnp.zeros(()), law.memory)
