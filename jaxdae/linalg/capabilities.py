"""What formulations, and ways to solve their equations, need and offer besides."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Capabilities(NamedTuple):
    """What a formulation or a solve needs, and what it offers.

    Args:
        independent_constraints: needs `J` of full row rank at every state.
        regular_mass: needs `M` positive definite at every state, not only on `ker J`.
        arrays: takes `M` and `J` as arrays.
        finds_reaction_forces: forces may depend on the multipliers
            (`System.reaction_dependent_force`).
        passes_singular_positions: runs pass them, with every step projected.
        obstacle: why no kernel can serve it, in words; `None` where one can.
        enforces_constraints: exact motions stay on the constraints, or go back there.
        stabilization: what the constraints are stabilized with, or `None`.
        weight: mass of violations; `None` where they have none.
        plain_state: the formulation's own state is `(q, v, w)` itself.
    """

    independent_constraints: bool = True
    regular_mass: bool = True
    arrays: bool = True
    finds_reaction_forces: bool = False
    passes_singular_positions: bool = False
    obstacle: str | None = None
    enforces_constraints: bool = True
    stabilization: Callable | None = None
    weight: Any = None
    plain_state: bool = False
