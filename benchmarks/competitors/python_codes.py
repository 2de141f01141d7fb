"""Integrators that call a function of Python for every evaluation: SciPy, sundae, solve_dae.

What they call is compiled by CasADi, and reads and writes its arrays in place, so that what is
timed is the integrator and the call.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .base import MissingCodeError, package, Problem, Run
from .casadi_codes import (
    compile_options,
    compiled_acceleration,
    consistent,
    index_1,
    LARGEST_WITH_JACOBIAN,
)


def dop853(problem: Problem, tolerance: float) -> Run:
    """SciPy's DOP853 on the explicit form."""
    began = time.perf_counter()
    solve_ivp = package("scipy.integrate", "scipy").solve_ivp
    rate = _rate(problem)
    options = {"method": "DOP853", "rtol": tolerance, "atol": tolerance}

    def solve() -> np.ndarray:
        return solve_ivp(rate, (0.0, problem.t1), problem.y, **options).y[:, -1]

    return Run(solve, time.perf_counter() - began)


def scipy_radau(problem: Problem, tolerance: float) -> Run:
    """SciPy's Radau IIA on the explicit form, its Jacobian matrix by differences."""
    began = time.perf_counter()
    solve_ivp = package("scipy.integrate", "scipy").solve_ivp
    rate = _rate(problem)
    options = {"method": "Radau", "rtol": tolerance, "atol": tolerance}

    def solve() -> np.ndarray:
        return solve_ivp(rate, (0.0, problem.t1), problem.y, **options).y[:, -1]

    return Run(solve, time.perf_counter() - began)


def sundae_cvode(problem: Problem, tolerance: float) -> Run:
    """SUNDIALS' CVODE by scikit-sundae, Adams' methods, on the explicit form."""
    began = time.perf_counter()
    cvode = package("sksundae.cvode", "scikit-sundae").CVODE
    rate = _rate(problem)

    def rhs(t, y, yp):
        yp[:] = rate(t, y)

    code = cvode(rhs, method="Adams", **_limits(tolerance))
    return _sundae(code, problem, began, (problem.y,))


def sundials4py_cvode(problem: Problem, tolerance: float) -> Run:
    """SUNDIALS' CVODE by its own bindings, Adams' methods, on the explicit form."""
    began = time.perf_counter()
    core, cvodes = (getattr(package("sundials4py"), x) for x in ("core", "cvodes"))
    rate, view = _rate(problem), core.N_VGetArrayPointer
    _, context = core.SUNContext_Create(core.SUN_COMM_NULL)
    y = core.N_VNew_Serial(problem.y.size, context)

    def rhs(t, y, yp, data):
        del data
        view(yp)[:] = rate(t, view(y))
        return 0

    code = cvodes.CVodeCreate(cvodes.CV_ADAMS, context)
    iteration = core.SUNNonlinSol_FixedPoint(y, 0, context)
    cvodes.CVodeInit(code.get(), rhs, 0.0, y)
    cvodes.CVodeSStolerances(code.get(), tolerance, tolerance)
    cvodes.CVodeSetMaxNumSteps(code.get(), 10**6)
    cvodes.CVodeSetNonlinearSolver(code.get(), iteration)

    def solve(kept=(context, iteration)) -> np.ndarray:
        del kept  # the integrator points into both
        view(y)[:] = problem.y
        cvodes.CVodeReInit(code.get(), 0.0, y)
        cvodes.CVodeSetStopTime(code.get(), problem.t1)
        status, _ = cvodes.CVode(code.get(), problem.t1, y, cvodes.CV_NORMAL)
        if status < 0:
            raise RuntimeError(f"CVODE ended with code {status}")
        return view(y).copy()

    return Run(solve, time.perf_counter() - began)


def sundae_ida(problem: Problem, tolerance: float) -> Run:
    """SUNDIALS' IDA by scikit-sundae on the index-1 form, with its Jacobian matrix compiled."""
    _refuse_large(problem)
    began = time.perf_counter()
    ida = package("sksundae.ida", "scikit-sundae").IDA
    residual, jacobian = _implicit(problem)
    start, rates = _with_rates(problem)
    algebraic = list(range(2 * len(problem.q), len(start)))
    code = ida(residual, jacfn=jacobian, algebraic_idx=algebraic, **_limits(tolerance))
    return _sundae(code, problem, began, (start, rates))


