"""What a user of a fit must not overlook: what data leave open, noise, singular positions."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.singularities import (
    curve,
    near_singularities_along,
    RANK,
    singularity_finding,
)
from jaxdae.identification.correlated import Autocorrelation, autocorrelation_of
from jaxdae.identification.data import Experiment, label
from jaxdae.identification.declared import Mechanism
from jaxdae.identification.fit import names_of, Predictions, Runs
from jaxdae.identification.losses import Loss
from jaxdae.identification.uncertainty import median_level, NEGLIGIBLE, Sensitivity
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
# Standard errors this many times the estimates say that these are hardly determined.
_VAGUE = 10.0
# Differences above this part of the samples' own size, each like the one before it, are those of
# another motion.
_ASTRAY = 0.5
# Where more than this part of the samples is beyond the scale of a loss, they are no outliers.
_MOST_BEYOND = 0.5
# Noise levels this many times those by the median of the differences are of outliers as well.
_OF_OUTLIERS = 2.0
# Nearer to a bound than this part of the interval; standard errors of normal theory say nothing
# of estimates in the middle.
_NEAR_BOUND = 1e-2
# Changes of the parameters that are tried, in their units: one in a hundred.
_CHANGE = 1e-2
# What of a change is in the direction in which constraints are dependent: less is due to the
# distance from the position, which is that many times the relative singular value at most.
_PER_DISTANCE = 10.0
# Position constraints lose rank where their least singular value is below this part of the largest.
_RANK_LOST = 0.1
# Constraints with less than this weight in a combination take no part in it.
_PART = 1e-3


class Opening(NamedTuple):
    """What a change of an unknown does at a singular position."""

    name: str  # of the unknown; the logarithm of one is called `log …`
    change: float  # of it
    distance: float  # by which it moves the dependent constraints apart there, in their unit


class SingularPositions(NamedTuple):
    """Singular positions that the run of an experiment passes."""

    experiment: str  # its name or number
    times: tuple[float, ...]  # when [s]
    least: float  # least singular value met, as a part of its median
    refused: str | None  # why the formulation is not made for them, in words; else `None`
    fixed: float | None  # length of the fixed steps [s]; `None` for adaptive ones
    openings: tuple[Opening, ...]  # unknowns with which the first of the positions vanishes
    constraints: tuple[str, ...]  # names of those that depend on each other there
    guessed: bool = False  # whether only the run with the first guess of the parameters does

    def __repr__(self) -> str:
        return shown(self)


def findings_of(result) -> Iterator[Finding]:
    """What a user must not overlook of a fit, each with the number that says so."""
    if result.unidentifiable:
        yield Finding(
            "the data do not determine all parameters: "
            + "; ".join(result.unidentifiable)
            + ". Their standard errors are infinite; hold one of them, or measure another channel."
        )
    if result.stop_reason == "noise":
        yield Finding(
            "the fit is at a minimum, but its estimates of noise levels do not converge, they "
            f"still change by {100 * result.noise_change:.2g} % in the last round: too few "
            "samples. Standard errors may be off; give the level, Measurement(values, sigma).",
            result.noise_change,
        )
    elif result.stop_reason in ("steps", "no decrease"):  # a bound has words of its own
        how = "after all its steps" if result.stop_reason == "steps" else "finding no decrease"
        yield Finding(
            f"the method stopped {how} ({result.steps}) without meeting its tolerance; estimate "
            "and errors may be off. Give more steps, or start from `result.raw`.",
            result.steps,
        )
    few = {name: x for name, x in result.noise_freedom.items() if x < _FEW}
    if few:
        yield Finding(
            f"few degrees of freedom are left to estimate the noise of {_listed(few)}; with fewer "
            f"than {_FEW:g} the noise level, weights and standard errors are uncertain by a third "
            "or more. Give the level, Measurement(values, sigma), or more samples.",
            min(few.values()),
        )
    exact = {name: result.noise[name] for name in result.round_off}
    if exact:
        yield Finding(
            f"the model meets the samples of {_listed(exact)} to round-off: they have no noise to "
            "estimate, and the standard errors are those of round-off. Give the level that "
            "instruments have, Measurement(values, sigma).",
            max(exact.values()),
        )
    if result.at_bounds:
        named = ", ".join(f"{name} = {result[name]:.6g}" for name in result.at_bounds)
        verb = "is at its bound" if len(result.at_bounds) == 1 else "are at their bounds"
        yield Finding(
            f"{named} {verb}: the data would have it outside of the Interval, and standard errors "
            "do not hold there. Widen the bounds, or hold it.",
            result[result.at_bounds[0]],
        )
    if result.gap > _GAP:
        yield Finding(
            f"intervals do not meet, the largest gap is {result.gap:.2g} of the motion's size; the "
            "estimate is not that of one motion. Give more steps or a better guess.",
            result.gap,
        )
    yield from _of_residuals(result)
    errors, values = result.standard_errors, np.abs(result.values)
    vague = np.flatnonzero(np.isfinite(errors) & (errors > _VAGUE * values) & (values > 0))
    if vague.size:
        parts = {result.names[k]: float(errors[k] / values[k]) for k in vague}
        listed = ", ".join(f"{name} ({x:.2g})" for name, x in parts.items())
        yield Finding(
            f"the standard errors of {listed} are so many times the estimates themselves: the data "
            "hardly determine them, maybe not at all, as far as the accuracy of the runs tells. "
            "Hold one that only a combination of them shows, measure another channel, or take "
            "smaller steps or tolerances.",
            max(parts.values()),
        )
    far = {name: x for name, x in result.moved_starts.items() if x > _MOVED}
    if far:
        listed = ", ".join(f"{name} ({100 * x:.2g} %)" for name, x in far.items())
        yield Finding(
            "with the estimate the known starts of these experiments are off the constraints, and "
            "were moved to the nearest consistent state, by so much of their size: "
            f"{listed}. Check them, or give UnknownStart(state).",
            max(far.values()),
        )
    if result.steep_friction is not None:
        steep = result.steep_friction
        yield Finding(
            f"friction at rest in the run of experiment {steep.experiment} stops a motion at a "
            f"rate of {steep.rate:.3g} 1/s, {steep.rate * steep.step:.2g} times within a step of "
            f"{steep.step:.3g} s, of which explicit methods make oscillations from 2 on; estimates "
            f"may be off. Take dt below {1 / steep.rate:.2g} s, a larger velocity in the tanh or "
            "whatever smooths the friction, or a solver for stiff equations.",
            steep.rate * steep.step,
        )
    yield from (x for x in map(_of_singular_positions, result.singular_positions) if x is not None)


def _listed(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name!r} ({x:.2g})" for name, x in numbers.items())


def _of_residuals(result) -> Iterator[Finding]:
    """Whether what is left of the data is the noise that was assumed."""
    correlated = {
        name: r
        for name, (r, off) in autocorrelation(result).items()
        if abs(off) > _CERTAIN and abs(r) > 0.1
    }
    astray = {name: x for name, x in _sizes(result).items() if x > _ASTRAY and name in correlated}
    if astray:
        yield Finding(
            "the motion of the estimate is another one than the measured: its differences from the "
            f"samples are as large as {_listed(astray)} of these samples' own deviations from "
            "their mean. Records that are long, unstable or go over the top depend on their starts "
            "too much for one run each: fit parts of them, `record.windows(1.0)`, each from an "
            "UnknownStart, or give a better guess.",
            max(astray.values()),
        )
    fit = f"chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} degrees of freedom"
    improbable = result.probability < _IMPROBABLE
    if improbable:
        robust = "; the standard errors are the robust ones, by clusters of samples"
        holds = robust if result.correlated else ", and the standard errors are too small"
        yield Finding(
            f"{fit} (probability {result.probability:.1g}): the model or its noise levels do not "
            f"explain the data{holds}; or this is a local minimum: try starts=….",
            result.probability,
        )
    part = result.samples_beyond / max(_samples(result), 1)
    if part > _MOST_BEYOND:
        yield Finding(
            f"{100 * part:.2g} % of the samples are further than f_scale={result.f_scale:g} times "
            f"their noise from the model, where loss={result.loss!r} makes them count less: these "
            "are no outliers. The model or its noise levels do not explain the data; or this is a "
            "local minimum: try starts=….",
            part,
        )
    wide = _levels_of_outliers(result) if result.loss != "linear" else {}
    if wide:
        yield Finding(
            "the estimated noise of these channels is so many times that of the median difference "
            f"from the model: {_listed(wide)}. There are more outliers than loss={result.loss!r} "
            "withstands where noise is estimated. Give the level, Measurement(values, sigma).",
            max(wide.values()),
        )
    # Correlated differences may be small together: that says nothing of the noise level.
    if not correlated and result.probability_below < _IMPROBABLE:
        yield Finding(
            f"{fit} (probability of a smaller one {result.probability_below:.1g}): the noise is "
            "smaller than the levels that are given, and the standard errors are too large. Leave "
            "sigma out to estimate them.",
            result.probability_below,
        )
    # Away from a minimum, and where the model does not explain the data, they follow the motion:
    # other words say so.
    at_minimum = result.stop_reason in ("converged", "noise") and not result.at_bounds
    positive = {name: r for name, r in correlated.items() if r > 0}
    if positive and at_minimum and not improbable:
        worst = min(max(positive.values()), 0.999)
        yield Finding(
            "differences of neighbouring samples from the model are correlated, in the channels "
            f"{', '.join(f'{name!r} ({r:.2f})' for name, r in positive.items())}: they are no "
            "independent noise. The standard errors are those of clusters of samples, which allow "
            "for it; classical ones would be too small, of parameters that act on many samples in "
            f"the same way by a factor of about {np.sqrt((1 + worst) / (1 - worst)):.2g}. Look at "
            "the differences: the model may lack something.",
            worst,
        )


def _levels_of_outliers(result) -> dict[str, float]:
    """Channels whose estimated noise the median difference contradicts, with the quotient."""
    found = {}
    for name in (x for x in result.estimated_noise if x not in result.round_off):
        parts = [one[name].residuals for one in result.data if name in one]
        level = median_level(np.concatenate(parts))
        if 0 < _OF_OUTLIERS * level < result.noise[name]:
            found[name] = result.noise[name] / level
    return found


def _sizes(result) -> dict[str, float]:
    """Root mean squares of differences by those of the samples' deviations from their means."""
    found: dict[str, np.ndarray] = {}
    for one in result.data:
        for name, x in one.items():
            known = np.isfinite(x.residuals)
            values = x.measured[known]
            own = np.array([np.sum(x.residuals[known] ** 2), np.sum((values - values.mean()) ** 2)])
            found[name] = found.get(name, 0.0) + own
    return {name: float(np.sqrt(x[0] / x[1])) for name, x in found.items() if x[1] > 0}


