"""`jaxdae simulate MODEL`: run a ready system, plot it, and say how well the constraints held."""

import time
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae import __version__
from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.commands.tables import output_folder, table, write_json
from jaxdae.control import ServoConstraint
from jaxdae.diagnostics import rows_of, tolerance_of, warnings_of
from jaxdae.failure import describe_failure
from jaxdae.models import get_model
from jaxdae.models.studies import program_residuals
from jaxdae.simulate import simulate
from jaxdae.solvers import RK4
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.trajectory import Trajectory

# Residuals above this, in the units of the constraint, are pointed out.
NOTICEABLE = 1e-2

# Rows of an adaptive run; one of more steps is made again with more rows.
ROWS = 501
MOST_ROWS = 20_000

SOLVERS = {
    "dopri8": diffrax.Dopri8,
    "dopri5": diffrax.Dopri5,
    "tsit5": diffrax.Tsit5,
    "rk4": RK4,
    "heun": diffrax.Heun,
    "euler": diffrax.Euler,
    "kvaerno5": diffrax.Kvaerno5,
}


def run(options) -> int:
    """Run the command; 0 if the simulation reached its end, 1 if it stopped early."""
    model = get_model(options.model)
    system = model.system()
    dtype = jnp.dtype(options.dtype)
    start = State(*system.start(), system.actuators())
    start = start if model.departure is None else model.departure(start)
    state = jax.tree.map(lambda x: jnp.asarray(x, dtype), start)
    formulation = chosen_formulation(model, options, *constraint_counts(system, state))
    t1 = model.t1 if options.t1 is None else options.t1
    controller = chosen_controller(model, system, options.uncontrolled)
    out = output_folder(options.out, model.name)
    began = time.perf_counter()

    def run_with(saveat) -> Trajectory:
        return simulate(
            system,
            formulation,
            state,
            t1=t1,
            dt=options.dt,
            solver=SOLVERS[options.solver](),
            saveat=saveat,
            controller=controller,
            # A kernel shows no progress; it is done before a bar would be of use.
            progress=options.progress and options.backend != "native",
            backend=options.backend,
            throw=False,
            work=True,
        )

    trajectory = _with_enough_rows(run_with, t1, options.dt)
    good = bool(trajectory.success)
    seconds = time.perf_counter() - began
    print(_report(trajectory, model, seconds, options.dt), flush=True)
    _draw(trajectory, out)
    write_json(out / "simulation.json", _result(trajectory, model, options, seconds))
    print(f"\nplots and simulation.json are in {out}")
    return 0 if good else 1


def _with_enough_rows(run_with, t1: float, dt: float | None) -> Trajectory:
    """A run with at least as many rows as steps, so that no oscillation falls between them."""
    if dt is not None:
        return run_with(None)  # all steps are rows
    trajectory = run_with(diffrax.SaveAt(ts=jnp.linspace(0.0, t1, ROWS)))
    steps = int(trajectory.stats["num_steps"])
    if steps <= ROWS:
        return trajectory
    return run_with(diffrax.SaveAt(ts=jnp.linspace(0.0, t1, min(2 * steps, MOST_ROWS) + 1)))


def _largest(values) -> float:
    values = np.abs(np.asarray(values))
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _judged(trajectory: Trajectory, model) -> np.ndarray:
    """Sizes of what is to be kept, zero where it need not hold.

    Where the start departs from a program on purpose, only the last tenth of the time counts.
    """
    found = np.nan_to_num(np.abs(np.asarray(_residuals(trajectory)[1])))
    ts = np.asarray(trajectory.ts)
    late = ts > (-np.inf if model.departure is None else 0.9 * float(trajectory.final_time))
    return np.where(late[:, None], found, 0.0)


def _warning(trajectory: Trajectory, model) -> str:
    level, _, get_name = _residuals(trajectory)
    found = _judged(trajectory, model)
    row, column = np.unravel_index(np.argmax(found), found.shape)
    return (
        f"WARNING: constraint {get_name(int(column))!r} is violated by {found[row, column]:.3g} at "
        f"{level} level at "
        f"t = {float(trajectory.ts[row]):.6g} s. The run reached its end, but not on the "
        "constraints: take a smaller step, tune the gains, or check that the constraints can be "
        "satisfied then."
    )


