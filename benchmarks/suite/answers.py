"""What a code of the comparison gives for a mechanism, and how far it is from the reference."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .catalogue import Motion
from .mechanism import Mechanism


class Answer(NamedTuple):
    """Numbers at the times of the reference; NaN where a code does not give them.

    Args:
        rows: q, v and multipliers, or q and v, or q alone, `(times, columns)`.
        first: first derivatives, `(times, columns, p)`.
        second: second derivatives, `(times, columns, p, p)`.
        impacts: their times.
    """

    rows: Any = None
    first: Any = None
    second: Any = None
    impacts: Any = None


class Program(NamedTuple):
    """A code that is ready to run.

    Args:
        run: the answer at a setting.
        settings: from rough to fine.
    """

    run: Callable[[Any], Answer]
    settings: Sequence[Any]


class RefusedError(Exception):
    """A code cannot take a mechanism, or says that it failed."""


TOLERANCES = (1e-5, 1e-7, 1e-9, 1e-11, 1e-13)


def errors(answer: Answer, wanted: Motion, mechanism: Mechanism) -> dict[str, float]:
    """Largest errors, each relative to the largest number of its column, or to one if that is less.

    Args:
        answer: of a code.
        wanted: the reference.
        mechanism: whose.

    Returns:
        Errors of what the answer has: `motion` (q, v, times of impacts), `multipliers`, `first` and
        `second`, of all columns.

    Raises:
        RefusedError: where numbers are not finite, as after a run that failed.
    """
    n, found = 2 * len(mechanism.coordinates), {}
    for kind in ("rows", "first", "second"):
        given, exact = getattr(answer, kind), getattr(wanted, kind)
        if given is None:
            continue
        given = np.asarray(given, float)
        columns, times = given.shape[1], len(exact)
        exact = exact[:, :columns].reshape(times, columns, -1)
        off = np.abs(given.reshape(exact.shape) - exact)
        off = off / np.maximum(1.0, np.abs(exact).max(axis=(0, 2)))[:, None]
        # What a code does not give is NaN in all rows; one that fails on its way is not.
        off = off[:, ~np.isnan(off).all(axis=0)]
        if kind == "rows" and columns > n:
            found["multipliers"] = _worst(np.abs(given[:, n:] - exact[:, n:, 0]) / np.maximum(
                1.0, np.abs(exact[:, n:, 0]).max(axis=0)))  # fmt: skip
            off = np.abs(given[:, :n] - exact[:, :n, 0])
            off = off / np.maximum(1.0, np.abs(exact[:, :n, 0]).max(axis=0))
        found["motion" if kind == "rows" else kind] = _worst(off)
    if answer.impacts is not None and "motion" in found:
        late = np.abs(np.asarray(answer.impacts) - wanted.impacts)
        found["motion"] = max(found["motion"], _worst(late))
    return found


def _worst(off: np.ndarray) -> float:
    if not np.isfinite(off).all():
        raise RefusedError("ended with numbers that are not finite")
    return float(np.max(off, initial=0.0))
