"""SciPy's constrained minimizers, one evaluation of each start at a time.

They keep hidden state, which no file can hold. What a checkpoint holds instead are the evaluations:
a run that is resumed begins anew, is given the same numbers without computing them, and so comes to
the same state, bit for bit.
"""

import dataclasses
import time
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from jaxdae.tuning.constraints import constraint_values, Equality
from jaxdae.tuning.coroutines import Questions
from jaxdae.tuning.endings import FLAT, in_words, RUNNING
from jaxdae.tuning.parametrizations import resolve
from jaxdae.tuning.problem import Chosen, Method, Problem, Record
from jaxdae.tuning.result import TuningHistory
from jaxdae.tuning.runs import require_a_start
from jaxdae.tuning.search import Answer, minimize, Settings, stationarity


@dataclasses.dataclass(frozen=True)
class Scipy:
    """A minimizer of SciPy, with exact derivatives; it takes constraints.

    Args:
        method: "slsqp" or "trust-constr".
        hessian: whether "trust-constr" is given exact second derivatives; by default it
            approximates them, which is the better choice where an evaluation is a simulation.

    Raises:
        ValueError: for another method, or second derivatives for "slsqp", which takes none.
    """

    method: Literal["slsqp", "trust-constr"]
    hessian: bool = False

    def __post_init__(self):
        if self.method not in ("slsqp", "trust-constr"):
            raise ValueError(
                f'Scipy: method is {self.method!r}, must be "slsqp" or "trust-constr".'
            )
        if self.hessian and self.method == "slsqp":
            raise ValueError('Scipy: "slsqp" takes no Hessians; "trust-constr" does.')


class Tape(NamedTuple):
    """All evaluations of a run, in order.

    Attributes:
        points: where, shape (rows, starts, p).
        seen: what, with leading axes (rows, starts).
    """

    points: np.ndarray
    seen: Answer


class Beginning(NamedTuple):
    """Initial point of every start, and its perturbation, shape (starts, p)."""

    points: np.ndarray
    updates: np.ndarray


def initial_state(problem: Problem, starts: int, spread: float, key: Array) -> Beginning:
    """All starts at the initial point; a perturbation is a first step that may be refused."""
    flat = jax.vmap(lambda x: ravel_pytree(x)[0])
    return Beginning(*(np.asarray(flat(x)) for x in problem.first_points(starts, spread, key)))


def evaluate(static: Problem, arrays: Problem, point: Array) -> tuple[Answer, Record]:
    """Objective and constraints with their derivatives."""
    problem = eqx.combine(arrays, static)
    unravel = ravel_pytree(problem.trained)[1]

    def loss(x):
        return problem.loss(unravel(x))

    def values(x):
        params = resolve(problem.params(unravel(x)))
        found = [constraint_values(c, params) for c in problem.constraints]
        found = jnp.concatenate(found) if found else jnp.zeros(0, point.dtype)
        return found, found

    gradient, total = problem.differentiate(loss, has_aux=True)(point)
    # Constraints are functions of few parameters; of their own mode nothing is known.
    jacobian, found = jax.jacfwd(values, has_aux=True)(point)
    hessian, curvature = None, None
    if problem.optimizer.hessian:
        hessian = jax.jacfwd(problem.differentiate(lambda x: loss(x)[0]))(point)
        curvature = jax.jacfwd(jax.jacfwd(lambda x: values(x)[0]))(point)
    parts = (total, gradient, found, jacobian, hessian, curvature)
    finite = jnp.asarray(True)
    for x in jax.tree.leaves(parts):
        finite &= jnp.all(jnp.isfinite(x))
    return Answer(*parts, finite), Record(total, jnp.linalg.norm(gradient), ~finite)


def program(problem: Problem) -> str:
    """What the optimizer does, as far as this program says."""
    return repr(problem.optimizer)


SCIPY = Method(initial_state, evaluate, program, lambda state: state)


