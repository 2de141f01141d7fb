"""Differential-algebraic equations as a problem that both backends solve."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax

from jaxdae.linalg.lu import MOST_PIVOTED
from jaxdae.linalg.saddle_point import Capabilities
from jaxdae.simulation.problem import Times
from jaxdae.solvers.dae_term import DAETerm
from jaxdae.systems.dae import DAE, is_implicit, Variables
from jaxdae.systems.dae_equations import DAEEquations


class Needs(NamedTuple):
    """What backends ask of a formulation, of equations that need none.

    Args:
        capabilities: what holds of them.
    """

    capabilities: Capabilities


class DAEProblem(NamedTuple):
    """What is solved: a pytree, of which arrays are arguments of the compiled program.

    Args:
        dae: the declaration.
        controller: `u = controller(t, y, z)`, or `None`.
        state: start.
        times: from when to when.
    """

    dae: DAE
    controller: Callable | None
    state: Variables
    times: Times

    @property
    def parts(self) -> tuple[DAE, None, Callable | None]:
        """What the equations depend on."""
        return self.dae, None, self.controller

    @property
    def equations(self) -> DAEEquations:
        """The equations on vectors."""
        return DAEEquations(self.dae, self.controller)

    @property
    def event(self) -> None:
        """What ends it before: nothing."""

    @property
    def events(self) -> tuple[()]:
        """What changes its state on the way: nothing."""
        return ()

    @property
    def formulation(self) -> Needs:
        """Why no kernel suits it, where that is so."""
        unknowns = sum(x.size for x in jax.tree.leaves(self.state))
        unknowns = unknowns // 2 if is_implicit(self.dae) else unknowns
        return Needs(
            Capabilities(
                obstacle=None
                if unknowns <= MOST_PIVOTED
                else f"{unknowns} variables are more than the {MOST_PIVOTED} for which kernels "
                "choose pivots in the equations of a step"
            )
        )

    @staticmethod
    def rate(t, y, parts) -> Any:
        """Of nothing: solvers are given the equations themselves."""
        del t, parts
        return y

    @staticmethod
    def term_of(solver) -> diffrax.AbstractTerm:
        """What a solver steps."""
        del solver
        return DAETerm()

    @staticmethod
    def kernel_term_of(solver) -> diffrax.AbstractTerm:
        """The same in a kernel."""
        del solver
        return DAETerm(in_kernel=True)
