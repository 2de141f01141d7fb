"""The equations of motion in CasADi, from energies written anew in its own symbols.

Nothing is shared with `jaxdae.models` but the numbers, so that an agreement of the two says
something. Source of Andrews' mechanism: E. Hairer, G. Wanner, Solving Ordinary Differential
Equations II, VII.7.
"""

import dataclasses
from typing import Any

from .base import package, Problem


@dataclasses.dataclass(frozen=True)
class Declaration:
    """Symbols and energies of a mechanism.

    Args:
        t: time.
        q: coordinates, n.
        v: velocities, n.
        kinetic: T.
        potential: V.
        force: other forces, n, or 0.
        constraints: f, m.
    """

    t: Any
    q: Any
    v: Any
    kinetic: Any
    potential: Any
    force: Any
    constraints: Any


@dataclasses.dataclass(frozen=True)
class Equations:
    """`M a + J^T lam = f`, `J a + gamma = Phi` in symbols.

    Args:
        declaration: what they were derived from.
        mass: M, (n, n).
        force: f, n.
        jac: J, (m, n).
        gamma: m.
        phi: constraints, m.
        phi_dot: their rates, m.
        K_D: damping gains, symbols, (m, m).
        K_P: stiffness gains, symbols, (m, m).
    """

    declaration: Declaration
    mass: Any
    force: Any
    jac: Any
    gamma: Any
    phi: Any
    phi_dot: Any
    K_D: Any
    K_P: Any

    @property
    def wanted(self) -> Any:
        """Phi = -K_D df/dt - K_P f, m."""
        return -(self.K_D @ self.phi_dot) - self.K_P @ self.phi


def declare(problem: Problem) -> Declaration:
    """The declaration of a problem's mechanism."""
    size = len(problem.q)
    return _MECHANISMS[problem.mechanism](size)


def derive(declaration: Declaration, *, full_gains: bool = False) -> Equations:
    """Lagrange's equations of the first kind, by CasADi's own differentiation.

    Args:
        declaration: the mechanism.
        full_gains: gains as full matrices instead of diagonals.
    """
    ca = package("casadi")
    t, q, v = declaration.t, declaration.q, declaration.v
    momentum = ca.gradient(declaration.kinetic, v)
    mass = ca.jacobian(momentum, v)
    transport = ca.jtimes(momentum, q, v)
    force = ca.gradient(declaration.kinetic - declaration.potential, q) - transport
    phi = declaration.constraints
    jac = ca.jacobian(phi, q)
    phi_dot = jac @ v + ca.jacobian(phi, t)
    gamma = ca.jtimes(phi_dot, q, v) + ca.jacobian(phi_dot, t)
    m = phi.numel()
    pattern = ca.Sparsity.dense(m, m) if full_gains else ca.Sparsity.diag(m)
    gains = (ca.SX.sym(name, pattern) for name in ("K_D", "K_P"))
    return Equations(declaration, mass, force + declaration.force, jac, gamma, phi, phi_dot, *gains)


def acceleration(equations: Equations) -> Any:
    """The acceleration, solved by sparse LDL^T factors with a fill-reducing order, n.

    J M^-1 J^T lam = J M^-1 f - (Phi - gamma),    a = M^-1 (f - J^T lam)
    """
    ca = package("casadi")
    mass, jac, force = equations.mass, equations.jac, equations.force
    factors = ca.ldl(mass)
    spread, free = ca.ldl_solve(jac.T, *factors), ca.ldl_solve(force, *factors)
    rhs = jac @ free - (equations.wanted - equations.gamma)
    lam = ca.ldl_solve(rhs, *ca.ldl(jac @ spread))
    return free - spread @ lam


def _two_link(size: int) -> Declaration:
    del size
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", 2), ca.SX.sym("v", 2)
    l1, l2, m1, m2, gravity = 1.0, 0.5, 2.0, 1.0, 9.81
    a, b = q[0], q[0] + q[1]
    elbow = l1 * ca.vertcat(ca.cos(a), ca.sin(a))
    along = l2 * ca.vertcat(ca.cos(b), ca.sin(b))
    centre2 = elbow + along / 2
    velocity = ca.jtimes(centre2, q, v)
    kinetic = (
        m1 * l1**2 / 6 * v[0] ** 2
        + m2 / 2 * ca.dot(velocity, velocity)
        + m2 * l2**2 / 24 * (v[0] + v[1]) ** 2
    )
    potential = gravity * (m1 * elbow[1] / 2 + m2 * centre2[1])
    tip = elbow + along
    constraints = ca.vertcat(tip[1] - 0.5, tip[0] - (0.295953 - 0.6 * t))
    return Declaration(t, q, v, kinetic, potential, ca.SX(2, 1), constraints)


