"""Objectives made of simulations: the cost of a batch of them, at a stated budget."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxdae.checks import fails
from jaxdae.formulations import AbstractFormulation
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import simulate, step_ends
from jaxdae.simulation.backends import Backend
from jaxdae.solvers.grid import direction_of, ends_of_steps, Grid
from jaxdae.solvers.projected import parts_of
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance, described
from jaxdae.tuning.certificate import Certificate, certificate
from jaxdae.tuning.conditions import Conditions, Member, Members
from jaxdae.tuning.risk import at_risk, check_risk, in_words, is_mean, Risk


class SimulationObjective(Module):
    """Cost of the motions from a batch of starts, as a function of parameters.

    Gains have an optimum only for a given amount of work: larger ones are stiffer, and with ever
    smaller steps ever larger gains are better. The objective therefore has a definite budget,
    fixed steps or a largest number of adaptive steps, and states it (`budget`). Under several
    `conditions` all starts run with all steps and variations, in one batch: members with longer
    steps wait for those with shorter ones. A member whose run fails makes the objective NaN,
    and `tune` takes no step to there.

    Args:
        cost: maps the `Trajectory` from one start to a scalar; see `jaxdae.tuning.costs`.
        states: batch of starts: a `State` whose arrays have a leading axis of starts.
        build: maps the resolved parameters, and a variation where there are any, to `(system,
            formulation, controller)`.
        system: instead of `build`, when the parameters are the formulation.
        controller: with `system`, the controller, if any.
        start: maps the resolved parameters, a start of the batch, and a variation where there are
            any, to the state that a run begins in: designs and plants may begin where others
            cannot. By default the start of the batch.
        t0: start time [s].
        t1: end time [s].
        dt: step [s].
        solver: as for `simulate`.
        stepsize_controller: as for `simulate`; with one, or without `dt`, give `max_steps`.
        saveat: as for `simulate`; the times at which the cost sees the motion. By default every
            step of a fixed-step run, and 201 equally spaced times of an adaptive one.
        mode: "forward" for few parameters (`diffrax.ForwardMode`), "reverse" for many
            (`diffrax.RecursiveCheckpointAdjoint`).
        max_steps: work budget of adaptive runs: the largest number of steps of a start, rejected
            ones included. A run that needs more has failed.
        backend: as for `simulate`.
        conditions: steps in place of `dt`, and variations.
        risk: "mean" of all members, the "worst", or `CVaR(fraction)`, the mean of the worst.

    Raises:
        ValueError: if not exactly one of `build` and `system` is given, the starts are not a
            batch, the mode or risk is unknown, an adaptive run has no budget, or times, conditions
            and `saveat` do not fit together.
        TypeError: if `start` is no function.
    """

    cost: Callable
    states: State
    _: dataclasses.KW_ONLY
    build: Callable | None = None
    system: System | None = None
    controller: Callable | None = None
    start: Callable | None = None
    t0: float = 0.0
    t1: float
    dt: float | None = None
    solver: diffrax.AbstractSolver | None = None
    stepsize_controller: diffrax.AbstractStepSizeController | None = None
    saveat: diffrax.SaveAt | None = None
    mode: Literal["forward", "reverse"] = eqx.field(default="forward", static=True)
    max_steps: int | None = None
    backend: Backend = eqx.field(default="auto", static=True)
    conditions: Conditions = Conditions()
    risk: Risk = "mean"

    def __check_init__(self):
        if (self.build is None) == (self.system is None):
            raise ValueError("SimulationObjective: give exactly one of `build` and `system`.")
        if self.build is not None and self.controller is not None:
            raise ValueError(
                "SimulationObjective: `build` returns the controller; leave `controller` out."
            )
        if self.mode not in ("forward", "reverse"):
            raise ValueError(
                f'SimulationObjective: mode is "{self.mode}", must be "forward" or "reverse".'
            )
        check_instance("states", self.states, State, "perturbed_states(state, key, count)")
        check_instance("conditions", self.conditions, Conditions, "Conditions(dt=(0.01, 0.02))")
        _check_states(self.states)
        check_risk(self.risk)
        _check_times(self)
        _check_fitting(self)

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """The risk of the costs of all members; NaN if one of them fails.

        Args:
            params: resolved parameters.
        """
        return at_risk(self.costs(params), self.risk)

    def costs(self, params: PyTree) -> Float[Array, " members"]:
        """Cost of every member, shape (members,); NaN where the run failed.

        `members` tells the conditions of each, and `costs.reshape(members.shape)` has the axes
        steps, variations and starts.

        Args:
            params: resolved parameters.
        """
        return self.costs_and(params)[0]

    def costs_and(
        self, params: PyTree, read: Callable = lambda _run: None
    ) -> tuple[Float[Array, " members"], Any]:
        """Costs, and what a function reads of the trajectory of every member."""

        def one(member):
            run = self._run(params, member)
            return jnp.where(run.success, self.cost(run), jnp.nan), read(run)

        return eqx.filter_vmap(one)(self._batch)

    @property
    def residuals(self) -> Callable[[PyTree], Float[Array, " residuals"]]:
        """The function of parameters that gives numbers whose sum of squares is the objective.

        For least squares: the residuals of the cost of every member, divided by the root of their
        number. Those of a member whose run fails are NaN.

        Raises:
            AttributeError: where the cost is no sum of squares, or the risk not the mean.
        """
        if not hasattr(self.cost, "residuals"):
            raise AttributeError(
                f"SimulationObjective has no residuals: {_name_of(self.cost)} is no sum of squares."
            )
        if not is_mean(self.risk):
            raise AttributeError(
                f"SimulationObjective has no residuals: {in_words(self.risk)} is no sum of squares "
                'over all members; risk="mean" is.'
            )
        return self._residuals

    def trajectories(self, params: PyTree) -> Trajectory:
        """The motions that the cost is evaluated on.

        Args:
            params: resolved parameters.

        Returns:
            A `Trajectory` with leading axis `members`. Under several fixed steps the rows behind
            the end of runs of fewer steps repeat it, or are marked as not reached.
        """
        return eqx.filter_vmap(partial(self._run, params))(self._batch)

    def certificate(self, params: PyTree) -> Certificate:
        """What is known of parameters: decay, margin of the step, and the worst case seen.

        Args:
            params: resolved parameters.
        """
        return certificate(self, params)

    def certificate_of_fit(self, params: PyTree, residuals) -> Certificate:
        """`certificate` where `residuals(params)` is known: no member runs again."""
        rows = np.asarray(residuals, np.float64).reshape(int(np.prod(self.shape)), -1)
        return certificate(self, params, len(rows) * np.sum(rows**2, axis=1))

    @property
    def members(self) -> Members:
        """Step, variation and start of each member of the batch."""
        return Members.of(self.shape, (np.nan,) if self.adaptive else self.steps_given)

    def backend_of(self, params: PyTree) -> tuple[str, str | None]:
        """Which backend makes the runs, and what keeps the native one from it.

        Args:
            params: resolved parameters, or their shapes.

        Returns:
            `Trajectory.backend` and `Trajectory.why_not_native`.
        """
        one = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], self._batch))
        run = eqx.filter_eval_shape(self._run, params, one)
        return run.backend, run.why_not_native

    @property
    def budget(self) -> str:
        """Step or work budget the optimum belongs to, conditions and risk, in words."""
        return budget_of(self)

    def built(self, params: PyTree, variation) -> tuple[System, AbstractFormulation, Any]:
        """System, formulation and controller that parameters stand for.

        Args:
            params: resolved parameters.
            variation: number of the variation; may be traced.

        Raises:
            TypeError: where `build` returns anything but these three.
        """
        if self.build is None:
            assert self.system is not None  # __check_init__ made sure of one of the two
            return self.system, params, self.controller
        returned = self.build(params, *self._varying(variation))
        if not isinstance(returned, tuple | list) or len(returned) != 3:
            count = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
            raise TypeError(
                f"SimulationObjective: build returned {described(returned)}{count}, must return "
                "(system, formulation, controller), with None where there is no controller."
            )
        system, formulation, controller = returned
        return system, formulation, controller

    def _varying(self, variation) -> tuple:
        """The last argument of functions, where there are variations."""
        varied = self.conditions.variations is not None
        return (self.conditions.variation(variation),) if varied else ()

    def first_state(self, params: PyTree, variation, state: State) -> State:
        """The state that a run begins in.

        Args:
            params: resolved parameters.
            variation: number of the variation; may be traced.
            state: a start of the batch.

        Raises:
            TypeError: where `start` returns anything but a `State`.
        """
        if self.start is None:
            return state
        first = self.start(params, state, *self._varying(variation))
        check_instance("what start returned", first, State, "State(q, v, w)")
        return first

    @property
    def solver_used(self) -> diffrax.AbstractSolver:
        """The step method, also where none is given."""
        return diffrax.Dopri8() if self.solver is None else self.solver

    @property
    def steps_made(self) -> tuple[float, ...]:
        """Lengths of the fixed steps that are made [s]; none of adaptive runs.

        Of each `dt` the one that divides the time of the run, which may be shorter.
        """
        if self.adaptive:
            return ()
        return tuple(abs(float(x[-1] - x[0])) / (x.size - 1) for x in self._ends)

    @property
    def largest_step(self) -> float | None:
        """Length of the largest fixed step that is made [s]; `None` if adaptive."""
        return max(self.steps_made, default=None)

    @property
    def _ends(self) -> list[np.ndarray]:
        """Ends of the fixed steps under all conditions."""
        dtype = self.states.q.dtype
        return [step_ends(self.t0, self.t1, dt, dtype) for dt in self.steps_given or ()]

    @property
    def steps_given(self) -> tuple[float, ...] | None:
        """Steps of all conditions; `None` where there is none."""
        if self.conditions.dt is not None:
            return self.conditions.dt
        return None if self.dt is None else (self.dt,)

    @property
    def adaptive(self) -> bool:
        """Whether steps are adaptive."""
        fixed = self.stepsize_controller is None or isinstance(
            self.stepsize_controller, diffrax.ConstantStepSize
        )
        return self.steps_given is None or not fixed

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of steps, variations and starts."""
        steps = 1 if self.adaptive else len(self.steps_given or ())
        return steps, self.conditions.variation_count, self.states.q.shape[0]

    @property
    def several_grids(self) -> bool:
        """Whether fixed steps differ among members."""
        return not self.adaptive and len(self.steps_given or ()) > 1

    @property
    def fixed_steps(self) -> int:
        """Number of fixed steps, of the run that has most."""
        return max(x.size - 1 for x in self._ends)

    @property
    def _batch(self) -> Member:
        """All members, as arrays to be mapped over."""
        step, variation, start = (jnp.asarray(x.ravel()) for x in np.indices(self.shape))
        grids = jnp.asarray(ends_of_steps(self._ends))[step] if self.several_grids else None
        return Member(start, variation, grids)

    def _residuals(self, params: PyTree) -> Float[Array, " residuals"]:
        cost: Any = self.cost

        def of(member):
            run = self._run(params, member)
            residuals = cost.residuals(run)
            # A cost of the user's may be NaN where the run is not.
            good = run.success & jnp.all(jnp.isfinite(residuals))
            return jnp.where(good, residuals, jnp.nan)

        rows = eqx.filter_vmap(of)(self._batch)
        return rows.ravel() / np.sqrt(rows.shape[0])

    def _run(self, params: PyTree, member: Member) -> Trajectory:
        state = jax.tree.map(lambda x: x[member.start], self.states)
        state = self.first_state(params, member.variation, state)
        system, formulation, controller = self.built(params, member.variation)
        forward = self.mode == "forward"
        adjoint = diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint()
        options: dict[str, Any] = {x: getattr(self, x) for x in _PASSED_ON} | self._times(member)
        # Of fixed steps the known number saves memory; one more, as round-off may make it one.
        most = self.max_steps if self.adaptive else self.fixed_steps + 1
        options |= {"controller": controller, "adjoint": adjoint, "max_steps": most}
        options |= {"throw": False, "start_tolerance": None}
        return simulate(system, formulation, state, **options)

    def _times(self, member: Member) -> dict[str, Any]:
        """End and steps of a run, as `simulate` takes them."""
        if member.grid is not None:
            controller = Grid(member.grid, direction_of(self.steps_given or ()))
            return {"t1": member.grid[-1], "dt": None, "stepsize_controller": controller}
        return {"t1": self.t1, "dt": None if self.steps_given is None else self.steps_given[0]}


