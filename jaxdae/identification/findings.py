"""What a user of a fit must not overlook: singular positions, open directions, words for all."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.diagnosis.diagnostics import passages_along, passages_found
from jaxdae.diagnosis.passages import hermite, Passage, RANK, resolved, weyl
from jaxdae.identification.data import Experiment, label
from jaxdae.identification.priors import names_of
from jaxdae.identification.runs import Readings, Runs
from jaxdae.identification.uncertainty import NEGLIGIBLE, Sensitivity
from jaxdae.reprs import shown
from jaxdae.systems import State
from jaxdae.tuning.parametrizations import Interval, is_parametrization

# A chi-square less probable than this says that the model or its noise levels are wrong.
_IMPROBABLE = 1e-4
# Gaps between intervals above this part of the motion's size are none of round-off.
_GAP = 1e-5
# An estimate from so few degrees of freedom is uncertain by a third, and its inverse by more: the
# standard errors are then not those of normal theory.
_FEW = 5.0
# A start that is known and lies this part of its size off the constraints of the estimate is
# hardly that of this mechanism: parameters are rarely uncertain by more.
_MOVED = 0.1
# Independent differences have a correlation this many standard deviations off in one of 10^4 fits.
_CERTAIN = 4.0
_FEWEST_PAIRS = 20
# Mean square of differences, in units of the noise, of simulated samples without any noise.
_NO_NOISE = 1e-6
# Standard errors this many times the estimates say that these are hardly determined.
_VAGUE = 10.0
# Nearer to a bound than this part of the interval; standard errors of normal theory say nothing
# of estimates in the middle.
_NEAR_BOUND = 1e-2
# An unknown with this part of the largest derivative of several residuals is seen by them.
_SEEN, _ROWS = 1e-4, 3
# Changes of the parameters that are tried, in their units: one in a hundred.
_CHANGE = 1e-2
# What of a change is in the direction in which constraints are dependent: less is due to the
# distance from the position, which is that many times the relative singular value at most.
_PER_DISTANCE = 10.0
# Position constraints lose rank where their least singular value is below this part of the largest.
_RANK_LOST = 0.1
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


def warnings_of(result) -> list[str]:
    """What a user must not overlook, in words."""
    found = (
        _unidentifiable(result), _ending(result), _few(result), _noise_free(result),
        _bounds(result), _gaps(result), _improbable(result), _overstated(result), _memory(result),
        _uncertain(result), _moved(result),
        *(_passage(x) for x in result.singular_passages if not x.turned),
        *(_turn(x) for x in result.singular_passages if x.turned and _unexplained(result)),
    )  # fmt: skip
    return [f"identify: {text}" for text in found if text]


def _unidentifiable(result) -> str:
    if not result.unidentifiable:
        return ""
    return (
        "the data do not determine all parameters: "
        + "; ".join(result.unidentifiable)
        + ". Their standard errors are infinite; hold one of them, or measure another channel."
    )


def _ending(result) -> str:
    if result.stop_reason in ("converged", "bound"):
        return ""  # the bound has words of its own
    if result.stop_reason == "noise":
        return (
            "the fit is at a minimum, but its estimates of noise levels do not converge, they "
            f"still change by {100 * result.noise_change:.2g} % in the last round: too few "
            "samples. Standard errors may be off; give the level, "
            "Measurement(values, sigma)."
        )
    how = "after all its steps" if result.stop_reason == "steps" else "finding no decrease"
    return (
        f"the method stopped {how} ({result.steps}) without meeting its tolerance; estimate and "
        "errors may be off. Give more steps, or start from `result.raw`."
    )


def _few(result) -> str:
    few = {name: x for name, x in result.noise_freedom.items() if x < _FEW}
    if not few:
        return ""
    listed = ", ".join(f"{name!r} ({x:.2g})" for name, x in few.items())
    return (
        f"few degrees of freedom are left to estimate the noise of {listed}; with fewer than "
        f"{_FEW:g} the noise level, weights and standard errors are uncertain by a third or more. "
        "Give the level, Measurement(values, sigma), or more samples."
    )


def _noise_free(result) -> str:
    if not result.round_off:
        return ""
    listed = ", ".join(f"{name!r} ({result.noise[name]:.2g})" for name in result.round_off)
    return (
        f"the model meets the samples of {listed} to round-off: they have no noise to estimate, "
        "and the standard errors are those of round-off. Give the level that instruments have, "
        "Measurement(values, sigma)."
    )


def _bounds(result) -> str:
    if not result.at_bounds:
        return ""
    named = ", ".join(f"{name} = {result[name]:.6g}" for name in result.at_bounds)
    verb = "is at its bound" if len(result.at_bounds) == 1 else "are at their bounds"
    return (
        f"{named} {verb}: the data would have it outside of the Interval, and standard errors do "
        "not hold there. Widen the bounds, or hold it."
    )


def _gaps(result) -> str:
    if not result.gap > _GAP:
        return ""
    return (
        f"intervals do not meet, the largest gap is {result.gap:.2g} of the motion's size; the "
        "estimate is not that of one motion. Give more steps or a better guess."
    )


def _improbable(result) -> str:
    underway = result.stop_reason == "steps" and not result.at_bounds
    if underway or not result.probability < _IMPROBABLE:
        return ""  # on the way to a minimum it is large in any case
    return (
        f"chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} degrees of freedom "
        f"(probability {result.probability:.1g}): the model or its noise levels do not explain "
        "the data, and the standard errors are too small; or this is a local minimum: try "
        "starts=…."
    )


def autocorrelation(result) -> dict[str, tuple[float, float]]:
    """Correlation of differences from the model between neighbouring samples, by channel.

    Over all experiments, `r = sum d_k d_(k+1) / sum d_k^2` of differences in units of the noise,
    with pairs of samples of which none is missing. Independent differences have `r` near `-p / n`,
    with a standard deviation of `1 / sqrt(pairs)`.

    Args:
        result: of `identify`.

    Returns:
        `r`, and by how many standard deviations it is off; without channels of fewer than 20 pairs
        and those met to round-off.
    """
    found = {}
    names = {name for one in result.data for name in one if name not in result.round_off}
    for name in sorted(names):
        product = square = pairs = count = 0.0
        for one in result.data:
            if name not in one:
                continue
            x = one[name].residuals / one[name].sigma
            both = np.isfinite(x[1:]) & np.isfinite(x[:-1])
            product += float(np.sum((x[1:] * x[:-1])[both]))
            square += float(np.sum(x[np.isfinite(x)] ** 2))
            pairs, count = pairs + both.sum(), count + np.isfinite(x).sum()
        if pairs >= _FEWEST_PAIRS and square > _NO_NOISE * count:
            r = product / square * count / pairs
            expected = -min(len(result.values) / count, 0.5)
            found[name] = float(r), float((r - expected) * np.sqrt(pairs))
    return found


def _correlated(result) -> dict[str, float]:
    """Channels whose differences are certainly correlated, and how much."""
    found = autocorrelation(result)
    return {name: r for name, (r, off) in found.items() if abs(off) > _CERTAIN and abs(r) > 0.1}


def _memory(result) -> str:
    # Away from a minimum, and where the model does not explain the data, they follow the motion.
    # Other words say so, and that standard errors do not hold.
    at_minimum = result.stop_reason in ("converged", "noise") and not result.at_bounds
    if not at_minimum or result.probability < _IMPROBABLE:
        return ""
    positive = {name: r for name, r in _correlated(result).items() if r > 0}
    if not positive:
        return ""
    listed = ", ".join(f"{name!r} ({r:.2f})" for name, r in positive.items())
    worst = min(max(positive.values()), 0.999)
    return (
        "differences of neighbouring samples from the model are correlated, in the channels "
        f"{listed}: they are no independent noise, and the standard errors are too small, of "
        "parameters that act on many samples in the same way by a factor of about "
        f"{np.sqrt((1 + worst) / (1 - worst)):.2g}. Look at the differences: the model may lack "
        "something; or take samples so far apart that their noise is independent."
    )


def _overstated(result) -> str:
    # Correlated differences may be small together: that says nothing of the noise level.
    if _correlated(result) or not result.probability_below < _IMPROBABLE:
        return ""
    return (
        f"chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} degrees of freedom "
        f"(probability of a smaller one {result.probability_below:.1g}): the noise is smaller than "
        "the levels that are given, and the standard errors are too large. Leave sigma out to "
        "estimate them."
    )


def _moved(result) -> str:
    far = {name: x for name, x in result.moved_starts.items() if x > _MOVED}
    if not far:
        return ""
    listed = ", ".join(f"{name} ({100 * x:.2g} %)" for name, x in far.items())
    return (
        "with the estimate the known starts of these experiments are off the constraints, and were "
        f"moved to the nearest consistent state, by so much of their size: {listed}. Check them, "
        "or give UnknownStart(state)."
    )


def _uncertain(result) -> str:
    errors, values = result.standard_errors, np.abs(result.values)
    vague = np.flatnonzero(np.isfinite(errors) & (errors > _VAGUE * values) & (values > 0))
    if vague.size == 0:
        return ""
    listed = ", ".join(f"{result.names[k]} ({errors[k] / values[k]:.2g})" for k in vague)
    return (
        f"the standard errors of {listed} are so many times the estimates themselves: the data "
        "hardly determine them, maybe not at all, as far as the accuracy of the runs tells. Hold "
        "one that only a combination of them shows, measure another channel, or take smaller steps "
        "or tolerances."
    )


def _passage(passage: SingularPassage) -> str:
    """What a singular position on the way makes of an estimate."""
    where = f"the run of experiment {passage.experiment}"
    if passage.guessed:
        where += ", with the first guess of the parameters,"
    times = ", ".join(f"{t:.6g}" for t in passage.times[:5])
    positions = f"passes singular positions, at t = {times} s"
    opened = f"{positions}, {_opened(passage)}" if passage.openings else ""
    if passage.refused:
        refused = passage.refused.replace("the run", where, 1)
        return f"{refused} It {opened}" if opened else refused
    if opened:
        return f"{where} {opened}"
    if passage.fixed is None or passage.guessed:
        return ""
    return (
        f"{where} {positions}, as near as {passage.least:.2g}, with steps of {passage.fixed:.3g} "
        "s. Where a fixed step ends or has a stage next to one, derivatives are wrong by any "
        "factor, in some runs of a thousand; estimate and standard errors may be off. Leave dt "
        "out: adaptive steps keep values and derivatives."
    )


def _unexplained(result) -> bool:
    return result.stop_reason != "converged" or result.probability < _IMPROBABLE


def _turn(passage: SingularPassage) -> str:
    named = " or ".join(x.name.removeprefix("log ") for x in passage.openings)
    involved = ", ".join(map(repr, passage.constraints))
    guessed = ", with the first guess of the parameters," * passage.guessed
    return (
        f"the run of experiment {passage.experiment}{guessed} turns sharply between t = "
        f"{passage.times[0]:.6g} and {passage.times[1]:.6g} s, next to a singular position "
        f"({involved}) that it would pass with another {named}. A motion that passes changes class "
        "with the least change of it, and the sum of squares jumps: no step leads from one to the "
        "other. Where the real one passes, write what keeps the position, links of equal length "
        "say, by one parameter."
    )


def _opened(passage: SingularPassage) -> str:
    changes = " and ".join(
        f"{x.name} by {x.change:.3g} moves them {x.distance:.3g} apart" for x in passage.openings
    )
    involved = ", ".join(map(repr, passage.constraints))
    return (
        f"where constraints ({involved}) meet only with these parameters: a change of {changes}, "
        "and the motion cannot cross there any more but turns into another branch. By such a "
        "parameter it has no derivative; estimate and standard error of it mean nothing. Write "
        "what keeps the position, links of equal length say, by one parameter, hold it, or end the "
        "record before."
    )


def at_bounds(params: PyTree, errors: np.ndarray) -> tuple[str, ...]:
    """Names of the numbers nearer to a bound of their `Interval` than their standard error."""
    names, found, place = names_of(params), [], 0
    for leaf in jax.tree.leaves(params, is_leaf=is_parametrization):
        if not (is_parametrization(leaf) or eqx.is_inexact_array(leaf)):
            continue
        value = np.ravel(np.asarray(leaf.value if is_parametrization(leaf) else leaf))
        if isinstance(leaf, Interval):
            lower, upper = np.ravel(leaf.lower), np.ravel(leaf.upper)
            near, width = np.minimum(value - lower, upper - value), upper - lower
            error = errors[place : place + value.size]
            # Where nothing changes any more, the error is zero or infinite: both are at the bound.
            close = (near <= _NEAR_BOUND * width) & ((near <= error) | (near <= 1e-9 * width))
            found += [names[place + k] for k in np.flatnonzero(close)]
        place += value.size
    return tuple(found)


def open_directions(
    found: Sensitivity,
    names: Sequence[str],
    scales: np.ndarray,
    beside: Mapping[int, str] | None = None,
) -> list[str]:
    """Each direction that no channel sees, in words, with as few unknowns in it as possible.

    Args:
        found: of the unknowns.
        names: of the unknowns; the logarithm of one is called `log …`.
        scales: size of one unit of each unknown; one for those without unit.
        beside: why an unknown is not seen although some samples depend on it, by its number.
    """
    if not found.unseen.shape[1]:
        return []
    # In relative changes: those of the columns of length one depend on the noise.
    seen = found.sizes > 0
    moves = found.unseen / np.where(seen, found.sizes, 1.0)[:, None] / scales[:, None]
    return [_direction_in_words(x, names, scales, beside or {}) for x in _sparse(moves)]


def _sparse(basis: np.ndarray) -> np.ndarray:
    """Vectors of the same space with few entries, as rows: those of reduced echelon form."""
    rows = basis.T / np.abs(basis).max()
    for i in range(rows.shape[0]):
        row, place = np.unravel_index(np.argmax(np.abs(rows[i:])), rows[i:].shape)
        rows[[i, i + row]] = rows[[i + row, i]]
        rows[i] /= rows[i, place]
        others = np.arange(rows.shape[0]) != i
        rows[others] -= rows[others, place][:, None] * rows[i]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _direction_in_words(
    direction: np.ndarray, names: Sequence[str], scales: np.ndarray, beside: Mapping[int, str]
) -> str:
    used = [int(i) for i in np.flatnonzero(np.abs(direction) > NEGLIGIBLE)]
    direction = direction * np.sign(direction[used[0]])
    plain = [names[i].removeprefix("log ") for i in used]
    if len(used) == 1:
        why = beside.get(used[0])
        return f"no channel sees {plain[0]}" if why is None else f"{plain[0]} {why}"
    part = lambda x: f"{x:+.2f}" if abs(x) >= 0.01 else f"{x:+.1g}"  # noqa: E731
    unit = lambda i: names[i] if scales[i] == 1.0 else f"{names[i]}/{scales[i]:.3g}"  # noqa: E731
    terms = " ".join(f"{part(direction[i])} {unit(i)}" for i in used)
    logs = all(names[i].startswith("log ") for i in used)
    pair = direction[used] / np.abs(direction[used]).max()
    how = "only in a combination"
    if logs and len(used) == 2 and np.allclose(np.abs(pair), 1.0, atol=1e-3):
        how = "only as their ratio" if pair[0] * pair[1] > 0 else "only as their product"
    elif logs and np.allclose(pair, 1.0, atol=1e-3):
        how = "only as their ratios"
    listed = f"{', '.join(plain[:-1])} and {plain[-1]}"
    return f"{listed} enter {how}: the direction {terms} changes no channel"


def drowned(jac: np.ndarray, units: np.ndarray, data) -> dict[int, str]:
    """Unknowns that change some residuals in proportion, but by round-off of the largest.

    A channel whose noise level is a millionth of another's makes residuals a million times as
    large: what it does not see counts as nothing beside it, though another channel sees it.

    Args:
        jac: derivatives of the residuals by the unknowns.
        units: what changes of the unknowns are small against.
        data: channels beside the model, by experiment and name.

    Returns:
        By the number of the unknown, what drowns it, in words.
    """
    effects = np.abs(np.asarray(jac, float)) * units
    rows = effects.max(axis=1, initial=0.0)
    # Weights come last: small rows have all digits, but where samples do not depend on anything.
    clear = rows > np.finfo(jac.dtype).eps ** 1.5 * rows.max(initial=0.0)
    parts = effects[clear] / rows[clear, None]
    unseen = np.flatnonzero(np.sum(parts > _SEEN, axis=0) >= _ROWS)
    sizes: dict[str, float] = {}
    for name, x in ((name, x) for one in data for name, x in one.items()):
        scaled = np.abs(np.where(np.isfinite(x.measured), x.model, 0.0)) / x.sigma
        sizes[name] = max(sizes.get(name, 0.0), float(scaled.max(initial=0.0)))
    name = max(sizes, key=sizes.__getitem__)
    others = [x for y, x in sizes.items() if y != name and x > 0]
    text = (
        f"is seen, but drowned by the weight of channel {name!r}: in units of their noise its "
        f"samples are {sizes[name] / min(others, default=sizes[name]):.2g} times those of the "
        f"channel that counts least. Check the noise level of {name!r}; what is left of the others "
        "is round-off beside it"
    )
    return dict.fromkeys(unseen.tolist(), text)


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
    for number, run, one in task.intervals:
        batch = task.fit.batches[number]
        member, readings = (batch.member(tree, run) for tree in (batch.runs, made[number]))
        rows = _rows(member, readings, one.at.size)
        result = _of_run(task, x, member.given, rows, names)
        if result is not None:
            name = label(one.experiment, experiments[one.experiment])
            times = tuple(t + float(member.origin) for t in result.times)
            found.append(result._replace(experiment=name, times=times))
    return tuple(found)


def _rows(member: Runs, readings: Readings, count: int) -> tuple[np.ndarray, State]:
    """Times and states of a run, the start first."""
    first, states = jax.device_get((readings.first, readings.states))
    ts = np.append(np.asarray(member.start), np.asarray(member.samples)[:count])
    join = lambda a, b: np.concatenate([a[None], b[:count]])  # noqa: E731
    return ts, jax.tree.map(join, first, states)


def _of_run(task, x, given, rows, names) -> SingularPassage | None:
    fit = task.fit
    system, formulation, _ = fit.model.parts(fit.params(x), given)
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
        fixed=fit.model.settings.fixed_step,
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
            dt = fit.model.settings.fixed_step
            times = (float(ts[i]), float(ts[i + 1]))
            return SingularPassage("", times, min(least), None, dt, openings, involved, turned=True)
    return None


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
    if rank == 0 or values[rank - 1] > _RANK_LOST * values[0]:
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
        system = fit.model.parts(fit.params(x), given)[0]
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
