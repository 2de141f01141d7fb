"""Checks of numbers that callers give: integers, and least values."""

import operator
from typing import Any


def check_counts(where: str, **least: tuple[Any, int]) -> None:
    """Integers that are not too small.

    Args:
        where: the function that is called.
        least: by name, the value and the smallest allowed.

    Raises:
        ValueError: naming the argument and its value.
    """
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
