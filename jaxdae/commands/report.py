"""The findings about an equilibrium as text, and what a user should not overlook in them."""

import textwrap
from typing import Any

import numpy as np

from jaxdae.analysis.findings import Analysis, ControlAnalysis, Stabilizer
from jaxdae.analysis.steps import clean
from jaxdae.formulations.stabilization import AbstractStabilization
from jaxdae.results.naming import label_field
from jaxdae.simulation.choices import fields_of
from jaxdae.tables import gain_text, root_text, table

# Roots that agree to this part of their size are one line of a table: critical damping makes double
# roots, which round-off splits by the square root of the precision.
_SAME = 1e-6
# Growth over a run that is worth a warning.
_NOTICEABLE = 1.01
# Growth beyond this is a run that broke; the number has no meaning.
_LARGE = 1e6
_WIDTH = 100


def report(result: Analysis, model, rest) -> str:
    """The report on the terminal."""
    head = f"{model.name}: {model.summary}\n{model.source}"
    parts = [head, _equilibrium(result, rest), _spectrum(result)]
    if result.stabilizer is not None:
        parts.append(_stabilizer(result, result.stabilizer))
    parts.append(_limits(result))
    if result.control is not None:
        parts.append(_control(result, result.control))
    parts += [_wrapped(f"WARNING: {text}") for text in warnings(result)]
    return "\n\n".join(parts)


def warnings(result: Analysis) -> list[str]:
    """What a user should not overlook, with the numbers."""
    texts = [
        _unstable(result),
        _imprecise(result),
        _unstabilized(result),
        _unreached(result),
        *_outside(result),
    ]
    return [text for text in texts if text]


def _equilibrium(result: Analysis, rest) -> str:
    eq, labels = result.equilibrium, result.system.labels()
    units = [*labels.units, *[""] * eq.q.size]
    rows = [
        (labels.coordinate(i), _number(eq.q[i]), _number(result.guess.q[i]), units[i])
        for i in range(eq.q.size)
    ]
    for kind, letter, values in (("actuator", "w", eq.w), ("input", "u", inputs(eq))):
        count = len(values)
        names = label_field(labels, f"{kind}s", count, lambda i, x=letter: f"{x}{i + 1}")
        units = label_field(labels, f"{kind}_units", count, lambda _: "")
        together = zip(names, values, units, strict=True)
        rows += [(f"{kind} {name}", _number(x), "", unit) for name, x, unit in together]
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


def _spectrum(result: Analysis) -> str:
    spectrum = result.spectrum
    rows = _root_rows(result.motion, "motion")
    for count, kind in (
        (spectrum.constraint_zeros, "position"),
        (spectrum.nonholonomic_zeros, "velocity"),
    ):
        if count:
            rows.append(("0", str(count), "-", "-", f"{kind} constraints, in all coordinates"))
    lines = [f"STABILITY: {spectrum.verdict}", _wrapped(spectrum.reason), _root_table(rows)]
    if result.lost is not None and result.lost.valid:
        lines.append("The constraint may be linearized before the equations are formed.")
    elif result.lost is not None:
        lines.append(_wrapped(f"Note that {result.lost.reason}"))
    return "\n".join(lines)


def _stabilizer(result: Analysis, stabilizer: Stabilizer) -> str:
    values = [f"{name} = {gain_text(value)}" for name, value in gains(result).items()]
    slowest, linear = -stabilizer.roots.real.max(), stabilizer.linear
    lines = [
        f"STABILIZATION: {', '.join([type(result.formulation).__name__, *values])}",
        _root_table(_root_rows(stabilizer.roots, "constraint violation")),
        f"a violation decays like exp(-{slowest:.4g} t) in the end. Guaranteed from the start:",
    ]
    if stabilizer.baumgarte is not None:
        b = stabilizer.baumgarte
        lines.append(
            f"  |y(t)| <= {b.growth:.4g} exp(-{b.rate:.4g} t) |y(0)|, y = (phi, dphi/dt): "
            f"certificate with eps = {b.eps:.4g}, feasible below {b.largest_eps:.4g}"
        )
    lines.append(
        f"  |y(t)|^2 <= {linear.m2 / linear.m1:.4g} exp(-{linear.rate:.4g} t) |y(0)|^2: V between "
        f"{linear.m1:.4g} |y|^2 and {linear.m2:.4g} |y|^2, dV/dt <= -{linear.s:.4g} |y|^2"
    )
    if result.field.violation > 0 and "alpha" in gains(result):
        lines.append(
            f"this form rests off the constraints, |phi| = {result.field.violation:.3g}: a larger "
            "alpha or K_P brings it closer."
        )
    return "\n".join(lines)


