"""What there is to say of a run, as records: `simulate` warns of them, the command prints them."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that a user should know of a run.

    Args:
        message: what it is, with its number, time, constraint and remedy.
        value: the number that decided, in the unit that the message names; `None` without one.
        time: when [s]; `None` where it is of no single time.
        constraints: names of those involved.
        passable: whether it is of a singular position that `SingularityRobust()` may pass.
        subject: what it is of: "events", "rank", "constraints", "energy", "effort" (time that steps
            took, of no consequence for the motion) or "run".
    """

    message: str
    value: float | None = None
    time: float | None = None
    constraints: tuple[str, ...] = ()
    passable: bool = False
    subject: str = "run"


class NearSingularity(NamedTuple):
    """A near-singular position that a run passed.

    Args:
        time: [s].
        value: least singular value met, rows scaled by their largest lengths along the run.
    """

    time: float
    value: float


class Findings(NamedTuple):
    """All that is found of a run.

    Args:
        failure: why it did not reach its end; `None` where it did.
        warnings: what may be wrong with it.
        near_singularities: near-singular positions that it passed.
        residual: largest constraint residual, at both levels; `None` where rows were not read.
        energy_change: largest change of the energy since the start [J]; `None` likewise.
        searched: whether near-singular positions were searched; for large mechanisms that costs
            more than a warning may.
    """

    failure: Finding | None = None
    warnings: tuple[Finding, ...] = ()
    near_singularities: tuple[NearSingularity, ...] = ()
    residual: float | None = None
    energy_change: float | None = None
    searched: bool = True