def radau(problem: Problem, tolerance: float) -> Run:
    """Radau IIA of order 5 by solve_dae on the index-1 form, its Jacobian matrices compiled."""
    _refuse_large(problem)
    began = time.perf_counter()
    solve_dae = package("solve_dae.integrate", "solve_dae").solve_dae
    given, slopes = _implicit(problem)
    start, rates = _with_rates(problem)
    by_rates = np.diag(-(np.arange(start.size) < 2 * len(problem.q)).astype(float))

    def residual(t, y, yp):
        results = np.empty(start.size)
        given(t, y, yp, results)
        return results

    def jacobian(t, y, yp):
        results = np.empty_like(by_rates)
        slopes(t, y, yp, None, 0.0, results)
        return results, by_rates

    options = {"rtol": tolerance, "atol": tolerance, "method": "Radau", "jac": jacobian}

    def solve() -> np.ndarray:
        results = solve_dae(residual, (0.0, problem.t1), start, rates, **options)
        if not results.success:
            raise RuntimeError(results.message)
        return results.y[: 2 * len(problem.q), -1]

    return Run(solve, time.perf_counter() - began)


def _refuse_large(problem: Problem) -> None:
    if len(problem.q) > LARGEST_WITH_JACOBIAN:
        raise MissingCodeError("left out: compiling its dense matrix takes minutes")


def _with_rates(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Start of y = (q, v, a, lam) and of y'; the rates of a and lam do not enter."""
    start, n = np.concatenate(list(consistent(problem).values())), len(problem.q)
    return start, np.concatenate([start[n : 3 * n], np.zeros(len(start) - 2 * n)])


def _limits(tolerance: float) -> dict[str, Any]:
    return {"rtol": tolerance, "atol": tolerance, "max_num_steps": 10**6}


def _sundae(code: Any, problem: Problem, began: float, start) -> Run:
    """A run from start to end, with no output between."""
    span = np.array([0.0, problem.t1])

    def solve() -> np.ndarray:
        results = code.solve(span, *start)
        if not results.success:
            raise RuntimeError(results.message)
        return np.array(results.y[-1][: 2 * len(problem.q)])

    return Run(solve, time.perf_counter() - began)


def _rate(problem: Problem) -> Callable:
    """`d(q, v)/dt` as a function of Python that calls compiled code once."""
    n = len(problem.q)
    call, (t_in, y_in), (a,) = _in_place(compiled_acceleration(problem))

    def rate(t, y):
        t_in[0], y_in[:] = t, y
        call()
        return np.concatenate([y[n:], a])

    return rate


@cache
def _implicit(problem: Problem) -> tuple[Callable, Callable]:
    """Residual of `F(t, y, y') = 0` for y = (q, v, a, lam), and its matrix dF/dy + c dF/dy'."""
    ca = package("casadi")
    dae = index_1(problem)
    y, size = ca.vertcat(dae["x"], dae["z"]), dae["x"].numel()
    total = y.numel()
    right = ca.vertcat(dae["ode"], dae["alg"])
    options = compile_options()
    value = ca.Function("residual", [dae["t"], y], [ca.densify(right)], options)
    slopes = ca.densify(ca.jacobian(right, y))
    matrix = ca.Function("matrix", [dae["t"], y], [slopes], options)
    call, (t_in, y_in), (results,) = _in_place(value)
    call_matrix, (t_matrix, y_matrix), (slopes,) = _in_place(matrix)
    slopes = slopes.reshape(total, total).T  # CasADi stores columns
    diagonal = np.arange(size)

    def residual(t, y, yp, res):
        t_in[0], y_in[:] = t, y
        call()
        res[:] = results
        res[:size] -= yp[:size]

    def jacobian(t, y, yp, res, cj, jac):
        del yp, res
        t_matrix[0], y_matrix[:] = t, y
        call_matrix()
        jac[:] = slopes
        jac[diagonal, diagonal] -= cj

    return residual, jacobian


def _in_place(function: Any) -> tuple[Callable, list[np.ndarray], list[np.ndarray]]:
    """A function of CasADi that works on fixed arrays: how to call it, and its arrays."""
    buffer, call = function.buffer()
    inputs = [np.zeros(function.numel_in(i)) for i in range(function.n_in())]
    results = [np.zeros(function.nnz_out(i)) for i in range(function.n_out())]
    if any(function.nnz_in(i) != x.size for i, x in enumerate(inputs)):
        raise MissingCodeError("casadi made sparse arguments where dense ones are needed")
    for i, x in enumerate(inputs):
        buffer.set_arg(i, x.data)
    for i, x in enumerate(results):
        buffer.set_res(i, x.data)

    def evaluate(kept=(function, buffer)):  # the call points into both
        del kept
        call()

    return evaluate, inputs, results