# Settings that `simulate` has by the same names.
_PASSED_ON = ("t0", "solver", "stepsize_controller", "saveat", "backend")


def _name_of(cost: Callable) -> str:
    return getattr(cost, "__name__", type(cost).__name__)


class Logarithm(Module):
    """Natural logarithm of a positive objective, with the same minima.

    Gradients become relative. A violation that falls by many powers of ten is then descended on
    at one pace; its budget and mode are those of the objective. Where the objective is not
    positive, the logarithm is not finite (NaN, or `-inf` at zero), and `tune` takes no such step.

    Args:
        objective: positive scalar function of the parameters.
    """

    objective: Callable

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """Logarithm of the objective.

        Args:
            params: resolved parameters.
        """
        return jnp.log(self.objective(params))

    @property
    def mode(self) -> str | None:
        """How to differentiate: as the objective says, if it does."""
        return getattr(self.objective, "mode", None)

    @property
    def budget(self) -> str:
        """Step or work budget of the objective, in words; "" if it states none."""
        return getattr(self.objective, "budget", "")

    @property
    def certificate(self) -> Callable[[PyTree], Certificate]:
        """The function of parameters that says what is known of them, if the objective has one."""
        return self.objective.certificate  # pyright: ignore[reportFunctionMemberAccess]


