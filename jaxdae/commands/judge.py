"""How a set of gains does on a batch of starts: one compiled program for all conditions."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.failure import describe_failure
from jaxdae.models.studies import Check, Study
from jaxdae.simulate import simulate
from jaxdae.solvers import RK4
from jaxdae.systems import State
from jaxdae.trajectory import Trajectory
from jaxdae.tuning import IntegratedViolation, perturbed_states


class Judgement(NamedTuple):
    """Means over a batch of starts; NaN where a start failed.

    Attributes:
        cost: integrated squared violation as it was tuned, the given starts not counted.
        cost_from_start: the same integral by the trapezoidal rule, the given starts counted.
        velocity_cost: integrated squared violation at velocity level.
        largest: largest violation after the first tenth of the time.
        failed: number of starts whose run failed.
    """

    cost: Float[Array, ""]
    cost_from_start: Float[Array, ""]
    velocity_cost: Float[Array, ""]
    largest: Float[Array, ""]
    failed: Float[Array, ""]


def tuned_cost() -> IntegratedViolation:
    """The cost that is tuned: squared position violation, the given start not counted."""
    return IntegratedViolation(position=1.0, velocity=0.0, from_start=False)


def judge(study: Study, formulation, check: Check, start: State, key) -> tuple[Judgement, Any]:
    """Judge gains under the conditions of a check.

    Args:
        study: what is being tuned.
        formulation: with the gains to judge.
        check: number of starts, size of perturbation, step, end time.
        start: unperturbed start.
        key: random key of the perturbations.

    Returns:
        `Judgement`, and the first start's run, ready to plot.
    """
    spread = study.spread * check.spread
    states = perturbed_states(start, key, check.count, position=spread, velocity=spread)
    t1 = study.t1 if check.t1 is None else check.t1
    rows = max(1, round(study.t1 / study.dt))
    # Whole steps of the tuned size, as many as it has: every check then has the same shapes.
    ts = study.dt * np.round(np.linspace(0.0, t1 / study.dt, rows + 1))
    ts[-1] = t1
    numbers = (jnp.asarray(t1), jnp.asarray(study.dt * check.dt), jnp.asarray(ts))
    judgement, first = _judge(study.system, formulation, states, *numbers)
    run = SimpleNamespace(**first, system=study.system)
    return jax.tree.map(np.asarray, judgement), run


@eqx.filter_jit
def _judge(system, formulation, states, t1, dt, ts):
    def lane(state):
        run = simulate(
            system,
            formulation,
            state,
            t1=t1,
            dt=dt,
            solver=RK4(),
            saveat=diffrax.SaveAt(ts=ts),
            adjoint=diffrax.ForwardMode(),
            throw=False,
            start_tolerance=None,
        )
        late = run.ts > 0.1 * t1
        phi = jnp.where(late[:, None], jnp.abs(run.violation.phi), 0.0)
        picture = {name: getattr(run, name) for name in _DRAWN}
        return _costs(run), jnp.max(phi), picture

    costs, largest, pictures = jax.vmap(lane)(states)
    failed = jnp.sum(~jnp.isfinite(costs[0]))
    means = [jnp.mean(c) for c in costs]
    judgement = Judgement(means[0], means[1], means[2], jnp.max(largest), failed)
    return judgement, jax.tree.map(lambda x: x[0], pictures)


_DRAWN = ("ts", "q", "v", "violation", "energy", "success")


def _costs(run: Trajectory):
    kinds = (
        tuned_cost(),
        IntegratedViolation(position=1.0, velocity=0.0),
        IntegratedViolation(position=0.0, velocity=1.0, from_start=False),
    )
    return tuple(jnp.where(run.success, kind(run), jnp.nan) for kind in kinds)


def breaking_times(study: Study, formulation, states: State) -> tuple[np.ndarray, str]:
    """Where adaptive runs from a batch of starts stop on the way to `study.beyond`.

    Returns:
        Time [s] at which each failed run stopped, and the first failure in words.
    """
    assert study.beyond is not None
    runs = _reach(study.system, formulation, states, jnp.asarray(study.beyond))
    failed = np.flatnonzero(~np.asarray(runs.success))
    if failed.size == 0:
        return np.zeros(0), ""
    return np.asarray(runs.final_time)[failed], describe_failure(runs.lane(int(failed[0])))


@eqx.filter_jit
def _reach(system, formulation, states, t1) -> Trajectory:
    def lane(state):
        return simulate(
            system,
            formulation,
            state,
            t1=t1,
            saveat=diffrax.SaveAt(t1=True),
            throw=False,
            start_tolerance=None,
        )

    return eqx.filter_vmap(lane)(states)
