"""The contract of a formulation."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.formulations.stabilization import perturbation_block
from jaxdae.linalg.saddle_point import Assumptions
from jaxdae.systems import State, System
from jaxdae.systems.checks import constraint_counts


class AbstractFormulation(eqx.Module):
    """Turns a system into ordinary differential equations on a state of its own.

    Laws: `recover(system, t, init(system, t, state))` gives `state` back when it is consistent;
    `vector_field` is the time derivative of the formulation's state; `multipliers` are those of
    `M a + J^T lam = f` whatever that state is.
    """

    @abc.abstractmethod
    def init(self, system: System, t, state: State) -> PyTree:
        """The formulation's own state, from `(q, v, w)`."""

    def moved(self, system: System, t, y: PyTree, state: State) -> PyTree:
        """The formulation's own state with other coordinates and velocities at the same time.

        What it keeps besides, such as choices made at the start, stays.

        Args:
            system: the declaration.
            t: time [s].
            y: its own state.
            state: the other `(q, v, w)`.
        """
        del y
        return self.init(system, t, state)

    @abc.abstractmethod
    def vector_field(self, system: System, t, y: PyTree, u: Any) -> PyTree:
        """Time derivative of the formulation's state; same structure as `y`."""

    @abc.abstractmethod
    def recover(self, system: System, t, y: PyTree) -> State:
        """`(q, v, w)` from the formulation's own state."""

    @abc.abstractmethod
    def multipliers(self, system: System, t, y: PyTree, u: Any) -> Float[Array, " c"]:
        """Constraint multipliers `lam`, shape `(m+r,)`; the reaction is `-J^T lam`."""

    def rate_and_multipliers(self, system: System, t, y: PyTree, u: Any) -> tuple[PyTree, Array]:
        """`vector_field` and `multipliers`; overridden where both are of one computation."""
        return self.vector_field(system, t, y, u), self.multipliers(system, t, y, u)

    @abc.abstractmethod
    def check(self, system: System, state: State) -> None:
        """Raise `ValueError` when gains or options do not fit the system. Computes nothing."""

    def check_start(self, system: System, t, state: State) -> None:
        """Raise `ValueError` when a start cannot work, beyond `assumptions`; most have nothing."""
        del system, t, state

    def assumptions_hold(self, system: System, t, state: State) -> bool:
        """Whether the formulation itself knows that its assumptions hold at a start.

        Otherwise they are checked on dense matrices, which takes long for many coordinates.
        """
        del system, t, state
        return False

    def diagnose(self, system: System, t, y: PyTree) -> str | None:
        """Why the formulation itself stops at a state, in words; `None` where it does not."""
        del system, t, y

    def review(self, system: System, ts: Float[Array, " times"], ys: PyTree) -> str | None:
        """What to warn of after a run that reached its end, in words; `None` for nothing.

        Args:
            system: the declaration.
            ts: saved times [s], shape `(times,)`.
            ys: the formulation's own states there, times first.
        """
        del system, ts, ys

    def finds_reaction_forces(self) -> bool:
        """Whether forces may depend on the multipliers (`System.reaction_dependent_force`)."""
        return False

    def perturbation_matrix(self, system: System, t, state: State) -> Float[Array, "p p"] | None:
        """`H` of the constraint perturbation equations at a state, `dy/dt = H y`.

        Args:
            system: the declaration.
            t: time [s].
            state: where gains that depend on it are taken.

        Returns:
            Shape `(2m+r, 2m+r)` for `y = (f, df/dt, g)`, more where more is stabilized, `(m, m)`
            for `f` alone where velocities satisfy the constraints exactly; `None` where nothing is.
        """
        stabilization = getattr(self, "stabilization", None)
        if stabilization is None:
            return None
        m, r = constraint_counts(system, state)
        y = jnp.zeros(2 * m + r, state.q.dtype)
        return perturbation_block(stabilization, t, state.q, state.v, y, m)

    @abc.abstractmethod
    def assumptions(self) -> Assumptions:
        """What must hold of `M` and `J` at every state."""
