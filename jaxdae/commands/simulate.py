"""`jaxdae simulate MODEL`: run a ready system, plot it, and say how well the constraints held."""

import contextlib
import threading
import time
import webbrowser
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.commands.output import output_folder
from jaxdae.commands.start import chosen_start
from jaxdae.control.base import capabilities_of
from jaxdae.diagnosis.diagnose import diagnose
from jaxdae.diagnosis.findings import Findings
from jaxdae.diagnosis.singularities import near_singularities_along
from jaxdae.models import get_model, Model
from jaxdae.models.registry import catalogue
from jaxdae.results.derived_quantities import read_rows
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import chosen_solver, integrated, prepare
from jaxdae.simulation.choices import make_solver
from jaxdae.simulation.problem import default_tolerance, MAX_STEPS, Method, Problem, START_TOLERANCE
from jaxdae.simulation.run import backend_of
from jaxdae.storage.files import write_json
from jaxdae.systems.checks import constraint_counts
from jaxdae.tables import table
from jaxdae.version import __version__

# Residuals above this, in the units of the constraint, are pointed out.
NOTICEABLE = 1e-2
# Those of `jaxdae.systems.Power`, as the table names them.
_CAUSES = ("forces and inputs", "dissipation", "constraints", "changes in time")
# Work below this part of the energy: errors of the run.
_NOTHING = 1e-6
# Models that start where their program does not hold are examined in this last part of the time.
_LATE = 0.9
# Rows of an adaptive run; one of more steps is made again with more rows.
ROWS = 501
MOST_ROWS = 20_000

# In the place of the name of a solver.
_AUTOMATIC = "auto"
_QUICKLY = "jax_disable_most_optimizations"


class Outcome(NamedTuple):
    """A run of a ready system.

    Args:
        run: with all its quantities, as from a file.
        findings: what there is to say of it.
        residuals: of the program of a servo-constraint, shape `(times, p)`; `None` without one.
        names: of its constraints.
        departs: whether it starts where its program does not hold, on purpose.
        uncontrolled: whether the model's own controller was left out.
    """

    run: Trajectory
    findings: Findings
    residuals: np.ndarray | None
    names: tuple[str, ...]
    departs: bool
    uncontrolled: bool

    @property
    def success(self) -> bool:
        """Whether the run reached its end."""
        return bool(self.run.success)


def run(options) -> int:
    """Run the command; 0 if the simulation reached its end, 1 if it stopped early."""
    if (options.page or options.open) and find_spec("plotly") is None:
        raise ValueError("a page of the run needs plotly: pip install 'jaxdae[page]'.")
    out = output_folder(options.out, options.model)
    began = time.perf_counter()
    outcome = simulated(options)
    seconds = time.perf_counter() - began
    print(_report(outcome, options, seconds), flush=True)
    _draw(outcome, options.model, out)
    write_json(out / "simulation.json", _result(outcome, options, seconds))
    outcome.run.to_csv(out / "trajectory.csv")
    outcome.run.save(out / "trajectory.npz")
    files = "simulation.json, trajectory.npz and trajectory.csv"
    print(f"\nplots, {files} are in {out}", flush=True)
    if options.page or options.open:
        _show(outcome.run, options, out)
    return 0 if outcome.success else 1


def _largest(values) -> float:
    values = np.abs(np.asarray(values))
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _sizes(outcome: Outcome) -> np.ndarray:
    """Sizes of what is to be kept, zero where it need not hold.

    Where the start departs from a program on purpose, only the last tenth of the time counts.
    """
    result, run = np.nan_to_num(np.abs(_residuals(outcome)[1])), outcome.run
    late = run.ts > (_LATE * float(run.final_time) if outcome.departs else -np.inf)
    return np.where(late[:, None], result, 0.0)


def _warning(outcome: Outcome) -> str:
    level, _, get_name = _residuals(outcome)
    result = _sizes(outcome)
    row, column = np.unravel_index(np.argmax(result), result.shape)
    return (
        f"WARNING: constraint {get_name(int(column))!r} is violated by "
        f"{result[row, column]:.3g} at {level} level at "
        f"t = {float(outcome.run.ts[row]):.6g} s. The run reached its end, but not on the "
        "constraints: take a smaller step, tune the gains, or check that the constraints can be "
        "satisfied then."
    )


def _residuals(outcome: Outcome):
    """Level, residuals and names of what is to be kept.

    The program of a servo-constraint, if there is one; else the constraints at position level, or
    at velocity level where there are no position constraints.
    """
    violation, get_name = outcome.run.violation, outcome.run.labels.constraint
    if outcome.residuals is not None:
        return "program", outcome.residuals, outcome.names.__getitem__
    if violation.phi.shape[-1]:
        return "position", violation.phi, get_name
    return "velocity", violation.phi_dot, get_name


