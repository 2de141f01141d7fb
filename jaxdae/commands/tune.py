"""`jaxdae tune MODEL`: gains by theory and by gradient, for one step and for a range of steps."""

import dataclasses
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae import __version__
from jaxdae.commands.output import output_folder
from jaxdae.commands.tuning_pictures import draw
from jaxdae.commands.tuning_report import record, report, StudyFindings, Tuned
from jaxdae.commands.validation import breaking_times, stacked, ValidationRuns
from jaxdae.models import get_model
from jaxdae.models.studies import studies
from jaxdae.models.study import Check, RANGE, Study
from jaxdae.solvers import RK4
from jaxdae.storage.files import held, write_json
from jaxdae.systems import State
from jaxdae.systems.precision import in_dtype
from jaxdae.tuning import (
    CheckpointError,
    Conditions,
    Logarithm,
    perturbed_states,
    resolve,
    SimulationObjective,
    tune,
)
from jaxdae.tuning.certificate import Certificate, certificate

# Optimizers that take residuals; they need tens of evaluations where others need hundreds.
_LEAST_SQUARES = ("lm", "gauss-newton")


def run(options) -> int:
    """Tune every study of the model; 0 when each of them improved."""
    began = time.perf_counter()
    model = get_model(options.model)
    out = output_folder(options.out, model.name)
    chosen = [_with(study, options) for study in studies(model.name, options.formulation)]
    print(f"{model.name}: {model.summary}\n{model.source}\n")
    out.mkdir(parents=True, exist_ok=True)
    with held(out / "result.json", partial(_in_use, out)):
        # Before the first study, so that a later --resume cannot meet a file of an earlier run.
        for study in chosen:
            for path in _checkpoints(study, out).values():
                _put_aside(path, options.resume)
        found = _in_pairs(chosen, options, out)
    seconds = time.perf_counter() - began
    content = {
        "jaxdae": __version__,
        "model": model.name,
        "source": model.source,
        "options": {k: v for k, v in vars(options).items() if k != "command"},
        "seconds": seconds,
        "studies": [record(x) for x in found],
    }
    write_json(out / "result.json", content)
    runs = [x.result for findings in found for x in findings.tuned.values()]
    compiling = f"compiling {sum(x.compile_seconds for x in runs):.0f} s of it"
    how = compiling if len(found) == 1 else "two studies at a time, which slows the rates above"
    print(f"{seconds:.0f} s, {how}; plots and result.json are in {out}")
    return 0 if all(x.loss < x.initial_loss for x in runs) else 1


def _in_use(out: Path, holder: str) -> Exception:
    return ValueError(
        f"another run writes to the folder {out} ({holder}); wait until it ends, or end it, or "
        "give another --out."
    )


def _in_pairs(chosen: list[Study], options, out: Path) -> list[StudyFindings]:
    """What is found in each study: two at a time, as compiling leaves processors without work."""
    ending, found = threading.Event(), []
    # Who returns from LLVM or XLA waits so long for the thread that traces: seconds in all by the
    # usual 5 ms, as each of thousands of such calls lets the other thread go on.
    sys.setswitchinterval(5e-4)
    if len(chosen) == 1:  # the thread that called, which an interruption may reach
        found = [_tune(chosen[0], options, out, ending)]
        _say(report(found[0]))
        return found
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(_tune, study, options, out, ending) for study in chosen]
        try:
            for task in tasks:
                found.append(task.result())
                _say(report(found[-1]))
        except BaseException:
            # Tuning runs end after their step, which is kept; studies that wait do not begin.
            ending.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _say(text: str) -> None:
    """Print without breaking the progress bars of what still runs."""
    from tqdm import tqdm

    tqdm.write(text)


def _with(study: Study, options) -> Study:
    """The study with the user's end time and step."""
    changes = {"t1": options.t1, "dt": options.dt}
    chosen = {name: value for name, value in changes.items() if value is not None}
    if options.t1 is not None:
        # Horizons of the checks belong to the study's own end time.
        kept = tuple(check for check in study.checks if check.t1 is None)
        chosen |= {"checks": kept, "beyond": None}
    return dataclasses.replace(study, **chosen)


def _checkpoints(study: Study, out: Path) -> dict[str, Path]:
    stems = {"one step": study.method, "range": f"{study.method}-range"}
    return {name: out / f"{stem}.checkpoint" for name, stem in stems.items()}


# Figures share their fonts.
_DRAWING = threading.Lock()


def _tune(study: Study, options, out: Path, ending: threading.Event) -> StudyFindings:
    start = jax.tree.map(lambda x: jnp.asarray(x, jnp.dtype(options.dtype)), study.start)
    study = dataclasses.replace(study, start=start)
    keys = jax.random.split(jax.random.key(options.seed))
    states = perturbed_states(start, keys[0], options.batch, study.deviation, study.deviation)
    first = in_dtype(study.params, start.q.dtype)
    sets = {"first": resolve(first), "theory": in_dtype(study.by_theory(RK4()), start.q.dtype)}
    sets = {name: gains for name, gains in sets.items() if gains is not None}
    tuned_on = Check("as tuned", count=options.batch)
    study = dataclasses.replace(study, checks=(tuned_on, *study.checks))
    validation = ValidationRuns(study, RK4(), len(sets) + 2)
    steps, left_out = _held(validation, sets["first"], states)
    served = _objective(study, states, (1.0,), options).backend_of(sets["first"])
    tuned: dict[str, Tuned] = {}
    for name, path in _checkpoints(study, out).items():
        multiples = (1.0,) if name == "one step" else steps
        objective = _objective(study, states, multiples, options)
        tuned[name] = _descend(study, objective, first, served, options, path, ending)
        sets[name] = tuned[name].result.params
    began = time.perf_counter()
    # The same starts in all checks but the first, so that these differ by what they say.
    checks = {
        check.name: validation.under(check, sets, start, keys[int(check is not tuned_on)])
        for check in study.checks
    }
    beyond = _beyond(study, sets, states)
    certificates = _certificates(validation, tuned["range"], sets)
    seconds = time.perf_counter() - began
    findings = StudyFindings(study, tuned, sets, checks, beyond, certificates, left_out, seconds)
    with _DRAWING:
        draw(findings, validation, states, options.model, out)
    return findings


