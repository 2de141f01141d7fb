"""Two-link manipulator whose tip follows a line through a singular configuration."""

import dataclasses
from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import Baumgarte, Multipliers, Penalty
from jaxdae.models.base import AbstractSolvedModel, ConstraintStudy, Model
from jaxdae.systems import Labels, Points

# The paper prints six digits. The tip of these angles is at x = 0.2959655 m, while the x0 printed
# is 0.295953 m: the start is off its own constraint by 1.25e-5 m.
PAPER_START_Q = (1.396263, 3.563268)
PAPER_START_V = (0.358620, -0.867745)


@dataclasses.dataclass(frozen=True)
class PaperRun:
    """One of the paper's simulations over 20 s.

    Args:
        figure: its number in the paper.
        method: "multipliers" (generalized Baumgarte) or "penalty" (modified Lagrange equation).
        K_D: diagonal (h, r) of the damping gains [1/s].
        K_P: diagonal (p, s) of the stiffness gains [1/s^2].
        alpha: penalty factor [kg]; None for the multipliers.
    """

    figure: int
    method: str
    K_D: tuple[float, float]
    K_P: tuple[float, float]
    alpha: float | None = None

    def formulation(self) -> Multipliers | Penalty:
        """The formulation of this run."""
        stabilization = Baumgarte(K_D=jnp.asarray(self.K_D), K_P=jnp.asarray(self.K_P))
        if self.alpha is None:
            return Multipliers(stabilization=stabilization)
        return Penalty(alpha=self.alpha, stabilization=stabilization)


PAPER_RUNS = (
    PaperRun(figure=2, method="multipliers", K_D=(20.0, 10.0), K_P=(100.0, 25.0)),
    PaperRun(figure=3, method="penalty", K_D=(20.0, 10.0), K_P=(100.0, 25.0), alpha=10.0),
    PaperRun(figure=4, method="penalty", K_D=(20.0, 10.0), K_P=(100.0, 250.0), alpha=3.0),
    PaperRun(figure=5, method="penalty", K_D=(20.0, 10.0), K_P=(10.0, 2500.0), alpha=50.0),
)


