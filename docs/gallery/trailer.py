"""Trailer in reverse.

A car pushes a trailer back to its lane (dots). With its wheels held straight the two fold up; a
law that steers by the trailer's place and both headings leads them in.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

BASE, DRAWBAR, SPEED = 2.5, 3.0, -1.5  # of the axles [m], [m], of the car [m/s]


def along(angle):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def box(at, heading, back, front):
    corners = jnp.array([[back, 0.8], [front, 0.8], [front, -0.8], [back, -0.8]])
    return at + corners @ jnp.stack([along(heading), along(heading + jnp.pi / 2)])


class Trailer(jaxdae.System):
    """Coordinates: rear axle of the car, headings of car and trailer, steering angle."""

    def axles(self, q):
        return q[:2], q[:2] + BASE * along(q[2]), q[:2] - DRAWBAR * along(q[3])

    def kinetic_energy(self, t, q, v):
        _, rates = jax.jvp(self.axles, (q,), (v,))
        return 0.3 * sum(x @ x for x in rates) + 0.5 * v[2:] @ v[2:]

    def force(self, t, q, v, w, u):
        return jnp.concatenate([u[0] * along(q[2]), jnp.zeros(2), u[1:]])

    def velocity_constraints(self, t, q, v):
        _, rates = jax.jvp(self.axles, (q,), (v,))
        across = along(jnp.stack([q[2], q[2] + q[4], q[3]]) + jnp.pi / 2)
        return jnp.sum(across * jnp.stack(rates, 1), axis=0)

    def points(self, t, q):
        hitch, front, axle = self.axles(q)
        wheel = 0.4 * along(q[2] + q[4])
        places = {"A": hitch, "B": axle, "_c": front - wheel, "_d": front + wheel}
        boxes = {"car": box(hitch, q[2], -0.5, 3.3), "trailer": box(axle, q[3], -1.2, 1.8)}
        return jaxdae.Points(places, (("A", "B"), ("_c", "_d")), outlines=boxes, trace=("B",))


def drive(steering, q, v):
    """Force along the car that keeps its speed, torque that turns the wheels."""
    return jnp.stack([5.0 * (SPEED - along(q[2]) @ v[:2]), 40.0 * (steering - q[4]) - 12.0 * v[4]])


def law(t, q, v, w):
    """Curvature of the car's path for three roots of -0.5 1/m over the way of the trailer."""
    p, place = 0.5, q[1] - DRAWBAR * jnp.sin(q[3])
    fold = (3 * p / DRAWBAR + 1 / DRAWBAR**2) * (q[3] - q[2])
    curvature = DRAWBAR * (p**3 * place - 3 * p**2 * q[3] - fold)
    return drive(jnp.clip(jnp.arctan(BASE * curvature), -0.7, 0.7), q, v)


start = jaxdae.State([0.0, 2.0, 0.0, 0.1, 0.0], [SPEED, 0.0, 0.0, 0.05, 0.0])
gains = jaxdae.Multipliers(jaxdae.Baumgarte(Gamma=10.0))


def run(control):
    return jaxdae.simulate(Trailer(), gains, start, t1=10.0, controller=control)


lane = jnp.stack([jnp.linspace(-18.0, 3.0, 15), jnp.zeros(15)], 1)
runs = {"wheels held straight": run(lambda t, q, v, w: drive(0.0, q, v)), "steered": run(law)}
film(runs, "trailer.gif", marks=lane, over=True)
