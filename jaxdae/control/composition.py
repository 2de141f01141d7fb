"""Controllers that are made of others: one behind the other, or their outputs added."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdae.checks import fails
from jaxdae.formulations.gains import is_number
from jaxdae.reprs import Module


class _AbstractComposition(Module):
    """What is known of a policy by its parts.

    Args:
        parts: of it.
    """

    parts: tuple[Callable, ...]

    def __init__(self, *parts: Callable):
        _check(parts, type(self).__name__)
        self.parts = parts

    @property
    def period(self) -> Any:
        """Of the samples that its parts are made for [s]; `None` where these have none."""
        return _period(self.parts)

    @property
    def takes_rates(self) -> bool:
        """Whether all parts are for velocities that need not be rates of coordinates."""
        return all(getattr(x, "takes_rates", True) for x in self.parts)

    @property
    def memory(self) -> tuple:
        """What the first sample is given: the memories of its parts."""
        return tuple(_memory(x) for x in self.parts)

    @abc.abstractmethod
    def __call__(self, t, *given) -> Any:
        """Control input and memories."""


class Series(_AbstractComposition):
    r"""A policy whose output goes through others in turn, `u = last(… second(first(t, q, v, w)))`.

    The first part is a policy, the others take a signal: filters, limits, any function. A part that
    has a `memory` is given it as its last argument, and returns it behind its output; a part
    without one returns its output alone, as `PD` or the feedback of a regulator.

    Args:
        parts: the policy, and what its output goes through.

    Raises:
        ValueError: for a part that cannot be called, none at all, or parts of two periods.
    """

    def __init__(self, *parts: Callable):
        super().__init__(*parts)

    def __call__(self, t, *given):
        *seen, memory = given
        first, *others = self.parts
        u, kept = _asked(first, (t, *seen), memory[0])
        after = [kept]
        for part, memory_of_part in zip(others, memory[1:], strict=True):
            u, kept = _asked(part, (u,), memory_of_part)
            after.append(kept)
        return u, tuple(after)


class Parallel(_AbstractComposition):
    r"""A policy whose output is the sum of those of others, `u = first(…) + second(…) + …`.

    Parts with a `memory` are asked as those of `Series`.

    Args:
        parts: policies of one output.

    Raises:
        ValueError: for a part that cannot be called, none at all, or parts of two periods.
    """

    def __init__(self, *parts: Callable):
        super().__init__(*parts)

    def __call__(self, t, *given):
        *seen, memory = given
        asked = [
            _asked(part, (t, *seen), kept) for part, kept in zip(self.parts, memory, strict=True)
        ]
        outputs, after = zip(*asked, strict=True)
        return sum(outputs[1:], start=outputs[0]), after


def _period(parts: tuple) -> Any:
    return next((x.period for x in parts if getattr(x, "period", None) is not None), None)


def _memory(part) -> Any:
    return getattr(part, "memory", ())


def _asked(part, arguments: tuple, memory):
    """Output and memory of a part; of one without a memory `()`."""
    if hasattr(part, "memory"):
        return part(*arguments, memory)
    return part(*arguments), ()


def _check(parts: tuple, name: str) -> None:
    if not parts:
        raise ValueError(f"{name} has no parts; give it a policy first.")
    for part in parts:
        if not callable(part):
            raise ValueError(f"{name} has the part {part!r}, which cannot be called.")
    first = _period(parts)
    for part in parts:
        own = getattr(part, "period", None)
        if not (is_number(own) and is_number(first)):
            continue
        if fails(lambda a, b: np.allclose(a, b, rtol=1e-6, atol=0), own, first):
            raise ValueError(
                f"parts of {name} are made for samples every {first} s and every {own} s; give "
                "them one period."
            )