def _held(
    validation: ValidationRuns, first, states: State
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps of the range that the first gains hold at, and the others [s]."""
    count = states.q.shape[0]
    steps = np.repeat(RANGE, count)
    batch = _repeated(states, len(RANGE))
    costs = validation.costs(stacked([first], len(steps)), batch, steps)
    good = [bool(np.all(np.isfinite(x))) for x in costs.reshape(len(RANGE), count)]
    held = tuple(x for x, fine in zip(RANGE, good, strict=True) if fine)
    left_out = tuple(
        x * validation.study.dt for x, fine in zip(RANGE, good, strict=True) if not fine
    )
    return held or (1.0,), left_out


def _certificates(
    validation: ValidationRuns, over_range: Tuned, sets: dict[str, Any]
) -> dict[str, Certificate]:
    """Of all gains over the range, from runs by the program of the validation."""
    objective, states = over_range.objective, over_range.objective.states
    count = states.q.shape[0]
    # Members of the objective: steps, and starts fastest.
    steps = np.repeat(over_range.multiples, count)
    batch = _repeated(states, len(over_range.multiples))
    return {
        name: certificate(
            objective, params, validation.costs(stacked([params], steps.size), batch, steps)
        )
        for name, params in sets.items()
    }


def _repeated(states: State, times: int) -> State:
    """The batch so many times."""
    return jax.tree.map(lambda x: np.tile(np.asarray(x), (times,) + (1,) * (x.ndim - 1)), states)


def _objective(study: Study, states: State, multiples, options) -> SimulationObjective:
    """The mean cost over starts and steps, these in units of the study's."""
    return SimulationObjective(
        study.goal.cost,
        states,
        build=study.build,
        t1=study.t1,
        conditions=Conditions(dt=[x * study.dt for x in multiples]),
        solver=RK4(),
        backend=options.backend,
    )


def _descend(
    study: Study,
    objective: SimulationObjective,
    params,
    served: tuple[str, str | None],
    options,
    checkpoint: Path,
    ending: threading.Event,
) -> Tuned:
    """Tune until another study fails or a user interrupts.

    `served` is the backend of the runs, and what keeps the native one from them.
    """
    by_squares = options.optimizer in (None, *_LEAST_SQUARES)
    # Runs that no file can hold; asked to resume one, `tune` says so.
    by_scipy = options.optimizer in ("slsqp", "trust-constr")
    if served[0] == "native" and not by_squares:
        # The adjoint keeps no derivative of any row: it is the faster one for a scalar.
        objective = dataclasses.replace(objective, mode="reverse")
    off = f"starts off by {study.deviation:g} (standard deviation)"
    _say(f"{study.name}: {objective.budget}; {off}")
    path, times = [], []

    def seen(step):
        path.append(step.params)
        times.append(time.perf_counter())
        return ending.is_set()

    try:
        result = tune(
            objective if by_squares else Logarithm(objective),
            params,
            optimizer=_optimizer(options),
            steps=options.steps or (38 if by_squares else 300),
            checkpoint=checkpoint if options.resume or not by_scipy else None,
            checkpoint_every=1,  # an interrupted process leaves at once
            resume=options.resume,
            progress=options.progress,
            callback=seen,
        )
    except CheckpointError as error:
        # Its own remedies are arguments of the function.
        raise ValueError(
            f"{error.reason}. Start again without --resume, which keeps that file under another "
            "name; or give the options of that run, or another --out."
        ) from error
    if ending.is_set():
        raise KeyboardInterrupt  # which no one sees: what ended it is reported
    each = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else float("nan")
    assert objective.conditions.dt is not None  # `_objective` gives them
    multiples = tuple(x / study.dt for x in objective.conditions.dt)
    return Tuned(objective, result, path, each, multiples, not by_squares, *served)


def _optimizer(options) -> Any:
    """By name, or clipped: one steep gradient near a stability limit must not fill the memory."""
    import optax

    if options.optimizer is None or not hasattr(optax, options.optimizer):
        return options.optimizer
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


def _beyond(study: Study, sets: dict[str, Any], states: State) -> dict[str, Any] | None:
    """What happens past the place where the method is known to break."""
    if study.beyond is None:
        return None
    out: dict[str, Any] = {"t1": study.beyond, "starts": int(states.q.shape[0])}
    for name, params in sets.items():
        times, reason = breaking_times(study, params, states)
        out[name] = {"failed": int(times.size), "times": times, "reason": reason}
    return out
