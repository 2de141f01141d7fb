"""What a user of a fit must not overlook, in words."""

from jaxdae.identification.result import Identification

# A chi-square less probable than this says that the model or its noise levels are wrong.
_IMPROBABLE = 1e-4
# Gaps between intervals above this part of the motion's size are none of round-off.
_GAP = 1e-5
# An estimate from so few degrees of freedom is uncertain by a third, and its inverse by more: the
# standard errors are then not those of normal theory.
_FEW = 5.0


def warnings_of(result: Identification) -> list[str]:
    """What a user must not overlook, in words."""
    found = (
        _unidentifiable(result), _ending(result), _few(result), _noise_free(result),
        _bounds(result), _gaps(result), _improbable(result),
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
