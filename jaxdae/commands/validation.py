"""How sets of gains do on many starts: one compiled program for all conditions of a study."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxdae.compiled import jit
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.models.study import Check, Goal, Study
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import simulate
from jaxdae.solvers.grid import ends_of_steps, Grid
from jaxdae.systems import State
from jaxdae.systems.random_states import perturbed_states


class Summary(NamedTuple):
    """Means over a batch of starts; NaN where a start failed."""

    cost: float  # the cost as it was tuned
    parts: dict[str, float]  # what the cost is made of, each in its own unit, by symbol
    failed: int  # number of starts whose run failed


class Comparison(NamedTuple):
    """What `ValidationRuns.under` returns, by the names of the gains."""

    summaries: dict[str, Summary]  # of each
    runs: dict[str, Any]  # the first start's run of each, ready to plot


class ValidationRuns:
    """The runs of a study, as many at once as so many sets of gains on the most starts need."""

    def __init__(self, study: Study, solver, columns: int):
        self.study, self.solver, self.columns = study, solver, columns
        self._starts = max(check.count for check in study.checks)
        checks = (*study.checks, Check("as tuned"))
        self._rows = max(check.grid(study).size for check in checks)

    @property
    def members(self) -> int:
        """Number of runs at once."""
        return self._starts * self.columns

    def under(self, check: Check, sets: dict[str, PyTree], start: State, key: Array) -> Comparison:
        """Compare sets of gains under the conditions of a check."""
        deviation = self.study.deviation * check.deviation
        states = perturbed_states(start, key, check.count, position=deviation, velocity=deviation)
        # What exceeds the starts repeats the first, and is not counted.
        chosen = np.arange(self._starts)
        chosen[check.count :] = 0
        states = jax.tree.map(lambda x: np.asarray(x)[np.tile(chosen, self.columns)], states)
        params = stacked([*sets.values()], self._starts)
        grids = [check.grid(self.study)] * self.members
        measured, runs = self._measure(params, states, grids)
        summaries = {}
        for i, name in enumerate(sets):
            own = slice(i * self._starts, i * self._starts + check.count)
            cost, parts = jax.tree.map(lambda x, own=own: x[own], measured)
            means = {part: float(np.mean(x)) for part, x in parts.items()}
            summaries[name] = Summary(float(np.mean(cost)), means, int(np.sum(~np.isfinite(cost))))
        return Comparison(summaries, {x: self._run(runs, i) for i, x in enumerate(sets)})

    def costs(self, params: PyTree, states: State, steps: np.ndarray) -> np.ndarray:
        """The cost of many runs, in as many calls of the program as it takes.

        Args:
            params: gains, a leading axis of runs in every array.
            states: starts, likewise.
            steps: in units of the study's, shape (runs,).

        Returns:
            Shape (runs,); NaN where a run fails.
        """
        count, size, found = len(steps), self.members, []
        given = {x: Check("", dt=x).grid(self.study) for x in np.unique(steps)}
        for first in range(0, count, size):
            rows = np.minimum(np.arange(first, first + size), count - 1)
            some, starts = jax.tree.map(lambda x, rows=rows: x[rows], (params, states))
            chosen = [given[x] for x in steps[rows]]
            found.append(self._measure(some, starts, chosen)[0][0])
        return np.concatenate(found)[:count]

    def _measure(self, params, states, ends: list[np.ndarray]):
        arrays, static = eqx.partition(params, eqx.is_inexact_array)
        picked, study = np.arange(self.columns) * self._starts, self.study
        fixed = (study.build, study.goal, self.solver, static)
        padded = ends_of_steps(ends, self._rows)
        return jax.tree.map(np.asarray, _runs(*fixed, arrays, states, padded, picked))

    def _run(self, runs: dict[str, Any], column: int) -> Any:
        """The rows of one run up to its end, without those that repeat it."""
        own: Any = jax.tree.map(lambda x: x[column], runs)
        ends = np.flatnonzero(own["ts"] >= own["ts"][np.isfinite(own["ts"])].max())
        rows = own["ts"].size if not own["success"] else ends[0] + 1
        cut = {
            x: y if x == "success" else jax.tree.map(lambda z: z[:rows], y) for x, y in own.items()
        }
        return SimpleNamespace(**cut, system=self.study.system)


def stacked(sets: list[PyTree], each: int = 1) -> PyTree:
    """Parameters of one structure with a leading axis in arrays of floating-point numbers."""
    arrays, static = zip(*(eqx.partition(x, eqx.is_inexact_array) for x in sets), strict=True)
    # On the host: a program for every number of sets would take longer to compile than to run.
    rows = jax.tree.map(lambda *x: np.repeat(np.stack(x), each, axis=0), *arrays)
    return eqx.combine(rows, static[0])


@jit
def _runs(build, goal: Goal, solver, static, arrays, states, grids, picked):
    """What is measured of every member, and what is drawn of those that are picked."""

    def member(params, state, grid):
        system, formulation, controller = build(eqx.combine(params, static))
        return simulate(
            system,
            formulation,
            state,
            t1=grid[-1],
            stepsize_controller=Grid(grid, direction=1),
            solver=solver,
            max_steps=grid.shape[0],
            controller=controller,
            adjoint=diffrax.ForwardMode(),
            throw=False,
            start_tolerance=None,
        )

    def measured(run: Trajectory):
        def of(cost):
            return jnp.where(run.success, cost(run), jnp.nan)

        return of(goal.cost), {name: of(part) for name, part in goal.parts.items()}

    def drawn(run: Trajectory) -> dict[str, Any]:
        names = ("ts", "q", "v", "u", "violation", "success")
        return {x: getattr(run, x) for x in names} | {"residuals": goal.residuals(run)}

    runs = eqx.filter_vmap(member)(arrays, states, jnp.asarray(grids))
    few = jax.tree.map(lambda x: x[picked] if eqx.is_array(x) else x, runs)
    return eqx.filter_vmap(measured)(runs), eqx.filter_vmap(drawn)(few)


def breaking_times(study: Study, params, states: State) -> tuple[np.ndarray, str]:
    """Times at which adaptive runs fail on the way to `study.beyond`; the first one in words."""
    assert study.beyond is not None
    runs = _reach(study.build, params, states, jnp.asarray(study.beyond))
    failed = np.flatnonzero(~np.asarray(runs.success))
    if failed.size == 0:
        return np.zeros(0), ""
    first = runs.member(int(failed[0]))
    return np.asarray(runs.final_time)[failed], describe_failure(first)


@jit
def _reach(build, params, states, t1) -> Trajectory:
    system, formulation, controller = build(params)

    def member(state):
        return simulate(
            system,
            formulation,
            state,
            t1=t1,
            saveat=diffrax.SaveAt(t1=True),
            controller=controller,
            throw=False,
            start_tolerance=None,
        )

    return eqx.filter_vmap(member)(states)
