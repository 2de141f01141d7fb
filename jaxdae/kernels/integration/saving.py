"""What a run saves. Without llvmlite, which what writes it needs."""

from typing import NamedTuple


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