def _samples(result) -> int:
    return sum(int(np.isfinite(x.residuals).sum()) for one in result.data for x in one.values())


def autocorrelation(result) -> dict[str, Autocorrelation]:
    """Correlation of differences from the model between neighbouring samples, by channel."""
    loss = Loss(result.loss, result.f_scale)
    return autocorrelation_of(result.data, len(result.values), result.round_off, loss)


def _of_singular_positions(singular: SingularPositions) -> Finding | None:
    """What a singular position on the way makes of an estimate."""
    guessed = ", with the first guess of the parameters," if singular.guessed else ""
    where = f"the run of experiment {singular.experiment}{guessed}"
    positions = (
        f"passes singular positions, at t = {', '.join(f'{t:.6g}' for t in singular.times[:5])} s"
    )
    refused = singular.refused and singular.refused.replace("the run", where, 1)
    if singular.openings:
        changes = " and ".join(
            f"{x.name} by {x.change:.3g} moves them {x.distance:.3g} apart"
            for x in singular.openings
        )
        message = (
            f"{f'{refused} It' if refused else where} {positions}, where constraints "
            f"({', '.join(map(repr, singular.constraints))}) meet only with these parameters: a "
            f"change of {changes}, and the motion cannot cross there any more but turns into "
            "another branch. By such a parameter it has no derivative; estimate and standard error "
            "of it mean nothing. Write what keeps the position, links of equal length say, by one "
            "parameter, hold it, or end the record before."
        )
    elif refused:
        message = refused
    elif singular.fixed is None or singular.guessed:
        return None
    else:
        message = (
            f"{where} {positions}, as near as {singular.least:.2g}, with steps of "
            f"{singular.fixed:.3g} s. Where a fixed step ends or has a stage next to one, "
            "derivatives are wrong by any factor, in some runs of a thousand; estimate and "
            "standard errors may be off. Leave dt out: adaptive steps keep values and derivatives."
        )
    return Finding(message, singular.least, singular.times[0], singular.constraints)


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


