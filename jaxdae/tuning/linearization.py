"""Steps of optimistix's solvers on a function that is linearized where they evaluate it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# The Jacobian of the linearized function as a matrix, which reverse mode makes.
_OPTIONS = {"jac": "bwd"}


class Short(NamedTuple):
    """Residuals and Jacobian in `k = 1 + min(m, p)` rows, for `m` residuals of `p` parameters.

    Args:
        value: shape `(k,)`.
        slope: shape `(k, p)`.
    """

    value: Float[Array, " k"]
    slope: Float[Array, "k p"]


def shortened(residuals: Float[Array, " m"], jacobian: Float[Array, "m p"]) -> Short:
    """With `J = Q R`: `(Q^T r, |r - Q Q^T r|)` and `(R, 0)`.

    They have the norm, the gradient, and the linearization's norm after every step of `r` and `J`.
    """
    q, factor = jnp.linalg.qr(jacobian)
    inside = residuals @ q
    rest = jnp.linalg.norm(residuals - q @ inside)
    slope = jnp.concatenate([factor, jnp.zeros_like(jacobian, shape=(1, jacobian.shape[1]))])
    return Short(jnp.append(inside, rest), slope)


def initialized(solver: Any, local: Callable, value: Array, point: Array) -> Any:
    """State of a solver before its first step.

    Args:
        solver: of optimistix, one that evaluates once in each step, at `y_eval` of its state.
        local: the linearized function of a point and of nothing else, with `None` beside its value.
        value: of it, for its shape.
        point: where the solver begins.
    """
    struct = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return solver.init(local, point, None, _OPTIONS, struct, None, frozenset())


def stepped(solver: Any, local: Callable, y: Array, state: Any) -> tuple[Array, Any]:
    """Where the solver is, and its state, after it has seen its trial point; arguments as above."""
    y, state, _ = solver.step(local, y, None, _OPTIONS, state, frozenset())
    return y, state
