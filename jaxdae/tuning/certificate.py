"""What is known of tuned parameters: decay of violations, margin of the step, the worst case seen.

Of linear constraint perturbation equations `dy/dt = H y` the rate of a Lyapunov function and the
step limit are theorems; the worst case is an observation, of so many members and no more. Where `H`
depends on the state, as with a finite constraint mass, rate and limit are those of each matrix by
itself, the worst of so many states along the motions of the runs, and not of the states between.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.analysis.lyapunov import lyapunov_certificate
from jaxdae.analysis.steps import spectral_limit
from jaxdae.compiled import jit
from jaxdae.control.base import capabilities_of
from jaxdae.formulations.structure import depends_on_any
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.stability_functions import amplification, has_stability_function
from jaxdae.systems.checks import constraint_counts
from jaxdae.tables import root_text

# Different matrices that are examined: each takes milliseconds, and most objectives have one.
_MOST_MATRICES = 16
_KINDS = ("constraint", "servo-constraint")
# States of each motion at which they are taken, its start and end among them.
_ROWS = 9
# Failed members that are named.
_MOST_NAMES = 8


class StabilityCertificate(NamedTuple):
    """Decay of what is stabilized, the least over all starts and variations.

    Args:
        what: "constraint" or "servo-constraint".
        lyapunov_rate: rate [1/s] at which the norm of a Lyapunov function is sure to decay; `None`
            where there is none, because a violation does not decay.
        slowest_root: the root of the perturbation equations with the largest real part [1/s].
        step_limit: largest step [s] that damps all roots; infinite where every step does, `None`
            where there is no rate or the method has no stability function.
        step: largest step of the objective [s], `None` of adaptive runs.
        step_margin: `step_limit / step`; above 1 every step damps.
        factor: largest factor by which any of the objective's steps multiplies a mode of the
            violation: under several steps not always that of the largest.
        steps: number of different steps of the objective.
        states: number of states along the motions, starts included, of which it is the worst;
            `None` where the perturbation equations are the same at all of them.
    """

    what: str
    lyapunov_rate: float | None
    slowest_root: complex
    step_limit: float | None = None
    step: float | None = None
    step_margin: float | None = None
    factor: float | None = None
    steps: int = 0
    states: int | None = None


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
        parts = [_in_words(x) for x in self.stability] or ["no stabilization to certify"]
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
        distinct, note = _distinct(np.asarray(matrices, np.float64), what)
        notes += note
        if distinct:
            worst = _slowest([_certified(what, H, solver, steps) for H in distinct])
            found.append(worst._replace(states=len(matrices) if varying else None))
    return tuple(found), (*notes, *_unknown(objective, params, found, solver, step))


def _distinct(matrices, what: str) -> tuple[list[np.ndarray], list[str]]:
    """Different ones among matrices at several states; where there are many, the extreme ones."""
    finite = np.isfinite(matrices).all(axis=(1, 2))
    wrong, count = int((~finite).sum()), len(matrices)
    notes = [f"the {what} perturbation equations are not finite at {wrong} of {count} states"]
    kept = np.unique(matrices[finite], axis=0) if finite.any() else matrices[:0]
    if len(kept) > _MOST_MATRICES:
        # The slowest roots limit rates, the largest limit steps.
        roots = np.linalg.eigvals(kept)
        slowest, largest = np.argsort(-roots.real.max(axis=1)), np.argsort(-abs(roots).max(axis=1))
        half = _MOST_MATRICES // 2
        kept = kept[np.unique(np.concatenate([slowest[:half], largest[:half]]))]
    return list(kept), notes if wrong else []


def _certified(what: str, H, solver, steps: tuple[float, ...]) -> StabilityCertificate:
    """Of one matrix and all steps of an objective; none where they are adaptive."""
    roots, step = np.linalg.eigvals(H), max(steps, default=None)
    count, slowest = len(set(steps)), complex(roots[np.argmax(roots.real)])
    if not slowest.real < 0:
        return StabilityCertificate(what, None, slowest, step=step, steps=count)
    rate = _guaranteed_rate(H)
    if not has_stability_function(solver) or step is None:
        return StabilityCertificate(what, rate, slowest, step=step, steps=count)
    limit = spectral_limit(roots, solver).limit
    factor = float(np.max(amplification(solver, np.multiply.outer(steps, roots))))
    return StabilityCertificate(what, rate, slowest, limit, step, limit / step, factor, count)


def _guaranteed_rate(H) -> float | None:
    """Rate of the norm of a Lyapunov function: the best of those with one parameter, or balanced.

    `H` of one half and no velocity constraints is that of `lyapunov_certificate`.
    """
    half = len(H) // 2
    block = np.block([[np.zeros((half, half)), np.eye(half)]])
    if len(H) == 2 * half and np.array_equal(H[:half], block):
        try:
            return lyapunov_certificate(-H[half:, half:], -H[half:, :half]).rate
        except ValueError:
            pass  # gains that are not symmetric positive definite, though H is Hurwitz
    from scipy.linalg import matrix_balance

    balanced, _ = matrix_balance(H, permute=False, separate=True)
    try:
        return lyapunov_certificate(H=balanced).rate / 2
    except ValueError:
        return None


def _slowest(each: list[StabilityCertificate]) -> StabilityCertificate:
    """The least of each over several states: of rates, limits and margins; the largest factor."""
    unstable = [x for x in each if x.lyapunov_rate is None]
    if unstable:
        return max(unstable, key=lambda x: x.slowest_root.real)
    slowest = min(each, key=lambda x: x.lyapunov_rate or 0.0)
    if slowest.step_limit is None:
        return slowest
    shortest = min(each, key=lambda x: x.step_limit or 0.0)
    return slowest._replace(
        step_limit=shortest.step_limit,
        step_margin=shortest.step_margin,
        factor=max(x.factor or 0.0 for x in each),
        slowest_root=max((x.slowest_root for x in each), key=lambda x: x.real),
    )


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


def _in_words(x: StabilityCertificate) -> str:
    if x.lyapunov_rate is None:
        return f"{x.what} violations do not decay: root {root_text(x.slowest_root, 4)} 1/s"
    where = "" if x.states is None else f" at the worst of {x.states} states of the motions"
    text = f"{x.what} violations decay by exp(-{x.lyapunov_rate:.4g} t){where}"
    if x.step_margin is None or x.step_limit is None or x.factor is None or x.step is None:
        return text
    if x.factor > 1:
        return (
            f"UNSTABLE: a step of up to {x.step:.4g} s multiplies {x.what} violations by "
            f"{x.factor:.3g}, the step limit is {x.step_limit:.4g} s ({text} under exact "
            "integration alone); take smaller gains or shorter steps"
        )
    most = "at most " if x.steps > 1 else ""
    return (
        f"{text}, step limit {x.step_limit:.4g} s = {x.step_margin:.3g} steps, "
        f"modes times {most}{x.factor:.3g} in each"
    )


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
