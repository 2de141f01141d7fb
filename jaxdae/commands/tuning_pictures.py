"""What `jaxdae tune` draws of a study."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.commands.tuning_report import LABELS, named_gains, step_checks, StudyFindings
from jaxdae.commands.validation import stacked, ValidationRuns
from jaxdae.models.study import Study
from jaxdae.plotting import plot_histories, plot_series, plot_tuning, save_figure
from jaxdae.plotting.gains import CostPlane, plot_levels, plot_planes, StabilityLimit
from jaxdae.plotting.readout import common_unit, with_unit
from jaxdae.stability.stability_functions import amplification
from jaxdae.systems import State

# Cells of the plane of gains in each direction, starts that its costs are means of, and cells of
# the limit by theory.
_CELLS, _STARTS, _FINE = 28, 2, 150


def draw(
    found: StudyFindings, validation: ValidationRuns, states: State, model: str, out: Path
) -> None:
    """Write the figures of a study."""
    study, stem = found.study, found.study.method
    head = f"{model}: {study.name}"
    save_figure(_compared(found, head), out / f"{stem}-comparison.png")
    quantities = ("q", "v") if study.servo is None else ("q", "v", "u")
    run = found.checks["as tuned"].runs["range"]
    motion = plot_histories(run, title=f"{head}, tuned", quantities=quantities)
    save_figure(motion, out / f"{stem}-motion.png")
    for name, tuned in found.tuned.items():
        history = tuned.result.history._replace(loss=tuned.losses)
        title = f"{head}, {LABELS[name]}: mean integrated {study.goal.integrand}"
        more = "" if name == "one step" else f"-{name}"
        save_figure(plot_tuning(history, title=title), out / f"{stem}{more}-tuning.png")
    if "theory" in found.sets and "K_P" in named_gains(study, found.sets["theory"]):
        planes = [_plane(found, validation, states, name) for name in found.tuned]
        heading = f"mean integrated {study.goal.integrand}"
        title = f"{head}: the same gains for every constraint, h = {study.dt:g} s"
        # The path leads through other values of these: it may cross cells where runs fail.
        others = [x for x in named_gains(study, found.sets["theory"]) if x not in ("K_D", "K_P")]
        title += f"; costs at the tuned {', '.join(others)}" if others else ""
        figure = plot_planes(planes, heading=heading, title=title)
        save_figure(figure, out / f"{stem}-plane.png")


def _compared(found: StudyFindings, head: str):
    """One perturbed start with all gains: both levels at several steps, or program and control."""
    study, title = found.study, f"{head}: one perturbed start"
    if "|phi|^2" in study.goal.parts:
        runs = {}
        for check in step_checks(found):
            if check.dt in (0.5, 1.0, 2.0):
                named = found.checks[check.name].runs
                runs[f"step {check.dt * study.dt:g} s"] = {found.labels[x]: named[x] for x in named}
        return plot_levels(runs, title=title)
    runs = {found.labels[x]: run for x, run in found.checks["as tuned"].runs.items()}
    labels, ts = study.system.labels(), next(iter(runs.values())).ts
    sizes = {
        name: _padded(np.linalg.norm(x.residuals, axis=1), len(ts)) for name, x in runs.items()
    }
    if study.servo is None:
        size = with_unit(study.goal.size, common_unit(list(labels.constraint_units)))
        return plot_series(ts, {size: sizes}, log=[size], title=title)
    size, controls = study.goal.size, with_unit("controls u", common_unit(list(labels.input_units)))
    # A column of its own needs no number behind its name.
    inputs = {name: run.u[:, 0] if run.u.shape[1] == 1 else run.u for name, run in runs.items()}
    return plot_series(ts, {size: sizes, controls: inputs}, log=[size], title=title)


def _padded(values: np.ndarray, count: int) -> np.ndarray:
    return np.pad(values, (0, count - len(values)), constant_values=np.nan)


def _plane(found: StudyFindings, validation: ValidationRuns, states: State, name: str) -> CostPlane:
    """Cost of gains that are the same for every constraint, at the steps of a tuning run."""
    study, tuned = found.study, found.tuned[name]
    x, y = np.geomspace(0.1, 8.0, _CELLS), np.geomspace(3e-3, 20.0, _CELLS)
    steps = np.asarray(tuned.multiples)
    shape = (_CELLS, _CELLS, steps.size, _STARTS)
    i, j, k, s = (index.ravel() for index in np.indices(shape))
    gains = _same_gains(found.sets[name], x[i] / study.dt, y[j] / study.dt**2)
    batch = jax.tree.map(lambda z: np.asarray(z)[s % len(z)], states)
    cost = validation.costs(gains, batch, steps[k]).reshape(shape).mean(axis=(2, 3))
    limit = _limit(validation.solver, steps, x, y)
    path = [_place(study, params) for params in tuned.path]
    points = {found.labels[z]: _place(study, params) for z, params in found.sets.items()}
    title = LABELS[name] + (f", {min(steps):g} to {max(steps):g} h" if steps.size > 1 else "")
    return CostPlane(title, x, y, cost, limit, points, np.array(path).reshape(-1, 2))


def _same_gains(params, K_D: np.ndarray, K_P: np.ndarray) -> Any:
    """Parameters with a leading axis, the gains of position constraints in place of theirs."""
    many = stacked([params], len(K_D))
    first = many.stabilization
    wide = (np.broadcast_to(x[:, None], y.shape) for x, y in ((K_D, first.K_D), (K_P, first.K_P)))
    where = lambda p: (p.stabilization.K_D, p.stabilization.K_P)  # noqa: E731
    return eqx.tree_at(where, many, tuple(wide))


def _limit(solver, steps: np.ndarray, x: np.ndarray, y: np.ndarray) -> StabilityLimit:
    """Of the same part of the plane, finer: linear theory costs no runs."""
    x, y = (np.geomspace(z[0], z[-1], _FINE) for z in (x, y))
    roots = _roots(x, y)
    factors = [amplification(solver, step * roots).max(axis=-1) for step in steps]
    return StabilityLimit(x, y, np.max(factors, axis=0))


def _roots(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Roots of `z^2 + x z + y`, shape `(nx, ny, 2)`."""
    half, square = -0.5 * x[:, None].astype(complex), np.sqrt(0.25 * x[:, None] ** 2 - y + 0j)
    return np.stack([half + square, half - square], axis=-1)


def _place(study: Study, params) -> tuple[float, float]:
    """Geometric means of the gains of all constraints, in units of the step."""
    gains = named_gains(study, params)
    K_D, K_P = (float(np.exp(np.mean(np.log(gains[x])))) for x in ("K_D", "K_P"))
    return K_D * study.dt, K_P * study.dt**2
