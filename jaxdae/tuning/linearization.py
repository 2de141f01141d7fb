"""Steps of optimistix's solvers on a function that is linearized where they evaluate it."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

# The Jacobian of the linearized function as a matrix, which reverse mode makes.
_OPTIONS = {"jac": "bwd"}


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
