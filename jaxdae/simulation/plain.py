"""The plain backend: diffrax, compiled by XLA."""

from collections.abc import Callable
from typing import Any, ClassVar

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
from jaxdae.solvers.chosen_steps import ChosenSteps, following
from jaxdae.solvers.counted import counted, Counting
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.monitored import solve_until
from jaxdae.solvers.perturbed import PerturbedSteps, suits
from jaxdae.solvers.projected import parts_of
from jaxdae.solvers.sampled import SampledEnds, with_clocks

# Adjoints that give back the state of the step size controller.
_HAND_ON_STATES = (
    diffrax.RecursiveCheckpointAdjoint, diffrax.ForwardMode, diffrax.DirectAdjoint,
)  # fmt: skip


# Of a run that has no derivative.
_OF_VALUES = diffrax.ForwardMode()


class PlainBackend(AbstractBackend):
    """Runs by `diffrax.diffeqsolve`: any solver, step control and adjoint."""

    name: ClassVar[str] = "plain"

    def obstacle(self, formulation, method: Method) -> None:
        del formulation, method

    def solve(self, problem: Any, method: Method, y0) -> Integration:
        suited = type(method.adjoint) in _HAND_ON_STATES and problem.event is None
        if method.perturbed or not (suited and _can_be_perturbed(problem, method)):
            return self._solve(problem, method, y0)
        return self._solve(problem, method, y0, self._chosen(problem, method, y0))

    def _chosen(self, problem: Any, method: Method, y0) -> ChosenSteps:
        """Steps that suit derivatives as well, where the run is differentiated; none elsewhere."""

        @eqx.filter_custom_jvp
        def none(problem, method, y0):
            steps = ChosenSteps.none(method.max_steps + 1, problem.times.start)
            return _of_each_member(steps, (problem, method, y0))

        @none.def_jvp
        def _(primals, _):
            try:
                steps = self._steps(*stopped(primals))
            except TypeError:  # a function in it has a derivative in reverse mode alone
                steps = none(*primals)
            steps = _of_each_member(steps, primals)
            return steps, jax.tree.map(lambda x: None, steps)

        return none(problem, method, y0)

    def _steps(self, problem: Any, method: Method, y0) -> ChosenSteps:
        """Those of a run without derivatives in which a perturbation controls the steps, too."""
        alone = method._replace(perturbed=True, saveat=STEP_ENDS, adjoint=_OF_VALUES)
        made = self._solve(problem, alone, y0)
        return ChosenSteps.of(made.ts, problem.times.start, problem.times.end, made.result)

    def _solve(
        self, problem: Any, method: Method, y0, chosen: ChosenSteps | None = None
    ) -> Integration:
        times, solver, parts = problem.times, method.solver, problem.parts
        if type(method.adjoint) is diffrax.RecursiveCheckpointAdjoint:
            stepping = parts_of(solver).method
            times, parts, y0 = reverse_only((times, parts, y0), stepping, method.why_not)
        control = step_control(method.stepsize_controller, times)
        if isinstance(solver, SampledEnds):
            control = with_clocks(control, problem.controller)
        if chosen is not None:
            control = following(control, chosen)
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
        if chosen is not None:  # steps that suit derivatives were not found
            failed = ~diffrax.is_successful(chosen.result) & diffrax.is_successful(result)
            result = diffrax.RESULTS.where(failed, chosen.result, result)
        return Integration(
            self, ts, rows, end_time, end, stats, result, solution.interpolation,
            method.why_not, misfit,
        )  # fmt: skip

    def reader(self, function: Callable, row, parts, *, by_system: bool) -> Callable:
        # A start that is not finite is the final state as well.
        result = jax.eval_shape(function, *row, parts)
        return lambda t, y: with_nan_safe_derivative(function, result, t, y, parts)


def _of_each_member(steps: ChosenSteps, given: Any) -> ChosenSteps:
    """The same, which every member of a batch has where any array that is given has members.

    JAX asks a function and its rule of derivatives for results with the same axes of a batch.
    """
    entries = [x.ravel()[0] for x in jax.tree.leaves(given) if eqx.is_array(x) and x.size]
    never = jnp.any(jnp.stack([x != x for x in entries])) & False
    return jax.tree.map(lambda x: jnp.where(never, jnp.ones_like(x), x), steps)


def _can_be_perturbed(problem, method: Method) -> bool:
    """Whether steps are adaptive, held to a tolerance, and of a motion's rates of change."""
    times = problem.times
    control = step_control(method.stepsize_controller, times)
    quiet = isinstance(method.meter, diffrax.NoProgressMeter)
    if times.grid is not None or not quiet or tolerances(control) is None:
        return False
    return suits(method.solver) and not problem.has_no_rate()


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
