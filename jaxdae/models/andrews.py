"""Andrews' squeezing mechanism."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Reference, Rest
from jaxdae.systems import Labels, Points

_TEST_SET = (
    "F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4, "
    "University of Bari 2008, problem Andrews' squeezing mechanism"
)

# Consistent position of the test set; the mechanism starts from rest.
START_Q = (
    -0.0617138900142764496358948458001,
    0.0,
    0.455279819163070380255912382449,
    0.222668390165885884674473185609,
    0.487364979543842550225598953530,
    -0.222668390165885884674473185609,
    1.23054744454982119249735015568,
)

START_REFERENCE = Reference(
    "accelerations [rad/s^2] and multipliers [N] of the start",
    _TEST_SET,
    t=0.0,
    q=START_Q,
    v=(0.0,) * 7,
    a=(14222.4439199541138705911625887, -10666.8329399655854029433719415) + (0.0,) * 5,
    multipliers=(98.5668703962410896057654982170, -6.12268834425566265503114393122) + (0.0,) * 4,
)

END_REFERENCE = Reference(
    "solution at t = 0.03 s, computed with PSIDE at tolerances 1e-14",
    _TEST_SET,
    t=0.03,
    q=(
        0.1581077119629904e2,
        -0.1575637105984298e2,
        0.4082224013073101e-1,
        -0.5347301163226948,
        0.5244099658805304,
        0.5347301163226948,
        0.1048080741042263e1,
    ),
    v=(
        0.1139920302151208e4,
        -0.1424379294994111e4,
        0.1103291221937134e2,
        0.1929337464421385e2,
        0.5735699284790808,
        -0.1929337464421385e2,
        0.3231791658026955,
    ),
    a=(
        -0.2463176316945196e5,
        0.5185037701610329e5,
        0.3241025686413781e6,
        0.5667493645176213e6,
        0.1674362929479361e5,
        -0.5667493645176222e6,
        0.9826520791458422e4,
    ),
    multipliers=(
        0.1991753333731910e3,
        -0.2975531228015052e2,
        0.2306654119098399e2,
        0.3145271365475927e2,
        0.2264249232082739e2,
        0.1161740700019673e2,
    ),
)


class AndrewsMechanism(AbstractModel):
    r"""Andrews' squeezing mechanism: seven plane bodies joined without friction.

    A motor at the origin O drives a crank; three chains lead from the fixed points A (two of
    them) and B to the point P at the end of the coupler K2 and must meet there. Coordinates are
    seven angles, `q = (beta, Theta, gamma, Phi, delta, Omega, epsilon)`. With

        e(a) = (cos a, sin a),    n(a) = (sin a, -cos a)

    the mass centres, and the angles that turn with the bodies, are

        K1  ra e(beta)                                         beta
        K2  rr e(beta) - da e(beta + Theta)                    beta + Theta
        K3  B + sa n(gamma) + sb e(gamma)                      gamma
        K4  A + zt e(delta) + (e - ea) n(Phi + delta)          Phi + delta
        K5  A + ta e(delta) - tb n(delta)                      delta
        K6  A + u n(epsilon) + (zf - fa) e(Omega + epsilon)    Omega + epsilon
        K7  A + ua n(epsilon) - ub e(epsilon)                  epsilon

    and everything else follows from

        T = sum (m_i |dc_i/dt|^2 + I_i omega_i^2) / 2,     V = c0 (|D - C| - l0)^2 / 2
        D = B + sc n(gamma) + sd e(gamma),  C fixed;       Q_beta = mom, the motor's torque
        P_2 = rr e(beta) - d e(beta + Theta)
        f = (P_2 - B - ss n(gamma),
             P_2 - A - zt e(delta) - e n(Phi + delta),
             P_2 - A - u n(epsilon) - zf e(Omega + epsilon)) = 0       six equations

    One degree of freedom. There is no gravity.

    Source of the numbers, the start and the reference solution: [MazziaMagherini2008;
    HairerWanner1996, section VII.7]. The names of the parameters are theirs.

    Args:
        masses: m1 ... m7 [kg].
        inertias: I1 ... I7 about the mass centres [kg m^2].
        point_a: fixed point A = (xa, ya) [m].
        point_b: fixed point B = (xb, yb) [m].
        point_c: fixed end C = (xc, yc) of the spring [m].
        c0: stiffness of the spring [N/m].
        l0: length of the relaxed spring [m].
        mom: torque of the motor on beta [N m].
        rr: length of the crank K1 [m]; `ra` to its mass centre.
        d: length of the coupler K2 [m]; `da` to its mass centre.
        ss: distance from B to P on K3 [m]; `sa`, `sb` to its mass centre; `sc`, `sd` to D.
        e: length of K4 [m]; `ea` from P to its mass centre.
        zt: length of K5 [m]; `ta`, `tb` to its mass centre.
        zf: length of K6 [m]; `fa` from P to its mass centre.
        u: length of K7 [m]; `ua`, `ub` to its mass centre.
    """

    masses: tuple[float, ...] = (0.04325, 0.00365, 0.02373, 0.00706, 0.07050, 0.00706, 0.05498)
    inertias: tuple[float, ...] = (
        2.194e-6,
        4.410e-7,
        5.255e-6,
        5.667e-7,
        1.169e-5,
        5.667e-7,
        1.912e-5,
    )
    point_a: tuple[float, float] = (-0.06934, -0.00227)
    point_b: tuple[float, float] = (-0.03635, 0.03273)
    point_c: tuple[float, float] = (0.014, 0.072)
    c0: float = 4530.0
    l0: float = 0.07785
    mom: float = 0.033
    rr: float = 0.007
    ra: float = 0.00092
    d: float = 0.028
    da: float = 0.0115
    ss: float = 0.035
    sa: float = 0.01874
    sb: float = 0.01043
    sc: float = 0.018
    sd: float = 0.02
    e: float = 0.02
    ea: float = 0.01421
    zt: float = 0.04
    ta: float = 0.02308
    tb: float = 0.00916
    zf: float = 0.02
    fa: float = 0.01421
    u: float = 0.04
    ua: float = 0.01228
    ub: float = 0.00449

    def mass_centres(self, q: Float[Array, " 7"]) -> Float[Array, "7 2"]:
        """Positions of the mass centres of K1 ... K7 [m], shape (7, 2)."""
        e1, e2, e3, e4, e5, e6, e7 = _directions(q)
        a, b = jnp.asarray(self.point_a, q.dtype), jnp.asarray(self.point_b, q.dtype)
        return jnp.stack(
            [
                self.ra * e1,
                self.rr * e1 - self.da * e2,
                b + self.sa * _normal(e3) + self.sb * e3,
                a + self.zt * e5 + (self.e - self.ea) * _normal(e4),
                a + self.ta * e5 - self.tb * _normal(e5),
                a + self.u * _normal(e7) + (self.zf - self.fa) * e6,
                a + self.ua * _normal(e7) - self.ub * e7,
            ]
        )

    def kinetic_energy(self, t, q, v):
        """T of the seven bodies [J]."""
        _, velocities = jax.jvp(self.mass_centres, (q,), (v,))
        translation = jnp.asarray(self.masses, v.dtype) @ jnp.sum(velocities**2, axis=1)
        rotation = jnp.asarray(self.inertias, v.dtype) @ _body_angles(v) ** 2
        return 0.5 * (translation + rotation)

    def potential_energy(self, t, q):
        """V of the spring between C and the point D of K3 [J]."""
        e3 = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        end = jnp.asarray(self.point_b, q.dtype) + self.sd * e3 + self.sc * _normal(e3)
        spring = end - jnp.asarray(self.point_c, q.dtype)
        return 0.5 * self.c0 * (jnp.sqrt(spring @ spring) - self.l0) ** 2

    def force(self, t, q, v, w, u):
        """Torque of the motor on beta [N m], shape (7,)."""
        return self.mom * jnp.eye(7, dtype=q.dtype)[0]

    def position_constraints(self, t, q):
        """Closure of the three loops at P, x and y of each [m], shape (6,)."""
        e1, e2, e3, e4, e5, e6, e7 = _directions(q)
        a, b = jnp.asarray(self.point_a, q.dtype), jnp.asarray(self.point_b, q.dtype)
        p = self.rr * e1 - self.d * e2
        return jnp.concatenate(
            [
                p - b - self.ss * _normal(e3),
                p - a - self.zt * e5 - self.e * _normal(e4),
                p - a - self.u * _normal(e7) - self.zf * e6,
            ]
        )

    def labels(self) -> Labels:
        loops = ("K3", "K4-K5", "K6-K7")
        return Labels(
            coordinates=("beta", "Theta", "gamma", "Phi", "delta", "Omega", "epsilon"),
            units=("rad",) * 7,
            constraints=tuple(f"{loop} {axis}" for loop in loops for axis in ("x", "y")),
            constraint_units=("m",) * 6,
        )

    def points(self, t, q) -> Points:
        """Pins of the seven bodies; the underscored ones are P again, by the other three chains."""
        e1, e2, e3, e4, e5, e6, e7 = _directions(q)
        a, b, c = (jnp.asarray(x, q.dtype) for x in (self.point_a, self.point_b, self.point_c))
        crank, k5, k7 = self.rr * e1, a + self.zt * e5, a + self.u * _normal(e7)
        return Points(
            {
                "O": jnp.zeros_like(a),
                "A": a,
                "B": b,
                "C": c,
                "_crank": crank,
                "P": crank - self.d * e2,
                "D": b + self.sd * e3 + self.sc * _normal(e3),
                "_P of K3": b + self.ss * _normal(e3),
                "_K5": k5,
                "_P of K4": k5 + self.e * _normal(e4),
                "_K7": k7,
                "_P of K6": k7 + self.zf * e6,
            },
            links=(
                ("O", "_crank", "P"),
                ("A", "_K5", "_P of K4"),
                ("A", "_K7", "_P of K6"),
            ),
            lines=(("C", "D"),),
            bodies=(("B", "D", "_P of K3"),),
            trace=("P", "D"),
            fixed=("O", "A", "B", "C"),
        )

    def start(self) -> tuple[Float[Array, " 7"], Float[Array, " 7"]]:
        """The test set's consistent position, at rest: angles [rad], velocities, shape (7,)."""
        q = jnp.asarray(START_Q)
        return q, jnp.zeros_like(q)


