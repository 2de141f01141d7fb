"""`jaxdae simulate MODEL`: run a ready system, plot it, and say how well the constraints held."""

import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.commands.outcome import Outcome, simulated
from jaxdae.commands.output import output_folder
from jaxdae.files import write_json
from jaxdae.models.registry import catalogue
from jaxdae.results.trajectory import Trajectory
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
    from jaxdae.plotting.style import show_constants

    run, title = outcome.run, f"{model}: {_title(outcome)}"
    there = {"q": True, "v": True, "w": run.w.shape[-1] > 0, "u": run.u is not None}
    quantities = [name for name, some in there.items() if some]
    passages = outcome.findings.passages
    histories = plot_histories(run, quantities=quantities, title=title, singular=passages)
    show_constants(histories)
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
        "solver": options.solver,
        "dt": options.dt,
        "dtype": options.dtype,
        "success": outcome.success,
        "failure": None if findings.failure is None else findings.failure.message,
        "seconds": seconds,
        "warnings": [x.message for x in findings.warnings],
        "near-singular positions": [
            {"t": x.time, "least singular value": x.value} for x in findings.passages
        ],
        "final": {"t": run.final_time, "q": last.q, "v": last.v},
        **_figures(outcome),
    }
