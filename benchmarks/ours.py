"""This library in the benchmarks: the one place that says how it is called."""

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from problems import Case

import jaxdae
from jaxdae import simulate, State
from jaxdae.solvers import RK4
from jaxdae.systems.precision import in_dtype

Backend = Literal["plain", "native"]
BACKENDS: tuple[Backend, ...] = ("native", "plain")
END = diffrax.SaveAt(t1=True)


def label(backend: Backend) -> str:
    """Name in tables."""
    return f"jaxdae, {backend}"


def final(run: jaxdae.Trajectory) -> jax.Array:
    """The last saved (q, v), shape (2n,)."""
    return jnp.concatenate([run.q[-1], run.v[-1]])


def rate(case: Case, dtype: Any = jnp.float64) -> Callable[[Any, jax.Array], jax.Array]:
    """`d(q, v)/dt` as a function of `(t, (q, v))`."""
    n = len(case.problem.q)
    system, formulation = in_dtype((case.system, case.formulation), dtype)

    def function(t, y):
        found = formulation.vector_field(system, t, State(y[:n], y[n:]), None)
        return jnp.concatenate([found.q, found.v])

    return function


def rk4_loop(function: Callable, steps: int, h: float) -> Callable[[jax.Array], jax.Array]:
    """Classical Runge-Kutta steps in a plain loop, for one trajectory."""

    def step(i, y):
        t = h * i.astype(y.dtype)
        k1 = function(t, y)
        k2 = function(t + h / 2, y + h / 2 * k1)
        k3 = function(t + h / 2, y + h / 2 * k2)
        k4 = function(t + h, y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return lambda y: jax.lax.fori_loop(0, steps, step, y)


def batch(case: Case, backend: Backend, steps: int, h: float) -> Callable:
    """Fixed classical Runge-Kutta steps of many starts, (batch, 2n) to (batch, 2n), compiled.

    The precision is that of the starts.
    """
    n = len(case.problem.q)

    def run(y):
        return final(
            simulate(
                case.system, case.formulation, State(y[:n], y[n:]), t1=steps * h, dt=h,
                solver=RK4(), saveat=END, throw=False, backend=backend,
            )
        )  # fmt: skip

    return jax.jit(jax.vmap(run))


def vmap_loop(case: Case, dtype: Any, steps: int, h: float) -> Callable:
    """The same steps by `jax.vmap` of a bare loop: the least that JAX alone must do."""
    return jax.jit(jax.vmap(rk4_loop(rate(case, dtype), steps, h)))


def adaptive(case: Case, backend: Backend) -> Callable[[float], Callable[[], np.ndarray]]:
    """One adaptive run with the default solver: from a tolerance to a run, (2n,).

    The tolerance is an argument of the compiled program, which all tolerances share.
    """
    n = len(case.problem.q)

    @jax.jit
    def run(y, tolerance):
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        return final(
            simulate(
                case.system, case.formulation, State(y[:n], y[n:]), t1=case.problem.t1,
                stepsize_controller=controller, saveat=END, throw=False, backend=backend,
            )
        )  # fmt: skip

    start = jnp.asarray(case.problem.y)
    return lambda tolerance: lambda: np.asarray(run(start, tolerance))