def _limits(result: Analysis) -> str:
    headings = ["solver", "stabilization", "in V's norm", "all roots", "set by"]
    if result.stabilizer is None:
        del headings[1:3]
    if result.dt is not None:
        headings += [f"factor at {result.dt:g} s", f"in {result.t1:g} s"]
    rows = []
    for name, limits in result.limits.items():
        both = (limits.stabilizer, limits.norm) if result.stabilizer else ()
        root = limits.field.root
        row = [name, *(_step(None if x is None else x.limit) for x in both)]
        row += [_step(limits.field.limit), "-" if root is None else root_text(root, 4)]
        if limits.growth is not None:
            factor = max(x for x in limits.growth if x is not None)
            row += [f"{factor:.6g}", _total(result, factor)]
        rows.append(row)
    note = (
        "Larger steps make the numerical solution grow where the exact one does not; accuracy may "
        "ask for smaller ones."
    )
    if any(x.field.limit == 0 for x in result.limits.values()):
        note += " 'none': an undamped swing is amplified at every step, the less the smaller it is."
    if result.spectrum.verdict == "unstable":
        note += " Growing roots are left out."
    if any(np.isinf(x.field.limit) for x in result.limits.values()):
        note += " 'any': no limit."
    return "\n".join(["STEP LIMITS [s]", table(headings, rows), _wrapped(note)])


def _control(result: Analysis, control: ControlAnalysis) -> str:
    reach, redundant = control.reach, control.redundant
    lines = [
        "INPUTS",
        f"they reach {reach.rank} of {len(reach.basis)} directions of the linear motion on the "
        f"constraints, {redundant.rank} of {len(redundant.basis)} in all coordinates",
    ]
    if control.regulator is None:
        return "\n".join([*lines, _wrapped(f"no regulator: {control.failure}")])
    K, labels = control.regulator.K, result.system.labels()
    actuators = {f"w{i + 1}": name for i, name in enumerate(labels.actuators)}
    names = [actuators.get(name, name) for name in result.state_names()[: K.shape[1]]]
    inputs = label_field(labels, "inputs", len(K), lambda i: f"u{i + 1}")
    rows = [(name, *map(_number, row)) for name, row in zip(inputs, K, strict=True)]
    lines += [
        "regulator u = u0 - K s for unit weights of states and inputs, K:",
        table(("", *names), rows),
        _root_table(_root_rows(control.regulator.roots, "motion with the regulator")),
    ]
    return "\n".join(lines)


def _unstable(result: Analysis) -> str:
    worst = result.spectrum.others[:1]
    if result.spectrum.verdict != "unstable":
        return ""
    rate = float(worst[0].real)
    remedy = (
        " The regulator above stabilizes it."
        if result.control is not None and result.control.regulator is not None
        else ""
    )
    return (
        f"the equilibrium is unstable: its root {root_text(worst[0])} makes a deviation grow "
        f"e-fold in {1 / rate:.4g} s.{remedy}"
    )


def _imprecise(result: Analysis) -> str:
    if result.equilibrium.q.dtype != np.float32 or result.spectrum.verdict != "undecided":
        return ""
    return (
        f"in single precision roots nearer than {result.spectrum.tolerances.max():.2g} 1/s to the "
        "imaginary axis are not distinguished from those on it; --dtype float64 distinguishes more."
    )


def _unstabilized(result: Analysis) -> str:
    m, r = result.linearization.position_constraints, result.linearization.velocity_constraints
    takes_gains = "stabilization" in fields_of(type(result.formulation))
    if m + r == 0 or result.stabilizer is not None or not takes_gains:
        return ""
    gains = " ".join(["--K_D 20 --K_P 100"] * bool(m) + ["--Gamma 10"] * bool(r))
    return (
        f"nothing stabilizes the {m + r} constraints: a rate c of a violation stays, and makes it "
        f"grow like c t. Give gains, for example {gains}."
    )


