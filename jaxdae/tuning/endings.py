"""Why a start of a tuning run ends, and what that is in words."""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


class Ending(NamedTuple):
    """A reason to end."""

    reason: str  # one word
    words: str  # with `number`, what was compared with a tolerance, to fill in


# By status; the first is that of a start that has not ended.
ENDINGS = (
    Ending("steps", "all steps were made"),
    Ending("converged", "all residuals are zero"),
    Ending(
        "converged",
        "the residuals are orthogonal to what the parameters can change: the cosine is {number:.1e}"
        ", tolerance {tolerance:.1e}",
    ),
    Ending(
        "converged",
        "the last step changed the parameters by {number:.1e} of their size, tolerance "
        "{tolerance:.1e}",
    ),
    Ending(
        "converged",
        "the next step would lower the loss by {number:.1e} of it, tolerance {decrease:.1e}",
    ),
    Ending(
        "converged",
        "each entry of the gradient has fallen to {number:.1e} of its largest, tolerance "
        "{decrease:.1e}",
    ),
    Ending(
        "converged",
        "round-off: a step that should lower the loss by {number:.1e} of it does not any more",
    ),
    Ending(
        "stalled",
        "no step lowers the loss any more, although its linearization promises to, by {number:.1e} "
        "of it; the derivatives are wrong there, the loss is not smooth, or the parameters "
        "have very different scales (`Positive` makes their changes relative)",
    ),
    Ending(
        "stalled",
        "all derivatives of the loss, which is {number:.3g}, are zero there: it does not depend on "
        "the parameters, is stationary, or a parametrization has reached its bound",
    ),
    Ending(
        "stalled",
        "in 20 steps the loss has fallen by less than {decrease:.1e} of it in each, although its "
        "linearization promises {number:.1e}: a parametrization has reached its bound, or the "
        "Jacobian loses rank there",
    ),
)
RUNNING, ZERO, ANGLE, STEP, DECREASE, GRADIENT, ROUND_OFF, STALLED, FLAT, SLOW = range(len(ENDINGS))


def in_words(status: int, number: float, tolerance: float) -> tuple[str, str]:
    """Reason and words of an ending."""
    ending = ENDINGS[status]
    values = {"number": number, "tolerance": tolerance, "decrease": tolerance**1.5}
    return ending.reason, ending.words.format(**values)


def first_true(*cases: tuple[int, Array, Array]) -> tuple[Array, Array]:
    """Status and number of the first case whose condition holds; zeros if none does."""
    status, number = jnp.asarray(RUNNING), jnp.asarray(0.0, jnp.result_type(float))
    for code, condition, value in reversed(cases):
        status = jnp.where(condition, code, status)
        number = jnp.where(condition, value, number)
    return status, number


# Not converged: where the loss falls by more in the last tenth of the steps, as a part of it, or
# the gradient is a larger part of its largest. For a quadratic that is the part of the way left.
_FALL, _SLOPE = 1e-2, 1e-3


def after_all_steps(
    loss: Float[np.ndarray, " rows"], gradient_norm: Float[np.ndarray, " rows"]
) -> str:
    """How near to convergence an optimizer is that always makes all steps, in words."""
    finite = np.isfinite(loss) & np.isfinite(gradient_norm)
    norms, tenth = gradient_norm[finite], max((loss.size - 1) // 10, 1)
    least = np.minimum.accumulate(np.where(finite, loss, np.inf))
    before, last = least[-1 - min(tenth, loss.size - 1)], least[-1]
    fall = (before - last) / max(abs(before), np.finfo(float).tiny) if before < np.inf else np.inf
    slope = norms[np.argmin(loss[finite])] / max(norms.max(), np.finfo(float).tiny)
    words = (
        f"all steps were made; the loss fell by {100 * fall:.2g} % in the last {tenth}, and the "
        f"gradient at the best is {slope:.2g} of the largest"
    )
    if fall <= _FALL and slope <= _SLOPE:
        return words
    return (
        f'{words}: not converged, take more steps, or optimizer="l-bfgs" where the loss is smooth'
    )


# The gradient's norm beyond so many times its median tells that gradients grow along the runs.
_OUTLIER = 1e4
# Part of the draws that may fail before it is warned of.
_MOST_SKIPPED = 0.1


def after_draws(loss: Float[np.ndarray, " rows"], gradient_norm: Float[np.ndarray, " rows"]) -> str:
    """How the losses of different draws have changed, and how many were not finite, in words."""
    finite = np.isfinite(loss) & np.isfinite(gradient_norm)
    seen, count = loss[finite], loss.size - int(finite.sum())
    tenth = max(seen.size // 10, 1)
    words = (
        f"the mean loss of draws fell from {seen[:tenth].mean():.4g} in the first {tenth} to "
        f"{seen[-tenth:].mean():.4g} in the last"
    )
    return words + f"; {count} of {loss.size} were not finite" * bool(count)


def findings_of_draws(
    gradient_norm: Float[np.ndarray, " rows"], skipped: Bool[np.ndarray, " rows"]
) -> Iterator[str]:
    """What may be wrong with a training on draws, in words."""
    if np.mean(skipped) > _MOST_SKIPPED:
        yield (
            f"{np.sum(skipped)} of {skipped.size} draws made no step, as their losses or gradients "
            "were not finite: one run that fails is enough. Draw nearer to the mean, or take "
            "shorter runs or steps"
        )
    norms = np.where(np.isfinite(gradient_norm), gradient_norm, 0.0)
    usual, largest = np.median(norms[norms > 0]) if norms.any() else 0.0, norms.max(initial=0.0)
    if largest > _OUTLIER * usual:
        yield (
            f"the gradient's norm at step {int(np.argmax(norms))} is {largest:.3g}, "
            f"{largest / usual:.1e} times the median: a sum with it loses "
            f"{np.log10(largest / usual):.0f} digits of others. Gradients of long unstable runs "
            "grow; `jaxdae.tuning.gradient_growth` measures how fast, `Stochastic(function, "
            "horizon=…)` begins with shorter runs, and optax.clip_by_global_norm bounds the steps"
        )


def require_a_start(loss: np.ndarray, norm: np.ndarray) -> None:
    """Refuse starts that all fail."""
    if np.any(np.isfinite(loss) & np.isfinite(norm)):
        return
    raise ValueError(
        f"tune: the first evaluation failed at all {loss.size} starts (loss {loss[0]:.6g}, "
        f"gradient norm {norm[0]:.6g} at the first); start from parameters at which the objective "
        "and its gradient are finite: smaller gains, a smaller step, or a shorter time span."
    )
