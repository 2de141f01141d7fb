"""The result of differential-algebraic equations that were solved."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.results.members import checked_index
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.dae_run import nearest
from jaxdae.simulation.invalid import invalidated
from jaxdae.simulation.problem import Solution
from jaxdae.systems.dae import DAE, is_implicit, Variables
from jaxdae.systems.dae_equations import DAEEquations
from jaxdae.systems.dae_names import variable_names
from jaxdae.systems.dae_start import condition_names, DAEViolation, violation


class DAETrajectory(eqx.Module):
    """What `solve` gives. Arrays have time first; axes of batches made by `vmap` come before it.

    Rows that were not reached, and rows whose values are not finite, have `ts = inf` and NaN
    values.

    Attributes:
        ts: times [s], shape `(times,)`.
        saved: variables at these times, as `y` and `z` or `y_dot` have them.
        final_time: the last time reached with finite values [s].
        last: `Variables` there, of a run that failed, too.
        result_code: diffrax's result code, as it comes out of the solver; see `result`.
        stats: solver statistics (`num_steps`, `num_accepted_steps`, `num_rejected_steps`, …). Of
            steps found by Newton's iteration also `num_iterations`, `num_factorizations` of its
            matrices and `num_unsolved_steps`, those for which it did not converge; kernels with
            fixed steps leave them out.
        index: of the equations: 0, 1 or 2.
        why_not_native: what kept the native backend from serving, in words, or what of a native
            run's derivatives is left to the plain program; `None` where nothing is.
        interpolation: dense output, or `None`; see `evaluate`.
    """

    ts: Any
    saved: Variables
    final_time: Any
    last: Variables
    result_code: Any
    stats: dict[str, Any]
    interpolation: Any
    # The arrays of (dae, controller) apart from the rest, functions among it, so that a trajectory
    # may leave any JAX transformation.
    arrays: PyTree
    reached: Any
    index: int = eqx.field(static=True)
    skeleton: PyTree = eqx.field(static=True)
    made_by: Any = eqx.field(static=True)
    why_not_native: str | None = eqx.field(static=True)

    @classmethod
    def of(cls, problem: DAEProblem, solution: Solution) -> "DAETrajectory":
        """The result of a run, which may be traced.

        Args:
            problem: what was solved.
            solution: what the run gave.
        """
        arrays, skeleton = eqx.partition((problem.dae, problem.controller), eqx.is_array)
        index = problem.equations.index(problem.times.start, problem.state)
        ts, saved = solution.ts, solution.saved
        if solution.plain:
            reached = jnp.isfinite(ts)
            saved = jax.tree.map(
                lambda x: jnp.where(reached.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.nan), saved
            )
        return cls(
            ts, saved, solution.final_time, solution.final, solution.result, solution.stats,
            solution.interpolation, arrays, diffrax.is_okay(solution.result), index, skeleton,
            solution.backend, solution.why_not,
        )  # fmt: skip

    def __repr__(self) -> str:
        return _text(self)

    @property
    def dae(self) -> DAE:
        """The declaration that was solved."""
        return eqx.combine(self.arrays, self.skeleton)[0]

    @property
    def controller(self) -> Callable | None:
        """The controller, or `None`."""
        return eqx.combine(self.arrays, self.skeleton)[1]

    @property
    def backend(self) -> str:
        """`"native"` or `"plain"`: which backend made the run."""
        return self.made_by.name

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Lengths of the batch axes; empty for a single run."""
        return self.final_time.shape

    @property
    def success(self) -> Bool[Array, "*batch"]:
        """Whether the run reached its end; one value for each batch member."""
        return self.reached

    @property
    def result(self) -> Any:
        """How the run ended, as diffrax says it."""
        return self.result_code

    @property
    def y(self) -> PyTree:
        """Differential variables at the saved times; of a `residual` all variables."""
        return self.saved.y

    @property
    def z(self) -> PyTree:
        """Algebraic variables at the saved times; `None` where there are none.

        Computed from `y`, of whose order they are.
        """
        return None if is_implicit(self.dae) else self.saved.z

    @property
    def y_dot(self) -> PyTree:
        """Rates `dy/dt` at the saved times: of a `residual` its own, else `M^-1 rate`."""
        if is_implicit(self.dae):
            return self.saved.z
        return _at_rows(self, _rate)

    @property
    def u(self) -> Any:
        """Control inputs at the saved times; `None` without a controller."""
        return None if self.controller is None else _at_rows(self, _control)

    @property
    def final(self) -> Variables:
        """Variables at the end time; NaN, with derivatives that are NaN, where the run failed."""
        return _final(self)

    @property
    def violation(self) -> DAEViolation:
        """Residuals of the algebraic equations at the saved times, see `violation_names`."""
        return _at_rows(self, _violation)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Names of the numbers in `y`, and in `z` or `y_dot`, in the order of `ravel_pytree`."""
        return variable_names(_one_row(self), is_implicit(self.dae))

    @property
    def violation_names(self) -> list[str]:
        """Names of the equations of `violation`."""
        return condition_names(_equations(self), self.index, _one_row(self))

    def evaluate(self, t) -> Variables:
        """Variables at any time of a run made with `SaveAt(dense=True)`, consistent ones.

        Args:
            t: time [s], scalar or `(times,)`; the same for all batch members.

        Raises:
            ValueError: for a run without dense output.
        """
        if self.interpolation is None:
            raise ValueError("no dense output; run solve(..., saveat=SaveAt(dense=True)).")
        return _evaluated(self, jnp.asarray(t, self.final_time.dtype))

    def __getitem__(self, index) -> "DAETrajectory":
        """A member of a batch, or several.

        Args:
            index: an integer; a tuple of integers for as many batch axes; a slice, an array of
                integers, or of one boolean for each member, along the first axis.

        Raises:
            TypeError: for a single run, or an index of another kind.
            IndexError: for a member that there is not.
        """
        index = checked_index(index, self.batch_shape)
        arrays, rest = eqx.partition(self, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda x: x[index], arrays), rest)


def _equations(run: DAETrajectory) -> DAEEquations:
    return DAEEquations(*eqx.combine(run.arrays, run.skeleton))


def _one_row(run: DAETrajectory) -> Variables:
    """Shapes of the variables of one row."""
    rank = run.final_time.ndim
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[rank:], x.dtype), run.last)


def _of_members(function: Callable) -> Callable:
    """A function of a run; of a batch, of each member."""

    @jit
    def call(run: DAETrajectory, *arguments):
        if run.final_time.ndim > 0:
            return eqx.filter_vmap(lambda one: call(one, *arguments))(run)
        return function(run, *arguments)

    return call


@_of_members
def _at_rows(run: DAETrajectory, function):
    """`function(equations, index, t, variables)` at every row; NaN where it was not reached."""
    reached, equations = jnp.isfinite(run.ts), _equations(run)
    safe = lambda x, y: jnp.where(reached.reshape(-1, *[1] * (x.ndim - 1)), x, y)  # noqa: E731
    ts = jnp.where(reached, run.ts, run.final_time)
    rows = jax.tree.map(safe, run.saved, run.last)
    found = jax.vmap(lambda t, x: function(equations, run.index, t, x))(ts, rows)
    return jax.tree.map(lambda x: safe(x, jnp.nan), found)


def _rate(equations, index, t, variables):
    del index
    unravel = ravel_pytree(variables.y)[1]
    return unravel(equations.explicit_rate(t, variables))


def _control(equations, index, t, variables):
    del index
    return jax.tree.map(lambda x: jnp.asarray(x, float), equations.control(t, variables))


def _violation(equations, index, t, variables):
    return violation(equations, index, t, variables)


@_of_members
def _final(run: DAETrajectory) -> Variables:
    return invalidated(run.last, ~run.reached)


@_of_members
def _evaluated(run: DAETrajectory, t) -> Variables:
    equations, inner = _equations(run), run.interpolation

    def one(t):
        variables, _ = inner.evaluate(t)
        return nearest(equations, run.index, t, Variables(*variables))

    return jax.vmap(one)(t) if t.ndim else one(t)


def _text(run: DAETrajectory) -> str:
    """A run in a few lines; what is traced has no numbers."""
    try:
        first, second = run.names
        name = "y_dot" if is_implicit(run.dae) else "z"
        lines = {"y": ", ".join(first[:12]), name: ", ".join(second[:12])}
        if run.batch_shape:
            lines["batch"] = " x ".join(map(str, run.batch_shape))
        lines["index"] = str(run.index)
        if are_known(run):
            good = np.asarray(run.success)
            lines["result"] = (
                ("reached its end" if good else f"stopped at t = {float(run.final_time):.6g} s")
                if good.ndim == 0
                else f"{good.sum()} of {good.size} reached their end"
            )
        body = "".join(f"\n  {key:<8} {value}" for key, value in lines.items() if value)
        return f"DAETrajectory({type(run.dae).__name__}, {run.backend} backend{body}\n)"
    except Exception:  # of a tree whose leaves are something else; at the prompt nothing may fail
        return eqx.tree_pformat(run)
