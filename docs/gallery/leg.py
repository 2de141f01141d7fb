"""A leg by gradients, before and after.

Lengths and pivots of a walking leg in the arrangement of Joe Klann (US patent 6 260 862), fitted so
that the foot keeps to the ground at constant speed for half a turn of the crank, and is lifted in
the other half (dots). `experiments/leg_linkage.py` found them.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.multibody import Body, Connection, Hinge, Multibody, PrescribedJoint

jax.config.update("jax_enable_x64", True)

FIRST = {
    "crank": 0.1, "arm": 0.345, "knee": (0.405, 0.132), "lower": 0.29,
    "lower_pivot": (-0.28, -0.014), "hip": 0.345, "upper": 0.327, "upper_pivot": (-0.156, 0.312),
    "foot": (0.504, -0.481), "axle": (0.24, 0.46), "phase": 6.02,
}  # fmt: skip
FITTED = {
    "crank": 0.10111,
    "arm": 0.23929,
    "knee": (0.35114, 0.03595),
    "lower": 0.31535,
    "lower_pivot": (-0.20769, -0.12299),
    "hip": 0.63492,
    "upper": 0.47618,
    "upper_pivot": (0.16212, 0.3786),
    "foot": (0.06925, -0.49754),
    "axle": (0.37448, 0.27183),
    "phase": 5.23263,
}  # fmt: skip


class Leg(Multibody):
    def points(self, t, q):
        poses, (pin, hip, _) = self.poses(q), self.loops
        places = {name: x.place for name, x in poses.items() if name}
        places |= {"pin": poses["arm"].point(pin.anchor), "hip": poses["leg"].point(hip.anchor)}
        return jaxdae.Points(
            {name: x[jnp.array([0, 2])] for name, x in places.items()},
            links=(("crank", "arm"), ("lower", "pin"), ("upper", "hip")),
            bodies=(("arm", "pin", "leg"), ("leg", "hip", "foot")),
            trace=("foot",),
            fixed=("crank", "lower", "upper"),
        )


def leg(x):
    def bar(name, place, parent=None):
        hinge = Hinge(name, (0, -1, 0))
        return Body(name, hinge, parent, (place[0], 0, place[1]), mass=1.0, inertia=(1, 1, 1))

    def pivot(name):
        return [a + b for a, b in zip(x["axle"], x[f"{name}_pivot"], strict=True)]

    bodies = [bar("crank", x["axle"]), bar("arm", (x["crank"], 0), "crank")]
    bodies += [bar("leg", x["knee"], "arm"), bar("lower", pivot("lower"))]
    bodies += [bar("upper", pivot("upper"))]
    foot = Body("foot", (), "leg", (x["foot"][0], 0, x["foot"][1]))
    pin = Connection("pin", "arm", "lower", (x["arm"], 0, 0), (x["lower"], 0, 0), "xz")
    hip = Connection("hip", "leg", "upper", (x["hip"], 0, 0), (x["upper"], 0, 0), "xz")
    drive = PrescribedJoint("drive", "crank", lambda t: x["phase"] + 2 * jnp.pi * t)
    return Leg([*bodies, foot], [pin, hip, drive])


def turning(x):
    guess = jnp.array([x["phase"], 2.56, -2.69, 1.03, -0.9])  # about where the loops close
    start = jaxdae.consistent_state(leg(x), guess, jnp.zeros(5))
    gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))
    return jaxdae.simulate(leg(x), gains, start, t1=1.0)


s = jnp.linspace(0.0, 1.0, 13)
ground = jnp.stack([0.2 - 0.4 * s, 0.0 * s], axis=1)
air = jnp.stack(
    [0.4 * (s - 0.5 - jnp.sin(2 * jnp.pi * s) / jnp.pi), 0.1 * jnp.sin(jnp.pi * s) ** 2], 1
)
film(
    {"before": turning(FIRST), "after": turning(FITTED)},
    "leg.gif",
    marks=jnp.concatenate([ground, air]),
)
