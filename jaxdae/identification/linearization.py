"""Residuals and their derivatives record by record: by what all share, and by what one has alone.

A record depends on the unknowns that all share and on its own start alone. Derivatives are made and
kept in that form, so that the work grows with the number of records and not with its cube.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxdae.identification.fit import Batch, Fit, Predictions, Runs, Samples, values_of
from jaxdae.tuning.parametrizations import resolve

# What a row of residuals is, unless it is the number of its channel.
OF_START, OF_GAP = -1, -2


class RunDerivatives(NamedTuple):
    """Of the runs of a batch, leading axes `(fits, runs)`."""

    # Differences from the samples in the units of the weights, `(channels * times,)`, then of the
    # start from its guess.
    value: Any
    shared: Any  # derivatives by the unknowns that all records share
    own: Any  # and by the coordinates of the start
    sides: Any  # state at the start and at the end with derivatives by both, for gaps
    made: Predictions


class Evaluation(NamedTuple):
    """Residuals of a batch of fits and what they follow from, leading axis `fits`."""

    runs: list[RunDerivatives]  # by batch
    priors: tuple[Any, Any]  # residuals of the parameters' priors, derivatives by the shared ones


def value_and_jacobian(function, x):
    """A function's value and its Jacobian, by forward differentiation."""
    twice = lambda x: (function(x),) * 2  # noqa: E731
    jac, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jac


@eqx.filter_jit
def evaluate(fit: Fit, x: Float[Array, "fits p"], values: Samples) -> Evaluation:
    """Residuals of a batch of fits, in unit noise, with their derivatives, from one set of runs."""
    return eqx.filter_vmap(lambda x, values: _evaluated(fit, x, values))(x, values)


def _evaluated(fit: Fit, x: Float[Array, " p"], values: Samples) -> Evaluation:
    shared = x[: fit.shared_count]

    def known(shared):
        expected = values_of(fit.raw_of_shared(shared))[fit.priors.entries]
        return (expected - values.priors) / fit.priors.sigmas

    made = zip(fit.batches, fit.split(x)[1], values.channels, values.starts, strict=True)
    return Evaluation(
        [_runs(fit, batch, shared, z, samples, starts) for batch, z, samples, starts in made],
        value_and_jacobian(known, shared),
    )


def _runs(fit: Fit, batch: Batch, shared, z, samples, starts) -> RunDerivatives:
    p, joined = shared.size, fit.joints.shape[0] > 0

    def one(member: Runs, weights, z, measured, guessed):
        def rows(y):
            made = fit.model.of_run(resolve(fit.raw_of_shared(y[:p])), batch, member, y[p:])
            differences = ((made.values - measured) * weights).ravel()
            value = jnp.concatenate([differences, member.prior @ y[p:] - guessed])
            return value, sides(made, joined), made

        def twice(y):
            *parts, made = rows(y)
            return parts, (parts, made)

        slopes, ((value, ends), made) = jax.jacfwd(twice, has_aux=True)(
            jnp.concatenate([shared, z])
        )
        of_rows, of_ends = slopes
        return RunDerivatives(
            value,
            of_rows[:, :p],
            of_rows[:, p:],
            (ends, of_ends[..., :p], of_ends[..., p:]),
            made,
        )

    return eqx.filter_vmap(one)(batch.runs, batch.weights, z, samples, starts)


def sides(made: Predictions, joined: bool) -> Float[Array, "2 n"]:
    """Where a run begins and ends; nothing where no other run goes on from there."""
    if not joined:
        return jnp.zeros((2, 0))
    first = ravel_pytree((made.first, made.own))[0]
    last = ravel_pytree((jax.tree.map(lambda x: x[-1], made.states), made.own))[0]
    return jnp.stack([first, last])


def triangle(matrix: np.ndarray) -> np.ndarray:
    """`R` of the factorization `Q R` of a matrix, or of each of a stack."""
    return np.asarray(np.linalg.qr(matrix, mode="r"))


