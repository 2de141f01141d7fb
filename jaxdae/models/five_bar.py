"""Planar five-bar: two motors move a tip through a closed loop, along a path."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.control import Feedforward, PD
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.reprs import Module, shown
from jaxdae.systems import Labels, Points, State

# Of the registry's controller; the slower of two links at one crank swings at some 6 rad/s.
_STIFFNESS, _DAMPING = 60.0, 6.0


class LinkSines(NamedTuple):
    """Sines of the angles at which links meet; zero where they are in line, a singular position.

    Args:
        left: from the left crank to its coupler; at zero the tip cannot move along them.
        right: from the right crank to its coupler, likewise.
        tip: from the right coupler to the left one; at zero the motors do not hold the tip.
    """

    left: Float[Array, "..."]
    right: Float[Array, "..."]
    tip: Float[Array, "..."]

    def __repr__(self) -> str:
        return shown(self)


class EllipticPath(Module):
    """A path of the tip, `centre + (radii[0] cos(2 pi t / T), radii[1] sin(2 pi t / T))`.

    Args:
        centre: [m], two numbers.
        radii: semi-axes [m], two numbers.
        period: T [s].
    """

    centre: Sequence[float] | Float[Array, " 2"] = (0.1, 0.42)
    radii: Sequence[float] | Float[Array, " 2"] = (0.08, 0.05)
    period: float = 1.5

    def __call__(self, t) -> Float[Array, " 2"]:
        """Place at a time [m], shape (2,)."""
        phase = 2 * jnp.pi * t / self.period
        circle = jnp.stack([jnp.cos(phase), jnp.sin(phase)])
        return jnp.asarray(self.centre) + jnp.asarray(self.radii) * circle


class FiveBar(AbstractModel):
    r"""Two cranks on motors, two couplers that meet at the tip; the y axis points up.

    Coordinates `q = (theta_1, psi_1, theta_2, psi_2)`: absolute angles of left crank and coupler,
    right crank and coupler. With `e(x) = (cos x, sin x)`, lengths `l`, and centres of mass at `c`
    times the length along each link,

        T = sum over links of  m |centre'|^2 / 2 + I angle'^2 / 2,  +  m_P |P'|^2 / 2
        P = l_1 e(theta_1) + l_2 e(psi_1),        V = g (sum m y + m_P y_P)
        f = P - (d, 0) - l_3 e(theta_2) - l_4 e(psi_2) = 0

    Two degrees of freedom. The motors' torques `u` act on the cranks, whose bearings have viscous
    friction, `D = b (theta_1'^2 + theta_2'^2) / 2`.

    The Jacobian of the constraints has full rank but where all four links are parallel. The motors
    lose their hold earlier: where the couplers are in line they cannot hold the tip, and where a
    crank is in line with its coupler the tip cannot move that way [GosselinAngeles1990]. `sines`
    measures both.

    Source: the mechanism of [Ghorbel2000]; the numbers are ours, without symmetry.

    Args:
        lengths: of left crank, left coupler, right crank, right coupler [m].
        masses: of these [kg].
        centres: places of their centres of mass, as parts of their lengths [-].
        inertias: about these centres [kg m^2].
        base: d, from the left motor to the right one [m].
        tip_mass: m_P, carried at the tip [kg].
        friction: b [N m s/rad].
        gravity: g [m/s^2].
    """

    lengths: Sequence[float] | Float[Array, " 4"] = (0.25, 0.35, 0.22, 0.38)
    masses: Sequence[float] | Float[Array, " 4"] = (0.6, 0.35, 0.5, 0.4)
    centres: Sequence[float] | Float[Array, " 4"] = (0.4, 0.5, 0.45, 0.55)
    inertias: Sequence[float] | Float[Array, " 4"] = (3.5e-3, 3.6e-3, 2.3e-3, 4.8e-3)
    base: float = 0.2
    tip_mass: float = 0.3
    friction: float = 0.05
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        """T of the links and the mass at the tip [J]."""
        l, m, c, I = self._links()  # noqa: E741
        across = jnp.cos(q[1::2] - q[::2]) * v[::2] * v[1::2]

        def square(part):
            """Square of the speed of the point at this part of each coupler."""
            cranks, couplers = l[::2] * v[::2], part * l[1::2] * v[1::2]
            return cranks**2 + couplers**2 + 2 * l[::2] * part * l[1::2] * across

        cranks = jnp.sum(m[::2] * (c[::2] * l[::2] * v[::2]) ** 2)
        couplers = jnp.sum(m[1::2] * square(c[1::2]))
        turning = jnp.sum(I * v**2)
        return 0.5 * (cranks + couplers + turning + self.tip_mass * square(1.0)[0])

    def potential_energy(self, t, q):
        """V of the links and the mass at the tip [J]."""
        l, m, c, _ = self._links()  # noqa: E741
        rise = l * jnp.sin(q)
        cranks = jnp.sum(m[::2] * c[::2] * rise[::2])
        couplers = jnp.sum(m[1::2] * (rise[::2] + c[1::2] * rise[1::2]))
        return self.gravity * (cranks + couplers + self.tip_mass * (rise[0] + rise[1]))

    def dissipation(self, t, q, v):
        """Friction of the motors' bearings [W]."""
        return 0.5 * self.friction * jnp.sum(v[::2] ** 2)

    def force(self, t, q, v, w, u):
        """Torques of the motors on the cranks [N m]; none without a controller."""
        return jnp.zeros_like(q) if u is None else jnp.zeros_like(q).at[jnp.array([0, 2])].set(u)

    def position_constraints(self, t, q):
        """From the end of the right coupler to that of the left [m], shape (2,)."""
        l, *_ = self._links()  # noqa: E741
        x, y = l * jnp.cos(q), l * jnp.sin(q)
        return jnp.stack([x[0] + x[1] - x[2] - x[3] - self.base, y[0] + y[1] - y[2] - y[3]])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("left crank", "left coupler", "right crank", "right coupler"),
            units=("rad",) * 4,
            constraints=("loop x", "loop y"),
            constraint_units=("m", "m"),
            inputs=("left torque", "right torque"),
            input_units=("N m", "N m"),
        )

    def points(self, t, q) -> Points:
        """Motors, elbows and tip, which both couplers reach."""
        l, *_ = self._links()  # noqa: E741
        left, inner, right, outer = l[:, None] * jnp.stack([jnp.cos(q), jnp.sin(q)], axis=1)
        motor = jnp.stack([jnp.asarray(self.base), jnp.zeros(())])
        return Points(
            {
                "left motor": jnp.zeros_like(left),
                "_left elbow": left,
                "tip": left + inner,
                "_tip by the right": motor + right + outer,
                "_right elbow": motor + right,
                "right motor": motor,
            },
            links=(
                ("left motor", "_left elbow", "tip"),
                ("right motor", "_right elbow", "_tip by the right"),
            ),
            trace=("tip",),
            fixed=("left motor", "right motor"),
        )

    def start(self) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
        """On the path `EllipticPath()` at t = 0, moving along it; each of shape (4,)."""
        return jax.jvp(self.motion(EllipticPath()), (0.0,), (1.0,))

    def tip(self, q: Float[Array, " 4"]) -> Float[Array, " 2"]:
        """Place of the tip, by the left links [m], shape (2,)."""
        l, *_ = self._links()  # noqa: E741
        return jnp.stack([l[:2] @ jnp.cos(q[:2]), l[:2] @ jnp.sin(q[:2])])

    def at_tip(
        self, point: Float[Array, " 2"], elbows: tuple[int, int] = (1, -1)
    ) -> Float[Array, " 4"]:
        """Coordinates with the tip at a point, by the law of cosines.

        Args:
            point: place of the tip [m].
            elbows: side on which the left and the right elbow lie, seen from their motors towards
                the tip: 1 left, -1 right.

        Returns:
            Coordinates, shape (4,); NaN for a point out of reach.

        Raises:
            ValueError: for a concrete point out of reach.
        """
        l, *_ = self._links()  # noqa: E741
        point = jnp.asarray(point)
        motors = jnp.stack([jnp.zeros(2, point.dtype), jnp.stack([self.base, 0.0])])
        offsets = point - motors
        distances = jnp.sqrt(jnp.sum(offsets**2, axis=1))
        cosines = (l[::2] ** 2 + distances**2 - l[1::2] ** 2) / (2 * l[::2] * distances)
        _require_reach("the tip is out of reach of a motor", cosines, distances)
        directions = jnp.arctan2(offsets[:, 1], offsets[:, 0])
        cranks = directions + jnp.asarray(elbows) * jnp.arccos(cosines)
        rest = offsets - l[::2, None] * jnp.stack([jnp.cos(cranks), jnp.sin(cranks)], axis=1)
        couplers = jnp.arctan2(rest[:, 1], rest[:, 0])
        return jnp.stack([cranks, couplers], axis=1).ravel()

    def at_cranks(self, cranks: Float[Array, " 2"], assembly: int = 1) -> Float[Array, " 4"]:
        """Coordinates with the cranks at given angles, in one of the two assembly modes.

        Args:
            cranks: angles of left and right crank [rad].
            assembly: side on which the tip lies, seen from the left elbow towards the right one:
                1 left, -1 right.

        Returns:
            Coordinates, shape (4,); NaN where the couplers do not meet.

        Raises:
            ValueError: for concrete angles at which the couplers do not meet.
        """
        l, *_ = self._links()  # noqa: E741
        cranks = jnp.asarray(cranks)
        elbows = l[::2, None] * jnp.stack([jnp.cos(cranks), jnp.sin(cranks)], axis=1)
        across = elbows[1] - elbows[0] + jnp.stack([self.base, 0.0])
        distance = jnp.sqrt(jnp.sum(across**2))
        cosines = (distance**2 + l[1::2] ** 2 - l[:0:-2] ** 2) / (2 * distance * l[1::2])
        _require_reach("the couplers do not meet: elbows", cosines, distance)
        turns = assembly * jnp.arccos(cosines)
        left = jnp.arctan2(across[1], across[0]) + turns[0]
        right = jnp.arctan2(-across[1], -across[0]) - turns[1]
        return jnp.stack([cranks[0], left, cranks[1], right])

    def motion(self, path, elbows: tuple[int, int] = (1, -1)) -> "TipMotion":
        """The motion whose tip follows a path.

        Args:
            path: `t -> (2,)`, place of the tip [m].
            elbows: as for `at_tip`.
        """
        return TipMotion(self, path, elbows)

    def sines(self, q: Float[Array, "*rows 4"]) -> LinkSines:
        """How far positions are from singular ones; signs tell assembly and working mode."""
        inner = jnp.sin(q[..., 1::2] - q[..., ::2])
        return LinkSines(inner[..., 0], inner[..., 1], jnp.sin(q[..., 1] - q[..., 3]))

    def _links(self) -> tuple[Array, ...]:
        """Lengths, masses, centres, inertias, each of shape (4,)."""
        four = (self.lengths, self.masses, self.centres, self.inertias)
        return tuple(jnp.stack([*x]) for x in four)


