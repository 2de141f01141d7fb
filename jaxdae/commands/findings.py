"""What `jaxdae tune` finds in one study."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.tuning import SimulationObjective, TuningResult
from jaxdae.tuning.certificate import Certificate
from jaxdae.tuning.studies import Study
from jaxdae.tuning.validation import Comparison

# Sets of gains, as tables and pictures name them.
LABELS = {
    "first": "the first gains",
    "theory": "by theory",
    "one step": "tuned, one step",
    "range": "tuned, range",
}
# Of a stabilization, of a law of realizing forces, and of a formulation itself.
_GAINS = ("K_D", "K_P", "Gamma", "k", "alpha", "decay")


class Tuned(NamedTuple):
    """A tuning run.

    Args:
        objective: what was minimized.
        result: what `tune` returned.
        path: resolved parameters after each evaluation, the best so far.
        seconds: of an evaluation [s]; NaN where there were not two.
        multiples: steps that were tuned on, in units of the study's.
        logarithmic: whether the logarithm of the objective was minimized.
        backend: what made the runs.
        why_not: what kept the native backend from it, or `None`.
    """

    objective: SimulationObjective
    result: TuningResult
    path: list[Any]
    seconds: float
    multiples: tuple[float, ...]
    logarithmic: bool
    backend: str
    why_not: str | None


class Findings(NamedTuple):
    """All that is said of a study.

    Args:
        study: what was tuned.
        tuned: tuning runs by the name of their column.
        sets: all gains by column, resolved.
        checks: summaries by the name of the check.
        beyond: what happens past the place where the method breaks, by column, or `None`.
        certificates: of each column, under the conditions of the tuning for a range.
        left_out: steps [s] of the range at which runs with the first gains fail.
        validation_seconds: time that validation took [s].
    """

    study: Study
    tuned: dict[str, Tuned]
    sets: dict[str, Any]
    checks: dict[str, Comparison]
    beyond: dict[str, Any] | None
    certificates: dict[str, Certificate]
    left_out: tuple[float, ...]
    validation_seconds: float

    @property
    def labels(self) -> dict[str, str]:
        """The columns as tables and pictures name them."""
        return {x: (LABELS | {"first": self.study.first_gains})[x] for x in self.sets}

    @property
    def steps(self) -> list[float]:
        """Steps [s] of the tuning for a range."""
        return [x * self.study.dt for x in self.tuned["range"].multiples]

    @property
    def theory_difference(self) -> float | None:
        """Largest relative difference of gains tuned for one step from theory's, if it has any."""
        if "theory" not in self.sets:
            return None
        theory, tuned = (named_gains(self.study, self.sets[x]) for x in ("theory", "one step"))
        names = [x for x in ("K_D", "K_P", "Gamma") if x in theory]
        return max(float(np.max(np.abs(tuned[x] / theory[x] - 1))) for x in names)


def named_gains(study: Study, params) -> dict[str, Any]:
    """The gains of a set by name.

    Args:
        study: what is tuned.
        params: resolved.
    """
    if study.servo is not None:
        coefficients = np.asarray(params.coefficients)
        roots = np.sort_complex(np.roots([1.0, *coefficients[::-1]]))
        pairs = np.stack([roots.real, roots.imag], axis=1)
        return {"coefficients": coefficients, "roots (Re, Im)": pairs}
    parts = (getattr(params, "stabilization", None), getattr(params, "law", None), params)
    pairs = [(name, getattr(part, name, None)) for part in parts for name in _GAINS]
    return {name: np.asarray(value) for name, value in pairs if value is not None}