def _check_states(states: State) -> None:
    """Require a batch of finite starts."""
    if jnp.ndim(states.q) != 2:
        raise ValueError(
            f"SimulationObjective: states.q has shape {jnp.shape(states.q)}, needs "
            "(starts, n); make a batch with perturbed_states(state, key, count)."
        )
    if fails(lambda *xs: all(np.isfinite(x).all() for x in xs), *jax.tree.leaves(states)):
        raise ValueError("SimulationObjective: a start is not finite.")


def _check_times(objective: SimulationObjective) -> None:
    """Require steps that lead to the end, and a budget of adaptive runs."""
    t0, t1 = objective.t0, objective.t1
    for dt in objective.steps_given or ():
        if fails(lambda t0, t1, dt: dt * (t1 - t0) > 0, t0, t1, dt):
            raise ValueError(
                f"SimulationObjective: dt = {dt} does not lead from t0 = {t0} to t1 = {t1}."
            )
    if objective.adaptive and objective.max_steps is None:
        raise ValueError(
            "SimulationObjective: an adaptive run has no work budget, and gains have an "
            "optimum only for one; give max_steps, or a fixed step dt."
        )


def _check_fitting(objective: SimulationObjective) -> None:
    """Require conditions, costs and saved times that fit the rest of an objective."""
    if objective.adaptive and objective.conditions.dt is not None:
        raise ValueError(
            "SimulationObjective: conditions give steps, but adaptive runs choose theirs; "
            "leave dt out of the conditions, or the stepsize_controller out of the objective."
        )
    if objective.system is not None and objective.conditions.variations is not None:
        raise ValueError(
            "SimulationObjective: variations are the second argument of `build(params, "
            "variation)`; give `build` in place of `system`."
        )
    if objective.start is not None and not callable(objective.start):
        raise TypeError(
            f"SimulationObjective: start is {described(objective.start)}; give a function of "
            "(params, state), or of (params, state, variation). Starts themselves are `states`."
        )
    subs: Any = None if objective.saveat is None else objective.saveat.subs
    if objective.several_grids and getattr(subs, "steps", 0) > 1:
        raise ValueError(
            f"SimulationObjective: saveat asks for one step of {subs.steps}, and rows are then "
            "at other times in runs of other steps; leave saveat out to save every step."
        )


