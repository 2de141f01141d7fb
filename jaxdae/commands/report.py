"""The findings about an equilibrium as text, and what a user should not overlook in them."""

import textwrap
from typing import Any

import numpy as np

from jaxdae.analysis.findings import Analysis, Control, Stabilizer
from jaxdae.analysis.root_limits import clean
from jaxdae.simulation.choices import fields_of
from jaxdae.tables import gain_text, table

# Roots that agree to this part of their size are one line of a table: critical damping makes double
# roots, which round-off splits by the square root of the precision.
_SAME = 1e-6
# Growth over a run that is worth a warning.
_NOTICEABLE = 1.01
# Growth beyond this is a run that broke; the number has no meaning.
_LARGE = 1e6
_WIDTH = 100
_STABILIZER_COLUMNS = ("stabilization", "in V's norm")


def report(found: Analysis, model, rest) -> str:
    """The report on the terminal.

    Args:
        found: from `jaxdae.analysis.findings.analyze`.
        model: entry of the registry.
        rest: its state of rest.

    Returns:
        Text of several paragraphs, warnings last.
    """
    head = f"{model.name}: {model.summary}\n{model.source}"
    parts = [head, _equilibrium(found, rest), _spectrum(found)]
    if found.stabilizer is not None:
        parts.append(_stabilizer(found, found.stabilizer))
    parts.append(_limits(found))
    if found.control is not None:
        parts.append(_control(found, found.control))
    parts += [_wrapped(f"WARNING: {text}") for text in warnings(found)]
    return "\n\n".join(parts)


def warnings(found: Analysis) -> list[str]:
    """What a user should not overlook, with the numbers.

    Args:
        found: from `jaxdae.analysis.findings.analyze`.

    Returns:
        One sentence or more for each.
    """
    texts = [
        _unstable(found),
        _imprecise(found),
        _unstabilized(found),
        _unreached(found),
        *_outside(found),
    ]
    return [text for text in texts if text]


def _equilibrium(found: Analysis, rest) -> str:
    eq, labels = found.equilibrium, found.system.labels()
    units = [*labels.units, *[""] * eq.q.size]
    rows = [
        (labels.coordinate(i), _number(eq.q[i]), _number(found.guess.q[i]), units[i])
        for i in range(eq.q.size)
    ]
    rows += [(f"actuator w{i + 1}", _number(x), "", "") for i, x in enumerate(eq.w)]
    rows += [(f"input u{i + 1}", _number(x), "", "") for i, x in enumerate(inputs(eq))]
    rows += [
        (f"multiplier of {labels.constraint(i)!r}", _number(x), "", "")
        for i, x in enumerate(eq.multipliers)
    ]
    residual = max(np.abs(np.asarray(x)).max(initial=0.0) for x in eq.residual)
    held = f"; held: {', '.join(rest.fixed)}" if rest.fixed else ""
    return "\n".join(
        [
            _wrapped(f"EQUILIBRIUM: {rest.remark}" if rest.remark else "EQUILIBRIUM"),
            table(("", "value", "guess", "unit"), rows),
            f"largest residual {residual:.1e}{held}",
        ]
    )


def _spectrum(found: Analysis) -> str:
    spectrum = found.spectrum
    rows = _root_rows(found.motion, "motion")
    for count, kind in (
        (spectrum.constraint_zeros, "position"),
        (spectrum.nonholonomic_zeros, "velocity"),
    ):
        if count:
            rows.append(("0", str(count), "-", "-", f"{kind} constraints, in all coordinates"))
    lines = [f"STABILITY: {spectrum.verdict}", _wrapped(spectrum.reason), _root_table(rows)]
    if found.lost is not None and found.lost.valid:
        lines.append("The constraint may be linearized before the equations are formed.")
    elif found.lost is not None:
        lines.append(_wrapped(f"Note that {found.lost.reason}"))
    return "\n".join(lines)


def _stabilizer(found: Analysis, stabilizer: Stabilizer) -> str:
    values = [f"{name} = {gain_text(value)}" for name, value in gains(found).items()]
    slowest, linear = -stabilizer.roots.real.max(), stabilizer.linear
    lines = [
        f"STABILIZATION: {', '.join([type(found.formulation).__name__, *values])}",
        _root_table(_root_rows(stabilizer.roots, "constraint violation")),
        f"a violation decays like exp(-{slowest:.4g} t) in the end. Guaranteed from the start:",
    ]
    if stabilizer.baumgarte is not None:
        b = stabilizer.baumgarte
        lines.append(
            f"  |y(t)| <= {b.growth:.4g} exp(-{b.rate:.4g} t) |y(0)|, y = (f, df/dt): certificate "
            f"with eps = {b.eps:.4g}, feasible below {b.largest_eps:.4g}"
        )
    lines.append(
        f"  |y(t)|^2 <= {linear.m2 / linear.m1:.4g} exp(-{linear.rate:.4g} t) |y(0)|^2: V between "
        f"{linear.m1:.4g} |y|^2 and {linear.m2:.4g} |y|^2, dV/dt <= -{linear.s:.4g} |y|^2"
    )
    if found.field.violation > 0 and "alpha" in gains(found):
        lines.append(
            f"this form rests off the constraints, |f| = {found.field.violation:.3g}: a larger "
            "alpha or K_P brings it closer."
        )
    return "\n".join(lines)


