"""Regulators that know the state from noisy measurements alone."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.analysis.controllability import controllability
from jaxdae.analysis.discrete_riccati import dlqr, sampled_roots
from jaxdae.analysis.discretization import accumulated, check_period, held
from jaxdae.analysis.kalman import check_measurement, Estimate, KalmanFilter
from jaxdae.analysis.linearization import Linearization
from jaxdae.analysis.riccati import check_weights, regulated_part, RegulatedPart
from jaxdae.checks import where_known
from jaxdae.control.limits import Bound, check_bounds, within
from jaxdae.reprs import Module
from jaxdae.systems.calls import check_instance, check_parameters, describe_shape
from jaxdae.tables import root_text


class LQG(Module):
    r"""Feedback of an estimated state: a policy of measurements, with a memory.

        s = filter.correct(s, y - y0),    u = u0 - K s within lower and upper

    The filter predicts the next sample with the input that is, and knows no `delay`. It is the
    policy of `Sampled(law, law.period, measure=law.measured)`, where a measurement with noise may
    take the place of `measured`.

    Args:
        filter: estimates the state of the linearized system, a `KalmanFilter`.
        K: gain, shape `(i, s)`.
        u: controls of the equilibrium, shape `(i,)`.
        y: measurements there, shape `(p,)`.
        measured: `(t, q, v, w) -> y`, shape `(p,)`.
        period: of the samples [s].
        lower: bounds of `u`, scalar or `(i,)`; `None` for none.
        upper: likewise.
    """

    filter: KalmanFilter
    K: Float[Array, "i s"]
    u: Float[Array, " i"]
    y: Float[Array, " p"]
    measured: Callable[..., Float[Array, " p"]]
    period: Float[Array, ""] | float
    lower: Bound = None
    upper: Bound = None

    def __check_init__(self):
        check_bounds(self.lower, self.upper)

    @property
    def memory(self) -> Estimate:
        """The estimate before the first sample: the equilibrium."""
        return self.filter.memory

    @property
    def roots(self) -> np.ndarray | None:
        """Roots from sample to sample: of the regulator, then of a filter of constant gain."""
        regulated = sampled_roots(self.filter.A - self.filter.B @ self.K)
        estimated = self.filter.roots
        if regulated is None or estimated is None:
            return None
        return np.concatenate([regulated, estimated])

    def __call__(self, t, y, memory):
        del t
        check_measurement(y, self.y.size)
        memory = self.filter.correct(memory, y - self.y)
        u = within(self.u - self.K @ memory.state, self.lower, self.upper)
        return u, self.filter.predict(memory, u - self.u)


def lqg(
    linearization: Linearization,
    measured: Callable[..., Float[Array, " p"]],
    *,
    period,
    Q=None,
    R=None,
    W=None,
    V=None,
    covariance=None,
    lower: Bound = None,
    upper: Bound = None,
    errors: Sequence[str | int] | None = None,
) -> LQG:
    r"""The sampled regulator of `dlqr` on the state that a Kalman filter estimates.

        ds/dt = A s + B u + w,    y_k = C s_k + v_k,    C = dy/ds at the equilibrium

    Regulator and filter are found apart and are the best together [AstromWittenmark1997, chapter
    11]. State and input are those of `dlqr`: on the part that the constraints leave. The noise `w`
    is white, and what it adds from sample to sample is exact [VanLoan1978].

    Args:
        linearization: of a system about an equilibrium with controls, from `jaxdae.linearize`.
        measured: `(t, q, v, w) -> y`, shape `(p,)`, without its noise.
        period: from sample to sample [s].
        Q: weight of the state, as in `dlqr`; by default the identity.
        R: weight of the input; by default the identity.
        W: spectral density of `w`, positive semidefinite `(s, s)`; by default the identity.
        V: covariance of the noise of a measurement, SPD `(p, p)`; by default the identity.
        covariance: of the state at the start, `(s, s)`: the gain of the filter then varies from
            there. By default it is the constant one to which this gain converges.
        lower: bounds of `u`, scalar or `(i,)`; by default none.
        upper: likewise.
        errors: as `lqr` takes them.

    Returns:
        `LQG`, a policy of a sampled controller; its `memory` is that of its filter.

    Raises:
        TypeError: for anything but a linearization.
        ValueError: as `dlqr`; for measurements of another shape than a vector, a root that they do
            not show or that no noise reaches, or bounds that cross.
    """
    example = "jaxdae.linearize(system, equilibrium)"
    check_instance("linearization", linearization, Linearization, example)
    check_parameters("measured", measured, ("t", "q", "v", "w"))
    check_period(period)
    part = regulated_part(linearization, errors)
    K = dlqr(part.A, part.B, Q, R, period=period).K
    y, C = _output(part, measured)
    W = jnp.eye(len(part.A), dtype=part.A.dtype) if W is None else jnp.asarray(W, part.A.dtype)
    V = jnp.eye(len(C), dtype=C.dtype) if V is None else jnp.asarray(V, C.dtype)
    check_weights(("W", W, len(part.A)), ("V", V, len(C)))
    _check_detectable(part.A, C)
    # The program of dlqr, with any weights.
    dtype, (size, inputs) = part.A.dtype, part.B.shape
    h = jnp.asarray(period, dtype)
    system = held(part.A, part.B, jnp.eye(size, dtype=dtype), jnp.eye(inputs, dtype=dtype), h)
    noise = accumulated(part.A, W, h)
    matrices = (system.A, system.B, C, noise, V)
    if covariance is None:
        estimator = KalmanFilter.steady(*matrices)
    else:
        estimator = KalmanFilter(*matrices, covariance=jnp.asarray(covariance, dtype))
    u = jnp.ravel(linearization.equilibrium.u)
    return LQG(estimator, K, u, y, measured, period, lower, upper)


def _output(part: RegulatedPart, measured):
    """Measurements at the equilibrium, and their derivatives by the state."""
    lin, eq = part.linearization, part.linearization.equilibrium
    at = (eq.t, eq.q, jnp.zeros(len(lin.velocities), eq.q.dtype), eq.w)
    y = measured(*at)
    if getattr(y, "ndim", None) != 1:
        raise ValueError(
            f"measured returned {describe_shape(y)}; it must return a vector (p,) of measurements."
        )
    by_q, by_v, by_w = jax.jacfwd(measured, argnums=(1, 2, 3))(*at)
    d, k, size = len(lin.partition.independent), eq.w.size, lin.A.shape[0]
    slopes = (by_q @ lin.positions + by_v @ lin.velocities)[:, :size]
    slopes = slopes.at[:, 2 * d : 2 * d + k].add(by_w)
    return y, slopes @ part.basis.T


@where_known
def _check_detectable(A, C) -> None:
    """In continuous time, whose roots say more than those of a step."""
    reach = controllability(np.asarray(A).T, np.asarray(C).T)
    if not reach.stabilizable:
        i = int(np.argmax(np.real(reach.roots) + reach.tolerances))
        raise ValueError(
            f"the pair (A, C) is not detectable: no measurement shows the root "
            f"{root_text(reach.roots[i])}. Measure what moves with it."
        )
