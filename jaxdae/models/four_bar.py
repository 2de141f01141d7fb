"""Four-bar linkage: a crank leads a point of the coupler along a curve."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.reprs import Module
from jaxdae.systems import Labels, Points


class FourBar(AbstractModel):
    r"""Crank, coupler and rocker between two pivots; the y axis points up.

    Coordinates `q = (theta, psi, chi)`: absolute angles of crank, coupler and rocker. With
    `e(x) = (cos x, sin x)`, lengths `a, b, c, d`, the crank's pivot at `origin`, the rocker's at
    `origin + d e(tilt)`, and centres of mass `s` in the frames of the links,

        T = sum over links of  m |centre'|^2 / 2 + I angle'^2 / 2,  +  m_P |P'|^2 / 2
        V = g (sum m y + m_P y_P),        torque u on the crank
        f = a e(theta) + b e(psi) - c e(chi) - d e(tilt) = 0

    The coupler point `P = origin + a e(theta) + R(psi) point` carries the load `m_P`. One degree
    of freedom. The same curve of `P` is drawn by two other linkages, the cognates of `cognates`
    [Verstraten2012].

    Source: the linkage is classical; the numbers are ours.

    Args:
        lengths: of crank, coupler, rocker and ground, `a, b, c, d` [m].
        point: coupler point in the frame of the coupler, from the crank's pin [m].
        origin: pivot of the crank [m].
        tilt: direction of the ground, from pivot to pivot [rad].
        branch: side of the rocker's pin, seen from the crank's pin towards the rocker's pivot: 1
            left, -1 right.
        masses: of crank, coupler, rocker [kg].
        centres: of mass in the frames of the links, from the crank's pivot, its pin, and the
            rocker's pivot [m], shape (3, 2).
        inertias: about these [kg m^2].
        load: m_P [kg].
        gravity: g [m/s^2].
    """

    lengths: Sequence[float] | Float[Array, " 4"] = (0.1, 0.3, 0.25, 0.32)
    point: Sequence[float] | Float[Array, " 2"] = (0.2, 0.12)
    origin: Sequence[float] | Float[Array, " 2"] = (0.0, 0.0)
    tilt: float | Float[Array, ""] = 0.1
    branch: float | Float[Array, ""] = 1.0
    masses: Sequence[float] | Float[Array, " 3"] = (0.2, 0.7, 0.5)
    centres: Sequence[Sequence[float]] | Float[Array, "3 2"] = (
        (0.05, 0.0),
        (0.17, 0.04),
        (0.12, 0.0),
    )
    inertias: Sequence[float] | Float[Array, " 3"] = (2e-4, 6e-3, 2.6e-3)
    load: float | Float[Array, ""] = 0.5
    gravity: float = 9.81

    @classmethod
    def of_bars(cls, lengths, point, density=2.0, **more) -> "FourBar":
        """With links made of uniform bars: the coupler is a triangle of three, to its point.

        Args:
            lengths: as for the class.
            point: as for the class.
            density: of a bar [kg/m].
            more: as for the class.
        """
        a, b, c, _ = lengths
        P, zero = jnp.asarray(point), jnp.zeros_like(jnp.asarray(point)[0])
        pin, end = jnp.zeros_like(P), jnp.stack([b + zero, zero])
        starts, ends = jnp.stack([pin, pin, end]), jnp.stack([end, P, P])
        bars = jnp.sqrt(jnp.sum((ends - starts) ** 2, axis=1))
        middles, total = (starts + ends) / 2, jnp.sum(bars)
        centre = bars @ middles / total
        spread = jnp.sum((middles - centre) ** 2, axis=1)
        return cls(
            lengths=lengths,
            point=point,
            masses=density * jnp.stack([a, total, c]),
            centres=jnp.stack([jnp.stack([a / 2, zero]), centre, jnp.stack([c / 2, zero])]),
            inertias=density
            * jnp.stack([a**3 / 12, jnp.sum(bars * spread + bars**3 / 12), c**3 / 12]),
            **more,
        )

    def kinetic_energy(self, t, q, v):
        """T of the links and the load [J]."""
        m, I = jnp.stack([*self.masses]), jnp.stack([*self.inertias])  # noqa: E741
        centres, point = jax.jvp(self._masses_at, (q,), (v,))[1]
        moving = jnp.sum(m * jnp.sum(centres**2, axis=1)) + self.load * point @ point
        return 0.5 * (moving + jnp.sum(I * v**2))

    def potential_energy(self, t, q):
        """V of the links and the load [J]."""
        centres, point = self._masses_at(q)
        return self.gravity * (jnp.stack([*self.masses]) @ centres[:, 1] + self.load * point[1])

    def force(self, t, q, v, w, u):
        """Torque on the crank [N m]; none without a controller."""
        return jnp.zeros_like(q) if u is None else jnp.zeros_like(q).at[0].set(u[0])

    def position_constraints(self, t, q):
        """From the rocker's pin to the coupler's end [m], shape (2,)."""
        a, b, c, d = self.lengths
        return a * _along(q[0]) + b * _along(q[1]) - c * _along(q[2]) - d * _along(self.tilt)

    def labels(self) -> Labels:
        return Labels(
            coordinates=("crank", "coupler", "rocker"),
            units=("rad",) * 3,
            constraints=("loop x", "loop y"),
            constraint_units=("m", "m"),
            inputs=("torque",),
            input_units=("N m",),
        )

    def points(self, t, q) -> Points:
        """Crank, coupler with its point, and rocker."""
        origin, (a, b, c, d) = jnp.asarray(self.origin), self.lengths
        pin, pivot = origin + a * _along(q[0]), origin + d * _along(self.tilt)
        return Points(
            {
                "crank": origin,
                "pin": pin,
                "_coupler's end": pin + b * _along(q[1]),
                "rocker's pin": pivot + c * _along(q[2]),
                "rocker": pivot,
                "P": self.tracer(q),
            },
            links=(("crank", "pin"), ("rocker's pin", "rocker")),
            bodies=(("pin", "_coupler's end", "P"),),
            trace=("P",),
            fixed=("crank", "rocker"),
        )

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Crank at pi/4 turning at 6 rad/s, each of shape (3,)."""
        return jax.jvp(self.at_crank, (0.25 * jnp.pi,), (6.0,))

    def at_crank(self, angle) -> Float[Array, " 3"]:
        """Coordinates with the crank at an angle [rad], in the linkage's branch.

        Args:
            angle: of the crank [rad].

        Returns:
            Coordinates, shape (3,); NaN where coupler and rocker do not meet.

        Raises:
            ValueError: for a concrete angle at which they do not meet.
        """
        a, b, c, d = self.lengths
        angle = jnp.asarray(angle, dtype=jnp.result_type(angle, float))
        across = d * _along(self.tilt) - a * _along(angle)
        distance = jnp.sqrt(across @ across)
        cosine = (b**2 + distance**2 - c**2) / (2 * b * distance)
        if fails(lambda x: not abs(x) > 1, cosine):
            raise ValueError(
                f"coupler and rocker do not meet with the crank at {float(angle):.6g} rad: its "
                f"pin is {float(distance):.6g} m from the rocker's pivot, and they are "
                f"{float(b):.6g} m and {float(c):.6g} m long."
            )
        psi = jnp.arctan2(across[1], across[0]) + self.branch * jnp.arccos(cosine)
        end = b * _along(psi) - across
        return jnp.stack([angle, psi, jnp.arctan2(end[1], end[0])])

    def tracer(self, q: Float[Array, " 3"]) -> Float[Array, " 2"]:
        """Place of the coupler point [m], shape (2,)."""
        return self._masses_at(q)[1]

    def crank_motion(self, speed, phase: float | Array = 0.0) -> "CrankMotion":
        """The motion whose crank turns at constant speed.

        Args:
            speed: [rad/s].
            phase: angle at t = 0 [rad].
        """
        return CrankMotion(self, speed, phase)

    def cognates(self) -> tuple["FourBar", "FourBar"]:
        """The two other linkages whose coupler points draw the same curve [Verstraten2012].

        With the coupler point at `k` times the coupler, as a complex number, the pivots of all
        three form the triangle of the coupler. The first is driven by a crank that turns as this
        linkage's crank does, about the third pivot, ahead by `x = arg(1 - k)`, its coordinates
        being `(theta + x, chi + x + pi, psi + x + pi)`. The second shares the crank's pivot; with
        `x = arg(k)` its coordinates are `(psi + x, theta + x, chi + x)`: what turns all round is
        its coupler. Masses are left as they are: `of_bars` gives those of other lengths.
        """
        a, b, c, d = self.lengths
        k = (self.point[0] + 1j * self.point[1]) / b
        rest, turned = 1 - k, jnp.conj(k) / jnp.abs(k)
        third = jnp.asarray(self.origin) + _plane(k * d * jnp.exp(1j * self.tilt))
        driven = dataclasses.replace(
            self,
            lengths=jnp.abs(rest) * jnp.stack([a, c, b, d]),
            point=_plane(-k * c * jnp.conj(rest) / jnp.abs(rest)),
            origin=third,
            tilt=self.tilt + jnp.angle(rest),
            branch=-self.branch,
        )
        other = dataclasses.replace(
            self,
            lengths=jnp.abs(k) * jnp.stack([b, a, c, d]),
            point=_plane(a * turned),
            tilt=self.tilt + jnp.angle(k),
        )
        return driven, other

    def transmission(self, q: Float[Array, "*rows 3"]) -> Float[Array, "*rows"]:
        """Sine of the angle between coupler and rocker; zero where the coupler cannot turn it."""
        return jnp.sin(q[..., 1] - q[..., 2])

    def _masses_at(self, q):
        """Centres of mass, shape (3, 2), and coupler point, shape (2,), each [m]."""
        origin, (a, _, _, d) = jnp.asarray(self.origin), self.lengths
        pin, pivot = origin + a * _along(q[0]), origin + d * _along(self.tilt)
        places = jnp.stack([origin, pin, pivot])
        frames = zip(places, q, self.centres, strict=True)
        centres = jnp.stack([place + _turned(x, s) for place, x, s in frames])
        return centres, pin + _turned(q[1], self.point)


