"""A system without its superfluous constraints, near a state at which all of them hold."""

from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.equilibria import Equilibrium
from jaxdae.compiled import jit
from jaxdae.linalg.held_rank import pivoted_rows, unit_rows
from jaxdae.systems import State, System
from jaxdae.systems.independence import constraint_rank


def independent_part(system: System, eq: Equilibrium, m: int) -> tuple[System, Equilibrium]:
    """A system with as many of its constraints as are independent, and the same equilibrium.

    On the constraints its motions are the same, and so are all equations of them. The multipliers
    are others that give the same reaction. Both arguments come back as they are where all `m`
    position constraints and the velocity constraints are independent, or at a singular position.
    """
    rank = _rank(system, eq)
    jac = np.asarray(rank.jac)
    if not bool(rank.regular) or rank.rank == jac.shape[0]:
        return system, eq
    order = np.asarray(pivoted_rows(unit_rows(jnp.asarray(jac))[0]).order).argmax(axis=1)
    rows = tuple(sorted(order[: int(rank.rank)].tolist()))
    kept, reaction = jac[list(rows)], jac.T @ np.asarray(eq.multipliers)
    multipliers = jnp.asarray(np.linalg.lstsq(kept.T, reaction, rcond=None)[0])
    positions = np.array([i for i in rows if i < m], int)
    residual = eq.residual._replace(
        phi=eq.residual.phi[positions], phi_dot=eq.residual.phi_dot[np.array(rows)]
    )
    changed = (multipliers, residual)
    eq = eqx.tree_at(lambda x: (x.multipliers, x.residual), eq, changed)
    return _as(_part(type(system), rows, m), system), eq


@jit
def _rank(system, eq):
    return constraint_rank(system, eq.t, State(eq.q, jnp.zeros_like(eq.q), eq.w))


@cache  # programs are known by the class
def _part(kind: type, rows: tuple[int, ...], m: int) -> type:
    positions = np.array([i for i in rows if i < m], int)
    velocities = np.array([i - m for i in rows if i >= m], int)

    class Part(kind):
        """The same system with some of its constraints."""

        def position_constraints(self, t, q):
            return super().position_constraints(t, q)[positions]

        def velocity_constraints(self, t, q, v):
            return super().velocity_constraints(t, q, v)[velocities]

    return Part


def _as(kind: type, system: System) -> System:
    """A system as one of another class with the same fields."""
    made = object.__new__(kind)
    for name, value in vars(system).items():
        object.__setattr__(made, name, value)
    return made
