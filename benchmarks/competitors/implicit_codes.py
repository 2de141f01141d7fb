"""SUNDIALS' IDA and CVODE, and RADAU5, driven from C on `M y' = f(t, y)`.

CasADi writes f and its matrix, which is exact. Nothing of Python runs between start and end of a
run, which is one call by `ctypes`. RADAU5 is the Fortran code of E. Hairer and G. Wanner as the
package `assimulo-testing` brings it, called from C without that package's own interface.
"""

import contextlib
import ctypes
import dataclasses
import importlib.util
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .base import MissingCodeError, package, Problem, Run
from .c_codes import build
from .casadi_codes import algebraic, consistent, explicit, index_1, MAX_STEPS
from .mechanics import declare, derive

_SOURCE = Path(__file__).with_name("implicit_runs.c")
_LIBRARIES = (
    "-lsundials_ida", "-lsundials_cvode", "-lsundials_nvecserial", "-lsundials_sunlinsoldense",
    "-lsundials_sunmatrixdense",
)  # fmt: skip
# Rows of the matrix beyond which C code of it takes minutes to compile.
_LARGEST = 400


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """`M y' = f(t, y)` in CasADi's symbols.

    Args:
        t: time.
        y: unknowns, (n,).
        f: right-hand side, (n,).
        mass: M, (n, n).
        start: consistent y(0).
        rates: y'(0).
        t1: end time.
        floor: absolute over relative tolerance.
        index: how many unknowns are of index 1, 2 and 3.
        chained: how many unknowns have the unknown `by` places later as rate, from the first on.
        shown: what is compared, from y(t1).
    """

    t: Any
    y: Any
    f: Any
    mass: np.ndarray
    start: np.ndarray
    rates: np.ndarray
    t1: float
    floor: float
    index: tuple[int, int, int]
    chained: tuple[int, int]
    shown: Callable[[np.ndarray], np.ndarray]


def ida(system: System, tolerance: float) -> Run:
    """IDA, its matrix exact; unknowns without a rate are left out of the test of errors."""
    library, began = _library(system), time.perf_counter()
    given = system.start.ctypes.data, system.rates.ctypes.data
    code = library.ida_make(*given, tolerance, system.floor * tolerance, MAX_STEPS)
    call = lambda y, work: library.ida_run(code, system.t1, y, given[1], work)  # noqa: E731
    return _run(system, call, bool(code), began)


def cvode(system: System, tolerance: float) -> Run:
    """CVODE, backward differentiation, its matrix exact."""
    library, began = _library(system), time.perf_counter()
    code = library.cvode_make(
        system.start.ctypes.data, tolerance, system.floor * tolerance, MAX_STEPS
    )
    call = lambda y, work: library.cvode_run(code, system.t1, y, work)  # noqa: E731
    return _run(system, call, bool(code), began)


def radau5(system: System, tolerance: float) -> Run:
    """RADAU5, its matrix exact, told the index of unknowns and which are rates of others."""
    fortran = _fortran()
    library, began = _library(system), time.perf_counter()
    first = min(1e-6, 1e-6 * system.t1)

    def call(y, work):
        given = system.t1, tolerance, system.floor * tolerance, first, MAX_STEPS
        return library.radau5_run(fortran, *given, y, work)

    return _run(system, call, True, began)


def _run(system: System, call: Callable, made: bool, began: float) -> Run:
    if not made:
        raise RuntimeError("could not be set up")
    work = (ctypes.c_long * 2)()

    def solve() -> np.ndarray:
        y = system.start.copy()
        status = call(y.ctypes.data, work)
        if status < 0:
            raise RuntimeError(f"ended with code {status}")
        if not np.isfinite(y).all():
            raise RuntimeError("left the domain of the equations")
        return system.shown(y)

    solve()
    counts = {"steps": work[0], "evaluations": work[1]}
    return Run(solve, time.perf_counter() - began, counts)


@cache
def of_equations(equations: Any) -> System:
    """Of a problem of `testset.py`."""
    ca = package("casadi")
    n = equations.start.size
    t, y = ca.SX.sym("t"), ca.SX.sym("y", n)
    f = ca.vertcat(*equations.rates(ca, t, ca.vertsplit(y)))
    at_start = np.array(equations.rates(np, 0.0, equations.start), dtype=float)
    rates = np.linalg.lstsq(equations.mass, at_start, rcond=None)[0]
    return System(
        t, y, f, equations.mass, equations.start, rates, equations.t1, equations.floor,
        equations.index, (0, 0), equations.measured,
    )  # fmt: skip


