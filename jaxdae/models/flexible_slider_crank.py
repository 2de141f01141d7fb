"""Slider-crank with an elastic rod, of the test set for initial value problems."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractModel, Model, Reference
from jaxdae.systems import Labels, Points

# As the test set has it; the last digits of its solution depend on it.
_PI = 3.1415927

END_REFERENCE = Reference(
    "solution at t = 0.1 s, computed with MEBDFI at tolerances 1e-14",
    "F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4, "
    "University of Bari 2008, problem Slider crank",
    t=0.1,
    q=(
        0.1500000000000104e2,
        -0.3311734988256260,
        0.1697373328427860,
        0.1893192899613509e-3,
        0.2375751249879174e-4,
        -0.5323896770569702e-5,
        -0.8363313279112129e-5,
    ),
    v=(
        0.1500000000000000e3,
        0.6025346755138369e2,
        -0.8753116326670527e1,
        -0.3005541400289738e-1,
        -0.5500431812571696e-2,
        0.4974111734266989e-3,
        0.1105560003626645e-2,
    ),
    a=(
        0.0,
        0.6488737541276957e4,
        0.2167938629509884e4,
        0.3391137060286523e2,
        0.1715134772216488,
        -0.1422449408912512e1,
        0.1003946428124810e1,
    ),
    multipliers=(-0.6232935833287916e2, -0.1637920993367306e3, 0.2529857947066878e2),
)


class FlexibleSliderCrank(AbstractModel):
    r"""A crank driven at a constant speed, an elastic connecting rod, and a slider.

    Coordinates `q = (phi1, phi2, x, q1, q2, q3, q4)`: angles of the crank and of the rod's chord,
    place of the slider, and the rod's deformation: amplitudes `q1`, `q2` of the first two bending
    modes, and longitudinal displacements `q3`, `q4` of its middle and its end [m]. With `d` the
    last four, `s = sin(phi1 - phi2)`, `c = cos(phi1 - phi2)` and the rod's integrals `Mq`, `Kq`,
    `Bq` (antisymmetric), `c1`, `c2`, `c12`, `c21`,

        T = (J1 + m2 l1^2) phi1'^2 / 2 + (J2 + d^T Mq d + 2 rho c12^T d) phi2'^2 / 2
            + m3 x'^2 / 2 + d'^T Mq d' / 2
            + phi1' phi2' (l1 l2 m2 c / 2 + rho l1 (s c2^T d + c c1^T d))
            + rho l1 phi1' (c c2 - s c1)^T d' + rho phi2' (c21 + Bq^T d)^T d'
        V = d^T Kq d / 2
        f = (l1 sin phi1 + (l2 + q4) sin phi2, x - l1 cos phi1 - (l2 + q4) cos phi2,
             phi1 - omega t) = 0

    The drive takes the mechanism's one degree of freedom; the rod has four of its own, at 1.3e3 to
    2.5e4 rad/s, that nothing damps. Its numbers are those of the test set.

    Source: [Simeon1996; MazziaMagherini2008].

    Args:
        crank_length: l1 [m].
        rod_length: l2 [m].
        rod_mass: m2 [kg].
        slider_mass: m3 [kg].
        crank_inertia: J1 [kg m^2].
        rod_inertia: J2 [kg m^2].
        modulus: Young's modulus E of the rod [N/m^2].
        density: rho of the rod [kg/m^3].
        thickness: of the rod, square [m].
        speed: omega of the crank [rad/s].
    """

    crank_length: float = 0.15
    rod_length: float = 0.30
    rod_mass: float = 0.151104
    slider_mass: float = 0.075552
    crank_inertia: float = 0.002727
    rod_inertia: float = 0.0045339259
    modulus: float = 0.2e12
    density: float = 7870.0
    thickness: float = 0.008
    speed: float = 150.0

    def _volume(self):
        return self.thickness**2 * self.rod_length

    def _kinetic_parts(self, dtype) -> tuple:
        """`Mq`, `Bq`, `c1`, `c2`, `c12`, `c21`, each with its density."""
        mass = np.array([[0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 8.0, 1.0], [0, 0, 1.0, 2.0]])
        turning = np.zeros((4, 4))
        turning[0, 2], turning[0, 3] = -16 / _PI**3, 8 / _PI**3 - 1 / _PI
        turning[1, 3] = 0.5 / _PI
        turning -= turning.T
        first, second = np.array([0, 0, 2 / 3, 1 / 6]), np.array([2 / _PI, 0, 0, 0])
        along, across = np.array([0, 0, 1 / 3, 1 / 6]), np.array([1 / _PI, -0.5 / _PI, 0, 0])
        factor, size = self.density * self._volume(), self.rod_length
        parts = (
            (mass, 1.0),
            (turning, 1.0),
            (first, 1.0),
            (second, 1.0),
            (along, size),
            (across, size),
        )
        return tuple(factor * scale * jnp.asarray(x, dtype) for x, scale in parts)

    def _stiffness(self, dtype):
        """`Kq` [N/m], shape (4, 4)."""
        slender = (self.thickness / self.rod_length) ** 2
        bending = np.diag([_PI**4 / 24, _PI**4 * 2 / 3, 0, 0])
        stretch = np.zeros((4, 4))
        stretch[2:, 2:] = np.array([[16.0, -8.0], [-8.0, 7.0]]) / 3
        factor = self.modulus * self.thickness**2 / self.rod_length
        return factor * (slender * jnp.asarray(bending, dtype) + jnp.asarray(stretch, dtype))

    def kinetic_energy(self, t, q, v):
        """T of crank, rod and slider [J]."""
        mass, turning, c1, c2, c12, c21 = self._kinetic_parts(v.dtype)
        d, d_dot = q[3:], v[3:]
        s, c = jnp.sin(q[0] - q[1]), jnp.cos(q[0] - q[1])
        l1, l2, m2 = self.crank_length, self.rod_length, self.rod_mass
        crank = (self.crank_inertia + m2 * l1**2) * v[0] ** 2
        rod = (self.rod_inertia + d @ mass @ d + 2.0 * c12 @ d) * v[1] ** 2
        slider = self.slider_mass * v[2] ** 2
        both = 0.5 * l1 * l2 * m2 * c + l1 * (s * (c2 @ d) + c * (c1 @ d))
        by_crank = l1 * (c * c2 - s * c1) @ d_dot
        by_rod = (c21 + d @ turning) @ d_dot
        mixed = v[0] * v[1] * both + v[0] * by_crank + v[1] * by_rod
        return 0.5 * (crank + rod + slider + d_dot @ mass @ d_dot) + mixed

    def potential_energy(self, t, q):
        """V of the rod's deformation [J]; there is no gravity."""
        return 0.5 * q[3:] @ self._stiffness(q.dtype) @ q[3:]

    def position_constraints(self, t, q):
        """Closure across and along the slider's axis [m], drive of the crank [rad], shape (3,)."""
        l1, rod = self.crank_length, self.rod_length + q[6]
        across = l1 * jnp.sin(q[0]) + rod * jnp.sin(q[1])
        along = q[2] - l1 * jnp.cos(q[0]) - rod * jnp.cos(q[1])
        return jnp.stack([across, along, q[0] - self.speed * t])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("crank", "rod", "slider", "bend 1", "bend 2", "middle", "end"),
            units=("rad", "rad", "m", "m", "m", "m", "m"),
            constraints=("loop y", "loop x", "drive"),
            constraint_units=("m", "m", "rad"),
        )

    def points(self, t, q) -> Points:
        """Crank, rod with its deformation a hundredfold, and slider."""
        place = lambda a: jnp.stack([jnp.cos(a), jnp.sin(a)])  # noqa: E731
        pin, along = self.crank_length * place(q[0]), place(q[1])
        across = jnp.stack([-along[1], along[0]])
        parts = np.linspace(0.0, 1.0, 9)[1:-1]
        bent = {}
        for i, part in enumerate(parts):
            deflection = np.sin(np.pi * part) * q[3] + np.sin(2 * np.pi * part) * q[4]
            bent[f"_rod {i + 1}"] = (
                pin + part * self.rod_length * along + 100.0 * deflection * across
            )
        slider = jnp.stack([q[2], jnp.zeros_like(q[2])])
        return Points(
            {"shaft": jnp.zeros_like(pin), "pin": pin, **bent, "slider": slider},
            links=(("shaft", "pin"), ("pin", *bent, "slider")),
            trace=("slider",),
            fixed=("shaft",),
        )

    def start(self) -> tuple[Float[Array, " 7"], Float[Array, " 7"]]:
        """The test set's start near the motion of the rigid rod, each of shape (7,).

        It prints nine digits; the slider's place and the velocities of rod and slider are those
        that the constraints make of the others.
        """
        d = jnp.array([0.0, 0.0, 0.103339863e-4, 0.169327969e-4])
        d_dot = jnp.array([0.444896105, 0.463434311e-2, -0.178591076e-5, -0.268938672e-5])
        rod = self.rod_length + d[3]
        q = jnp.concatenate([jnp.stack([jnp.zeros(()), jnp.zeros(()), self.crank_length + rod]), d])
        turned = -self.crank_length * self.speed / rod
        fast = jnp.asarray(self.speed, turned.dtype)
        return q, jnp.concatenate([jnp.stack([fast, turned, d_dot[3]]), d_dot])


MODELS = (
    Model(
        name="flexible-slider-crank",
        summary="slider-crank with a connecting rod that vibrates, driven at a constant speed",
        source="Test Set for IVP Solvers, problem Slider crank; Simeon, 1996",
        place=5.4,
        system=FlexibleSliderCrank,
        formulation=Multipliers,
        t1=0.1,
        study="the vibrations of its rod, not violations, decide about its steps",
        rest="its crank is driven at a constant speed",
    ),
)
