r"""Differential equations with given integrals, stabilized [Erugin1952; Mukharlyamov1971].

All right-hand sides of `dx/dt = X(t, x)` for which `f(t, x) = 0` is invariant are

    X = X_tau + F^+ (Phi(t, x, f) - f_t),      F X_tau = 0,      F = df/dx,

with any `Phi(., 0) = 0` [Mukharlyamov2019, section 0], for then `df/dt = Phi`. The right inverse of
least size in a metric `W` is `F^+ = W^-1 F^T (F W^-1 F^T)^-1`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import block_diag, solve_triangular
from jaxtyping import Array, Float

from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.gains import apply_gain, check_positive, Gain, is_number, metric_factor
from jaxdae.reprs import Module
from jaxdae.systems import State, System

# (t, x, f) -> wanted df/dt, shape (r,); or a gain K for Phi = -K f.
IntegralStabilizer = Callable[..., Float[Array, " r"]]


class PartialIntegrals(Module):
    r"""A first-order vector field for which `f(t, x) = 0` is invariant and attracting.

        dx/dt = X_tau + F^+ (Phi - f_t),        X_tau = (I - F^+ F) X

    for any given `X`. Where `f` already is a first integral of `X` this is `X + F^+ Phi`. Callable
    as `(t, x, args=None)`, as `diffrax.ODETerm` wants it.

    Args:
        field: `X(t, x) -> (d,)`.
        integrals: `f(t, x) -> (r,)`; of first integrals `I`, the difference `I(x) - I(x_0)`.
        gain: `K` in `Phi = -K f` [1/s]: positive scalar, diagonal `(r,)` or SPD matrix; or a
            callable `Phi(t, x, f)`.
        weight: `W`, metric of the corrections: positive scalar, diagonal `(d,)` or SPD matrix; by
            default the identity, which makes sense when all of `x` has one unit.
        rcond: for integrals that are dependent or become so along the motion: singular values of
            `F W^-1/2` below this fraction of the largest count as zero. By default they must be
            independent.

    Raises:
        ValueError: for a gain or weight that is not positive definite.
    """

    field: Callable[..., Float[Array, " d"]]
    integrals: Callable[..., Float[Array, " r"]]
    gain: Gain | IntegralStabilizer
    weight: Gain | None = None
    rcond: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _check_gains(self.gain, self.weight)

    def __call__(self, t, x, args=None) -> Float[Array, " d"]:
        """`dx/dt`, shape `(d,)`."""
        del args
        t, rate = jnp.asarray(t, x.dtype), self.field(t, x)
        f, f_dot = jax.jvp(self.integrals, (t, x), (jnp.ones_like(t), rate))
        # X_tau + F^+ (Phi - f_t) = X + F^+ (Phi - F X - f_t)
        defect = _wanted(self.gain, t, x, f) - f_dot
        jac = jax.jacfwd(self.integrals, 1)(t, x)
        return rate + right_inverse(jac, defect, self.weight, self.rcond)


class StabilizedIntegrals(AbstractFormulation):
    r"""A formulation whose first integrals are stabilized.

        dx/dt = X + F^+ Phi(t, x, I - I_0)

    on the state `x` of the inner formulation; `I_0` is kept [Baumgarte1972]. In a run backward in
    time `Phi` acts in the direction of integration, as stabilizations of constraints do. On an
    exact motion the correction vanishes; it acts upon errors of integration only. It moves
    coordinates and velocities, so `dq/dt` differs from `v` by the correction; multipliers are the
    inner formulation's.

    Args:
        inner: the formulation that is integrated.
        integrals: `I(t, q, v) -> (r,)`.
        values: `I_0`, shape `(r,)`.
        gain: `K` in `Phi = -K (I - I_0)` [1/s]: positive scalar, diagonal `(r,)` or SPD matrix; or
            a callable `Phi(t, x, f)` of the flattened state.
        weight: metric of the corrections: diagonal or SPD matrix on the flattened state; with
            `(q, v)` of different units it should weigh them against each other.
        rcond: as for `PartialIntegrals`.

    Raises:
        ValueError: for a gain or weight that is not positive definite.
    """

    inner: AbstractFormulation
    integrals: Callable[..., Float[Array, " r"]]
    values: Float[Array, " r"]
    gain: Gain | IntegralStabilizer
    weight: Gain | None = None
    rcond: float | None = eqx.field(static=True, default=None)
    # Of time in the direction of integration, in which the integrals return.
    sign: Any = eqx.field(default=1, repr=False)

    def __check_init__(self):
        _check_gains(self.gain, self.weight)

    @classmethod
    def at(
        cls,
        state: State,
        integrals: Callable,
        gain,
        *,
        inner: AbstractFormulation,
        t=0.0,
        **options,
    ) -> "StabilizedIntegrals":
        """With the values that the integrals have at a start."""
        values = integrals(jnp.asarray(t, state.q.dtype), state.q, state.v)
        return cls(inner, integrals, values, gain, **options)

    @property
    def capabilities(self):
        # Its corrections act everywhere: the steps are not projected.
        return self.inner.capabilities._replace(passes_singular_positions=False)

    @property
    def examination(self):
        return self.inner.examination._replace(declaration=self._check)

    def init(self, system, t, state, like=None):
        return self.inner.init(system, t, state, like)

    def recover(self, system, t, y):
        return self.inner.recover(system, t, y)

    def rate_and_multipliers(self, system, t, y, u):
        rate, lam = self.inner.rate_and_multipliers(system, t, y, u)
        x, unravel = ravel_pytree(y)
        t = jnp.asarray(t, x.dtype)

        def residual(x):
            state = self.recover(system, t, unravel(x))
            return self.integrals(t, state.q, state.v) - self.values

        f, jac = residual(x), jax.jacfwd(residual)(x)
        wanted = self.sign * _wanted(self.gain, t, x, f)
        correction = right_inverse(jac, wanted, self.weight, self.rcond)
        return jax.tree.map(jnp.add, rate, unravel(correction)), lam

    def in_direction(self, sign):
        turned = (self.inner.in_direction(sign), sign)
        if self.inner is turned[0] and self.sign is sign:
            return self
        return eqx.tree_at(lambda x: (x.inner, x.sign), self, turned)

    def perturbation_matrix(self, system, t, state):
        """Of the inner formulation's constraints, then of the integrals."""
        inner = self.inner.perturbation_matrix(system, t, state)
        x = ravel_pytree(self.init(system, t, state))[0]
        stabilized = jax.jacfwd(lambda f: _wanted(self.gain, t, x, f))(jnp.zeros_like(self.values))
        return stabilized if inner is None else block_diag(inner, stabilized)

    def _check(self, system: System, state: State) -> None:
        self.inner.check(system, state)
        zero = jnp.zeros((), state.q.dtype)
        shape = eqx.filter_eval_shape(self.integrals, zero, state.q, state.v).shape
        if len(shape) != 1 or shape != jnp.shape(self.values):
            raise ValueError(
                f"the integrals have shape {shape}, their values {jnp.shape(self.values)}; both "
                "must be vectors of one length. StabilizedIntegrals.at(state, …) computes values."
            )