def _figures(outcome: Outcome) -> dict[str, float]:
    """Numbers of the report; constraints of a kind that the system has none of have none."""
    run, violation, energy = outcome.run, outcome.run.violation, outcome.run.energy
    results = {"reached [s]": float(run.final_time), "steps": int(run.stats["num_steps"])}
    levels = ("largest |phi|", violation.phi), ("largest |d(phi)/dt|", violation.phi_dot)
    results |= {name: _largest(values) for name, values in levels if values.shape[-1]}
    if outcome.residuals is not None:
        results["largest |f| of the program"] = _largest(outcome.residuals)
    # The energy alone may be near zero all the time.
    parts = (energy, run.kinetic_energy, run.potential_energy)
    least, reached = _NOTHING * max(map(_largest, parts)), np.isfinite(run.ts)
    done = zip(_CAUSES, run.work, strict=True)
    results |= {f"work of {x} [J]": float(y[reached][-1]) for x, y in done if _largest(y) > least}
    return results | {
        "energy at the start [J]": float(energy[0]),
        "largest energy change [J]": _largest(energy - energy[0]),
        "largest error of the power balance [J]": _largest(energy - energy[0] - sum(run.work)),
    }


def _report(outcome: Outcome, options, seconds: float) -> str:
    run, summary = outcome.run, catalogue()[options.model].summary
    head = f"{options.model}: {summary}\n{_title(outcome)}, {seconds:.1f} s"
    if run.why_solver is not None:
        head = f"{head}\n{run.solver}: {run.why_solver}"
    figures, failure = _figures(outcome), outcome.findings.failure
    if run.known["result"] == "nonfinite":
        # Before its overflow a run that blew up is finite, but nothing to quote.
        figures = {name: figures[name] for name in ("reached [s]", "steps")}
    lines = [head, "", table(("", "value"), list(figures.items()))]
    if failure is not None:
        return "\n".join([*lines, "", f"FAILED: {failure.message}"])
    if _largest(_sizes(outcome)) > NOTICEABLE:
        lines += ["", _warning(outcome)]
    for finding in outcome.findings.warnings:
        lines += ["", f"WARNING: {finding.message}"]
    return "\n".join(lines)


def _title(outcome: Outcome) -> str:
    """Formulation and controller; models that have no controller need no word on it."""
    about = outcome.run.about
    if about.controller is not None:
        return f"{about.formulation} under {about.controller}"
    return about.formulation + (", without its controller" if outcome.uncontrolled else "")


def _draw(outcome: Outcome, model: str, out: Path) -> None:
    # Loaded when the numbers stand on the screen: drawing takes as long again.
    from jaxdae.plotting import plot_energy, plot_histories, save_figure

    run, title = outcome.run, f"{model}: {_title(outcome)}"
    there = {"q": True, "v": True, "w": run.w.shape[-1] > 0, "u": run.u is not None}
    quantities = [name for name, some in there.items() if some]
    singularities = outcome.findings.near_singularities
    histories = plot_histories(run, quantities=quantities, title=title, singular=singularities)
    save_figure(histories, out / "histories.png")
    if _residuals(outcome)[1].shape[-1]:
        save_figure(_off(outcome, title), out / "violation.png")
    save_figure(plot_energy(run, work=True, title=title), out / "energy.png")


def _show(run: Trajectory, options, out: Path) -> None:
    """The run as a page, in the browser if that was asked for."""
    # Loaded where it is asked for: what draws a mechanism traces it.
    from jaxdae.models import get_model
    from jaxdae.plotting import save_page

    moving = run.with_system(get_model(options.model).system())
    page = save_page(moving, out / "page.html", title=options.model)
    print(f"page.html is there, too: {page.resolve().as_uri()}", flush=True)
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser was found to show it: open it in one yourself.", flush=True)


def _off(outcome: Outcome, title: str):
    """Violation of the constraints, or of a program where that is all there is."""
    from jaxdae.plotting import plot_series, plot_violation
    from jaxdae.plotting.style import show_after_start

    level, result, get_name = _residuals(outcome)
    if outcome.run.violation.phi_dot.shape[-1] or level != "program":
        return plot_violation(outcome.run, title=title)
    columns = {get_name(i): np.abs(x) for i, x in enumerate(result.T)}
    heading = "|f| of the program"
    figure = plot_series(outcome.run.ts, {heading: columns}, log=[heading], title=title)
    show_after_start(figure.axes[0])
    return figure


def _result(outcome: Outcome, options, seconds: float) -> dict[str, Any]:
    run, findings = outcome.run, outcome.findings
    last = run.last_state
    return {
        "jaxdae": __version__,
        "model": options.model,
        "source": catalogue()[options.model].source,
        "formulation": run.about.settings,
        "controller": run.about.controller,
        "solver": run.solver if options.solver == _AUTOMATIC else options.solver,
        "why this solver": run.why_solver,
        "dt": options.dt,
        "dtype": options.dtype,
        "success": outcome.success,
        "failure": None if findings.failure is None else findings.failure.message,
        "seconds": seconds,
        "warnings": [x.message for x in findings.warnings],
        "near-singular positions": [
            {"t": x.time, "least singular value": x.value} for x in findings.near_singularities
        ],
        "final": {"t": run.final_time, "q": last.q, "v": last.v},
        **_figures(outcome),
    }


