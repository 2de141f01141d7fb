"""Lyapunov certificates for constraint perturbation equations, with the rates they guarantee."""

from typing import Any, NamedTuple, overload

import numpy as np

from jaxdae.formulations.gains import check_positive, definite, is_number, symmetric
from jaxdae.reprs import shown

# Relative accuracy of the best `eps`: about the square root of double precision, as of any maximum.
_TOLERANCE = 1e-8


class BaumgarteCertificate(NamedTuple):
    r"""Lyapunov function of `d2phi/dt2 + K_D dphi/dt + K_P phi = 0`, and what it guarantees.

    `V = y^T weight y / 2` with `y = (phi, dphi/dt)`, `dV/dt = -y^T decay y`, and

        V(t) <= V(0) exp(-2 rate t).

    Args:
        largest_eps: every `eps` below it is feasible.
        eps: the one used.
        rate: guaranteed exponential rate [1/s] of `sqrt(2 V)`, the certificate's norm.
        weight: shape `(2m, 2m)`.
        decay: shape `(2m, 2m)`.
        growth: largest factor by which the Euclidean norm may exceed its start,
            `|y(t)| <= growth exp(-rate t) |y(0)|`.
    """

    largest_eps: float
    eps: float
    rate: float
    weight: np.ndarray
    decay: np.ndarray
    growth: float

    def __repr__(self) -> str:
        return shown(self)


class LinearCertificate(NamedTuple):
    r"""Quadratic Lyapunov function of `dy/dt = H y`, and what it guarantees.

    `V = y^T m y / 2`, `m1 |y|^2 <= V <= m2 |y|^2`, `dV/dt <= -s |y|^2`, and therefore

        |y(t)|^2 <= (m2 / m1) |y(0)|^2 exp(-rate t),    rate = s / m2.

    Args:
        m: weight, shape `(p, p)`.
        m1: half its least eigenvalue.
        m2: half its largest eigenvalue.
        s: decay.
        rate: `s / m2` [1/s], of the squared norm.
    """

    m: np.ndarray
    m1: float
    m2: float
    s: float
    rate: float

    def __repr__(self) -> str:
        return shown(self)


@overload
def lyapunov_certificate(
    K_D, K_P, m: int | None = None, eps: float | None = None
) -> BaumgarteCertificate: ...


@overload
def lyapunov_certificate(*, H, weight=None) -> LinearCertificate: ...


def lyapunov_certificate(
    K_D=None,
    K_P=None,
    m: int | None = None,
    eps: float | None = None,
    *,
    H=None,
    weight=None,
) -> BaumgarteCertificate | LinearCertificate:
    r"""Certificate of constraint perturbation equations, of gains or a matrix.

    Of the generalized Baumgarte equations, with the best guaranteed rate:

        V = |dphi/dt + eps phi|^2 / 2 + phi^T (K_P + eps K_D - eps^2 I) phi / 2
        dV/dt = -eps phi^T K_P phi - (dphi/dt)^T (K_D - eps I) dphi/dt

    [MukharlyamovDeressa2015, eqs. 18, 19]. Feasible are `eps > 0` with `K_D - eps I > 0`; the
    paper's second condition `K_P + eps K_D - eps^2 I > 0` follows from the first, because that
    matrix is `K_P + eps (K_D - eps I)`. The guaranteed rate is the largest `rho` with
    `decay >= rho weight`. Both matrices are affine in `eps`, so `rho(eps)` has a single hump.

    Of the matrix of `dy/dt = H y` without a weight `m`, this solves `H^T m + m H = -2 I`, so that
    `s = 1`. With a given constant weight `H` may be a batch of samples along a motion (gains that
    depend on state and time); `s` is then the least of all. With `V <= m2 |y|^2` the rate that
    follows is `s / m2`: `dV/dt <= -s |y|^2 <= -(s / m2) V`. [Mukharlyamov2019, section 3] prints
    `2 s / m2`, which is false with its bounds: for `H = -1`, `m = 1` we have `V = y^2 / 2`,
    `m1 = m2 = 1/2`, `s = 1`, and `|y|^2` decays as `exp(-2 t)`, which is `s / m2 = 2`, not 4. The
    factor 2 belongs to bounds on `m` itself, `y^T m y <= m2 |y|^2`.

    Args:
        K_D: velocity gain [1/s]: scalar, diagonal `(m,)` or SPD matrix `(m, m)`.
        K_P: position gain [1/s^2], likewise.
        m: number of constraints, needed only where both gains are scalars and `m > 1`.
        eps: a value to certify; by default the one with the best rate.
        H: instead of gains, a constant matrix `(p, p)`, or samples `(samples, p, p)` with `weight`
            given.
        weight: of a matrix, SPD, shape `(p, p)`.

    Returns:
        `BaumgarteCertificate` of gains, `LinearCertificate` of a matrix.

    Raises:
        ValueError: for gains that are not symmetric or not positive definite, an `eps` that is not
            feasible, or a rate that is not positive beyond round-off; for an `H` that is not
            Hurwitz, or a weight that is not symmetric, not positive definite, or along which `V`
            does not decay beyond round-off; with the numbers.
        TypeError: for gains that are not numbers, both gains and a matrix, or neither.
    """
    gains = (K_D, K_P)
    if H is not None and all(x is None for x in (*gains, m, eps)):
        return _of_matrix(H, weight)
    if any(x is not None for x in (H, weight)) or any(x is None for x in gains):
        raise TypeError(
            "lyapunov_certificate: give gains, (K_D, K_P, m, eps), or a matrix, (H=, weight=), not "
            "some of both."
        )
    return _of_gains(K_D, K_P, m, eps)


