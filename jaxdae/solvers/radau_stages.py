"""What steps of the Radau IIA method of order 5 share, whatever equations their stages satisfy."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.linalg.lu import Factors, product
from jaxdae.solvers.dense_output import AbstractDenseOutput

# Zeros of the second derivative of x^2 (x - 1)^3, and the collocation there
# [HairerWanner1996, IV.5].
NODES = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
_POWERS = np.arange(1, 4)
MATRIX = (NODES[:, None] ** _POWERS / _POWERS) @ np.linalg.inv(NODES[:, None] ** (_POWERS - 1))
INVERSE = np.linalg.inv(MATRIX)


def _real_form() -> tuple[float, float, float, np.ndarray]:
    """`g`, `a`, `b` and `T` with `A^-1 = T [[g, 0, 0], [0, a, -b], [0, b, a]] T^-1`."""
    decomposed: Any = np.linalg.eig(INVERSE)
    values, vectors = decomposed
    real, pair = np.argmin(np.abs(values.imag)), np.argmin(values.imag)
    basis = np.stack([vectors[:, real].real, vectors[:, pair].real, vectors[:, pair].imag], axis=1)
    return float(values[real].real), float(values[pair].real), -float(values[pair].imag), basis


GAMMA, _ALPHA, _BETA, _BASIS = _real_form()
# Weights of the stages in the error estimate, beside h f(t_0, y_0) [HairerWanner1996, IV.8].
ESTIMATE = np.array([-13 - 7 * 6**0.5, -13 + 7 * 6**0.5, -1.0]) / 3


def lagrange(nodes: np.ndarray, x) -> Any:
    """Lagrange's polynomials on some nodes at times, along a last axis."""
    each = []
    for i, node in enumerate(nodes):
        others = np.delete(nodes, i)
        each.append(math.prod((x - float(y)) / float(node - y) for y in others))
    return jnp.stack(each, axis=-1)


class Collocation(AbstractDenseOutput):
    """The state between the ends of a step: the collocation polynomial, of degree 3.

    Args:
        t0: beginning of the step [s].
        t1: its end [s].
        y0: state at the beginning.
        y1: state at the end.
        k: changes in the stages, along a first axis of each leaf.
    """

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k: Any

    def at(self, t):
        """The state at a time [s]."""

        def between(y0, k):
            weights = lagrange(np.array([0.0, *NODES]), self.part(t).astype(y0.dtype))[1:]
            return y0 + jnp.tensordot(weights, k, 1)

        return jax.tree.map(between, self.y0, self.k)


class Past(NamedTuple):
    """What the last step leaves to the next, for the prediction of its stages.

    Args:
        changes: of state in the stages, shape `(3, states)`.
        multipliers: at its end, shape `(c + m,)`.
        step: its length.
    """

    changes: Any
    multipliers: Any
    step: Any


class StageMatrix(NamedTuple):
    """The matrix `A^-1 (x) E + I (x) F` of simplified Newton iterations, by inverse factors.

    With `A^-1` in its real form it is one of `g E + F`, and one of twice that size, whose factors
    are those of a complex one of the same size [HairerWanner1996, section IV.8].

    Args:
        real: the first.
        pair: the other one.
    """

    real: Factors
    pair: Factors

    @classmethod
    def of(cls, inertia, linear, added) -> "StageMatrix":
        """From `E` and `F`, and what is added to the diagonal of `F`."""
        pair = Factors.of_pair(_ALPHA * inertia + linear + jnp.diag(added), _BETA * inertia)
        return cls(Factors.of(GAMMA * inertia + linear, added, pivots=True), pair)

    def solved(self, right):
        """The solution of linear equations, shape `(3, rows)`."""
        parts = self.real.solved, self.pair.solved
        return self._solved(right, np.linalg.inv(_BASIS), _BASIS, *parts)

    def transposed(self, right):
        """The same of the transposed equations."""
        parts = self.real.transposed, self.pair.transposed
        return self._solved(right, _BASIS.T, np.linalg.inv(_BASIS).T, *parts)

    def _solved(self, right, there, back, real: Callable, pair: Callable):
        right = product(jnp.asarray(there, right.dtype), right)
        both = pair(jnp.concatenate([right[1], right[2]]))
        parts = jnp.stack([real(right[0]), *jnp.split(both, 2)])
        return product(jnp.asarray(back, right.dtype), parts)


def predicted(past: Past, h, length, made_jump):
    """Stages as the polynomial of the last step goes on, with the multipliers of its end.

    What multipliers of dependent constraints have that does nothing would grow as they go on.
    """
    ratio = (length / past.step).astype(h.dtype)
    goes_on = jnp.where(made_jump, False, ratio < 4.0)
    x = 1 + jnp.where(goes_on, ratio, 0.0) * jnp.asarray(NODES, h.dtype)
    changes = product(lagrange(np.array([0.0, *NODES]), x)[:, 1:], past.changes)
    changes = changes - past.changes[-1]
    multipliers = h * jnp.broadcast_to(past.multipliers, (NODES.size, past.multipliers.size))
    return jax.lax.stop_gradient(jnp.concatenate([changes, multipliers], axis=1))
