"""Differential-algebraic equations as a problem that both backends solve."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.events.crossings import FirstCrossing
from jaxdae.events.declaration import Event
from jaxdae.linalg.lu import MOST_PIVOTED
from jaxdae.linalg.saddle_point import Capabilities
from jaxdae.reprs import Module
from jaxdae.simulation.problem import Times
from jaxdae.solvers.dae_term import DAETerm
from jaxdae.systems.dae import DAE, is_implicit, Variables
from jaxdae.systems.dae_equations import DAEEquations
from jaxdae.systems.dae_start import nearest, rates


class Needs(NamedTuple):
    """What backends ask of a formulation, of equations that need none.

    Args:
        capabilities: what holds of them.
    """

    capabilities: Capabilities


class AsIs(Module):
    """In the place of a formulation: variables are integrated as they are."""

    @staticmethod
    def recover(dae, t, variables) -> Variables:
        """The variables, of what is integrated."""
        return Variables(*variables)


_AS_IS = AsIs()


class DAEProblem(NamedTuple):
    """What is solved: a pytree, of which arrays are arguments of the compiled program.

    Args:
        dae: the declaration.
        controller: `u = controller(t, y, z)`, or `None`.
        state: start.
        times: from when to when.
        event: what ends it before, of the parts of a run with events; `None` for all others.
        events: that the user has declared.
    """

    dae: DAE
    controller: Callable | None
    state: Variables
    times: Times
    event: FirstCrossing | None = None
    events: tuple[Event, ...] = ()

    @property
    def parts(self) -> tuple[DAE, AsIs, Callable | None]:
        """What the equations depend on."""
        return self.dae, _AS_IS, self.controller

    @property
    def equations(self) -> DAEEquations:
        """The equations on vectors."""
        return DAEEquations(self.dae, self.controller)

    @property
    def motion(self) -> "DAEProblem":
        """The same without a start and times."""
        return self._replace(state=None, times=None, event=None)

    def slope(self, t, y) -> Any:
        """Rates of what is integrated, consistent variables."""
        variables, rest = Variables(*y[0]), y[1]
        index = self.equations.index(t, variables)
        return rates(self.equations, index, t, variables), rest

    def state_of(self, t, y) -> Variables:
        """The variables as events have them, of what is integrated."""
        return Variables(*y[0])

    def own_state(self, t, state: Variables, like) -> Variables:
        """What is integrated, of variables."""
        return state

    @staticmethod
    def on_constraints(t, y, solver) -> Any:
        """What is integrated, which has the rates of consistent variables."""
        return y

    def behind(self, t, state: Variables) -> Variables:
        """A consistent start next to what a reset has returned; NaN where there is none."""
        index = self.equations.index(t, state)
        return with_nan_safe_derivative(nearest, state, self.equations, index, t, state)

    def off_constraints(self, t, before: Variables, given: Variables) -> tuple[Any, Any, Any]:
        """What variables `y` of a reset are moved by, before none, and what that is relative to."""
        found, y = (ravel_pytree(x.y)[0] for x in (self.behind(t, given), given))
        return jnp.zeros((), y.dtype), jnp.max(jnp.abs(found - y)), 1 + jnp.max(jnp.abs(y))

    @property
    def formulation(self) -> Needs:
        """Nothing that a formulation would do."""
        return Needs(Capabilities())

    def needs(self, solver) -> Needs:
        """Why no kernel suits it, where that is so."""
        unknowns = sum(x.size for x in jax.tree.leaves(self.state))
        unknowns = unknowns // 2 if is_implicit(self.dae) else unknowns
        too_many = (
            f"{unknowns} variables are more than the {MOST_PIVOTED} for which kernels choose "
            "pivots in the equations of a step"
        )
        return Needs(Capabilities(obstacle=None if unknowns <= MOST_PIVOTED else too_many))

    @staticmethod
    def has_no_rate() -> bool:
        """Whether solvers are given equations alone."""
        return True

    @staticmethod
    def rate(t, y, parts) -> Any:
        """Of nothing: solvers are given the equations themselves."""
        return y

    @staticmethod
    def term_of(solver) -> diffrax.AbstractTerm:
        """What a solver steps."""
        return DAETerm()

    @staticmethod
    def kernel_term_of(solver) -> diffrax.AbstractTerm:
        """The same in a kernel."""
        return DAETerm(in_kernel=True)