class AbstractTwoLink(AbstractSolvedModel):
    r"""Plane arm of two uniform links whose tip must stay at `(X(t), h)`; the y axis points up.

    Coordinates `q = (q1, q2)`: angle of the first link from the x axis, and of the second link
    relative to the first. With `e(a) = (cos a, sin a)`, mass centres `c1 = L1/2 e(q1)`,
    `c2 = L1 e(q1) + L2/2 e(q1 + q2)` and moments of inertia `I_i = m_i L_i^2 / 12`,

        T = (m1 |c1'|^2 + I1 q1'^2 + m2 |c2'|^2 + I2 (q1' + q2')^2) / 2
        V = m1 g L1/2 sin q1 + m2 g (L1 sin q1 + L2/2 sin(q1 + q2))
        f1 = L1 sin q1 + L2 sin(q1 + q2) - h = 0
        f2 = L1 cos q1 + L2 cos(q1 + q2) - X(t) = 0

    Two constraints on two coordinates: the motion is fully prescribed, and the multipliers are
    the forces that the prescription takes. The determinant of the Jacobian is `L1 L2 sin q2`.
    With `h = L1 - L2` the line `y = h` touches the inner boundary of the workspace at the folded
    configuration `q = (pi/2, pi)`, where `X = 0`. There the Jacobian has rank 1, and the smooth
    motion goes through it to the other elbow side (see `exact_motion`).

    Source: [MukharlyamovDeressa2015, example 1].

    Args:
        length1: L1 [m].
        length2: L2 [m].
        mass1: m1 [kg].
        mass2: m2 [kg].
        gravity: g [m/s^2].
        target_height: h [m].
    """

    length1: float = 1.0
    length2: float = 0.5
    mass1: float = 2.0
    mass2: float = 1.0
    gravity: float = 9.81
    target_height: float = 0.5

    @abstractmethod
    def target_abscissa(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """X(t) [m]."""

    def kinetic_energy(self, t, q, v):
        """T of the two links [J]."""
        first, second = v[0], v[0] + v[1]
        l1, half2 = self.length1, 0.5 * self.length2
        # squared speed of c2; its two parts enclose the angle q2
        speed_squared = (
            (l1 * first) ** 2
            + (half2 * second) ** 2
            + 2.0 * l1 * half2 * jnp.cos(q[1]) * first * second
        )
        link1 = self.mass1 * l1**2 * first**2 / 6.0
        link2 = self.mass2 * (0.5 * speed_squared + self.length2**2 * second**2 / 24.0)
        return link1 + link2

    def potential_energy(self, t, q):
        """V of the two links [J]."""
        elbow = self.length1 * jnp.sin(q[0])
        centre2 = elbow + 0.5 * self.length2 * jnp.sin(q[0] + q[1])
        return self.gravity * (0.5 * self.mass1 * elbow + self.mass2 * centre2)

    def tip(self, q: Float[Array, " 2"]) -> Float[Array, " 2"]:
        """Position of the tip [m], shape (2,)."""
        first, second = q[0], q[0] + q[1]
        x = self.length1 * jnp.cos(first) + self.length2 * jnp.cos(second)
        return jnp.stack([x, self.length1 * jnp.sin(first) + self.length2 * jnp.sin(second)])

    def position_constraints(self, t, q):
        """Tip minus target, y first as in the paper [m], shape (2,)."""
        x, y = self.tip(q)
        return jnp.stack([y - self.target_height, x - self.target_abscissa(t)])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("q1", "q2"),
            units=("rad", "rad"),
            constraints=("tip y", "tip x"),
            constraint_units=("m", "m"),
        )

    def points(self, t, q) -> Points:
        """Base, elbow and tip, and the target that the tip follows."""
        elbow = self.length1 * jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])
        height = jnp.asarray(self.target_height)
        return Points(
            {
                "base": jnp.zeros_like(elbow),
                "elbow": elbow,
                "tip": self.tip(q),
                "target": jnp.stack([jnp.asarray(self.target_abscissa(t)), height]),
            },
            links=(("base", "elbow", "tip"),),
            trace=("elbow", "tip"),
            fixed=("base",),
        )

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 2"]:
        r"""Configuration of the smooth motion along `y = h = L1 - L2`, in closed form.

        The law of cosines for `q2 = pi + delta` reads `4 L1 L2 sin^2(delta / 2) = X^2`, so

            delta = 2 arcsin(X / (2 sqrt(L1 L2)))
            q1 = atan2(h, X) + atan2(L2 sin delta, L1 - L2 cos delta)

        with the sign of `delta` that of `X`: the branch that is smooth at `X = 0`. The other
        smooth branch, `delta` with the opposite sign, is its mirror image about the line from
        the base to the tip; it meets this one at the singular configuration.

        Returns:
            Angles [rad], shape (2,); nan where the target is out of reach, and everywhere if
            `h` differs from `L1 - L2`.
        """
        x = jnp.asarray(self.target_abscissa(jnp.asarray(t, dtype=float)))
        l1, l2, h = self.length1, self.length2, self.target_height
        delta = 2.0 * jnp.arcsin(x / (2.0 * jnp.sqrt(l1 * l2)))
        elbow = jnp.arctan2(l2 * jnp.sin(delta), l1 - l2 * jnp.cos(delta))
        q = jnp.stack([jnp.arctan2(h, x) + elbow, jnp.pi + delta])
        grazing = jnp.abs(h - (l1 - l2)) <= 8.0 * jnp.finfo(x.dtype).eps * l1
        return jnp.where(grazing, q, jnp.nan)

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """The exact motion at t = 0: angles [rad] and velocities [rad/s], each of shape (2,)."""
        return self.exact_motion(0.0)


