"""SciPy's constrained minimizers, called for one start after another.

They keep their state to themselves: no run is saved.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from jaxdae.tuning.constraints import constraint_values, Equality
from jaxdae.tuning.endings import FLAT, in_words, require_a_start, RUNNING
from jaxdae.tuning.parametrizations import resolve
from jaxdae.tuning.problem import Chosen, HistoryRow, TuningProblem
from jaxdae.tuning.result import TuningHistory

# Halvings of a perturbation that leads to no finite evaluation.
_HALVINGS = 60
# Steps are counted here, in evaluations.
# What trust-constr returns that has converged with a constraint violation above `gtol`.
_VIOLATED = 4
_NO_LIMIT = 10**7


class Answer(NamedTuple):
    """An evaluation at a point."""

    loss: Any  # objective
    gradient: Any  # of it, shape (p,)
    values: Any  # of the constraints, shape (c,)
    jacobian: Any  # of them, shape (c, p)

    @property
    def finite(self) -> bool:
        """Whether all of it is."""
        return all(bool(np.isfinite(x).all()) for x in self)


def evaluate(static: TuningProblem, arrays: TuningProblem, point: Array) -> Answer:
    """Objective and constraints with their derivatives."""
    problem = eqx.combine(arrays, static)
    unravel = ravel_pytree(problem.trained)[1]

    def values(x):
        params = resolve(problem.params(unravel(x)))
        found = [constraint_values(c, params) for c in problem.constraints]
        found = jnp.concatenate(found) if found else jnp.zeros(0, point.dtype)
        return found, found

    loss = problem.differentiate(lambda x: problem.loss(unravel(x)), has_aux=True)
    gradient, total = loss(point)
    # Constraints are functions of few parameters; of their own mode nothing is known.
    jacobian, found = jax.jacfwd(values, has_aux=True)(point)
    return Answer(total, gradient, found, jacobian)


class _EndedError(Exception):
    """Leaves SciPy's loop: all steps are made, or there is another reason to stop."""


