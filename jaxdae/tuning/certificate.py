"""What is known of tuned parameters: decay of violations, margin of the step, the worst case seen.

Of linear constraint perturbation equations `dy/dt = H y` the rate of a Lyapunov function and the
step limit are theorems; the worst case is an observation, of so many members and no more. Where `H`
depends on the state, as with a finite constraint mass, rate and limit are those of each matrix by
itself, the worst of so many states along the motions of the runs, and not of the states between.
"""

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.analysis.stability_certificate import StabilityCertificate, worst_stability
from jaxdae.compiled import jit
from jaxdae.control.base import capabilities_of
from jaxdae.formulations.structure import depends_on_any
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.stability_functions import has_stability_function
from jaxdae.systems.checks import constraint_counts

_KINDS = ("constraint", "servo-constraint")
# States of each motion at which they are taken, its start and end among them.
_ROWS = 9
# Failed members that are named.
_MOST_NAMES = 8


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What holds for a set of parameters, and what was seen.

    Attributes:
        stability: a certificate for each kind of stabilization; empty without any.
        worst_cost: largest cost of the members that reached their end; NaN if none did.
        worst_member: the conditions of that member.
        members: number of members: starts times steps and variations.
        failed: number of members whose run failed.
        failed_members: conditions of the first of those.
        budget: of the objective.
        notes: what is not known, and why.
    """

    stability: tuple[StabilityCertificate, ...]
    worst_cost: float
    worst_member: str
    members: int
    failed: int
    failed_members: tuple[str, ...]
    budget: str
    notes: tuple[str, ...]

    @property
    def lyapunov_rate(self) -> float | None:
        """The least rate [1/s] of what is stabilized; `None` without one."""
        return _least(x.lyapunov_rate for x in self.stability)

    @property
    def step_margin(self) -> float | None:
        """The least step limit over the largest step; `None` where it is not known."""
        return _least(x.step_margin for x in self.stability)

    @property
    def states(self) -> int | None:
        """Most states of which rates and limits are the worst; `None` where one tells all."""
        return max((x.states for x in self.stability if x.states is not None), default=None)

    def summary(self) -> str:
        """All of it in one line."""
        parts = [x.summary() for x in self.stability] or ["no stabilization to certify"]
        reached = self.members - self.failed
        worst = f"worst cost {self.worst_cost:.4g} of {reached} runs ({self.worst_member})"
        parts.append(worst if reached else "no run reached its end")
        if self.failed:
            parts.append(f"{self.failed} of {self.members} failed: {self.failed_members[0]} first")
        return "; ".join([*parts, *self.notes])

    def __str__(self) -> str:
        return self.summary()

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists alone; `None` for what is not finite or not known."""
        stability = [
            {name: _plain(value) for name, value in x._asdict().items()} for x in self.stability
        ]
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        plain = {name: _plain(value) for name, value in fields.items() if name != "stability"}
        rates = {"lyapunov_rate": self.lyapunov_rate, "step_margin": _plain(self.step_margin)}
        return plain | rates | {"stability": stability}


def certificate(objective: Any, params: PyTree, costs: Any = None) -> Certificate:
    """What is known of parameters under the conditions of an objective.

    All members run once more, unless their costs are known and nothing else is asked of them.
    Constraint perturbation equations are taken at all starts and variations and, where they depend
    on the state, at states along all motions; the rates and limits are those of the slowest.

    Args:
        objective: a `SimulationObjective`.
        params: resolved parameters.
        costs: of every member, shape (members,), NaN where its run failed, if they are known.

    Returns:
        `Certificate`.
    """
    varies = _varies(objective, params)
    along = any(varies)
    found, matrices, saved = _seen(objective, params, costs is None or along, along)
    costs = np.asarray(costs if found is None else found)
    good, members = np.isfinite(costs), objective.members
    worst = int(np.argmax(np.where(good, costs, -np.inf)))
    some = bool(good.any())
    stability, notes = _stability(objective, params, varies, matrices, saved)
    failed = np.flatnonzero(~good)
    return Certificate(
        stability=stability,
        worst_cost=float(costs[worst]) if some else float("nan"),
        worst_member=members.name(worst) if some else "",
        members=costs.size,
        failed=failed.size,
        failed_members=tuple(members.name(int(i)) for i in failed[:_MOST_NAMES]),
        budget=objective.budget,
        notes=notes,
    )


