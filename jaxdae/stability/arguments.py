"""Checks of what gains follow from."""

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxdae.stability.stability_functions import tableau
from jaxdae.systems.checks import is_concrete

_NUMBERS = (int, float, np.ndarray, np.generic, jnp.ndarray)


def is_real(value) -> bool:
    """Whether it is one real number, traced or not, and no boolean."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool) or np.ndim(value) != 0:
        return False
    kind = jnp.result_type(value)
    return bool(jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer))


def check_positive_number(name: str, value) -> None:
    """Require a positive, finite number, or one that is being traced.

    Raises:
        ValueError: naming it.
    """
    if not is_real(value) or (is_concrete(value) and not 0.0 < float(value) < np.inf):
        raise ValueError(f"{name} is {value}; it must be a positive, finite number.")


def check_ratio(name: str, value) -> None:
    """Require a ratio of the largest step to the smallest.

    Raises:
        ValueError: naming it.
    """
    if not is_real(value) or not is_concrete(value) or not 1.0 <= value < np.inf:
        raise ValueError(
            f"{name} is {value!r}; it is the largest step over the smallest, a number from 1 on."
        )


def checked_tableau(solver) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tableau `(a, b, c)` of what a user gave as a solver.

    Raises:
        TypeError: for what is no solver.
        ValueError: for one without a tableau, or one that wraps another.
    """
    if isinstance(solver, type) or not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(
            f"solver is {solver!r}; give a diffrax solver, with brackets, such as "
            "jaxdae.solvers.RK4() or diffrax.Dopri5(), and then the step: for_step(solver, dt)."
        )
    if isinstance(solver, diffrax.AbstractWrappedSolver):
        raise ValueError(
            f"{type(solver).__name__} wraps {type(solver.solver).__name__}, and changes what a "
            "step does to a violation. Projected leaves no violation to stabilize: use "
            "Multipliers() without a stabilization, or gains for the solver that it wraps."
        )
    return tableau(solver)
