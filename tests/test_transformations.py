"""What JAX makes of a run is the same on both backends: each is compared with its steps by hand."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State

GIVEN, CONTROLLED = "given", "controlled"
PID = diffrax.PIDController(rtol=1e-2, atol=1e-2)
# Stiffness, coordinate, a saved time; then start, end and first step.
POINT = np.array([2.0, 0.5, 0.13, 0.01, 0.31, 0.05])
POINTS = np.stack([POINT, POINT * np.array([1.1, 0.9, 1.2, 0.9, 1.1, 1.1])])


class Spring(jaxdae.System):
    """A nonlinear spring in a field that swings."""

    stiffness: Any

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del v, w, u
        return jnp.cos(3 * t) - self.stiffness * q * jnp.exp(q)


def run(x, kind: str, backend: Any, **settings):
    times: dict[str, Any] = {"t1": 0.3, "dt": 0.1}
    if kind == CONTROLLED:
        times = {"t0": x[3], "t1": x[4], "dt": x[5], "stepsize_controller": PID, "max_steps": 16}
    settings = {
        "saveat": diffrax.SaveAt(ts=x[2:3], t1=True), "solver": diffrax.Bosh3(), **times, **settings,
    }  # fmt: skip
    start = State(x[1:2], jnp.full(1, 0.3))
    return simulate(Spring(x[0]), Multipliers(), start, throw=False, backend=backend, **settings)


def judged(ts, q, v):
    return jnp.sum(jnp.sin(ts) * q**2 * v + v**3)


def loss(x, kind: str, backend: Any, adjoint=None):
    """Of a state within a step and of the last one, and of their times."""
    found = run(x, kind, backend, adjoint=adjoint)
    return judged(found.ts, found.q[:, 0], found.v[:, 0])


def by_hand(x, kind: str, ends):
    """The same by the method's formulas: `ends` of steps at this point, which vary with times."""
    force = Spring(x[0]).force
    field = lambda t, y: jnp.stack([y[1], force(t, y[0], y[1], None, None)])  # noqa: E731
    t, y, rows = (x[3] if kind == CONTROLLED else 0.0), jnp.stack([x[1], 0.3 + 0 * x[1]]), []
    for i, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        h = end - begin
        if kind == CONTROLLED:
            # The controller's factors are constants, so all steps grow with the first; the last
            # step ends where the run does.
            h = x[4] - t if i == len(ends) - 2 else x[5] * (h / (ends[1] - ends[0]))
        k1 = field(t, y)
        k2 = field(t + h / 2, y + h / 2 * k1)
        k3 = field(t + 3 * h / 4, y + 3 * h / 4 * k2)
        y1 = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        if begin < POINT[2] <= end:
            s, f1 = (x[2] - t) / h, field(t + h, y1)
            rows = [_hermite(s, h, y, y1, k1, f1)]
        t, y = t + h, y1
    ts, states = jnp.stack([x[2], t]), jnp.stack([*rows, y])
    return judged(ts, states[:, 0], states[:, 1])


def _hermite(s, h, y0, y1, f0, f1):
    """The cubic through the ends of a step with their slopes."""
    basis = (1 + 2 * s) * (1 - s) ** 2, s**2 * (3 - 2 * s), s * (1 - s) ** 2, s**2 * (s - 1)
    return basis[0] * y0 + basis[1] * y1 + h * (basis[2] * f0 + basis[3] * f1)


def derivatives(function, x, second: str = "fr rf rr ff"):
    """First derivatives in both modes, and second ones in all orders."""
    modes = {"f": jax.jacfwd, "r": jax.jacrev}
    first = {name: mode(function)(x) for name, mode in modes.items()}
    orders = second.split()
    return first | {name: modes[name[0]](modes[name[1]](function))(x) for name in orders}


if __name__ == "__main__":
    import sys, time

    jax.config.update("jax_enable_x64", True)
    for kind in (GIVEN, CONTROLLED):
        x = POINT if kind == CONTROLLED else POINT[:3]
        ends = run(POINT, kind, "native", saveat=diffrax.SaveAt(t0=True, steps=True)).ts
        ends = np.asarray(ends[np.isfinite(ends)])
        print(ends)
        t0 = time.process_time()
        h = jax.jit(lambda x: derivatives(lambda x: by_hand(x, kind, ends), x))(x)
        print("hand", time.process_time() - t0)
        for b, adj in (("auto", None), ("plain", diffrax.DirectAdjoint())):
            t0 = time.process_time()
            f = jax.jit(
                jax.vmap(lambda x: derivatives(lambda x: loss(x, kind, b, adj), x, "fr rf"))
            )(POINTS[:, : len(x)])
            print(kind, b, time.process_time() - t0)
            for n in f:
                print(n, np.abs(f[n][0] - h[n]).max() / np.abs(h[n]).max())
                if b == "auto" and n in "fr rf f r".split():
                    print(f[n][0], h[n])
