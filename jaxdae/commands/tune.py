"""`jaxdae tune MODEL`: stabilization gains by gradient descent through the simulation."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdae import __version__
from jaxdae.commands.output import output_folder
from jaxdae.files import write_json
from jaxdae.models import get_model
from jaxdae.models.studies import studies
from jaxdae.plotting import plot_comparison, plot_histories, plot_series, plot_tuning, save_figure
from jaxdae.plotting.energy import energy_drift
from jaxdae.plotting.readout import common_unit, with_unit
from jaxdae.simulation.backends import Backend
from jaxdae.solvers import RK4
from jaxdae.systems import State
from jaxdae.systems.precision import in_dtype
from jaxdae.tables import gain_text, table
from jaxdae.tuning import (
    CheckpointError,
    Logarithm,
    perturbed_states,
    resolve,
    SimulationObjective,
    tune,
    TuningResult,
)
from jaxdae.tuning.judging import breaking_times, from_start, judge, Judgement
from jaxdae.tuning.studies import Check, Study

# Of a stabilization, of a law of realizing forces, and of a formulation itself.
_GAINS = ("K_D", "K_P", "Gamma", "k", "alpha", "decay")


def run(options) -> int:
    """Tune every study of the model; 0 when each of them improved."""
    began = time.perf_counter()
    model = get_model(options.model)
    out = output_folder(options.out, model.name)
    chosen = [_with(study, options) for study in studies(model.name, options.formulation)]
    print(f"{model.name}: {model.summary}\n{model.source}\n")
    # Before the first study, so that a later --resume cannot meet a file of an earlier run.
    for study in chosen:
        _put_aside(out / f"{study.method}.checkpoint", options.resume)
    results = [_tune(study, options, out) for study in chosen]
    seconds = time.perf_counter() - began
    content = {
        "jaxdae": __version__,
        "model": model.name,
        "source": model.source,
        "options": {k: v for k, v in vars(options).items() if k != "command"},
        "seconds": seconds,
        "studies": results,
    }
    write_json(out / "result.json", content)
    compiling = sum(x["compile_seconds"] for x in results)
    print(f"{seconds:.0f} s, compiling {compiling:.0f} s of it; plots and result.json are in {out}")
    return 0 if all(x["after"]["cost"] < x["before"]["cost"] for x in results) else 1


def _with(study: Study, options) -> Study:
    """The study with the user's end time and step."""
    changes = {"t1": options.t1, "dt": options.dt}
    chosen = {name: value for name, value in changes.items() if value is not None}
    if options.t1 is not None:
        # Horizons of the checks belong to the study's own end time.
        kept = tuple(check for check in study.checks if check.t1 is None)
        chosen |= {"checks": kept, "beyond": None}
    return dataclasses.replace(study, **chosen)


def _tune(study: Study, options, out: Path) -> dict[str, Any]:
    start = jax.tree.map(lambda x: jnp.asarray(x, jnp.dtype(options.dtype)), study.start)
    keys = jax.random.split(jax.random.key(options.seed), 2 + len(study.checks))
    states = perturbed_states(start, keys[0], options.batch, study.deviation, study.deviation)
    params = in_dtype(study.params, start.q.dtype)
    objective, backend, why_not = _objective(study, states, params, options.backend)
    print(
        f"{study.name}: {objective.budget}; starts off by {study.deviation:g} (standard deviation)"
    )
    result = _descend(Logarithm(objective), params, options, out / f"{study.method}.checkpoint")
    began = time.perf_counter()
    tuned_on = Check("as tuned", count=options.batch)
    conditions = (tuned_on, *study.checks)
    members = max(check.count for check in conditions)
    before, after = {}, {}
    for check, key in zip(conditions, keys[jnp.array([0, *range(2, len(keys))])], strict=True):
        before[check.name], old = judge(study, result.initial_params, check, start, key, members)
        after[check.name], new = judge(study, result.params, check, start, key, members)
        if check is tuned_on:
            _draw(study, result, old, new, out)
    limits = _beyond(study, result, states)
    judging = time.perf_counter() - began
    print(_rate(result, options.batch, backend, why_not))
    print(_report(study, result, before, after, limits))
    return _record(study, result, before, after, limits, judging)