@jit
def _seen(objective, params, run: bool, along: bool):
    """Costs where members run; matrices `H` of the constraints and of servo-constraints, or `None`.

    They are those of all starts and variations and, `along` the motions that are saved, of states
    there; last whether they are.
    """

    def read(run):
        if not along or not run.plain:
            return None
        reached = jnp.sum(jnp.isfinite(run.ts))
        rows = (jnp.linspace(0.0, 1.0, _ROWS) * jnp.maximum(reached - 1, 0)).astype(int)
        return run.ts[rows], jax.tree.map(lambda x: x[rows], run.states)

    costs, seen = objective.costs_and(params, read) if run else (None, None)
    starts, count = objective.states.q.shape[0], objective.conditions.variation_count
    variations = jnp.repeat(jnp.arange(count), starts)
    states = jax.tree.map(lambda x: jnp.tile(x, (count, 1)), objective.states)
    states = eqx.filter_vmap(partial(objective.first_state, params))(variations, states)
    places = (variations, jnp.full(count * starts, objective.t0, states.q.dtype), states)
    if seen is not None:
        theirs = jnp.asarray(np.repeat(objective.members.variation, _ROWS))
        ts, states = jax.tree.map(lambda x: x.reshape(x.shape[0] * _ROWS, *x.shape[2:]), seen)
        places = jax.tree.map(lambda *x: jnp.concatenate(x), places, (theirs, ts, states))

    def matrices(variation, t, state):
        return _at(objective.built(params, variation), t, state)

    return costs, eqx.filter_vmap(matrices)(*places), seen is not None


def _at(parts, t, state):
    """`H` of the constraints, and of servo-constraints, at a state."""
    system, formulation, controller = parts
    servo = capabilities_of(controller).perturbation_matrix(t, state.q, state.v, state.w)
    return formulation.perturbation_matrix(system, t, state), servo


def _varies(objective, params) -> tuple[bool, bool]:
    """Whether matrices depend on the state: of constraints, and of servo-constraints."""
    parts, first = objective.built(params, 0), jax.tree.map(lambda x: x[0], objective.states)
    t = jnp.asarray(objective.t0, objective.states.q.dtype)
    of = (lambda t, x: _at(parts, t, x)[0]), (lambda t, x: _at(parts, t, x)[1])
    return depends_on_any(of[0], t, first), depends_on_any(of[1], t, first)


def _stability(
    objective, params, varies: tuple[bool, bool], both, saved: bool
) -> tuple[tuple[StabilityCertificate, ...], tuple[str, ...]]:
    """Certificates of what is stabilized, and notes on what is not."""
    solver, projection = parts_of(objective.solver_used)
    step, steps, found, notes = objective.largest_step, objective.steps_made, [], []
    for what, matrices, varying in zip(_KINDS, both, varies, strict=True):
        if matrices is None or not matrices.size:
            continue
        if objective.t1 < objective.t0 and what != "constraint":
            notes.append(f"time runs backward, in which {what} violations that decay grow")
            continue
        if what == "constraint" and projection is not None:
            notes.append("every step is projected onto the constraints: no violation is left")
            continue
        if varying and not saved:
            notes.append(f"no states of the runs are saved: {what} rates are those of the starts")
        numbers = np.asarray(matrices, np.float64)
        worst, wrong = worst_stability(what, numbers, solver, steps)
        if wrong:
            words = f"the {what} perturbation equations are not finite at {wrong} of"
            notes.append(f"{words} {len(matrices)} states")
        if worst is not None:
            found.append(worst._replace(states=len(matrices) if varying else None))
    return tuple(found), (*notes, *_unknown(objective, params, found, solver, step))


def _unknown(objective, params, found, solver, step) -> list[str]:
    """What is not known, in words."""
    notes = []
    if not any(x.what == "constraint" for x in found):
        system, formulation, _ = objective.built(params, 0)
        first = jax.tree.map(lambda x: x[0], objective.states)
        constrained = sum(constraint_counts(system, first)) > 0
        if not constrained:
            notes.append("the system has no constraints: the worst case seen is all that is known")
        elif formulation.capabilities.stabilization is None:
            notes.append("no constraint gains: violations neither decay nor grow by themselves")
    if found and step is None:
        notes.append("steps are adaptive: their limit is kept by the step control")
    elif found and not has_stability_function(solver):
        notes.append(f"{type(solver).__name__} has no stability function: no step limit is known")
    return notes


def _least(values) -> float | None:
    """The least of numbers, if all are known."""
    known = list(values)
    return None if not known or any(x is None for x in known) else min(known)


def _plain(value: Any) -> Any:
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value
