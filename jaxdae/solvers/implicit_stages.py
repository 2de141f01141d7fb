"""Steps of diagonally implicit Runge-Kutta methods in kernels."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx

from jaxdae.derivatives.implicit import implicit_root
from jaxdae.linalg.lu import factored, FactoredSolver, MOST_PIVOTED
from jaxdae.solvers.base import AbstractStepMethod, at_once, Step

_TOLERANCES = ("rtol", "atol", "norm")


class ImplicitStages(AbstractStepMethod):
    """Steps of a singly diagonally implicit Runge-Kutta method whose first stage is explicit.

    Stages are solved for by the root finder of the solver, from the predictions of its tableau:

        f_i = f(t_0 + c_i h, y_0 + h sum_(j<i) a_ij f_j + gamma h f_i)

    Their derivatives are those of the equations, by the implicit function theorem, to every order.
    A step whose iteration does not converge has no end: adaptive steps become shorter then.

    Args:
        solver: such as `diffrax.Kvaerno5()`.
    """

    solver: diffrax.AbstractESDIRK
    evaluates_only: ClassVar[bool] = False

    @property
    def tableau(self) -> diffrax.ButcherTableau:
        """The method's coefficients."""
        tableau: Any = self.solver.tableau
        return tableau

    def carried(self, states: int) -> int:
        # One evaluation more, beside those of the iterations, and derivatives of steps alone.
        return 0

    def dense_shape(self, states: int) -> tuple[int, ...]:
        return self.tableau.num_stages, states

    def init(self, rate: Callable, t0, y0):
        return y0[:0]

    def step(self, rate: Callable, t0, t1, y0, carry, each: Callable = at_once) -> Step:
        tableau: Any = self.tableau
        h, dtype, gamma = t1 - t0, y0.dtype, float(tableau.a_diagonal[1])
        count = tableau.num_stages
        lower, predictor = (_square(x) for x in (tableau.a_lower, tableau.a_predictor))

        def equation(before, c):
            """Of the rate in a stage, from the sum of those before and its part of the step."""
            y, t = y0 + h * before, jnp.where(c == 1, t1, t0 + c * h)
            return lambda f: f - rate(t, y + (gamma * h) * f)

        first = rate(t0, y0)
        # The matrix of all iterations is that of the first implicit stage.
        second = equation(float(lower[1, 0]) * first, float(tableau.c[0]))
        finder = _with_factors(self.solver.root_finder, y0.size)
        begun = _begun(finder, second, float(predictor[1, 0]) * first)

        def stage(known, row):
            rates, converged = known
            i, before, prediction, c = row
            f, found = implicit_root(
                equation(before @ rates, c),
                prediction @ rates,
                lambda function, guess: self._root(finder, function, guess, begun),
                _tangent,
            )
            return (rates.at[i].set(f), jnp.minimum(converged, found)), None

        rows = (lower[1:], predictor[1:], np.asarray(tableau.c))
        rows = (np.arange(1, count), *(jnp.asarray(x, dtype) for x in rows))
        rates = jnp.zeros((count, y0.size), dtype).at[0].set(first)
        (rates, converged), _ = jax.lax.scan(stage, (rates, jnp.ones((), dtype)), rows)
        y1 = y0 + h * (jnp.asarray(tableau.b_sol, dtype) @ rates)
        y1 = jnp.where(converged > 0, y1, jnp.nan)

        def error():
            estimate = h * (jnp.asarray(tableau.b_error, dtype) @ rates)
            return jnp.where(converged > 0, estimate, jnp.nan)

        return Step(y1, error, y0[:0], lambda: h * rates)

    def _root(self, finder: Any, function: Callable, guess, begun) -> tuple[Any, Any]:
        """A stage by the solver's own iteration, and 1 where it has converged, or 0."""
        solution = optx.root_find(
            lambda f, _: function(f),
            finder,
            guess,
            options={} if begun is None else {"init_state": begun},
            throw=False,
            max_steps=self.solver.root_find_max_steps,
        )
        found = solution.result == optx.RESULTS.successful
        return solution.value, jnp.where(found, 1.0, 0.0).astype(guess.dtype)

    def interpolate(self, t0, t1, y0, y1, dense, t):
        make: Any = self.solver.interpolation_cls
        return make(t0=t0, t1=t1, y0=y0, y1=y1, k=dense).evaluate(t)


def with_tolerances(solver: Any, controller: Any) -> Any:
    """A solver whose root finder has the tolerances that it is to take from the step control.

    Args:
        solver: any diffrax solver.
        controller: of the steps; `None` for fixed ones.

    Raises:
        ValueError: where there are none to take.
    """
    finder = getattr(solver, "root_finder", None)
    unset = [x for x in _TOLERANCES if getattr(finder, x, None) is _UNSET]
    if not unset:
        return solver
    values = [getattr(controller, x, None) for x in unset]
    if any(x is None for x in values):
        raise ValueError(
            f"{type(solver).__name__} solves for its stages by iteration: give its tolerances, "
            "root_finder=diffrax.VeryChord(rtol=1e-8, atol=1e-8), or an adaptive "
            "stepsize_controller, whose tolerances it takes."
        )
    return eqx.tree_at(lambda x: [getattr(x.root_finder, n) for n in unset], solver, values)


def _with_factors(finder: Any, unknowns: int) -> Any:
    """An iteration whose linear equations kernels solve for any number of unknowns."""
    chosen = getattr(finder, "linear_solver", None)
    if unknowns <= MOST_PIVOTED or not isinstance(chosen, lx.AutoLinearSolver):
        return finder
    return eqx.tree_at(lambda x: x.linear_solver, finder, FactoredSolver())


_UNSET = diffrax.Kvaerno5().root_finder.rtol


def _begun(finder: Any, equation: Callable, guess) -> Any:
    """State of an iteration that keeps one matrix for all stages; `None` for others."""
    if not isinstance(finder, diffrax.VeryChord):
        return None
    shape = jax.ShapeDtypeStruct(guess.shape, guess.dtype)
    fixed = jax.lax.stop_gradient(guess)
    return finder.init(lambda f, _: (equation(f), None), fixed, None, {}, shape, None, frozenset())


def _tangent(linear: Callable, right):
    """Solution of the linear equations that the derivative of a stage satisfies."""
    matrix = jax.vmap(linear, out_axes=1)(jnp.eye(right.size, dtype=right.dtype))
    return factored(matrix)(right)


def _square(rows) -> np.ndarray:
    """Rows below the diagonal as a square matrix."""
    matrix = np.zeros((len(rows) + 1,) * 2)
    for i, row in enumerate(rows, start=1):
        matrix[i, :i] = row
    return matrix