def _objective(study: Study, states: State, params, backend: Backend):
    """The objective, the backend of its runs, and why it is not the native one."""
    objective = SimulationObjective(
        study.goal.cost,
        states,
        build=study.build,
        t1=study.t1,
        dt=study.dt,
        solver=RK4(),
        backend=backend,
    )
    served_by, why_not = objective.backend_of(resolve(params))
    if served_by == "native":
        # The adjoint keeps no derivative of any row: it is the faster one for few gains, too.
        objective = dataclasses.replace(objective, mode="reverse")
    return objective, served_by, why_not


def _rate(result: TuningResult, members: int, backend: str, why_not: str | None) -> str:
    """How many simulations a second were run, and by what."""
    seconds = result.wall_seconds - result.compile_seconds
    count = members * result.evaluations
    reason = "" if why_not is None or backend == "native" else f" ({why_not})"
    return (
        f"{count / max(seconds, 1e-9):,.0f} simulations with gradients per second, "
        f"{backend} backend{reason}"
    )


def _optimizer(options) -> optax.GradientTransformation:
    """Clipped, so that one steep gradient near a stability limit does not fill the memory."""
    # The usual 1e-8 would damp steps along gradients far below it.
    eps = {"eps": 1e-16} if options.optimizer in ("adam", "adamw", "nadam") else {}
    make = getattr(optax, options.optimizer)
    return optax.chain(optax.clip_by_global_norm(1.0), make(options.learning_rate, **eps))


def _descend(objective, params, options, checkpoint: Path) -> TuningResult:
    try:
        return tune(
            objective,
            params,
            optimizer=_optimizer(options),
            steps=options.steps,
            checkpoint=checkpoint,
            resume=options.resume,
            progress=options.progress,
        )
    except CheckpointError as error:
        # Its own remedies are arguments of the function.
        raise ValueError(
            f"{error.reason}. Start again without --resume, which keeps that file under another "
            "name; or give the options of that run, or another --out."
        ) from error


def _put_aside(path: Path, resume: bool) -> None:
    """A new run puts the checkpoint of an old one aside instead of losing it."""
    if resume:
        if not path.exists():
            print(f"there is no {path.name} to resume from: starting afresh")
        return
    if not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.old{number}")).exists():
        number += 1
    path.replace(aside)
    print(f"an earlier run's {path.name} is kept as {aside.name}")


def _beyond(study: Study, result: TuningResult, states: State) -> dict[str, Any] | None:
    """What happens past the place where the method is known to break."""
    if study.beyond is None:
        return None
    out: dict[str, Any] = {"t1": study.beyond, "starts": int(states.q.shape[0])}
    for name, params in (("before", result.initial_params), ("after", result.params)):
        times, reason = breaking_times(study, params, states)
        out[name] = {"failed": int(times.size), "times": times, "reason": reason}
    return out


def _report(study: Study, result: TuningResult, before, after, limits) -> str:
    rows = [
        (name, float(old.cost), float(new.cost), _fold(old, new), float(new.largest))
        for name, old, new in zip(before, before.values(), after.values(), strict=True)
    ]
    headings = (
        f"mean integrated {study.goal.integrand}",
        "first gains",
        "tuned",
        "cut",
        f"largest {study.goal.size} (late), tuned",
    )
    lines = [
        "",
        table(("gain", "first", "tuned"), _gains(study, result)),
        "",
        table(headings, rows),
        *_start_lines(study, before["as tuned"], after["as tuned"]),
        *_control_lines(study, before["as tuned"], after["as tuned"]),
        f"{result.steps} steps, {result.skipped} of them refused because they were not finite.",
    ]
    return "\n".join([*lines, *_limit_lines(limits), ""])


def _start_lines(study: Study, old: Judgement, new: Judgement) -> list[str]:
    """What the given starts add, where the cost leaves them out."""
    if from_start(study.goal.cost) is study.goal.cost:
        return []
    return [
        "The given starts are not counted: no gain can change them. With them (trapezoidal rule) "
        f"{float(old.cost_from_start):.3g} becomes {float(new.cost_from_start):.3g}."
    ]


def _control_lines(study: Study, old: Judgement, new: Judgement) -> list[str]:
    """What the gains ask of the drives."""
    if study.servo is None:
        return []
    labels = study.system.labels()
    unit = common_unit(list(labels.input_units))
    name = ", ".join(labels.inputs) or "control"
    return [
        f"Largest {name}: {float(old.control):.3g} {unit} with the first gains, "
        f"{float(new.control):.3g} {unit} tuned."
    ]


