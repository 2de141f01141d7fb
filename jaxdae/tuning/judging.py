"""How a set of gains does on a batch of starts: one compiled program for all conditions."""

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.simulation.failure import describe_failure
from jaxdae.simulation.simulate import simulate
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.solvers import RK4
from jaxdae.systems import State
from jaxdae.tuning.costs import AbstractCost, IntegratedViolation
from jaxdae.tuning.starts import perturbed_states
from jaxdae.tuning.studies import Check, Goal, Study


class Judgement(NamedTuple):
    """Means over a batch of starts; NaN where a start failed.

    Attributes:
        cost: the cost as it was tuned.
        cost_from_start: the same by the trapezoidal rule, where that leaves out the given starts.
        velocity_cost: integrated squared violation of the constraints at velocity level.
        largest: largest residual after the first tenth of the time.
        failed: number of starts whose run failed.
        control: largest control, in each run's own units; 0 without a controller.
    """

    cost: Float[Array, ""]
    cost_from_start: Float[Array, ""]
    velocity_cost: Float[Array, ""]
    largest: Float[Array, ""]
    failed: Float[Array, ""]
    control: Float[Array, ""]


def judge(
    study: Study, params, check: Check, start: State, key, members: int = 1
) -> tuple[Judgement, Any]:
    """Judge gains under the conditions of a check.

    Args:
        study: what is being tuned.
        params: the gains to judge, resolved.
        check: number of starts, size of perturbation, step, end time.
        start: unperturbed start.
        key: random key of the perturbations.
        members: number of runs at least, those that exceed the starts not counted: with as many as
            the largest check has, one compiled program serves all.

    Returns:
        `Judgement`, and the first start's run, ready to plot.
    """
    deviation = study.deviation * check.deviation
    states = perturbed_states(start, key, check.count, position=deviation, velocity=deviation)
    member = np.arange(max(members, check.count))
    counted = member < check.count
    states = jax.tree.map(lambda x: x[np.where(counted, member, 0)], states)
    t1 = study.t1 if check.t1 is None else check.t1
    rows = max(1, round(study.t1 / study.dt))
    # Whole steps of the tuned size, as many as it has: every check then has the same shapes.
    ts = study.dt * np.round(np.linspace(0.0, t1 / study.dt, rows + 1))
    ts[-1] = t1
    numbers = (jnp.asarray(t1), jnp.asarray(study.dt * check.dt), jnp.asarray(ts))
    judgement, first = _judge(
        study.build, study.goal, params, states, jnp.asarray(counted), *numbers
    )
    run = SimpleNamespace(**first, system=study.system)
    return jax.tree.map(np.asarray, judgement), run


@jit
def _judge(build, goal: Goal, params, states, counted, t1, dt, ts):
    system, formulation, controller = build(params)

    def member(state):
        run = simulate(
            system,
            formulation,
            state,
            t1=t1,
            dt=dt,
            solver=RK4(),
            saveat=diffrax.SaveAt(ts=ts),
            controller=controller,
            adjoint=diffrax.ForwardMode(),
            throw=False,
            start_tolerance=None,
            work=True,
        )
        late = run.ts > 0.1 * t1
        off = goal.residuals(run)
        picture = {name: getattr(run, name) for name in _DRAWN} | {"residuals": off}
        largest = jnp.max(jnp.where(late[:, None], jnp.abs(off), 0.0))
        control = jnp.zeros(()) if run.u is None else jnp.nanmax(jnp.abs(run.u))
        return _costs(goal.cost, run), (largest, control), picture

    costs, (largest, control), pictures = jax.vmap(member)(states)
    failed = jnp.sum(counted & ~jnp.isfinite(costs[0]))
    # What is not counted repeats the first start, which changes no maximum.
    means = [jnp.mean(c, where=counted) for c in costs]
    judgement = Judgement(means[0], means[1], means[2], jnp.max(largest), failed, jnp.max(control))
    return judgement, jax.tree.map(lambda x: x[0], pictures)


_DRAWN = ("ts", "q", "v", "u", "violation", "energy", "work", "success")


def _costs(cost: AbstractCost, run: Trajectory):
    kinds = (
        cost,
        from_start(cost),
        IntegratedViolation(position=0.0, velocity=1.0, from_start=False),
    )
    return tuple(jnp.where(run.success, kind(run), jnp.nan) for kind in kinds)


def from_start(cost: AbstractCost) -> AbstractCost:
    """The cost with the given start counted, where it is not."""
    if isinstance(cost, IntegratedViolation):
        return dataclasses.replace(cost, from_start=True)
    return cost


def breaking_times(study: Study, params, states: State) -> tuple[np.ndarray, str]:
    """Where adaptive runs from a batch of starts stop on the way to `study.beyond`.

    Returns:
        Time [s] at which each failed run stopped, and the first failure in words.
    """
    assert study.beyond is not None
    runs = _reach(study.build, params, states, jnp.asarray(study.beyond))
    failed = np.flatnonzero(~np.asarray(runs.success))
    if failed.size == 0:
        return np.zeros(0), ""
    return np.asarray(runs.final_time)[failed], describe_failure(runs.member(int(failed[0])))


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
