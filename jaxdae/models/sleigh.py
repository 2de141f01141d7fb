"""Chaplygin sleigh."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractSolvedModel, COASTING, ConstraintStudy, Model, rolling
from jaxdae.systems import Labels, Points


class ChaplyginSleigh(AbstractSolvedModel):
    r"""Rigid body on a plane with a blade that cannot move sideways.

    Coordinates `(x, y, theta)`: the blade's point of contact and its direction. The centre of mass
    lies at distance `a` ahead of the blade. With `e = (cos theta, sin theta)`, `n = (-sin theta,
    cos theta)` and the centre's velocity `c' = (x', y') + a theta' n`,

        T = (m |c'|^2 + I theta'^2) / 2,        g = n . (x', y') = 0

    On the constraint `v' = a w^2`, `k^2 w' = -a v w` for the speed `v` along `e` and `w = theta'`,
    with `k^2 = a^2 + I / m`. The sleigh turns until it runs with its mass ahead of the
    blade (see `exact_position`).

    Source: [Chaplygin1911; NeimarkFufaev1972, chapter III].

    Args:
        mass: m [kg].
        inertia: I about the centre of mass [kg m^2]; by default 3 m a^2, so that `k = 2 a`.
        offset: a [m], positive.
        speed: `V = sqrt(v^2 + k^2 w^2)`, conserved [m/s].
        phase: `s0` at t = 0; at `s = 0` the sleigh turns on the spot.
    """

    mass: float = 2.0
    inertia: float = 1.5
    offset: float = 0.5
    speed: float = 1.0
    phase: float = -1.0

    def kinetic_energy(self, t, q, v):
        """T of a rigid body, from the velocity of its centre of mass [J]."""
        x = v[0] - self.offset * v[2] * jnp.sin(q[2])
        y = v[1] + self.offset * v[2] * jnp.cos(q[2])
        return 0.5 * (self.mass * (x**2 + y**2) + self.inertia * v[2] ** 2)

    def velocity_constraints(self, t, q, v):
        """Sideways velocity of the blade [m/s], shape (1,)."""
        return jnp.stack([v[1] * jnp.cos(q[2]) - v[0] * jnp.sin(q[2])])

    def labels(self) -> Labels:
        return Labels(("x", "y", "theta"), ("m", "m", "rad"), ("blade",), ("m/s",))

    def points(self, t, q) -> Points:
        """Blade, half as long as its distance to the centre of mass, and that centre."""
        ahead = self.offset * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        return Points(
            {
                "blade": q[:2],
                "centre of mass": q[:2] + ahead,
                "_heel": q[:2] - ahead / 4,
                "_toe": q[:2] + ahead / 4,
            },
            links=(("_heel", "blade", "_toe"), ("blade", "centre of mass")),
            trace=("blade", "centre of mass"),
        )

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 3"]:
        r"""Motion in closed form for `k = 2 a`, that is `I = 3 m a^2`.

        With `s = s0 + a V t / k^2`: `v = V tanh s`, `k w = V sech s`, hence with the Gudermannian
        `gd s = 2 arctan tanh(s / 2)`

            theta = (k / a) gd s
            x = (k^2 / a) (tanh^2 s - ln cosh s),    y = (k^2 / a) (gd s - tanh s sech s)

        less their values at `s0`. The first line holds for every `I`; the second is the integral
        of `v e` for `k / a = 2`.

        Returns:
            Coordinates, shape (3,); x and y are nan unless `I = 3 m a^2`.
        """
        a = self.offset
        k_squared = a**2 + self.inertia / self.mass
        s = self.phase + a * self.speed * jnp.asarray(t, dtype=float) / k_squared
        point = k_squared / a * (_path(s) - _path(jnp.asarray(self.phase, s.dtype)))
        elementary = jnp.abs(k_squared - 4 * a**2) <= 8 * jnp.finfo(s.dtype).eps * k_squared
        theta = jnp.sqrt(k_squared) / a * _gudermannian(s)
        return jnp.append(jnp.where(elementary, point, jnp.nan), theta)

    def multiplier(self, q: Float[Array, " 3"], v: Float[Array, " 3"]) -> Float[Array, ""]:
        """`lam = -mu v w` with `mu = m I / (I + m a^2)`, on the constraint [N].

        `mu` is the inertia the blade feels sideways; the force on the sleigh is `-lam` along `n`.
        """
        along = v[0] * jnp.cos(q[2]) + v[1] * jnp.sin(q[2])
        return -self.lateral_mass() * along * v[2]

    def lateral_mass(self) -> Float[Array, ""]:
        """`mu = m I / (I + m a^2)`, the inverse of `J M^-1 J^T` [kg]."""
        moment = self.inertia + self.mass * self.offset**2
        return jnp.asarray(self.mass * self.inertia / moment)

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """At the origin, with the heading, speed and turning rate of the exact motion at t = 0."""
        k = jnp.sqrt(self.offset**2 + self.inertia / self.mass)
        theta = k / self.offset * _gudermannian(jnp.asarray(self.phase))
        along = self.speed * jnp.tanh(jnp.asarray(self.phase))
        turning = self.speed / k / jnp.cosh(self.phase)
        zero = jnp.zeros_like(theta)
        v = jnp.stack([along * jnp.cos(theta), along * jnp.sin(theta), turning])
        return jnp.stack([zero, zero, theta]), v


def _gudermannian(s):
    """`gd s`, the integral of `sech`."""
    return 2 * jnp.arctan(jnp.tanh(s / 2))


def _path(s):
    """Integral of `tanh(s) (cos 2 gd s, sin 2 gd s)`, shape (2,)."""
    tanh, sech = jnp.tanh(s), 1 / jnp.cosh(s)
    return jnp.stack([tanh**2 + jnp.log(sech), _gudermannian(s) - tanh * sech])


MODELS = (
    Model(
        name="sleigh",
        summary="Chaplygin sleigh: a rigid body on a blade",
        source="Chaplygin (1911); Neimark, Fufaev, ch. III",
        place=6,
        system=ChaplyginSleigh,
        formulation=rolling,
        t1=6.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=COASTING,
    ),
)
