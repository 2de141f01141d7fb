r"""Stabilizers of servo-constraints: the constraint perturbation equations of any order.

For program constraints with relative degrees `rho_i` a stabilizer gives the wanted highest
derivatives

    y_i^(rho_i) = Phi_i(t, q, v, w, y),     Phi(., 0) = 0,

where `y` is a tuple with, for each constraint, `(f_i, f_i', ..., f_i^(rho_i - 1))`
[Mukharlyamov2019, eqs. 3.4, 3.6]. Any callable of `(t, q, v, w, y)` that returns shape `(r,)` may
be used as one.
"""

import abc
import itertools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, where_known
from jaxdae.formulations.gains import is_number
from jaxdae.reprs import Module
from jaxdae.systems import State
from jaxdae.tables import root_text

ServoStabilizer = Callable[..., Float[Array, " r"]]


class AbstractServoStabilizer(Module):
    """A stabilizer that knows which relative degrees it fits."""

    @abc.abstractmethod
    def __call__(self, t, q, v, w, y) -> Float[Array, " r"]:
        """Wanted highest derivatives, shape `(r,)`."""

    @abc.abstractmethod
    def check(self, degrees: tuple[int, ...]) -> None:
        """Raise `ValueError` unless the gains fit the relative degrees."""


class HurwitzGains(AbstractServoStabilizer):
    r"""Each constraint by itself, with constant coefficients.

        y_i^(rho_i) = -(c_i0 y_i + c_i1 y_i' + ... + c_i,rho-1 y_i^(rho_i - 1))

    Asymptotically stable when every `mu^rho + c_rho-1 mu^(rho-1) + ... + c_0` is Hurwitz
    [Mukharlyamov2019, section 3]. A fixed step admits only roots within the stability region of the
    method.

    Args:
        coefficients: `(c_0, ..., c_{rho-1})`, ascending, `c_k` in s^(k - rho), as
            `HurwitzPolynomial.value` has them; for all constraints, or a tuple with one for each.

    Raises:
        ValueError: when a polynomial is not Hurwitz.
    """

    coefficients: Float[Array, " rho"] | tuple[Float[Array, " rho"], ...]

    def __init__(self, coefficients):
        several = isinstance(coefficients, list | tuple) and not all(map(_is_scalar, coefficients))
        each = coefficients if several else (coefficients,)
        each = tuple(_vector(c) for c in each)
        for c in each:
            _check_hurwitz_polynomial(c)
        self.coefficients = each if several else each[0]

    @classmethod
    def repeated(cls, rate, order: int) -> "HurwitzGains":
        """All roots at `-rate`: the polynomial `(mu + rate)^order` [Ascher1994].

        [Mukharlyamov2019, eq. 0.10] quotes it without the term `alpha_0 y`, with which a violation
        would stay.

        Args:
            rate: decay rate [1/s], positive.
            order: relative degree.
        """
        return cls(jnp.stack([math.comb(order, k) * rate ** (order - k) for k in range(order)]))

    def __call__(self, t, q, v, w, y):
        del t, q, v, w
        pairs = zip(self._each(len(y)), y, strict=True)
        return jnp.stack([-jnp.sum(c * level) for c, level in pairs])

    def check(self, degrees):
        values = self._each(len(degrees))
        if len(values) != len(degrees):
            raise ValueError(
                f"HurwitzGains has coefficients for {len(values)} program constraints; there are "
                f"{len(degrees)}."
            )
        for i, (c, rho) in enumerate(zip(values, degrees, strict=True)):
            if not is_number(c):
                raise ValueError(
                    f"HurwitzGains holds a {type(c).__name__}, not an array; pass the value it "
                    "stands for (jaxdae.tuning.resolve replaces parametrizations by their values)."
                )
            if jnp.shape(c) != (rho,):
                raise ValueError(
                    f"HurwitzGains has {jnp.size(c)} coefficients for program constraint {i + 1}, "
                    f"whose relative degree is {rho}; give {rho}, for example "
                    f"HurwitzGains.repeated(rate, {rho})."
                )

    def _each(self, count: int) -> tuple:
        c = self.coefficients
        return c if isinstance(c, tuple) else (c,) * count