class TwoLinkManipulator(AbstractTwoLink):
    r"""Two-link manipulator whose tip follows `y = h` at constant speed, `X(t) = x0 - v t`.

    The links fold at `t = x0 / v = 0.4933` s. The target leaves the reachable disc of radius
    `L1 + L2` at `t = (x0 + sqrt((L1 + L2)^2 - h^2)) / v = 2.8503` s; after that no motion
    satisfies the constraints. The paper does not print the speed: 0.6 m/s is the one its initial
    velocities satisfy. See `AbstractTwoLink` for the rest.

    Source: [MukharlyamovDeressa2015, example 1]; runs of the paper in `PAPER_RUNS`.

    Args:
        target_speed: v [m/s].
        target_offset: x0 [m].
    """

    target_speed: float = 0.6
    target_offset: float = 0.295953

    def target_abscissa(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """X(t) = x0 - v t [m]."""
        return self.target_offset - self.target_speed * t

    def singular_time(self) -> Float[Array, ""]:
        """Time at which the target passes the folded configuration [s]."""
        return jnp.asarray(self.target_offset / self.target_speed)

    def exit_time(self) -> Float[Array, ""]:
        """Time at which the target leaves the reachable disc [s]."""
        reach = jnp.sqrt((self.length1 + self.length2) ** 2 - self.target_height**2)
        return (self.target_offset + reach) / self.target_speed


class ReachableTwoLink(AbstractTwoLink):
    r"""Two-link manipulator whose target swings on `y = h`, `X(t) = b cos(w t)`, within reach.

    With `b < 2 sqrt(L1 L2)` the target stays strictly inside the reachable disc, and it passes
    the folded, singular configuration `q = (pi/2, pi)` at `t = (k + 1/2) pi / w`: four times
    in 20 s with the default frequency, at the speed 0.6 m/s of `TwoLinkManipulator`. The start
    is at rest. See `AbstractTwoLink` for the rest.

    Args:
        target_amplitude: b [m].
        target_frequency: w [rad/s].
    """

    target_amplitude: float = 1.0
    target_frequency: float = 0.6

    def target_abscissa(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """X(t) = b cos(w t) [m]."""
        return self.target_amplitude * jnp.cos(self.target_frequency * t)

    def singular_times(self, t1: float) -> Float[Array, " passes"]:
        """Times at which the target passes the folded configuration [s].

        Args:
            t1: end of the interval [s]; a plain number, because it decides the shape.
        """
        half_period = jnp.pi / float(self.target_frequency)
        return half_period * (jnp.arange(round(t1 / half_period)) + 0.5)


# Before the singular configuration, where multipliers end, and through it.
_BEFORE = ConstraintStudy(
    t1=0.45,
    dt=0.01,
    deviation=3e-3,
    rate=(10.0, 5.0),
    longer=0.48,
    beyond=0.6,
    first_gains="the paper's",
)
_THROUGH = dataclasses.replace(_BEFORE, t1=2.5, longer=2.8, beyond=None)


def _studies(model: Model, formulation: str | None):
    """From the paper's gains (Figs. 2 and 3): critical damping with a rate for each constraint."""
    from jaxdae.models.studies import of_constraints  # loaded where something is tuned

    names = ("multipliers", "penalty") if formulation is None else (formulation,)
    budgets = {"multipliers": _BEFORE}
    return tuple(of_constraints(model, name, budgets.get(name, _THROUGH)) for name in names)


_MOVING_TARGET = "its constraints lead the tip after a moving target and leave nothing to rest"

MODELS = (
    Model(
        name="two-link",
        summary="two-link manipulator driven through a singular configuration and out of reach",
        source="Mukharlyamov, Deressa (2014), example 1; gains of its Fig. 3",
        place=3,
        system=TwoLinkManipulator,
        formulation=PAPER_RUNS[1].formulation,
        t1=20.0,
        study=_studies,
        rest=_MOVING_TARGET,
    ),
    Model(
        name="two-link-reachable",
        summary="two-link manipulator driven through a singular configuration again and again",
        source="Mukharlyamov, Deressa (2014), example 1, with a target that stays within reach",
        place=3.5,
        system=ReachableTwoLink,
        formulation=PAPER_RUNS[1].formulation,
        t1=20.0,
        study=ConstraintStudy(t1=2.5, dt=0.01, deviation=3e-3, rate=5.0),
        rest=_MOVING_TARGET,
    ),
)
