"""Experiments as runs: intervals, starts, and which of them make one batch."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations.structure import depends_on
from jaxdae.identification.data import Experiment
from jaxdae.identification.nodes import label, passed, Piece, pieces
from jaxdae.identification.runs import Batch, Model, Span, Start, Template
from jaxdae.identification.starts import Freedom, freedom, Tangent, UnknownStart
from jaxdae.simulation.problem import START_TOLERANCE
from jaxdae.systems import consistent_state, State
from jaxdae.systems.dynamics import constraint_residuals
from jaxdae.systems.precision import in_dtype

# Runs of one batch take as many fixed steps; one this much longer than another has its own.
_MOST_LONGER = 2.0


@dataclasses.dataclass(frozen=True)
class _Begun:
    """How a piece starts: what the runs of one batch share, and what is its own."""

    guess: State
    freedom: Freedom
    function: Any
    project: bool
    origin: float


class Layout(NamedTuple):
    """All runs of a fit.

    Args:
        batches: runs of one kind each.
        freedoms: of each run's start, by batch and run.
        priors: number of independent measurements of starts.
        joints: pairs of runs, numbered through all batches, one of which goes on where the other
            ends.
        gaps: from the difference of the states at a joint to its independent part, in units of the
            motion's size, shape `(joints, d, 2n+k)`.
        samples: numbers of the samples of each interval, by experiment and interval.
    """

    batches: tuple[Batch, ...]
    freedoms: tuple[tuple[Freedom, ...], ...]
    priors: int
    joints: np.ndarray
    gaps: np.ndarray
    samples: dict[tuple[int, int], np.ndarray]

    @property
    def nodes(self) -> int:
        """Number of unknowns that the continuity of the states determines."""
        return self.gaps.shape[0] * self.gaps.shape[1] if self.gaps.size else 0


def layout(
    model: Model, params: Any, trained: Any, experiments: Sequence[Experiment], channels, intervals
) -> Layout:
    """Sort experiments into batches.

    Args:
        model: what explains them.
        params: from the trained arrays to resolved parameters.
        trained: the trained arrays to begin with.
        experiments: what was measured.
        channels: their names.
        intervals: into how many each experiment is divided.
    """
    made = []
    for i, experiment in enumerate(experiments):
        given = in_dtype((experiment.controller, experiment.conditions), jnp.result_type(float))
        parts = model.parts(params(trained), given)
        first, *later = pieces(i, experiment, intervals)
        begun = [_begun(model, params, trained, experiment, given, first)]
        nodes = passed(parts, model.settings, experiment, first, begun[0].guess, later)
        begun += [_node(parts, x, state) for x, state in zip(later, nodes, strict=True)]
        for piece, start in zip((first, *later), begun, strict=True):
            made.append((piece, start, given, _samples(experiment, piece, channels)))
    groups: list[list] = []
    for item in made:
        same = (g for g in groups if _fit_together(g[0], item))
        group = next(same, None)
        if group is None:
            groups.append([item])
        else:
            group.append(item)
    dt = model.settings.dt
    batches = tuple(_batch(group, dt) for group in groups)
    freedoms = tuple(tuple(x[1].freedom for x in group) for group in groups)
    priors = sum(x[1].freedom.priors for x in made)
    samples = {(x[0].experiment, x[0].interval): x[0].samples for x in made}
    ordered = [x for group in groups for x in group]
    return Layout(batches, freedoms, priors, *_joints(ordered), samples)


def _begun(model: Model, params, trained, experiment: Experiment, given, piece: Piece) -> _Begun:
    start, t = experiment.start, piece.start
    wanted = start.guess if isinstance(start, UnknownStart) else start
    function = None if isinstance(wanted, State) else wanted
    system = model.parts(params(trained), given)[0]
    guess = wanted if isinstance(wanted, State) else wanted(system)
    if not isinstance(guess, State):
        raise TypeError(
            f"identify: the start of experiment {label(piece.experiment, experiment)} is a "
            f"function that returned a {type(guess).__name__}, must return a State(q, v)."
        )
    if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(guess)):
        raise ValueError(
            f"identify: the start of experiment {label(piece.experiment, experiment)} is not "
            "finite; give numbers for q, v and w."
        )
    none = Freedom.none(guess.q.size, guess.w.size)
    origin = 0.0 if _time_matters(model.parts(params(trained), given), guess) else t
    if isinstance(start, UnknownStart):
        near = consistent_state(system, guess.q, guess.v, t, w=guess.w)
        along, constrained = freedom(system, t, near, start), _count(system, t, near) > 0
        near = near if function is None else guess
        return _Begun(near, along, function, constrained, origin)
    moves = function is None and _constraints_move(model, params, trained, given, t, guess)
    if not moves:
        _require_consistent(system, t, guess, label(piece.experiment, experiment))
    return _Begun(guess, none, function, moves, origin)


def _node(parts, piece: Piece, state: State) -> _Begun:
    """How a later interval starts: anywhere on the constraints, near a guess."""
    system, t = parts[0], piece.start
    near = consistent_state(system, state.q, state.v, t, w=state.w)
    origin = 0.0 if _time_matters(parts, near) else t
    free = freedom(system, t, near, UnknownStart(near))
    return _Begun(near, free, None, _count(system, t, near) > 0, origin)


def _joints(made: list) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of runs that meet, and the independent part of a gap in units of the motion's size.

    That is the size nearby: of unstable motions it changes by many powers of ten.
    """
    numbers = {(x[0].experiment, x[0].interval): i for i, x in enumerate(made)}
    pairs, gaps = [], []
    for (i, k), number in numbers.items():
        if k == 0:
            continue
        pairs.append((numbers[i, k - 1], number))
        near = (numbers.get((i, j)) for j in (k - 1, k, k + 1))
        same = [made[x][1].guess for x in near if x is not None]
        gaps.append(_gap(made[number][1].freedom.tangent, same))
    if not pairs:
        return np.zeros((0, 2), int), np.zeros((0, 0, 0))
    return np.array(pairs), np.stack(gaps)