def open_directions(found: Sensitivity, names: Sequence[str], scales: np.ndarray) -> list[str]:
    """Each direction that no channel sees, in words, with as few unknowns in it as possible.

    `names` are those of the unknowns, `log …` for a logarithm, `scales` the size of a unit of each.
    """
    if not found.unseen.shape[1]:
        return []
    # In relative changes: those of the columns of length one depend on the noise.
    seen = found.sizes > 0
    moves = found.unseen / np.where(seen, found.sizes, 1.0)[:, None] / scales[:, None]
    return [_direction_in_words(x, names, scales) for x in _sparse(moves)]


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


def _direction_in_words(direction: np.ndarray, names: Sequence[str], scales: np.ndarray) -> str:
    used = [int(i) for i in np.flatnonzero(np.abs(direction) > NEGLIGIBLE)]
    direction = direction * np.sign(direction[used[0]])
    plain = [names[i].removeprefix("log ") for i in used]
    if len(used) == 1:
        return (
            f"no channel sees {plain[0]}: what it changes, in units of the noise, is round-off "
            "beside what others do"
        )
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


def singular_positions(
    task, x, made: Sequence[Predictions], names: Sequence[str], experiments: Sequence[Experiment]
) -> tuple[SingularPositions, ...]:
    """Singular positions that runs pass with the unknowns `x`, with which they are as `made`.

    Between samples that are more than about a radian of the motion apart nothing is looked for.
    """
    fit, found = task.fit, []
    params = fit.params(x)
    some = [_may_be_singular(fit, params, batch) for batch in fit.batches]
    for number, run, one in task.intervals:
        if not some[number]:
            continue
        batch = fit.batches[number]
        member, predictions = (batch.member(tree, run) for tree in (batch.runs, made[number]))
        result = _of_run(task.fit, x, member, predictions, one.at.size, names)
        if result is not None:
            name = label(one.experiment, experiments[one.experiment])
            times = tuple(t + float(member.origin) for t in result.times)
            found.append(result._replace(experiment=name, times=times))
    return tuple(found)


