"""A bushing: an elastic connection between frames of two bodies."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody import rotation_vectors
from jaxdae.multibody.forces import AbstractForce, BODY, Marker
from jaxdae.multibody.joints import space_vector
from jaxdae.multibody.rotations import cross
from jaxdae.systems.precision import as_floats


def _three(values) -> Float[Array, " 3"]:
    """One number is that of all axes."""
    (found,) = as_floats(values)
    return space_vector(jnp.broadcast_to(found, (3,)) if found.shape == () else found)


class Bushing(AbstractForce):
    r"""Six springs and dampers between a frame of one body and a frame of another one.

    In axes of the first frame, with the displacement `d` of the second one's origin, the rotation
    vector `theta` of its axes, and their velocities `d'` and `omega`,

        V = sum k_i (d_i - d0_i)^2 / 2 + sum kappa_i theta_i^2 / 2
        D = sum c_i d'_i^2 / 2 + sum gamma_i omega_i^2 / 2

    Energy is kept at all angles below half a turn, where the rotation vector jumps. For small
    angles `kappa_i` are stiffnesses about the three axes one by one; at larger ones different
    `kappa_i` do not measure what a component shows that turns about one axis after the other: take
    a bushing's data for angles up to some 0.3 rad. Equal ones are a `TorsionSpring`.

    Args:
        name: of the element.
        first: frame of one body.
        second: frame of the other one.
        stiffness: `k_i` [N/m], one number or shape `(3,)`.
        torsion: `kappa_i` [N m/rad], one number or shape `(3,)`.
        damping: `c_i` [N s/m], one number or shape `(3,)`.
        torsion_damping: `gamma_i` [N m s/rad], one number or shape `(3,)`.
        relaxed: `d0` [m].
    """

    name: str = eqx.field(static=True)
    first: Marker
    second: Marker
    stiffness: Float[Array, " 3"] = eqx.field(converter=_three, default=0.0)
    torsion: Float[Array, " 3"] = eqx.field(converter=_three, default=0.0)
    damping: Float[Array, " 3"] = eqx.field(converter=_three, default=0.0)
    torsion_damping: Float[Array, " 3"] = eqx.field(converter=_three, default=0.0)
    relaxed: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))

    def parts(self):
        return (("first", BODY, self.first.body), ("second", BODY, self.second.body))

    def energy(self, t, configuration):
        one, two = (x.pose(configuration.poses) for x in (self.first, self.second))
        apart = one.turn.T @ (two.place - one.place) - self.relaxed
        theta = rotation_vectors.of_matrix(one.turn.T @ two.turn)
        return 0.5 * (self.stiffness @ apart**2 + self.torsion @ theta**2)

    def dissipation(self, t, motion):
        one, two = (x.pose(motion.poses) for x in (self.first, self.second))
        of_one, of_two = (x.twist(motion.twists) for x in (self.first, self.second))
        turn, apart = one.turn.T @ two.turn, one.turn.T @ (two.place - one.place)
        velocity = turn @ of_two.velocity - of_one.velocity - cross(of_one.spin, apart)
        omega = turn @ of_two.spin - of_one.spin
        return 0.5 * (self.damping @ velocity**2 + self.torsion_damping @ omega**2)
