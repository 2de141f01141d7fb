"""Checks of numbers that callers give."""

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae.checks import fails

_NUMBERS = (int, float, np.ndarray, np.generic, jnp.ndarray)


def is_real(value) -> bool:
    """Whether it is one real number, traced or not, and no boolean."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool) or np.ndim(value) != 0:
        return False
    kind = jnp.result_type(value)
    return bool(jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer))


def check_positive_number(name: str, value) -> None:
    """Require a positive, finite number, or one that is being traced."""
    if not is_real(value) or fails(lambda x: 0.0 < float(x) < np.inf, value):
        raise ValueError(f"{name} is {value}; it must be a positive, finite number.")


def check_counts(where: str, **least: tuple[Any, int]) -> None:
    """Integers that are not too small: by name, the value and the smallest allowed."""
    for name, (value, _) in least.items():
        try:
            operator.index(value)
        except TypeError:
            raise ValueError(
                f"{where}: {name} is {value!r}, must be an integer; round it with int(...)."
            ) from None
    check_least(where, **least)


def check_least(where: str, **least: tuple[Any, float]) -> None:
    """Numbers that are not too small, nor NaN; arguments as above."""
    for name, (value, smallest) in least.items():
        if not value >= smallest:
            raise ValueError(f"{where}: {name} is {value}, must be at least {smallest}.")
