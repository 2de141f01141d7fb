"""The result of differential-algebraic equations that were solved."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from jaxdae.checks import are_known
from jaxdae.events.records import GOES_ON
from jaxdae.results import stored_equations
from jaxdae.results.base import AbstractRun, of_members
from jaxdae.results.members import checked_index, dropped_axes, Varied
from jaxdae.results.naming import AxisLabels, per_second
from jaxdae.results.stored import plain_arrays, results_of
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.invalid import invalidated
from jaxdae.simulation.problem import Solution
from jaxdae.storage import runs
from jaxdae.storage.runs import About, with_head
from jaxdae.systems.dae import DAE, is_implicit, Variables
from jaxdae.systems.dae_equations import DAEEquations
from jaxdae.systems.dae_names import units_by_name, variable_names
from jaxdae.systems.dae_start import condition_names, DAEViolation, nearest, violation


class DAETrajectory(AbstractRun):
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
        events: events that happened, `jaxdae.events.records.Events`: names, times, variables before
            and behind; `None` for a run without events.
        varied: what differs between the members of a batch, where `varying` has said it.
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
    events: Any = None
    # Of a run from a file.
    known: Any = None
    about: About | None = eqx.field(static=True, default=None)
    varied: Varied | None = None

    @classmethod
    def of(cls, problem: DAEProblem, solution: Solution) -> "DAETrajectory":
        """The result of a run, which may be traced.

        Args:
            problem: what was solved.
            solution: what the run gave.
        """
        arrays, skeleton = eqx.partition((problem.dae, problem.controller), eqx.is_array)
        index = problem.equations.index(problem.times.start, problem.state)
        ts, saved, events = solution.ts, solution.saved, solution.events
        success = diffrax.is_okay(solution.result)
        if events is not None:
            success &= events.ending == GOES_ON
        if solution.plain:
            reached = jnp.isfinite(ts)
            saved = jax.tree.map(
                lambda x: jnp.where(reached.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.nan), saved
            )
        return cls(
            ts, saved, solution.final_time, solution.final, solution.result, solution.stats,
            solution.interpolation, arrays, success, index, skeleton,
            solution.backend, solution.why_not, events,
        )  # fmt: skip

    @classmethod
    def from_arrays(cls, known: Mapping[str, Any], about: About) -> "DAETrajectory":
        """A run of which there are arrays, and no declaration.

        Args:
            known: by name, as `save` writes them. The axes of a batch come first, then time in what
                has rows.
            about: what is said of it.
        """
        structure: Any = about.structure
        stats = with_head(known, "stats.")
        return cls(
            known["ts"], stored_equations.variables_of(about, known), known["final_time"],
            stored_equations.variables_of(about, known, "last."), results_of(known["result"]),
            {**about.stats, **stats}, None, None, known["success"], structure["index"], None, None,
            about.why_not_native, stored_equations.events_of(about, known), dict(known), about,
            Varied.from_arrays(known, about.axes),
        )  # fmt: skip

    def __repr__(self) -> str:
        return _text(self)

    def _from_file(self, name: str) -> Any:
        """What a file has of a quantity."""
        structure: Any = self.about and self.about.structure
        return stored_equations.tree_of(structure[name], self.known)

    @property
    def _implicit(self) -> bool:
        return is_implicit(self.dae) if self.about is None else self.about.structure["implicit"]

    @property
    def dae(self) -> DAE:
        """The declaration that was solved."""
        return self._part(0, "dae")

    @property
    def controller(self) -> Callable | None:
        """The controller, or `None`."""
        return self._part(1, "controller")

    def _part(self, i: int, name: str) -> Any:
        if self.about is not None:
            raise AttributeError(
                f"a trajectory from a file has no {name}: read what needs one before it is saved."
            )
        return eqx.combine(self.arrays, self.skeleton)[i]

    @property
    def backend(self) -> str:
        """`"native"` or `"plain"`: which backend made the run."""
        return self.made_by.name if self.about is None else self.about.backend

    @property
    def why_solver(self) -> str | None:
        """Which solver `solve(solver="auto")` took, and why, in words.

        `None` where the user has chosen it, and of a result of a JAX transformation.
        """
        return vars(self).get("why") if self.about is None else self.about.why_solver

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
        return None if self._implicit else self.saved.z

    @property
    def y_dot(self) -> PyTree:
        """Rates `dy/dt` at the saved times: of a `residual` its own, else `M^-1 rate`."""
        if self._implicit:
            return self.saved.z
        return _at_rows(self, _rate) if self.about is None else self._from_file("y_dot")

    @property
    def u(self) -> Any:
        """Control inputs at the saved times; `None` without a controller."""
        if self.about is not None:
            return self._from_file("u")
        return None if self.controller is None else _at_rows(self, _control)

    @property
    def final(self) -> Variables:
        """Variables at the end time; NaN, with derivatives that are NaN, where the run failed."""
        if self.about is not None:
            return jax.tree.map(partial(_where, np.asarray(self.success)), self.last)
        return _final(self)

    @property
    def violation(self) -> DAEViolation:
        """Residuals of the algebraic equations at the saved times, see `violation_names`."""
        if self.about is not None:
            return DAEViolation(*(self.known[f"violation.{x}"] for x in DAEViolation._fields))
        return _at_rows(self, _violation)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Names of the numbers in `y`, and in `z` or `y_dot`, in the order of `ravel_pytree`."""
        return variable_names(_one_row(self), self._implicit)

    @property
    def units(self) -> tuple[list[str], list[str]]:
        """Units of the same, by `DAE.units`; empty where it says nothing."""
        return self.units_of("y"), self.units_of("y_dot" if self._implicit else "z")

    def units_of(self, quantity: str) -> list[str]:
        """Units of the numbers in `y`, `z` or `y_dot`."""
        if quantity == "y_dot":
            return [per_second(unit) for unit in self.units_of("y")]
        if self.about is not None:
            return list(self.about.labels.get(f"{quantity}_units", ()))
        first, second = self.names
        return units_by_name(first if quantity == "y" else second, self.dae.units())

    @property
    def violation_names(self) -> list[str]:
        """Names of the equations of `violation`."""
        if self.about is not None:
            return list(self.about.labels["violation"])
        first = lambda x: x[(0,) * len(self.batch_shape)]  # noqa: E731
        arrays = jax.tree.map(first, self.arrays)  # of one member
        equations = DAEEquations(*eqx.combine(arrays, self.skeleton))
        return condition_names(equations, self.index, _one_row(self))

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
        varied = None if self.varied is None else self.varied.chosen(index)
        arrays, rest = eqx.partition(
            dataclasses.replace(self, varied=None),
            lambda x: eqx.is_array(x) or isinstance(x, np.ndarray),
        )
        chosen = eqx.combine(jax.tree.map(lambda x: x[index], arrays), rest)
        if self.about is not None:
            about = dataclasses.replace(self.about, axes=self.about.axes[dropped_axes(index) :])
            chosen = dataclasses.replace(chosen, about=about)
        return dataclasses.replace(chosen, varied=varied)

    @property
    def parameters(self) -> dict[str, Any]:
        """Arrays of numbers of declaration and controller, such as `"dae.resistance"`."""
        if self.about is None:
            parts = {"dae": self.arrays[0], "controller": self.arrays[1]}
            return plain_arrays(parts)[0]
        return with_head(self.known, "parameters.")

    def stored(self) -> "DAETrajectory":
        """All that can be read of the run, as NumPy arrays and without its declaration.

        Raises:
            ValueError: inside a JAX transformation, or for a run with dense output.
        """
        if self.about is not None:
            return self
        return DAETrajectory.from_arrays(*stored_equations.values(self))

    def _tabled(self) -> "DAETrajectory":
        return self.stored()

    def quantities(self) -> dict[str, AxisLabels]:
        """Names of what of a stored run has rows, but for the times."""
        return stored_equations.quantities(self)

    @staticmethod
    def load(path: str | Path) -> "DAETrajectory":
        """Read a run from a file, bit for bit as it was saved.

        Variables are in dictionaries and lists; what was neither is a dictionary of its fields.

        Args:
            path: what `save` has written.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it holds something else, is damaged, or is of a later format.
        """
        return DAETrajectory.from_arrays(*runs.read(path, runs.EQUATIONS))


