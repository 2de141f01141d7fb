"""What is known of a start when a run is made: alone, in a batch, or inside a compiled program."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from jaxdae.compiled import jit
from jaxdae.diagnosis.assumptions import check_assumptions, suited
from jaxdae.diagnosis.failure import Declared, declared, residuals
from jaxdae.formulations import AbstractFormulation
from jaxdae.linalg.solve_primitive import Batch
from jaxdae.simulation.run import depends_on_rank
from jaxdae.systems import State, System
from jaxdae.systems.checks import check_finite, check_tolerance, is_concrete, is_eager
from jaxdae.systems.independence import constraint_rank, Look, look, surely_independent


class Start(NamedTuple):
    """A start, without the internal state of a controller.

    Args:
        system: the declaration, its numbers as arrays of one precision.
        state: `State(q, v, w)`.
        t: time [s], an array of that precision.
    """

    system: System
    state: State
    t: Any


def suited_to_start(
    formulation: AbstractFormulation, start: Start, tolerance: float | None
) -> tuple[AbstractFormulation, bool]:
    """A formulation for a start: checked, its solves chosen and ranks held, where that is known.

    Numbers are known in eager runs, under `jax.grad` and `jax.vmap` of them, and of what a compiled
    program does not vary. They are judged on the host then.

    Args:
        formulation: as it was given.
        start: of one run, or of a member of a batch.
        tolerance: largest residual allowed, or `None`.

    Returns:
        The formulation, and whether nothing is left to judge when the program runs.

    Raises:
        ValueError: naming the entry, constraint or matrix at fault, the amount, and the remedy.
    """
    check_tolerance("start_tolerance", tolerance)
    if is_eager(formulation, start):
        return _checked(formulation, start, tolerance), True
    values = _values(start)
    q, v = values.state.q, values.state.v
    if is_concrete(values.system, q, v, values.t):
        # Inside a transformation a start off the constraints, or no number, is the user's choice.
        if not np.isfinite(np.concatenate([np.asarray(q), np.asarray(v)])).all():
            return formulation, False
        plain, start = _values(formulation), Start(values.system, State(q, v), values.t)
        with jax.core.eval_context():
            return _suited(formulation, plain, start, None, plain.examination.holds), True
    if not depends_on_rank(formulation, start.system, start.state):
        return formulation, True
    ranks = _ranks_of_members(values)
    if ranks is None:
        return formulation, False
    chosen = suited(formulation, *ranks)
    assumed = chosen.capabilities
    return chosen, not (ranks.dependent and assumed.independent_constraints)


def _values(tree):
    """A pytree without derivatives: where only they are traced, its numbers are known."""
    stop = lambda x: jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x  # noqa: E731
    return jax.tree.map(stop, tree)


def _checked(formulation, start: Start, tolerance: float | None):
    """The formulation with its solves chosen, after all checks of an eager run."""
    system, state, t = start
    check_finite(state)
    # Dense matrices of many bodies take long.
    examination = formulation.examination
    dense = examination.holds is None
    known = declared(system, t, state) if dense else None
    if tolerance is not None:
        residual = residuals(system, t, state) if known is None else known
        _check_consistent(system, state, t, residual, tolerance)
    chosen = _suited(formulation, formulation, start, known, examination.holds)
    problem = examination.start(system, t, state)
    if problem is not None:
        raise ValueError(problem)
    return chosen


def _suited(formulation, plain, start: Start, known: Declared | None, holds):
    """The formulation, `plain` without derivatives, its solves chosen for a start that is known."""
    system, state, t = start
    if holds is not None and is_concrete(plain) and holds(system, t, state):
        return formulation
    return check_assumptions(system, formulation, state, t, known)


def _check_consistent(system, state, t, residual, tolerance: float) -> None:
    size = max(np.abs(np.asarray(x)).max(initial=0.0) for x in (state.q, state.v))
    limit = tolerance * (1 + float(size))
    for level, values in (("position", residual.phi), ("velocity", residual.phi_dot)):
        values = np.abs(np.asarray(values))
        if not (values <= limit).all():
            i = int(np.argmax(values))  # the first NaN, if there is one
            if np.isnan(values[i]):
                raise ValueError(
                    f"constraint {system.labels().constraint(i)!r} is nan at {level} level at the "
                    f"start (t = {float(t):.6g}): it is not defined there. Start elsewhere, or "
                    "guard what divides by zero or takes a root of a negative number."
                )
            raise ValueError(
                f"the start is inconsistent: constraint {system.labels().constraint(i)!r} is "
                f"violated by {values[i]:.3g} at {level} level (allowed {limit:.1g}) at "
                f"t = {float(t):.6g}. Project it with jaxdae.consistent_state(system, q, v), or "
                "allow it with simulate(..., start_tolerance=None)."
            )


class MemberRanks(NamedTuple):
    """Ranks of the constraints at the starts of a batch.

    Args:
        dependent: whether some of any member are superfluous.
        rank: of each, with its axes in `jax.vmap`; NaN at a singular position.
    """

    dependent: bool
    rank: Any


class _UnknownError(Exception):
    """The numbers of a batch are not known: it is part of a compiled program."""


class _Judge:
    """Judges all members of a batch at once, and remembers what it found."""

    def __init__(self, structure, skeleton):
        self.structure, self.skeleton, self.dependent = structure, skeleton, False

    def ranks(self, arrays, batch: Batch) -> np.ndarray:
        """Of all members, in the axes of the batch."""
        values = self.structure, self.skeleton, arrays, batch
        count = int(np.prod(batch.sizes))  # with -1 NumPy would not know it of empty arrays
        flat = lambda x: np.asarray(x).reshape(count, *x.shape[len(batch.sizes) :])  # noqa: E731
        result = jax.tree.map(flat, _each(look, *values))
        # A start that is no number fails by itself.
        finite = np.isfinite(result.jac).all(axis=(1, 2))
        ranks = np.full(finite.size, result.jac.shape[1], result.jac.dtype)
        if not all(surely_independent(*x) for x in _doubtful(result, finite)):
            closer = jax.tree.map(flat, _each(constraint_rank, *values))
            ranks = np.where(finite & closer.regular, closer.rank, np.where(finite, np.nan, ranks))
        self.dependent = not (ranks == result.jac.shape[1]).all()
        return ranks.reshape(batch.sizes)


def _doubtful(result: Look, finite):
    """Members whose bounds do not show that their constraints are independent."""
    chosen = np.flatnonzero(finite & ~result.bounds_suffice())
    return zip(result.jac[chosen], result.phi[chosen], strict=True)


_judge = jex.Primitive("judge_starts")


@_judge.def_impl
def _judge_known(*arrays, judge: _Judge, batch: Batch):
    return jnp.asarray(judge.ranks(arrays, batch))


@_judge.def_abstract_eval
def _judge_unknown(*_, **__):
    raise _UnknownError


def _judge_batch(arrays, axes, *, judge: _Judge, batch: Batch):
    moved = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(arrays, axes, strict=True)]
    has = tuple(a is not None for a in axes)
    size = next(x.shape[0] for x, a in zip(moved, has, strict=True) if a)
    return _judge.bind(*moved, judge=judge, batch=batch.with_axis(size, has)), 0


batching.primitive_batchers[_judge] = _judge_batch


def _ranks_of_members(start: Start) -> MemberRanks | None:
    """Ranks at the starts of a batch whose numbers are known, else `None`.

    Inside of `jax.vmap` a value is hidden; the batching rule of a primitive sees all of them.
    """
    values = start.system, start.t, start.state.q, start.state.v
    arrays, skeleton = eqx.partition(values, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    judge = _Judge(structure, skeleton)
    try:
        rank = _judge.bind(*leaves, judge=judge, batch=Batch((), ((),) * len(leaves)))
    except _UnknownError:
        return None
    return MemberRanks(judge.dependent, rank)


@jit
def _each(function, structure, skeleton, arrays, batch: Batch):
    """`function(system, t, state)` of every member."""

    def one(*leaves):
        system, t, q, v = eqx.combine(jax.tree.unflatten(structure, leaves), skeleton)
        return function(system, t, State(q, v))

    for present in reversed(list(zip(*batch.present, strict=True))):
        one = jax.vmap(one, tuple(0 if x else None for x in present))
    return one(*arrays)