class Group(NamedTuple):
    """Records whose residuals have the same form, of one fit."""

    value: np.ndarray  # residuals, those of gaps last, shape `(records, m)`
    shared: np.ndarray  # derivatives by what all records share, shape `(records, m, p)`
    own: np.ndarray  # derivatives by what each has alone, shape `(records, m, d)`
    entries: np.ndarray  # which unknowns these are, shape `(records, d)`
    nodes: np.ndarray  # which of them belong to starts of later intervals, shape `(d,)`
    rows: np.ndarray  # channel of each residual, or what else it is, shape `(m,)`
    places: np.ndarray  # its sample, numbered through the record, shape `(m,)`
    members: tuple[int, ...]  # numbers of the experiments

    @property
    def samples(self) -> np.ndarray:
        """Which residuals are no gaps."""
        return self.rows != OF_GAP


class LinearizedFit(NamedTuple):
    """Residuals and derivatives of one fit."""

    groups: list[Group]
    priors: np.ndarray  # residuals of the parameters' priors, shape `(k,)`
    prior_slopes: np.ndarray  # derivatives, shape `(k, p)`
    unknowns: int  # how many there are
    precision: np.dtype  # of the runs

    @property
    def finite(self) -> bool:
        """Whether nothing is infinite or NaN."""
        parts = [a for g in self.groups for a in (g.value, g.shared, g.own)]
        return all(np.isfinite(a).all() for a in (*parts, self.priors, self.prior_slopes))

    @property
    def squares(self) -> float:
        """Sum of squares, those of gaps included."""
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (float(np.sum(g.value**2)) for g in self.groups)
            return sum(parts) + float(np.sum(self.priors**2))

    @property
    def gaps(self) -> np.ndarray:
        """Residuals of the gaps."""
        return np.concatenate([g.value[:, ~g.samples].ravel() for g in self.groups])

    def weighted(self, noise: np.ndarray, weight: float) -> "LinearizedFit":
        """In units of noise levels, one for each channel, and with a weight of the gaps."""
        groups = []
        for g in self.groups:
            scale = np.where(g.rows >= 0, 1.0 / noise[np.maximum(g.rows, 0)], 1.0)
            scale = np.where(g.rows == OF_GAP, weight, scale)
            with np.errstate(over="ignore", invalid="ignore"):
                groups.append(
                    g._replace(
                        value=g.value * scale,
                        shared=g.shared * scale[:, None],
                        own=g.own * scale[:, None],
                    )
                )
        return self._replace(groups=groups)

    def largest(self) -> np.ndarray:
        """Largest derivative by each unknown, shape `(unknowns,)`."""
        p = self.prior_slopes.shape[1]
        found = np.zeros(self.unknowns)
        found[:p] = np.abs(self.prior_slopes).max(axis=0, initial=0.0)
        for g in self.groups:
            found[:p] = np.maximum(found[:p], np.abs(g.shared).max(axis=(0, 1), initial=0.0))
            found[g.entries] = np.abs(g.own).max(axis=1, initial=0.0)
        return found

    def norms(self) -> np.ndarray:
        """Lengths of the columns of the Jacobian, shape `(unknowns,)`."""
        p, largest = self.prior_slopes.shape[1], self.largest()
        scale = np.where(largest > 0, largest, 1.0)  # squares of large numbers would overflow
        squares = np.zeros(self.unknowns)
        squares[:p] = np.sum((self.prior_slopes / scale[:p]) ** 2, axis=0)
        for g in self.groups:
            squares[:p] += np.sum((g.shared / scale[:p]) ** 2, axis=(0, 1))
            squares[g.entries] = np.sum((g.own / scale[g.entries][:, None]) ** 2, axis=1)
        with np.errstate(over="ignore"):
            return scale * np.sqrt(squares)

    def gradient(self) -> np.ndarray:
        """Of half the sum of squares, by what all records share."""
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (np.einsum("em,emp->p", g.value, g.shared) for g in self.groups)
            return sum(parts, self.priors @ self.prior_slopes)

    def closed(self) -> "LinearizedFit":
        """Residuals by what is left when later starts follow from closed gaps."""
        groups = []
        for g in moved_along(self).groups:
            rows = g.samples
            groups.append(
                g._replace(
                    value=g.value[:, rows],
                    shared=g.shared[:, rows],
                    own=g.own[:, rows][:, :, ~g.nodes],
                    entries=g.entries[:, ~g.nodes],
                    nodes=g.nodes[~g.nodes],
                    rows=g.rows[rows],
                    places=g.places[rows],
                )
            )
        return self._replace(groups=groups)