def _of_gains(K_D, K_P, m: int | None, eps: float | None) -> BaumgarteCertificate:
    check_positive("K_D", K_D)
    check_positive("K_P", K_P)
    for name, gain in (("K_D", K_D), ("K_P", K_P)):
        if not is_number(gain):
            raise TypeError(
                f"{name} is {gain!r}; give numbers: of a parametrization, jaxdae.tuning.resolve "
                "of it."
            )
    size = m or max(np.shape(np.atleast_1d(K))[0] for K in (K_D, K_P))
    K_D, K_P = (symmetric(x, _square(x, y, size)) for x, y in (("K_D", K_D), ("K_P", K_P)))
    largest = float(np.linalg.eigvalsh(K_D).min())
    if eps is not None and not 0 < eps < largest:
        raise ValueError(
            f"eps = {eps:.6g} is not feasible: it must be positive and below the least eigenvalue "
            f"of K_D, {largest:.6g}."
        )
    if eps is None:
        eps = _best(lambda eps: _guaranteed_rate(*_forms(K_D, K_P, eps)), largest)
    weight, decay = _forms(K_D, K_P, eps)
    # By its factor, which knows small eigenvalues beside large ones.
    factor = np.linalg.cholesky(weight)
    growth = float(np.linalg.norm(factor, 2) * np.linalg.norm(np.linalg.inv(factor), 2))
    rate = _guaranteed_rate(weight, decay)
    if not rate > 0:
        raise ValueError(
            f"the gains give no decay that round-off leaves certain: the rate is {rate:.3g} 1/s. "
            "Give position gains whose sizes differ less, or larger velocity gains."
        )
    return BaumgarteCertificate(largest, float(eps), rate, weight, decay, growth)


def _of_matrix(H, m) -> LinearCertificate:
    H = np.asarray(H, np.float64)
    if m is None:
        m = _lyapunov_weight(H)
    m = symmetric("weight", m)
    half = m @ H
    product = np.swapaxes(half, -1, -2) + half
    # dV/dt = y^T (H^T m + m H) y / 2; what round-off of it may hide does not count.
    size = np.abs(m) @ np.abs(H)
    hidden = 8 * m.shape[-1] * np.finfo(float).eps * np.linalg.norm(size, axis=(-2, -1))
    s = float((-np.linalg.eigvalsh(product).max(axis=-1) / 2 - hidden).min())
    eigenvalues = np.linalg.eigvalsh(m)
    m1, m2 = float(eigenvalues.min()) / 2, float(eigenvalues.max()) / 2
    if not (s > 0 and m1 > 0 and definite(m)):
        raise ValueError(
            f"the weight gives no certificate: dV/dt reaches {-s:.6g} |y|^2 (its own least "
            f"eigenvalue is {2 * m1:.6g}). Give another weight, or larger gains."
        )
    return LinearCertificate(m, m1, m2, s, s / m2)


def _lyapunov_weight(H):
    """`m` with `H^T m + m H = -2 I`."""
    if H.ndim != 2 or H.shape[0] != H.shape[1]:
        raise ValueError(
            f"H has shape {H.shape}; without a weight it must be one square matrix. For samples "
            "of a varying H give one, for example the m of lyapunov_certificate(H=H[0])."
        )
    worst = np.linalg.eigvals(H).real.max()
    if worst >= 0:
        raise ValueError(
            f"H is not Hurwitz: it has a root with real part {worst:.6g}; nothing decays."
        )
    # Imported here, as below: it takes longer than the rest of the package, which does not need it.
    from scipy.linalg import solve_continuous_lyapunov

    m = solve_continuous_lyapunov(H.T, -2 * np.eye(len(H)))
    return (m + m.T) / 2


def _forms(K_D, K_P, eps):
    """`weight` and `decay` of `V` in the variables `(phi, dphi/dt)`."""
    eye, zero = np.eye(len(K_D)), np.zeros_like(K_D)
    weight = np.block([[K_P + eps * K_D, eps * eye], [eps * eye, eye]])
    return weight, np.block([[eps * K_P, zero], [zero, K_D - eps * eye]])


def _guaranteed_rate(weight, decay) -> float:
    """Largest `rho` with `decay >= rho weight`, less what round-off may have added."""
    # With a diagonal of ones, whatever the units of the constraints are.
    scale = 1 / np.sqrt(np.diagonal(weight))
    weight, decay = (scale[:, None] * x * scale for x in (weight, decay))
    half = np.linalg.inv(np.linalg.cholesky(weight))
    quotient = half @ decay @ half.T
    size = np.linalg.norm(np.abs(half) @ np.abs(decay) @ np.abs(half.T))
    hidden = 8 * len(weight) * np.finfo(float).eps * np.linalg.cond(half) * size
    return float(np.linalg.eigvalsh((quotient + quotient.T) / 2).min() - hidden)


def _best(rate, largest: float) -> float:
    """Maximum of a function with a single hump on `[0, largest]`."""
    from scipy.optimize import minimize_scalar

    optimum: Any = minimize_scalar(
        lambda eps: -rate(eps),
        bounds=(0.0, largest),
        method="bounded",
        options={"xatol": _TOLERANCE * largest},
    )
    return optimum.x


def _square(name, gain, size) -> np.ndarray:
    gain = np.asarray(gain, np.float64)
    if gain.ndim == 2 and gain.shape == (size, size):
        return gain
    if gain.ndim < 2 and gain.size in (1, size):
        return np.diag(np.broadcast_to(gain, (size,)))
    raise ValueError(f"{name} has shape {gain.shape}, which does not fit {size} constraints.")
