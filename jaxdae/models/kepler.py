"""Kepler's problem in the plane."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractSolvedModel, Model, Rest
from jaxdae.systems import Labels, Points, State

# Newton's method for Kepler's equation from E = pi converges for every eccentricity below one
# without leaving the interval (the function is convex there); these steps reach round-off
# up to 0.99.
_NEWTON_STEPS = 20


class Kepler(AbstractSolvedModel):
    r"""Point in a central field of gravity, in Cartesian coordinates; no constraints.

        T = m |v|^2 / 2,        V = -m mu / |q|

    First integrals: energy, angular momentum `q x v`, and the Laplace-Runge-Lenz vector
    `e = (v x (q x v)) / mu - q / |q|`, whose length is the eccentricity. In the plane they are four
    functions with one relation, `|e|^2 = 1 + 2 E L^2 / mu^2`; on circles the first two are
    dependent.

    Source: [Baumgarte1972; LandauLifshitz1976, section 15].

    Args:
        mass: m [kg].
        parameter: gravitational parameter mu [m^3/s^2].
        semi_major_axis: a of the default start [m].
        eccentricity: e of the default start [-], from 0 to below 1.
    """

    mass: float = 1.0
    parameter: float = 1.0
    semi_major_axis: float = 1.0
    eccentricity: float = 0.3

    def kinetic_energy(self, t, q, v):
        """T = m |v|^2 / 2 [J]."""
        return 0.5 * self.mass * (v @ v)

    def potential_energy(self, t, q):
        """V = -m mu / |q| [J]."""
        return -self.mass * self.parameter / jnp.linalg.norm(q)

    def force(self, t, q, v, w, u):
        """A thrust, if there is a control [N], shape (2,)."""
        return jnp.zeros_like(q) if u is None else u

    def energy_and_momentum(self, t, q, v) -> Float[Array, " 2"]:
        """Specific energy [m^2/s^2] and specific angular momentum [m^2/s], shape (2,)."""
        energy = 0.5 * (v @ v) - self.parameter / jnp.linalg.norm(q)
        return jnp.stack([energy, q[0] * v[1] - q[1] * v[0]])

    def laplace_vector(self, t, q, v) -> Float[Array, " 2"]:
        """Laplace-Runge-Lenz vector [-], shape (2,): towards the pericentre, as long as e."""
        momentum = self.energy_and_momentum(t, q, v)[1]
        return momentum / self.parameter * jnp.stack([v[1], -v[0]]) - q / jnp.linalg.norm(q)

    def all_integrals(self, t, q, v) -> Float[Array, " 4"]:
        """Energy, angular momentum and Laplace vector, shape (4,); of rank three."""
        return jnp.concatenate([self.energy_and_momentum(t, q, v), self.laplace_vector(t, q, v)])

    def period(self) -> Float[Array, ""]:
        """Time of one revolution of the default start, `2 pi sqrt(a^3 / mu)` [s]."""
        return 2 * jnp.pi * jnp.sqrt(self.semi_major_axis**3 / jnp.asarray(self.parameter))

    def exact_position(self, t) -> Float[Array, " 2"]:
        """Position on the ellipse of the default start, by Kepler's equation `E - e sin E = M`."""
        t = jnp.asarray(t, dtype=float)
        e, mean = self.eccentricity, 2 * jnp.pi * t / self.period()
        # |M| within half a turn; the sign and full turns are added back by symmetry.
        turns = jnp.round(mean / (2 * jnp.pi))
        anomaly = _eccentric_anomaly(mean - 2 * jnp.pi * turns, e)
        x = self.semi_major_axis * (jnp.cos(anomaly) - e)
        return jnp.stack([x, self.semi_major_axis * jnp.sqrt(1 - e**2) * jnp.sin(anomaly)])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("x", "y"),
            units=("m", "m"),
            inputs=("Fx", "Fy"),
            input_units=("N", "N"),
        )

    def points(self, t, q) -> Points:
        return Points(
            {"centre": jnp.zeros_like(q), "point": q}, trace=("point",), fixed=("centre",)
        )

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """Pericentre: coordinates [m] and velocities [m/s], each of shape (2,)."""
        a, e = jnp.asarray(self.semi_major_axis), self.eccentricity
        speed = jnp.sqrt(self.parameter / a * (1 + e) / (1 - e))
        zero = jnp.zeros_like(speed)
        return jnp.stack([a * (1 - e), zero]), jnp.stack([zero, speed])

    def start_state(self) -> State:
        """`start` as a `State`."""
        return State(*self.start())


def _eccentric_anomaly(mean, eccentricity):
    """Root E of `E - e sin E = M` for |M| <= pi."""
    anomaly = jnp.where(mean < 0, -jnp.pi, jnp.pi)
    for _ in range(_NEWTON_STEPS):
        residual = anomaly - eccentricity * jnp.sin(anomaly) - mean
        anomaly = anomaly - residual / (1 - eccentricity * jnp.cos(anomaly))
    return anomaly


MODELS = (
    Model(
        name="kepler",
        summary="point in a central field of gravity",
        source="Baumgarte (1972); Landau, Lifshitz, section 15",
        place=15,
        system=Kepler,
        formulation=Multipliers,
        t1=20.0,
        study="it has no constraints, hence no gains that enforce them",
        rest=Rest(
            guess=lambda system: system.start()[0],
            inputs=2,
            fixed=("x", "y"),
            remark="hovering on a thrust that is found; without thrust nothing rests in a central "
            "field, and a circular orbit is a relative equilibrium, which moves",
        ),
    ),
)