def _body_angles(q: Float[Array, " 7"]) -> Float[Array, " 7"]:
    """Angles that turn with K1 ... K7; being linear, it maps velocities to angular velocities."""
    beta, theta, gamma, phi, delta, omega, epsilon = q
    return jnp.stack([beta, beta + theta, gamma, phi + delta, delta, omega + epsilon, epsilon])


def _directions(q: Float[Array, " 7"]) -> Float[Array, "7 2"]:
    """Unit vectors e(a) = (cos a, sin a) of the body angles."""
    angles = _body_angles(q)
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)


def _normal(direction: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """n(a) = (sin a, -cos a) of e(a): the direction turned back by a right angle."""
    return jnp.stack([direction[1], -direction[0]])


# Fifth digits of a solution with the crank near its far dead position, by continuation from the
# test set's start; the search for the equilibrium needs no more.
_REST = (-3.0008, 3.0457, 0.0414, -0.5338, 0.5244, 0.5338, 1.0481)

MODELS = (
    Model(
        name="andrews",
        summary="Andrews' squeezing mechanism, seven bodies in three loops",
        source="Test Set for IVP Solvers; Hairer, Wanner, VII.7",
        place=5,
        system=AndrewsMechanism,
        formulation=Multipliers,
        t1=0.03,
        study=ConstraintStudy(t1=0.003, dt=2e-5, deviation=1e-4, rate=1e3),
        rest=Rest(
            guess=lambda _: jnp.asarray(_REST),
            remark="driven: the spring holds the motor's constant torque, the crank near its far "
            "dead position",
        ),
    ),
)
