"""Differential-algebraic equations of the tests: published ones, and some with exact solutions."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

import jaxdae

# Test set for IVP solvers (Mazzia, Magherini), problems ROBER and TRANSAMP: times and references.
ROBERTSON_END = 1e11
ROBERTSON_REFERENCE = np.array([0.2083340149701255e-07, 0.8333360770334713e-13, 0.9999999791665050])
TRANSISTOR_END = 0.2
TRANSISTOR_REFERENCE = np.array([
    -0.5562145012262709e-2, 0.3006522471903042e1, 0.2849958788608128e1, 0.2926422536206241e1,
    0.2704617865010554e1, 0.2761837778393145e1, 0.4770927631616772e1, 0.1236995868091548e1,
])  # fmt: skip


def reaction_rates(k, a, b, c):
    """Of Robertson's three reactions: rates of the first two substances."""
    return -k * a + 1e4 * b * c, k * a - 1e4 * b * c - 3e7 * b**2


class Robertson(jaxdae.DAE):
    """Three reactions, with the sum of the substances as constraint."""

    k: float = 0.04

    def rate(self, t, y, z, u):
        a, b = reaction_rates(self.k, y["a"], y["b"], z["c"])
        return {"a": a, "b": b}

    def constraints(self, t, y, z, u):
        return {"sum": y["a"] + y["b"] + z["c"] - 1}


ROBERTSON_START = {"a": 1.0, "b": 0.0}, {"c": 0.0}


class ImplicitRobertson(jaxdae.DAE):
    """The same by a residual."""

    k: float = 0.04

    def residual(self, t, y, y_dot, u):
        a, b = reaction_rates(self.k, *y)
        return jnp.stack([y_dot[0] - a, y_dot[1] - b, jnp.sum(y) - 1])


class Transistors(jaxdae.DAE):
    """An amplifier of two transistors: eight nodes, five capacitors, a singular matrix."""

    capacity: float = 1e-6
    current: float = 1e-6
    amplification: float = 0.99
    supply: ClassVar[float] = 6.0

    def residual(self, t, y, y_dot, u):
        g12 = self.current * jnp.expm1((y[1] - y[2]) / 0.026)
        g45 = self.current * jnp.expm1((y[4] - y[5]) / 0.026)
        weak, r, r0 = 1 - self.amplification, 9000.0, 1000.0
        currents = jnp.stack([
            (0.1 * jnp.sin(200 * jnp.pi * t) - y[0]) / r0,
            (self.supply - 2 * y[1]) / r - weak * g12,
            g12 - y[2] / r,
            (self.supply - y[3]) / r - self.amplification * g12,
            (self.supply - 2 * y[4]) / r - weak * g45,
            g45 - y[5] / r,
            (self.supply - y[6]) / r - self.amplification * g45,
            -y[7] / r,
        ])  # fmt: skip
        c, d = self.capacity, y_dot
        one, three, five = c * (d[0] - d[1]), 3 * c * (d[3] - d[4]), 5 * c * (d[6] - d[7])
        charges = jnp.stack([one, -one, 2 * c * d[2], three, -three, 4 * c * d[5], five, -five])
        return charges - currents


TRANSISTOR_START = np.array([0.0, 3.0, 3.0, 6.0, 3.0, 3.0, 6.0, 0.0])


class Pendulum(jaxdae.DAE):
    """A point on a circle, by its velocity constraint: index 2."""

    length: float = 1.0
    gravity: float = 9.81

    def rate(self, t, y, z, u):
        return {"q": y["v"], "v": jnp.array([0.0, -self.gravity]) - 2 * z * y["q"]}

    def constraints(self, t, y, z, u):
        return {"rod": 2 * y["q"] @ y["v"]}


class Circle(jaxdae.DAE):
    """Index 2, nonlinear in `z`: `y = (sin t, cos t)`, `z = exp(-t)`."""

    def rate(self, t, y, z, u):
        a, b = y
        off = a - jnp.sin(t)
        return jnp.stack([b + (z**2 - jnp.exp(-2 * t)) * a, -a + b * (z - jnp.exp(-t)) + off])

    def constraints(self, t, y, z, u):
        return y @ y - 1


class Cubic(jaxdae.DAE):
    """Index 1, nonlinear in `z`: `y = sin t`, `z = exp(0.3 t)`."""

    def rate(self, t, y, z, u):
        return -y * z + jnp.cos(t) + jnp.sin(t) * jnp.exp(0.3 * t)

    def constraints(self, t, y, z, u):
        return z**3 * jnp.exp(y) - jnp.exp(0.9 * t + jnp.sin(t))


class Resonator(jaxdae.DAE):
    """A coil, a resistor and a capacitor in a row at a source `u`, with the current in each [A]."""

    resistance: float = 2.0
    inductance: float = 0.5
    capacity: float = 0.1

    def rate(self, t, y, z, u):
        return {"charge": z["current"], "flux": z["coil"]}

    def constraints(self, t, y, z, u):
        return {
            "coil": y["flux"] - self.inductance * z["current"],
            "loop": z["coil"] + self.resistance * z["current"] + y["charge"] / self.capacity - u,
        }


class Growth(jaxdae.DAE):
    """`y' = z`, `z = k y^2`: from one `y = 1 / (1 - k t)`, and no solution any more at `1 / k`."""

    k: Any = 1.0

    def rate(self, t, y, z, u):
        return z

    def constraints(self, t, y, z, u):
        return z - self.k * y**2


class Turned(jaxdae.DAE):
    """`y = (cos t, sin t)`, with a matrix that depends on it and on time, and `z = y[1]`."""

    def rate(self, t, y, z, u):
        return self.mass(t, y) @ jnp.stack([-z, y[0]])

    def mass(self, t, y):
        return jnp.array([[2.0, 0.5], [-0.5, 1.0]]) + y[0] * jnp.eye(2) * jnp.cos(t) ** 2

    def constraints(self, t, y, z, u):
        return z - y[1]


class Chained(jaxdae.DAE):
    """Variables each of which follows the next: from ones all of them are `exp(-t)`."""

    def rate(self, t, y, z, u):
        return -jnp.append(y[1:], z)

    def constraints(self, t, y, z, u):
        return z - y[0]
