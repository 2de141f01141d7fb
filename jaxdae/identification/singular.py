"""Singular positions that fitted runs pass, and the parameters with which these vanish."""

from collections.abc import Sequence
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.diagnosis.diagnostics import passages_along, passages_found
from jaxdae.diagnosis.passages import hermite, Passage, RANK, resolved, weyl
from jaxdae.identification.data import Experiment
from jaxdae.identification.nodes import label
from jaxdae.identification.runs import Readings, Settings
from jaxdae.reprs import shown
from jaxdae.systems import State

# Changes of the parameters that are tried, in their units: one in a hundred.
_CHANGE = 1e-2
# What of a change is in the direction in which constraints are dependent: less is due to the
# distance from the position, which is that many times the relative singular value at most.
_PER_DISTANCE = 10.0
# Position constraints lose rank where their least singular value is below this part of the largest.
_NEAR = 0.1
# Constraints with less than this weight in a combination take no part in it.
_PART = 1e-3
# Next to a position a change is across it that is so by this part.
_MOSTLY = 0.5
# Sharp turns of one run that are examined.
_MOST_TURNS = 3


class Opening(NamedTuple):
    """What a change of an unknown does at a singular position.

    Args:
        name: of the unknown; the logarithm of one is called `log …`.
        change: of it.
        distance: by which it moves the dependent constraints apart there, in their unit.
    """

    name: str
    change: float
    distance: float


class SingularPassage(NamedTuple):
    """Singular positions that the run of an experiment passes.

    Args:
        experiment: its name or number.
        times: when [s].
        least: least singular value met, as a part of its median.
        refused: why the formulation is not made for them, in words; else `None`.
        fixed: length of the fixed steps [s]; `None` for adaptive ones.
        openings: unknowns with which the first of the positions vanishes.
        constraints: names of those that depend on each other there.
        guessed: whether only the run with the first guess of the parameters does.
        turned: whether the run turns sharply next to the position instead of passing it.
    """

    experiment: str
    times: tuple[float, ...]
    least: float
    refused: str | None
    fixed: float | None
    openings: tuple[Opening, ...]
    constraints: tuple[str, ...]
    guessed: bool = False
    turned: bool = False

    def __repr__(self) -> str:
        return shown(self)


class _Place(NamedTuple):
    """A singular position.

    Args:
        t: time [s].
        q: coordinates, shape `(n,)`.
        combination: of the position constraints, a unit vector `y (m,)` with `y^T J` nearly zero;
            of none where it is not they that lose rank.
    """

    t: float
    q: jax.Array
    combination: np.ndarray

    @property
    def involved(self) -> np.ndarray:
        """Numbers of the constraints that depend on each other."""
        return np.flatnonzero(np.abs(self.combination) > _PART)


def singular_passages(
    task, x, made: Sequence[Readings], names: Sequence[str], experiments: Sequence[Experiment]
) -> tuple[SingularPassage, ...]:
    """Singular positions that runs pass.

    Between samples that are more than about a radian of the motion apart nothing is looked for.

    Args:
        task: what is fitted.
        x: all unknowns.
        made: what the model says there.
        names: of the unknowns that are parameters.
        experiments: what was measured.
    """
    found = []
    for batch, readings in zip(task.fit.batches, made, strict=True):
        for run, (i, interval) in enumerate(batch.members):
            member = lambda tree, run=run: _member(tree, run)  # noqa: E731
            count = task.layout.samples[i, interval].size
            rows = _rows(member(batch.spans), member(readings), count)
            result = _of_run(task, x, member(batch.given), rows, names)
            if result is not None:
                origin = float(np.asarray(batch.spans.origin)[run])
                times = tuple(t + origin for t in result.times)
                found.append(result._replace(experiment=label(i, experiments[i]), times=times))
    return tuple(found)


def _member(tree, run: int):
    """One run of a batch; what is no array all runs share."""
    return jax.tree.map(lambda a: a[run] if eqx.is_array(a) else a, tree)


def _rows(span, readings: Readings, count: int) -> tuple[np.ndarray, State]:
    """Times and states of a run, the start first."""
    first, states = jax.device_get((readings.first, readings.states))
    ts = np.append(np.asarray(span.start), np.asarray(span.samples)[:count])
    join = lambda a, b: np.concatenate([a[None], b[:count]])  # noqa: E731
    return ts, jax.tree.map(join, first, states)


def _of_run(task, x, given, rows, names) -> SingularPassage | None:
    fit = task.fit
    system, formulation, _ = fit.model.parts(fit.params(fit.split(x)[0]), given)
    ts, states = rows
    known = all(np.isfinite(a).all() for a in jax.tree.leaves(states))
    if not known:
        return None
    passages, typical = passages_along(system, formulation, ts, states)
    if not passages:
        return _turned(fit, x, given, system, rows, names)
    passes = formulation.capabilities.passes_singular_positions
    lowest = min(passages, key=lambda p: p.value)
    found = None if passes else passages_found(formulation, passages, typical)
    nearness = lowest.value / typical
    place = _place(system, lowest, ts, states)
    return SingularPassage(
        experiment="",
        times=tuple(p.time for p in passages),
        least=nearness,
        refused=None if found is None else found.message,
        fixed=_fixed_step(fit.model.settings),
        openings=_openings(fit, x, given, place, nearness, names),
        constraints=tuple(system.labels().constraint(k) for k in place.involved),
    )


