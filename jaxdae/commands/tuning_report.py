"""What `jaxdae tune` finds in one study, what it prints of it, and what it writes."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.commands.validation import Comparison, Summary
from jaxdae.models.study import Check, Study
from jaxdae.tables import gain_text, table
from jaxdae.tuning import SimulationObjective, TuningResult
from jaxdae.tuning.certificate import Certificate

# Theory and tuning agree where they differ by no more.
AGREEMENT = 0.03
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

    @property
    def losses(self) -> np.ndarray:
        """The objective after each evaluation, where its logarithm was minimized as well."""
        history = self.result.history.loss
        return np.exp(history) if self.logarithmic else history


class StudyFindings(NamedTuple):
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
    """The gains of a set by name."""
    if study.servo is not None:
        coefficients = np.asarray(params.coefficients)
        roots = np.sort_complex(np.roots([1.0, *coefficients[::-1]]))
        pairs = np.stack([roots.real, roots.imag], axis=1)
        return {"coefficients": coefficients, "roots (Re, Im)": pairs}
    parts = (getattr(params, "stabilization", None), getattr(params, "law", None), params)
    pairs = [(name, getattr(part, name, None)) for part in parts for name in _GAINS]
    return {name: np.asarray(value) for name, value in pairs if value is not None}


def report(found: StudyFindings) -> str:
    """Tables and sentences."""
    gains = {x: named_gains(found.study, params) for x, params in found.sets.items()}
    costs, parts = [], []
    for name, compared in found.checks.items():
        of = compared.summaries
        costs.append((name, *(of[x].cost for x in found.sets), fold(of["first"], of["range"])))
    for part in found.study.goal.parts:
        for name, compared in found.checks.items():
            values = [compared.summaries[x].parts[part] for x in found.sets]
            parts.append((f"{part}, {name}", *values))
    headings = [*found.labels.values()]
    tables = [
        table(
            ("gain", *headings),
            [(x, *(gain_text(gains[y][x]) for y in found.sets)) for x in gains["first"]],
        ),
        table(
            (f"mean integrated {found.study.goal.integrand}", *headings, "cut, range"),
            costs,
        ),
        table(("of it, mean integrated", *headings), parts),
        _certificate_table(found),
    ]
    lines = [_rate(name, x) for name, x in found.tuned.items()]
    for x in tables:
        lines += ["", x]
    lines.append("")
    if found.left_out:
        steps = ", ".join(f"{x:g}" for x in found.left_out)
        lines.append(
            f"Runs with the first gains fail at steps of {steps} s: the range was tuned without "
            "them."
        )
    lines += [*_theory_lines(found), *_range_lines(found), *_limit_lines(found), ""]
    return "\n".join(lines)


def record(found: StudyFindings) -> dict[str, Any]:
    """The same as numbers, for `result.json`."""
    study = found.study
    return {
        "name": study.name,
        "method": study.method,
        "integrand": study.goal.integrand,
        "t1": study.t1,
        "dt": study.dt,
        "spread": study.deviation,
        "gains": {x: named_gains(study, params) for x, params in found.sets.items()},
        "checks": {
            check: {column: x._asdict() for column, x in compared.summaries.items()}
            for check, compared in found.checks.items()
        },
        "tunings": {name: _tuning(x) for name, x in found.tuned.items()},
        "certificates": {name: x.to_json() for name, x in found.certificates.items()},
        "theory_difference": found.theory_difference,
        "left_out": found.left_out,
        "beyond": found.beyond,
        "validation_seconds": found.validation_seconds,
    }


def _tuning(tuned: Tuned) -> dict[str, Any]:
    result = tuned.result
    names = ("evaluations", "steps", "skipped", "stop_reason", "wall_seconds", "compile_seconds")
    return {
        "budget": tuned.objective.budget,
        "method": result.method,
        "ending": result.ending,
        "certificate": None if result.certificate is None else result.certificate.to_json(),
        "history": tuned.losses,
        **{name: getattr(result, name) for name in names},
    }


def _rate(name: str, tuned: Tuned) -> str:
    """How many simulations a second were run, and by what."""
    result = tuned.result
    reason = "" if tuned.why_not is None or tuned.backend == "native" else f" ({tuned.why_not})"
    lines = [
        f"{LABELS[name]}: {result.method}; {result.evaluations} evaluations, {result.skipped} of "
        f"them refused; {result.ending}"
    ]
    if tuned.seconds > 0:
        count = len(tuned.objective.members.start) / tuned.seconds
        lines.append(
            f"  {count:,.0f} simulations with gradients per second, {tuned.backend} backend{reason}"
        )
    return "\n".join(lines)


def _certificate_table(found: StudyFindings) -> str:
    """Decay and margin of the step, which are theorems, and the worst case seen."""
    each, steps = found.certificates, found.steps
    members = next(iter(each.values())).members
    unknown = float("nan")
    rows = [
        ("sure decay of a Lyapunov function [1/s]", lambda x: x.lyapunov_rate),
        ("step limit / longest step", lambda x: x.step_margin),
        (f"worst cost seen of {members} runs", lambda x: unknown if x.failed else x.worst_cost),
        ("runs that failed", lambda x: x.failed),
    ]
    if any(x.states is not None for x in each.values()):
        rows.insert(2, ("both are the worst of states of the motions", lambda x: x.states))
    cells = []
    for name, read in rows:
        values = [read(each[x]) for x in found.sets]
        cells.append((name, *("unknown" if x is None else x for x in values)))
    heading = f"certificate, steps of {min(steps):g} to {max(steps):g} s"
    return table((heading, *found.labels.values()), cells)


def fold(old: Summary, new: Summary) -> str:
    """How many times smaller a cost has become, in words."""
    ratio = old.cost / new.cost if new.cost > 0 else np.nan
    if 0 < ratio < 1:
        return f"{1 / ratio:.2g}-fold rise"
    if np.isfinite(ratio):
        return f"{ratio:.0f}-fold" if ratio >= 10 else f"{ratio:.2g}-fold"
    return f"{old.failed} failed before, {new.failed} after"


def _theory_lines(found: StudyFindings) -> list[str]:
    """Whether tuning for one step finds the gains of theory."""
    difference = found.theory_difference
    if difference is None:
        return []
    theory, tuned = (named_gains(found.study, found.sets[x]) for x in ("theory", "one step"))
    units = {"K_D": 1, "K_P": 2, "Gamma": 1}
    said = []
    for name, power in units.items():
        if name in theory:
            scale, symbol = found.study.dt**power, "h" if power == 1 else f"h^{power}"
            ours = ", ".join(f"{x:.4g}" for x in np.unique(np.ravel(tuned[name] * scale)))
            said.append(f"{name} {symbol} = {ours} ({np.ravel(theory[name])[0] * scale:.4g})")
    agrees = difference <= AGREEMENT
    verdict = "finds the gains of theory" if agrees else "finds others than theory"
    stopped = found.tuned["one step"].result.stop_reason == "steps"
    early = " All steps were made before it converged: give more by --steps."
    return [
        f"Tuning for the step h = {found.study.dt:g} s {verdict} (in brackets): "
        f"{'; '.join(said)}. They differ by up to {100 * difference:.3g} %."
        f"{early if stopped and not agrees else ''}"
    ]


def step_checks(found: StudyFindings) -> list[Check]:
    """Checks that differ from the tuning by starts and step alone."""
    fresh = [x for x in found.study.checks if x.name != "as tuned"]
    return [x for x in fresh if x.deviation == 1.0 and x.t1 is None]


def _range_lines(found: StudyFindings) -> list[str]:
    """How the gains for a range do at steps they were not tuned on."""
    steps = found.steps
    lines = [f"Tuned for steps of {min(steps):g} to {max(steps):g} s, validated at others:"]
    cuts = {}
    for check in step_checks(found):
        of = found.checks[check.name].summaries
        fails = [x for x in ("first", "range") if of[x].failed]
        words = f"runs fail at {check.name}"
        lines += [f"  {of[x].failed} of {check.count} {words}, {found.labels[x]}." for x in fails]
        if not fails:
            cuts[check.name] = of["first"].cost / of["range"].cost
    if cuts:
        worst, best = min(cuts, key=cuts.__getitem__), max(cuts, key=cuts.__getitem__)
        than = f"than {found.study.first_gains}"
        verdict = f"better {than} at each" if cuts[worst] > 1 else f"not better {than} at each"
        lines.append(
            f"  {verdict}, from {cuts[worst]:.3g}-fold ({worst}) to {cuts[best]:.3g}-fold ({best})."
        )
    return lines


def _limit_lines(found: StudyFindings) -> list[str]:
    """Which starts break past the study's end, and the first failure in words."""
    limits = found.beyond
    if limits is None:
        return []
    lines, reason, total = [], "", limits["starts"]
    for name in found.sets:
        times, reason = limits[name]["times"], limits[name]["reason"] or reason
        when = f", at t = {times.min():.4f} to {times.max():.4f} s" if times.size else ""
        lines.append(f"  {found.labels[name]}: {times.size} of {total} starts break{when}.")
    heading = f"Beyond the tuned horizon, on the way to t = {limits['t1']:g} s with adaptive steps:"
    return [heading, *lines, *([f"  One of them: {reason}"] if reason else [])]
