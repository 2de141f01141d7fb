"""The contract of a formulation: its capabilities, its equations, what it says of a run."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.compiled import shared
from jaxdae.formulations.gains import check_size
from jaxdae.formulations.stabilization import (
    check_stabilization,
    InDirection,
    perturbation_block,
)
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve, AbstractSolve, Capabilities
from jaxdae.reprs import Module
from jaxdae.systems import State, System
from jaxdae.systems.calls import described
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.independence import constraint_rank


def says_nothing(*_) -> None:
    """What is said where there is nothing to say."""


class Examination(NamedTuple):
    """What a formulation says of runs by it, on the host.

    Args:
        declaration: `(system, state)`, raises `ValueError` when options do not fit the system,
            beyond gains that do not. Computes nothing.
        start: `(system, t, state)`, why a start cannot work beyond the assumptions, in words.
        stop: `(system, t, y)`, why the formulation itself stops at a state of its own, in words.
        review: `(system, ts, ys)`, what to warn of after a run that reached its end, in words, from
            the saved times and the formulation's own states there.
        holds: `(system, t, state)`, whether the assumptions are known to hold at a start. Where it
            is `None` they are checked on dense matrices, which takes long for many coordinates.
    """

    declaration: Callable[[System, State], None] = says_nothing
    start: Callable[[System, Any, State], str | None] = says_nothing
    stop: Callable[[System, Any, PyTree], str | None] = says_nothing
    review: Callable[[System, Any, PyTree], str | None] = says_nothing
    holds: Callable[[System, Any, State], bool] | None = None


class AbstractFormulation(Module):
    """Turns a system into ordinary differential equations on a state of its own.

    Laws: `recover(system, t, init(system, t, state))` gives `state` back when it is consistent;
    `vector_field` is the time derivative of the formulation's state; `multipliers` are those of
    `M a + J^T lam = f` whatever that state is.
    """

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What the formulation needs, and what it is capable of."""

    @abc.abstractmethod
    def init(self, system: System, t, state: State, like: PyTree | None = None) -> PyTree:
        """The formulation's own state, from `(q, v, w)`.

        Args:
            system: the declaration.
            t: time [s].
            state: `(q, v, w)`.
            like: an own state at the same time; what it keeps besides coordinates and velocities,
                such as choices made at the start, is kept.
        """

    @abc.abstractmethod
    def recover(self, system: System, t, y: PyTree) -> State:
        """`(q, v, w)` from the formulation's own state."""

    @abc.abstractmethod
    def rate_and_multipliers(
        self, system: System, t, y: PyTree, u: Any
    ) -> tuple[PyTree, Float[Array, " c"]]:
        """`vector_field` and `multipliers` of one state."""

    def vector_field(self, system: System, t, y: PyTree, u: Any) -> PyTree:
        """Time derivative of the formulation's state; same structure as `y`."""
        return _rate_and_multipliers(self, system, t, y, u)[0]

    def multipliers(self, system: System, t, y: PyTree, u: Any) -> Float[Array, " c"]:
        """Constraint multipliers `lam`, shape `(m+r,)`; the reaction is `-J^T lam`."""
        return _rate_and_multipliers(self, system, t, y, u)[1]

    @property
    def examination(self) -> Examination:
        """What the formulation says of runs by it; most say nothing."""
        return Examination()

    def perturbation_matrix(self, system: System, t, state: State) -> Float[Array, "p p"] | None:
        """`H` of the constraint perturbation equations at a state, `dy/dt = H y`.

        Args:
            system: the declaration.
            t: time [s].
            state: where gains that depend on it are taken.

        Returns:
            Shape `(2m+r, 2m+r)` for `y = (phi, dphi/dt, g)`, more where more is stabilized;
            `(m, m)` for `phi` alone where velocities satisfy the constraints exactly; `None` where
            nothing is stabilized.
        """
        stabilization = self.capabilities.stabilization
        if stabilization is None:
            return None
        m, r = constraint_counts(system, state)
        y = jnp.zeros(2 * m + r, state.q.dtype)
        return perturbation_block(stabilization, t, state.q, state.v, y, m)

    def in_direction(self, sign) -> "AbstractFormulation":
        """The formulation whose residuals decay in the direction of integration.

        Args:
            sign: 1 forward in time, -1 backward, 0 for no stabilization; a number, or an array
                where it is computed.

        Returns:
            The same equations, their stabilization in `s = sign t` (`InDirection`). What damps the
            motion itself, such as realizing forces, is not changed.
        """
        field: Any = vars(self).get("stabilization")
        forward = isinstance(sign, int) and sign == 1
        if field is None or (forward and not isinstance(field, InDirection)):
            return self
        given = field.stabilization if isinstance(field, InDirection) else field  # a run before
        acting = given if forward else InDirection(given, sign)
        return eqx.tree_at(lambda x: x.stabilization, self, acting)  # pyright: ignore

    def without_stiff_part(self) -> "AbstractFormulation | None":
        """The formulation without what makes its equations stiff, its stabilization.

        What it stabilizes less is what methods that split a motion take implicitly. Its own state
        is the same; `None` where there is nothing to leave out.
        """
        if vars(self).get("stabilization") is None:
            return None
        return eqx.tree_at(lambda x: x.stabilization, self, None)  # pyright: ignore

    def check(self, system: System, state: State) -> None:
        """Raise `ValueError` when gains or options do not fit the system. Computes nothing."""
        (m, r), offered = constraint_counts(system, state), self.capabilities
        check_stabilization(offered.stabilization, m, r, state.q)
        if offered.weight is not None and not callable(offered.weight):
            check_size("alpha", offered.weight, m + r, "constraints")
        self.examination.declaration(system, state)

    def check_parts(self) -> None:
        """Raise `TypeError` where a stabilization or a solve is of the wrong kind."""
        law, solve = (vars(self).get(name) for name in ("stabilization", "solve"))
        if law is not None and (isinstance(law, type) or not callable(law)):
            raise TypeError(
                f"stabilization is {described(law)}; give None, jaxdae.Baumgarte(K_D=..., "
                "K_P=...), or a callable Phi(t, q, v, phi, phi_dot)."
            )
        if solve is not None and not isinstance(solve, AbstractSolve):
            raise TypeError(
                f"solve is {described(solve)}; leave it out, or give MinimumNormSolve() or "
                "SingularMassSolve(), with brackets."
            )


@shared
def _rate_and_multipliers(formulation: AbstractFormulation, system: System, t, y, u):
    return formulation.rate_and_multipliers(system, t, y, u)


def holding_rank(tree, system: System, t, state: State, kernel: Callable | None = None):
    """A formulation or a solve, with the rank that constraints have at a state, where it asks.

    The state is the start of the motion, and may be traced; `kernel` is that of a backend.
    """
    if not any(x.asks_for_rank for x in solves(tree)):
        return tree
    rank = constraint_rank(system, t, state, kernel).held()
    return with_solves(tree, lambda solve: solve.with_rank(rank))


def solves(tree) -> list[AbstractSaddlePointSolve]:
    """Policies in a formulation, not those inside of others."""
    return [x for x in jax.tree.leaves(tree, is_leaf=_is_solve) if _is_solve(x)]


def with_solves(tree, change: Callable):
    """A formulation with its policies changed."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_solve)
    changed = [change(x) if _is_solve(x) else x for x in leaves]
    same = all(x is y for x, y in zip(leaves, changed, strict=True))
    return tree if same else structure.unflatten(changed)


def _is_solve(x) -> bool:
    return isinstance(x, AbstractSaddlePointSolve)
