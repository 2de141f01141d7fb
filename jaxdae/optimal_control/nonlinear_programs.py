"""Nonlinear programs: SciPy's and IPOPT's solvers for one problem, and how good their answer is."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

Optimizer = Literal["slsqp", "ipopt"]


class ProgramValues(NamedTuple):
    """An objective, equations and inequalities at one point, NumPy arrays of float64.

    Args:
        objective: what is minimized.
        equal: what is to be zero, shape (e,).
        positive: what is to be at least zero, shape (i,).
    """

    objective: Any
    equal: Any
    positive: Any


class NonlinearProgram(NamedTuple):
    """Minimize `objective(x)` where `equal(x) = 0`, `positive(x) >= 0`, `lower <= x <= upper`.

    Args:
        values: `x -> ProgramValues`.
        derivatives: `x -> ProgramValues` of gradients: shapes (n,), (e, n), (i, n).
        curvature: `(x, weights)`, second derivatives of the sum of objective and conditions with
            the weights of an `ProgramValues`, shape (n, n).
        lower: shape (n,), `-inf` where there is none.
        upper: shape (n,), `inf` where there is none.
    """

    values: Callable[[np.ndarray], ProgramValues]
    derivatives: Callable[[np.ndarray], ProgramValues]
    curvature: Callable[[np.ndarray, ProgramValues], np.ndarray]
    lower: np.ndarray
    upper: np.ndarray


class Optimum(NamedTuple):
    """Where a solver has ended.

    Args:
        x: shape (n,), within its bounds to the last bit.
        message: what the solver says of it.
        iterations: its iterations.
        evaluations: of values.
    """

    x: np.ndarray
    message: str
    iterations: int
    evaluations: int


class LagrangeMultipliers(NamedTuple):
    """Lagrange multipliers of a point, by least squares on the condition of stationarity.

        gradient = equal . dequal/dx + positive . dpositive/dx + lower - upper

    with those of inequalities and bounds at least zero, and zero where these are not active: by how
    much the objective grows with what they ask for.

    Args:
        equal: of the equations, shape (e,).
        positive: of the inequalities, shape (i,).
        lower: of the lower bounds, shape (n,).
        upper: of the upper bounds, shape (n,).
        residual: largest component of what is left of the condition, relative to the largest of
            the gradient, or to 1.
    """

    equal: np.ndarray
    positive: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    residual: float


def minimize(
    program: NonlinearProgram,
    x: np.ndarray,
    optimizer: Optimizer,
    iterations: int,
    tolerance: float,
    after: Callable[[ProgramValues], None],
) -> Optimum:
    """Ask a solver for a minimum.

    Args:
        program: the problem.
        x: where it begins, shape (n,).
        optimizer: `"slsqp"` of SciPy, dense, or `"ipopt"` by `ipyopt`.
        iterations: at most.
        tolerance: of the solver's own conditions.
        after: called with the values of each iteration.

    Raises:
        ImportError: when IPOPT is asked for and is not installed.
    """
    counted = _Counted(program)
    x = np.clip(x, program.lower, program.upper)
    solve = _slsqp if optimizer == "slsqp" else _ipopt
    x, message, made = solve(counted, x, iterations, tolerance, after)
    return Optimum(np.clip(x, program.lower, program.upper), message, made, counted.evaluations)


class _Counted:
    """Values and derivatives at the last point, which solvers ask for one by one."""

    def __init__(self, program: NonlinearProgram):
        self.program, self.evaluations = program, 0
        self._values: tuple[np.ndarray, ProgramValues] | None = None
        self._derivatives: tuple[np.ndarray, ProgramValues] | None = None
        # The value where the motion fails: worse than all seen, so that every search turns back.
        self._worst = 1.0

    def values(self, x) -> ProgramValues:
        """At a point; large numbers where it is not finite."""
        if self._values is None or not np.array_equal(x, self._values[0]):
            found = self.program.values(x)
            self.evaluations += 1
            if all(np.isfinite(y).all() for y in found):
                self._worst = max(self._worst, abs(float(found.objective)))
            found = ProgramValues(*(np.where(np.isfinite(y), y, 10 * self._worst) for y in found))
            self._values = x.copy(), found
        return self._values[1]

    def derivatives(self, x) -> ProgramValues:
        """At a point; zero where they are not finite."""
        if self._derivatives is None or not np.array_equal(x, self._derivatives[0]):
            found = self.program.derivatives(x)
            found = ProgramValues(*(np.where(np.isfinite(y), y, 0.0) for y in found))
            self._derivatives = x.copy(), found
        return self._derivatives[1]

    @property
    def last(self) -> ProgramValues:
        """Values at the last point."""
        assert self._values is not None
        return self._values[1]


def _slsqp(counted: _Counted, x, iterations, tolerance, after):
    from scipy import optimize

    program = counted.program
    # SciPy's tolerance is absolute, of the objective: its gradient at the start is the unit.
    unit = 1 / (float(np.abs(counted.derivatives(x).objective).max(initial=0.0)) or 1.0)
    first = counted.values(x)
    conditions = [
        {
            "type": kind,
            "fun": lambda x, name=name: np.array(getattr(counted.values(x), name)),
            "jac": lambda x, name=name: np.array(getattr(counted.derivatives(x), name)),
        }
        for kind, name in (("eq", "equal"), ("ineq", "positive"))
        if getattr(first, name).size
    ]
    done = optimize.minimize(
        lambda x: unit * float(counted.values(x).objective),
        x,
        method="SLSQP",
        jac=lambda x: unit * counted.derivatives(x).objective,
        bounds=optimize.Bounds(program.lower, program.upper),  # pyright: ignore[reportArgumentType]
        constraints=conditions,
        callback=lambda x: after(counted.values(x)),
        options={"ftol": tolerance, "maxiter": iterations},
    )
    return done.x, f"SciPy: {done.message}", int(done.nit)


def _ipopt(counted: _Counted, x, iterations, tolerance, after):
    try:
        import ipyopt
    except ImportError as error:
        raise ImportError(
            "optimize_trajectory(optimizer='ipopt') needs ipyopt, which brings IPOPT along: "
            "pip install 'jaxdae[optimize]'; 'slsqp' needs nothing."
        ) from error
    program, first = counted.program, counted.values(x)
    e, i, n = first.equal.size, first.positive.size, x.size
    rows, columns = np.indices((e + i, n)).reshape(2, -1)

    def gradient(x, out):
        out[:] = counted.derivatives(x).objective

    def conditions(x, out):
        found = counted.values(x)
        out[:] = np.concatenate([found.equal, found.positive])

    def jacobian(x, out):
        found = counted.derivatives(x)
        out[:] = np.concatenate([found.equal, found.positive]).ravel()

    below = np.tril_indices(n)

    def hessian(x, multipliers, factor, out):
        weights = ProgramValues(factor, multipliers[:e], multipliers[e:])
        found = program.curvature(x, weights)[below]
        out[:] = np.where(np.isfinite(found), found, 0.0)

    made = [0]

    def iterated(*state) -> bool:
        made[0] = int(state[1])
        after(counted.last)
        return True

    solver = ipyopt.Problem(
        n, program.lower.astype(float), program.upper.astype(float),
        e + i, np.zeros(e + i), np.where(np.arange(e + i) < e, 0.0, np.inf),
        (rows.tolist(), columns.tolist()), (below[0].tolist(), below[1].tolist()),
        lambda x: float(counted.values(x).objective), gradient, conditions, jacobian, hessian,
        intermediate_callback=iterated,
        ipopt_options={
            "print_level": 0, "sb": "yes",
            "tol": tolerance, "max_iter": iterations,
            # Bounds are bounds: by default IPOPT widens them by 1e-8.
            "bound_relax_factor": 0.0,
        },
    )  # fmt: skip
    multipliers_of_bounds = {"mult_x_L": np.zeros(n), "mult_x_U": np.zeros(n)}
    x, _, status = solver.solve(x.copy(), mult_g=np.zeros(e + i), **multipliers_of_bounds)
    words = {0: "optimal", 1: "optimal to an acceptable level", -1: "iterations exceeded"}
    return x, f"IPOPT: {words.get(status, f'status {status}')}", made[0]


def multipliers(program: NonlinearProgram, x: np.ndarray, active: float) -> LagrangeMultipliers:
    """Lagrange multipliers of a point.

    Args:
        program: the problem.
        x: shape (n,).
        active: how near to its bound an inequality is active, relative to `1 + |bound|`.
    """
    from scipy import optimize

    values, slopes = program.values(x), program.derivatives(x)
    e, n = values.equal.size, x.size
    near = np.flatnonzero(values.positive <= active)
    low, high = (
        np.flatnonzero(np.isfinite(bound) & (np.abs(x - bound) <= active * (1 + np.abs(x))))
        for bound in (program.lower, program.upper)
    )
    unit = np.eye(n)
    columns = np.concatenate([slopes.equal, slopes.positive[near], unit[low], -unit[high]]).T
    scale = float(np.abs(slopes.objective).max(initial=0.0)) or 1.0
    least = np.where(np.arange(columns.shape[1]) < e, -np.inf, 0.0)
    if columns.shape[1]:
        found = optimize.lsq_linear(
            columns, slopes.objective, (least, np.full(least.size, np.inf)), method="bvls"
        ).x
    else:
        found = np.zeros(0)
    left = float(np.abs(slopes.objective - columns @ found).max(initial=0.0)) / max(scale, 1.0)
    out = [np.zeros(e), np.zeros(values.positive.size), np.zeros(n), np.zeros(n)]
    places = [np.arange(e), near, low, high]
    begin = 0
    for values_of, place in zip(out, places, strict=True):
        values_of[place] = found[begin : begin + place.size]
        begin += place.size
    return LagrangeMultipliers(out[0], out[1], out[2], out[3], left)
