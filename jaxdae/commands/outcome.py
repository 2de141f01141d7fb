"""The run that a command asks for: its rows as plain arrays, and what is found of it."""

import contextlib
import threading
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.commands.start import chosen_start
from jaxdae.control.base import offers_of
from jaxdae.diagnosis.diagnose import diagnose
from jaxdae.diagnosis.findings import Findings
from jaxdae.diagnosis.passages import passages_along
from jaxdae.models import get_model, Model
from jaxdae.results.readings import read_rows
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import integrated, prepare
from jaxdae.simulation.choices import make_solver
from jaxdae.simulation.problem import default_tolerance, MAX_STEPS, Method, Problem, START_TOLERANCE
from jaxdae.simulation.run import backend_of
from jaxdae.systems.checks import constraint_counts

# Rows of an adaptive run; one of more steps is made again with more rows.
ROWS = 501
MOST_ROWS = 20_000

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


def simulated(options) -> Outcome:
    """Make the run that a command asks for.

    Args:
        options: of `jaxdae simulate`.

    Raises:
        ValueError: for what does not fit.
    """
    model = get_model(options.model)
    with _settings_kept():
        asked = _arguments(model, options)
        # Imports wait for files, and not all of what follows is Python.
        pictures = ("jaxdae.plotting.histories",)
        threading.Thread(target=import_module, args=pictures, daemon=True).start()

        def run_with(saveat) -> tuple[Problem, Method, Trajectory]:
            problem, method = prepare(**asked, saveat=saveat)
            return problem, method, integrated(problem, method)

        problem, method, run = with_enough_rows(run_with, asked["t1"], asked["dt"])
        findings = diagnose(problem, method, run)
        if findings.failure is not None:
            findings = findings._replace(passages=_passed(run))
        program = offers_of(run.controller)
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
    """Whether a run starts off its program on purpose; what has none has nothing to depart from.

    Args:
        program: names of its constraints.
        model: entry of the registry.
        given: values of the start, `None` for none; any other start departs from a program.
    """
    return program is not None and (model.departure is not None or bool(given))


def _passed(run: Trajectory) -> tuple:
    """Near-singular positions along the rows that a failed run reached."""
    ts, states = np.asarray(run.ts), jax.device_get(run.states)
    count = int(np.logical_and.accumulate(np.isfinite(ts)).sum())
    if count < 2:
        return ()
    reached = SimpleNamespace(q=states.q[:count], v=jax.device_get(run.coordinate_rates)[:count])
    return tuple(passages_along(run.system, run.formulation, ts[:count], reached)[0])


def _program(run: Trajectory, t, y) -> Any:
    state = run.formulation.recover(run.system, t, y)
    program: Any = offers_of(run.controller).program
    return program(t, state.q, state.v)


def _arguments(model: Model, options) -> dict[str, Any]:
    """Those of `simulate`."""
    system = model.system()
    dtype = jnp.dtype(options.dtype)
    state = chosen_start(model, system, options.start, dtype)
    formulation = chosen_formulation(model, options, *constraint_counts(system, state))
    controller = chosen_controller(model, system, options.uncontrolled)
    # Adaptive steps give theirs to the iterations of implicit methods.
    tolerance = None if options.dt is None else default_tolerance(dtype)
    solver = make_solver(options.solver, tolerance)
    adjoint, none = diffrax.RecursiveCheckpointAdjoint(), diffrax.NoProgressMeter()
    method = Method(solver, None, None, adjoint, none, max_steps=1, work=True)
    by_kernel = (
        options.backend != "plain" and backend_of("native").obstacle(formulation, method) is None
    )
    # A kernel shows no progress; it is done before a bar would be of use.
    progress = options.progress and not by_kernel
    # Its code runs once, in less time than optimizing it takes.
    jax.config.update(_QUICKLY, by_kernel or jax.config.values[_QUICKLY])
    return {
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


def with_enough_rows(run_with: Callable[[Any], tuple], t1: float, dt: float | None) -> tuple:
    """A run with at least as many rows as steps, so that no oscillation falls between them.

    Args:
        run_with: makes the run from a `SaveAt`, or `None` for its default; the run comes last.
        t1: end time [s].
        dt: step [s]; `None` for adaptive steps.
    """
    if dt is not None:
        return run_with(None)  # all steps are rows
    made = run_with(diffrax.SaveAt(ts=jnp.asarray(np.linspace(0.0, t1, ROWS))))
    steps = int(made[-1].stats["num_steps"])
    if steps <= ROWS:
        return made
    ts = np.linspace(0.0, t1, min(2 * steps, MOST_ROWS) + 1)
    return run_with(diffrax.SaveAt(ts=jnp.asarray(ts)))