def simulated(options) -> Outcome:
    """Make the run that a command asks for."""
    model = get_model(options.model)
    with _settings_kept():
        asked, why = _arguments(model, options)
        # Imports wait for files, and not all of what follows is Python.
        pictures = ("jaxdae.plotting.histories",)
        threading.Thread(target=import_module, args=pictures, daemon=True).start()

        def run_with(saveat) -> tuple[Problem, Method, Trajectory]:
            problem, method = prepare(**asked, saveat=saveat)
            return problem, method, integrated(problem, method)

        problem, method, run = with_enough_rows(run_with, asked["t1"], asked["dt"])
        object.__setattr__(run, "why", why)  # as `simulate` does
        findings = diagnose(problem, method, run)
        if findings.failure is not None:
            findings = findings._replace(near_singularities=_passed(run))
        program = capabilities_of(run.controller)
        residuals = None if program.program is None else np.asarray(read_rows(run, _program))
        return Outcome(
            run.stored(),
            findings,
            residuals,
            program.names or (),
            departs(program.names, model, options.start),
            run.controller is None and model.controller is not None,
        )


@contextlib.contextmanager
def _settings_kept():
    """How JAX compiles is chosen for the run; afterwards it is what it was."""
    before = jax.config.values[_QUICKLY]
    try:
        yield
    finally:
        jax.config.update(_QUICKLY, before)


def departs(program: tuple[str, ...] | None, model: Model, given: dict[str, float] | None) -> bool:
    """Whether a run starts off its program on purpose; what has none has nothing to depart from."""
    return program is not None and (model.departure is not None or bool(given))


def _passed(run: Trajectory) -> tuple:
    """Near-singular positions along the rows that a failed run reached."""
    ts, states = np.asarray(run.ts), jax.device_get(run.states)
    count = int(np.logical_and.accumulate(np.isfinite(ts)).sum())
    if count < 2:
        return ()
    reached = SimpleNamespace(q=states.q[:count], v=jax.device_get(run.coordinate_rates)[:count])
    return tuple(near_singularities_along(run.system, run.formulation, ts[:count], reached)[0])


def _program(run: Trajectory, t, y) -> Any:
    state = run.formulation.recover(run.system, t, y)
    program: Any = capabilities_of(run.controller).program
    return program(t, state.q, state.v)


def _arguments(model: Model, options) -> tuple[dict[str, Any], str | None]:
    """Those of `simulate`, and why its solver was chosen where that was left to it."""
    system = model.system()
    dtype = jnp.dtype(options.dtype)
    state = chosen_start(model, system, options.start, dtype)
    formulation = chosen_formulation(model, options, *constraint_counts(system, state))
    controller = chosen_controller(model, system, options.uncontrolled)
    # Adaptive steps give theirs to the iterations of implicit methods.
    tolerance = None if options.dt is None else default_tolerance(dtype)
    # It is chosen when all else is known.
    automatic = options.solver == _AUTOMATIC
    solver = diffrax.Dopri8() if automatic else make_solver(options.solver, tolerance)
    adjoint, none = diffrax.RecursiveCheckpointAdjoint(), diffrax.NoProgressMeter()
    method = Method(solver, None, None, adjoint, none, max_steps=1, work=True)
    by_kernel = (
        options.backend != "plain" and backend_of("native").obstacle(formulation, method) is None
    )
    # A kernel shows no progress; it is done before a bar would be of use.
    progress = options.progress and not by_kernel
    # Its code runs once, in less time than optimizing it takes.
    jax.config.update(_QUICKLY, by_kernel or jax.config.values[_QUICKLY])
    asked = {
        "system": system,
        "formulation": formulation,
        "state": state,
        "t0": 0.0,
        "t1": model.t1 if options.t1 is None else options.t1,
        "dt": options.dt,
        "solver": solver,
        "stepsize_controller": None,
        "controller": controller,
        "adjoint": adjoint,
        "backend": options.backend,
        "progress": progress,
        "throw": False,
        "work": True,
        "start_tolerance": START_TOLERANCE,
        "max_steps": MAX_STEPS,
    }
    if not automatic:
        return asked, None
    settings = {name: x for name, x in asked.items() if name != "solver"}
    solver, why = chosen_solver(**settings, saveat=None)
    return asked | {"solver": solver}, why


def with_enough_rows(run_with: Callable[[Any], tuple], t1: float, dt: float | None) -> tuple:
    """A run with at least as many rows as steps, so that no oscillation falls between them."""
    if dt is not None:
        return run_with(None)  # all steps are rows
    made = run_with(diffrax.SaveAt(ts=jnp.asarray(np.linspace(0.0, t1, ROWS))))
    steps = int(made[-1].stats["num_steps"])
    if steps <= ROWS:
        return made
    ts = np.linspace(0.0, t1, min(2 * steps, MOST_ROWS) + 1)
    return run_with(diffrax.SaveAt(ts=jnp.asarray(ts)))