def _gap(tangent: Tangent, states: list[State]) -> np.ndarray:
    basis = np.concatenate([tangent.q, tangent.v, tangent.w])
    sizes = []
    for name in ("q", "v", "w"):
        values = np.stack([np.asarray(getattr(x, name)) for x in states])
        size = np.abs(values).max(initial=0.0)
        sizes.append(np.full(values.shape[1], size if size > 0 else 1.0))
    scale = np.concatenate(sizes)[:, None]
    directions = basis / scale
    return np.linalg.pinv(directions / np.linalg.norm(directions, axis=0)) / scale.T


def _time_matters(parts, state: State) -> bool:
    """Whether a system or its input depends on time itself."""
    system, _, controller = parts
    system = in_dtype(system, state.q.dtype)
    if controller is not None and not callable(controller):
        return True

    def everything(t, q, v, w):
        u = None if controller is None else controller(t, q, v, w)
        result = constraint_residuals(system, t, q, v)
        lam = jnp.zeros_like(result.phi_dot)
        return (
            result,
            system.kinetic_energy(t, q, v),
            system.potential_energy(t, q),
            system.dissipation(t, q, v),
            system.force(t, q, v, w, u),
            system.reaction_dependent_force(t, q, v, w, u, lam),
            system.actuator_rate(t, q, v, w, u),
            system.mass_matrix(t, q),
        )

    return depends_on(everything, 0, jnp.zeros((), state.q.dtype), state.q, state.v, state.w)


def _count(system, t, state: State) -> int:
    result = constraint_residuals(in_dtype(system, state.q.dtype), t, state.q, state.v)
    return result.phi_dot.size


def _constraints_move(model: Model, params, trained, given, t, state: State) -> bool:
    """Whether a parameter moves the constraints at a known start."""

    def residuals(trained):
        system = in_dtype(model.parts(params(trained), given)[0], state.q.dtype)
        return constraint_residuals(system, t, state.q, state.v)

    slopes = jax.jacfwd(residuals)(trained)
    return any(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(slopes))


