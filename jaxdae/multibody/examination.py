"""Files for MuJoCo with loops: what soft constraints make of motions, and which suit the step."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.mobility import Mobility, mobility
from jaxdae.diagnosis.failure import SimulationError
from jaxdae.multibody.exact_motion import exact_motion, ExactMotion
from jaxdae.multibody.mjcf_settings import write_settings
from jaxdae.multibody.mujoco import compiled, load_mujoco, Names, read_mujoco
from jaxdae.multibody.soft_constraints import Setting, setting_for_step, Softness
from jaxdae.multibody.soft_runs import (
    equalities,
    run,
    silent,
    SoftEquality,
    SoftRun,
    SoftStart,
    start_of,
)
from jaxdae.reprs import shown
from jaxdae.stability.arguments import check_positive_number
from jaxdae.systems import State
from jaxdae.tables import table

# Steps after which violations would decay as theory has them decay after one, all tried.
_STEPS = (1, 2, 4, 8, 16)
# A suggestion leaves at most this part of the drift; below this size there is none [m or rad].
_WORTHWHILE, _NO_DRIFT = 0.9, 1e-12
# Residuals of exact loops below this size are not written as numbers [m or rad].
_ROUND_OFF = 1e-12
# A difference is of the steps where another integrator leaves at most this part of it.
_MUCH_LESS = 0.1


class Difference(NamedTuple):
    """Largest difference of a coordinate from the exact motion.

    Args:
        amount: in the unit.
        coordinate: its name.
        unit: of the coordinate.
        time: when [s].
    """

    amount: float
    coordinate: str
    unit: str
    time: float

    def __repr__(self) -> str:
        return shown(self)

    def __str__(self) -> str:
        unit = "" if self.unit == "1" else f" {self.unit}"
        return f"{self.amount:.2g}{unit} of {self.coordinate!r} at {self.time:.3g} s"


class LoopReport(NamedTuple):
    """What `doctor` has found; as text it is a report.

    Args:
        file: name of the file.
        integrator: of MuJoCo, such as `"euler"`.
        timestep: its step [s].
        left_out: what the file has and exact motions have not, in words.
        warned: of what MuJoCo warns in the position of the file.
        closed: largest residual of a loop in the file's position, which was closed [m or rad].
        loops: names of the active equality constraints.
        file_run: MuJoCo's run with the file's own settings.
        suggestion: for all these constraints; `None` where no setting of theory lowers the drift.
        tried_run: MuJoCo's run with the suggestion, or with the best setting that was tried; `None`
            where none reached the end.
        written: path of the file with the suggestion; `None` without one.
        not_kept: what that file has not kept, in words; `None` where it has all.
        mobility: degrees of freedom at the start, and redundant constraints by name.
        exact: the motion with exact loops; `None` without one.
        differences: of the coordinates of both runs from it, one for each unit.
        by_rk4: the setting for steps by RK4, and differences of MuJoCo's run by it; `None` for a
            file with this integrator, or where they are not much less.
        remark: why there is no exact motion, or only a part of one; empty where all is there.
    """

    file: str
    integrator: str
    timestep: float
    left_out: tuple[str, ...]
    warned: tuple[str, ...]
    closed: float
    loops: tuple[str, ...]
    file_run: SoftRun
    suggestion: Setting | None
    tried_run: SoftRun | None
    written: Path | None = None
    not_kept: str | None = None
    mobility: Mobility | None = None
    exact: ExactMotion | None = None
    differences: tuple[tuple[Difference, ...], tuple[Difference, ...]] = ((), ())
    by_rk4: tuple[Setting, tuple[Difference, ...]] | None = None
    remark: str = ""

    def __repr__(self) -> str:
        return shown(self)

    def __str__(self) -> str:
        return "\n\n".join(["\n".join(x(self)) for x in (_drifts, _mechanism, _motions)])


def doctor(
    source: str | Path,
    *,
    end: float = 2.0,
    key: str | int | None = None,
    write: str | Path | None = None,
    show: Callable[[str], Any] | None = None,
) -> LoopReport:
    r"""Examine the loops of a file for MuJoCo: their rank, their drift, and what lowers it.

    MuJoCo makes the motion at the file's own step, by its own integrator, with contacts and limits
    as the file has them, inputs held. The violation of each equality constraint is MuJoCo's own.
    The same mechanism with exact loops (`read_mujoco`) gives degrees of freedom, redundant
    equations, near-singular positions, and the motion to which MuJoCo's is compared.

    The suggestion is the hardest oscillator `r'' = -B r' - K r` of a violation that steps of this
    size damp best [Todorov2014; HairerWanner1996, section IV.3]: for semi-implicit Euler steps `h`
    `B = 1 / h`, `K = 1 / h^2`, which end a violation in two steps, for `RK4` zeros of the stability
    function, for `discrete` roots ten over the step; softer ones, as for 2, 4, 8 or 16 steps, are
    tried as well. MuJoCo runs with each, and what it measures decides: where none lowers the drift
    there is no suggestion. That of other motions may differ.

    Args:
        source: path of the file, or its text.
        end: of the motion [s].
        key: name or number of the keyframe in which the motion starts; by default the position of
            the file, at rest, without inputs. Loops that are open there are closed first.
        write: path of a file to write, the same with the suggestion.
        show: is called with each part of the report as soon as it is known, for example `print`.

    Returns:
        `LoopReport`; `print` it.

    Raises:
        ImportError: without MuJoCo.
        ValueError: for what `read_mujoco` does not read, a file without active equality
            constraints, loops that cannot be closed near the start, a keyframe that is not there,
            or a file that cannot be written.
    """
    check_positive_number("end", end)
    tell = show or (lambda _: None)
    mujoco = load_mujoco()
    model = compiled(mujoco, source)
    if end < model.opt.timestep:
        raise ValueError(f"doctor: end is {end} s, shorter than a step of {model.opt.timestep} s.")
    loops = _loops(mujoco, model)
    with silent(mujoco) as warned, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what it leaves out is in the report
        read = read_mujoco(source)
        start = start_of(mujoco, model, loops, key)
    integrator = mujoco.mjtIntegrator(int(model.opt.integrator)).name.removeprefix("mjINT_").lower()
    own = run(mujoco, model, loops, start, end)
    setting, tried = best_setting(mujoco, model, loops, start, end, integrator, own)
    report = LoopReport(
        "the text" if str(source).lstrip().startswith("<") else Path(source).name,
        integrator,
        float(model.opt.timestep),
        read.left_out,
        tuple(dict.fromkeys(warned)),
        start.closed,
        tuple(x.name for x in loops),
        own,
        setting,
        tried,
    )
    if write is not None and setting is not None:
        path, indices = Path(write).expanduser(), [x.number for x in loops]
        lost = write_settings(mujoco, model, source, path, indices, setting)
        report = report._replace(written=path, not_kept=lost)
    tell("\n".join(_drifts(report)))
    state = _state(read.state, start)
    report = report._replace(mobility=mobility(read.system, state))
    tell("\n" + "\n".join(_mechanism(report)))
    report = _with_motion(report, read.system, state, start.ctrl)
    if report.exact is not None and report.suggestion is not None:
        report = _with_rk4(mujoco, model, loops, start, report, read.system.labels())
    tell("\n" + "\n".join(_motions(report)))
    return report


def _loops(mujoco, model) -> list[SoftEquality]:
    bits = mujoco.mjtDisableBit
    off = int(bits.mjDSBL_EQUALITY) | int(bits.mjDSBL_CONSTRAINT)
    if not model.eq_active0.any() or model.opt.disableflags & off:
        why = (
            "no equality constraints"
            if not model.neq
            else f"{model.neq} equality constraint(s), all inactive or switched off by its flags"
        )
        raise ValueError(
            f"doctor: the file has {why}: no loop can drift. Loops are closed by <connect>, <weld> "
            "or <joint> in its section <equality>."
        )
    if not model.nv:
        raise ValueError("doctor: the file has no joints: nothing moves.")
    names = Names(mujoco, model)
    return equalities(mujoco, model, lambda i: names("equality", i))


def _state(rest: State, start: SoftStart) -> State:
    """The start for the exact motion."""
    q, v = (jnp.asarray(x, rest.q.dtype) for x in (start.qpos, start.qvel))
    return State(q, v, rest.w)


def best_setting(mujoco, model, loops, start: SoftStart, end: float, integrator: str, own: SoftRun):
    """The suggestion, or `None`, and the run with the best setting of theory."""
    best: tuple[float, Setting, SoftRun] | None = None
    for steps in _STEPS:
        setting = setting_for_step(integrator, model.opt.timestep, own.settings[0].solimp, steps)
        if setting is None:
            return None, None
        tried = run(mujoco, model, loops, start, end, setting)
        part = _part(own, tried)
        if tried.given_up is None and (best is None or part < best[0]):
            best = part, setting, tried
    if best is None:
        return None, None
    part, setting, tried = best
    opens = max(own.largest()) >= _NO_DRIFT
    worthwhile = own.given_up is not None or (opens and part <= _WORTHWHILE)
    return (setting if worthwhile else None), tried


def _part(own: SoftRun, tried: SoftRun) -> float:
    """The larger part that is left of distances and angles."""
    pairs = zip(tried.largest(), own.largest(), strict=True)
    return max((new / max(old, _NO_DRIFT) for new, old in pairs), default=1.0)


def _with_motion(report: LoopReport, system, state: State, ctrl) -> LoopReport:
    """With the exact motion, as far as nothing else acts in MuJoCo's."""
    own = report.file_run
    until, remark = float(own.ts[-1]), ""
    if own.acted is not None:
        until = own.acted[0]
        remark = f"compared up to {until:.4g} s, when {own.acted[1]} acts, which is left out here"
    if own.given_up is not None and own.given_up < until:
        until = own.given_up
        remark = f"compared up to {until:.4g} s, when MuJoCo's run with the file's settings ends"
    # Half a step: times are sums of steps there and products here.
    rows = own.ts <= until + 0.5 * report.timestep
    if rows.sum() < 2:
        why = "MuJoCo's run ends" if own.acted is None else f"{own.acted[1]} acts"
        return report._replace(remark=f"no exact motion to compare: {why} from the start on")
    try:
        exact = exact_motion(system, state, ctrl, own.ts[rows])
    except (SimulationError, ValueError) as error:
        return report._replace(remark=f"no exact motion: {error}")
    found = [
        () if x is None else _differences(x, exact, system.labels())
        for x in (report.file_run, report.tried_run)
    ]
    return report._replace(exact=exact, differences=(found[0], found[1]), remark=remark)