def _residuals(trajectory: Trajectory):
    """Level, residuals and names of what is to be kept.

    The program of a servo-constraint, if there is one; else the constraints at position level, or
    at velocity level where there are no position constraints.
    """
    violation, names = trajectory.violation, trajectory.system.labels().constraint
    if isinstance(trajectory.controller, ServoConstraint):
        return "program", program_residuals(trajectory), trajectory.controller.names.__getitem__
    if violation.phi.shape[-1]:
        return "position", violation.phi, names
    return "velocity", violation.phi_dot, names


def _figures(trajectory: Trajectory) -> dict[str, float]:
    energy, work = trajectory.energy, sum(trajectory.work)
    violation = trajectory.violation
    program = {}
    if isinstance(trajectory.controller, ServoConstraint):
        program["largest |f| of the program"] = _largest(program_residuals(trajectory))
    return {
        "reached [s]": float(trajectory.final_time),
        "steps": int(trajectory.stats["num_steps"]),
        "largest |phi|": _largest(violation.phi),
        "largest |d(phi)/dt|": _largest(violation.phi_dot),
        **program,
        "energy at the start [J]": float(energy[0]),
        "largest energy change [J]": _largest(energy - energy[0]),
        "largest error of the power balance [J]": _largest(energy - energy[0] - work),
    }


def diagnosed(trajectory: Trajectory, dt: float | None) -> list[str]:
    """Warnings of near-singular passages and of an energy that is off, after a good run."""
    run = trajectory
    tolerance = tolerance_of(None, run.ts.dtype) if dt is None else None
    return warnings_of(run.system, run.formulation, run.controller, rows_of(run, tolerance))


def _report(trajectory: Trajectory, model, seconds: float, dt: float | None) -> str:
    formulation, control = type(trajectory.formulation).__name__, _control(trajectory, model)
    head = f"{model.name}: {model.summary}\n{formulation}{control}, {seconds:.1f} s"
    figures = _figures(trajectory)
    if bool(trajectory.result == diffrax.RESULTS.nonfinite):
        # Before its overflow a run that blew up is finite, but nothing to quote.
        figures = {name: figures[name] for name in ("reached [s]", "steps")}
    lines = [head, "", table(("", "value"), list(figures.items()))]
    if not bool(trajectory.success):
        lines += ["", f"FAILED: {describe_failure(trajectory)}"]
        return "\n".join(lines)
    if _largest(_judged(trajectory, model)) > NOTICEABLE:
        lines += ["", _warning(trajectory, model)]
    lines += [line for text in diagnosed(trajectory, dt) for line in ("", f"WARNING: {text}")]
    return "\n".join(lines)


def _control(trajectory: Trajectory, model) -> str:
    """What the run is under; models that have no controller need no word on it."""
    if trajectory.controller is None:
        return "" if model.controller is None else ", without its controller"
    return f" under {type(trajectory.controller).__name__}"


def _draw(trajectory: Trajectory, out: Path) -> None:
    # Loaded when the numbers stand on the screen: drawing takes as long again.
    from jaxdae.plotting import plot_energy, plot_histories, save_figure

    quantities = ("q", "v") if trajectory.controller is None else ("q", "v", "u")
    save_figure(plot_histories(trajectory, quantities=quantities), out / "histories.png")
    save_figure(_off(trajectory), out / "violation.png")
    save_figure(plot_energy(trajectory, work=True), out / "energy.png")


def _off(trajectory: Trajectory):
    """Violation of the constraints, or of a program where that is all there is."""
    from jaxdae.plotting import plot_series, plot_violation

    if trajectory.violation.phi_dot.shape[-1] or trajectory.controller is None:
        return plot_violation(trajectory)
    level, found, get_name = _residuals(trajectory)
    if level != "program":
        return plot_violation(trajectory)
    columns = {get_name(i): np.abs(np.asarray(x)) for i, x in enumerate(found.T)}
    return plot_series(trajectory.ts, {"|f| of the program": columns}, log=["|f| of the program"])


def _result(trajectory: Trajectory, model, options, seconds: float) -> dict[str, Any]:
    last, controller = trajectory.final_state, trajectory.controller
    return {
        "jaxdae": __version__,
        "model": model.name,
        "source": model.source,
        "formulation": repr(trajectory.formulation),
        "controller": None if controller is None else type(controller).__name__,
        "solver": options.solver,
        "dt": options.dt,
        "dtype": options.dtype,
        "success": bool(trajectory.success),
        "failure": None if bool(trajectory.success) else describe_failure(trajectory),
        "seconds": seconds,
        "warnings": diagnosed(trajectory, options.dt) if bool(trajectory.success) else [],
        "final": {"t": trajectory.final_time, "q": last.q, "v": last.v},
        **_figures(trajectory),
    }
