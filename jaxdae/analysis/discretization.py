"""Linear systems from sample to sample: inputs that are held, their cost, noise that adds up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag, expm
from jaxtyping import Array, Float

from jaxdae.checks import fails

# Doublings of an interval: enough for roots of 1e9 / period, far beyond what double precision has.
_DOUBLINGS = 30


class HeldSystem(NamedTuple):
    """A linear system under inputs that are held for a period, and the cost of one period.

    Args:
        A: `s_{k+1} = A s_k + B u_k`, shape `(s, s)`.
        B: shape `(s, i)`.
        Q: weight of the state at the sample, shape `(s, s)`.
        R: weight of the input, shape `(i, i)`.
        N: of both, `2 s^T N u`, shape `(s, i)`.
    """

    A: Float[Array, "s s"]
    B: Float[Array, "s i"]
    Q: Float[Array, "s s"]
    R: Float[Array, "i i"]
    N: Float[Array, "s i"]


@jax.jit
def held(A, B, Q, R, period) -> HeldSystem:
    r"""The system `ds/dt = A s + B u` with `u` held for a period, and the integral of its cost.

        (A_d, B_d) = first rows of exp(M h),      M = (A, B; 0, 0)
        (Q_d, N_d; N_d^T, R_d) = int_0^h exp(M^T t) diag(Q, R) exp(M t) dt

    Both are exact [VanLoan1978].

    Args:
        A: shape `(s, s)`.
        B: shape `(s, i)`.
        Q: weight of the state, shape `(s, s)`.
        R: weight of the input, shape `(i, i)`.
        period: `h` [s].
    """
    n, i = B.shape
    both = jnp.concatenate([A, B], axis=1)
    both = jnp.concatenate([both, jnp.zeros((i, n + i), both.dtype)])
    transition, cost = _transition(both, block_diag(Q, R), period)
    cost = (cost + cost.T) / 2
    return HeldSystem(
        transition[:n, :n], transition[:n, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:]
    )


@jax.jit
def accumulated(A, W, period) -> Float[Array, "s s"]:
    r"""Covariance that white noise of density `W` adds in a period, `int exp(A t) W exp(A^T t) dt`.

    Args:
        A: shape `(s, s)`.
        W: spectral density of the noise in `ds/dt`, shape `(s, s)`.
        period: [s].
    """
    covariance = _transition(A.T, W, period)[1]
    return (covariance + covariance.T) / 2


def _transition(M, weight, period):
    """`exp(M h)` and `int_0^h exp(M^T t) weight exp(M t) dt`.

    Van Loan's exponential has `exp(-M^T h)` in it, which is too large where roots are fast: it is
    taken of an interval of the size of `1 / |M|`, which is doubled.
    """
    n = len(M)
    dtype = M.dtype
    size = jax.lax.stop_gradient(jnp.abs(M).sum(axis=0).max() * period)
    count = jnp.ceil(jnp.log2(jnp.maximum(size, 1.0)))
    t = period / 2**count
    # By its size, so that the exponential sees no weight that is larger than M.
    unit = jnp.maximum(jax.lax.stop_gradient(jnp.abs(weight).max()), jnp.finfo(dtype).tiny)
    matrix = jnp.block([[-M.T, weight / unit], [jnp.zeros((n, n), dtype), M]])
    exponential = expm(matrix * jnp.asarray(t, dtype))
    transition = exponential[n:, n:]

    def double(state, k):
        transition, integral = state
        longer = transition @ transition, integral + transition.T @ integral @ transition
        return jax.tree.map(lambda x, y: jnp.where(k < count, x, y), longer, state), None

    start = transition, unit * transition.T @ exponential[:n, n:]
    return jax.lax.scan(double, start, jnp.arange(_DOUBLINGS, dtype=count.dtype))[0]


def check_period(period) -> None:
    """Require a positive number of seconds."""
    if fails(lambda x: np.ndim(x) == 0 and 0 < float(x) < np.inf, period):
        raise ValueError(f"the period must be a positive number of seconds; got {period}.")
