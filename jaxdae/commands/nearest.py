"""The nearest point of a constraint with some entries held, by SciPy: also where it folds.

Where the values that are held are the last that the constraints allow, as y = -1 on a circle, the
derivatives by what is free lose rank. There an iteration finds what is free to half of its digits;
that the derivatives vanish gives the other half.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import optimize

# Beside the start.
_GUESSES = 8


class Found(NamedTuple):
    """The nearest point, or the one where least is left of the constraint.

    Args:
        x: all entries, shape `(n,)`.
        left: residuals there.
        allowed: largest size of them in a point of the constraint.
    """

    x: np.ndarray
    left: np.ndarray
    allowed: float

    @property
    def there(self) -> bool:
        """Whether it is a point of the constraint."""
        return bool((np.abs(self.left) <= self.allowed).all())


class _Constraint:
    """A constraint as a function of the entries that may move."""

    def __init__(self, function: Callable, start: np.ndarray, free: np.ndarray):
        self._start, self._free = start, free
        first = jax.jacfwd(function)
        self._functions = [jax.jit(x) for x in (function, first, jax.jacfwd(first))]
        self.eps = float(np.finfo(np.asarray(self._functions[0](start)).dtype).eps)

    def full(self, x: np.ndarray) -> np.ndarray:
        """All entries."""
        result = self._start.copy()
        result[self._free] = x
        return result

    def _derivative(self, order: int, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._functions[order](self.full(x)), np.float64)

    def value(self, x: np.ndarray) -> np.ndarray:
        """Residuals."""
        return self._derivative(0, x)

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Derivatives by what is free."""
        return self._derivative(1, x)[:, self._free]

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Second derivatives by what is free."""
        return self._derivative(2, x)[:, self._free][:, :, self._free]

    def scales(self, x: np.ndarray) -> np.ndarray:
        """Inverse lengths of the rows of all derivatives."""
        lengths = np.linalg.norm(self._derivative(1, x), axis=1)
        return 1.0 / np.where(lengths > 0.0, lengths, 1.0)

    def allowed(self, x: np.ndarray) -> float:
        """As `jaxdae.consistent_state` allows it."""
        return self.eps ** (2 / 3) * (1.0 + float(np.abs(self.full(x)).max()))

    def met(self, x: np.ndarray) -> bool:
        """Whether nothing is left of it."""
        return bool((np.abs(self.value(x)) <= self.allowed(x)).all())

    def negligible(self, x: np.ndarray) -> float:
        """Below this derivatives of unit rows are those of a fold, met to half of the digits."""
        return 10.0 * self.allowed(x) ** 0.5


class _Unfolded(NamedTuple):
    """A constraint and, at a fold, that its derivatives along it vanish.

    Args:
        constraint: of what is free.
        left: combinations of residuals that do not change to first order.
        right: directions along which they do not.
    """

    constraint: _Constraint
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def at(cls, constraint: _Constraint, x: np.ndarray) -> "_Unfolded":
        """That of the fold near a point, if there is one."""
        scales = constraint.scales(x)
        left, sizes, right = np.linalg.svd(scales[:, None] * constraint.slope(x))
        rank = int((sizes > constraint.negligible(x)).sum())
        return cls(constraint, scales[:, None] * left[:, rank:], right[rank:].T)

    def value(self, x: np.ndarray) -> np.ndarray:
        along = self.left.T @ self.constraint.slope(x) @ self.right
        return np.concatenate([self.constraint.value(x), along.ravel()])

    def slope(self, x: np.ndarray) -> np.ndarray:
        first = self.constraint.slope(x)
        if not self.left.size or not self.right.size:
            return first
        bent = np.einsum("ck,cij,jl->kli", self.left, self.constraint.curvature(x), self.right)
        return np.concatenate([first, bent.reshape(-1, first.shape[1])])


def nearest(function: Callable, metric: np.ndarray, start: np.ndarray, held: list[int]) -> Found:
    """Solve `min (x - start)^T metric (x - start)` subject to `function(x) = 0`.

    Args:
        function: traceable by JAX, from shape `(n,)` to residuals.
        metric: shape `(n, n)`.
        start: shape `(n,)`.
        held: entries that stay as they are in `start`.

    Returns:
        The nearest of the points that are found from the start and from others about it.
    """
    free = np.setdiff1d(np.arange(start.size), held)
    constraint = _Constraint(function, start, free)
    metric = metric[np.ix_(free, free)] / max(float(np.abs(metric).max()), 1e-300)
    ends: list[np.ndarray] = []
    for guess in _guesses(start[free], float(np.abs(start).max())):
        if free.size == 0 or constraint.met(guess):
            return _found(constraint, guess)
        if np.isfinite(constraint.value(guess)).all():
            ends.append(_solved(constraint, guess))
    points = [_closest(constraint, metric, start[free], x) for x in ends if constraint.met(x)]
    if points:
        return _found(constraint, min(points, key=lambda x: _squared(metric, x - start[free])))
    left = lambda x: float(np.linalg.norm(constraint.value(x)))  # noqa: E731
    return _found(constraint, min(ends, key=left, default=start[free]))


def _found(constraint: _Constraint, x: np.ndarray) -> Found:
    return Found(constraint.full(x), constraint.value(x), constraint.allowed(x))


def _guesses(x: np.ndarray, size: float) -> Iterator[np.ndarray]:
    """The start and others about it: at the first, constraints may not depend on what is free."""
    yield x
    rng = np.random.default_rng(0)
    for _ in range(_GUESSES):
        yield x + 0.1 * (1.0 + size) * rng.normal(size=x.size)


def _solved(problem: Any, x: np.ndarray) -> np.ndarray:
    """Least squares; the gradient's size is no end, being tiny at a fold before that is reached."""
    ends: Any = {"ftol": 2.3e-16, "xtol": 2.3e-16, "gtol": None, "max_nfev": 200}
    with np.errstate(invalid="ignore", divide="ignore"):  # of derivatives that are zero
        return optimize.least_squares(problem.value, x, problem.slope, **ends).x


def _squared(metric: np.ndarray, off: np.ndarray) -> float:
    return float(off @ metric @ off)


def _sharpened(problem: _Unfolded, x: np.ndarray) -> np.ndarray:
    """The fold near a point, if that is one."""
    better = _solved(problem, x)
    return better if problem.constraint.met(better) else x


def _closest(
    constraint: _Constraint, metric: np.ndarray, start: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """The nearest of the points of the constraint about one of them."""
    x = _sharpened(_Unfolded.at(constraint, x), x)
    # Again, as the first found the fold to all digits but those of its directions.
    problem = _Unfolded.at(constraint, x)
    x = _sharpened(problem, x)
    left, sizes, _ = np.linalg.svd(problem.slope(x))
    # Combinations that are independent; as many as what is free leave nothing to choose.
    chosen = left[:, : sizes.size][:, sizes > constraint.negligible(x) * sizes.max(initial=0.0)]
    if chosen.shape[1] == x.size:
        return x
    result = optimize.minimize(
        lambda y: 0.5 * _squared(metric, y - start),
        x,
        jac=lambda y: metric @ (y - start),
        constraints={
            "type": "eq",
            "fun": lambda y: chosen.T @ problem.value(y),
            "jac": lambda y: chosen.T @ problem.slope(y),
        },
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 200},
    )
    nearer = _solved(problem, result.x)
    better = _squared(metric, nearer - start) < _squared(metric, x - start)
    return nearer if better and constraint.met(nearer) else x
