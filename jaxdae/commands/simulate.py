"""`jaxdae simulate MODEL`: run a ready system, plot it, and say how well the constraints held."""

import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.commands import kept
from jaxdae.commands.output import output_folder
from jaxdae.commands.record import Record
from jaxdae.files import write_json
from jaxdae.models.registry import catalogue
from jaxdae.results.tables import write_csv
from jaxdae.tables import table
from jaxdae.version import __version__

# Residuals above this, in the units of the constraint, are pointed out.
NOTICEABLE = 1e-2
# Those of `jaxdae.systems.Power`, as the table names them.
_CAUSES = ("forces and inputs", "dissipation", "constraints", "changes in time")
# Work below this part of the energy: errors of the run.
_NOTHING = 1e-6
# Models that start where their program does not hold are judged by this last part of the time.
_LATE = 0.9


def run(options) -> int:
    """Run the command; 0 if the simulation reached its end, 1 if it stopped early."""
    if (options.page or options.open) and find_spec("plotly") is None:
        raise ValueError("a page of the run needs plotly: pip install 'jaxdae[page]'.")
    out = output_folder(options.out, options.model)
    began = time.perf_counter()
    record = kept.again(options) if options.keep else None
    program = None
    if record is None:
        # Loaded where a run is not kept: what traces and checks takes longer to load than to draw.
        from jaxdae.commands import recording

        record, program = recording.record(options)
    seconds = time.perf_counter() - began
    print(_report(record, options, seconds), flush=True)
    _draw(record, options.model, out)
    write_json(out / "simulation.json", _result(record, options, seconds))
    series = record.stored(options.model)
    write_csv(series, out / "trajectory.csv")
    series.save(out / "trajectory.npz")
    files = "simulation.json, trajectory.npz and trajectory.csv"
    print(f"\nplots, {files} are in {out}", flush=True)
    if options.page or options.open:
        _show(record, options, out)
    if options.keep and program is not None:
        kept.keep(options, program, record.words)
    return 0 if record.words.success else 1


def _largest(values) -> float:
    values = np.abs(np.asarray(values))
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _judged(record: Record) -> np.ndarray:
    """Sizes of what is to be kept, zero where it need not hold.

    Where the start departs from a program on purpose, only the last tenth of the time counts.
    """
    result = np.nan_to_num(np.abs(_residuals(record)[1]))
    late = record.rows["ts"] > (_LATE * float(record.end["t"]) if record.words.departs else -np.inf)
    return np.where(late[:, None], result, 0.0)


def _warning(record: Record) -> str:
    level, _, get_name = _residuals(record)
    result = _judged(record)
    row, column = np.unravel_index(np.argmax(result), result.shape)
    return (
        f"WARNING: constraint {get_name(int(column))!r} is violated by "
        f"{result[row, column]:.3g} at {level} level at "
        f"t = {float(record.rows['ts'][row]):.6g} s. The run reached its end, but not on the "
        "constraints: take a smaller step, tune the gains, or check that the constraints can be "
        "satisfied then."
    )


def _residuals(record: Record):
    """Level, residuals and names of what is to be kept.

    The program of a servo-constraint, if there is one; else the constraints at position level, or
    at velocity level where there are no position constraints.
    """
    rows, words = record.rows, record.words
    if words.program is not None:
        return "program", rows["program"], words.program.__getitem__
    if rows["phi"].shape[-1]:
        return "position", rows["phi"], words.constraint
    return "velocity", rows["phi_dot"], words.constraint


def _figures(record: Record) -> dict[str, float]:
    """Numbers of the report; constraints of a kind that the system has none of have none."""
    rows, energy = record.rows, record.rows["energy"]
    results = {"reached [s]": float(record.end["t"]), "steps": int(record.end["steps"])}
    for name, key in (("largest |phi|", "phi"), ("largest |d(phi)/dt|", "phi_dot")):
        if rows[key].shape[-1]:
            results[name] = _largest(rows[key])
    if record.words.program is not None:
        results["largest |f| of the program"] = _largest(rows["program"])
    # The energy alone may be near zero all the time.
    parts = (rows.get(x, energy) for x in ("energy", "kinetic_energy", "potential_energy"))
    work, least = rows["work"][np.isfinite(rows["ts"])], _NOTHING * max(map(_largest, parts))
    done = zip(_CAUSES, work.T, strict=True)
    results |= {f"work of {cause} [J]": float(x[-1]) for cause, x in done if _largest(x) > least}
    return results | {
        "energy at the start [J]": float(energy[0]),
        "largest energy change [J]": _largest(energy - energy[0]),
        "largest error of the power balance [J]": _largest(
            energy - energy[0] - rows["work"].sum(axis=-1)
        ),
    }


