"""Kalman filters: the state of a sampled linear system, estimated from noisy measurements."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.analysis.controllability import check_pair
from jaxdae.analysis.discrete_riccati import (
    check_stabilized,
    discrete_riccati,
    fixed_root,
    sampled_roots,
)
from jaxdae.analysis.riccati import check_weights
from jaxdae.checks import where_known
from jaxdae.reprs import Module
from jaxdae.tables import root_text


class Estimate(NamedTuple):
    """What a filter remembers: the state as it is expected at the next sample.

    Args:
        state: shape `(s,)`.
        covariance: of its error, shape `(s, s)`; `None` of a filter with a constant gain.
    """

    state: Float[Array, " s"]
    covariance: Float[Array, "s s"] | None


class KalmanFilter(Module):
    r"""The estimate of least variance of the state of a sampled linear system [Kalman1960].

        s_{k+1} = A s_k + B u_k + w_k,    y_k = C s_k + v_k,    w ~ N(0, W),    v ~ N(0, V)

        correct:  s += L (y - C s),    P = (I - L C) P (I - L C)^T + L V L^T,
                  L = P C^T (C P C^T + V)^-1
        predict:  s = A s + B u,       P = A P A^T + W

    With `covariance`, the one at the start, the gain `L` varies with `P`, which is part of the
    memory. `steady()` has the constant gain to which it converges.

    Args:
        A: of the step from sample to sample, shape `(s, s)`.
        B: of the input, shape `(s, i)`.
        C: of the measurements, shape `(p, s)`.
        W: covariance of the noise that a step adds to the state, positive semidefinite `(s, s)`.
        V: covariance of the noise of a measurement, SPD `(p, p)`.
        covariance: `P` before the first measurement, `(s, s)`; `None` beside a gain.
        gain: constant `L`, shape `(s, p)`; `None` beside a covariance.

    Raises:
        ValueError: for shapes that do not fit, covariances that are not definite, or neither a
            covariance nor a gain, or both.
    """

    A: Float[Array, "s s"]
    B: Float[Array, "s i"]
    C: Float[Array, "p s"]
    W: Float[Array, "s s"]
    V: Float[Array, "p p"]
    covariance: Float[Array, "s s"] | None = None
    gain: Float[Array, "s p"] | None = None

    def __check_init__(self):
        if (self.covariance is None) == (self.gain is None):
            raise ValueError(
                "a Kalman filter has either the covariance of its first estimate or a constant "
                "gain; steady(A, B, C, W, V) finds the gain."
            )
        _check(self.A, self.B, self.C, self.W, self.V)
        if self.covariance is not None:
            _check_covariance(self.covariance, self.V, len(self.A))
        elif self.gain is not None and jnp.shape(self.gain) != jnp.shape(self.C)[::-1]:
            raise ValueError(
                f"gain must have shape (s, p) = {jnp.shape(self.C)[::-1]}; got "
                f"{jnp.shape(self.gain)}."
            )

    @classmethod
    def steady(cls, A, B, C, W, V) -> "KalmanFilter":
        r"""The filter of constant gain, by the discrete Riccati equation of `(A^T, C^T, W, V)`.

        Args:
            A: of the step from sample to sample, shape `(s, s)`.
            B: of the input, shape `(s, i)`.
            C: of the measurements, shape `(p, s)`.
            W: covariance of the noise that a step adds to the state, `(s, s)`.
            V: covariance of the noise of a measurement, `(p, p)`.

        Raises:
            ValueError: also for a root that no measurement shows, or that no noise reaches.
        """
        A, B, C, W, V = map(jnp.asarray, (A, B, C, W, V))
        _check(A, B, C, W, V)
        _check_detectable(A, C)
        gain, covariance = _steady(A, C, W, V)
        check_stabilized(
            A - A @ gain @ C,
            covariance,
            "the noise does not reach",
            "Give every unstable or critical direction some of the noise W.",
        )
        return cls(A, B, C, W, V, gain=gain)

    @property
    def memory(self) -> Estimate:
        """What is expected of the first sample: the state zero."""
        return Estimate(jnp.zeros_like(self.A[0]), self.covariance)

    @property
    def roots(self) -> np.ndarray | None:
        """Of the errors of a constant gain, `A (I - L C)`, the largest first; `None` without."""
        if self.gain is None:
            return None
        return sampled_roots(self.A - self.A @ self.gain @ self.C)

    def correct(self, memory: Estimate, y) -> Estimate:
        """The estimate after a measurement `y`, shape `(p,)`."""
        check_measurement(y, self.C.shape[0])
        state, P = memory
        if P is None:
            constant: Any = self.gain
            return Estimate(state + constant @ (y - self.C @ state), None)
        gain = _gain(P, self.C, self.V)
        left = jnp.eye(len(P), dtype=P.dtype) - gain @ self.C
        state = state + gain @ (y - self.C @ state)
        return Estimate(state, left @ P @ left.T + gain @ self.V @ gain.T)

    def predict(self, memory: Estimate, u) -> Estimate:
        """The estimate of the next sample after an input `u`, shape `(i,)`."""
        state, P = memory
        state = self.A @ state + self.B @ u
        return Estimate(state, None if P is None else self.A @ P @ self.A.T + self.W)


def _gain(P, C, V):
    return jnp.linalg.solve(C @ P @ C.T + V, C @ P).T


@jax.jit
def _steady(A, C, W, V):
    P = discrete_riccati(A.T, C.T, W, V)[0]
    return _gain(P, C, V), P


@where_known
def _check(A, B, C, W, V) -> None:
    A, B = check_pair(A, B)
    size, measured = len(A), np.shape(C)[0]
    if np.shape(C) != (measured, size):
        raise ValueError(f"C must have shape (p, {size}); got {np.shape(C)}.")
    check_weights(("W", np.asarray(W), size), ("V", np.asarray(V), measured))


@where_known
def _check_covariance(covariance, V, size: int) -> None:
    V = np.asarray(V)
    check_weights(("covariance", np.asarray(covariance), size), ("V", V, len(V)))


def check_measurement(y, count: int) -> None:
    """Refuse a measurement of another shape, of which arithmetic would make one of its own.

    Args:
        y: what was measured.
        count: how many numbers it must be.
    """
    if jnp.shape(y) != (count,):
        raise ValueError(f"a measurement has shape {jnp.shape(y)}; it must be ({count},).")


@where_known
def _check_detectable(A, C) -> None:
    root = fixed_root(np.asarray(A).T, np.asarray(C).T)
    if root is not None:
        raise ValueError(
            f"the pair (A, C) is not detectable: no measurement shows the root "
            f"z = {root_text(root)} of the step from sample to sample. Measure what moves with it."
        )
