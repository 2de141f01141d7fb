"""heyoka: Taylor's method of high order, its steps compiled by LLVM; one run, or many at once."""

import copy
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .base import MissingCodeError, package, Problem, Run
from .casadi_codes import explicit

# Beyond this many states LLVM takes minutes for the unrolled series; heyoka then makes loops.
LARGEST_UNROLLED = 40
# Of more, the decomposition into elementary operations alone takes minutes.
LARGEST = 60
# Up to so many states a tolerance is compiled in about a second.
QUICKLY_COMPILED = 4


def taylor(problem: Problem, tolerance: float) -> Run:
    """One run on the explicit form.

    Args:
        problem: what to solve.
        tolerance: of each step; it decides the order of the series, too.
    """
    began = time.perf_counter()
    hy = package("heyoka")
    code = hy.taylor_adaptive(
        system(problem), problem.y.tolist(), tol=tolerance, compact_mode=_large(problem)
    )

    def solve() -> np.ndarray:
        code.time = 0.0
        code.state[:] = problem.y
        outcome, *_ = code.propagate_until(problem.t1)
        _require(hy, outcome)
        return code.state.copy()

    return Run(solve, time.perf_counter() - began)


def taylor_batch(
    problem: Problem, tolerance: float, starts: np.ndarray
) -> Callable[[], np.ndarray]:
    """Runs from many starts, as many at once as a register is wide, one integrator a thread.

    Args:
        problem: what to solve.
        tolerance: of each step.
        starts: shape (count, 2n), a multiple of the width of a batch.
    """
    hy, columns, code = _batch(problem, tolerance, starts)
    codes = [copy.deepcopy(code) for _ in range(os.cpu_count() or 1)]
    parts = np.array_split(np.arange(len(columns)), len(codes))
    pool = ThreadPoolExecutor(len(codes))
    results = np.empty_like(columns)

    def share(own: Any, numbers: np.ndarray) -> None:
        for i in numbers:
            own.set_time(0.0)
            own.state[:] = columns[i]
            own.propagate_until(problem.t1)
            for outcome, *_ in own.propagate_res:
                _require(hy, outcome)
            results[i] = own.state

    def solve() -> np.ndarray:
        list(pool.map(share, codes, parts))
        return results.swapaxes(1, 2).reshape(starts.shape)

    return solve


def taylor_ensemble(
    problem: Problem, tolerance: float, starts: np.ndarray
) -> Callable[[], np.ndarray]:
    """The same by heyoka's own loop over batches, which copies the integrator for each."""
    hy, columns, code = _batch(problem, tolerance, starts)

    def begin(own: Any, i: int) -> Any:
        own.set_time(0.0)
        own.state[:] = columns[i]
        return own

    def solve() -> np.ndarray:
        results = hy.ensemble_propagate_until_batch(code, problem.t1, len(columns), begin)
        for own, *_ in results:
            for outcome, *_ in own.propagate_res:
                _require(hy, outcome)
        states = np.stack([own.state for own, *_ in results])
        return states.swapaxes(1, 2).reshape(starts.shape)

    return solve


def _batch(problem: Problem, tolerance: float, starts: np.ndarray) -> tuple[Any, np.ndarray, Any]:
    """heyoka, the starts as (batches, 2n, width), and an integrator of one batch."""
    hy = package("heyoka")
    width = hy.recommended_simd_size()
    if len(starts) % width:
        raise ValueError(f"the number of starts must be a multiple of {width}; got {len(starts)}.")
    columns = np.ascontiguousarray(starts.reshape(-1, width, starts.shape[1]).swapaxes(1, 2))
    code = hy.taylor_adaptive_batch(
        system(problem), columns[0], tol=tolerance, compact_mode=_large(problem)
    )
    return hy, columns, code


def unless_slow_to_compile(problem: Problem, make: Callable) -> Callable:
    """How a code is made, or what says that it is left out because LLVM takes long for it.

    Args:
        problem: what to solve.
        make: from a tolerance to a run.
    """

    def left_out(_: float) -> Any:
        raise MissingCodeError("left out by --quick; it compiles for minutes")

    return make if 2 * len(problem.q) <= QUICKLY_COMPILED else left_out


def system(problem: Problem) -> list[tuple[Any, Any]]:
    """`d(q, v)/dt` in heyoka's symbols, from CasADi's operations one by one.

    Raises:
        MissingCodeError: for a problem that is too large to be decomposed.
    """
    if 2 * len(problem.q) > LARGEST:
        raise MissingCodeError(f"left out: decomposing {2 * len(problem.q)} states takes minutes")
    ca, hy = package("casadi"), package("heyoka")
    dae = explicit(problem)
    function = ca.Function("rate", [dae["t"], dae["x"]], [ca.densify(dae["ode"])])
    states = hy.make_vars(*(f"x{i}" for i in range(2 * len(problem.q))))
    rates = _translated(function, [[hy.time], list(states)])
    return list(zip(states, rates, strict=True))


def _translated(function: Any, inputs: list[list[Any]]) -> list[Any]:
    """Results of a function of CasADi for other symbols."""
    ca, hy = package("casadi"), package("heyoka")
    rules: dict[int, Callable] = {
        ca.OP_ADD: lambda x, y: x + y,
        ca.OP_SUB: lambda x, y: x - y,
        ca.OP_MUL: lambda x, y: x * y,
        ca.OP_DIV: lambda x, y: x / y,
        ca.OP_NEG: lambda x: -x,
        ca.OP_SQ: lambda x: x * x,
        ca.OP_TWICE: lambda x: 2.0 * x,
        ca.OP_INV: lambda x: 1.0 / x,
        ca.OP_SQRT: hy.sqrt,
        ca.OP_SIN: hy.sin,
        ca.OP_COS: hy.cos,
        ca.OP_TANH: hy.tanh,
        ca.OP_ASSIGN: lambda x: x,
    }
    work: dict[int, Any] = {}
    results: dict[int, Any] = {}
    for k in range(function.n_instructions()):
        kind = function.instruction_id(k)
        given, made = function.instruction_input(k), function.instruction_output(k)
        if kind == ca.OP_CONST:
            work[made[0]] = hy.expression(function.instruction_constant(k))
        elif kind == ca.OP_INPUT:
            work[made[0]] = inputs[given[0]][given[1]]
        elif kind == ca.OP_OUTPUT:
            results[made[1]] = work[given[0]]
        else:
            work[made[0]] = rules[kind](*(work[i] for i in given))
    return [results[i] for i in range(len(results))]


def _large(problem: Problem) -> bool:
    return 2 * len(problem.q) > LARGEST_UNROLLED


def _require(hy: Any, outcome: Any) -> None:
    if outcome != hy.taylor_outcome.time_limit:
        raise RuntimeError(f"heyoka ended with {outcome}")
