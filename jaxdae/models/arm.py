"""Arms of two point masses: plane, as in Hamiltonian form by Shemelova, and tip on a surface."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import LinearStabilization
from jaxdae.models.base import (
    AbstractModel,
    COASTING,
    ConstraintStudy,
    Model,
    Rest,
    stabilized,
    vector,
)
from jaxdae.reprs import Module
from jaxdae.systems import circle, consistent_state, Labels, Points


def perturbation_equations(c1, c2, c3, c4) -> LinearStabilization:
    """The paper's constraint perturbation equations, `y1'' = c1 y1 + c2 y1'`, `y2'' = c3 y2 + ...`.

    Asymptotically stable if and only if all four are negative. With `K_P = (-c1, -c3)` and
    `K_D = (-c2, -c4)` this is `Baumgarte`.

    Args:
        c1: of the first link's residual [1/s^2].
        c2: of its rate [1/s].
        c3: of the second link's residual [1/s^2].
        c4: of its rate [1/s].
    """
    c1, c2, c3, c4 = jnp.asarray([c1, c2, c3, c4], dtype=float)
    return LinearStabilization(K10=jnp.stack([c1, c3]), K11=jnp.stack([c2, c4]))


class PointMassArm(AbstractModel):
    r"""Plane arm of two point masses on massless links, with any forces on its coordinates.

    Redundant Cartesian coordinates `q = (x1, y1, x2, y2)`, momenta `p`:

        H = (p1^2 + p2^2) / 2 m1 + (p3^2 + p4^2) / 2 m2,        virtual work sum F_i dq_i
        f = (x1^2 + y1^2 - l1^2, (x2 - x1)^2 + (y2 - y1)^2 - l2^2) = 0

    and the constraint perturbation equations `y1'' = c1 y1 + c2 y1'`, `y2'' = c3 y2 + c4 y2'` (see
    `perturbation_equations`). `Hamiltonian` derives the canonical equations from this declaration;
    `canonical_rates` has them written out. A control input `u`, shape `(4,)`, adds to the forces.
    Without forces the energy and the angular momentum about the base are constant. With
    `F = (0, -m1 g, 0, -m2 g)` it is `Chain` of two links.

    Source: [Shemelova, example]. The paper prints no numbers; these are ours.

    Args:
        length1: l1 [m].
        length2: l2 [m].
        mass1: m1 [kg].
        mass2: m2 [kg].
        forces: constant F1 ... F4 [N], shape (4,).
    """

    length1: float = 1.0
    length2: float = 0.8
    mass1: float = 1.5
    mass2: float = 1.0
    forces: Float[Array, " 4"] = eqx.field(converter=vector, default=(0.0, 0.0, 0.0, 0.0))  # pyright: ignore[reportAssignmentType]

    def kinetic_energy(self, t, q, v):
        """T = (m1 |v1|^2 + m2 |v2|^2) / 2 [J]."""
        return 0.5 * (self.mass1 * (v[:2] @ v[:2]) + self.mass2 * (v[2:] @ v[2:]))

    def force(self, t, q, v, w, u):
        """F1 ... F4 [N], shape (4,)."""
        constant = self.forces.astype(q.dtype)
        return constant if u is None else constant + u

    def position_constraints(self, t, q):
        """Squared lengths of the links less what they should be [m^2], shape (2,)."""
        first, second = q[:2], q[2:] - q[:2]
        return jnp.stack([first @ first - self.length1**2, second @ second - self.length2**2])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("x1", "y1", "x2", "y2"),
            units=("m",) * 4,
            constraints=("link 1", "link 2"),
            constraint_units=("m^2", "m^2"),
            inputs=("F1", "F2", "F3", "F4"),
            input_units=("N",) * 4,
        )

    def points(self, t, q) -> Points:
        return Points(
            {"base": jnp.zeros_like(q[:2]), "elbow": q[:2], "tip": q[2:]},
            links=(("base", "elbow", "tip"),),
            trace=("tip",),
            fixed=("base",),
        )

    def start(self) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
        """Bent and turning both ways: coordinates [m] and velocities [m/s], each of shape (4,)."""
        return self.from_angles([0.5, -0.7], [1.5, -2.5])

    def from_angles(self, angles, rates) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
        """Consistent coordinates and velocities from the angles of the links.

        Args:
            angles: of both links from the x axis [rad], shape (2,).
            rates: their derivatives [rad/s], shape (2,).

        Returns:
            Coordinates [m] and velocities [m/s], each of shape (4,).
        """
        return jax.jvp(self._positions, (vector(angles),), (vector(rates),))

    def _positions(self, angles):
        elbow = self.length1 * jnp.stack([jnp.cos(angles[0]), jnp.sin(angles[0])])
        link = self.length2 * jnp.stack([jnp.cos(angles[1]), jnp.sin(angles[1])])
        return jnp.concatenate([elbow, elbow + link])

    def angular_momentum(self, q, v) -> Float[Array, ""]:
        """Angular momentum about the base [kg m^2/s]."""
        first, second = q[0] * v[1] - q[1] * v[0], q[2] * v[3] - q[3] * v[2]
        return self.mass1 * first + self.mass2 * second

    def canonical_rates(
        self, q, p, c, *, sign_as_printed: bool = False, drift_as_printed: bool = False
    ) -> tuple[Float[Array, " 4"], Float[Array, " 4"], Float[Array, " 2"]]:
        r"""Equations [Shemelova, eq. 6] for this arm, written out by hand.

            q' = p / m,    p1' = F1 - 2 x1 k1 + 2 (x2 - x1) k2,    p3' = F3 - 2 (x2 - x1) k2, ...

        with multipliers `k` from `D4 k = J M^-1 F + P - (c1 y1 + c2 y1', c3 y2 + c4 y2')`, where
        `P = (2 |v1|^2, 2 |v2 - v1|^2)` is the term `(J q')_q q'`. The paper prints the last row as
        `p4' = F4 + 2 (y2 - y1) k2`, with the wrong sign, and its `P` lacks this term, the only one
        that is left of `P` here.

        Args:
            q: coordinates [m], shape (4,).
            p: momenta [kg m/s], shape (4,).
            c: coefficients c1 ... c4, shape (4,).
            sign_as_printed: take the last row as printed.
            drift_as_printed: take `P` as printed, which is zero.

        Returns:
            `q'` (4,), `p'` (4,) and the multipliers (2,).
        """
        masses, forces = jnp.stack([self.mass1] * 2 + [self.mass2] * 2), self.forces.astype(q.dtype)
        v, (x1, x2) = p / masses, (q[:2], q[2:] - q[:2])
        v1, v2 = v[:2], v[2:] - v[:2]
        a1, a2 = forces[:2] / self.mass1, forces[2:] / self.mass2
        y, y_dot = self.position_constraints(0.0, q), 2 * jnp.stack([x1 @ v1, x2 @ v2])
        wanted = jnp.stack([c[0] * y[0] + c[1] * y_dot[0], c[2] * y[1] + c[3] * y_dot[1]])
        drift = 0.0 if drift_as_printed else 2 * jnp.stack([v1 @ v1, v2 @ v2])
        b1, b2 = 2 * jnp.stack([x1 @ a1, x2 @ (a2 - a1)]) + drift - wanted
        # D4 = J M^-1 J^T.
        d11, d12 = 4 * (x1 @ x1) / self.mass1, -4 * (x1 @ x2) / self.mass1
        d22 = 4 * (x2 @ x2) * (1 / self.mass1 + 1 / self.mass2)
        determinant = d11 * d22 - d12**2
        k1, k2 = (d22 * b1 - d12 * b2) / determinant, (d11 * b2 - d12 * b1) / determinant
        last = 1.0 if sign_as_printed else -1.0
        reaction = jnp.concatenate(
            [-2 * x1 * k1 + 2 * x2 * k2, 2 * k2 * x2 * jnp.array([-1.0, last], q.dtype)]
        )
        return v, forces + reaction, jnp.stack([k1, k2])


class Plane(Module):
    """The plane `normal . r = offset`, as a residual [m] for a normal of unit length.

    Args:
        normal: shape (3,).
        offset: distance from the origin along the normal [m].
    """

    normal: Float[Array, " 3"] = eqx.field(converter=vector, default=(0.0, 0.0, 1.0))  # pyright: ignore[reportAssignmentType]
    offset: float = 0.0

    def __call__(self, point):
        """Height above the plane [m]."""
        return self.normal.astype(point.dtype) @ point - self.offset


class Ellipsoid(Module):
    """The ellipsoid `sum ((r - center) / axes)^2 = 1`, as a residual without unit.

    Args:
        center: [m], shape (3,).
        axes: semi-axes along x, y, z [m], shape (3,), or one number for a sphere.
    """

    center: Float[Array, " 3"] = eqx.field(converter=vector, default=(0.0, 0.0, 0.0))  # pyright: ignore[reportAssignmentType]
    axes: Float[Array, " 3"] | Float[Array, ""] = eqx.field(converter=vector, default=1.0)  # pyright: ignore[reportAssignmentType]

    def __call__(self, point):
        """Residual of the equation [-]."""
        scaled = (point - self.center.astype(point.dtype)) / self.axes.astype(point.dtype)
        return scaled @ scaled - 1

    def sections(self) -> dict[str, Float[Array, "corners 3"]]:
        """Curves in which the coordinate planes through the centre cut it [m]."""
        planes = ((0, 1), (0, 2), (1, 2))
        unit = jnp.eye(3)
        circles = {i: circle(jnp.zeros(3), 1.0, unit[i[0]], unit[i[1]]) for i in planes}
        return {
            f"surface {'xyz'[i]}{'xyz'[j]}": self.center + self.axes * x
            for (i, j), x in circles.items()
        }


def _dome() -> Ellipsoid:
    """A dome whose top is at (1.08, 0.64, 0.2)."""
    return Ellipsoid((1.08, 0.64, -0.3), (0.6, 0.6, 0.5))


class SurfaceArm(AbstractModel):
    r"""Spatial arm of two point masses whose tip stays on a surface.

    Cartesian coordinates `q = (x1, y1, z1, x2, y2, z2)` of elbow and tip, spherical joints, the z
    axis up, the surface given by any smooth scalar function `s`:

        T = (m1 |v1|^2 + m2 |v2|^2) / 2,        V = g (m1 z1 + m2 z2)
        f = (|r1|^2 - l1^2, |r2 - r1|^2 - l2^2, s(r2)) = 0

    The surface holds the tip from both sides, without friction, with the force
    `-lam_3 grad s` (`contact_force`); a tip that only lies on it would leave where that force
    changes its side. A control input `u`, shape `(6,)`, is a force on the two masses. Where the
    surface is a sphere about the base, the arm is a rigid body with a fixed point, which without
    gravity moves by Euler's equations [LandauLifshitz1976, section 36].

    Source: the manipulator whose gripper moves on a surface, as the reason for redundant
    coordinates in [Krasinskaya2013], after [ZenkevichYushchenko2004]. The numbers are ours.

    Args:
        surface: `s(point) -> scalar`, any callable; an `eqx.Module` if it has parameters.
        length1: l1 [m].
        length2: l2 [m].
        mass1: m1 [kg].
        mass2: m2 [kg].
        gravity: g [m/s^2].
        near: elbow, then tip, of the start before it is projected on the constraints [m], (6,).
        speed: velocities of both before projection [m/s], (6,).
    """

    surface: Callable = eqx.field(default_factory=_dome)
    length1: float = 1.0
    length2: float = 1.0
    mass1: float = 1.5
    mass2: float = 1.0
    gravity: float = 9.81
    near: Float[Array, " 6"] = eqx.field(converter=vector, default=(0.6, 0, 0.8, 1.08, 0.64, 0.2))  # pyright: ignore[reportAssignmentType]
    speed: Float[Array, " 6"] = eqx.field(converter=vector, default=(0, 1, 0, 0.4, 0.7, 0))  # pyright: ignore[reportAssignmentType]

    def kinetic_energy(self, t, q, v):
        """T = (m1 |v1|^2 + m2 |v2|^2) / 2 [J]."""
        return 0.5 * (self.mass1 * (v[:3] @ v[:3]) + self.mass2 * (v[3:] @ v[3:]))

    def potential_energy(self, t, q):
        """V = g (m1 z1 + m2 z2) [J]."""
        return self.gravity * (self.mass1 * q[2] + self.mass2 * q[5])

    def force(self, t, q, v, w, u):
        """Forces on elbow and tip, if there is a control [N], shape (6,)."""
        return jnp.zeros_like(q) if u is None else u

    def position_constraints(self, t, q):
        """Links [m^2] and surface, shape (3,)."""
        first, second = q[:3], q[3:] - q[:3]
        links = (first @ first - self.length1**2, second @ second - self.length2**2)
        return jnp.stack([*links, self.surface(q[3:])])

    def labels(self) -> Labels:
        return Labels(
            coordinates=("x1", "y1", "z1", "x2", "y2", "z2"),
            units=("m",) * 6,
            constraints=("link 1", "link 2", "surface"),
            constraint_units=("m^2", "m^2", "m" if isinstance(self.surface, Plane) else "-"),
            inputs=("Fx1", "Fy1", "Fz1", "Fx2", "Fy2", "Fz2"),
            input_units=("N",) * 6,
        )

    def points(self, t, q) -> Points:
        """The arm, and of an ellipsoid its sections through the centre."""
        sections = self.surface.sections() if isinstance(self.surface, Ellipsoid) else {}
        return Points(
            {"base": jnp.zeros_like(q[:3]), "elbow": q[:3], "tip": q[3:]},
            links=(("base", "elbow", "tip"),),
            outlines=sections,
            trace=("tip",),
            fixed=("base",),
        )

    def start(self) -> tuple[Float[Array, " 6"], Float[Array, " 6"]]:
        """The consistent state nearest to `near` and `speed` [m, m/s], each of shape (6,)."""
        state = consistent_state(self, self.near, self.speed)
        return state.q, state.v

    def contact_force(self, q, multipliers) -> Float[Array, " 3"]:
        """Force of the surface on the tip, `-lam_3 grad s` [N], shape (3,)."""
        return -multipliers[2] * jax.grad(self.surface)(q[3:])


MODELS = (
    Model(
        name="arm",
        summary="plane arm of two point masses, in redundant Cartesian coordinates",
        source="Shemelova, constraint perturbation equations, example; numbers of our own",
        place=17,
        system=PointMassArm,
        formulation=stabilized,
        t1=10.0,
        study=ConstraintStudy(t1=0.5, dt=0.01, deviation=3e-3),
        rest="no force acts on it; " + COASTING,
    ),
    Model(
        name="surface-arm",
        summary="spatial arm of two point masses whose tip stays on an ellipsoid",
        source="Krasinskaya, Krasinskii (2013), introduction; numbers of our own",
        place=18,
        system=SurfaceArm,
        formulation=stabilized,
        t1=5.0,
        study=ConstraintStudy(t1=0.5, dt=0.01, deviation=3e-3),
        rest=Rest(
            guess=lambda _: jnp.array([0.72, 0.42, -0.55, 1.35, 0.8, 0.13]),
            remark="elbow hanging, tip high on the ellipsoid; one of several",
        ),
    ),
)
