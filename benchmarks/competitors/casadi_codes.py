"""CasADi: SUNDIALS' CVODES and IDAS on its own compiled equations."""

import time
from functools import cache
from typing import Any

import numpy as np

from .base import compiler, MissingCodeError, package, Problem, Run
from .mechanics import acceleration, declare, derive, Equations

# SUNDIALS counts steps from output to output; a run has one output, its end.
MAX_STEPS = 10**6

# Beyond this size the Jacobian matrix of the explicit form has 1e5 operations, which a compiler
# takes minutes for, and Newton's method with it is 20 times slower than functional iteration.
LARGEST_WITH_JACOBIAN = 40


def compile_options() -> dict[str, Any]:
    """Options with which CasADi turns a function into C and compiles it.

    It leaves sources and libraries in the current folder (`harness.scratch_folder`).
    """
    flags = ["-O3", "-march=native", "-ffast-math"]
    return {
        "jit": True,
        "compiler": "shell",
        "jit_options": {"compiler": compiler(), "flags": flags, "cleanup": False},
        "jit_cleanup": False,
    }


def cvodes_adams(problem: Problem, tolerance: float) -> Run:
    """CVODES, Adams' methods with functional iteration, on the explicit form.

    Args:
        problem: what to solve.
        tolerance: relative and absolute.
    """
    method = {"linear_multistep_method": "adams", "nonlinear_solver_iteration": "functional"}
    return _run(problem, "cvodes", tolerance, method)


def cvodes_bdf(problem: Problem, tolerance: float) -> Run:
    """CVODES, backward differentiation with Newton's iteration, on the explicit form."""
    if len(problem.q) > LARGEST_WITH_JACOBIAN:
        raise MissingCodeError(
            f"left out: compiling its Jacobian for {len(problem.q)} coordinates takes minutes"
        )
    return _run(problem, "cvodes", tolerance, {"linear_multistep_method": "bdf"})


def idas(problem: Problem, tolerance: float) -> Run:
    """IDAS on the index-1 form, accelerations and multipliers as algebraic unknowns."""
    return _run(problem, "idas", tolerance, {})


def _run(problem: Problem, solver: str, tolerance: float, method: dict[str, Any]) -> Run:
    """Build, compile and start once."""
    began = time.perf_counter()
    ca = package("casadi")
    settings = {"reltol": tolerance, "abstol": tolerance, "max_num_steps": MAX_STEPS, **method}
    large = len(problem.q) > LARGEST_WITH_JACOBIAN
    if solver == "idas":
        dae, start = index_1(problem), consistent(problem)
    else:
        dae = _without_jacobian(problem) if large else explicit(problem)
        start = {"x0": problem.y}
    if solver == "idas" or not large:
        settings |= compile_options()
    code = ca.integrator("run", solver, dae, 0.0, problem.t1, settings)

    def solve() -> np.ndarray:
        return np.array(code(**start)["xf"]).ravel()

    return Run(solve, time.perf_counter() - began)


def explicit(problem: Problem) -> dict[str, Any]:
    """`d(q, v)/dt = (v, a)`, the multipliers eliminated by sparse factors."""
    ca = package("casadi")
    equations = derive(declare(problem))
    d = equations.declaration
    (a,) = with_gains(problem, equations, acceleration(equations))
    return {"t": d.t, "x": ca.vertcat(d.q, d.v), "ode": ca.vertcat(d.v, a)}


def index_1(problem: Problem) -> dict[str, Any]:
    """`d(q, v)/dt = (v, a)`, `0 = M a + J^T lam - f`, `0 = J a + gamma - Phi`."""
    ca = package("casadi")
    equations = derive(declare(problem))
    d = equations.declaration
    z, residual = algebraic(equations)
    (residual,) = with_gains(problem, equations, residual)
    ode = ca.vertcat(d.v, z[: d.q.numel()])
    return {"t": d.t, "x": ca.vertcat(d.q, d.v), "z": z, "ode": ode, "alg": residual}


def algebraic(equations: Equations) -> tuple[Any, Any]:
    """Unknowns (a, lam), n + m, and the residual that is zero for them."""
    ca = package("casadi")
    n = equations.declaration.q.numel()
    a, lam = ca.SX.sym("a", n), ca.SX.sym("lam", equations.phi.numel())
    motion = equations.mass @ a + equations.jac.T @ lam - equations.force
    constraint = equations.jac @ a + equations.gamma - equations.wanted
    return ca.vertcat(a, lam), ca.vertcat(motion, constraint)


def consistent(problem: Problem) -> dict[str, np.ndarray]:
    """Start of the index-1 form; it is linear in the algebraic unknowns."""
    ca = package("casadi")
    dae = index_1(problem)
    inputs = [dae["t"], dae["x"]]
    zero = ca.DM.zeros(dae["z"].numel())
    (rhs,) = ca.substitute([dae["alg"]], [dae["z"]], [zero])
    matrix = ca.jacobian(dae["alg"], dae["z"])
    results = [np.array(x) for x in ca.Function("start", inputs, [matrix, rhs])(0.0, problem.y)]
    return {"x0": problem.y, "z0": np.linalg.solve(results[0], -results[1]).ravel()}


def with_gains(problem: Problem, equations: Equations, *expressions) -> list[Any]:
    """Expressions with the gains of a problem put in."""
    ca = package("casadi")
    values = [ca.diag(ca.DM(gains)) for gains in (problem.K_D, problem.K_P)]
    return ca.substitute(list(expressions), [equations.K_D, equations.K_P], values)


@cache
def compiled_acceleration(problem: Problem) -> Any:
    """`a(t, (q, v))` as a compiled function of CasADi."""
    ca = package("casadi")
    dae = explicit(problem)
    n = len(problem.q)
    inputs, results = [dae["t"], dae["x"]], [dae["ode"][n:]]
    return ca.Function("acceleration", inputs, results, compile_options())


@cache
def _without_jacobian(problem: Problem) -> dict[str, Any]:
    """The explicit form as a compiled function that CasADi does not differentiate further."""
    ca = package("casadi")
    dae = explicit(problem)
    rest = {"enable_forward": False, "enable_reverse": False, "enable_jacobian": False}
    options = {**compile_options(), **rest, "enable_fd": True}
    function = ca.Function("rate", [dae["t"], dae["x"]], [dae["ode"]], options)
    t, x = ca.MX.sym("t"), ca.MX.sym("x", dae["x"].numel())
    return {"t": t, "x": x, "ode": function(t, x)}