class CrankMotion(Module):
    """Coordinates of a four-bar whose crank turns at constant speed.

    Args:
        system: the four-bar.
        speed: of the crank [rad/s].
        phase: of the crank at t = 0 [rad].
    """

    system: FourBar
    speed: float | Float[Array, ""]
    phase: float | Float[Array, ""] = 0.0

    def __call__(self, t) -> Float[Array, " 3"]:
        """Coordinates at a time, shape (3,)."""
        return self.system.at_crank(self.phase + self.speed * t)


def _along(angle):
    """Unit vector, shape (2,)."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _turned(angle, vector):
    """A vector of a link's frame in the plane, shape (2,)."""
    cos, sin, (x, y) = jnp.cos(angle), jnp.sin(angle), vector
    return jnp.stack([cos * x - sin * y, sin * x + cos * y])


def _plane(z):
    """A complex number as a vector, shape (2,)."""
    return jnp.stack([jnp.real(z), jnp.imag(z)])


MODELS = (
    Model(
        name="four-bar",
        summary="four-bar linkage whose coupler carries a load along a curve",
        source="classical linkage; numbers of our own",
        place=4.5,
        system=FourBar,
        formulation=stabilized,
        t1=3.0,
        study=ConstraintStudy(t1=0.3, dt=0.005, deviation=1e-3),
        rest=Rest(
            guess=lambda system: system.at_crank(-0.5 * jnp.pi),
            remark="hanging near the place where the crank points down",
        ),
    ),
)
