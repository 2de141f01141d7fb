"""What a user of a fit must not overlook, in words."""

import numpy as np

from jaxdae.identification.result import Identification
from jaxdae.identification.singular import SingularPassage

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


def warnings_of(result: Identification) -> list[str]:
    """What a user must not overlook, in words."""
    found = (
        _unidentifiable(result), _ending(result), _few(result), _noise_free(result),
        _bounds(result), _gaps(result), _improbable(result), _overstated(result), _memory(result),
        _uncertain(result), _moved(result),
        *(_passage(x) for x in result.singular_passages if not x.turned),
        *(_turn(x) for x in result.singular_passages if x.turned and _unexplained(result)),
    )  # fmt: skip
    return [f"identify: {text}" for text in found if text]


def _unidentifiable(result: Identification) -> str:
    if not result.unidentifiable:
        return ""
    return (
        "the data do not determine all parameters: "
        + "; ".join(result.unidentifiable)
        + ". Their standard errors are infinite; hold one of them, or measure another channel."
    )


def _ending(result: Identification) -> str:
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


def _few(result: Identification) -> str:
    few = {name: x for name, x in result.noise_freedom.items() if x < _FEW}
    if not few:
        return ""
    listed = ", ".join(f"{name!r} ({x:.2g})" for name, x in few.items())
    return (
        f"few degrees of freedom are left to estimate the noise of {listed}; with fewer than "
        f"{_FEW:g} the noise level, weights and standard errors are uncertain by a third or more. "
        "Give the level, Measurement(values, sigma), or more samples."
    )


def _noise_free(result: Identification) -> str:
    if not result.round_off:
        return ""
    listed = ", ".join(f"{name!r} ({result.noise[name]:.2g})" for name in result.round_off)
    return (
        f"the model meets the samples of {listed} to round-off: they have no noise to estimate, "
        "and the standard errors are those of round-off. Give the level that instruments have, "
        "Measurement(values, sigma)."
    )


def _bounds(result: Identification) -> str:
    if not result.at_bounds:
        return ""
    named = ", ".join(f"{name} = {result[name]:.6g}" for name in result.at_bounds)
    verb = "is at its bound" if len(result.at_bounds) == 1 else "are at their bounds"
    return (
        f"{named} {verb}: the data would have it outside of the Interval, and standard errors do "
        "not hold there. Widen the bounds, or hold it."
    )


def _gaps(result: Identification) -> str:
    if not result.gap > _GAP:
        return ""
    return (
        f"intervals do not meet, the largest gap is {result.gap:.2g} of the motion's size; the "
        "estimate is not that of one motion. Give more steps or a better guess."
    )


def _improbable(result: Identification) -> str:
    underway = result.stop_reason == "steps" and not result.at_bounds
    if underway or not result.probability < _IMPROBABLE:
        return ""  # on the way to a minimum it is large in any case
    return (
        f"chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} degrees of freedom "
        f"(probability {result.probability:.1g}): the model or its noise levels do not explain "
        "the data, and the standard errors are too small; or this is a local minimum: try "
        "starts=…."
    )


def autocorrelation(result: Identification) -> dict[str, tuple[float, float]]:
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


def _correlated(result: Identification) -> dict[str, float]:
    """Channels whose differences are certainly correlated, and how much."""
    found = autocorrelation(result)
    return {name: r for name, (r, off) in found.items() if abs(off) > _CERTAIN and abs(r) > 0.1}


def _memory(result: Identification) -> str:
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


def _overstated(result: Identification) -> str:
    # Correlated differences may be small together: that says nothing of the noise level.
    if _correlated(result) or not result.probability_below < _IMPROBABLE:
        return ""
    return (
        f"chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} degrees of freedom "
        f"(probability of a smaller one {result.probability_below:.1g}): the noise is smaller than "
        "the levels that are given, and the standard errors are too large. Leave sigma out to "
        "estimate them."
    )


def _moved(result: Identification) -> str:
    far = {name: x for name, x in result.moved_starts.items() if x > _MOVED}
    if not far:
        return ""
    listed = ", ".join(f"{name} ({100 * x:.2g} %)" for name, x in far.items())
    return (
        "with the estimate the known starts of these experiments are off the constraints, and were "
        f"moved to the nearest consistent state, by so much of their size: {listed}. Check them, "
        "or give UnknownStart(state)."
    )


def _uncertain(result: Identification) -> str:
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


def _unexplained(result: Identification) -> bool:
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
