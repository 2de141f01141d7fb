"""Entries of labels, and their units."""

from collections.abc import Callable
from typing import Any


def label_field(labels: Any, field: str, count: int, default: Callable[[int], str]) -> list[str]:
    """The entries of one field of `Labels`, filled up to `count` by `default(i)`."""
    values = tuple(getattr(labels, field, ()))
    return [values[i] if i < len(values) else default(i) for i in range(count)]


def per_second(unit: str) -> str:
    """The unit of a rate, `m/s` for `m`, `A` for `C`; nothing for nothing."""
    return {"": "", "C": "A"}.get(unit, f"{unit}/s")


def common_unit(units: list[str]) -> str:
    """The unit that all entries share, or nothing: a norm over mixed units has none."""
    return units[0] if len(set(units)) == 1 else ""
