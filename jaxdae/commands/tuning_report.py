"""What `jaxdae tune` prints of a study, and what it writes."""

from typing import Any

import numpy as np

from jaxdae.commands.findings import Findings, LABELS, named_gains, Tuned
from jaxdae.plotting.readout import common_unit
from jaxdae.tables import gain_text, table
from jaxdae.tuning.studies import Check
from jaxdae.tuning.validation import from_start, Summary

# Theory and tuning agree where they differ by no more.
AGREEMENT = 0.03


def report(found: Findings) -> str:
    """Tables and sentences.

    Args:
        found: of a study.
    """
    lines = [
        *(_rate(name, x) for name, x in found.tuned.items()),
        "",
        _gain_table(found),
        "",
        _cost_table(found),
        "",
        _part_table(found),
        "",
        _certificate_table(found),
        "",
        *_left_out_lines(found),
        *_theory_lines(found),
        *_range_lines(found),
        *_start_lines(found),
        *_control_lines(found),
        *_limit_lines(found),
    ]
    return "\n".join([*lines, ""])


def record(found: Findings) -> dict[str, Any]:
    """The same as numbers, for `result.json`.

    Args:
        found: of a study.
    """
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
            check: {column: _plain(x) for column, x in compared.summaries.items()}
            for check, compared in found.checks.items()
        },
        "tunings": {name: _tuning(x) for name, x in found.tuned.items()},
        "certificates": {name: x.to_json() for name, x in found.certificates.items()},
        "theory_difference": found.theory_difference,
        "left_out": found.left_out,
        "beyond": found.beyond,
        "validation_seconds": found.validation_seconds,
    }


def _plain(summary: Summary) -> dict[str, Any]:
    return summary._asdict()


def _tuning(tuned: Tuned) -> dict[str, Any]:
    result = tuned.result
    names = ("evaluations", "steps", "skipped", "stop_reason", "wall_seconds", "compile_seconds")
    return {
        "budget": tuned.objective.budget,
        "method": result.method,
        "ending": result.ending,
        "certificate": None if result.certificate is None else result.certificate.to_json(),
        "history": losses(tuned),
        **{name: getattr(result, name) for name in names},
    }


def losses(tuned: Tuned) -> np.ndarray:
    """The objective after each evaluation, where its logarithm was minimized as well.

    Args:
        tuned: a tuning run.
    """
    history = tuned.result.history.loss
    return np.exp(history) if tuned.logarithmic else history


def _rate(name: str, tuned: Tuned) -> str:
    """How many simulations a second were run, and by what."""
    result = tuned.result
    reason = "" if tuned.why_not is None or tuned.backend == "native" else f" ({tuned.why_not})"
    lines = [
        f"{LABELS[name]}: {result.method}; {result.evaluations} evaluations, {result.skipped} of "
        f"them refused; {result.ending}"
    ]
    if tuned.seconds > 0:
        count = len(tuned.objective.members.t1) / tuned.seconds
        lines.append(
            f"  {count:,.0f} simulations with gradients per second, {tuned.backend} backend{reason}"
        )
    return "\n".join(lines)


def _gain_table(found: Findings) -> str:
    gains = {x: named_gains(found.study, params) for x, params in found.sets.items()}
    rows = [(name, *(gain_text(gains[x][name]) for x in found.sets)) for name in gains["first"]]
    return table(("gain", *_headings(found)), rows)


def _headings(found: Findings) -> list[str]:
    return [*found.labels.values()]


def _cost_table(found: Findings) -> str:
    rows = []
    for name, compared in found.checks.items():
        of = compared.summaries
        cut = fold(of["first"], of["range"])
        rows.append((name, *(of[x].cost for x in found.sets), cut))
    heading = f"mean integrated {found.study.goal.integrand}"
    return table((heading, *_headings(found), "cut, range"), rows)


def _part_table(found: Findings) -> str:
    """What the cost is made of, each part in its own unit."""
    rows = [
        (f"{part}, {name}", *(compared.summaries[x].parts[part] for x in found.sets))
        for part in found.study.goal.parts
        for name, compared in found.checks.items()
    ]
    return table(("of it, mean integrated", *_headings(found)), rows)


def _certificate_table(found: Findings) -> str:
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
    return table((heading, *_headings(found)), cells)


def fold(old: Summary, new: Summary) -> str:
    """How many times smaller a cost has become, in words.

    Args:
        old: of the first gains.
        new: of the others.
    """
    ratio = old.cost / new.cost if new.cost > 0 else np.nan
    if 0 < ratio < 1:
        return f"{1 / ratio:.2g}-fold rise"
    if np.isfinite(ratio):
        return f"{ratio:.0f}-fold" if ratio >= 10 else f"{ratio:.2g}-fold"
    return f"{old.failed} failed before, {new.failed} after"


def _left_out_lines(found: Findings) -> list[str]:
    if not found.left_out:
        return []
    steps = ", ".join(f"{x:g}" for x in found.left_out)
    return [
        f"Runs with the first gains fail at steps of {steps} s: the range was tuned without them."
    ]


def _theory_lines(found: Findings) -> list[str]:
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


def step_checks(found: Findings) -> list[Check]:
    """Checks that differ from the tuning by starts and step alone.

    Args:
        found: of a study.
    """
    fresh = [x for x in found.study.checks if x.name != "as tuned"]
    return [x for x in fresh if x.deviation == 1.0 and x.t1 is None]


def _range_lines(found: Findings) -> list[str]:
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


def _start_lines(found: Findings) -> list[str]:
    """What the given starts add, where the cost leaves them out."""
    cost = found.study.goal.cost
    if from_start(cost) is cost:
        return []
    of = found.checks["as tuned"].summaries
    after = ", ".join(
        f"{of[x].cost_from_start:.3g} {LABELS[x]}" for x in found.sets if x != "first"
    )
    return [
        "The given starts are not counted: no gain can change them. With them (trapezoidal rule) "
        f"{of['first'].cost_from_start:.3g} becomes {after}."
    ]


def _control_lines(found: Findings) -> list[str]:
    """What the gains ask of the drives: the largest input, and its root mean square over time."""
    if found.study.servo is None:
        return []
    labels, of = found.study.system.labels(), found.checks["as tuned"].summaries
    unit = common_unit(list(labels.input_units))
    name = ", ".join(labels.inputs) or "control"
    asked = {
        f"peak of {name} [{unit}]": [of[x].control for x in found.sets],
        f"rms of {name} [{unit}]": [of[x].control_rms for x in found.sets],
    }
    rows = [(what, *values) for what, values in asked.items()]
    return [table(("input, as tuned", *_headings(found)), rows)]


def _limit_lines(found: Findings) -> list[str]:
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
