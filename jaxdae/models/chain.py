"""Chain of point masses on massless links."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized, vector
from jaxdae.systems import Labels, Points


class Chain(AbstractModel):
    r"""Chain of N point masses hanging from the origin; the y axis points up.

    Redundant Cartesian coordinates `q = (x_1, y_1, ..., x_N, y_N)`, one constraint for each link
    between consecutive masses, `r_0 = 0`:

        T = sum m_i |v_i|^2 / 2,    V = sum m_i g y_i,    f_i = |r_i - r_(i-1)|^2 - l_i^2 = 0

    N degrees of freedom in 2N coordinates. With N = 1 it is the Cartesian pendulum; with N = 2 and
    no gravity, the planar arm of two point masses of [Shemelova] in Hamiltonian form. Two equal
    links swing with `omega^2 = (2 -+ sqrt 2) g / l` [LandauLifshitz1976, section 23].

    Args:
        lengths: l_i [m], shape (N,).
        masses: m_i [kg], shape (N,).
        gravity: g [m/s^2].

    Raises:
        ValueError: if the numbers of lengths and masses differ, or there is none.
    """

    lengths: Float[Array, " N"] = eqx.field(converter=vector, default=(0.25,) * 4)  # pyright: ignore[reportAssignmentType]
    masses: Float[Array, " N"] = eqx.field(converter=vector, default=(1.0,) * 4)  # pyright: ignore[reportAssignmentType]
    gravity: float = 9.81

    def __check_init__(self):
        """Refuse an empty chain and one with unequal numbers of links and masses."""
        if self.lengths.shape != self.masses.shape or self.lengths.ndim != 1:
            raise ValueError(
                f"Chain needs as many masses as lengths, one of each per link; got lengths of "
                f"shape {self.lengths.shape} and masses of shape {self.masses.shape}."
            )
        if self.lengths.size == 0:
            raise ValueError("Chain needs at least one link; got none.")

    @classmethod
    def uniform(cls, links: int, length: float = 1.0, mass: float = 1.0, gravity: float = 9.81):
        """Chain of equal links.

        Args:
            links: N.
            length: length of all links together [m].
            mass: mass of all links together [kg].
            gravity: g [m/s^2].
        """
        return cls(jnp.full(links, length / links), jnp.full(links, mass / links), gravity)

    def kinetic_energy(self, t, q, v):
        """T = sum m_i |v_i|^2 / 2 [J]."""
        masses = self.masses.astype(v.dtype)
        return 0.5 * jnp.sum(masses * jnp.sum(v.reshape(-1, 2) ** 2, axis=1))

    def potential_energy(self, t, q):
        """V = sum m_i g y_i [J]."""
        return self.gravity * jnp.sum(self.masses.astype(q.dtype) * q.reshape(-1, 2)[:, 1])

    def mass_matrix(self, t, q):
        """Diagonal, each mass twice [kg]; given because differentiating T costs O(N^2) passes."""
        return jnp.diag(jnp.repeat(self.masses.astype(q.dtype), 2))

    def position_constraints(self, t, q):
        """Links: |r_i - r_(i-1)|^2 - l_i^2 [m^2], shape (N,)."""
        return jnp.sum(_links(q) ** 2, axis=1) - self.lengths.astype(q.dtype) ** 2

    def labels(self) -> Labels:
        numbers = range(1, self.lengths.shape[0] + 1)
        return Labels(
            coordinates=tuple(f"{axis}{i}" for i in numbers for axis in ("x", "y")),
            units=("m",) * (2 * len(numbers)),
            constraints=tuple(f"link {i}" for i in numbers),
            constraint_units=("m^2",) * len(numbers),
        )

    def points(self, t, q) -> Points:
        names = (*(f"_{i}" for i in range(1, self.lengths.shape[0])), "end")
        places = dict(zip(names, q.reshape(-1, 2), strict=True))
        return Points(
            {"pivot": jnp.zeros_like(q[:2]), **places},
            links=(("pivot", *names),),
            trace=("end",),
            fixed=("pivot",),
        )

    def start(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Straight and horizontal, at rest: coordinates [m], velocities [m/s], shape (2N,)."""
        return self.straight(0.5 * jnp.pi)

    def hanging(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Stable equilibrium, straight down: coordinates [m], velocities [m/s], shape (2N,)."""
        return self.straight(0.0)

    def straight(
        self, angle: Float[Array, ""] | float
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """All links in one line, at rest.

        Args:
            angle: angle from the downward vertical [rad], positive towards +x.

        Returns:
            Coordinates [m] and zero velocities [m/s], each of shape (2N,).
        """
        direction = jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
        q = (jnp.cumsum(self.lengths)[:, None] * direction).reshape(-1)
        return q, jnp.zeros_like(q)


def _links(q: Float[Array, " n"]) -> Float[Array, "N 2"]:
    """Vectors along the links, each from the previous mass to the next [m]."""
    positions = q.reshape(-1, 2)
    return positions - jnp.concatenate([jnp.zeros_like(positions[:1]), positions[:-1]])


MODELS = (
    Model(
        name="chain",
        summary="chain of point masses in redundant Cartesian coordinates",
        source="Shemelova, constraint perturbation equations (two masses); any number here",
        place=2,
        system=Chain,
        formulation=stabilized,
        t1=5.0,
        study=ConstraintStudy(t1=0.5, dt=0.01, deviation=3e-3),
        rest=Rest(guess=lambda system: system.hanging()[0], remark="hanging"),
    ),
)