def _may_be_singular(fit, params, batch) -> bool:
    """Whether the runs of a batch are of a mechanism with constraints."""
    member = batch.member(batch.runs, 0)
    parts = fit.model.parts(params, member.given)
    if not isinstance(parts, Mechanism):
        return False
    return parts.is_constrained(0.0, member.guess)


def _of_run(
    fit, x, member: Runs, predictions: Predictions, samples: int, names
) -> SingularPositions | None:
    parts = fit.model.parts(fit.params(x), member.given)
    if not isinstance(parts, Mechanism):
        return None
    system, formulation = parts.system, parts.formulation
    first, later = jax.device_get((predictions.first, predictions.states))
    ts = np.append(np.asarray(member.start), np.asarray(member.samples)[:samples])
    states = jax.tree.map(lambda a, b: np.concatenate([a[None], b[:samples]]), first, later)
    if not all(np.isfinite(a).all() for a in jax.tree.leaves(states)):
        return None
    near, typical = near_singularities_along(system, formulation, ts, states)
    if not near:
        return None
    passes = formulation.capabilities.passes_singular_positions
    lowest = min(near, key=lambda p: p.value)
    found = None if passes else singularity_finding(formulation, near, typical)
    q, combination = _place(system, lowest.time, ts, states)

    def phi(x, q):
        system = fit.model.parts(fit.params(x), member.given).system
        return system.position_constraints(lowest.time, q)

    units, least = fit.units(np.asarray(x)), lowest.value / typical
    involved = np.flatnonzero(np.abs(combination) > _PART)
    return SingularPositions(
        experiment="",
        times=tuple(p.time for p in near),
        least=least,
        refused=None if found is None else found.message,
        fixed=fit.model.settings.fixed_step,
        openings=_openings(phi, x, q, combination, units, least, names),
        constraints=tuple(system.labels().constraint(int(k)) for k in involved),
    )


