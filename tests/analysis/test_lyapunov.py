"""Theorems about Lyapunov certificates."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import jaxdae
from jaxdae.analysis import lyapunov_certificate, perturbation_matrix
from jaxdae.formulations import Baumgarte


def spd(rng, size, least=0.5):
    a = rng.normal(size=(size, size))
    return a @ a.T + least * np.eye(size)


def paper_function(K_D, K_P, eps, y):
    """V and dV/dt as Redundant prints them (18-19)."""
    m = len(K_D)
    f, f_dot = y[:m], y[m:]
    weight = K_P + eps * K_D - eps**2 * np.eye(m)
    V = 0.5 * np.sum((f_dot + eps * f) ** 2) + 0.5 * f @ weight @ f
    return V, -eps * f @ K_P @ f - f_dot @ (K_D - eps * np.eye(m)) @ f_dot


def test_the_certificate_is_the_function_of_the_paper(rng):
    K_D, K_P = spd(rng, 3), spd(rng, 3)
    found = lyapunov_certificate(K_D, K_P)
    H = np.block([[np.zeros((3, 3)), np.eye(3)], [-K_P, -K_D]])
    y = rng.normal(size=6)
    V, rate = paper_function(K_D, K_P, found.eps, y)
    np.testing.assert_allclose(0.5 * y @ found.weight @ y, V, rtol=1e-12)
    np.testing.assert_allclose(y @ found.weight @ H @ y, rate, rtol=1e-10)
    np.testing.assert_allclose(-y @ found.decay @ y, rate, rtol=1e-12)


def test_the_largest_eps_is_the_least_damping_and_the_other_condition_follows(rng):
    for _ in range(20):
        K_D, K_P = spd(rng, 3, 0.01), spd(rng, 3, 0.01)
        largest = lyapunov_certificate(K_D, K_P).largest_eps
        np.testing.assert_allclose(largest, np.linalg.eigvalsh(K_D)[0], rtol=1e-12)
        second = K_P + largest * K_D - largest**2 * np.eye(3)
        assert np.linalg.eigvalsh(second)[0] > 0


def test_the_guaranteed_rate_holds_along_motions_and_is_the_best_of_its_family(rng):
    K_D, K_P = spd(rng, 2), spd(rng, 2)
    found = lyapunov_certificate(K_D, K_P)
    H = perturbation_matrix(Baumgarte(K_D, K_P))
    assert 0 < found.rate <= -np.linalg.eigvals(H).real.max()
    y0 = rng.normal(size=(4, 40))
    for t in (0.1, 1.0, 5.0):
        y = scipy.linalg.expm(H * t) @ y0
        V0, V = (0.5 * np.einsum("is,ij,js->s", x, found.weight, x) for x in (y0, y))
        # Round-off of the exponential.
        assert np.all(V0 * np.exp(-2 * found.rate * t) * (1 + 1e-10) >= V)
        bound = found.growth * np.exp(-found.rate * t) * np.linalg.norm(y0, axis=0)
        assert np.all(np.linalg.norm(y, axis=0) <= bound)
    for eps in np.linspace(0.01, 0.99, 60) * found.largest_eps:
        assert lyapunov_certificate(K_D, K_P, eps=eps).rate <= found.rate * (1 + 1e-9)


def test_gains_without_a_certificate_are_refused():
    with pytest.raises(ValueError, match="K_D must be positive definite, but has a value -1"):
        lyapunov_certificate(-1.0, 1.0)
    with pytest.raises(ValueError, match=r"eps = 3 is not feasible.* 2"):
        lyapunov_certificate(2.0, 1.0, eps=3.0)
    with pytest.raises(ValueError, match="does not fit 2 constraints"):
        lyapunov_certificate(np.ones(2), np.ones(3), m=2)


def test_gains_that_are_not_numbers_are_refused():
    with pytest.raises(TypeError, match=r"K_P is Positive\(.*jaxdae\.tuning\.resolve of it"):
        lyapunov_certificate(2.0, jaxdae.tuning.Positive(3.0))


def test_gains_and_a_matrix_exclude_each_other():
    gains: dict[str, Any] = {"K_D": 1.0, "K_P": 1.0}
    for given in ({}, {"K_D": 1.0}, gains | {"H": -np.eye(2)}, gains | {"weight": 1.0}):
        with pytest.raises(TypeError, match=r"give gains, .* or a matrix"):
            lyapunov_certificate(**given)


def test_the_rate_is_s_over_m2_and_twice_that_is_false():
    """The counterexample to the constant of Servo: one exponential, exactly known."""
    found = lyapunov_certificate(H=-np.eye(1))
    # Less what round-off may have hidden.
    np.testing.assert_allclose(found[1:], (0.5, 0.5, 1.0, 2.0), rtol=1e-14)
    assert found.rate < 2.0
    t = 1.0
    squared = np.exp(-2 * t)
    assert squared <= found.m2 / found.m1 * np.exp(-found.rate * t) * (1 + 1e-15)
    printed = 2 * found.s / found.m2
    assert squared > 2 * found.m2 / found.m1 * np.exp(-printed * t)


def test_the_bound_holds_for_random_hurwitz_matrices(rng):
    for _ in range(10):
        H = rng.normal(size=(4, 4))
        H -= (np.linalg.eigvals(H).real.max() + 0.3) * np.eye(4)
        found = lyapunov_certificate(H=H)
        np.testing.assert_allclose(H.T @ found.m + found.m @ H, -2 * np.eye(4), atol=1e-9)
        np.testing.assert_allclose(found.s, 1.0, rtol=1e-9)
        for t in (0.2, 1.0, 4.0):
            worst = np.linalg.norm(scipy.linalg.expm(H * t), 2) ** 2
            assert worst <= found.m2 / found.m1 * np.exp(-found.rate * t) * (1 + 1e-9)


def test_samples_of_a_varying_matrix_share_one_weight():
    def H(t):
        return np.array([[0.0, 1.0], [-4.0 - 0.3 * np.sin(t), -4.0]])

    weight = lyapunov_certificate(H=H(0.0)).m
    samples = np.array([H(t) for t in np.linspace(0, 6.3, 30)])
    found = lyapunov_certificate(H=samples, weight=weight)
    each = [lyapunov_certificate(H=sample, weight=weight).s for sample in samples]
    np.testing.assert_allclose(found.s, min(each), rtol=1e-12)


def test_a_matrix_that_grows_is_refused():
    with pytest.raises(ValueError, match=r"not Hurwitz.* real part 0\.1"):
        lyapunov_certificate(H=np.diag([-1.0, 0.1]))
    with pytest.raises(ValueError, match="weight gives no certificate"):
        lyapunov_certificate(H=np.array([[0.0, 1.0], [-4.0, -4.0]]), weight=np.eye(2))
    with pytest.raises(ValueError, match="must be one square matrix"):
        lyapunov_certificate(H=np.zeros((3, 2, 2)))


# Gains of which one is so large that skew parts of the others look like round-off beside it.
LARGE = [
    (np.diag([2e3, 0.1, 0.1]), [[1e6, 0, 0], [0, 1, 0.9], [0, -0.9, 1]]),
    (np.diag([2e3, 20.0, 20.0]), [[1e6, 0, 0], [0, 1, 4.5], [0, -4.5, 1]]),
]


@pytest.mark.parametrize(("K_D", "K_P"), LARGE)
def test_skew_parts_beside_large_entries_are_refused(K_D, K_P):
    for use in (lyapunov_certificate, jaxdae.Baumgarte):
        with pytest.raises(ValueError, match=r"K_P is not symmetric: .* by up to"):
            use(K_D, np.array(K_P))


def test_weights_that_are_not_symmetric_or_definite_are_refused():
    """`H` has a root of +0.525: no weight certifies it, though one triangle of this one does."""
    H = np.array([[-0.1592, 0.5408], [0.2147, 0.3554]])
    m = np.array([[1.0, -2.615], [0.0, 1.0]])
    for weight, samples in ((m, H), (np.stack([m, m]), np.stack([H, H]))):
        with pytest.raises(ValueError, match="weight is not symmetric"):
            lyapunov_certificate(H=samples, weight=weight)
    with pytest.raises(ValueError, match="weight gives no certificate"):
        lyapunov_certificate(H=H, weight=np.diag([1.0, -1.0]))


def _random_gain(rng, size: int) -> np.ndarray:
    """Positive definite, nearly or not; of scales over 1e8; symmetric, nearly or not."""
    factor = rng.normal(size=(size, size))
    K, kind = factor @ factor.T, rng.integers(0, 3)
    if kind == 1:
        K -= np.linalg.eigvalsh(K)[0] * (1 - 10.0 ** rng.uniform(-17, -1)) * np.eye(size)
    if kind == 2:
        K -= rng.uniform(0, 1.5) * np.trace(K) / size * np.eye(size)
    scale = 10.0 ** rng.uniform(-4, 4, size)
    K = scale[:, None] * K * scale
    skew = rng.normal(size=(size, size))
    skew = (skew - skew.T) * 10.0 ** rng.uniform(-9, 0) * rng.integers(0, 2)
    mean = np.sqrt(np.abs(np.diagonal(K)))
    over = np.abs(K).max() if rng.integers(0, 2) else mean[:, None] * mean
    return (K + K.T) / 2 + over * skew


def test_no_certificate_promises_more_than_the_roots(rng):
    """Of the stabilization as it acts, its matrix by differentiation and its roots by NumPy."""
    certified = 0
    for _ in range(400):
        size = int(rng.integers(1, 5))
        K_D, K_P = _random_gain(rng, size), _random_gain(rng, size)
        try:
            found = lyapunov_certificate(K_D, K_P)
        except (ValueError, np.linalg.LinAlgError):
            continue
        certified += 1
        lower = [-(K_P + K_P.T) / 2, -(K_D + K_D.T) / 2]
        H = np.block([[np.zeros((size, size)), np.eye(size)], lower])
        balanced, _ = scipy.linalg.matrix_balance(H)
        # Roots are known to round-off of the largest.
        error = 1e-13 * np.abs(balanced).max()
        assert 0 < found.rate <= -np.linalg.eigvals(balanced).real.max() + error
    assert certified > 40


def test_gains_act_with_their_symmetric_part():
    K = np.array([[3.0, 1.0 + 1e-6], [1.0 - 1e-6, 2.0]])
    H = perturbation_matrix(jaxdae.Baumgarte(K, K), 2)
    np.testing.assert_array_equal(H[2:, :2], H[2:, :2].T)