class ScipyRun:
    """All starts, one evaluation of each at a time; see `jaxdae.tuning.runs.Run`."""

    def __init__(self, chosen: Chosen, state: Beginning, steps: int):
        self.problem, self.method, self.steps = chosen.problem, chosen.method, steps
        self.compile_seconds, self._begin = 0.0, state
        self._arrays, self._static = eqx.partition(self.problem, eqx.is_array)
        self._points: list[np.ndarray] = []
        self._seen: list[Answer] = []
        self._records: list[Record] = []
        self._best = (np.inf, np.inf, 0, 0)
        self._names, self._equalities = _rows_of_constraints(self.problem)
        scipy, tolerance = self.problem.optimizer, self.problem.tolerance
        settings = Settings(scipy.method, scipy.hessian, self._equalities, tolerance)
        self._starts = [
            Questions(partial(minimize, settings, x.astype(float), update.astype(float)))
            for x, update in zip(*state, strict=True)
        ]

    @property
    def rows(self) -> int:
        """Evaluations of every start that has not ended."""
        return len(self._records)

    @property
    def state(self) -> Any:
        """What a checkpoint keeps: all evaluations; before the first, where the starts are."""
        if not self._points:
            return self._begin
        seen = jax.tree.map(lambda *x: np.stack(x), *self._seen)
        return Tape(np.stack(self._points), seen)

    @property
    def history(self) -> TuningHistory:
        """Finished rows."""
        if not self._records:
            return TuningHistory.empty(0, len(self._starts))
        return TuningHistory(*(np.stack(x) for x in zip(*self._records, strict=True)))

    @property
    def ended(self) -> bool:
        """Whether no start goes on."""
        return all(x.question is None for x in self._starts)

    @property
    def evaluations(self) -> int:
        """Of objective and constraints, all starts together."""
        return sum(int(np.isfinite(x).all(axis=1).sum()) for x in self._points)

    def compile(self) -> None:
        """Make the program of an evaluation."""
        began = time.perf_counter()
        step = jax.jit(jax.vmap(partial(self.method.step, self._static), in_axes=(None, 0)))
        self._step = step.lower(self._arrays, jnp.asarray(self._begin.points)).compile()
        self.compile_seconds = time.perf_counter() - began

    def first_again(self) -> Record:
        """The first evaluation once more, by the objective as it is now."""
        _, record = self._step(self._arrays, jnp.asarray(self._points[0]))
        return jax.tree.map(np.asarray, record)

    def advance(self) -> None:
        """Evaluate once more."""
        points = self._questions()
        # Starts that have ended are evaluated where they began, and not listened to.
        running = np.isfinite(points)
        usable = np.where(running, points, self._begin.points)
        seen, record = jax.tree.map(np.asarray, self._step(self._arrays, jnp.asarray(usable)))
        ended = ~running.all(axis=1)
        nan = np.where(ended, np.nan, 0.0)
        loss, norm, skipped = record
        record = Record(loss + nan, norm + nan, skipped & ~ended)
        if not self._records:
            require_a_start(loss, norm)
            self._require_constraints(seen)
        self._take(points, seen, record)

    def best(self) -> tuple[int, float, PyTree]:
        """Best start, its loss, and its parameters with parametrizations."""
        start, row = self._best[2:]
        point = ravel_pytree(self.problem.trained)[1](jnp.asarray(self._points[row][start]))
        return start, float(self._seen[row].loss[start]), self.problem.params(point)

    def violations(self) -> dict[str, float]:
        """By how much each constraint is violated at the best point."""
        start, row = self._best[2:]
        amounts = self._violation(self._seen[row], start)
        names = dict.fromkeys(self._names)
        return {x: float(amounts[[y == x for y in self._names]].max()) for x in names}

    def ending(self, start: int) -> tuple[str, str]:
        """Why a start ended, and that in words; "steps" if it has not."""
        best, row = self._best[2:]
        answer = _of_start(self._seen[row], best)
        relative = self._relative_violation(self._seen[row], best)
        if np.any(relative > self.problem.tolerance**0.75):
            worst = self._names[int(np.argmax(relative))]
            violation = self.violations()[worst]
            return "infeasible", f"the constraint {worst!r} is still violated by {violation:.3g}"
        outcome = self._starts[start].result
        if outcome is None:
            return in_words(RUNNING, 0.0, self.problem.tolerance)
        if not self._names and self._records[0].gradient_norm[start] == 0 and row == 0:
            return in_words(FLAT, float(self._seen[row].loss[best]), self.problem.tolerance)
        norms = [x.gradient_norm[start] for x in self._records if not x.skipped[start]]
        left = stationarity(self._points[row][best], answer, self._equalities)
        left /= max(float(np.nanmax(norms)), np.finfo(float).tiny)
        words = f"the gradient less that of active constraints is {left:.1e} of the largest"
        # Below the root of the tolerance the loss can fall by the tolerance at most.
        reason = "converged" if left <= self.problem.tolerance**0.5 else "stalled"
        return reason, f"{words}; SciPy: {outcome.message}"

    def rows_of(self, start: int) -> int:
        """Evaluations until a start ended."""
        return sum(bool(np.isfinite(x[start]).all()) for x in self._points)

    def fit(self, start: int) -> tuple[None, None]:
        """Neither residuals nor Jacobian."""
        del start
        return None, None

    def like(self, rows: int) -> tuple[Tape, TuningHistory]:
        """Shapes and dtypes of what a checkpoint stores after so many rows."""
        shapes = jax.eval_shape(
            jax.vmap(partial(self.method.step, self._static), in_axes=(None, 0)),
            self._arrays,
            jnp.asarray(self._begin.points),
        )[0]
        seen = jax.tree.map(lambda x: np.zeros((rows, *x.shape), x.dtype), shapes)
        points = np.zeros((rows, *self._begin.points.shape), self._begin.points.dtype)
        return Tape(points, seen), TuningHistory.empty(rows, len(self._starts))

    def restore(self, rows: int, tape: Tape, stored: TuningHistory) -> None:
        """Give the minimizers the evaluations of a checkpoint."""
        for row in range(rows):
            if not np.array_equal(self._questions(), tape.points[row], equal_nan=True):
                raise ValueError(
                    f"its evaluation {row} is at another point than SciPy {_version()} asks for "
                    "here; another version or machine wrote it"
                )
            seen = jax.tree.map(lambda x, row=row: np.asarray(x[row]), tape.seen)
            self._take(tape.points[row], seen, Record(*(np.asarray(x[row]) for x in stored)))

    def close(self) -> None:
        """End the threads."""
        for x in self._starts:
            x.close()

    def _questions(self) -> np.ndarray:
        """Where every start wants to be evaluated, in the parameters' precision; NaN if nowhere."""
        nowhere = np.full(self._begin.points.shape[1], np.nan)
        points = [nowhere if x.question is None else x.question for x in self._starts]
        return np.stack(points).astype(self._begin.points.dtype)

    def _take(self, points: np.ndarray, seen: Answer, record: Record) -> None:
        """One more row; the minimizers go on to their next questions."""
        for i, start in enumerate(self._starts):
            if start.question is not None:
                start.answer(_of_start(seen, i))
        self._points.append(points)
        self._seen.append(seen)
        self._records.append(record)
        # Of the least loss where all constraints hold, and of the least violation until then.
        keys = [
            (self._excess(seen, i), float(seen.loss[i]), i, self.rows - 1)
            for i in range(len(self._starts))
            if seen.finite[i] and np.isfinite(points[i]).all()
        ]
        self._best = min([self._best, *keys])

    def _require_constraints(self, seen: Answer) -> None:
        """Refuse constraints that have no value or derivative at any start.

        Raises:
            ValueError: naming one.
        """
        bad = ~(np.isfinite(seen.values) & np.isfinite(seen.jacobian).all(axis=2))
        if bad.any(axis=1).all():
            name = self._names[int(np.argmax(bad[0]))]
            raise ValueError(
                f"tune: the constraint {name!r} or its derivative is not finite at the initial "
                "parameters; start where it is."
            )

    def _excess(self, seen: Answer, start: int) -> float:
        """The largest violation of a constraint, relative; 0 below the tolerance."""
        largest = self._relative_violation(seen, start).max(initial=0.0)
        return float(largest) if largest > self.problem.tolerance else 0.0

    def _relative_violation(self, seen: Answer, start: int) -> np.ndarray:
        """Violation relative to the constraint's value at the start, or to 1."""
        first = np.abs(np.asarray(self._seen[0].values[start], float))
        scale = np.fmax(1.0, np.where(np.isfinite(first), first, 1.0))
        return self._violation(seen, start) / scale

    def _violation(self, seen: Answer, start: int) -> np.ndarray:
        values = np.asarray(seen.values[start], float)
        return np.where(self._equalities, np.abs(values), np.maximum(-values, 0.0))


def _of_start(seen: Answer, start: int) -> Answer:
    return jax.tree.map(lambda x: x[start], seen)


def _rows_of_constraints(problem: Problem) -> tuple[list[str], np.ndarray]:
    """The name of every entry of the constraints, and whether it is an equality."""
    names, equalities = [], []
    for x in problem.constraints:
        params = resolve(problem.params(problem.trained))
        size = jax.eval_shape(partial(constraint_values, x), params).size
        names += [x.name] * size
        equalities += [isinstance(x, Equality)] * size
    return names, np.array(equalities, bool)


def _version() -> str:
    import scipy

    return scipy.__version__