def _with_rk4(mujoco, model, loops, start: SoftStart, report: LoopReport, labels) -> LoopReport:
    """With a run by RK4, where what is left of differences is of the steps."""
    assert report.exact is not None
    other, before = copy.copy(model), report.differences[1]
    other.opt.integrator = int(mujoco.mjtIntegrator.mjINT_RK4)
    end = float(report.file_run.ts[-1])
    own = run(mujoco, other, loops, start, end)
    setting, tried = best_setting(mujoco, other, loops, start, end, "rk4", own)
    if report.integrator == "rk4" or setting is None or tried is None:
        return report
    after = _differences(tried, report.exact, labels)
    less = all(x.amount <= _MUCH_LESS * y.amount for x, y in zip(after, before, strict=True))
    return report._replace(by_rk4=(setting, after)) if less else report


def _differences(soft: SoftRun, exact: ExactMotion, labels) -> tuple[Difference, ...]:
    """The largest of each unit, up to where something else acts."""
    ts = soft.ts[: len(exact.q)]
    until = np.inf if soft.acted is None else soft.acted[0]
    apart = np.abs(soft.qpos[: len(ts)] - exact.q)
    apart = np.where(np.isfinite(apart) & (ts[:, None] <= until), apart, 0.0)
    found = []
    for unit in dict.fromkeys(labels.units):
        columns = [i for i, x in enumerate(labels.units) if x == unit]
        row, column = np.unravel_index(np.argmax(apart[:, columns]), (len(ts), len(columns)))
        i = columns[int(column)]
        found.append(Difference(float(apart[row, i]), labels.coordinates[i], unit, float(ts[row])))
    return tuple(found)


