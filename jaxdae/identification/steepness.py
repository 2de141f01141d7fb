"""Smooth friction that changes too fast for fixed steps."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.identification.data import Experiment, label
from jaxdae.identification.declared import Mechanism, of_declaration
from jaxdae.identification.fit import MeasurementModel, Runs
from jaxdae.reprs import shown
from jaxdae.systems import evaluate
from jaxdae.systems.dynamics import constraint_residuals
from jaxdae.systems.precision import in_dtype

# Rate of decay times the step up to which explicit methods of second order are stable.
_STABLE = 2.0
# What saturates friction: its slope at rest says nothing of motion, and motion nothing of it.
_SATURATING = {"tanh", "logistic", "atan", "atan2", "erf", "exp", "log1p", "sqrt", "rsqrt"}
_MOST_PLACES = 20


class SteepFriction(NamedTuple):
    """Friction at rest that decays within less than a step.

    Args:
        experiment: name or number of the one whose run has it.
        rate: at which a velocity decays there [1/s].
        step: fixed step of the runs [s].
    """

    experiment: str
    rate: float
    step: float

    def __repr__(self) -> str:
        return shown(self)


def steep_friction(task: Any, x, made, experiments: Sequence[Experiment]) -> SteepFriction | None:
    """The steepest friction at rest along the runs, where their fixed steps are too long for it.

    At `v = 0` velocities along the constraints decay by `M^{-1} D` with `D = -df/dv`; more than
    twice within a step explicit methods make oscillations of it.

    Args:
        task: the fit.
        x: its unknowns.
        made: predictions of its batches.
        experiments: what was measured.
    """
    step, solver = task.fit.model.settings.fixed_step, task.fit.model.settings.solver
    if step is None or not (solver is None or isinstance(solver, diffrax.AbstractERK)):
        return None
    worst: SteepFriction | None = None
    for batch, found in zip(task.fit.batches, made, strict=True):
        unknowns, states = task.fit.params(x), found.states
        parts = task.fit.model.parts(unknowns, batch.member(batch.runs, 0).given)
        if not isinstance(parts, Mechanism) or not _saturates(parts, found):
            continue
        rates = np.asarray(_rates(task.fit.model, unknowns, batch.runs, states.q, states.w))
        k = int(np.argmax(rates))
        if rates[k] * step > _STABLE and (worst is None or rates[k] > worst.rate):
            i = batch.members[k][0]
            worst = SteepFriction(label(i, experiments[i]), float(rates[k]), float(step))
    return worst


def _saturates(parts: Mechanism, found) -> bool:
    if parts.controller is not None and not callable(parts.controller):
        return False
    state = jax.tree.map(lambda x: x[0, 0], found.states)
    q, w = state.q, state.w

    def find() -> bool:
        force = lambda v: parts.system.force(0.0, q, v, w, _input(parts, q, v, w))  # noqa: E731
        loss = lambda v: parts.system.dissipation(0.0, q, v)  # noqa: E731
        names = {x for f in (force, loss) for x in _primitives(jax.make_jaxpr(f)(q * 0).jaxpr)}
        return bool(names & _SATURATING)

    return of_declaration("saturates", (parts.system, parts.controller), state, find)


def _input(parts: Mechanism, q, v, w):
    return None if parts.controller is None else parts.controller(jnp.zeros((), q.dtype), q, v, w)


def _primitives(jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for x in jax.tree.leaves(equation.params, is_leaf=lambda y: hasattr(y, "jaxpr")):
            if hasattr(x, "jaxpr"):
                yield from _primitives(x.jaxpr)


@eqx.filter_jit
def _rates(model: MeasurementModel, unknowns: Any, runs: Runs, q, w):
    """Largest rate of each run [1/s], at some of its samples, of shape `(runs, times, …)`."""
    places = np.unique(np.linspace(0, q.shape[1] - 1, _MOST_PLACES).round().astype(int))

    def of_run(member, q, w):
        parts = model.parts(unknowns, member.given)
        return jax.vmap(lambda q, w: _rate(parts, q, w))(q, w).max()

    return jnp.nan_to_num(eqx.filter_vmap(of_run)(runs, q[:, places], w[:, places]))


def _rate(parts: Any, q, w):
    """Largest rate of decay at rest, along the constraints."""
    rest, system = jnp.zeros_like(q), in_dtype(parts.system, q.dtype)
    zero = jnp.zeros((), q.dtype)
    force = lambda v: evaluate(system, zero, q, v, w, _input(parts, q, v, w)).force  # noqa: E731
    slope = -jax.jacfwd(force)(rest)
    jac = jax.jacfwd(lambda v: constraint_residuals(system, zero, q, v).phi_dot)(rest)
    across = jnp.linalg.pinv(jac) @ jac if jac.size else jnp.zeros_like(slope)
    free = jnp.eye(q.size) - across
    mass = evaluate(system, zero, q, rest, w, _input(parts, q, rest, w)).mass
    root = jnp.linalg.inv(jnp.linalg.cholesky(free @ mass @ free + across))
    inner = root @ free @ (slope + slope.T) @ free @ root.T / 2
    return jnp.linalg.eigvalsh(inner).max()