def _limits(found: Analysis) -> str:
    headings = ["solver", *_STABILIZER_COLUMNS, "all roots", "set by"]
    if found.stabilizer is None:
        headings = [x for x in headings if x not in _STABILIZER_COLUMNS]
    if found.dt is not None:
        headings += [f"factor at {found.dt:g} s", f"in {found.t1:g} s"]
    rows = [_limit_row(found, name) for name in found.limits]
    lines = ["STEP LIMITS [s]", table(headings, rows), _wrapped(_limit_note(found))]
    return "\n".join(lines)


def _limit_row(found: Analysis, name: str) -> tuple[str, ...]:
    limits = found.limits[name]
    both = (limits.stabilizer, limits.norm) if found.stabilizer else ()
    cells = [_step(None if x is None else x.limit) for x in both]
    root = limits.field.root
    row = (name, *cells, _step(limits.field.limit), "-" if root is None else _root(root, 4))
    if limits.growth is None:
        return row
    factor = max(x for x in limits.growth if x is not None)
    return (*row, f"{factor:.6g}", _total(found, factor))


def _limit_note(found: Analysis) -> str:
    note = (
        "Larger steps make the numerical solution grow where the exact one does not; accuracy may "
        "ask for smaller ones."
    )
    if any(x.field.limit == 0 for x in found.limits.values()):
        note += " 'none': an undamped swing is amplified at every step, the less the smaller it is."
    if found.spectrum.verdict == "unstable":
        note += " Growing roots are left out."
    if any(np.isinf(x.field.limit) for x in found.limits.values()):
        note += " 'any': no limit."
    return note


def _control(found: Analysis, control: Control) -> str:
    reach, redundant = control.reach, control.redundant
    lines = [
        "INPUTS",
        f"they reach {reach.rank} of {len(reach.basis)} directions of the linear motion on the "
        f"constraints, {redundant.rank} of {len(redundant.basis)} in all coordinates",
    ]
    if control.feedback is None or control.regulator is None:
        return "\n".join([*lines, _wrapped(f"no regulator: {control.failure}")])
    names = found.state_names()[: control.feedback.K.shape[1]]
    rows = [(f"u{i + 1}", *map(_number, row)) for i, row in enumerate(control.feedback.K)]
    lines += [
        "regulator u = u0 - K s for unit weights of states and inputs, K:",
        table(("", *names), rows),
        _root_table(_root_rows(control.regulator.roots, "motion with the regulator")),
    ]
    return "\n".join(lines)


def _unstable(found: Analysis) -> str:
    worst = found.spectrum.others[:1]
    if found.spectrum.verdict != "unstable":
        return ""
    rate = float(worst[0].real)
    remedy = (
        " The regulator above stabilizes it."
        if found.control is not None and found.control.regulator is not None
        else ""
    )
    return (
        f"the equilibrium is unstable: its root {_root(worst[0])} makes a deviation grow e-fold in "
        f"{1 / rate:.4g} s.{remedy}"
    )


def _imprecise(found: Analysis) -> str:
    if found.equilibrium.q.dtype != np.float32 or found.spectrum.verdict != "undecided":
        return ""
    return (
        f"in single precision roots nearer than {found.spectrum.tolerances.max():.2g} 1/s to the "
        "imaginary axis are not distinguished from those on it; --dtype float64 distinguishes more."
    )


def _unstabilized(found: Analysis) -> str:
    m, r = found.linearization.position_constraints, found.linearization.velocity_constraints
    takes_gains = "stabilization" in fields_of(type(found.formulation))
    if m + r == 0 or found.stabilizer is not None or not takes_gains:
        return ""
    gains = " ".join(["--K_D 20 --K_P 100"] * bool(m) + ["--Gamma 10"] * bool(r))
    return (
        f"nothing stabilizes the {m + r} constraints: a rate c of a violation stays, and makes it "
        f"grow like c t. Give gains, for example {gains}."
    )