def _where(good: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of members that are good, NaN for others."""
    return np.where(good.reshape((*good.shape, *[1] * (x.ndim - good.ndim))), x, np.nan)


def _equations(run: DAETrajectory) -> DAEEquations:
    return DAEEquations(*eqx.combine(run.arrays, run.skeleton))


def _one_row(run: DAETrajectory) -> Variables:
    """Shapes of the variables of one row."""
    rank = run.final_time.ndim
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[rank:], x.dtype), run.last)


@of_members
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


@of_members
def _final(run: DAETrajectory) -> Variables:
    return invalidated(run.last, ~run.reached)


@of_members
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
        name = "y_dot" if run._implicit else "z"
        lines = {"y": ", ".join(first[:12]), name: ", ".join(second[:12])}
        if run.batch_shape:
            lines["batch"] = " x ".join(map(str, run.batch_shape))
        lines["index"] = str(run.index)
        lines["solver"] = run.why_solver or ""
        if are_known(run):
            good = np.asarray(run.success)
            lines["result"] = (
                ("reached its end" if good else f"stopped at t = {float(run.final_time):.6g} s")
                if good.ndim == 0
                else f"{good.sum()} of {good.size} reached their end"
            )
        body = "".join(f"\n  {key:<8} {value}" for key, value in lines.items() if value)
        model = type(run.dae).__name__ if run.about is None else run.about.model
        return f"DAETrajectory({model}, {run.backend} backend{body}\n)"
    except Exception:  # of a tree whose leaves are something else; at the prompt nothing may fail
        return eqx.tree_pformat(run)
