"""What is known of a gradient: a verdict, its numbers, its reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from jaxdae.certification.motions import Growth, RankMargin
from jaxdae.storage.files import replace_file

FAULTS = (
    "integer", "not finite", "unused", "adjoint", "tangent", "rank", "events", "constraints",
    "energy", "run", "growth", "tolerance", "backend", "kink", "jump", "steps", "derivative",
    "noise",
)  # fmt: skip


class GradientCheck(NamedTuple):
    """One of the examinations of a gradient.

    Attributes:
        name: what was compared.
        passed: whether it holds; `None` where it was not made.
        value: the number found; an error is relative to the derivative's own size.
        bound: that it was compared with.
        words: what was found, or why there is nothing.
    """

    name: str
    passed: bool | None
    value: float = float("nan")
    bound: float = float("nan")
    words: str = ""


@dataclasses.dataclass(frozen=True)
class GradientCertificate:
    """Whether a gradient may be followed, what is known of it, and why not.

    Attributes:
        passed: whether it may.
        fault: what is wrong in a word, one of "integer", "not finite", "unused", "adjoint"
            (reverse mode), "tangent" (forward mode), "derivative" (both), "rank", "events",
            "constraints", "energy", "run", "growth", "tolerance", "backend", "kink", "jump",
            "steps", "noise"; "" where it passed.
        reason: the same with numbers and a remedy; where it passed, what the digits are limited by.
        digits: decimal digits of the derivative in the direction that was examined that hold: those
            to which modes, differences, backends and tolerances agree, less those that
            perturbations of the motion cost.
        value: of the function, its numbers as one vector, shape (m,).
        gradient: of a scalar function by the parameters, in their structure, of parametrizations
            by their `raw`; `None` of others, and where there is no reverse mode.
        checks: each examination, in order.
        growth: of perturbations along the longest run; `None` without runs.
        rank: margin of the constraints; `None` without.
        event_gap: least time between two events of a run [s]; infinite without.
        residual: largest constraint residual of the runs; `None` without constraints.
        evaluations: of the function, those with derivatives included.
    """

    passed: bool
    fault: str
    reason: str
    digits: float
    value: np.ndarray
    gradient: PyTree
    checks: tuple[GradientCheck, ...]
    growth: Growth | None
    rank: RankMargin | None
    event_gap: float
    residual: float | None
    evaluations: int

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.summary()

    def __str__(self) -> str:
        verdict = "certified" if self.passed else f"not certified ({self.fault})"
        return f"gradient {verdict}: {self.reason}"

    def summary(self) -> str:
        """Verdict, reason and each examination, one line each, ready to print."""
        lines = [str(self)]
        width = max(len(x.name) for x in self.checks) if self.checks else 0
        for one in self.checks:
            mark = {True: "ok", False: "FAIL", None: "-"}[one.passed]
            lines.append(f"  {one.name:<{width}}  {mark:<4}  {one.words}")
        lines.append(f"  {self.evaluations} evaluations of the function")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists alone; `None` for what is not finite or not known."""
        skipped = ("gradient", "checks", "growth", "rank", "value")
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        plain = {name: _plain(x) for name, x in fields.items() if name not in skipped}
        records = {
            "growth": None if self.growth is None else _record(self.growth),
            "rank": None if self.rank is None else _record(self.rank),
        }
        return plain | records | {"checks": [_record(x) for x in self.checks]}

    def save(self, file: str | Path) -> None:
        """Write `to_json` to a file.

        Args:
            file: its name; one that exists is replaced.
        """
        replace_file(Path(file), json.dumps(self.to_json(), indent=1).encode())


def _record(x: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in x._asdict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
