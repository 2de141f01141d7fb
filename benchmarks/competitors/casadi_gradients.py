"""CasADi's forward and adjoint sensitivities of the final state, for gains or a controller."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import package, Problem
from .casadi_codes import algebraic, compile_options, MAX_STEPS
from .mechanics import acceleration, Declaration, declare, derive

# Method and code by what it is called here.
NAMES = {"adams": "CVODES Adams", "bdf": "CVODES BDF", "idas": "IDAS"}


def gradient(
    problem: Problem, solver: str, tolerance: float, t1: float, parameters: np.ndarray,
    target: np.ndarray, starts: np.ndarray, layers: tuple[int, ...], *, forward: bool,
) -> Callable[[], np.ndarray]:  # fmt: skip
    """The gradient of the mean squared distance of the last coordinates from a target.

    Args:
        problem: the mechanism.
        solver: "adams" (functional iteration) or "bdf" (Newton's) of CVODES on the explicit form,
            "idas" on the index-1 form.
        tolerance: relative and absolute.
        t1: end time [s].
        parameters: gains K_D, K_P as full matrices by rows, or weights A, a, ..., B, b of a
            network.
        target: wanted values of the last coordinates.
        starts: (count, 2n).
        layers: neurons of the layers of the network that drives the last mass; none for the gains.
        forward: forward sensitivities; otherwise adjoint.

    Returns:
        A function without arguments that returns the gradient (p,).
    """
    ca = package("casadi")
    dae = _equations(problem, solver, layers)
    settings = {"reltol": tolerance, "abstol": tolerance, "max_num_steps": MAX_STEPS}
    if solver != "idas":
        iteration = "functional" if solver == "adams" else "newton"
        settings |= {"linear_multistep_method": solver, "nonlinear_solver_iteration": iteration}
    settings |= compile_options()
    code = "idas" if solver == "idas" else "cvodes"
    run = ca.integrator("run", code, dae, 0.0, t1, settings)
    slope = _slope(run, len(problem.q), target, len(parameters), forward)
    return lambda: np.mean([np.array(slope(y, parameters)).ravel() for y in starts], axis=0)


def _slope(run: Any, n: int, target: np.ndarray, size: int, forward: bool) -> Any:
    """The gradient of one trajectory's cost as a function of its start and the parameters."""
    ca = package("casadi")
    y, p = ca.MX.sym("y", 2 * n), ca.MX.sym("p", size)
    off = run(x0=y, p=p)["xf"][n - len(target) : n] - target
    if forward:
        results = 2 * ca.jtimes(off, p, ca.MX(ca.DM.eye(size))).T @ off
    else:
        results = ca.gradient(ca.dot(off, off), p)
    return ca.Function("slope", [y, p], [results])


def _equations(problem: Problem, solver: str, layers: tuple[int, ...]) -> dict[str, Any]:
    """The differential equations with parameters as symbols."""
    ca = package("casadi")
    declaration = declare(problem)
    if layers:
        p, u = _network(declaration, layers)
        n = declaration.q.numel()
        force = ca.vertcat(ca.SX(n - 2, 1), u)
        equations = derive(dataclasses.replace(declaration, force=force))
    else:
        equations = derive(declaration, full_gains=True)
        p = ca.vertcat(ca.vec(equations.K_D.T), ca.vec(equations.K_P.T))
    d = equations.declaration
    if solver == "idas":
        z, residual = algebraic(equations)
        rest = {"z": z, "ode": ca.vertcat(d.v, z[: d.q.numel()]), "alg": residual}
    else:
        rest = {"ode": ca.vertcat(d.v, acceleration(equations))}
    dae = {"t": d.t, "x": ca.vertcat(d.q, d.v), "p": p, **rest}
    return _with_fixed_gains(problem, equations, dae) if layers else dae


def _with_fixed_gains(problem: Problem, equations: Any, dae: dict[str, Any]) -> dict[str, Any]:
    ca = package("casadi")
    symbols = [equations.K_D, equations.K_P]
    values = [ca.diag(ca.DM(gains)) for gains in (problem.K_D, problem.K_P)]
    keys = [key for key in ("ode", "alg") if key in dae]
    results = ca.substitute([dae[key] for key in keys], symbols, values)
    return dae | dict(zip(keys, results, strict=True))


def _network(declaration: Declaration, layers: tuple[int, ...]) -> tuple[Any, Any]:
    """Weights and output of `B tanh(... tanh(A (q, v) + a)) + b`; matrices by rows."""
    ca = package("casadi")
    x = ca.vertcat(declaration.q, declaration.v)
    pairs = list(itertools.pairwise((x.numel(), *layers, 2)))
    ends = np.cumsum([0, *(k for m, n in pairs for k in (m * n, n))])
    p = ca.SX.sym("p", int(ends[-1]))
    parts = ca.vertsplit(p, ends.tolist())
    for i, (m, n) in enumerate(pairs):
        x = ca.reshape(parts[2 * i], m, n).T @ x + parts[2 * i + 1]
        x = ca.tanh(x) if i + 1 < len(pairs) else x
    return p, x
