"""What SciPy's minimizers are given: functions that ask for evaluations, finite ones always."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


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


class Outcome(NamedTuple):
    """How a minimizer ended.

    Attributes:
        success: whether it says that it has converged.
        message: its own words.
    """

    success: bool
    message: str


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


# Halvings of a perturbation that leads to no finite evaluation.
_HALVINGS = 60


def minimize(settings: Settings, point: np.ndarray, update: np.ndarray, ask) -> Outcome:
    """Minimize from a start, by asking for evaluations.

    Args:
        settings: what to do.
        point: the initial point, shape (p,).
        update: its perturbation, halved until the evaluation is finite.
        ask: returns the `Answer` at a point.
    """
    from scipy import optimize

    functions = _Functions(ask)
    start, trials = point + update, 0
    while not functions.at(start).finite and update.any() and trials < _HALVINGS:
        update, trials = update / 2, trials + 1
        start = point + update
    if not functions.at(start).finite:
        return Outcome(False, "no evaluation near the start is finite")
    functions.scale(start)
    arguments = _slsqp if settings.method == "slsqp" else _trust
    result = optimize.minimize(
        functions.loss, start, jac=functions.gradient, **arguments(functions, settings)
    )
    return Outcome(bool(result.success), str(result.message).rstrip(".").lower())


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
