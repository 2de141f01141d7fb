"""CasADi's forward and adjoint sensitivities of the final state, for gains or a controller."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import package, Problem
from .casadi_codes import algebraic, compile_options, MAX_STEPS
from .mechanics import acceleration, Declaration, declare, derive


def gradient(
    problem: Problem, solver: str, tolerance: float, t1: float, parameters: np.ndarray,
    target: np.ndarray, starts: np.ndarray, width: int, *, forward: bool,
) -> Callable[[], np.ndarray]:  # fmt: skip
    """The gradient of the mean squared distance of the last coordinates from a target.

    Args:
        problem: the mechanism.
        solver: "cvodes" on the explicit form, "idas" on the index-1 form.
        tolerance: relative and absolute.
        t1: end time [s].
        parameters: gains K_D, K_P as full matrices by rows, or weights A, a, B, b of a network.
        target: wanted values of the last coordinates.
        starts: (count, 2n).
        width: neurons of the network that drives the last mass; 0 for the gains.
        forward: forward sensitivities; otherwise adjoint.

    Returns:
        A function without arguments that returns the gradient (p,).
    """
    ca = package("casadi")
    dae = _equations(problem, solver, width)
    settings = {"reltol": tolerance, "abstol": tolerance, "max_num_steps": MAX_STEPS}
    if solver == "cvodes":
        settings |= {"linear_multistep_method": "bdf"}
    settings |= compile_options()
    run = ca.integrator("run", solver, dae, 0.0, t1, settings)
    slope = _slope(run, len(problem.q), target, len(parameters), forward)
    return lambda: np.mean([np.array(slope(y, parameters)).ravel() for y in starts], axis=0)


def _slope(run: Any, n: int, target: np.ndarray, size: int, forward: bool) -> Any:
    """The gradient of one trajectory's cost as a function of its start and the parameters."""
    ca = package("casadi")
    y, p = ca.MX.sym("y", 2 * n), ca.MX.sym("p", size)
    off = run(x0=y, p=p)["xf"][n - len(target) : n] - target
    if forward:
        found = 2 * ca.jtimes(off, p, ca.MX(ca.DM.eye(size))).T @ off
    else:
        found = ca.gradient(ca.dot(off, off), p)
    return ca.Function("slope", [y, p], [found])


def _equations(problem: Problem, solver: str, width: int) -> dict[str, Any]:
    """The differential equations with parameters as symbols."""
    ca = package("casadi")
    declaration = declare(problem)
    if width:
        p, u = _network(declaration, width)
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
    return _with_fixed_gains(problem, equations, dae) if width else dae


def _with_fixed_gains(problem: Problem, equations: Any, dae: dict[str, Any]) -> dict[str, Any]:
    ca = package("casadi")
    symbols = [equations.K_D, equations.K_P]
    values = [ca.diag(ca.DM(gains)) for gains in (problem.K_D, problem.K_P)]
    keys = [key for key in ("ode", "alg") if key in dae]
    found = ca.substitute([dae[key] for key in keys], symbols, values)
    return dae | dict(zip(keys, found, strict=True))


def _network(declaration: Declaration, width: int) -> tuple[Any, Any]:
    """Weights and output of `B tanh(A (q, v) + a) + b`; matrices by rows."""
    ca = package("casadi")
    x = ca.vertcat(declaration.q, declaration.v)
    sizes = (width * x.numel(), width, 2 * width, 2)
    p = ca.SX.sym("p", sum(sizes))
    A, a, B, b = ca.vertsplit(p, [0, *np.cumsum(sizes).tolist()])
    hidden = ca.tanh(ca.reshape(A, x.numel(), width).T @ x + a)
    return p, ca.reshape(B, width, 2).T @ hidden + b