def _place(system, time: float, ts, states: State) -> tuple[jax.Array, np.ndarray]:
    """Coordinates at a time of a run, and what of the constraints' Jacobian vanishes there."""
    i = np.atleast_1d(np.clip(np.searchsorted(ts, time) - 1, 0, ts.size - 2))
    s = (time - ts[i])[:, None] / (ts[i + 1] - ts[i])[:, None]
    _, q, _ = curve(np, ts, states.q, states.v, i, s)
    there, rows = jnp.asarray(q[0, 0]), jax.jacfwd(system.position_constraints, argnums=1)
    before, now = rows(ts[0], jnp.asarray(states.q[0])), rows(time, there)
    return there, _combination(np.asarray(before), np.asarray(now))


def _combination(before: np.ndarray, there: np.ndarray) -> np.ndarray:
    """A unit vector `y` with `y^T J` nearly zero `there` and not before; zeros for none."""
    lengths = np.linalg.norm(np.stack([before, there]), axis=2).max(axis=0)
    scales = 1 / np.where(lengths > 0, lengths, 1.0)
    sizes = np.linalg.svd(before * scales[:, None], compute_uv=False)
    rank = int(np.sum(sizes > RANK * sizes.max(initial=0.0)))
    left, values, _ = np.linalg.svd(there * scales[:, None])
    if rank == 0 or values[rank - 1] > _RANK_LOST * values[0]:
        return np.zeros(scales.size)
    combination = left[:, rank - 1] * scales
    return combination / np.linalg.norm(combination)


def _openings(
    phi: Callable, x, q, combination: np.ndarray, units, nearness: float, names
) -> tuple[Opening, ...]:
    r"""Unknowns with which a singular position vanishes; `phi(x, q)` are the constraints there.

    The configurations next to a position with `y^T J = 0` are those of `y^T phi(q, p) = 0`, a form
    of second order in the free directions: two branches that cross. A change of the parameters with
    `y^T dphi/dp dp` not zero makes a hyperbola of them, which no motion crosses.
    """
    changes = _CHANGE * np.asarray(units)[: len(names)]
    slopes, jac = (np.asarray(a) for a in jax.jacfwd(phi, (0, 1))(x, q))
    slopes = slopes[:, : len(names)] * changes
    apart = np.abs(combination @ slopes)
    digits = np.finfo(slopes.dtype).eps ** 0.5
    # Where a change moves no constraint, its slopes are round-off in every direction: a distance
    # counts beside what a change of all coordinates, by the same part, moves the constraints.
    lengths = np.linalg.norm(jac, axis=1) * (1 + np.linalg.norm(q))
    round_off = digits * _CHANGE * np.linalg.norm(combination * lengths)
    limit = (_PER_DISTANCE * nearness + digits) * np.linalg.norm(slopes, axis=0) + round_off
    opened = np.flatnonzero(apart > limit)
    return tuple(Opening(names[k], float(changes[k]), float(apart[k])) for k in opened)
