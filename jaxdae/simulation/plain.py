"""The plain backend: diffrax, compiled by XLA."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.derivatives.perturbation import stopped, tolerances
from jaxdae.simulation.backends import AbstractBackend
from jaxdae.simulation.problem import default_tolerance, Integration, Method, Times
from jaxdae.simulation.reverse_only import reverse_only
from jaxdae.simulation.saving import STEP_ENDS, with_end
from jaxdae.solvers.counted import counted, Counting
from jaxdae.solvers.grid import ChosenSteps, Grid, known_ends
from jaxdae.solvers.monitored import solve_until
from jaxdae.solvers.perturbed import PerturbedSteps
from jaxdae.solvers.projected import parts_of
from jaxdae.solvers.sampled import SampledEnds, with_clocks

# Adjoints that give back the state of the step size controller.
_HAND_ON_STATES = (
    diffrax.RecursiveCheckpointAdjoint, diffrax.ForwardMode, diffrax.DirectAdjoint,
)  # fmt: skip


# Of a run that has no derivative.
_OF_VALUES = diffrax.ForwardMode()


class _ChosenRun(NamedTuple):
    """Steps of a run that is to be made again.

    Args:
        control: takes these steps.
        result: of the run that chose them.
    """

    control: ChosenSteps
    result: Any


class PlainBackend(AbstractBackend):
    """Runs by `diffrax.diffeqsolve`: any solver, step control and adjoint."""

    name: ClassVar[str] = "plain"

    def obstacle(self, formulation, method: Method) -> None:
        del formulation, method

    def solve(self, problem: Any, method: Method, y0) -> Integration:
        suited = type(method.adjoint) in _HAND_ON_STATES
        if method.perturbed or not (suited and _can_be_perturbed(problem, method)):
            return self._solve(problem, method, y0)
        return self._differentiable(problem, method, y0)

    def _differentiable(self, problem: Any, method: Method, y0) -> Integration:
        """A run whose steps, where it is differentiated, suit the derivatives as well."""
        kept = []

        def arrays(problem, method, y0, steps=None):
            """Those of the result: a rule of derivatives has no others."""
            solved = self._solve(problem, method, y0, steps)
            result, rest = eqx.partition(solved, eqx.is_array)
            kept.append(rest)
            return result

        def perturbed(problem, method, y0):
            more, steps = method._replace(perturbed=True), None
            if problem.event is None and not known_ends(method.stepsize_controller).has_any:
                steps = self._chosen_steps(*stopped((problem, more, y0)))
            return arrays(problem, more, y0, steps)

        solve = eqx.filter_custom_jvp(arrays)

        @solve.def_jvp
        def _(primals, tangents):
            try:
                return eqx.filter_jvp(perturbed, primals, tangents)
            except TypeError:  # a rule in it has a derivative in reverse mode alone
                return eqx.filter_jvp(arrays, primals, tangents)

        result = solve(problem, method, y0)
        return eqx.combine(result, kept[-1])

    def _chosen_steps(self, problem: Any, method: Method, y0) -> "_ChosenRun":
        """Steps of a run that is not differentiated: choosing them takes longer than they do."""
        alone = method._replace(saveat=STEP_ENDS, adjoint=_OF_VALUES)
        made = self._solve(problem, alone, y0)
        start = problem.times.start
        # The last is repeated: behind a failure, steps have no length.
        ends = jnp.where(jnp.isfinite(made.ts), made.ts, made.end_time)
        ends = jnp.concatenate([start[None], ends]).astype(start.dtype)
        return _ChosenRun(ChosenSteps.of(ends), made.result)

    def _solve(
        self, problem: Any, method: Method, y0, chosen: "_ChosenRun | None" = None
    ) -> Integration:
        times, solver, parts = problem.times, method.solver, problem.parts
        if type(method.adjoint) is diffrax.RecursiveCheckpointAdjoint:
            stepping = parts_of(solver).method
            times, parts, y0 = reverse_only((times, parts, y0), stepping, method.why_not)
        control = step_control(method.stepsize_controller, times)
        if isinstance(solver, SampledEnds):
            control = with_clocks(control, problem.controller)
        if chosen is not None:
            control = chosen.control
        saveat, counting = with_end(method, times.saved), None
        if type(method.adjoint) in _HAND_ON_STATES:
            counting = counted(solver)
        if counting is not None:
            control = Counting(control)
            saveat = eqx.tree_at(lambda x: x.controller_state, saveat, True)
        steps = solver if counting is None else counting
        if chosen is None and method.perturbed and _can_be_perturbed(problem, method):
            steps = PerturbedSteps(steps, control, method.adjoint is not _OF_VALUES)
        solution, misfit = solve_until(
            problem.event,
            jnp.where(times.start <= times.end, 1.0, -1.0).astype(times.start.dtype),
            problem.term_of(solver),
            steps,
            times.start,
            times.end,
            times.first_step,
            y0,
            args=parts,
            saveat=saveat,
            stepsize_controller=control,
            adjoint=method.adjoint,
            progress_meter=method.meter,
            max_steps=method.max_steps,
            throw=False,
        )
        ts, rows = solution.ts, solution.ys
        (ts, end_time), (rows, end) = ts, rows  # pyright: ignore[reportGeneralTypeIssues]
        end_time, end = jax.tree.map(lambda x: x[0], (end_time, end))
        stats = solution.stats
        if counting is not None:
            state: Any = solution.controller_state
            stats = {**stats, **state[1].stats()}
        result = solution.result
        if chosen is not None:  # how steps were chosen says why they end before their time
            result = diffrax.RESULTS.where(diffrax.is_successful(result), result, chosen.result)
        return Integration(
            self, ts, rows, end_time, end, stats, result, solution.interpolation,
            method.why_not, misfit,
        )  # fmt: skip

    def reader(self, function: Callable, row, parts, *, by_system: bool) -> Callable:
        # A start that is not finite is the final state as well.
        result = jax.eval_shape(function, *row, parts)
        return lambda t, y: with_nan_safe_derivative(function, result, t, y, parts)


def _can_be_perturbed(problem, method: Method) -> bool:
    """Whether steps are adaptive, and held to a tolerance."""
    times = problem.times
    control = step_control(method.stepsize_controller, times)
    quiet = isinstance(method.meter, diffrax.NoProgressMeter)
    return times.grid is None and quiet and tolerances(control) is not None


def step_control(asked, times: Times) -> Any:
    """What chooses the steps.

    Args:
        asked: the user's step size controller, or `None`.
        times: of the run.

    Returns:
        Fixed steps where they are known; the user's; or the default, of `default_tolerance`.
    """
    if times.grid is not None:
        return Grid(times.grid)
    if asked is not None:
        return asked
    if times.first_step is not None:
        return diffrax.ConstantStepSize()
    tolerance, eps = default_tolerance(times.start.dtype), float(jnp.finfo(times.start.dtype).eps)
    # Below this the time no longer advances by much more than its round-off.
    smallest = 64 * eps * jnp.maximum(jnp.abs(times.start), jnp.abs(times.end))
    return diffrax.PIDController(rtol=tolerance, atol=tolerance, dtmin=smallest, force_dtmin=False)
