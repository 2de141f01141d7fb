"""The car axis of the test set for initial value problems."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractModel, Model, Reference
from jaxdae.systems import Labels, Points

# In what the test set prints, `+G^T lam` pushes; here `-J^T lam` does.
END_REFERENCE = Reference(
    "solution at t = 3 s, computed with GAMD at tolerances of 1e-14 or less",
    "F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4, "
    "University of Bari 2008, problem Car axis",
    t=3.0,
    q=(
        0.493455784275402809122e-1,
        0.496989460230171153861,
        0.104174252488542151681e1,
        0.373911027265361256927,
    ),
    v=(
        -0.770583684040972357970e-1,
        0.744686658723778553466e-2,
        0.175568157537232222276e-1,
        0.770341043779251976443,
    ),
    a=(),
    multipliers=(0.473688659084893324729e-2, 0.110468033125734368808e-2),
)


class CarAxis(AbstractModel):
    r"""Axis of a car on a bumpy road: a bar on two stiff springs, one end over a moving wheel.

    Coordinates `q = (xl, yl, xr, yr)`, the ends of the axis; the y axis points up. The left wheel
    is at the origin, the right one at `(xb, yb)`, which runs over the bumps of the road:

        yb = r sin(w t),    xb = sqrt(L^2 - yb^2)
        T = m (|l'|^2 + |r'|^2) / 2,    V = (|l| - L0)^2 / 2 + (|r - b| - L0)^2 / 2 + m g (yl + yr)
        f = (l . b, |l - r|^2 - L^2) = 0

    with `m = eps^2 M / 2`: the forces of springs, gravity and joints are small beside the springs'
    stiffness, of frequency `1 / sqrt(m)`. Two degrees of freedom. Quantities are those of the test
    set, which gives them no units.

    Source: [MazziaMagherini2008].

    Args:
        mass: M of both ends.
        eps: scale of the inertia, `m = eps^2 M / 2`.
        length: L of the axis.
        spring_length: L0 of the relaxed springs.
        bump: r, height of the bumps.
        frequency: w of the bumps [rad/s].
        gravity: g.
    """

    mass: float = 10.0
    eps: float = 1e-2
    length: float = 1.0
    spring_length: float = 0.5
    bump: float = 0.1
    frequency: float = 10.0
    gravity: float = 1.0

    def inertia(self):
        """M of one end."""
        return 0.5 * self.mass * self.eps**2

    def wheel(self, t) -> Float[Array, " 2"]:
        """Place of the right wheel at a time [s], shape (2,)."""
        height = self.bump * jnp.sin(self.frequency * t)
        return jnp.stack([jnp.sqrt(self.length**2 - height**2), height])

    def kinetic_energy(self, t, q, v):
        """T of the two ends."""
        return 0.5 * self.inertia() * v @ v

    def potential_energy(self, t, q):
        """V of the springs and of gravity."""
        left, right = q[:2], q[2:] - self.wheel(t)
        stretched = jnp.stack([jnp.sqrt(left @ left), jnp.sqrt(right @ right)]) - self.spring_length
        return 0.5 * stretched @ stretched + self.inertia() * self.gravity * (q[1] + q[3])

    def position_constraints(self, t, q):
        """The left end moves across the road's direction; the axis is rigid; shape (2,)."""
        axis = q[:2] - q[2:]
        return jnp.stack([q[:2] @ self.wheel(t), axis @ axis - self.length**2])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("left x", "left y", "right x", "right y"),
            units=("m",) * 4,
            constraints=("left guide", "axis"),
            constraint_units=("m^2", "m^2"),
        )

    def points(self, t, q) -> Points:
        """Both ends on their springs, above the wheels."""
        wheel = self.wheel(t).astype(q.dtype)
        return Points(
            {"left wheel": jnp.zeros_like(wheel), "left": q[:2], "right": q[2:], "wheel": wheel},
            links=(("left", "right"),),
            lines=(("left wheel", "left"), ("wheel", "right")),
            trace=("left", "right"),
            fixed=("left wheel",),
        )

    def start(self) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
        """The test set's start: level springs, moving to the left, each of shape (4,)."""
        length, height = self.length, self.spring_length
        speed = -height * self.bump * self.frequency / length
        q, v = jnp.array([0.0, height, length, height]), jnp.array([speed, 0.0, speed, 0.0])
        return q.astype(float), v.astype(float)


MODELS = (
    Model(
        name="car-axis",
        summary="car axis on stiff springs over a bumpy road",
        source="Test Set for IVP Solvers, problem Car axis",
        place=5.2,
        system=CarAxis,
        formulation=Multipliers,
        t1=3.0,
        study="its road moves: violations that are fed by it decide more than the gains",
        rest="the road moves under it without end",
    ),
)