def _chain(size: int) -> Declaration:
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    links = size // 2
    points = ca.reshape(q, 2, links)
    steps = points - ca.horzcat(ca.SX(2, 1), points[:, :-1])
    kinetic = ca.dot(v, v) / (2 * links)
    potential = 9.81 / links * ca.sum2(points[1, :])
    constraints = ca.sum1(steps**2).T - 1.0 / links**2
    return Declaration(t, q, v, kinetic, potential, ca.SX(size, 1), constraints)


def _andrews(size: int) -> Declaration:
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    beta, theta, gamma, phi, delta, omega, epsilon = ca.vertsplit(q)
    e = lambda angle: ca.vertcat(ca.cos(angle), ca.sin(angle))  # noqa: E731
    n = lambda angle: ca.vertcat(ca.sin(angle), -ca.cos(angle))  # noqa: E731
    point_a, point_b = ca.DM([-0.06934, -0.00227]), ca.DM([-0.03635, 0.03273])
    point_c = ca.DM([0.014, 0.072])
    # mass [kg], inertia [kg m^2], mass centre, angle of the bodies K1 ... K7
    bodies = [
        (0.04325, 2.194e-6, 0.00092 * e(beta), beta),
        (0.00365, 4.410e-7, 0.007 * e(beta) - 0.0115 * e(beta + theta), beta + theta),
        (0.02373, 5.255e-6, point_b + 0.01874 * n(gamma) + 0.01043 * e(gamma), gamma),
        (
            0.00706,
            5.667e-7,
            point_a + 0.04 * e(delta) + (0.02 - 0.01421) * n(phi + delta),
            phi + delta,
        ),
        (0.07050, 1.169e-5, point_a + 0.02308 * e(delta) - 0.00916 * n(delta), delta),
        (
            0.00706,
            5.667e-7,
            point_a + 0.04 * n(epsilon) + (0.02 - 0.01421) * e(omega + epsilon),
            omega + epsilon,
        ),
        (0.05498, 1.912e-5, point_a + 0.01228 * n(epsilon) - 0.00449 * e(epsilon), epsilon),
    ]
    kinetic = 0
    for mass, inertia, centre, angle in bodies:
        velocity, spin = ca.jtimes(centre, q, v), ca.jtimes(angle, q, v)
        kinetic = kinetic + mass / 2 * ca.dot(velocity, velocity) + inertia / 2 * spin**2
    spring = point_b + 0.018 * n(gamma) + 0.02 * e(gamma) - point_c
    potential = 4530.0 / 2 * (ca.sqrt(ca.dot(spring, spring)) - 0.07785) ** 2
    joint = 0.007 * e(beta) - 0.028 * e(beta + theta)
    constraints = ca.vertcat(
        joint - point_b - 0.035 * n(gamma),
        joint - point_a - 0.04 * e(delta) - 0.02 * n(phi + delta),
        joint - point_a - 0.04 * n(epsilon) - 0.02 * e(omega + epsilon),
    )
    motor = ca.vertcat(0.033, ca.SX(6, 1))
    return Declaration(t, q, v, kinetic, potential, motor, constraints)


def _plate(size: int) -> Declaration:
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    anchors = ca.DM([[0.0, 0.0, 0.0], [1.0, 0.1, 0.05], [0.3, 0.9, -0.1]]).T
    start = ca.DM([[0.25, -0.1, -0.8], [1.1, 0.3, -0.9], [0.2, 1.0, -0.7]]).T
    # Moments of an area's linear functions: m / 12 on the diagonal of its mass matrix, m / 24 off.
    moments = (ca.DM.eye(3) + ca.DM.ones(3, 3)) / 24
    speeds = ca.reshape(v, 3, 3)
    kinetic = ca.trace(speeds.T @ speeds @ (2 * moments)) / 2
    potential = 9.81 * (q[2] + q[5] + q[8]) / 3
    constraints = _plate_lengths(ca.reshape(q, 3, 3), anchors) - _plate_lengths(start, anchors)
    return Declaration(t, q, v, kinetic, potential, ca.SX(size, 1), constraints)