class Directions(NamedTuple):
    """Changes of later starts that keep the gaps of the records of a group as they are."""

    by_shared: np.ndarray  # with what all records share, shape `(records, d, p)`
    by_own: np.ndarray  # with the first start and with the gaps themselves, `(records, d, d)`


def directions(group: Group) -> Directions | None:
    """Along which unknowns of a group move; `None` where they move by themselves."""
    nodes = group.nodes
    if not nodes.any():
        return None
    gaps = ~group.samples
    opened = np.linalg.pinv(group.own[:, gaps][:, :, nodes])
    records, d, p = *group.entries.shape, group.shared.shape[2]
    by_shared = np.zeros((records, d, p))
    by_shared[:, nodes] = -opened @ group.shared[:, gaps]
    by_own = np.tile(np.eye(d), (records, 1, 1))
    by_own[np.ix_(np.arange(records), np.flatnonzero(nodes), np.flatnonzero(~nodes))] = (
        -opened @ group.own[:, gaps][:, :, ~nodes]
    )
    by_own[np.ix_(np.arange(records), np.flatnonzero(nodes), np.flatnonzero(nodes))] = opened
    return Directions(by_shared, by_own)


def moved_along(found: LinearizedFit) -> LinearizedFit:
    """Derivatives along `directions`: a small change of a parameter alone would open gaps."""
    groups = []
    for g in found.groups:
        along = directions(g)
        if along is not None:
            shared = g.shared + g.own @ along.by_shared
            g = g._replace(shared=shared, own=g.own @ along.by_own)
        groups.append(g)
    return found._replace(groups=groups)


class _Form(NamedTuple):
    """Runs of an experiment, in order: number of batch, number in it."""

    experiment: int
    runs: tuple[tuple[int, int], ...]


# Records of each form, and what is the same for all of them.
Layouts = list[tuple[list[_Form], dict[str, Any]]]


def layouts_of(fit: Fit) -> Layouts:
    """Where what was evaluated belongs, which does not depend on its numbers."""
    forms: dict[Any, list[_Form]] = {}
    for experiment, runs in sorted(_runs_by_experiment(fit).items()):
        key = tuple(b for b, _ in runs)
        forms.setdefault(key, []).append(_Form(experiment, tuple(runs)))
    firsts = _first_entries(fit)
    return [(found, _layout(fit, found, firsts)) for found in forms.values()]


def linearizations(
    fit: Fit, evaluation: Evaluation, layouts: Layouts | None = None
) -> list[LinearizedFit]:
    """The residuals of each fit, record by record."""
    evaluation = jax.tree.map(np.asarray, evaluation._replace(runs=[
        r._replace(made=None) for r in evaluation.runs
    ]))  # fmt: skip
    layouts = layouts_of(fit) if layouts is None else layouts
    precision = np.dtype(evaluation.priors[1].dtype)
    return [
        LinearizedFit(
            [_group(fit, evaluation.runs, i, found, layout) for found, layout in layouts],
            np.asarray(evaluation.priors[0][i], float),
            np.asarray(evaluation.priors[1][i], float),
            fit.unknown_count,
            precision,
        )
        for i in range(len(evaluation.priors[0]))
    ]


def _runs_by_experiment(fit: Fit) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list] = {}
    for b, batch in enumerate(fit.batches):
        for run, (experiment, number) in enumerate(batch.members):
            found.setdefault(experiment, []).append((number, b, run))
    return {e: [(b, run) for _, b, run in sorted(runs)] for e, runs in found.items()}


def _first_entries(fit: Fit) -> list[int]:
    """Of each batch, the number of the first coordinate of its starts among the unknowns."""
    sizes = [b.runs.prior.shape[0] * b.runs.prior.shape[1] for b in fit.batches]
    return [fit.shared_count + int(x) for x in np.cumsum([0, *sizes[:-1]])]