def _unreached(result: Analysis) -> str:
    if result.control is None:
        return ""
    reach = result.control.reach
    if not reach.roots.size:
        return ""
    weights = np.linalg.norm(reach.uncontrollable, axis=1)
    names = [x for x, w in zip(result.state_names(), weights, strict=False) if w > 1e-6]
    roots = ", ".join(root_text(z) for z in clean(reach.roots, reach.tolerances))
    critical = "" if reach.stabilizable else " No feedback makes it asymptotically stable."
    return (
        f"the inputs reach {reach.rank} of {len(weights)} directions of the linear motion: nothing "
        f"moves the roots {roots}, those of {', '.join(names)}.{critical}"
    )


def _outside(result: Analysis) -> list[str]:
    """Solvers for which the step that was asked for is too large."""
    texts, said = [], set()
    for index, what, remedy in (
        (0, "make the constraint violation grow", "smaller gains"),
        (1, "amplify a motion that does not grow by itself", "another solver"),
    ):
        cases = {}
        for name, x in result.limits.items():
            factor = None if x.growth is None else x.growth[index]
            limit = x.field.limit if index else (x.stabilizer.limit if x.stabilizer else np.inf)
            if factor is None or result.dt is None or result.dt <= limit:
                continue
            # What breaks for the stabilization breaks for all roots too: say it once.
            if name not in said and _over_run(result, factor) > _NOTICEABLE:
                factors = f"factor {_total(result, factor)} in {result.t1:g} s"
                cases[name] = f"{name} ({f'limit {limit:.4g} s' if limit else factors})"
        said |= {*cases}
        if cases:
            texts.append(
                f"with a step of {result.dt:g} s these {what}: {', '.join(cases.values())}. Take a "
                f"smaller step, or {remedy}."
            )
    return texts


def _total(result: Analysis, factor: float) -> str:
    total = _over_run(result, factor)
    return f"{total:.3g}" if total < _LARGE else f"> {_LARGE:.0e}"


def _over_run(result: Analysis, factor: float) -> float:
    """Growth in the model's run, of a factor for each step."""
    assert result.dt is not None
    with np.errstate(over="ignore"):
        return float(np.float64(factor) ** (result.t1 / result.dt))


def gains(result: Analysis) -> dict[str, Any]:
    """Gains that act, by name: those of constraints that the system has."""
    lin, offered = result.linearization, result.formulation.capabilities
    # A function has no value to show.
    fixed = offered.weight is not None and not callable(offered.weight)
    found: dict[str, Any] = {"alpha": offered.weight} if fixed else {}
    law = offered.stabilization
    if isinstance(law, AbstractStabilization):  # a user's function names no gains
        names = law.of_positions if lin.position_constraints else ()
        names += law.of_velocities if lin.velocity_constraints else ()
        found = law.gains(names) | found
    return {name: np.asarray(value) for name, value in found.items()}


def inputs(eq) -> np.ndarray:
    """Control inputs at rest, shape `(i,)`; none without any."""
    return np.zeros(0) if eq.u is None else np.ravel(eq.u)


def _root_rows(roots, kind: str) -> list[tuple[str, ...]]:
    """One row for each distinct root of the upper half-plane, by decreasing real part."""
    left = sorted(roots, key=lambda z: (-z.real, abs(z.imag)))
    rows = []
    while left:
        first = left[0]
        # Conjugates are counted as one.
        near = [
            abs(complex(z.real - first.real, abs(z.imag) - abs(first.imag))) <= _SAME * abs(first)
            for z in left
        ]
        left = [z for z, same in zip(left, near, strict=True) if not same]
        time = "-" if first.real == 0 else f"{1 / abs(first.real):.4g}"
        period = "-" if first.imag == 0 else f"{2 * np.pi / abs(first.imag):.4g}"
        rows.append((root_text(first), str(sum(near)), time, period, kind))
    return rows


def _root_table(rows) -> str:
    return table(("root [1/s]", "number", "e-fold in [s]", "period [s]", "of"), rows)


def _number(x) -> str:
    # Below this, positions and angles of order one are zero to round-off.
    return "0" if abs(float(x)) < 1e-13 else f"{float(x):.6g}"


def _step(limit: float | None) -> str:
    if limit is None:
        return "-"
    return "any" if np.isinf(limit) else "none" if limit == 0 else f"{limit:.4g}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