def _unreached(found: Analysis) -> str:
    if found.control is None:
        return ""
    reach = found.control.reach
    if not reach.roots.size:
        return ""
    weights = np.linalg.norm(reach.uncontrollable, axis=1)
    names = [x for x, w in zip(found.state_names(), weights, strict=False) if w > 1e-6]
    critical = "" if reach.stabilizable else " No feedback makes it asymptotically stable."
    return (
        f"the inputs reach {reach.rank} of {len(weights)} directions of the linear motion: nothing "
        f"moves the roots {_roots(reach)}, those of {', '.join(names)}.{critical}"
    )


def _outside(found: Analysis) -> list[str]:
    """Solvers for which the step that was asked for is too large."""
    violation, motion = _exceeded(found, 0), _exceeded(found, 1)
    # What breaks for the stabilization breaks for all roots too: say it once.
    motion = {name: text for name, text in motion.items() if name not in violation}
    texts = []
    for cases, what, remedy in (
        (violation, "make the constraint violation grow", "smaller gains"),
        (motion, "amplify a motion that does not grow by itself", "another solver"),
    ):
        if cases:
            texts.append(
                f"with a step of {found.dt:g} s these {what}: {', '.join(cases.values())}. Take a "
                f"smaller step, or {remedy}."
            )
    return texts


def _exceeded(found: Analysis, index: int) -> dict[str, str]:
    """Solvers, in words, that amplify the stabilization (0) or any root (1) at the given step."""
    cases = {}
    for name, x in found.limits.items():
        factor = None if x.growth is None else x.growth[index]
        limit = x.field.limit if index else (x.stabilizer.limit if x.stabilizer else np.inf)
        if factor is None or found.dt is None or found.dt <= limit:
            continue
        if _over_run(found, factor) > _NOTICEABLE:
            factors = f"factor {_total(found, factor)} in {found.t1:g} s"
            cases[name] = f"{name} ({f'limit {limit:.4g} s' if limit else factors})"
    return cases


def _total(found: Analysis, factor: float) -> str:
    total = _over_run(found, factor)
    return f"{total:.3g}" if total < _LARGE else f"> {_LARGE:.0e}"


def _over_run(found: Analysis, factor: float) -> float:
    """Growth in the model's run, of a factor for each step."""
    assert found.dt is not None
    with np.errstate(over="ignore"):
        return float(np.float64(factor) ** (found.t1 / found.dt))


def gains(found: Analysis) -> dict[str, Any]:
    """Gains that act, by name: those of constraints that the system has."""
    lin, offered = found.linearization, found.formulation.capabilities
    names = ["K_D", "K_P"] if lin.position_constraints else []
    names += ["Gamma"] if lin.velocity_constraints else []
    pairs = [(name, getattr(offered.stabilization, name, None)) for name in names]
    pairs.append(("alpha", offered.weight))
    return {name: np.asarray(value) for name, value in pairs if value is not None}


def inputs(eq) -> np.ndarray:
    """Control inputs at rest, shape `(i,)`; none without any."""
    return np.zeros(0) if eq.u is None else np.ravel(eq.u)


def _root_rows(roots, kind: str) -> list[tuple[str, ...]]:
    """One row for each distinct root of the upper half-plane, by decreasing real part."""
    left = sorted(roots, key=lambda z: (-z.real, abs(z.imag)))
    rows = []
    while left:
        first = left[0]
        near = [_apart(z, first) <= _SAME * abs(first) for z in left]
        left = [z for z, same in zip(left, near, strict=True) if not same]
        rows.append((_root(first), str(sum(near)), _time(first), _period(first), kind))
    return rows


def _apart(a: complex, b: complex) -> float:
    """Distance of two roots, conjugates counted as one."""
    return abs(complex(a.real, abs(a.imag)) - complex(b.real, abs(b.imag)))


def _root_table(rows) -> str:
    return table(("root [1/s]", "number", "e-fold in [s]", "period [s]", "of"), rows)


def _root(z: complex, digits: int = 6) -> str:
    real, imaginary = (f"{x:.{digits}g}" for x in (z.real, abs(z.imag)))
    if z.imag == 0:
        return real
    return f"±{imaginary}i" if z.real == 0 else f"{real} ± {imaginary}i"


def _roots(reach) -> str:
    return ", ".join(_root(z) for z in clean(reach.roots, reach.tolerances))


def _time(z: complex) -> str:
    return "-" if z.real == 0 else f"{1 / abs(z.real):.4g}"


def _period(z: complex) -> str:
    return "-" if z.imag == 0 else f"{2 * np.pi / abs(z.imag):.4g}"


def _number(x) -> str:
    # Below this, positions and angles of order one are zero to round-off.
    return "0" if abs(float(x)) < 1e-13 else f"{float(x):.6g}"


def _step(limit: float | None) -> str:
    if limit is None:
        return "-"
    return "any" if np.isinf(limit) else "none" if limit == 0 else f"{limit:.4g}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
