"""Runs of many gains at once by fixed steps, from a method's coefficients: one program for all."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations import Baumgarte, Multipliers
from jaxdae.stability import tableau
from jaxdae.systems import constraint_residuals, State


class Residuals(NamedTuple):
    """Violations after each step: `phi` of shape `(steps, batch, m)`, `phi_dot` `(…, m+r)`."""

    phi: np.ndarray
    phi_dot: np.ndarray


class FixedSteps:
    """The rate and the residuals of a system, compiled once for batches of gains and states.

    Args:
        system: what moves.
        formulation: makes one of `Baumgarte` gains.
    """

    def __init__(self, system, formulation: Callable = Multipliers):
        def rate(gains, t, q, v):
            made = formulation(Baumgarte(gains[0], gains[1], gains[2]))
            found = made.vector_field(system, t, State(q, v, jnp.zeros(0)), None)
            return found.q, found.v

        def residuals(t, q, v):
            found = constraint_residuals(system, t, q, v)
            return found.phi, found.phi_dot

        self._rate = jax.jit(jax.vmap(rate, in_axes=(0, None, 0, 0)))
        self._residuals = jax.jit(jax.vmap(residuals, in_axes=(None, 0, 0)))

    def run(self, solver, h: float, steps: int, gains, q, v, t0: float = 0.0) -> Residuals:
        """Steps of an explicit method.

        Args:
            solver: has a tableau.
            h: step [s].
            steps: how many.
            gains: `K_D`, `K_P`, `Gamma`, shape `(batch, 3)`.
            q: coordinates, `(n,)` or `(batch, n)`.
            v: velocities, likewise.
            t0: first time [s].
        """
        a, b, c = tableau(solver)
        gains = np.asarray(gains)
        y = [np.broadcast_to(x, (len(gains), np.shape(x)[-1])) for x in (q, v)]
        found = []
        for k in range(steps):
            rates: list[list[np.ndarray]] = []
            for i in range(b.size):
                at = [
                    x + h * sum(a[i, j] * r[part] for j, r in enumerate(rates))
                    for part, x in enumerate(y)
                ]
                rates.append([np.asarray(x) for x in self._rate(gains, t0 + (k + c[i]) * h, *at)])
            y = [
                x + h * sum(w * r[part] for w, r in zip(b, rates, strict=True))
                for part, x in enumerate(y)
            ]
            found.append([np.asarray(x) for x in self._residuals(t0 + (k + 1) * h, *y)])
        phi, phi_dot = (np.array(x) for x in zip(*found, strict=True))
        return Residuals(phi, phi_dot)

    def residuals(self, t, q, v) -> Residuals:
        """Violations of a batch of states at one time."""
        phi, phi_dot = self._residuals(t, np.asarray(q), np.asarray(v))
        return Residuals(np.asarray(phi), np.asarray(phi_dot))
