"""Gains of the usual methods over the step, as a table."""

from collections.abc import Sequence
from typing import NamedTuple

import diffrax

from jaxdae.solvers.adams_bashforth import AdamsBashforth
from jaxdae.solvers.runge_kutta import RK4
from jaxdae.stability import step_gains
from jaxdae.tables import table

_HEADINGS = ("method", "h / h_min", "K_D h", "K_P h^2", "Gamma h", "factor", "of velocities")


class ThumbRow(NamedTuple):
    """Gains of a method for a step of one second: `K_D / dt`, `K_P / dt^2`, `Gamma / dt` of others.

    Args:
        method: its name.
        margin: largest step over smallest.
        K_D: times the step.
        K_P: times the step squared.
        Gamma: times the step.
        factor: what a step of the range leaves of a violation of position constraints at most, in
            the end.
        velocity_factor: likewise of velocity constraints.
    """

    method: str
    margin: float
    K_D: float
    K_P: float
    Gamma: float
    factor: float
    velocity_factor: float


def rule_of_thumb(
    solvers: Sequence | None = None, margins: Sequence[float] = (1.0, 2.0)
) -> tuple[ThumbRow, ...]:
    """Gains for a given violation, see `jaxdae.stability.step_gains`.

    Args:
        solvers: Runge-Kutta solvers, or `AdamsBashforth`; by default the usual ones.
        margins: of each.

    Returns:
        A row for each solver and margin; `rule_of_thumb_table` writes them.
    """
    chosen = _usual() if solvers is None else solvers
    return tuple(_row(x, margin) for x in chosen for margin in margins)


def rule_of_thumb_table(rows: Sequence[ThumbRow]) -> str:
    """Rows of `rule_of_thumb` as text."""
    return table(_HEADINGS, rows)


def _row(solver, margin: float) -> ThumbRow:
    gains = step_gains(solver, 1.0, margin=margin)
    name = type(solver).__name__
    name += f"({solver.steps})" if isinstance(solver, AdamsBashforth) else ""
    # Zeros come out as round-off.
    factors = (round(x, 12) for x in (gains.factor, gains.velocity_factor))
    return ThumbRow(name, float(margin), gains.K_D, gains.K_P, gains.Gamma, *factors)


def _usual() -> tuple:
    explicit = (diffrax.Euler(), diffrax.Heun(), diffrax.Bosh3(), RK4(), diffrax.Dopri5())
    higher = (diffrax.Tsit5(), diffrax.Dopri8())
    implicit = (diffrax.ImplicitEuler(), diffrax.Kvaerno3(), diffrax.Kvaerno5())
    return (*explicit, *higher, *implicit, AdamsBashforth(2), AdamsBashforth(4))
