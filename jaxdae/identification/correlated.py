"""Standard errors that hold where the noise of neighbouring samples is correlated."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdae.identification.linearization import Group, LinearizedFit
from jaxdae.identification.losses import Loss, SQUARES
from jaxdae.identification.uncertainty import Basis, basis_of, Explained, seen_columns

# Pairs of neighbouring samples from which a correlation is estimated at least.
_FEWEST_PAIRS = 20
# Mean square of differences, in units of the noise, of simulated samples without any noise.
_NO_NOISE = 1e-6
# Correlations are found where they are so many standard deviations off, three of a thousand
# independent ones, and as large as this.
_FOUND, _LEAST = 3.0, 0.1
# Records are clusters by themselves where there are so many; else they are divided into blocks.
_ENOUGH_RECORDS = 12
# Blocks are as many correlation times long, so many together, and of so many samples at least.
_CORRELATION_TIMES, _FEWEST_BLOCKS, _MOST_BLOCKS, _SHORTEST = 5.0, 9, 24, 4
# Clusters of fewer degrees of freedom say too little of an error.
_FEWEST_FREEDOM = 2.5
# Leverages this near to one leave nothing of a residual.
_ALL = 1 - 1e-6
_LARGEST_CORRELATION = 0.98


class Autocorrelation(NamedTuple):
    """Of the differences of a channel from the model.

    Args:
        correlation: of neighbouring samples.
        deviations: by how many of its standard deviations that is off independent noise's.
    """

    correlation: float
    deviations: float

    @property
    def found(self) -> bool:
        """Whether samples are hardly independent: three of a thousand that are would look so."""
        return abs(self.deviations) > _FOUND and abs(self.correlation) > _LEAST


def autocorrelation_of(
    data: Iterable[Mapping[str, Any]],
    unknowns: int,
    without: Iterable[str] = (),
    loss: Loss = SQUARES,
) -> dict[str, Autocorrelation]:
    """Correlation of differences from the model between neighbouring samples, by channel.

    Over all experiments, `r = sum d_k d_(k+1) / sum d_k^2` of differences in units of the noise,
    with pairs of samples of which none is missing. Independent differences have `r` near `-p / n`,
    with a standard deviation of `1 / sqrt(pairs)`. Channels of fewer than 20 pairs, those met to
    round-off and those `without` a noise are left out. Outliers count as by the `loss`.
    """
    data, found = list(data), {}
    names = {name for one in data for name in one} - set(without)
    for name in sorted(names):
        product = square = pairs = count = 0.0
        for one in data:
            if name not in one:
                continue
            x = loss.influence(one[name].residuals / one[name].sigma)
            both = np.isfinite(x[1:]) & np.isfinite(x[:-1])
            product += float(np.sum((x[1:] * x[:-1])[both]))
            square += float(np.sum(x[np.isfinite(x)] ** 2))
            pairs, count = pairs + both.sum(), count + np.isfinite(x).sum()
        if pairs >= _FEWEST_PAIRS and square > _NO_NOISE * count:
            r = np.clip(product / square * count / pairs, -1.0, 1.0)
            expected = -min(unknowns / count, 0.5)
            found[name] = Autocorrelation(float(r), float((r - expected) * np.sqrt(pairs)))
    return found


def neighbouring_correlation(found: LinearizedFit) -> float:
    """Of the residuals of all channels together, between 0 and 0.98."""
    product = square = 0.0
    for g in found.groups:
        same = (np.diff(g.rows) == 0) & (np.diff(g.places) == 1) & (g.rows[1:] >= 0)
        before, after = g.value[:, :-1][:, same], g.value[:, 1:][:, same]
        product += float(np.sum(before * after))
        square += float(np.sum(before**2 + after**2)) / 2
    return float(np.clip(product / square, 0.0, _LARGEST_CORRELATION)) if square > 0 else 0.0


class RobustErrors(NamedTuple):
    """Standard errors from the residuals themselves."""

    errors: Float[np.ndarray, " k"]
    covariance: Float[np.ndarray, "k k"]
    freedom: Float[np.ndarray, " k"]  # degrees of freedom of each error
    inflation: float  # of errors of what acts on all samples in the same way


def robust_errors(
    found: LinearizedFit,
    units: np.ndarray,
    slopes: Float[np.ndarray, "k p"],
    classical: Float[np.ndarray, "k k"],
    correlation: float,
) -> RobustErrors:
    r"""Sandwich covariance of functions of what all records share, by clusters of samples.

        sum_g a_g^T e_g e_g^T a_g,   a_g = (I - H_gg)^{-1/2} L_g,   L = J (J^T J)^{-1} s

    `g` are clusters between which the residuals `e` are independent, records, or blocks of them
    five correlation times long where there are fewer than twelve [BesterConleyHansen2011]. `H`
    is the matrix of leverages, of starts that are estimated too. The factor makes each term
    unbiased were the noise independent, and the degrees of freedom of the sum are Satterthwaite's
    [BellMcCaffrey2002; PustejovskyTipton2018]. Of functions for which clusters have fewer than
    four, the classical error is multiplied by `sqrt((1 + r) / (1 - r))`.

    Args:
        found: residuals in units of the noise.
        units: of the unknowns.
        slopes: derivatives of the functions.
        classical: their covariance, were the noise independent.
        correlation: of neighbouring samples, the largest of all channels.
    """
    found = found.closed()
    basis = basis_of(found, seen_columns(found, units))
    lengths = np.concatenate([_lengths(g) for g in found.groups])
    starts = max(g.entries.shape[1] for g in found.groups)
    r = _corrected(correlation, float(np.mean(lengths)), starts)
    blocks = _blocks_of(lengths, r)
    usual = np.sqrt(np.maximum(np.diagonal(classical), 0.0))
    inflation = float(np.sqrt(max((1 + r) / (1 - r), 1.0)))
    samples = float(sum(np.sum(g.samples) * len(g.value) for g in found.groups))
    errors = usual * inflation
    freedom = np.full(usual.shape, max(samples / inflation**2 - found.unknowns, 1.0))
    best = np.zeros(usual.shape, bool)
    choices = [blocks] if blocks > 1 or len(lengths) < _ENOUGH_RECORDS else []
    if len(lengths) >= _ENOUGH_RECORDS:
        choices = [1, *choices, *([_within(lengths)] if not choices else [])]
    covariance = classical * inflation**2
    for count in choices:
        by_cluster, free = _clustered(found, basis, slopes, count)
        takes = (free >= _FEWEST_FREEDOM) & ~best & (usual > 0)
        if takes.any() and not best.any():
            covariance = by_cluster.T @ by_cluster
        errors = np.where(takes, np.sqrt(np.sum(by_cluster**2, axis=0)), errors)
        freedom, best = np.where(takes, free, freedom), best | takes
    sizes = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    scale = np.where(sizes > 0, errors / np.where(sizes > 0, sizes, 1.0), 0.0)
    return RobustErrors(errors, covariance * np.outer(scale, scale), freedom, inflation)


def _corrected(r: float, length: float, starts: int) -> float:
    """A correlation as it was before the fit of a start to records of some length took of it."""
    return float(np.clip(r + (1 + 3 * r + starts) / length, -0.9, _LARGEST_CORRELATION))


def _lengths(group: Group) -> np.ndarray:
    """Of each record, the number of times with samples."""
    rows = group.places >= 0
    places = np.where((group.value != 0) | group.shared.any(axis=2), group.places + 1, 0)
    return np.maximum(places[:, rows].max(axis=1, initial=1), 1)


def _blocks_of(lengths: np.ndarray, r: float) -> int:
    """Into how many blocks each record is divided."""
    typical, records = float(np.median(lengths)), len(lengths)
    time = max((1 + r) / (1 - r), 1.0)
    wanted = min(typical / (_CORRELATION_TIMES * time), _MOST_BLOCKS / records)
    least = -(-_FEWEST_BLOCKS // records)
    return int(max(1, min(max(int(wanted), least), typical // _SHORTEST)))


def _within(lengths: np.ndarray) -> int:
    """Blocks of a record for what no other record shows."""
    return int(max(1, min(_FEWEST_BLOCKS, np.median(lengths) // _SHORTEST)))


class _Cluster(NamedTuple):
    """Clusters of samples at the same place of all records of a group."""

    scores: np.ndarray  # what each adds to the functions, shape `(records, k)`
    sizes: np.ndarray  # squares of the lengths of `a_g`, shape `(records, k)`
    own: np.ndarray  # its products with the basis, shape `(records, d, k)`
    shared: np.ndarray  # shape `(records, q, k)`
    records: np.ndarray  # which they are


def _clustered(
    found: LinearizedFit, basis: Basis, slopes: np.ndarray, blocks: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each cluster adds to the functions, `(clusters, k)`; degrees of freedom of the sums."""
    to_values, made, first = slopes @ basis.shared_map, [], 0
    for g, part in zip(found.groups, basis.groups, strict=True):
        records = first + np.arange(len(g.value))
        lengths = _lengths(g)[:, None]
        for block in range(blocks):
            inside = (g.places >= 0) & (g.places * blocks // lengths == block)
            made.append(_cluster(g.value, part, inside, to_values, records))
        of_start = np.tile(g.places < 0, (len(g.value), 1))
        if of_start.any() and g.value[of_start].any():
            made.append(_cluster(g.value, part, of_start, to_values, records))
        first += len(g.value)
    for k in range(found.priors.size):
        part = Explained(np.zeros((1, 1, 0)), basis.priors[None, k : k + 1])
        value, inside = found.priors[None, k : k + 1], np.ones((1, 1), bool)
        made.append(_cluster(value, part, inside, to_values, np.array([-1 - k])))
    scores = np.concatenate([x.scores for x in made])
    return scores, _freedom(made)


def _cluster(
    value: np.ndarray, part: Explained, inside: np.ndarray, to_values: np.ndarray, records
) -> _Cluster:
    """Samples `inside` of each record; by eigenvalues of products of their rows of the basis."""
    d = part.own.shape[2]
    rows = np.concatenate([part.own, part.shared], axis=2) * inside[..., None]
    products = np.swapaxes(rows, 1, 2) @ rows
    w, q = np.linalg.eigh(products)
    some, all_of_it = w > 1e-14, w >= _ALL
    left = np.where(some & ~all_of_it, 1 - w, 0.5)
    safe = np.where(some, w, 1.0)
    root = np.where(all_of_it, -1.0, (left**-0.5 - 1)) / safe
    inverse = np.where(all_of_it, -1.0, (1 / left - 1)) / safe
    root, inverse = np.where(some, root, 0.0), np.where(some, inverse, 0.0)
    of_shared = products[:, d:]
    middle = (q * root[:, None]) @ np.swapaxes(q, 1, 2)
    squared = (q * inverse[:, None]) @ np.swapaxes(q, 1, 2)
    seen = np.einsum("emc,em->ec", rows, value * inside)
    scores = seen[:, d:] + np.einsum("eqc,ecb,eb->eq", of_shared, middle, seen)
    onto = (products + products @ middle @ products)[:, :, d:] @ to_values.T
    lengths = of_shared[:, :, d:] + of_shared @ squared @ np.swapaxes(of_shared, 1, 2)
    sizes = np.einsum("kq,eqb,kb->ek", to_values, lengths, to_values)
    return _Cluster(scores @ to_values.T, sizes, onto[:, :d], onto[:, d:], records)


def _freedom(made: list[_Cluster]) -> np.ndarray:
    """Degrees of freedom of sums of squares over clusters, were the noise independent."""
    records = np.concatenate([x.records for x in made])
    sizes = np.concatenate([x.sizes for x in made])
    shared = np.concatenate([x.shared for x in made])
    same = records[:, None] == records[None]
    widest = max(x.own.shape[1] for x in made)
    own = np.concatenate(
        [np.pad(x.own, ((0, 0), (0, widest - x.own.shape[1]), (0, 0))) for x in made]
    )
    found = np.zeros(sizes.shape[1])
    for j in range(sizes.shape[1]):
        products = -shared[:, :, j] @ shared[:, :, j].T
        products -= np.where(same, own[:, :, j] @ own[:, :, j].T, 0.0)
        products[np.diag_indices(len(records))] += sizes[:, j]
        squares = np.sum(products**2)
        found[j] = np.trace(products) ** 2 / squares if squares > 0 else 0.0
    return found