def budget_of(objective: Any) -> str:
    """Steps or work, conditions and risk of a `SimulationObjective`."""
    if objective.adaptive:
        lasting = objective.t1 - objective.t0
        steps = f"adaptive, at most {objective.max_steps} steps in {lasting:g} s"
    else:
        made = ", ".join(f"{x:g}" for x in objective.steps_made)
        several = objective.several_grids
        last = f"to t = {objective.t1:g} s" if several else f"{objective.fixed_steps} steps"
        steps = f"h = {made} s, {last}"
    size, risk = _counted(objective.shape), in_words(objective.risk)
    parts = (_named(objective.solver_used), steps, size, risk)
    return ", ".join(x for x in parts if x)


def _named(solver: diffrax.AbstractSolver) -> str:
    """A solver in words, with the one that it wraps."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractWrappedSolver):
        return name
    projection = parts_of(solver).projection
    more = "" if projection is None else f", {projection.iterations} iterations"
    more += ", symmetric" if projection is not None and projection.symmetric else ""
    return f"{name}({_named(solver.solver)}{more})"


def _counted(shape: tuple[int, int, int]) -> str:
    """Numbers of variations, starts and runs of a batch of steps, variations and starts."""
    _, variations, starts = shape
    first = f"{variations} variations, " if variations > 1 else ""
    runs = f": {np.prod(shape)} runs" if np.prod(shape) > starts else ""
    return f"{first}{starts} starts{runs}"
