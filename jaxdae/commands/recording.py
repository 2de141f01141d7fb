"""A run of a ready system: one compiled program gives its rows and all that is read of them."""

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.commands import kept
from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.commands.record import Record, Words
from jaxdae.commands.start import chosen_start
from jaxdae.control.base import control_input, offers_of
from jaxdae.diagnosis.diagnostics import (
    judged,
    passages_along,
    read_row,
    Row,
    rows_of,
    tolerance_of,
)
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.diagnosis.passages import AROUND, near, Passage
from jaxdae.diagnosis.review import reviewed
from jaxdae.kernels.llvm import machine_code
from jaxdae.models import get_model, Model
from jaxdae.results.about import PLACES, RATES
from jaxdae.results.drawing import traced
from jaxdae.results.readings import read_rows
from jaxdae.results.snapshot import result_names
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.simulation.choices import make_solver
from jaxdae.simulation.problem import default_tolerance, MAX_STEPS, Method, Problem, START_TOLERANCE
from jaxdae.simulation.run import backend_of, run as integrated
from jaxdae.systems import constraint_residuals
from jaxdae.systems.checks import constraint_counts

# Rows of an adaptive run; one of more steps is made again with more rows.
ROWS = 501
MOST_ROWS = 20_000

_QUICKLY = "jax_disable_most_optimizations"
_NONFINITE: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix


class Made(NamedTuple):
    """A run, and the program that made it.

    Args:
        trajectory: of concrete arrays.
        read: `Record.rows` and `Record.end`, with their names behind `rows.` and `end.`.
        survey: what the diagnostics read of the rows.
        drawing: what joins the points of the system, `None` where it declares none.
        program: of the run, `None` where it cannot be kept.
    """

    trajectory: Trajectory
    read: dict[str, np.ndarray]
    survey: Row
    drawing: dict[str, Any] | None
    program: kept.Program | None

    @property
    def stats(self) -> dict[str, Any]:
        """Numbers of steps."""
        return self.trajectory.stats


def record(options) -> tuple[Record, kept.Program | None]:
    """Make the run that a command asks for.

    Args:
        options: of `jaxdae simulate`.

    Returns:
        The run, and its program, `None` where that cannot be kept.

    Raises:
        ValueError: for what does not fit.
    """
    model = get_model(options.model)
    with _noted() as announced, machine_code.remembering() as kernels, _settings_kept():
        asked = _arguments(model, options)
        kernels = kernels if options.keep else None
        # Imports wait for files, and not all of what follows is Python.
        pictures = ("jaxdae.plotting.histories",)
        threading.Thread(target=import_module, args=pictures, daemon=True).start()
        made = with_enough_rows(
            lambda saveat: _made(*prepare(**asked, saveat=saveat), kernels),
            asked["t1"],
            asked["dt"],
        )
        words = _words(made, model, asked["dt"], asked["solver"])
        words = words._replace(departs=departs(words, model, options.start))
    return Record.of(made.read, words._replace(announced=tuple(announced))), made.program


@contextlib.contextmanager
def _settings_kept():
    """How JAX compiles is chosen for the run; afterwards it is what it was."""
    before = jax.config.values[_QUICKLY]
    try:
        yield
    finally:
        jax.config.update(_QUICKLY, before)


def departs(words: Words, model: Model, given: dict[str, float] | None) -> bool:
    """Whether a run starts off its program on purpose; what has none has nothing to depart from.

    Args:
        words: with the names of the program.
        model: entry of the registry.
        given: values of the start, `None` for none; any other start departs from a program.
    """
    return words.program is not None and (model.departure is not None or bool(given))


def _words(made: Made, model: Model, dt: float | None, solver) -> Words:
    run, success = made.trajectory, bool(made.trajectory.success)
    controller = run.controller
    labels, passed = run.system.labels(), _passed(made)
    return Words(
        formulation=type(run.formulation).__name__,
        settings=repr(run.formulation),
        controller=None if controller is None else type(controller).__name__,
        uncontrolled=controller is None and model.controller is not None,
        departs=False,  # which the options decide, too
        program=offers_of(controller).names,
        labels={x.name: getattr(labels, x.name) for x in dataclasses.fields(labels)},
        success=success,
        finite=not bool(run.result == _NONFINITE),
        failure=None if success else describe_failure(run, solver),
        announced=(),
        diagnosed=tuple(_diagnosed(made, dt, passed)) if success else (),
        result=str(result_names(run.result)),
        passages=tuple(near(*passed)),
        drawing=made.drawing,
    )


def _passed(made: Made) -> tuple[list[Passage], float]:
    """Near-singular positions along the rows that were reached; see `passages_along`."""
    run, rows = made.trajectory, made.read
    reached = np.isfinite(rows["rows.ts"]) & np.isfinite(rows["rows.q"]).all(axis=1)
    count = int(np.logical_and.accumulate(reached).sum())
    ts, q, v, jac = (
        x[:count] for x in (*(rows[f"rows.{name}"] for name in ("ts", "q", "v")), made.survey.jac)
    )
    if count < 2 or not np.isfinite(jac).all():
        return [], np.inf
    return passages_along(run.system, run.formulation, ts, SimpleNamespace(q=q, v=v), jac, AROUND)


