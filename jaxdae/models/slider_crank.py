"""Slider-crank mechanism with independent crank and rod lengths."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import Baumgarte, Penalty
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest
from jaxdae.systems import Labels, Points


class SliderCrank(AbstractModel):
    r"""Crank, connecting rod and slider on the x axis; the y axis points up.

    Coordinates `q = (theta, psi, s)`: absolute angles of the crank and of the rod from the x
    axis, and the position of the slider. The links are uniform bars, `I = m l^2 / 12`:

        T = m_1 r^2 theta'^2 / 6 + m_2 |c'|^2 / 2 + m_2 l^2 psi'^2 / 24 + m_3 s'^2 / 2
        c = (r cos theta + l/2 cos psi, r sin theta + l/2 sin psi)
        V = g (m_1 r/2 sin theta + m_2 (r sin theta + l/2 sin psi))
        f = (r cos theta + l cos psi - s, r sin theta + l sin psi) = 0

    One degree of freedom. The Jacobian is

        J = [[-r sin theta, -l sin psi, -1], [r cos theta, l cos psi, 0]]

    and loses rank where `cos theta = cos psi = 0`. With l > r that is never reached; with r = l
    it is reached at `theta = +-pi/2, psi = -theta, s = 0`, both links in one line across the
    slider's axis, where the motion `psi = -theta`, `s = 2 r cos theta` meets another one,
    `psi = theta - pi`, `s = 0` (the slider rests and the links turn as one).

    On the first branch with r = l the mechanism is one equation:

        T = A(theta) theta'^2 / 2,  A = r^2 ((m_1 + m_2)/3 + (2 m_2 + 4 m_3) sin^2 theta)
        V = g r (m_1 + m_2) sin(theta) / 2

    Source of the singular position as a test: [BayoLedesma1996], as quoted by
    [MukharlyamovDeressa2015]. The numbers are ours.

    Args:
        crank_length: r [m].
        rod_length: l [m].
        crank_mass: m_1 [kg].
        rod_mass: m_2 [kg].
        slider_mass: m_3 [kg].
        gravity: g [m/s^2].
    """

    crank_length: float = 1.0
    rod_length: float = 1.0
    crank_mass: float = 1.0
    rod_mass: float = 1.0
    slider_mass: float = 1.0
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        """T of crank, rod and slider [J]."""
        r, rod = self.crank_length, self.rod_length
        theta_dot, psi_dot, s_dot = v
        # |r e_theta theta' + l/2 e_psi psi'|^2, with the angle psi - theta between the two
        rod_speed_squared = (
            (r * theta_dot) ** 2
            + (0.5 * rod * psi_dot) ** 2
            + r * rod * jnp.cos(q[1] - q[0]) * theta_dot * psi_dot
        )
        crank = self.crank_mass * (r * theta_dot) ** 2 / 6.0
        bar = self.rod_mass * (0.5 * rod_speed_squared + (rod * psi_dot) ** 2 / 24.0)
        return crank + bar + 0.5 * self.slider_mass * s_dot**2

    def potential_energy(self, t, q):
        """V of crank and rod [J]."""
        crank = 0.5 * self.crank_length * jnp.sin(q[0])
        rod = self.crank_length * jnp.sin(q[0]) + 0.5 * self.rod_length * jnp.sin(q[1])
        return self.gravity * (self.crank_mass * crank + self.rod_mass * rod)

    def position_constraints(self, t, q):
        """Closure of the loop, along and across the slider's axis [m], shape (2,)."""
        r, rod = self.crank_length, self.rod_length
        along = r * jnp.cos(q[0]) + rod * jnp.cos(q[1]) - q[2]
        return jnp.stack([along, r * jnp.sin(q[0]) + rod * jnp.sin(q[1])])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("crank", "rod", "slider"),
            units=("rad", "rad", "m"),
            constraints=("loop x", "loop y"),
            constraint_units=("m", "m"),
        )

    def points(self, t, q) -> Points:
        """Crank, rod and slider; the slider is drawn a sixth as high as the crank is long."""
        r, rod, half = self.crank_length, self.rod_length, self.crank_length / 6
        pin = r * jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])
        slider = jnp.stack([q[2], jnp.zeros_like(q[2])])
        corners = half * jnp.array([[1.5, 1.0], [-1.5, 1.0], [-1.5, -1.0], [1.5, -1.0]])
        return Points(
            {
                "shaft": jnp.zeros_like(pin),
                "pin": pin,
                "_rod's end": pin + rod * jnp.stack([jnp.cos(q[1]), jnp.sin(q[1])]),
                "slider": slider,
            },
            links=(("shaft", "pin", "_rod's end"),),
            outlines={"slider": slider + corners},
            trace=("slider",),
            fixed=("shaft",),
        )

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Crank at pi/4 turning at 4 rad/s, fast enough to pass the in-line position."""
        return self.at_crank(0.25 * jnp.pi, 4.0)

    def at_crank(
        self, angle: Float[Array, ""] | float, rate: Float[Array, ""] | float = 0.0
    ) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Consistent position and velocity with the slider on the side of +x.

        Args:
            angle: crank angle theta [rad], with `r |sin theta| < l`.
            rate: theta' [rad/s].

        Returns:
            Coordinates [rad, rad, m] and velocities, each of shape (3,); nan where the rod does
            not reach the slider's axis.
        """
        r, rod = self.crank_length, self.rod_length
        psi = -jnp.arcsin(r * jnp.sin(angle) / rod)
        psi_dot = -r * jnp.cos(angle) * rate / (rod * jnp.cos(psi))
        s = r * jnp.cos(angle) + rod * jnp.cos(psi)
        s_dot = -r * jnp.sin(angle) * rate - rod * jnp.sin(psi) * psi_dot
        q = jnp.stack([jnp.asarray(angle, psi.dtype), psi, s])
        return q, jnp.stack([jnp.asarray(rate, psi.dtype), psi_dot, s_dot])


MODELS = (
    Model(
        name="slider-crank",
        summary="slider-crank with equal links, through its in-line singular position",
        source="Bayo, Ledesma, Nonlinear Dynamics 9 (1996) 113-130",
        place=4,
        system=SliderCrank,
        formulation=lambda: Penalty(alpha=1e4, stabilization=Baumgarte.critical(100.0)),
        t1=4.0,
        study=ConstraintStudy(t1=0.4, dt=0.005, deviation=1e-3),
        rest=Rest(
            guess=lambda system: system.at_crank(-0.5 * jnp.pi)[0],
            remark="crank down, with a rod of 1.5 m: links of equal length, as this model has them "
            "elsewhere, rest only in the singular in-line position, where no linearization exists",
            system=lambda: SliderCrank(rod_length=1.5),
        ),
    ),
)