def _plate_lengths(corners: Any, anchors: Any) -> Any:
    ca = package("casadi")
    a, b, c = ca.horzsplit(corners)
    between = [a - b, b - c, c - a, *ca.horzsplit(corners - anchors)]
    return ca.vertcat(*(ca.dot(x, x) for x in between))


def _car_axis(size: int) -> Declaration:
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    inertia, rest = 10.0 * 1e-2**2 / 2, 0.5
    height = 0.1 * ca.sin(10.0 * t)
    wheel = ca.vertcat(ca.sqrt(1 - height**2), height)
    left, right = q[:2], q[2:]
    springs = (ca.norm_2(left) - rest) ** 2 + (ca.norm_2(right - wheel) - rest) ** 2
    potential = springs / 2 + inertia * (q[1] + q[3])
    constraints = ca.vertcat(ca.dot(left, wheel), ca.dot(left - right, left - right) - 1)
    kinetic = inertia / 2 * ca.dot(v, v)
    return Declaration(t, q, v, kinetic, potential, ca.SX(size, 1), constraints)


def _flexible_slider_crank(size: int) -> Declaration:
    """From velocities of the rod's points: the integrals are those of the test set."""
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    l1, l2, pi = 0.15, 0.3, 3.1415927
    side, density = 0.008, 7870.0
    line = density * side**2 * l2  # mass of the rod, by which all its integrals are scaled
    d, d_dot = q[3:], v[3:]
    mass = line * ca.DM([[0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 8, 1], [0, 0, 1, 2]])
    crossed = line * ((8 / pi**3 - 1 / pi) * d_dot[3] - 16 / pi**3 * d_dot[2]) * d[0]
    crossed += line * d[1] * d_dot[3] / (2 * pi)
    back = line * (16 / pi**3 * d[2] - (8 / pi**3 - 1 / pi) * d[3]) * d_dot[0]
    crossed += back - line * d[3] * d_dot[1] / (2 * pi)
    along = lambda x: line * (2 * x[2] / 3 + x[3] / 6)  # noqa: E731
    across = lambda x: line * 2 / pi * x[0]  # noqa: E731
    lever = line * l2 * (d[2] / 3 + d[3] / 6)
    turning = line * l2 * (d_dot[0] - d_dot[1] / 2) / pi
    s, c = ca.sin(q[0] - q[1]), ca.cos(q[0] - q[1])
    kinetic = (
        (0.002727 + 0.151104 * l1**2) * v[0] ** 2 / 2
        + (0.0045339259 + ca.bilin(mass, d, d) + 2 * lever) * v[1] ** 2 / 2
        + 0.075552 * v[2] ** 2 / 2
        + ca.bilin(mass, d_dot, d_dot) / 2
        + v[0] * v[1] * l1 * (l2 * 0.151104 * c / 2 + s * across(d) + c * along(d))
        + v[0] * l1 * (c * across(d_dot) - s * along(d_dot))
        + v[1] * (turning + crossed)
    )
    stiff = 0.2e12 * side**2 / l2
    bending = (side / l2) ** 2 * pi**4 * (d[0] ** 2 / 24 + 2 * d[1] ** 2 / 3)
    stretch = (16 * d[2] ** 2 - 16 * d[2] * d[3] + 7 * d[3] ** 2) / 3
    rod = l2 + d[3]
    constraints = ca.vertcat(
        l1 * ca.sin(q[0]) + rod * ca.sin(q[1]),
        q[2] - l1 * ca.cos(q[0]) - rod * ca.cos(q[1]),
        q[0] - 150.0 * t,
    )
    potential = stiff * (bending + stretch) / 2
    return Declaration(t, q, v, kinetic, potential, ca.SX(size, 1), constraints)


def _fekete(size: int) -> Declaration:
    ca = package("casadi")
    t, q, v = ca.SX.sym("t"), ca.SX.sym("q", size), ca.SX.sym("v", size)
    points = ca.horzsplit(ca.reshape(q, 3, size // 3))
    pairs = [a - b for i, a in enumerate(points) for b in points[:i]]
    potential = -sum(ca.log(ca.dot(x, x)) for x in pairs) / 2
    constraints = ca.vertcat(*(ca.dot(x, x) - 1 for x in points))
    return Declaration(t, q, v, ca.dot(v, v) / 2, potential, -v / 2, constraints)


_MECHANISMS = {
    "fekete": _fekete,
    "two-link": _two_link,
    "andrews": _andrews,
    "chain": _chain,
    "plate": _plate,
    "car-axis": _car_axis,
    "flexible-slider-crank": _flexible_slider_crank,
}
