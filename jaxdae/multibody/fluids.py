"""Drag of a fluid on bodies."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody.forces import AbstractForce, BODY, Load, Marker
from jaxdae.multibody.joints import space_vector, Wrench


class BoxDrag(AbstractForce):
    r"""Drag of a fluid on a box, quadratic by density and linear by viscosity.

    With the velocity `s` of the box's centre relative to the fluid and its angular velocity
    `omega`, both in axes of the box, its sides `a_i`, their mean `m`, density `rho` and viscosity
    `beta`, for `i, j, k` in a row,

        force_i  = -rho a_j a_k |s_i| s_i / 2 - 3 pi beta m s_i
        torque_i = -rho a_i (a_j^4 + a_k^4) |omega_i| omega_i / 64 - pi beta m^3 omega_i

    It is MuJoCo's model of inertia boxes; `BoxDrag.of_inertia` takes its numbers.

    Args:
        name: of the element.
        marker: centre of the box, and its axes.
        sides: of the box [m], shape `(3,)`.
        density: of the fluid [kg/m^3].
        viscosity: [Pa s].
        wind: velocity of the fluid in space [m/s], shape `(3,)`.

    Raises:
        ValueError: for a negative side, density or viscosity.
    """

    name: str = eqx.field(static=True)
    marker: Marker
    sides: Float[Array, " 3"] = eqx.field(converter=space_vector)
    density: float = 0.0
    viscosity: float = 0.0
    wind: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))

    def __check_init__(self):
        for what in ("sides", "density", "viscosity"):
            value = getattr(self, what)
            if fails(lambda x: np.all(np.asarray(x) >= 0), value):
                found = np.asarray(value).tolist()
                raise ValueError(f"BoxDrag {self.name!r}: {what}, {found}, is negative.")

    @classmethod
    def of_inertia(
        cls, name, marker: Marker, mass, moments, density=0.0, viscosity=0.0, wind=(0.0, 0.0, 0.0)
    ) -> "BoxDrag":
        """The drag on a box that has the inertia of a body, as MuJoCo's fluids have it.

        Args:
            name: of the element.
            marker: centre of mass of the body, and its principal axes: `body_ipos`, `body_iquat`.
            mass: [kg], positive.
            moments: principal moments of inertia [kg m^2], shape `(3,)`: `body_inertia`.
            density: of the fluid [kg/m^3].
            viscosity: [Pa s].
            wind: velocity of the fluid in space [m/s], shape `(3,)`.

        Raises:
            ValueError: for a mass that is not positive.
        """
        if fails(lambda x: x > 0, mass):
            raise ValueError(f"BoxDrag {name!r}: the mass is {mass} kg; it is positive.")
        moments = space_vector(moments)
        squares = 6 * (jnp.sum(moments) - 2 * moments) / mass
        # Of a plate or a rod sides of zero length, which round-off may make imaginary.
        sides = jnp.sqrt(jnp.maximum(squares, 6 * jnp.finfo(squares.dtype).tiny))
        return cls(name, marker, sides, density, viscosity, wind)

    def parts(self):
        return (("the marker", BODY, self.marker.body),)

    def load(self, t, motion, w, u):
        pose, twist = self.marker.pose(motion.poses), self.marker.twist(motion.twists)
        s, omega, a = twist.velocity - pose.turn.T @ self.wind, twist.spin, self.sides
        j, k = jnp.roll(a, -1), jnp.roll(a, -2)
        mean = jnp.mean(a)
        force = -0.5 * self.density * j * k * jnp.abs(s) * s
        torque = -self.density * a * (j**4 + k**4) * jnp.abs(omega) * omega / 64
        force -= 3 * np.pi * self.viscosity * mean * s
        torque -= np.pi * self.viscosity * mean**3 * omega
        return Load({self.marker.body: Wrench(force, torque).at(self.marker.relative())})