def _limit_lines(limits) -> list[str]:
    """Which starts break past the study's end, and the first failure in words."""
    if limits is None:
        return []
    lines, reason, total = [], "", limits["starts"]
    for name, label in (("before", "first"), ("after", "tuned")):
        times, reason = limits[name]["times"], limits[name]["reason"] or reason
        when = f", at t = {times.min():.4f} to {times.max():.4f} s" if times.size else ""
        lines.append(f"  {label} gains: {times.size} of {total} starts break{when}.")
    heading = f"Beyond the tuned horizon, on the way to t = {limits['t1']:g} s with adaptive steps:"
    return [heading, *lines, *([f"  One of them: {reason}"] if reason else [])]


def _fold(old: Judgement, new: Judgement) -> str:
    ratio = float(old.cost) / float(new.cost) if new.cost > 0 else np.nan
    if 0 < ratio < 1:
        return f"{1 / ratio:.2g}-fold rise"
    if np.isfinite(ratio):
        return f"{ratio:.0f}-fold" if ratio >= 10 else f"{ratio:.2g}-fold"
    return f"{int(old.failed)} failed before, {int(new.failed)} after"


def _named_gains(study: Study, params) -> dict[str, Any]:
    if study.servo is not None:
        coefficients = np.asarray(params.coefficients)
        roots = np.sort_complex(np.roots([1.0, *coefficients[::-1]]))
        pairs = np.stack([roots.real, roots.imag], axis=1)
        return {"coefficients": coefficients, "roots (Re, Im)": pairs}
    parts = (getattr(params, "stabilization", None), getattr(params, "law", None), params)
    pairs = [(name, getattr(part, name, None)) for part in parts for name in _GAINS]
    return {name: value for name, value in pairs if value is not None}


def _gains(study: Study, result: TuningResult) -> list[tuple[str, str, str]]:
    old, new = (_named_gains(study, x) for x in (result.initial_params, result.params))
    return [(name, gain_text(old[name]), gain_text(new[name])) for name in old]


def _draw(study: Study, result: TuningResult, old, new, out: Path) -> None:
    comparison = _compare(study, {"before": old, "tuned": new})
    save_figure(comparison, out / f"{study.method}-comparison.png")
    quantities = ("q", "v") if study.servo is None else ("q", "v", "u")
    motion = plot_histories(new, title=f"{study.name}, tuned", quantities=quantities)
    save_figure(motion, out / f"{study.method}-motion.png")
    history = result.history._replace(loss=np.exp(result.history.loss))
    figure = plot_tuning(history, title=f"{study.name}: mean integrated {study.goal.integrand}")
    save_figure(figure, out / f"{study.method}-tuning.png")


def _compare(study: Study, runs: dict[str, Any]):
    """One perturbed start before and after: violation and energy, or program and control."""
    title, labels = f"{study.name}: one perturbed start", study.system.labels()
    if runs["before"].violation.phi.shape[1]:
        return plot_comparison(runs, work=True, title=title)
    sizes = {name: np.linalg.norm(run.residuals, axis=1) for name, run in runs.items()}
    if study.servo is None:
        size = with_unit(study.goal.size, common_unit(list(labels.constraint_units)))
        errors = {name: energy_drift(run, work=True) for name, run in runs.items()}
        panels = {size: sizes, "error of energy |E - E0 - W| [J]": errors}
        return plot_series(runs["tuned"].ts, panels, log=list(panels), title=title)
    size, controls = study.goal.size, with_unit("controls u", common_unit(list(labels.input_units)))
    # A column of its own needs no number behind its name.
    inputs = {name: run.u[:, 0] if run.u.shape[1] == 1 else run.u for name, run in runs.items()}
    panels = {size: sizes, controls: inputs}
    return plot_series(runs["tuned"].ts, panels, log=[size], title=title)


def _record(study, result, before, after, limits, judging: float) -> dict[str, Any]:
    name = "as tuned"
    return {
        "name": study.name,
        "method": study.method,
        "budget": result.budget,
        "t1": study.t1,
        "dt": study.dt,
        "spread": study.deviation,
        "gains_before": _named_gains(study, resolve(result.initial_params)),
        "gains_after": _named_gains(study, result.params),
        "before": before[name]._asdict(),
        "after": after[name]._asdict(),
        "checks": {
            k: {"before": before[k]._asdict(), "after": after[k]._asdict()}
            for k in before
            if k != name
        },
        "beyond": limits,
        "steps": result.steps,
        "skipped": result.skipped,
        "stop_reason": result.stop_reason,
        "history": np.exp(result.history.loss),
        "wall_seconds": result.wall_seconds,
        "compile_seconds": result.compile_seconds,
        "judging_seconds": judging,
    }