class CoupledGains(AbstractServoStabilizer):
    r"""Linear with cross terms, `(y_1^(rho_1), ..., y_r^(rho_r)) = K y`.

    `y` holds `(f_1, f_1', ..., f_2, f_2', ...)`, constraint after constraint [Mukharlyamov2019,
    eq. 3.12].

    Args:
        K: shape `(r, sum rho)`; the companion matrix it makes must have its spectrum in the left
            half-plane, which is checked when the relative degrees are known.
    """

    K: Float[Array, "r total"]

    def __call__(self, t, q, v, w, y):
        del t, q, v, w
        return self.K @ jnp.concatenate(y)

    def check(self, degrees):
        shape = (len(degrees), sum(degrees))
        if not is_number(self.K) or jnp.shape(self.K) != shape:
            raise ValueError(
                f"K has shape {jnp.shape(self.K) if is_number(self.K) else type(self.K).__name__}; "
                f"program constraints of relative degrees {degrees} need {shape}."
            )
        if not are_known(self.K):
            return
        zero = jnp.zeros(0)
        matrix = companion_matrix(self, degrees, jnp.zeros(()), State(zero, zero))
        _check_left(np.linalg.eigvals(np.asarray(matrix)), "the companion matrix of K")


def companion_matrix(
    stabilizer: ServoStabilizer, degrees: Sequence[int], t, state: State
) -> Float[Array, "total total"]:
    """Matrix `H` of the linearized constraint perturbation equations `dy/dt = H y`.

    Args:
        stabilizer: `Phi`.
        degrees: relative degrees.
        t: time [s].
        state: state at which gains that depend on it are taken.

    Returns:
        `H`, shape `(sum rho, sum rho)`, for `y` constraint after constraint.
    """
    starts = np.concatenate([[0], np.cumsum(degrees)])
    total = int(starts[-1])

    def rate(y):
        parts = tuple(y[a:b] for a, b in itertools.pairwise(starts))
        top = stabilizer(t, state.q, state.v, state.w, parts)
        return jnp.concatenate([jnp.append(part[1:], top[i]) for i, part in enumerate(parts)])

    return jax.jacfwd(rate)(jnp.zeros(total, state.q.dtype))


def check_stabilizer(stabilizer: ServoStabilizer, degrees: tuple[int, ...], t, state) -> None:
    """Check that a stabilizer fits the relative degrees and vanishes with the residuals."""
    if isinstance(stabilizer, AbstractServoStabilizer):
        stabilizer.check(degrees)
        return
    y = tuple(jnp.zeros(rho, state.q.dtype) for rho in degrees)
    shape = eqx.filter_eval_shape(stabilizer, t, state.q, state.v, state.w, y).shape
    if shape != (len(degrees),):
        raise ValueError(
            f"the stabilizer returned shape {shape}; it must return the wanted highest derivatives "
            f"of the {len(degrees)} program constraints, shape ({len(degrees)},)."
        )
    if not are_known(stabilizer, t, state):
        return
    rest = np.abs(np.asarray(stabilizer(t, state.q, state.v, state.w, y))).max()
    if not rest == 0:
        raise ValueError(
            f"the stabilizer is {rest:.3g} for zero residuals, and must be zero: otherwise it "
            "drives the system off the program."
        )


def _is_scalar(c) -> bool:
    return is_number(c) and jnp.ndim(c) == 0


def _vector(c):
    return jnp.asarray(c) if isinstance(c, list | tuple) or is_number(c) else c


@where_known
def _check_hurwitz_polynomial(c) -> None:
    if not is_number(c):
        return
    polynomial = np.concatenate([[1.0], np.asarray(c, float)[::-1]])
    _check_left(np.roots(polynomial) if polynomial[-1] else np.zeros(1), "the polynomial")


def _check_left(roots: np.ndarray, what: str) -> None:
    worst = complex(roots[np.argmax(np.real(roots))])
    if not worst.real < 0:
        raise ValueError(
            f"{what} is not Hurwitz: root {root_text(worst)} has a real part that is not negative; "
            "choose roots in the left half-plane, for example HurwitzGains.repeated(rate, order)."
        )