def right_inverse(jac, rhs, weight=None, rcond: float | None = None) -> Float[Array, " d"]:
    """`F^+ rhs = W^-1 F^T (F W^-1 F^T)^-1 rhs`: the least `x` in the metric `W` with `F x = rhs`.

    Args:
        jac: `F`, shape `(r, d)`.
        rhs: shape `(r,)`.
        weight: `W`: positive scalar, diagonal `(d,)`, SPD matrix `(d, d)`, or `None` for identity.
        rcond: `None` for independent rows (NaN or infinite otherwise); else singular values of
            `F L^-T` below this fraction of the largest count as zero, and the result is the
            least-squares one.

    Returns:
        Shape `(d,)`.
    """
    factor = metric_factor(weight, jac.shape[1], jac.dtype)
    scaled = jac if factor is None else solve_triangular(factor, jac.T, lower=True).T
    if rcond is None:
        basis, upper = jnp.linalg.qr(scaled.T)
        x = basis @ solve_triangular(upper, rhs, trans=1)
    else:
        solver = lx.SVD(rcond=rcond)
        x = lx.linear_solve(lx.MatrixLinearOperator(scaled), rhs, solver, throw=False).value
    if factor is None:
        return x
    return solve_triangular(factor, x, lower=True, trans=1)


def _wanted(gain, t, x, f):
    return gain(t, x, f) if callable(gain) else -apply_gain(gain, f)


def _check_gains(gain, weight) -> None:
    if is_number(gain):
        check_positive("gain", gain)
    if weight is not None:
        check_positive("weight", weight)