def _layout(fit: Fit, found: list[_Form], firsts: list[int]) -> dict[str, Any]:
    """What is the same for all fits of the records of one form."""
    entries = np.array(
        [
            [
                firsts[b] + run * fit.batches[b].runs.prior.shape[1] + j
                for b, run in one.runs
                for j in range(fit.batches[b].runs.prior.shape[1])
            ]
            for one in found
        ],
        int,
    ).reshape(len(found), -1)
    rows, places, nodes, passed = [], [], [], 0
    for number, (b, _) in enumerate(found[0].runs):
        batch = fit.batches[b]
        d = batch.runs.prior.shape[1]
        times = batch.values.shape[2]
        rows += [np.repeat(batch.channels, times), np.full(d, OF_START)]
        places += [np.tile(passed + np.arange(times), len(batch.channels)), np.full(d, -1)]
        nodes += [np.full(d, number > 0)]
        passed += times
    gaps = (len(found[0].runs) - 1) * fit.gaps.shape[1]
    return {
        "entries": entries,
        "nodes": np.concatenate(nodes),
        "rows": np.concatenate([*rows, np.full(gaps, OF_GAP)]).astype(int),
        "places": np.concatenate([*places, np.full(gaps, -1)]).astype(int),
        "members": tuple(one.experiment for one in found),
    }


def _group(fit: Fit, runs: list[RunDerivatives], i: int, found: list[_Form], layout) -> Group:
    batches, single = {b for one in found for b, _ in one.runs}, len(found[0].runs) == 1
    if single:  # the runs of a batch, in its own order
        (b,) = batches
        order = [run for one in found for _, run in one.runs]
        parts = (runs[b].value[i], runs[b].shared[i], runs[b].own[i])
        value, shared, own = (np.asarray(a[order], float) for a in parts)
        return Group(value, shared, own, **layout)
    made = [_record(fit, runs, i, one) for one in found]
    value, shared, own = (np.stack(parts) for parts in zip(*made, strict=True))
    return Group(value, shared, own, **layout)


def _record(fit: Fit, runs: list[RunDerivatives], i: int, one: _Form) -> tuple:
    """Residuals and derivatives of a divided record, gaps last."""
    parts = [jax.tree.map(lambda a, r=run: a[i, r], runs[b]) for b, run in one.runs]
    widths = np.cumsum([0, *(a.own.shape[1] for a in parts)])
    value, shared = [a.value for a in parts], [a.shared for a in parts]
    own = [_placed(a.own, widths[k], widths[-1]) for k, a in enumerate(parts)]
    numbers = _numbers(fit)
    joints = {tuple(pair): k for k, pair in enumerate(np.asarray(fit.joints).tolist())}
    for k in range(len(parts) - 1):
        pair = (numbers[one.runs[k]], numbers[one.runs[k + 1]])
        gap = np.asarray(fit.gaps[joints[pair]])
        (ends, by_shared, by_own), (starts, first_shared, first_own) = (
            parts[k].sides,
            parts[k + 1].sides,
        )
        value.append(gap @ (ends[1] - starts[0]))
        shared.append(gap @ (by_shared[1] - first_shared[0]))
        before = _placed(by_own[1], widths[k], widths[-1])
        own.append(gap @ (before - _placed(first_own[0], widths[k + 1], widths[-1])))
    return tuple(np.concatenate(x).astype(float) for x in (value, shared, own))


def _placed(matrix: np.ndarray, at: int, width: int) -> np.ndarray:
    return np.pad(matrix, ((0, 0), (at, width - at - matrix.shape[1])))


def _numbers(fit: Fit) -> dict[tuple[int, int], int]:
    """Of a batch and a run in it, the number of the run through all batches."""
    counts = np.cumsum([0, *(len(b.members) for b in fit.batches)])
    return {
        (b, run): int(counts[b]) + run
        for b, batch in enumerate(fit.batches)
        for run in range(len(batch.members))
    }
