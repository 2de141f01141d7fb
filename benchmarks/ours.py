"""This library in the benchmarks: the one place that says how it is called."""

import inspect
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from problems import Case

import jaxdae
from jaxdae import simulate, State
from jaxdae.kernels import native as native_kernel
from jaxdae.solvers import RK4
from jaxdae.systems.precision import in_dtype

BACKENDS = ("plain", "native")
END = diffrax.SaveAt(t1=True)


def whole_runs() -> bool:
    """Whether `simulate` can run on the native backend; if not, only its right-hand side does."""
    return "backend" in inspect.signature(simulate).parameters


def backend_option(backend: str) -> dict[str, str]:
    """The option of `simulate` that chooses a backend."""
    return {"backend": backend} if whole_runs() else {}


def label(backend: str) -> str:
    """Name in tables."""
    partly = backend == "native" and not whole_runs()
    return f"jaxdae, {backend}" + (" right-hand side" if partly else "")


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


def batch(case: Case, backend: str, dtype: Any, steps: int, h: float) -> Callable:
    """Fixed classical Runge-Kutta steps of many starts, (batch, 2n) to (batch, 2n), compiled."""
    if backend == "native" and not whole_runs():
        function = native_kernel(rate(case, dtype), *_example(case, dtype))
        return jax.jit(jax.vmap(rk4_loop(function, steps, h)))
    n = len(case.problem.q)

    def run(y):
        return final(
            simulate(
                case.system, case.formulation, State(y[:n], y[n:]), t1=steps * h, dt=h,
                solver=RK4(), saveat=END, throw=False, **backend_option(backend),
            )
        )  # fmt: skip

    return jax.jit(jax.vmap(run))


def vmap_loop(case: Case, dtype: Any, steps: int, h: float) -> Callable:
    """The same steps by `jax.vmap` of a bare loop: the least that JAX alone must do."""
    return jax.jit(jax.vmap(rk4_loop(rate(case, dtype), steps, h)))


def adaptive(case: Case, backend: str) -> Callable[[float], Callable[[], np.ndarray]]:
    """One adaptive run with the default solver: from a tolerance to a run, (2n,).

    The tolerance is an argument of the compiled program, which all tolerances share.
    """
    n = len(case.problem.q)
    if backend == "native" and not whole_runs():
        run = _native_rate_run(case)
    else:

        @jax.jit
        def run(y, tolerance):
            controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
            return final(
                simulate(
                    case.system, case.formulation, State(y[:n], y[n:]), t1=case.problem.t1,
                    stepsize_controller=controller, saveat=END, throw=False,
                    **backend_option(backend),
                )
            )  # fmt: skip

    start = jnp.asarray(case.problem.y)
    return lambda tolerance: lambda: np.asarray(run(start, tolerance))


def _native_rate_run(case: Case) -> Callable:
    """diffrax with the native kernel of the right-hand side."""
    function = native_kernel(rate(case), *_example(case, jnp.float64))
    term = diffrax.ODETerm(lambda t, y, args: function(t, y))  # noqa: ARG005

    @jax.jit
    def run(y, tolerance):
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        return diffrax.diffeqsolve(
            term, diffrax.Dopri8(), 0.0, case.problem.t1, None, y,
            saveat=END, stepsize_controller=controller, max_steps=2**16, throw=False,
        ).ys[-1]  # fmt: skip

    return run


def _example(case: Case, dtype: Any) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros((), dtype), jnp.asarray(case.problem.y, dtype)