def _diagnosed(made: Made, dt: float | None, passed: tuple[list[Passage], float]) -> list[str]:
    """Warnings of near-singular passages and of an energy that is off."""
    run = made.trajectory
    tolerance = tolerance_of(None, run.ts.dtype) if dt is None else None
    state = SimpleNamespace(q=made.read["rows.q"], v=made.read["rows.v"])
    # A run that reached its end, from its start on: all rows are there.
    watched = rows_of(run, tolerance)
    return judged(run.system, run.formulation, watched, state, made.survey, passed)


@contextlib.contextmanager
def _noted():
    """What the library warns of is shown, and kept in a list."""
    said, show = [], warnings.showwarning

    def note(message, category, *place):
        if issubclass(category, RuntimeWarning):
            said.append(str(message))
        show(message, category, *place)

    with warnings.catch_warnings():
        warnings.showwarning = note
        yield said


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


def with_enough_rows(run_with: Callable[[Any], Any], t1: float, dt: float | None) -> Any:
    """A run with at least as many rows as steps, so that no oscillation falls between them.

    Args:
        run_with: makes the run from a `SaveAt`, or `None` for its default.
        t1: end time [s].
        dt: step [s]; `None` for adaptive steps.
    """
    if dt is not None:
        return run_with(None)  # all steps are rows
    made = run_with(diffrax.SaveAt(ts=jnp.asarray(np.linspace(0.0, t1, ROWS))))
    steps = int(made.stats["num_steps"])
    if steps <= ROWS:
        return made
    ts = np.linspace(0.0, t1, min(2 * steps, MOST_ROWS) + 1)
    return run_with(diffrax.SaveAt(ts=jnp.asarray(ts)))


def _made(problem: Problem, method: Method, kernels: dict[str, machine_code.Kernel] | None) -> Made:
    arrays, static = eqx.partition(problem, eqx.is_array)
    inputs, structure = jax.tree.flatten(arrays)
    form: dict[str, Any] = {}

    def program(*inputs):
        problem = eqx.combine(structure.unflatten(inputs), static)
        run = Trajectory.of(problem, method, integrated(problem, method))
        rows, survey = read_rows(run, _read)
        picture, form["drawing"] = _drawn(run, rows)
        rows |= picture
        result, form["rest"] = eqx.partition((_ends(run) | rows, survey, run), eqx.is_array)
        leaves, form["structure"] = jax.tree.flatten(result)
        return leaves

    lowered, compiled = _compiled(program, inputs, apart=kernels is not None)
    outputs = compiled(*inputs)
    read, survey, run = eqx.combine(form["structure"].unflatten(outputs), form["rest"])
    read, survey = jax.device_get((read, survey))
    result = None if kernels is None else kept.program_of(lowered, compiled, inputs, read, kernels)
    run = reviewed(problem, method, run, throw=False)
    return Made(run, read, survey, form["drawing"], result)


def _drawn(run: Trajectory, rows: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Positions of the points of the system with their velocities, and what joins them."""
    drawing = traced(run.system, run.ts, rows["rows.q"], rows["rows.v"])
    if drawing is None:
        return {}, None
    places = {PLACES: drawing.places, RATES: drawing.rates}
    return {f"rows.{name}": x for name, x in places.items()}, drawing.words


def _compiled(program: Callable, inputs: list, *, apart: bool) -> tuple[Any, Any]:
    if apart:
        return kept.compiled_apart(program, *inputs)
    lowered = jax.jit(program).lower(*inputs)
    return lowered, lowered.compile()


def _ends(run: Trajectory) -> dict[str, Any]:
    """What is not read of each row by itself."""
    last = run.last_state
    results = {"end.t": run.final_time, "end.q": last.q, "end.v": last.v, "end.w": last.w}
    results["end.steps"] = run.stats["num_steps"]
    return results | {"rows.ts": run.ts, "rows.work": jnp.stack(run.work, axis=-1)}


def _read(run: Trajectory, t, y) -> tuple[dict[str, Any], Row]:
    """Of one state: what is shown, and what the diagnostics need."""
    system, controller = run.system, run.controller
    state = run.formulation.recover(system, t, y)
    u = control_input(controller, t, state)
    survey = read_row(system, None if controller is None else lambda *_: u, t, state)
    residual = constraint_residuals(system, t, state.q, state.v)
    results = {
        "q": state.q,
        "v": state.v,
        "w": state.w,
        "phi": residual.phi,
        "phi_dot": residual.phi_dot,
        "energy": survey.energy,
        "kinetic_energy": system.kinetic_energy(t, state.q, state.v),
        "potential_energy": survey.potential,
        "multipliers": run.formulation.multipliers(system, t, y, u),
    }
    if u is not None:
        results["u"] = u
    program = offers_of(controller).program
    if program is not None:
        results["program"] = program(t, state.q, state.v)
    return {f"rows.{name}": x for name, x in results.items()}, survey
