"""Problems of the test set for initial value problems that are no mechanisms: `M y' = f(t, y)`.

Equations, starts and ends of F. Mazzia, C. Magherini, Test Set for Initial Value Problem Solvers,
release 2.4, Bari 2008: ROBER, CHEMAKZO, TRANSAMP, RINGMOD and WHEEL. Each is written once, for any
module with `sin`, `exp` and so on: this library's declaration takes JAX's, codes in C CasADi's.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae import DAE
from jaxdae.results.dae_trajectory import DAETrajectory


@dataclasses.dataclass(frozen=True, eq=False)
class Equations:
    """A problem `M y' = f(t, y)`, from 0 to `t1`.

    Args:
        name: in tables.
        rates: `f(xp, t, y)`, a list, from a module of functions, time and a sequence.
        mass: `M`, shape (n, n), diagonal; rows of zeros come last.
        start: `y(0)`, shape (n,), consistent.
        t1: end time.
        end: published `y(t1)`.
        digits: largest error of what is published, relative as in `floor`.
        index: number of unknowns of index 1, of index 2 and of index 3.
        floor: absolute over relative tolerance, and errors are relative to it and `|y|`.
        shown: what of `y` is published and compared, from `y`.
    """

    name: str
    rates: Callable[[Any, Any, Any], list]
    mass: np.ndarray
    start: np.ndarray
    t1: float
    end: np.ndarray
    digits: float
    index: tuple[int, int, int]
    floor: float = 1.0
    shown: Callable[[np.ndarray], np.ndarray] = np.asarray

    def measured(self, y) -> np.ndarray:
        """What is compared, in units of `floor`."""
        return self.shown(np.asarray(y)) / self.floor

    @property
    def differential(self) -> int:
        """How many unknowns have rates: the first ones."""
        return int(np.count_nonzero(self.mass))


class SemiExplicit(DAE):
    """Such a problem for this library.

    Args:
        equations: the problem.
    """

    equations: Equations = eqx.field(static=True)

    def rate(self, t, y, z, u):
        del u
        return jnp.stack(self.rows(t, y, z)[: y.size]) / np.diag(self.equations.mass)[: y.size]

    def constraints(self, t, y, z, u):
        del u
        return () if z is None else jnp.stack(self.rows(t, y, z)[y.size :])

    def rows(self, t, y, z):
        """`f`; from single numbers, so that it shows which depend on `z`."""
        return self.equations.rates(jnp, t, [*y, *(() if z is None else z)])


def declared(equations: Equations) -> tuple[DAE, Any, Any]:
    """For `jaxdae.solve`: the declaration and the start of its `y` and `z`."""
    start, n = jnp.asarray(equations.start), equations.differential
    return SemiExplicit(equations), start[:n], start[n:] if n < start.size else None


def final(equations: Equations, run: DAETrajectory):
    """All unknowns at the end of a run of `declared`."""
    alone = equations.differential == equations.start.size
    return run.y[-1] if alone else jnp.concatenate([run.y[-1], run.z[-1]])


def robertson() -> Equations:
    """Three reactions with rates from 4e-2 to 3e7."""

    def rates(xp, t, y):
        del xp, t
        slow, middle, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return [middle - slow, slow - middle - fast, fast]

    end = np.array([0.2083340149701255e-07, 0.8333360770334713e-13, 0.9999999791665050])
    start = np.array([1.0, 0.0, 0.0])
    # Small ones to digits of their own.
    return Equations("robertson", rates, np.eye(3), start, 1e11, end, 1e-9, (3, 0, 0), 1e-8)


def akzo_nobel() -> Equations:
    """Two species that react while carbon dioxide is added: five rates and an equilibrium."""
    k1, k2, k3, k4, equilibrium, salt = 18.7, 0.58, 0.09, 0.42, 34.4, 115.83

    def rates(xp, t, y):
        del t
        r1 = k1 * y[0] ** 4 * xp.sqrt(y[1])
        r2, r3 = k2 * y[2] * y[3], k2 / equilibrium * y[0] * y[4]
        r4, r5 = k3 * y[0] * y[3] ** 2, k4 * y[5] ** 2 * xp.sqrt(y[1])
        inflow = 3.3 * (0.9 / 737 - y[1])
        return [
            -2 * r1 + r2 - r3 - r4, -r1 / 2 - r4 - r5 / 2 + inflow, r1 - r2 + r3,
            -r2 + r3 - 2 * r4, r2 - r3 + r5, salt * y[0] * y[3] - y[5],
        ]  # fmt: skip

    start = np.array([0.444, 0.00123, 0.0, 0.007, 0.0, salt * 0.444 * 0.007])
    end = np.array([
        0.1150794920661702, 0.1203831471567715e-2, 0.1611562887407974, 0.3656156421249283e-3,
        0.1708010885264404e-1, 0.4873531310307455e-2,
    ])  # fmt: skip
    mass = np.diag([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    return Equations("akzo-nobel", rates, mass, start, 180.0, end, 1e-12, (6, 0, 0))


def transistor_amplifier() -> Equations:
    """Eight nodes, five capacitors, two transistors.

    Unknowns are the voltages of the capacitors, of which two are between a node and the ground, and
    those of the second node of each of the others; rows of both are added up.
    """
    supply, alpha, r0, r = 6.0, 0.99, 1000.0, 9000.0

    def nodes(y):
        return y[0] + y[5], y[5], y[1], y[2] + y[6], y[6], y[3], y[4] + y[7], y[7]

    def rates(xp, t, y):
        transistor = lambda u: 1e-6 * (xp.exp(u / 0.026) - 1)  # noqa: E731
        u = nodes(y)
        first, second = transistor(u[1] - u[2]), transistor(u[4] - u[5])
        left = (0.1 * xp.sin(200 * math.pi * t) - u[0]) / r0
        middle = (supply - u[3]) / r - alpha * first
        right = (supply - u[6]) / r - alpha * second
        return [
            left / 1e-6, (first - u[2] / r) / 2e-6, middle / 3e-6, (second - u[5] / r) / 4e-6,
            right / 5e-6,
            left + (supply - 2 * u[1]) / r - (1 - alpha) * first,
            middle + (supply - 2 * u[4]) / r - (1 - alpha) * second,
            right - u[7] / r,
        ]  # fmt: skip

    start = np.array([-3.0, 3.0, 3.0, 3.0, 6.0, 3.0, 3.0, 0.0])
    end = np.array([
        -0.5562145012262709e-2, 0.3006522471903042e1, 0.2849958788608128e1, 0.2926422536206241e1,
        0.2704617865010554e1, 0.2761837778393145e1, 0.4770927631616772e1, 0.1236995868091548e1,
    ])  # fmt: skip
    mass = np.diag([1.0] * 5 + [0.0] * 3)
    given = "transistor-amplifier", rates, mass, start, 0.2, end, 1e-9, (8, 0, 0), 1.0
    return Equations(*given, lambda y: np.stack(nodes(y)))


def ring_modulator() -> Equations:
    """Four diodes that mix a signal of 1 kHz with one of 10 kHz; parasitic capacities of 2 pF."""
    c, parasitic, filtered, leak, shunt = 1.6e-8, 2e-12, 1e-8, 25e3, 50.0
    core, primary, secondary = 4.45, 2e-3, 5e-4
    into, out = 36.3, 17.3

    def rates(xp, t, y):
        signal, carrier = 0.5 * xp.sin(2e3 * math.pi * t), 2 * xp.sin(2e4 * math.pi * t)
        diode = lambda u: 40.67286402e-9 * (xp.exp(17.7493332 * u) - 1)  # noqa: E731
        d1, d2 = diode(y[2] - y[4] - y[6] - carrier), diode(-y[3] + y[5] - y[6] - carrier)
        d3, d4 = diode(y[3] + y[4] + y[6] + carrier), diode(-y[2] - y[5] + y[6] + carrier)
        return [
            (y[7] - 0.5 * y[9] + 0.5 * y[10] + y[13] - y[0] / leak) / c,
            (y[8] - 0.5 * y[11] + 0.5 * y[12] + y[14] - y[1] / leak) / c,
            (y[9] - d1 + d4) / parasitic,
            (-y[10] + d2 - d3) / parasitic,
            (y[11] + d1 - d3) / parasitic,
            (-y[12] - d2 + d4) / parasitic,
            (-y[6] / shunt + d1 + d2 - d3 - d4) / filtered,
            -y[0] / core,
            -y[1] / core,
            (0.5 * y[0] - y[2] - out * y[9]) / secondary,
            (-0.5 * y[0] + y[3] - out * y[10]) / secondary,
            (0.5 * y[1] - y[4] - out * y[11]) / secondary,
            (-0.5 * y[1] + y[5] - out * y[12]) / secondary,
            (-y[0] + signal - (50.0 + into) * y[13]) / primary,
            (-y[1] - (600.0 + into) * y[14]) / primary,
        ]

    end = np.array([
        -0.2339057358486745e-1, -0.7367485485540825e-2, 0.2582956709291169, -0.4064465721283450,
        -0.4039455665149794, 0.2607966765422943, 0.1106761861269975, 0.2939904342435596e-6,
        -0.2840029933642329e-7, 0.7267198267264553e-3, 0.7929487196960840e-3,
        -0.7255283495698965e-3, -0.7941401968526521e-3, 0.7088495416976114e-4,
        0.2390059075236570e-4,
    ])  # fmt: skip
    given = "ring-modulator", rates, np.eye(15), np.zeros(15), 1e-3, end
    return Equations(*given, 1e-9, (15, 0, 0))


def wheelset() -> Equations:
    """A railway wheelset on a straight track at 30 m/s, which begins to hunt: index 2.

    As WHEEL, with the four coordinates of the contact points, which index-1 equations determine,
    solved for by hand: the wheels are cones and the rails circles. Unknowns are position and
    angles (x, y, z, theta, phi), their rates, the spin `beta + sin(phi) theta'` over the nominal
    one, whose rate stands alone, and two multipliers (1e4 N), for the contacts at velocity level.
    """
    heavy, spinning, turning, speed, nominal = 16.08, 0.0605, 0.366, 30.0, 0.1
    cone, half, rail = 0.0262, 0.1506, 0.06
    rise, middle = math.tan(cone), half + math.sin(cone) * rail
    # Of Kalker's creepages, in contacts of ellipses.
    shear, poisson, friction, pi = 7.92e10, 0.28, 0.12, 3.1415926
    c11, c22, c23, e_shape, g_shape = 4.72772197, 4.27526987, 1.97203505, 1.3537956, 0.7115218

    def contact(xp, y, side):
        """Of the left (1) or right (-1) wheel: place, radius, slopes, angle, constraint row."""
        x, theta, phi = y[0], y[3], y[4]
        st, ct, sp, cp = xp.sin(theta), xp.cos(theta), xp.sin(phi), xp.cos(phi)
        slope = -side * rise
        # slope st cp = st sp cos(psi) + ct sin(psi)
        size = xp.sqrt(st**2 * sp**2 + ct**2)
        sine = slope * st * cp / size
        cosine = xp.sqrt(1 - sine**2)
        s = (sine * ct - cosine * st * sp) / size
        c = (cosine * ct + sine * st * sp) / size
        level = slope * sp + cp * c
        gradient = -(slope * ct * cp - ct * sp * c + st * s) / level
        # On the circle of the rail: its gradient gives the place, and that the place on the cone.
        root = xp.sqrt(1 + gradient**2)
        place = side * middle - rail * gradient / root
        curved = -(root**3) / rail
        lever = ct * sp * c - st * s
        xi = (place - x - (nominal + rise * half) * lever) / (ct * cp + slope * lever)
        radius = nominal + rise * half + slope * xi
        angle = xp.arctan(((slope * cp - sp * c) * ct + s * st) / (slope * sp + c * cp) * -side)
        row = [
            gradient, -1.0, 0.0,
            gradient * (radius * (-ct * s - c * sp * st) - cp * st * xi),
            -c * radius * sp - cp * xi + gradient * (cp * c * ct * radius - ct * sp * xi),
        ]  # fmt: skip
        return xi, radius, slope, curved, gradient, s, c, angle, row

    def creep(xp, y, side, at, normal, beta):
        """The forces of one contact in the frame of the track."""
        xi, radius, slope, curved, gradient, s, c, angle, _ = at
        sp, cp, sd, cd = xp.sin(y[4]), xp.cos(y[4]), xp.sin(angle), xp.cos(angle)
        st, ct = xp.sin(y[3] / cd), xp.cos(y[3] / cd)
        omega = speed / nominal + beta
        curvature = 0.5 / (radius * xp.sqrt(1 + slope**2))
        curvature += 0.5 * (-curved / xp.sqrt(1 + gradient**2) ** 3)
        pressed = 3 * xp.fabs(normal) * (1 - poisson) * e_shape
        ellipse = (pressed / (2 * pi * curvature * shear * math.sqrt(g_shape))) ** (1 / 3)
        forward, across = st * sp * c + ct * s, ct * sp * c - st * s
        moved = radius * forward + xi * st * cp
        drop = xi * sp - radius * cp * c
        own = (
            -omega * radius * (st * c + ct * sp * s) - y[8] * moved - y[9] * ct * drop,
            omega * radius * cp * s + y[9] * (xi * cp + radius * sp * c),
            -omega * radius * (ct * c - st * sp * s)
            - y[8] * (xi * ct * cp + radius * across) + y[9] * st * drop,
        )  # fmt: skip
        added = (y[5], y[6], speed + y[7])
        w1, w2, w3 = (a + b for a, b in zip(own, added, strict=True))
        rolling = 0.5 * xp.sqrt(
            (own[0] - y[5]) ** 2 + (own[1] - y[6]) ** 2 + (own[2] - speed - y[7]) ** 2
        )
        nu_x = (st * w1 + ct * w3) / rolling
        nu_y = (ct * cd * w1 + side * sd * w2 - st * cd * w3) / rolling
        turned = (-side * sd * omega + cd * y[8]) / rolling
        most = friction * normal
        t_x = -most * xp.tanh(shear * ellipse**2 * c11 * nu_x / most)
        spun = shear * ellipse**3 * c23 * turned
        t_y = -most * xp.tanh((shear * ellipse**2 * c22 * nu_y + spun) / most)
        # Together no more than friction gives.
        scale = 1 / xp.sqrt(xp.fmax((t_x**2 + t_y**2) / most**2, 1.0))
        t_x, t_y = t_x * scale, t_y * scale
        return (st * t_x + ct * cd * t_y, side * sd * t_y, ct * t_x - st * cd * t_y)

    def rates(xp, t, y):
        del t
        st, ct, sp, cp = xp.sin(y[3]), xp.cos(y[3]), xp.sin(y[4]), xp.cos(y[4])
        beta = y[10] - sp * y[8]
        left, right = contact(xp, y, 1), contact(xp, y, -1)
        pressed = [1e4 * (left[-1][i] * y[11] + right[-1][i] * y[12]) for i in range(5)]
        sl, cl, sr, cr = xp.sin(left[-2]), xp.cos(left[-2]), xp.sin(right[-2]), xp.cos(right[-2])
        area = -sl * cr - sr * cl
        normal_left = (cr * pressed[0] - sr * pressed[1]) / area
        normal_right = (-cl * pressed[0] - sl * pressed[1]) / area
        forces = [pressed[0], pressed[1], 0.0 * y[0]]
        moments = [pressed[3], pressed[4], 0.0 * y[0]]
        for side, at, normal in ((1, left, normal_left), (-1, right, normal_right)):
            f = creep(xp, y, side, at, normal, beta)
            xi, radius, s, c = at[0], at[1], at[5], at[6]
            forces = [a + b for a, b in zip(forces, f, strict=True)]
            down, up = radius * s, radius * c
            arms = (
                (-(xi * st + down * ct * cp), -down * sp, down * st * cp - xi * ct),
                (up * ct * cp - xi * ct * sp, xi * cp + up * sp, xi * st * sp - up * st * cp),
                (-(up * st + down * ct * sp), down * cp, down * st * sp - up * ct),
            )
            turned = [sum(a * b for a, b in zip(arm, f, strict=True)) for arm in arms]
            moments = [a + b for a, b in zip(moments, turned, strict=True)]
        spring, lever = 6400.0, -2.0 * 0.19**2 * 6400.0 * y[3]
        omega = speed / nominal + beta
        gyration = turning * y[8] * y[9] * sp - spinning * omega * y[9]
        gyration -= (spinning - turning) * y[8] * sp * y[9]
        return [
            y[5], y[6], y[7], y[8], y[9],
            (forces[0] - 2 * spring * y[0]) / heavy,
            forces[1] / heavy - 9.81,
            (forces[2] - 2 * spring * y[2]) / heavy,
            (gyration + moments[0] + cp * lever) / (turning * cp),
            (spinning * omega * y[8] * cp + (spinning - turning) * y[8] * sp * y[8] * cp
             + moments[1]) / turning,
            (moments[2] + sp * lever) / spinning,
            *(sum(at[-1][i] * y[5 + i] for i in range(5)) for at in (left, right)),
        ]  # fmt: skip

    start = np.zeros(13)
    start[:5] = 0.14941e-2, 0.40089e-6, 0.11241e-5, -0.28573e-3, 0.26459e-3
    start[11:] = -0.83593e-2, -0.74144e-2
    end = np.array([
        0.86355386965811e-2, 0.13038281022727e-4, -0.93635784016818e-4, -0.13642299804033e-1,
        0.15292895005422e-2, -0.76985374142666e-1, -0.25151106429207e-3, 0.20541188079539e-2,
        -0.23904837703692, -0.13633468454173e-1, -0.24421377661131,
    ])  # fmt: skip

    def shown(y):
        return np.append(y[:10], y[10] - np.sin(y[4]) * y[8])

    mass = np.diag([1.0] * 11 + [0.0] * 2)
    given = "wheelset", rates, mass, start, 10.0, end
    return Equations(*given, 1e-6, (11, 2, 0), 1.0, shown)
