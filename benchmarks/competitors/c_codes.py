"""Integrators driven from C on CasADi's exported code: DOP853, and SUNDIALS' CVODE.

Nothing of Python runs between start and end of a run, which is one call by `ctypes`. The right-hand
side is the C that CasADi writes, compiled into one unit with the integrator (`explicit_runs.c`).
"""

import contextlib
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .base import compiler, MissingCodeError, package, Problem, Run
from .casadi_codes import explicit, MAX_STEPS

_SOURCE = Path(__file__).with_name("explicit_runs.c")
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fopenmp")
_CVODE_LIBRARIES = (
    "-lsundials_cvode",
    "-lsundials_nvecserial",
    "-lsundials_sunlinsoldense",
    "-lsundials_sunmatrixdense",
    "-lsundials_sunnonlinsolfixedpoint",
)


def dop853(problem: Problem, tolerance: float) -> Run:
    """DOP853 with SciPy's coefficients and control of steps, in C, on the explicit form.

    Args:
        problem: what to solve.
        tolerance: relative and absolute.
    """
    began = time.perf_counter()
    library = _library(problem, with_cvode=False)

    def run() -> tuple[np.ndarray, int]:
        y = problem.y.copy()
        tried = library.dop853(problem.t1, tolerance, tolerance, y.ctypes.data)
        if tried < 0:
            raise RuntimeError("DOP853: the step became too small")
        return y, tried

    tried = run()[1]
    # Two more evaluations choose the first step.
    work = {"steps": tried, "evaluations": 12 * tried + 2}
    return Run(lambda: run()[0], time.perf_counter() - began, work)


def dop853_batch(
    problem: Problem, tolerance: float, starts: np.ndarray
) -> Callable[[], np.ndarray]:
    """The same for many starts, one after the other on each of all threads.

    Args:
        problem: what to solve.
        tolerance: relative and absolute.
        starts: shape (count, 2n).
    """
    library = _library(problem, with_cvode=False)

    def solve() -> np.ndarray:
        y = np.array(starts, np.float64, order="C")
        failed = library.dop853_batch(len(y), problem.t1, tolerance, tolerance, y.ctypes.data)
        if failed:
            raise RuntimeError(f"DOP853: {failed} runs failed")
        return y

    return solve


def cvode_adams(problem: Problem, tolerance: float) -> Run:
    """SUNDIALS' CVODE driven from C, Adams' methods with functional iteration."""
    return _cvode(problem, tolerance, adams=True)


def cvode_bdf(problem: Problem, tolerance: float) -> Run:
    """SUNDIALS' CVODE driven from C, backward differentiation, its matrix by differences."""
    return _cvode(problem, tolerance, adams=False)


def rate_seconds(problem: Problem, calls: int) -> float:
    """Time of one evaluation of the right-hand side, called in a loop of C [s].

    Args:
        problem: whose equations.
        calls: number of evaluations.
    """
    library = _library(problem, with_cvode=False)
    y = problem.y.copy()
    began = time.perf_counter()
    library.rate_repeatedly(calls, y.ctypes.data)
    return (time.perf_counter() - began) / calls


def _cvode(problem: Problem, tolerance: float, *, adams: bool) -> Run:
    began = time.perf_counter()
    library = _library(problem, with_cvode=True)
    code = library.cvode_make(int(adams), tolerance, tolerance, MAX_STEPS)
    if not code:
        raise RuntimeError("CVODE could not be set up")

    def solve() -> np.ndarray:
        y = problem.y.copy()
        status = library.cvode_run(code, problem.t1, y.ctypes.data)
        if status < 0:
            raise RuntimeError(f"CVODE ended with code {status}")
        return y

    return Run(solve, time.perf_counter() - began)


@cache
def _library(problem: Problem, *, with_cvode: bool) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="explicit-runs-"))
    sizes = _write_rate(problem, folder)
    return compiled(folder, 2 * len(problem.q), sizes, with_cvode=with_cvode)


