"""Pendulum in Cartesian coordinates."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.systems import Labels, Points

# The arithmetic-geometric mean doubles its digits with every step once its two numbers have the
# same size, and halves the logarithm of their ratio before: ten steps reach round-off for every
# amplitude that is distinguishable from pi in double precision.
_AGM_STEPS = 10


class CartesianPendulum(AbstractModel):
    r"""Point mass on a massless rod, described by its position (x, y); the y axis points up.

        T = m (vx^2 + vy^2) / 2,    V = m g y,    f = x^2 + y^2 - l^2 = 0

    One degree of freedom in two coordinates. The constraint force is known in closed form (see
    `multiplier`), and so is the period (see `period`).

    Source: any textbook of mechanics, such as [LandauLifshitz1976, section 11] for the period; the
    equations are those of the test problem of [HairerWanner1996, section VII.1].

    Args:
        mass: m [kg].
        length: l [m].
        gravity: g [m/s^2].
    """

    mass: float = 1.0
    length: float = 1.0
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        """T = m |v|^2 / 2 [J]."""
        return 0.5 * self.mass * (v @ v)

    def potential_energy(self, t, q):
        """V = m g y [J]."""
        return self.mass * self.gravity * q[1]

    def position_constraints(self, t, q):
        """Rod: |q|^2 - l^2 [m^2], shape (1,)."""
        return jnp.stack([q @ q - self.length**2])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("x", "y"),
            units=("m", "m"),
            constraints=("rod",),
            constraint_units=("m^2",),
        )

    def points(self, t, q) -> Points:
        return Points(
            {"pivot": jnp.zeros_like(q), "mass": q},
            links=(("pivot", "mass"),),
            trace=("mass",),
            fixed=("pivot",),
        )

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """Rod horizontal, at rest: coordinates [m] and velocities [m/s], each of shape (2,)."""
        return self.released_from(0.5 * jnp.pi)

    def released_from(
        self, amplitude: Float[Array, ""] | float
    ) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """Rest at an angle from the downward vertical.

        Args:
            amplitude: angle [rad], positive towards +x.

        Returns:
            Coordinates [m] and zero velocities [m/s], each of shape (2,).
        """
        q = self.length * jnp.stack([jnp.sin(amplitude), -jnp.cos(amplitude)])
        return q, jnp.zeros_like(q)

    def multiplier(self, q: Float[Array, " 2"], v: Float[Array, " 2"]) -> Float[Array, " 1"]:
        """Exact multiplier of the rod in the sign convention `M a + J^T lam = f`.

        The second derivative of the constraint is `2 (q.a + v.v) = 0`; the scalar product of
        `m a + 2 lam q = -m g e_y` with `q` gives

            lam = m (|v|^2 - g y) / (2 l^2)

        and the tension of the rod is `2 l lam`.

        Args:
            q: coordinates [m], shape (2,).
            v: velocities [m/s], shape (2,).

        Returns:
            The multiplier [N/m], shape (1,).
        """
        return jnp.stack([self.mass * (v @ v - self.gravity * q[1]) / (2.0 * self.length**2)])

    def period(self, amplitude: Float[Array, ""] | float) -> Float[Array, ""]:
        """Period of the swing released from rest, by the arithmetic-geometric mean.

            P = 4 sqrt(l/g) K(k),  k = sin(amplitude / 2);  equivalently
            P = 2 pi sqrt(l/g) / agm(1, cos(amplitude / 2))

        Args:
            amplitude: largest angle from the downward vertical [rad], below pi.

        Returns:
            The period [s].
        """
        a, b = jnp.ones(()), jnp.cos(0.5 * jnp.asarray(amplitude))
        for _ in range(_AGM_STEPS):
            a, b = 0.5 * (a + b), jnp.sqrt(a * b)
        return 2.0 * jnp.pi * jnp.sqrt(self.length / self.gravity) / a


MODELS = (
    Model(
        name="pendulum",
        summary="point mass on a rod, in Cartesian coordinates",
        source="Hairer, Wanner, Solving Ordinary Differential Equations II, VII.1",
        place=1,
        system=CartesianPendulum,
        formulation=stabilized,
        t1=10.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=Rest(guess=lambda system: system.released_from(0.0)[0], remark="hanging"),
    ),
)