class ScipyRun:
    """All starts, one after another, with what each has evaluated."""

    ended = False

    def __init__(self, chosen: Chosen, starts: int, spread: float, key: Array, steps: int):
        self.problem, self.steps = chosen.problem, steps
        self.compile_seconds = 0.0
        flat = jax.vmap(lambda x: ravel_pytree(x)[0])
        each = self.problem.first_points(starts, spread, key)
        self._points, self._updates = (np.asarray(flat(x)) for x in each)
        self._seen: list[list[tuple[np.ndarray, Answer]]] = [[] for _ in range(starts)]
        self._found: list[Any] = [None] * starts
        self._running, self._reason, self._best = 0, None, (np.inf, np.inf, 0, 0)
        params, self._names, equalities = resolve(self.problem.params(self.problem.trained)), [], []
        for x in self.problem.constraints:
            size = jax.eval_shape(partial(constraint_values, x), params).size
            self._names += [x.name] * size
            equalities += [isinstance(x, Equality)] * size
        self._equalities = np.array(equalities, bool)

    @property
    def rows(self) -> int:
        """Evaluations of the start that has made most."""
        return max(map(len, self._seen))

    @property
    def evaluations(self) -> int:
        """Of objective and constraints, all starts together."""
        return sum(map(len, self._seen))

    @property
    def history(self) -> TuningHistory:
        """Of all starts; NaN where one has made no evaluation."""
        loss, norm = np.full((2, self.rows, len(self._seen)), np.nan)
        skipped = np.zeros(loss.shape, bool)
        for column, seen in enumerate(self._seen):
            for row, (_, answer) in enumerate(seen):
                loss[row, column], skipped[row, column] = answer.loss, not answer.finite
                norm[row, column] = np.linalg.norm(answer.gradient)
        return TuningHistory(loss, norm, skipped)

    def last(self) -> tuple[int, HistoryRow]:
        """Number of the last evaluation, and what it was, NaN of starts that are not running."""
        row, others = len(self._seen[self._running]) - 1, np.arange(len(self._seen))
        others = others != self._running
        loss, norm, skipped = (x[row] for x in self.history[:3])
        nan = np.where(others, np.nan, 0.0)
        return row, HistoryRow(loss + nan, norm + nan, skipped & ~others)

    def compile(self) -> None:
        """Make the program of an evaluation."""
        began = time.perf_counter()
        arrays, static = eqx.partition(self.problem, eqx.is_array)
        step = jax.jit(partial(evaluate, static))
        self._evaluate = partial(step.lower(arrays, self._points[0]).compile(), arrays)
        self.compile_seconds = time.perf_counter() - began

    def go_on(self, after: Callable[[], str | None]) -> str:
        """Minimize from all starts; `after` each evaluation says if there is a reason to stop."""
        for start in range(len(self._seen)):
            self._running, self._reason = start, None
            try:
                self._found[start] = self._minimized(start, after)
            except _EndedError:
                if self._reason == "callback":
                    break
        if not np.isfinite(self._best[0]):
            first = self._seen[0][0][1]
            bad = ~(np.isfinite(first.values) & np.isfinite(first.jacobian).all(axis=1))
            if bad.any():
                raise ValueError(
                    f"tune: the constraint {self._names[int(np.argmax(bad))]!r} or its derivative "
                    "is not finite at the initial parameters; start where it is."
                )
            require_a_start(self.history.loss[0], self.history.gradient_norm[0])
        return self._reason or "steps"

    def _minimized(self, start: int, after: Callable[[], str | None]) -> Any:
        """What SciPy returns; `None` where no evaluation near the start is finite."""
        from scipy import optimize

        known: dict[bytes, Answer] = {}

        def at(x) -> Answer:
            if x.tobytes() not in known:
                if self._reason is not None or len(self._seen[start]) > self.steps:
                    raise _EndedError
                known[x.tobytes()] = self._evaluated(start, x)
                self._reason = after()
            return known[x.tobytes()]

        x, update = (y[start].astype(float) for y in (self._points, self._updates))
        for _ in range(_HALVINGS * bool(update.any())):
            if at(x + update).finite:
                break
            update = update / 2
        x, first = x + update, at(x + update)
        if not first.finite:
            return None
        # SciPy's tolerances are absolute: the loss or the gradient at the start is the unit.
        unit = 1 / (max(abs(float(first.loss)), float(np.linalg.norm(first.gradient))) or 1.0)
        highest, last = unit * float(first.loss), first

        def loss(x) -> float:
            """Above all others seen where it is not finite, so that every search turns back."""
            nonlocal highest
            if not at(x).finite:
                return highest + abs(highest) + 1.0
            highest = max(highest, unit * float(at(x).loss))
            return unit * float(at(x).loss)

        def read(name: str, rows: Any = ..., factor: float = 1.0) -> Callable:
            """A part of the evaluation, of the last finite one where it is not."""

            def part(x):
                nonlocal last
                last = at(x) if at(x).finite else last
                return factor * np.asarray(getattr(last, name), float)[rows]

            return part

        tolerance, equal = self.problem.tolerance, self._equalities
        if self.problem.optimizer == "slsqp":
            kinds = [(x, rows) for x, rows in (("eq", equal), ("ineq", ~equal)) if rows.any()]
            arguments: dict[str, Any] = {
                "constraints": [
                    {"type": x, "fun": read("values", rows), "jac": read("jacobian", rows)}
                    for x, rows in kinds
                ],
                "options": {"ftol": tolerance**1.5, "maxiter": _NO_LIMIT},
            }
        else:
            zone = np.zeros(equal.size), np.where(equal, 0.0, np.inf)
            how: Any = {"jac": read("jacobian"), "hess": _curvature()}
            condition = optimize.NonlinearConstraint(read("values"), *zone, **how)
            # Its test of the gradient ignores how far from active constraints the barrier has kept
            # it.
            ends = {"xtol": tolerance, "barrier_tol": tolerance, "gtol": 0.0, "maxiter": _NO_LIMIT}
            arguments = {
                "hess": _curvature(),
                "constraints": [condition] if equal.size else [],
                "options": ends,
            }
        name, gradient = self.problem.optimizer, read("gradient", factor=unit)
        return optimize.minimize(loss, x, method=name, jac=gradient, **arguments)

    def _evaluated(self, start: int, x: np.ndarray) -> Answer:
        """Evaluate once more, in the parameters' precision."""
        point = x.astype(self._points.dtype)
        answer = Answer(*map(np.asarray, self._evaluate(point)))
        self._seen[start].append((point, answer))
        if answer.finite:
            # Of the least loss where all constraints hold, and of the least violation until then.
            largest = float(self._relative_violation(start, answer).max(initial=0.0))
            excess = largest if largest > self.problem.tolerance else 0.0
            row = len(self._seen[start]) - 1
            self._best = min(self._best, (excess, float(answer.loss), start, row))
        return answer

    def best(self) -> tuple[int, float, PyTree]:
        """Best start, its loss, and its parameters with parametrizations."""
        point, answer = self._best_seen()
        params = ravel_pytree(self.problem.trained)[1](jnp.asarray(point))
        return self._best[2], float(answer.loss), self.problem.params(params)

    def violations(self) -> dict[str, float]:
        """By how much each constraint is violated at the best point."""
        amounts, names = self._violation(self._best_seen()[1]), dict.fromkeys(self._names)
        return {x: float(amounts[[y == x for y in self._names]].max()) for x in names}

    def ending(self, start: int) -> tuple[str, str]:
        """Why the best start ended, and that in words; "steps" if it has not."""
        answer, tolerance, found = self._best_seen()[1], self.problem.tolerance, self._found[start]
        relative = self._relative_violation(start, answer)
        if np.any(relative > tolerance**0.75):
            worst = self._names[int(np.argmax(relative))]
            violation = self.violations()[worst]
            return "infeasible", f"the constraint {worst!r} is still violated by {violation:.3g}"
        if found is None:
            return in_words(RUNNING, 0.0, tolerance)
        if not self._names and self._best[3] == 0 and not np.any(answer.gradient):
            return in_words(FLAT, float(answer.loss), tolerance)
        if self.problem.optimizer == "trust-constr" and found.status == _VIOLATED:
            # Any violation exceeds a `gtol` of 0; above it has been compared with the tolerance.
            return "converged", "SciPy: the trust region is as small as the tolerance"
        return ("converged" if found.success else "stalled"), f"SciPy: {found.message.lower()}"

    def rows_of(self, start: int) -> int:
        """Evaluations until a start ended."""
        return len(self._seen[start])

    def fit(self, start: int) -> tuple[None, None]:  # noqa: ARG002
        """Neither residuals nor Jacobian."""
        return None, None

    def _best_seen(self) -> tuple[np.ndarray, Answer]:
        return self._seen[self._best[2]][self._best[3]]

    def _relative_violation(self, start: int, answer: Answer) -> np.ndarray:
        """Violation relative to the constraint's value at the start, or to 1."""
        first = np.abs(np.asarray(self._seen[start][0][1].values, float))
        return self._violation(answer) / np.fmax(1.0, np.where(np.isfinite(first), first, 1.0))

    def _violation(self, answer: Answer) -> np.ndarray:
        values = np.asarray(answer.values, float)
        return np.where(self._equalities, np.abs(values), np.maximum(-values, 0.0))


def _curvature() -> Any:
    """Second derivatives by BFGS, without SciPy's warning of linear functions, which are meant."""
    from scipy import optimize

    class Quasi(optimize.BFGS):
        def update(self, delta_x, delta_grad):
            if np.any(delta_grad):
                super().update(delta_x, delta_grad)

    return Quasi()