def compiled(folder: Path, states: int, sizes: dict[str, int], *, with_cvode: bool) -> ctypes.CDLL:
    """`explicit_runs.c` compiled for this machine.

    Args:
        folder: with `rate.c`; what is made goes there.
        states: number of them.
        sizes: of the work arrays of `rate`, by the names of the macros that say them.
        with_cvode: include SUNDIALS' CVODE.

    Raises:
        MissingCodeError: without a C compiler, or SUNDIALS' headers where they are needed.
    """
    (folder / "stages.h").write_text(_stages())
    defined = {"STATES": states, **sizes}
    macros = [f"-D{k}={x}" for k, x in defined.items()] + ["-DWITH_CVODE"] * with_cvode
    libraries = _CVODE_LIBRARIES if with_cvode else ()
    return _declared(build(_SOURCE, folder, macros, libraries), with_cvode)


def build(source: Path, folder: Path, macros: Sequence[str], libraries: Sequence[str]):
    """A file of C compiled for this machine and loaded.

    Args:
        source: the file.
        folder: of what it includes; what is made goes there.
        macros: options that define them.
        libraries: options that name what it is linked with.

    Raises:
        MissingCodeError: without a C compiler, or SUNDIALS' headers where they are needed.
    """
    made, library = folder / "runs.o", folder / "runs.so"
    compiling = [compiler(), *_FLAGS, "-fPIC", *macros, f"-I{folder}", "-c", source, "-o", made]
    # Linked without those flags: they would have denormal numbers flushed in all of the process.
    linking = [compiler(), "-shared", "-fopenmp", made, "-o", library, *libraries, "-lm"]
    for command in (compiling, linking):
        _run(command)
    return ctypes.CDLL(str(library))


def _run(command: list) -> None:
    done = subprocess.run([str(x) for x in command], check=False, capture_output=True, text=True)
    if done.returncode:
        if "cvode.h" in done.stderr or "ida.h" in done.stderr or "-lsundials" in done.stderr:
            raise MissingCodeError("SUNDIALS with its headers (such as libsundials-dev)")
        errors = [x for x in done.stderr.splitlines() if "error" in x]
        raise RuntimeError((errors or [done.stderr])[0].strip())


def _declared(library: ctypes.CDLL, with_cvode: bool) -> ctypes.CDLL:
    """The library with the types of its functions."""
    long, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "dop853": (long, [real, real, real, pointer]),
        "dop853_batch": (long, [long, real, real, real, pointer]),
        "rate_repeatedly": (None, [long, pointer]),
    }
    if with_cvode:
        types["cvode_make"] = (pointer, [ctypes.c_int, real, real, long])
        types["cvode_run"] = (long, [pointer, real, pointer])
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _write_rate(problem: Problem, folder: Path) -> dict[str, int]:
    """Write CasADi's C of `d(q, v)/dt` as rate.c; the sizes of its work arrays."""
    ca = package("casadi")
    dae = explicit(problem)
    function = ca.Function("rate", [dae["t"], dae["x"]], [ca.densify(dae["ode"])])
    with contextlib.chdir(folder):  # where CasADi writes to
        function.generate("rate.c", {"with_header": False})
    return {
        "RATE_ARG": function.sz_arg(),
        "RATE_RES": function.sz_res(),
        "RATE_IW": function.sz_iw(),
        "RATE_W": function.sz_w(),
    }


def _stages() -> str:
    """The tableau of DOP853 as C: its step, and both its estimates of the error."""
    table = package("scipy.integrate._ivp.dop853_coefficients", "scipy")
    lines = [f"#define STAGES {table.N_STAGES}"]
    for name, weights in (("ERROR_5", table.E5), ("ERROR_3", table.E3)):
        lines.append(f"#define {name} {_sum(weights)}")
    lines.append(
        "static void take_step(double t, double h, const double *y, double k[][N], double *next) {"
    )
    step = "  for (int i = 0; i < N; i++) next[i] = y[i] + h * ({});"
    for s in range(1, table.N_STAGES):
        lines.append(step.format(_sum(table.A[s, :s])))
        lines.append(f"  rate_of(t + {float(table.C[s])!r} * h, next, k[{s}]);")
    lines.append(step.format(_sum(table.B)))
    return "\n".join([*lines, "}", ""])


def _sum(weights: np.ndarray) -> str:
    """The sum of stages with given weights, without those that are zero."""
    return " + ".join(f"{float(x)!r} * k[{j}][i]" for j, x in enumerate(weights) if x)