class TipMotion(Module):
    """Coordinates of a five-bar along a path of its tip.

    Args:
        system: the five-bar.
        path: `t -> (2,)`, place of the tip [m].
        elbows: as for `FiveBar.at_tip`.
    """

    system: FiveBar
    path: Any
    elbows: tuple[int, int] = eqx.field(static=True, default=(1, -1))

    def __call__(self, t) -> Float[Array, " 4"]:
        """Coordinates at a time, shape (4,)."""
        return self.system.at_tip(self.path(t), self.elbows)


class CrankError(Module):
    """Wanted minus actual angles of the cranks [rad], the error of a `PD`.

    Args:
        motion: the wanted motion, `t -> (4,)`.
    """

    motion: Any

    def __call__(self, t, q) -> Float[Array, " 2"]:
        """Error at a time and position, shape (2,)."""
        return (self.motion(t) - q)[jnp.array([0, 2])]


def path_control(system: FiveBar, path=None, K_P=_STIFFNESS, K_D=_DAMPING, *, static=False) -> PD:
    """PD control of both cranks along a path of the tip, with feedforward.

    Args:
        system: the five-bar as far as the controller knows it.
        path: `t -> (2,)`, place of the tip [m]; by default `EllipticPath()`.
        K_P: [N m/rad], scalar, (2,) or (2, 2).
        K_D: [N m s/rad], likewise.
        static: compensates weight alone, not inertia and friction; see `Feedforward`.
    """
    motion = system.motion(EllipticPath() if path is None else path)
    return PD(CrankError(motion), K_P, K_D, Feedforward(system, motion, 2, static))


def _require_reach(what: str, cosines, distances) -> None:
    if fails(lambda x: not (np.abs(x) > 1).any(), cosines):
        shown = ", ".join(f"{x:.6g}" for x in np.ravel(np.asarray(distances)))
        raise ValueError(f"{what} at a distance of {shown} m; links of other lengths reach it.")


def _turned_aside(start: State) -> State:
    """At rest at the start of the path, which moves on."""
    return State(start.q, jnp.zeros_like(start.v), start.w)


MODELS = (
    Model(
        name="five-bar",
        summary="planar five-bar whose two motors lead a tip along a path",
        source="Ghorbel, Chetelat, Gunawardana, Longchamp (2000); numbers of our own",
        place=16.5,
        system=FiveBar,
        formulation=stabilized,
        t1=3.0,
        study=ConstraintStudy(t1=0.3, dt=0.005, deviation=1e-3),
        rest=Rest(
            guess=lambda system: system.start()[0],
            inputs=2,
            fixed=("left crank", "right crank"),
            remark="at the start of its path, held by the motors",
        ),
        controller=path_control,
        departure=_turned_aside,
    ),
)