def _require_consistent(system, t, state: State, name: str) -> None:
    result = constraint_residuals(in_dtype(system, state.q.dtype), t, state.q, state.v)
    worst = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in (result.phi, result.phi_dot))
    size = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in (state.q, state.v))
    if not worst <= START_TOLERANCE * (1 + size):
        raise ValueError(
            f"identify: the start of experiment {name} is off the constraints by {worst:.3g}; make "
            "it consistent, jaxdae.consistent_state(system, q, v), or give UnknownStart(state)."
        )


class _Samples(NamedTuple):
    ts: np.ndarray
    values: np.ndarray
    weights: np.ndarray


def _samples(experiment: Experiment, piece: Piece, channels) -> _Samples:
    """Samples of a piece, zero and without weight where they are missing."""
    count = piece.samples.size
    values, weights = np.zeros((len(channels), count)), np.zeros((len(channels), count))
    for c, name in enumerate(channels):
        if name not in experiment.measurements:
            continue
        measured = experiment.measurements[name]
        x = measured.values[piece.samples]
        sigma = np.ones(count) if measured.sigma is None else measured.sigma[piece.samples]
        values[c] = np.where(np.isnan(x), 0.0, x)
        weights[c] = np.where(np.isnan(x), 0.0, 1.0 / sigma)
    return _Samples(experiment.ts[piece.samples], values, weights)


def _fit_together(one, other) -> bool:
    """Whether two runs are of one kind, so that one program makes both."""
    (first, a, given_a, _), (second, b, given_b, _) = one, other
    if a.function is not b.function or a.project != b.project:
        return False
    long, short = sorted((first.end - first.start, second.end - second.start), reverse=True)
    if first.start - a.origin != second.start - b.origin or long > _MOST_LONGER * short:
        return False
    trees = [(x.guess, x.freedom.tangent, given) for x, given in ((a, given_a), (b, given_b))]
    # Of what is no array, integers of conditions say, the runs of a batch share one value.
    shapes = [jax.tree.map(lambda x: x.shape if eqx.is_array(x) else x, x) for x in trees]
    return eqx.tree_equal(*shapes) is True


def _batch(group: list, dt: float | None) -> Batch:
    found, begun, given, samples = zip(*group, strict=True)
    origin = np.array([x.origin for x in begun])
    start = np.array([x.start for x in found]) - origin
    end = np.array([x.end for x in found]) - origin
    most = max(x.ts.size for x in samples)
    ts = np.stack([np.pad(x.ts, (0, most - x.ts.size), mode="edge") for x in samples])
    count = samples[0].weights.shape[0]
    seen = [c for c in range(count) if any(x.weights[c].any() for x in samples)]
    pad = lambda x: np.pad(x[seen], ((0, 0), (0, most - x.shape[1])))  # noqa: E731
    stack = lambda *xs: jnp.stack([jnp.asarray(x, jnp.result_type(float)) for x in xs])  # noqa: E731
    starts = Start(
        jax.tree.map(stack, *(x.guess for x in begun)),
        Tangent(*(stack(*x) for x in zip(*(b.freedom.tangent for b in begun), strict=True))),
    )
    i = int(np.argmax(end - start))
    duration = float(end[i] - start[i])
    steps = None if dt is None else max(1, int(np.ceil(duration / dt * (1 - 1e-9))))
    return Batch(
        Span(*(jnp.asarray(x) for x in (start, end, ts - origin[:, None], origin))),
        starts,
        _stacked(given),
        stack(*(pad(x.values) for x in samples)),
        stack(*(pad(x.weights) for x in samples)),
        tuple(seen),
        begun[0].function,
        begun[0].project,
        tuple((x.experiment, x.interval) for x in found),
        Template(float(start[i]), float(end[i]), steps, most),
    )


def _stacked(trees):
    arrays = [eqx.filter(x, eqx.is_array) for x in trees]
    return eqx.combine(
        jax.tree.map(lambda *xs: jnp.stack(xs), *arrays),
        eqx.filter(trees[0], eqx.is_array, inverse=True),
    )