def _drifts(report: LoopReport) -> Iterator[str]:
    """The soft constraints, how far they open, and the suggestion."""
    own, tried, dt = report.file_run, report.tried_run, report.timestep
    count = len(report.loops)
    yield (
        f"{report.file}: {count} equality constraint{'s' * (count != 1)}; {report.integrator}, "
        f"step {dt:g} s, motion of {own.ts[-1]:g} s"
    )
    if report.left_out:
        yield f"not in the exact mechanism: {'; '.join(report.left_out)}"
    for text in report.warned:
        yield f"MuJoCo warns: {text}"
    if report.closed > 1e-9:
        yield f"the position of the file was closed first: loops were open by {report.closed:.2g}"
    shows = report.suggestion is not None and tried is not None
    yield ""
    yield table(
        ["equality", "solref", "rad/s", "damping", "per step", "impedance", "violation",
         *(["suggested"] if shows else [])],
        [
            [
                name, f"{setting.solref[0]:g} {setting.solref[1]:g}", soft.frequency,
                soft.damping_ratio, _per_step(report, soft), soft.impedance, str(drift),
                *([str(tried.drift[i])] if shows and tried is not None else []),
            ]
            for i, (name, setting, soft, drift) in enumerate(
                zip(report.loops, own.settings, own.softness, own.drift, strict=True)
            )
        ],
    )  # fmt: skip
    yield "rad/s, damping: natural frequency and damping ratio that solref means at this step;"
    yield "per step: the factor by which a step multiplies a violation; impedance: the part of the"
    yield "unconstrained acceleration that is taken away; violation: the largest that MuJoCo has"
    yield from _raised(report)
    if own.given_up is not None:
        yield (
            f"With the settings of the file MuJoCo's numbers are not finite or too large from "
            f"{own.given_up:.4g} s on; violations are those before."
        )
    yield ""
    yield from _suggested(report)


