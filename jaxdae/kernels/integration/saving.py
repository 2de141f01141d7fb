"""What a run saves. Without llvmlite, which what writes it needs."""

from typing import Any, NamedTuple


class Saving(NamedTuple):
    """Which states a run saves, in rows of time.

    Args:
        start: the start.
        every: then the state after each so many steps; zero for none.
        times: then the states at given times.
    """

    start: bool
    every: int
    times: bool


class Summary(NamedTuple):
    """What a run with adaptive steps says of itself, as floating-point numbers.

    Args:
        time: that was reached [s].
        result: code of diffrax's result.
        steps: their number.
        accepted: of them.
        rows: that were saved.
    """

    time: Any
    result: Any
    steps: Any
    accepted: Any
    rows: Any
