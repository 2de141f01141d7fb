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
from jaxdae.commands.judge import breaking_times, judge, Judgement, tuned_cost
from jaxdae.commands.tables import gain_text, output_folder, table, write_json
from jaxdae.models import get_model
from jaxdae.models.studies import Check, studies, Study
from jaxdae.plotting import plot_comparison, plot_histories, plot_tuning, save_figure
from jaxdae.solvers import RK4
from jaxdae.systems import State
from jaxdae.systems.precision import in_dtype
from jaxdae.tuning import (
    Logarithm,
    perturbed_states,
    resolve,
    SimulationObjective,
    tune,
    TuningResult,
)


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
    given = {name: value for name, value in changes.items() if value is not None}
    if options.t1 is not None:
        # Horizons of the checks belong to the study's own end time.
        kept = tuple(check for check in study.checks if check.t1 is None)
        given |= {"checks": kept, "beyond": None}
    return dataclasses.replace(study, **given)


def _tune(study: Study, options, out: Path) -> dict[str, Any]:
    start = _start(study, options)
    keys = jax.random.split(jax.random.key(options.seed), 2 + len(study.checks))
    states = perturbed_states(start, keys[0], options.batch, study.spread, study.spread)
    objective = SimulationObjective(
        tuned_cost(), states, system=study.system, t1=study.t1, dt=study.dt, solver=RK4()
    )
    print(f"{study.name}: {objective.budget}; starts off by {study.spread:g} (standard deviation)")
    result = tune(
        Logarithm(objective),
        in_dtype(study.formulation, start.q.dtype),
        optimizer=_optimizer(options),
        steps=options.steps,
        checkpoint=out / f"{study.method}.checkpoint",
        resume=options.resume,
        progress=options.progress,
    )
    began = time.perf_counter()
    tuned_on = Check("as tuned", count=options.batch)
    conditions = (tuned_on, *study.checks)
    before, after = {}, {}
    for check, key in zip(conditions, keys[jnp.array([0, *range(2, len(keys))])], strict=True):
        before[check.name], old = judge(study, result.initial_params, check, start, key)
        after[check.name], new = judge(study, result.params, check, start, key)
        if check is tuned_on:
            _draw(study, result, old, new, out)
    limits = _beyond(study, result, states)
    judging = time.perf_counter() - began
    print(_report(result, before, after, limits))
    return _record(study, result, before, after, limits, judging)


def _start(study: Study, options) -> State:
    dtype = jnp.dtype(options.dtype)
    parts = (*study.system.start(), study.system.actuators())
    return State(*(jnp.asarray(x, dtype) for x in parts))


def _optimizer(options) -> optax.GradientTransformation:
    """Clipped, so that one steep gradient near a stability limit does not fill the memory."""
    # The usual 1e-8 would damp steps along gradients far below it.
    eps = {"eps": 1e-16} if options.optimizer in ("adam", "adamw", "nadam") else {}
    make = getattr(optax, options.optimizer)
    return optax.chain(optax.clip_by_global_norm(1.0), make(options.learning_rate, **eps))


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
    for name, formulation in (("before", result.initial_params), ("after", result.params)):
        times, reason = breaking_times(study, formulation, states)
        out[name] = {"failed": int(times.size), "times": times, "reason": reason}
    return out


def _report(result: TuningResult, before, after, limits) -> str:
    rows = [
        (name, float(old.cost), float(new.cost), _fold(old, new), float(new.largest))
        for name, old, new in zip(before, before.values(), after.values(), strict=True)
    ]
    headings = (
        "mean integrated |phi|^2",
        "first gains",
        "tuned",
        "cut",
        "largest |phi| (late), tuned",
    )
    first, first_after = before["as tuned"], after["as tuned"]
    lines = [
        "",
        table(("gain", "first", "tuned"), _gains(result)),
        "",
        table(headings, rows),
        "The given starts are not counted: no gain can change them. With them (trapezoidal rule) "
        f"{float(first.cost_from_start):.3g} becomes {float(first_after.cost_from_start):.3g}.",
        f"{result.steps} steps, {result.skipped} of them refused because they were not finite.",
    ]
    return "\n".join([*lines, *_limit_lines(limits), ""])


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
    if np.isfinite(ratio):
        return f"{ratio:.0f}-fold" if ratio >= 10 else f"{ratio:.2g}-fold"
    return f"{int(old.failed)} failed before, {int(new.failed)} after"


def _named_gains(formulation) -> dict[str, Any]:
    stabilization = formulation.stabilization
    gains = {"K_D": stabilization.K_D, "K_P": stabilization.K_P}
    return gains | ({"alpha": formulation.alpha} if hasattr(formulation, "alpha") else {})


def _gains(result: TuningResult) -> list[tuple[str, str, str]]:
    old, new = _named_gains(result.initial_params), _named_gains(result.params)
    return [(name, gain_text(old[name]), gain_text(new[name])) for name in old]


def _draw(study: Study, result: TuningResult, old, new, out: Path) -> None:
    runs = {"before": old, "tuned": new}
    title = f"{study.name}: one perturbed start"
    save_figure(plot_comparison(runs, title=title), out / f"{study.method}-comparison.png")
    save_figure(
        plot_histories(new, title=f"{study.name}, tuned"), out / f"{study.method}-motion.png"
    )
    history = dataclasses.replace(result.history, loss=np.exp(result.history.loss))
    figure = plot_tuning(history, title=f"{study.name}: mean integrated squared violation")
    save_figure(figure, out / f"{study.method}-tuning.png")


def _record(study, result, before, after, limits, judging: float) -> dict[str, Any]:
    name = "as tuned"
    return {
        "name": study.name,
        "method": study.method,
        "budget": result.budget,
        "t1": study.t1,
        "dt": study.dt,
        "spread": study.spread,
        "gains_before": _named_gains(resolve(result.initial_params)),
        "gains_after": _named_gains(result.params),
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
