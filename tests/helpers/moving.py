"""Runs made up for pictures of mechanisms: a pendulum in the plane, a spiral in space."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.systems import circle, Labels, System


class Turning(System):
    """A rod that turns about the origin, with a wheel at its end."""

    length: float = 2.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def labels(self):
        return Labels(("angle",), ("rad",))

    def points(self, t, q):
        end = self.length * jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])
        return jaxdae.Points(
            {"pivot": jnp.zeros(2), "end": end, "_hidden": end / 2, "same": end},
            links=(("pivot", "_hidden", "end"),),
            lines=(("_hidden", "end"),),
            bodies=(("pivot", "_hidden", "end"),),
            outlines={"wheel": circle(end, 0.5)},
            trace=("end", "_hidden"),
            fixed=("pivot",),
        )


class Spiral(System):
    """A point in space."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def points(self, t, q):
        place = jnp.stack([jnp.cos(q[0]), jnp.sin(q[0]), q[0]])
        outlines = {"ring": circle(place, 0.2, jnp.eye(3)[0], jnp.eye(3)[2])}
        return jaxdae.Points({"point": place}, outlines=outlines, trace=("point",))


def turning_run(system=None, *, rows=5, failed=False, t1=2.0):
    """A quarter of a turn in each second, in rows of constant velocity; the last may be lost."""
    ts = np.linspace(0.0, t1, rows)
    q = np.pi / 2 * ts[:, None]
    v = np.full_like(q, np.pi / 2)
    if failed:
        ts[-1], q[-1], v[-1] = np.inf, np.nan, np.nan
    return SimpleNamespace(
        ts=ts, q=q, v=v, w=np.zeros((rows, 0)), u=None, success=not failed, stats={},
        system=Turning() if system is None else system,
    )  # fmt: skip
