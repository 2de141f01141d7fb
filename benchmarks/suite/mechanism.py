"""What a mechanism of the suite declares: energies, constraints and a start, in plain arithmetic.

Functions are written with `+ - * /` and the functions of the argument `m`: `m.sin`, `m.cos` and
`m.sqrt`. They serve floating-point numbers of any length, arrays of JAX and symbols of CasADi.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar


class Mechanism:
    """A mechanical system with constraints, its parameters and its motion.

    With multipliers `lam` of both kinds of constraints, positions first,

        d/dt dT/dv - d(T - V)/dq + (dphi/dq, dg/dv)^T lam = F,   phi(t, q) = 0,   g(t, q, v) = 0

    At an impact, where the gap falls to zero, `d(gap)/dt` is reversed and multiplied by the
    restitution; the impulse is along the gradient of the gap, constraints stay satisfied.

    Class attributes:
        name: of files and pages.
        kinds: properties, of `KINDS`.
        source: where the mechanism is from.
        values: parameters and free values of the start, by name.
        by: names of those by which derivatives are given.
        coordinates: names of the coordinates, as they are in `q`.
        t1: end of the motion [s].
        free: places in `q` of the independent coordinates, where `start` is a guess of the others.
        kept: constraints that are independent, where some are not.
        restitution: of impacts.
        events: number of impacts.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    source: ClassVar[str]
    values: ClassVar[dict[str, float]]
    by: ClassVar[tuple[str, ...]]
    coordinates: ClassVar[tuple[str, ...]]
    t1: ClassVar[float]
    free: ClassVar[tuple[int, ...] | None] = None
    kept: ClassVar[tuple[int, ...] | None] = None
    restitution: ClassVar[float | None] = None
    events: ClassVar[int] = 0

    def start(self, m: Any, p: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Coordinates and velocities at t = 0."""
        raise NotImplementedError

    def kinetic_energy(self, m: Any, t: Any, q: Any, v: Any, p: Any) -> Any:
        """T [J]."""
        raise NotImplementedError

    def potential_energy(self, m: Any, t: Any, q: Any, p: Any) -> Any:
        """V [J]."""
        return 0.0

    def force(self, m: Any, t: Any, q: Any, v: Any, p: Any) -> Sequence[Any]:
        """F, other forces, one for each coordinate."""
        return [0.0] * len(self.coordinates)

    def position_constraints(self, m: Any, t: Any, q: Any, p: Any) -> Sequence[Any]:
        """Phi, zero."""
        return []

    def velocity_constraints(self, m: Any, t: Any, q: Any, v: Any, p: Any) -> Sequence[Any]:
        """G, zero."""
        return []

    def gap(self, m: Any, q: Any, p: Any) -> Any:
        """Distance from an impact [m]."""
        raise NotImplementedError


KINDS = (
    "planar", "spatial", "closed loop", "redundant", "nonholonomic", "rolling", "driven",
    "stiff", "singular position", "massless coordinate", "impacts",
)  # fmt: skip


def named(names: Sequence[str], values: Sequence[Any]) -> SimpleNamespace:
    """Values as attributes."""
    return SimpleNamespace(**dict(zip(names, values, strict=True)))
