"""The equations of motion as methods take them that enforce the constraints themselves."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation
from jaxdae.linalg.lu import refined
from jaxdae.reprs import Module
from jaxdae.systems import Dynamics, evaluate, State, System
from jaxdae.systems.dynamics import has_reaction_forces
from jaxdae.systems.kinematics import coordinate_rate


class Equations(Module):
    """The equations of motion at one state, which wait for an acceleration.

    Args:
        dynamics: `M a + J^T lam = f`, and the residuals of the constraints.
        coordinates: `dq/dt`.
        actuators: `dw/dt`.
        moved: `dq/dt` by other velocities, a function of them.
    """

    dynamics: Dynamics
    coordinates: Float[Array, " n"]
    actuators: Float[Array, " k"]
    moved: Callable

    def rate(self, acceleration) -> tuple[State, None]:
        """`dy/dt` with an acceleration, shape `(n,)`."""
        return State(self.coordinates, acceleration, self.actuators), None

    def consistent_rate(self) -> State:
        """`dy/dt` at a state on the constraints, by `M a + J^T lam = f`, `J a + gamma = 0`."""
        d = self.dynamics
        acceleration, _ = solved(d.mass, d.jac, d.jac, d.force, -d.gamma)
        return State(self.coordinates, acceleration, self.actuators)


# As a power of the machine epsilon: far above round-off, and far below what slows iterations down.
_ADDED = 2 / 3


def added(mass, jac):
    """What is added to the diagonal beside constraints, so that dependent ones leave it regular."""
    small = float(jnp.finfo(mass.dtype).eps) ** _ADDED
    return -small * jnp.sum(jac**2) / jnp.sum(jnp.abs(jnp.diagonal(mass)))


def solved(mass, pushing, moving, force, wanted) -> tuple[Any, Any]:
    """`a` and `lam` of `M a + J^T lam = f` and `K a = s`, where `J` and `K` may be two matrices."""
    n, c = force.size, wanted.size
    matrix = jnp.block([[mass, pushing.T], [moving, jnp.zeros((c, c), mass.dtype)]])
    diagonal = added(mass, pushing) * jnp.asarray(np.arange(n + c) >= n, mass.dtype)
    x = refined(matrix, jnp.concatenate([force, wanted]), diagonal)
    return x[:n], x[n:]


class AbstractConstrainedTerm(diffrax.AbstractTerm):
    """Equations with constraints, for solvers that enforce these themselves."""

    def contr(self, t0, t1, **kwargs):
        """Length of a step [s]."""
        return t1 - t0

    def prod(self, vf, control):
        """Change of a state by its rate in a time [s]."""
        return jax.tree.map(lambda x: control * x, vf)


class ConstrainedTerm(AbstractConstrainedTerm):
    r"""Constrained equations of motion, where an `ODETerm` has a vector field.

        M a + J^T lam = f,        phi(t, q) = 0,        phi_dot(t, q, v) = 0

    A solver with this `term_structure` asks for the `Equations` at the states of its stages, and
    chooses accelerations such that residuals vanish where they lead. Its states are
    `(State, None)`, those of `simulate` without works; its arguments
    `(system, formulation, controller)`.

    Args:
        control: `u = control(controller, t, state)`.
    """

    control: Callable = eqx.field(static=True)

    def vf(self, t, y, args) -> Equations:
        """The equations at a time [s] and a state."""
        (state, _), (system, _, controller) = y, args
        q, v, w = state.q, state.v, state.w
        u = self.control(controller, t, state)

        def moved(v):
            return coordinate_rate(system, t, q, v).astype(q.dtype)

        rates = moved(v), system.actuator_rate(t, q, v, w, u).astype(w.dtype)
        return Equations(evaluate(system, t, q, v, w, u), *rates, moved)


def enforces_constraints(solver) -> bool:
    """Whether a solver takes constrained equations, a `ConstrainedTerm` among them."""
    structure = getattr(solver, "term_structure", None)
    return isinstance(structure, type) and issubclass(structure, AbstractConstrainedTerm)


def splits(solver) -> bool:
    """Whether a solver takes a vector field in an explicit and an implicit part."""
    while isinstance(solver, diffrax.AbstractWrappedSolver):
        solver = solver.solver
    return isinstance(getattr(solver, "tableau", None), diffrax.MultiButcherTableau)


def term(
    solver,
    vector_field: Callable,
    control: Callable,
    parts: tuple[Callable, Callable] | None = None,
) -> diffrax.AbstractTerm:
    """What a solver steps: the equations, or the vector field that a formulation makes of them.

    Args:
        solver: of diffrax.
        vector_field: `dy/dt = vector_field(t, y, args)`.
        control: `u = control(controller, t, state)`.
        parts: explicit and implicit part of the vector field, for solvers that take those.
    """
    if enforces_constraints(solver):
        return ConstrainedTerm(control)
    if parts is not None and splits(solver):
        return diffrax.MultiTerm(*map(diffrax.ODETerm, parts))
    return diffrax.ODETerm(vector_field)


def check_terms(solver, formulation: AbstractFormulation, work: bool) -> None:
    """A solver of ordinary differential equations, or one of equations that nothing stabilizes.

    Raises:
        ValueError: naming the solver, the formulation, and one that fits.
    """
    name, structure = type(solver).__name__, getattr(solver, "term_structure", None)
    if enforces_constraints(solver):
        _check_equations(name, formulation, work)
    elif splits(solver):
        return
    elif not (isinstance(structure, type) and issubclass(diffrax.ODETerm, structure)):
        raise ValueError(
            f"{name} does not integrate ordinary differential equations of one vector field, which "
            "is what a formulation gives; use a Runge–Kutta method such as diffrax.Dopri8(), or "
            "jaxdae.solvers.Rodas5P() for stiff equations."
        )


def _check_equations(name: str, formulation: Any, work: bool) -> None:
    offered, stabilizes = formulation.capabilities, type(formulation).__name__
    multipliers = offered.plain_state and offered.enforces_constraints and offered.weight is None
    if not multipliers or offered.stabilization is not None:
        having = "" if offered.stabilization is None else " with a stabilization"
        raise ValueError(
            f"{name} enforces the constraints itself, by the multipliers of its own steps, and "
            f"{stabilizes}{having} would do so too: give it jaxdae.Multipliers(), or "
            f"{stabilizes} a solver of ordinary differential equations, such as diffrax.Dopri8()."
        )
    if not offered.keeps_constraints:
        raise ValueError(
            f"{name} enforces the constraints itself, all of them, and knows none that are "
            "switched: take a solver of ordinary differential equations, such as diffrax.Dopri8(), "
            "or jaxdae.solvers.Projected(diffrax.Dopri8())."
        )
    if work:
        raise ValueError(f"{name} integrates no works beside the motion: leave work=True out.")


def check_forces(solver, system: System, t, state: State, u) -> None:
    """Forces that do not depend on the multipliers, where those are the solver's own.

    Raises:
        ValueError: naming the solver, the system, and a solver that takes such forces.
    """
    if enforces_constraints(solver) and has_reaction_forces(
        system, t, state.q, state.v, state.w, u
    ):
        name = type(solver).__name__
        raise ValueError(
            f"{type(system).__name__} declares reaction_dependent_force, forces that depend on the "
            f"multipliers, which {name} does not find together with its own: it enforces the "
            "constraints itself. Keep jaxdae.Multipliers(), and give it a solver of ordinary "
            f"differential equations in place of {name}, such as diffrax.Dopri8()."
        )
