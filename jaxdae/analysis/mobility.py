"""Mobility: how many motions constraints leave free, and which of them are redundant."""

from typing import NamedTuple

import jax
import numpy as np

from jaxdae.checks import are_known
from jaxdae.compiled import BRIEFLY, jit
from jaxdae.linalg.held_rank import rank_tolerance
from jaxdae.linalg.rank import numerical_rank
from jaxdae.systems import State, System
from jaxdae.systems.checks import check_functions, check_position
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.independence import constraint_rank, surely_independent
from jaxdae.systems.precision import in_dtype, known_array

# Of a combination in words.
_MOST_TERMS = 6


class Dependence(NamedTuple):
    """A redundant constraint, as a combination of others.

    Args:
        constraint: its name. It may be dropped, or any one of the others in its place.
        combination: names of the others, with the factors of their rows of the Jacobian:
            `J_i = sum_k c_k J_k`.
    """

    constraint: str
    combination: dict[str, float]

    def __str__(self) -> str:
        if not self.combination:
            return f"{self.constraint!r} constrains nothing"
        terms = [f"{c:+.4g} {name!r}" for name, c in self.combination.items()]
        more = len(terms) - _MOST_TERMS
        rest = f" + {more} others" if more > 0 else ""
        return f"{self.constraint!r} = {' '.join(terms[:_MOST_TERMS]).removeprefix('+')}{rest}"


class Mobility(NamedTuple):
    """What the constraints of a system leave free at a state.

    Args:
        velocities: number `n` of velocities.
        constraints: number `m+r` of constraints.
        rank: number of independent ones where they hold, next to the state.
        regular: whether the rank is the same around that point. It is not at a singular position,
            where the rank is lower than next to it, and so are the degrees of freedom.
        dependences: one for each redundant constraint.
        ratio: least of the `rank` largest singular values of the Jacobian to the largest, rows of
            unit length: near zero next to a singular position.
    """

    velocities: int
    constraints: int
    rank: int
    regular: bool
    dependences: tuple[Dependence, ...]
    ratio: float

    @property
    def counted(self) -> int:
        """Degrees of freedom by the count of Grübler and Kutzbach, `n - (m+r)`."""
        return self.velocities - self.constraints

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom by rank, `n - rank J`."""
        return self.velocities - self.rank

    @property
    def redundant(self) -> int:
        """Number of redundant constraints, `m+r - rank J`."""
        return self.constraints - self.rank

    def __str__(self) -> str:
        lines = [
            f"degrees of freedom: {self.degrees_of_freedom} by rank, {self.counted} by count "
            f"({self.velocities} velocities, {self.constraints} constraints, {self.rank} "
            "independent)",
            *(f"redundant: {x}" for x in self.dependences),
        ]
        if not self.regular:
            lines.append(
                "singular position: next to it the rank is larger, and not all of these "
                "degrees of freedom are motions"
            )
        if self.rank:
            lines.append(f"least singular value: {self.ratio:.3g} of the largest")
        return "\n".join(lines)


def mobility(system: System, state: State, t=0.0) -> Mobility:
    r"""Degrees of freedom of a system next to a state, by count and by rank.

    The criterion of Grübler and Kutzbach counts equations, `n - (m+r)`; the rank of the Jacobian
    of the constraints says how many of them are independent, `n - rank J`. The two differ where
    constraints are redundant, as those of a planar linkage declared in space or of Bricard's. The
    Jacobian is that of the nearest point that satisfies the constraints, since off them redundant
    ones are independent [GarciaDeJalonGutierrezLopez2013].

    Args:
        system: the declaration.
        state: near the constraints.
        t: time [s].

    Returns:
        `Mobility`, with the redundant constraints by name.

    Raises:
        ValueError: for wrong shapes, a state that is not finite, or inside of a JAX transformation.
    """
    if not are_known(system, state, t):
        raise ValueError("mobility: names need numbers that are known; call it outside of jax.jit.")
    system = in_dtype(system, state.q.dtype)
    check_functions(system, state, t=t, forces=False)
    check_position(system, state)
    t = known_array(t, state.q.dtype)
    jac, phi = (np.asarray(x) for x in _constraints_at(system, t, state))
    regular = True
    if len(jac) and not surely_independent(jac, phi):
        found = _rank(system, t, state)
        jac, regular = np.asarray(found.jac), bool(found.regular)
    result = numerical_rank(jac, rank_tolerance(jac.dtype))
    lengths, labels = np.linalg.norm(jac, axis=1), system.labels()

    def dependence(superfluous: int, weights: np.ndarray) -> Dependence:
        factors = {
            labels.constraint(k): float(-weight * lengths[superfluous] / lengths[k])
            for k, weight in enumerate(weights.tolist())
            if weight != 0 and k != superfluous
        }
        return Dependence(labels.constraint(superfluous), factors)

    values = result.singular_values
    return Mobility(
        velocities=jac.shape[1],
        constraints=jac.shape[0],
        rank=result.rank,
        regular=regular,
        dependences=tuple(dependence(*x) for x in result.dependences),
        ratio=float(values[result.rank - 1] / values[0]) if result.rank else np.inf,
    )


_rank = jit(constraint_rank, options=BRIEFLY)


@jit(options=BRIEFLY)
def _constraints_at(system: System, t, state: State) -> tuple[jax.Array, jax.Array]:
    _, jac = mass_and_jacobian(system, t, state.q, state.v)
    return jac, system.position_constraints(t, state.q)
