"""This library in the benchmarks: the one place that says how it is called."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from competitors.base import MissingCodeError
from problems import Case

import jaxdae
from jaxdae import simulate, State
from jaxdae.formulations import Multipliers, SparseSolve
from jaxdae.solvers import RK4
from jaxdae.systems.precision import in_dtype

Backend = Literal["plain", "native"]
BACKENDS: tuple[Backend, ...] = ("native", "plain")
# The default one first.
SOLVERS = ("Dopri8", "Tsit5", "Dopri5")
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
        results = formulation.vector_field(system, t, State(y[:n], y[n:]), None)
        return jnp.concatenate([results.q, results.v])

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


def ending(case: Case, backend: Backend, y: jax.Array, **how: Any) -> jax.Array:
    """The final (q, v) of one run from a start, (2n,) to (2n,).

    Args:
        case: the problem.
        backend: of the run.
        y: start; the precision is its own.
        how: times, steps and solver, as `simulate` takes them.
    """
    n = len(case.problem.q)
    start = State(y[:n], y[n:])
    options = {"saveat": END, "throw": False, "backend": backend}
    return final(simulate(case.system, case.formulation, start, **options, **how))


def batch(case: Case, backend: Backend, steps: int, h: float) -> Callable:
    """Fixed classical Runge-Kutta steps of many starts, (batch, 2n) to (batch, 2n), compiled."""
    run = lambda y: ending(case, backend, y, t1=steps * h, dt=h, solver=RK4())  # noqa: E731
    return jax.jit(jax.vmap(run))


def fixed(case: Case, backend: Backend, steps: int) -> Callable[[], np.ndarray]:
    """One run of classical Runge-Kutta steps to the end of the problem, (2n,)."""
    times = {"t1": case.problem.t1, "dt": case.problem.t1 / steps}
    run = jax.jit(lambda y: ending(case, backend, y, solver=RK4(), **times))
    start = jnp.asarray(case.problem.y)
    return lambda: np.asarray(run(start))


def vmap_loop(case: Case, dtype: Any, steps: int, h: float) -> Callable:
    """The same steps by `jax.vmap` of a bare loop: the least that JAX alone must do."""
    return jax.jit(jax.vmap(rk4_loop(rate(case, dtype), steps, h)))


def adaptive(
    case: Case, backend: Backend, solver: str = SOLVERS[0]
) -> Callable[[float], Callable[[], np.ndarray]]:
    """One adaptive run: from a tolerance to a run, (2n,).

    The tolerance is an argument of the compiled program, which all tolerances share.
    """
    method = getattr(diffrax, solver)()

    @jax.jit
    def run(y, tolerance):
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        how = {"t1": case.problem.t1, "solver": method, "stepsize_controller": controller}
        return ending(case, backend, y, **how)

    start = jnp.asarray(case.problem.y)
    return lambda tolerance: lambda: np.asarray(run(start, tolerance))


def for_many_bodies(case: Case) -> Case:
    """The same with the formulation whose cost is linear in the number of bodies."""
    formulation = Multipliers(case.formulation.stabilization, SparseSolve())
    return dataclasses.replace(case, formulation=formulation)


@contextlib.contextmanager
def processors(count: int):
    """Let this process use so many of its processors; kernels made meanwhile have as many threads.

    Args:
        count: number of processors.

    Raises:
        MissingCodeError: where the system cannot do that, or there are fewer.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise MissingCodeError("this system does not let a process choose its processors")
    own = sorted(os.sched_getaffinity(0))
    if len(own) < count:
        raise MissingCodeError(f"this process has {len(own)} processors")
    os.sched_setaffinity(0, own[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
