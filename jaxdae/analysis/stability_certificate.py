"""What is sure of matrices of perturbation equations, under steps of a method: decay and limits."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdae.analysis.lyapunov import lyapunov_certificate
from jaxdae.analysis.steps import spectral_limit
from jaxdae.stability.stability_functions import amplification, has_stability_function
from jaxdae.tables import root_text

# Different matrices that are examined: each takes milliseconds, and most runs have one.
_MOST_MATRICES = 16


class StabilityCertificate(NamedTuple):
    """Decay of what is stabilized, the least over all states that were seen.

    Args:
        what: "constraint" or "servo-constraint".
        lyapunov_rate: rate [1/s] at which the norm of a Lyapunov function is sure to decay; `None`
            where there is none, because a violation does not decay.
        slowest_root: the root of the perturbation equations with the largest real part [1/s].
        step_limit: largest step [s] that damps all roots; infinite where every step does, `None`
            where there is no rate or the method has no stability function.
        step: largest step of the objective [s], `None` of adaptive runs.
        step_margin: `step_limit / step`; above 1 every step damps.
        factor: largest factor by which any of the objective's steps multiplies a mode of the
            violation: under several steps not always that of the largest.
        steps: number of different steps of the objective.
        states: number of states along the motions, starts included, of which it is the worst;
            `None` where the perturbation equations are the same at all of them.
    """

    what: str
    lyapunov_rate: float | None
    slowest_root: complex
    step_limit: float | None = None
    step: float | None = None
    step_margin: float | None = None
    factor: float | None = None
    steps: int = 0
    states: int | None = None

    def summary(self) -> str:
        """All of it in one line."""
        if self.lyapunov_rate is None:
            return (
                f"{self.what} violations do not decay: root {root_text(self.slowest_root, 4)} 1/s"
            )
        where = (
            "" if self.states is None else f" at the worst of {self.states} states of the motions"
        )
        text = f"{self.what} violations decay by exp(-{self.lyapunov_rate:.4g} t){where}"
        if (
            self.step_margin is None
            or self.step_limit is None
            or self.factor is None
            or self.step is None
        ):
            return text
        if self.factor > 1:
            return (
                f"UNSTABLE: a step of up to {self.step:.4g} s multiplies {self.what} violations by "
                f"{self.factor:.3g}, the step limit is {self.step_limit:.4g} s ({text} under exact "
                "integration alone); take smaller gains or shorter steps"
            )
        most = "at most " if self.steps > 1 else ""
        return (
            f"{text}, step limit {self.step_limit:.4g} s = {self.step_margin:.3g} steps, "
            f"modes times {most}{self.factor:.3g} in each"
        )


def worst_stability(
    what: str, matrices: Float[np.ndarray, "states k k"], solver: Any, steps: tuple[float, ...]
) -> tuple[StabilityCertificate | None, int]:
    """The certificate that holds of matrices at several states, and how many are not finite.

    Args:
        what: they perturb.
        matrices: `H` of `dy/dt = H y` at each state.
        solver: step method.
        steps: lengths of its fixed steps [s]; none where they are adaptive.

    Returns:
        The worst certificate of the matrices that are finite, `None` where none is.
    """
    finite = np.isfinite(matrices).all(axis=(1, 2))
    wrong = int((~finite).sum())
    if not finite.any():
        return None, wrong
    each = [_certified(what, H, solver, steps) for H in _distinct(matrices[finite])]
    return _slowest(each), wrong


def _distinct(matrices) -> np.ndarray:
    """Different ones among finite matrices; where there are many, the extreme ones."""
    kept = np.unique(matrices, axis=0)
    if len(kept) > _MOST_MATRICES:
        # The slowest roots limit rates, the largest limit steps.
        roots = np.linalg.eigvals(kept)
        slowest, largest = np.argsort(-roots.real.max(axis=1)), np.argsort(-abs(roots).max(axis=1))
        half = _MOST_MATRICES // 2
        kept = kept[np.unique(np.concatenate([slowest[:half], largest[:half]]))]
    return kept


def _certified(what: str, H, solver, steps: tuple[float, ...]) -> StabilityCertificate:
    """Of one matrix and all steps of an objective; none where they are adaptive."""
    roots, step = np.linalg.eigvals(H), max(steps, default=None)
    count, slowest = len(set(steps)), complex(roots[np.argmax(roots.real)])
    if not slowest.real < 0:
        return StabilityCertificate(what, None, slowest, step=step, steps=count)
    rate = _guaranteed_rate(H)
    if not has_stability_function(solver) or step is None:
        return StabilityCertificate(what, rate, slowest, step=step, steps=count)
    limit = spectral_limit(roots, solver).limit
    factor = float(np.max(amplification(solver, np.multiply.outer(steps, roots))))
    return StabilityCertificate(what, rate, slowest, limit, step, limit / step, factor, count)


def _guaranteed_rate(H) -> float | None:
    """Rate of the norm of a Lyapunov function: the best of those with one parameter, or balanced.

    `H` of one half and no velocity constraints is that of `lyapunov_certificate`.
    """
    half = len(H) // 2
    block = np.block([[np.zeros((half, half)), np.eye(half)]])
    if len(H) == 2 * half and np.array_equal(H[:half], block):
        try:
            return lyapunov_certificate(-H[half:, half:], -H[half:, :half]).rate
        except ValueError:
            pass  # gains that are not symmetric positive definite, though H is Hurwitz
    from scipy.linalg import matrix_balance

    balanced, _ = matrix_balance(H, permute=False, separate=True)
    try:
        return lyapunov_certificate(H=balanced).rate / 2
    except ValueError:
        return None


def _slowest(each: list[StabilityCertificate]) -> StabilityCertificate:
    """The least of each over several states: of rates, limits and margins; the largest factor."""
    unstable = [x for x in each if x.lyapunov_rate is None]
    if unstable:
        return max(unstable, key=lambda x: x.slowest_root.real)
    slowest = min(each, key=lambda x: x.lyapunov_rate or 0.0)
    if slowest.step_limit is None:
        return slowest
    shortest = min(each, key=lambda x: x.step_limit or 0.0)
    return slowest._replace(
        step_limit=shortest.step_limit,
        step_margin=shortest.step_margin,
        factor=max(x.factor or 0.0 for x in each),
        slowest_root=max((x.slowest_root for x in each), key=lambda x: x.real),
    )
