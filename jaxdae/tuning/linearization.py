"""Steps of optimistix's solvers on a function that is linearized where they evaluate it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# The Jacobian of the linearized function as a matrix, which reverse mode makes.
_OPTIONS = {"jac": "bwd"}


# Rows of a block in a factorization, by columns. Linear algebra libraries share larger ones among
# threads, whose waiting for each other takes longer than the work.
_BLOCK = 8


class Short(NamedTuple):
    """Residuals and Jacobian in `k = min(m, p + 1)` rows, for `m` residuals of `p` parameters."""

    value: Float[Array, " k"]  # shape `(k,)`
    slope: Float[Array, "k p"]  # shape `(k, p)`


def shortened(residuals: Float[Array, " m"], jacobian: Float[Array, "m p"]) -> Short:
    """Both multiplied by the transpose of `Q`, with `Q R = (J, r)`.

    They have the norm, the gradient, and the linearization's norm after every step of `r` and `J`.
    """
    factor = triangle(jnp.concatenate([jacobian, residuals[:, None]], axis=1))
    return Short(factor[:, -1], factor[:, :-1])


def triangle(matrix: Float[Array, "m n"]) -> Array:
    """`R` of a factorization `Q R` of a matrix, found block by block [DemmelEtAl2012]."""
    (rows, columns), high = matrix.shape, _BLOCK * matrix.shape[1]
    while rows > 2 * high > 0:
        padded = jnp.pad(matrix, ((0, -rows % high), (0, 0)))
        factors = jnp.linalg.qr(padded.reshape(-1, high, columns), mode="r")
        matrix = factors.reshape(-1, columns)
        rows = matrix.shape[0]
    return jnp.linalg.qr(matrix, mode="r")


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
