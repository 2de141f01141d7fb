"""Impacts by Newton's law of restitution, under constraints."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.events.declaration import Event
from jaxdae.formulations.base import holding_rank
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve, MinimumNormSolve
from jaxdae.reprs import Module
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.kinematics import along_motion


class Restitution(Module):
    """Velocities behind an impact, as `jaxdae.impact` has them.

    Args:
        system: the declaration.
        gap: `gap(t, q)` [m].
        restitution: coefficient `e`.
        solve: solves for the velocities.
    """

    system: System
    gap: Callable
    restitution: Any
    solve: AbstractSaddlePointSolve
    # The gap must not become negative.
    one_sided: ClassVar[bool] = True

    def __call__(self, t, q, v, w):
        """`(q, v+, w)`."""
        mass, jac = mass_and_jacobian(self.system, t, q, v)
        rate, row = jax.value_and_grad(lambda v: self.rate(t, q, v))(v)
        solve = holding_rank(self.solve, self.system, t, State(q, v, w))
        # What an impulse of one changes the velocities by, the constraints' impulses with it.
        change = solve(mass, row, jac, jnp.zeros(jac.shape[0], v.dtype))[0]
        return q, v - (1 + self.restitution) * rate / (row @ change) * change, w

    def rate(self, t, q, v):
        """Rate of the gap [m/s]."""
        return jax.jvp(self.gap, (t, q), along_motion(self.system, t, q, v))[1]


class Gap(Module):
    """A gap as the function of an event.

    Args:
        gap: `gap(t, q)` [m].
    """

    gap: Callable

    def __call__(self, t, q, v, w):
        del v, w
        return self.gap(t, q)


def impact(
    system: System,
    gap: Callable,
    restitution,
    *,
    name: str = "impact",
    solve: AbstractSaddlePointSolve | None = None,
) -> Event:
    r"""An impact of two bodies, by Newton's law of restitution.

    Where the gap `g(t, q)` falls to zero, impulses of the constraints, `dL`, and of the contact,
    `dI`, change the velocities at once [Brogliato2016]:

        M (v+ - v-) = -J^T dL + g_q^T dI,    J v+ = J v-,    g'(v+) = -e g'(v-)

    with the rate of the gap `g'(v) = dg/dt + g_q v`. Positions and actuator states stay. The
    kinetic energy changes by `-(1 - e^2) g'(v-)^2 / (2 G)`, where `G` is what an impulse of one
    changes the rate of the gap by and constraints and gap do not depend on time.

    A run in which the bodies begin to stay together, or begin together and press on each other,
    ends there as a failure that says so: a lasting contact is a constraint, not an impact.

    Args:
        system: the declaration, as `simulate` is given it.
        gap: `gap(t, q)`, the distance of the bodies [m]; any callable, a method of the system
            among them.
        restitution: coefficient of restitution `e`, from 0 to 1.
        name: of the event.
        solve: solves for the velocities; `jaxdae.MinimumNormSolve()` by default, which takes
            constraints that depend on each other.

    Returns:
        `jaxdae.Event`.

    Raises:
        TypeError: for another system, or a gap that cannot be called.
        ValueError: for a coefficient of restitution outside of 0 to 1.
    """
    check_instance("system", system, System, "an instance of your jaxdae.System")
    if isinstance(gap, type) or not callable(gap):
        raise TypeError(f"gap is {gap!r}; give a callable of (t, q).")
    if are_known(restitution) and not (
        np.ndim(restitution) == 0 and 0.0 <= float(restitution) <= 1.0
    ):
        raise ValueError(
            f"restitution is {restitution!r}; give a number from 0 (no rebound) to 1 (no loss)."
        )
    if not are_known(restitution):
        restitution = jnp.asarray(restitution)
    elif isinstance(restitution, int):
        restitution = float(restitution)
    solve = MinimumNormSolve() if solve is None else solve
    return Event(Gap(gap), reset=Restitution(system, gap, restitution, solve), name=name)
