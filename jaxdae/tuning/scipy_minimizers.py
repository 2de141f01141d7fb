"""SciPy's constrained minimizers, one evaluation of each start at a time.

They call their objective and return at the end, and keep their state to themselves: each start
runs in a thread of its own, only while its next evaluation is waited for, and no run is saved.
"""

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxdae.tuning.constraints import constraint_values, Equality
from jaxdae.tuning.endings import FLAT, in_words, RUNNING
from jaxdae.tuning.parametrizations import resolve
from jaxdae.tuning.problem import Chosen, Method, Problem, Record
from jaxdae.tuning.result import TuningHistory
from jaxdae.tuning.runs import require_a_start, Run


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


class Answer(NamedTuple):
    """An evaluation at a point.

    Attributes:
        loss: objective.
        gradient: of it, shape (p,).
        values: of the constraints, shape (c,).
        jacobian: of them, shape (c, p).
        hessian: of the objective, shape (p, p), or `None`.
        curvature: of the constraints, shape (c, p, p), or `None`.
        finite: whether all of that is finite.
    """

    loss: Any
    gradient: Any
    values: Any
    jacobian: Any
    hessian: Any
    curvature: Any
    finite: Any


class Settings(NamedTuple):
    """What a minimizer is to do.

    Attributes:
        method: "slsqp" or "trust-constr".
        hessian: whether it is given second derivatives.
        equalities: which constraints are equalities, shape (c,).
        tolerance: relative.
    """

    method: str
    hessian: bool
    equalities: np.ndarray
    tolerance: float


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


SCIPY = Method(initial_state, evaluate)


class ScipyRun(Run):
    """All starts, one evaluation of each at a time."""

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
    def state(self) -> Array:
        """Where all starts begin: the state that points are evaluated with has their shape."""
        return jnp.asarray(self._begin.points)

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
        message = self._starts[start].result
        if message is None:
            return in_words(RUNNING, 0.0, self.problem.tolerance)
        if not self._names and self._records[0].gradient_norm[start] == 0 and row == 0:
            return in_words(FLAT, float(self._seen[row].loss[best]), self.problem.tolerance)
        norms = [x.gradient_norm[start] for x in self._records if not x.skipped[start]]
        left = stationarity(self._points[row][best], answer, self._equalities)
        left /= max(float(np.nanmax(norms)), np.finfo(float).tiny)
        words = f"the gradient less that of active constraints is {left:.1e} of the largest"
        # Below the root of the tolerance the loss can fall by the tolerance at most.
        reason = "converged" if left <= self.problem.tolerance**0.5 else "stalled"
        return reason, f"{words}; SciPy: {message}"

    def rows_of(self, start: int) -> int:
        """Evaluations until a start ended."""
        return sum(bool(np.isfinite(x[start]).all()) for x in self._points)

    def fit(self, start: int) -> tuple[None, None]:  # noqa: ARG002
        """Neither residuals nor Jacobian."""
        return None, None

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


class _ClosedError(BaseException):
    """Ends a function that waits for an answer nobody will give."""


class Questions:
    """The questions of a function, one after another.

    Args:
        function: called with `ask`, a function that returns the answer to a question.
    """

    def __init__(self, function: Callable[[Callable[[np.ndarray], Any]], Any]):
        self._asked: SimpleQueue = SimpleQueue()
        self._answers: SimpleQueue = SimpleQueue()
        self.question: np.ndarray | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()
        self._wait()

    def answer(self, answer: Any) -> None:
        """Answer the question; `question` is the next one then, or `None` at the end.

        Raises:
            Exception: what the function raises.
        """
        self._answers.put(answer)
        self._wait()

    def close(self) -> None:
        """End the function where it is."""
        if self.question is not None:
            self._answers.put(_ClosedError())
            self._thread.join()
            self.question = None

    def _ask(self, question: np.ndarray) -> Any:
        self._asked.put((question, None, None))
        answer = self._answers.get()
        if isinstance(answer, _ClosedError):
            raise answer
        return answer

    def _run(self, function) -> None:
        try:
            self._asked.put((None, function(self._ask), None))
        except _ClosedError:
            pass
        except BaseException as error:
            self._asked.put((None, None, error))

    def _wait(self) -> None:
        self.question, self.result, error = self._asked.get()
        if error is not None:
            raise error


# Halvings of a perturbation that leads to no finite evaluation.
_HALVINGS = 60


def minimize(settings: Settings, point: np.ndarray, update: np.ndarray, ask) -> str:
    """Minimize from a start, by asking for evaluations.

    Args:
        settings: what to do.
        point: the initial point, shape (p,).
        update: its perturbation, halved until the evaluation is finite.
        ask: returns the `Answer` at a point.

    Returns:
        How it ended, in its own words.
    """
    from scipy import optimize

    functions = _Functions(ask)
    start, trials = point + update, 0
    while not functions.at(start).finite and update.any() and trials < _HALVINGS:
        update, trials = update / 2, trials + 1
        start = point + update
    if not functions.at(start).finite:
        return "no evaluation near the start is finite"
    functions.scale(start)
    arguments = _slsqp if settings.method == "slsqp" else _trust
    result = optimize.minimize(
        functions.loss, start, jac=functions.gradient, **arguments(functions, settings)
    )
    return str(result.message).rstrip(".").lower()