def _report(record: Record, options, seconds: float) -> str:
    words, summary = record.words, catalogue()[options.model].summary
    head = f"{options.model}: {summary}\n{words.formulation}{_control(record)}, {seconds:.1f} s"
    figures = _figures(record)
    if not words.finite:
        # Before its overflow a run that blew up is finite, but nothing to quote.
        figures = {name: figures[name] for name in ("reached [s]", "steps")}
    lines = [head, "", table(("", "value"), list(figures.items()))]
    if words.failure is not None:
        return "\n".join([*lines, "", f"FAILED: {words.failure}"])
    if _largest(_judged(record)) > NOTICEABLE:
        lines += ["", _warning(record)]
    lines += [line for text in words.diagnosed for line in ("", f"WARNING: {text}")]
    return "\n".join(lines)


def _control(record: Record) -> str:
    """What the run is under; models that have no controller need no word on it."""
    words = record.words
    if words.controller is None:
        return ", without its controller" if words.uncontrolled else ""
    return f" under {words.controller}"


def _draw(record: Record, model: str, out: Path) -> None:
    # Loaded when the numbers stand on the screen: drawing takes as long again.
    from jaxdae.plotting import plot_energy, plot_histories, save_figure
    from jaxdae.plotting.style import show_constants

    run, title = record.drawn(), f"{model}: {record.words.formulation}{_control(record)}"
    there = {"q": True, "v": True, "w": run.w.shape[-1] > 0, "u": run.u is not None}
    quantities = [name for name, some in there.items() if some]
    histories = plot_histories(run, quantities=quantities, title=title)
    show_constants(histories)
    save_figure(histories, out / "histories.png")
    if _residuals(record)[1].shape[-1]:
        save_figure(_off(record, run, title), out / "violation.png")
    save_figure(plot_energy(run, work=True, title=title), out / "energy.png")


def _show(record: Record, options, out: Path) -> None:
    """The run as a page, in the browser if that was asked for."""
    # Loaded where it is asked for: what draws a mechanism traces it.
    from jaxdae.models import get_model
    from jaxdae.plotting import save_page

    run = record.drawn()
    run.system = get_model(options.model).system()
    page = save_page(run, out / "page.html", title=options.model)
    print(f"page.html is there, too: {page.resolve().as_uri()}", flush=True)
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser was found to show it: open it in one yourself.", flush=True)


def _off(record: Record, run: Any, title: str):
    """Violation of the constraints, or of a program where that is all there is."""
    from jaxdae.plotting import plot_series, plot_violation
    from jaxdae.plotting.style import show_after_start

    level, result, get_name = _residuals(record)
    if record.rows["phi_dot"].shape[-1] or level != "program":
        return plot_violation(run, title=title)
    columns = {get_name(i): np.abs(x) for i, x in enumerate(result.T)}
    heading = "|f| of the program"
    figure = plot_series(run.ts, {heading: columns}, log=[heading], title=title)
    show_after_start(figure.axes[0])
    return figure


def _result(record: Record, options, seconds: float) -> dict[str, Any]:
    words, end = record.words, record.end
    return {
        "jaxdae": __version__,
        "model": options.model,
        "source": catalogue()[options.model].source,
        "formulation": words.settings,
        "controller": words.controller,
        "solver": options.solver,
        "dt": options.dt,
        "dtype": options.dtype,
        "success": words.success,
        "failure": words.failure,
        "seconds": seconds,
        "warnings": list(words.diagnosed),
        "near-singular positions": [
            {"t": x.time, "least singular value": x.value} for x in words.passages
        ],
        "final": {name: end[name] for name in ("t", "q", "v")},
        **_figures(record),
    }