def _place(system, passage: Passage, ts, states: State) -> _Place:
    """Where a run passes a singular position."""
    i = int(np.clip(np.searchsorted(ts, passage.time) - 1, 0, ts.size - 2))
    h = ts[i + 1] - ts[i]
    s = np.reshape((passage.time - ts[i]) / h, (1, 1, 1))
    ends = lambda a: (a[i][None, None], a[i + 1][None, None])  # noqa: E731
    q, _ = hermite(np, np.reshape(h, (1, 1, 1)), s, ends(states.q), ends(states.v))
    rows = jax.jacfwd(system.position_constraints, argnums=1)
    before, there = (np.asarray(rows(t, jnp.asarray(x))) for t, x in (
        (ts[0], states.q[0]), (passage.time, q[0, 0]),
    ))  # fmt: skip
    return _Place(passage.time, jnp.asarray(q[0, 0]), _combination(before, there))


def _turned(fit, x, given, system, rows, names) -> SingularPassage | None:
    """A sharp turn of a run next to a singular position that another parameter would let it pass.

    Only where samples follow the motion but for one interval, and singular values may vanish there.
    """
    ts, states = rows
    follows = np.concatenate([[True], resolved(np, ts, states.q, states.v), [True]])
    alone = np.flatnonzero(~follows[1:-1] & follows[:-2] & follows[2:])
    slopes = jax.jacfwd(system.position_constraints, argnums=1)
    for i in alone[:_MOST_TURNS]:
        one, other = (np.asarray(slopes(ts[k], jnp.asarray(states.q[k]))) for k in (i, i + 1))
        if one.shape[0] < 2:
            return None
        scales = _scales(one, other)[:, None]
        least = [float(np.linalg.svd(a * scales, compute_uv=False).min()) for a in (one, other)]
        if weyl(least[0], least[1], np.linalg.norm((one - other) * scales)) >= 0:
            continue
        k = int(i + np.argmin(least))
        left = np.linalg.svd((one, other)[k - i] * scales)[0][:, -1] * scales[:, 0]
        place = _Place(float(ts[k]), jnp.asarray(states.q[k]), left / np.linalg.norm(left))
        openings = _openings(fit, x, given, place, _MOSTLY / _PER_DISTANCE, names)
        if openings:
            involved = tuple(system.labels().constraint(j) for j in place.involved)
            dt = _fixed_step(fit.model.settings)
            times = (float(ts[i]), float(ts[i + 1]))
            return SingularPassage("", times, min(least), None, dt, openings, involved, turned=True)
    return None


def _fixed_step(settings: Settings) -> float | None:
    """Length of fixed steps; of adaptive ones `dt` is the first."""
    asked = settings.stepsize_controller
    fixed = asked is None or isinstance(asked, diffrax.ConstantStepSize)
    return settings.dt if fixed else None


def _scales(*jacobians: np.ndarray) -> np.ndarray:
    """Inverse of the largest length of each row."""
    lengths = np.linalg.norm(np.stack(jacobians), axis=2).max(axis=0)
    return 1 / np.where(lengths > 0, lengths, 1.0)


def _combination(before: np.ndarray, there: np.ndarray) -> np.ndarray:
    """What of the rows of a Jacobian vanishes that does not elsewhere; zeros for nothing."""
    scales = _scales(before, there)
    sizes = np.linalg.svd(before * scales[:, None], compute_uv=False)
    rank = int(np.sum(sizes > RANK * sizes.max(initial=0.0)))
    left, values, _ = np.linalg.svd(there * scales[:, None])
    if rank == 0 or values[rank - 1] > _NEAR * values[0]:
        return np.zeros(scales.size)
    combination = left[:, rank - 1] * scales
    return combination / np.linalg.norm(combination)


def _openings(fit, x, given, place: _Place, nearness: float, names) -> tuple[Opening, ...]:
    r"""Unknowns with which a singular position vanishes.

    The configurations next to a position with `y^T J = 0` are those of `y^T phi(q, p) = 0`, a form
    of second order in the free directions: two branches that cross. A change of the parameters with
    `y^T dphi/dp dp` not zero makes a hyperbola of them, which no motion crosses.
    """

    def phi(x, q):
        system = fit.model.parts(fit.params(fit.split(x)[0]), given)[0]
        return system.position_constraints(place.t, q)

    changes = _CHANGE * np.asarray(fit.units(np.asarray(x)))[: len(names)]
    slopes, jac = (np.asarray(a) for a in jax.jacfwd(phi, (0, 1))(x, place.q))
    slopes = slopes[:, : len(names)] * changes
    apart = np.abs(place.combination @ slopes)
    digits = np.finfo(slopes.dtype).eps ** 0.5
    # Where a change moves no constraint, its slopes are round-off in every direction: a distance
    # counts beside what a change of all coordinates, by the same part, moves the constraints.
    lengths = np.linalg.norm(jac, axis=1) * (1 + np.linalg.norm(place.q))
    round_off = digits * _CHANGE * np.linalg.norm(place.combination * lengths)
    limit = (_PER_DISTANCE * nearness + digits) * np.linalg.norm(slopes, axis=0) + round_off
    opened = np.flatnonzero(apart > limit)
    return tuple(Opening(names[k], float(changes[k]), float(apart[k])) for k in opened)