class _Functions:
    """Objective and constraints as SciPy calls them.

    Where the evaluation is not finite the loss is above all others seen, so that every line search
    and trust region turns back; the rest is that of the last finite evaluation.
    """

    def __init__(self, ask: Callable[[np.ndarray], Answer]):
        self._ask, self._known = ask, {}
        self._unit, self._highest, self._last = 1.0, 0.0, None

    def at(self, x: np.ndarray) -> Answer:
        key = np.asarray(x, float).tobytes()
        if key not in self._known:
            self._known[key] = self._ask(np.array(x, float))
        return self._known[key]

    def scale(self, start: np.ndarray) -> None:
        """Take the loss or gradient at the start as its unit: SciPy's tolerances are absolute."""
        first = self.at(start)
        size = max(abs(float(first.loss)), float(np.linalg.norm(first.gradient)))
        self._unit = 1 / size if size > 0 else 1.0
        self._highest, self._last = self._unit * float(first.loss), first

    def loss(self, x: np.ndarray) -> float:
        answer = self.at(x)
        if not answer.finite:
            return self._highest + abs(self._highest) + 1.0
        loss = self._unit * float(answer.loss)
        self._highest, self._last = max(self._highest, loss), answer
        return loss

    def gradient(self, x: np.ndarray) -> Float[np.ndarray, " p"]:
        return self._unit * np.asarray(self._finite(x).gradient, float)

    def hessian(self, x: np.ndarray) -> Float[np.ndarray, "p p"]:
        return self._unit * np.asarray(self._finite(x).hessian, float)

    def values(self, x: np.ndarray) -> Float[np.ndarray, " c"]:
        return np.asarray(self._finite(x).values, float)

    def jacobian(self, x: np.ndarray) -> Float[np.ndarray, "c p"]:
        return np.asarray(self._finite(x).jacobian, float)

    def curvature(self, x: np.ndarray, weights: np.ndarray) -> Float[np.ndarray, "p p"]:
        return np.tensordot(weights, np.asarray(self._finite(x).curvature, float), axes=1)

    def _finite(self, x: np.ndarray) -> Answer:
        answer = self.at(x)
        return answer if answer.finite or self._last is None else self._last


def _slsqp(functions: _Functions, settings: Settings) -> dict[str, Any]:
    constraints = [
        {
            "type": kind,
            "fun": lambda x, rows=rows: functions.values(x)[rows],
            "jac": lambda x, rows=rows: functions.jacobian(x)[rows],
        }
        for kind, rows in (("eq", settings.equalities), ("ineq", ~settings.equalities))
        if rows.any()
    ]
    options = {"ftol": settings.tolerance**1.5, "maxiter": _NO_LIMIT}
    return {"method": "SLSQP", "constraints": constraints, "options": options}


def _trust(functions: _Functions, settings: Settings) -> dict[str, Any]:
    from scipy import optimize

    class Quasi(optimize.BFGS):
        """Without SciPy's warning of a gradient that did not change: linear functions are meant."""

        def update(self, delta_x, delta_grad):
            if np.any(delta_grad):
                super().update(delta_x, delta_grad)

    exact = settings.hessian
    constraints = optimize.NonlinearConstraint(
        functions.values,
        np.zeros(settings.equalities.size),
        np.where(settings.equalities, 0.0, np.inf),
        jac=functions.jacobian,  # pyright: ignore[reportArgumentType]
        hess=functions.curvature if exact else Quasi(),  # pyright: ignore[reportArgumentType]
    )
    # Its test of the gradient ignores how far from active constraints the barrier has kept it.
    names, no_test = ("xtol", "barrier_tol"), {"gtol": 0.0}
    return {
        "method": "trust-constr",
        "hess": functions.hessian if exact else Quasi(),
        "constraints": [constraints] if settings.equalities.size else [],
        "options": dict.fromkeys(names, settings.tolerance) | no_test | {"maxiter": _NO_LIMIT},
    }


# The steps are counted elsewhere.
_NO_LIMIT = 10**7


def stationarity(point: np.ndarray, answer: Answer, equalities: np.ndarray) -> float:
    """How far a point is from satisfying the conditions of Karush, Kuhn and Tucker.

        min  |grad f - J^T lam|^2 + |lam_i c_i / (1 + |x|)|^2,   lam_i >= 0 of inequalities

    the root of it: what is left of the gradient by multipliers that are zero where a constraint is
    not active.

    Args:
        point: shape (p,).
        answer: at the point.
        equalities: which constraints are equalities, shape (c,).
    """
    from scipy.optimize import nnls

    gradient, jacobian = np.asarray(answer.gradient, float), np.asarray(answer.jacobian, float)
    if not equalities.size:
        return float(np.linalg.norm(gradient))
    slack = np.where(equalities, 0.0, np.maximum(np.asarray(answer.values, float), 0.0))
    rows = np.concatenate([jacobian.T, np.diag(slack / (1 + np.linalg.norm(point)))])
    # A multiplier of an equality, which may be negative, is the difference of two that are not.
    columns = np.concatenate([rows, -rows[:, equalities]], axis=1)
    return float(nnls(columns, np.append(gradient, np.zeros(slack.size)))[1])