@cache
def of_mechanism(problem: Problem, form: str) -> System:
    """The equations of motion of a mechanism.

    Args:
        problem: whose.
        form: "explicit", the accelerations solved for by sparse factors and stabilized; "index 1",
            those and multipliers as unknowns; "index 3", with the position constraints themselves.
    """
    ca = package("casadi")
    n, m = len(problem.q), len(problem.K_D)
    shown = lambda y: y[: 2 * n].copy()  # noqa: E731
    if form == "explicit":
        dae, start = explicit(problem), problem.y
        f, y, index = dae["ode"], dae["x"], (2 * n, 0, 0)
    else:
        dae, given = index_1(problem), consistent(problem)
        f, y = ca.vertcat(dae["ode"], dae["alg"]), ca.vertcat(dae["x"], dae["z"])
        start, index = np.concatenate([given["x0"], given["z0"]]), (y.numel(), 0, 0)
        if form == "index 3":
            equations = derive(declare(problem))
            d = equations.declaration
            z, residual = algebraic(equations)
            t, y = d.t, ca.vertcat(d.q, d.v, z)
            f = ca.vertcat(d.v, z[:n], residual[:n], equations.phi)
            dae, index = {"t": t}, (n, n, n + m)
    size = y.numel()
    mass = np.diag((np.arange(size) < 2 * n).astype(float))
    function = ca.Function("f", [dae["t"], y], [f])
    rates = mass @ np.array(function(0.0, start)).ravel()
    chained = (n, n) if form == "explicit" else (2 * n, n)
    given = f, mass, np.ascontiguousarray(start), rates, problem.t1, 1.0
    return System(dae["t"], y, *given, index, chained, shown)


@cache
def _library(system: System) -> ctypes.CDLL:
    ca = package("casadi")
    n = system.y.numel()
    if n > _LARGEST:
        raise MissingCodeError("left out: compiling its matrix takes minutes")
    folder = Path(tempfile.mkdtemp(prefix="implicit-runs-"))
    slopes = ca.densify(ca.jacobian(system.f, system.y))
    parts = {"rate": ca.densify(system.f), "slopes": slopes}
    lines = []
    for name, value in parts.items():
        function = ca.Function(name, [system.t, system.y], [value])
        with contextlib.chdir(folder):  # where CasADi writes to
            function.generate(f"{name}.c", {"with_header": False, "casadi_int": "long long int"})
        lines.append(f'#include "{name}.c"')
        for kind in ("arg", "res", "iw", "w"):
            size = getattr(function, f"sz_{kind}")()
            lines.append(f"#define {name.upper()}_{kind.upper()} {size}")
    rows, columns = np.nonzero(system.mass)
    values = system.mass[rows, columns]
    diagonal = bool(np.all(rows == columns))
    for name, value in {
        "N": n, "ENTRIES": len(rows), "DIAGONAL": int(diagonal),
        "IDENTITY": int(diagonal and len(rows) == n and np.all(values == 1)),
        "CHAINED": system.chained[0], "BY": system.chained[1],
        "INDEX": "{" + ", ".join(map(str, system.index)) + "}",
    }.items():  # fmt: skip
        lines.append(f"#define {name} {value}")
    for name, kind, array in (
        ("ROWS", "int", rows), ("COLUMNS", "int", columns), ("VALUES", "double", values)
    ):  # fmt: skip
        entries = ", ".join(repr(x) for x in array.tolist())
        lines.append(f"static const {kind} {name}[] = {{{entries}}};")
    (folder / "problem.h").write_text("\n".join([*lines, ""]))
    return _declared(build(_SOURCE, folder, [], _LIBRARIES))


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    long, real, pointer = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "ida_make": (pointer, [pointer, pointer, real, real, long]),
        "ida_run": (long, [pointer, real, pointer, pointer, pointer]),
        "cvode_make": (pointer, [pointer, real, real, long]),
        "cvode_run": (long, [pointer, real, pointer, pointer]),
        "radau5_run": (long, [pointer, real, real, real, real, long, pointer, pointer]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@cache
def _fortran() -> Any:
    """The entry of RADAU5 in the package that brings it."""
    found = importlib.util.find_spec("assimulo")
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [path for x in folders for path in Path(x, "lib").glob("radau5.*.so")]
    if not files:
        raise MissingCodeError("assimulo-testing is not installed")
    return ctypes.cast(ctypes.CDLL(str(files[0])).radau5_, ctypes.c_void_p)
