"""A pump with its flywheel.

A motor with a current turns the crank; the piston is pushed against a pressure on its way out
alone. Flywheel and gains of the speed controller are those that
`experiments/slider_crank_drive.py` tunes together.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.control import AbstractDynamicController
from jaxdae.multibody import (
    Body,
    Connection,
    ElectricMotor,
    Hinge,
    Load,
    Multibody,
    Slide,
    UserForce,
    Wrench,
)

jax.config.update("jax_enable_x64", True)

MASS, K_P, K_I, RADIUS, SPEED = 34.9, 1.3, 14.0, 0.2, 20.0
CRANK, ROD, DOWN = 0.05, 0.2, (0, -1, 0)


class Pump(Multibody):
    def points(self, t, q):
        poses = self.poses(q)
        flat = {name: x.place[jnp.array([0, 2])] for name, x in poses.items() if name}
        angles = jnp.linspace(0, 2 * jnp.pi, 49)
        rim = RADIUS * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        mark = RADIUS * jnp.stack([-jnp.sin(q[0]), jnp.cos(q[0])])
        corners = jnp.array([[0.04, 0.05], [-0.02, 0.05], [-0.02, -0.05], [0.04, -0.05]])
        return jaxdae.Points(
            flat | {"mark": 0.9 * mark},
            links=(("flywheel", "rod", "piston"), ("flywheel", "mark")),
            outlines={"rim": rim, "piston": flat["piston"] + corners},
            fixed=("flywheel",),
        )


class SpeedControl(AbstractDynamicController):
    """`u = u0 + K_P e + K_I c`, `c' = e`."""

    def initial(self, t, state):
        return jnp.zeros(1)

    def rate(self, t, q, v, w, c):
        return (SPEED - v[0])[None]

    def output(self, t, q, v, w, c):
        return (12.0 + K_P * (SPEED - v[0]) + K_I * c[0])[None]


def pressure(t, motion, w, u):
    force = -100.0 * (1 + jnp.tanh(motion.speeds["piston"][0] / 0.05))
    return Load({"piston": Wrench(jnp.array([1.0, 0.0, 0.0]) * force, jnp.zeros(3))})


inertia = MASS * RADIUS**2 / 4 * jnp.array([1.0, 2.0, 1.0])
shaft, rod = Hinge("crank", DOWN, damping=0.02, armature=0.025), Hinge("rod", DOWN)
bodies = [
    Body("flywheel", shaft, mass=MASS, inertia=inertia),
    Body(
        "rod", rod, "flywheel", (CRANK, 0, 0), mass=0.3, centre=(0.1, 0, 0), inertia=(0, 1e-3, 1e-3)
    ),
    Body("piston", Slide("piston"), None, (CRANK + ROD, 0, 0), mass=1.0),
]
pin = Connection("pin", "rod", "piston", (ROD, 0, 0), axes="xz")
motor = ElectricMotor("voltage", "crank", 0.5, 2e-3, 0.1, gear=5.0)
system = Pump(bodies, [pin], [motor], forces=[UserForce("pressure", pressure)])
start = jaxdae.State(
    jnp.zeros(3), SPEED * jnp.array([1.0, -1 - CRANK / ROD, 0.0]), jnp.array([4.0])
)
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(50.0))
run = jaxdae.simulate(system, gains, start, t1=0.62, controller=SpeedControl())
film(run, "pump.gif")