def _per_step(report: LoopReport, soft: Softness) -> float:
    """Without round-off of double roots that vanish."""
    return round(soft.factor(report.integrator, report.timestep), 4)


def _raised(report: LoopReport) -> Iterator[str]:
    """Time constants that MuJoCo does not take as they are."""
    run = report.file_run
    for name, setting, soft in zip(report.loops, run.settings, run.softness, strict=True):
        given, largest = setting.solref[0], min(max(setting.solimp[1], 1e-4), 0.9999)
        if given > 0 and soft.damping > 0:
            taken = 2.0 * soft.impedance / (largest * soft.damping)
            if taken > given * (1.0 + 1e-6):
                yield (
                    f"MuJoCo raises the time constant of {name!r} from {given:g} s to {taken:g} s, "
                    "two steps."
                )


def _suggested(report: LoopReport) -> Iterator[str]:
    own, tried, setting = report.file_run, report.tried_run, report.suggestion
    if setting is not None and tried is not None:
        soft, part = tried.softness[0], _part(own, tried)
        yield f"Suggestion: {setting}"
        times = "" if own.given_up is not None else f"; MuJoCo measures {1 / part:.2g} times less"
        yield (
            f"  {soft.frequency:.4g} rad/s, damping ratio {soft.damping_ratio:.2g}, "
            f"{_per_step(report, soft):.2g} per step{times}"
        )
        if report.written is not None:
            kept = "" if report.not_kept is None else f" {report.not_kept}"
            yield f"  written to {report.written}{kept}"
    elif max(own.largest()) < _NO_DRIFT and own.given_up is None:
        yield (
            "No suggestion: the loops do not open. Does the mechanism rest in this position? Start "
            "in a keyframe with velocities or inputs."
        )
    elif tried is None:
        yield "No suggestion: MuJoCo's run reaches its end with none of the settings of theory."
    else:
        largest = ", ".join(
            f"{x:.2g} {unit}" for x, unit in zip(tried.largest(), ("m", "rad"), strict=True) if x
        )
        yield (
            "No suggestion: the best setting of theory does not lower the drift of this motion "
            f"(it opens loops by {largest or '0'}); keep what the file has."
        )


def _mechanism(report: LoopReport) -> Iterator[str]:
    """Degrees of freedom and redundant constraints."""
    if report.mobility is not None:
        yield f"At the start: {report.mobility}"


def _motions(report: LoopReport) -> Iterator[str]:
    """The exact motion, and how far MuJoCo's are from it."""
    exact = report.exact
    if report.remark:
        yield report.remark
    if exact is None:
        return
    own, tried = (", ".join(map(str, x)) for x in report.differences)
    closed = "round-off" if exact.violation < _ROUND_OFF else f"{exact.violation:.1g}"
    yield f"from the motion with exact loops (closed to {closed}) MuJoCo's differs by {own}"
    if report.suggestion is not None and tried:
        yield f"  with the suggestion by {tried}"
    if report.by_rk4 is not None:
        setting, after = report.by_rk4
        yield f"  what is left is of the steps: by RK4 with {setting} {', '.join(map(str, after))}"
    found = exact.mobility
    yield f"Along that motion: {found}"
    if not found.near_singularities:
        yield "near-singular positions: none"
