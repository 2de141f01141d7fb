"""Runs as code for programs without Python: object files with C headers, WebAssembly, FMUs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.control.base import AbstractDynamicController, closed_loop
from jaxdae.exports.held_input import HeldInput
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.base import holding_rank
from jaxdae.kernels.export.interface import identifiers, Interface, structure, StructureField
from jaxdae.kernels.llvm import machine_code
from jaxdae.names import unknown_name
from jaxdae.results import derived_quantities
from jaxdae.runs import prepare
from jaxdae.simulation import backends
from jaxdae.simulation.kernel_plan import KernelPlan, planned
from jaxdae.simulation.native import unsuited
from jaxdae.simulation.plain import step_control
from jaxdae.simulation.problem import MAX_STEPS, Method, Problem, START_TOLERANCE, Times
from jaxdae.solvers.projected import between_steps, parts_of
from jaxdae.solvers.sampled import SampledEnds
from jaxdae.storage.files import replace_file
from jaxdae.systems import State, System
from jaxdae.version import __version__

# Words of C and C++ that no function can have for a name, and functions of the C library that the
# code brings along.
_RESERVED = """
alignas alignof and asm auto bool break case catch char class const continue default delete do
double else enum explicit export extern false float for friend goto if inline int long main mutable
namespace new not nullptr operator or private protected public register restrict return short
signed sizeof static struct switch template this throw true try typedef typeid typename union
unsigned using virtual void volatile while xor memcpy memset fma fmaf
and_eq bitand bitor char16_t char32_t char8_t co_await co_return co_yield compl concept const_cast
consteval constexpr constinit decltype dynamic_cast noexcept not_eq or_eq reinterpret_cast
requires static_assert static_cast thread_local typeof wchar_t xor_eq
"""


# Steps end at multiples of the period that is compiled, and calls may give another one.
SAMPLED = "a compiled run has no controller that is sampled"


# What can be read of a state of a run: in words, and `read(parts, t, y)`.
_READ: dict[str, tuple[str, Callable]] = {
    "q": ("coordinates", lambda *x: derived_quantities.state_of(*x).q),
    "v": ("velocities", lambda *x: derived_quantities.state_of(*x).v),
    "w": ("actuator states", lambda *x: derived_quantities.state_of(*x).w),
    "u": ("control input", derived_quantities.control),
    "multipliers": ("multipliers", derived_quantities.multipliers),
    "phi": ("residuals of position constraints", lambda *x: derived_quantities.violation(*x).phi),
    "phi_dot": ("residuals of velocities", lambda *x: derived_quantities.violation(*x).phi_dot),
    "energy": ("generalized energy [J]", derived_quantities.energy),
    "kinetic_energy": ("kinetic energy [J]", derived_quantities.kinetic_energy),
    "potential_energy": ("potential energy [J]", derived_quantities.potential_energy),
}
STATE_QUANTITIES = ("q", "v", "w")


class ExportedFiles(NamedTuple):
    """Files of an exported run.

    Args:
        code: object file, module of WebAssembly, or Functional Mock-up Unit.
        header: of C; of a module of WebAssembly the module of JavaScript; of a Functional Mock-up
            Unit the same file, which has its description.
    """

    code: Path
    header: Path


def export(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    directory: str | Path,
    name: str,
    target: str = "x86-64-v2",
    t0: float = 0.0,
    t1: float,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | AbstractDynamicController | None = None,
    inputs: Any = None,
    start_tolerance: float | None = START_TOLERANCE,
    max_steps: int = MAX_STEPS,
    quantities: Sequence[str] = (),
    events: Any = (),
) -> ExportedFiles:
    """Write a run of `simulate` as code for programs without Python.

    The code takes start, parameters and times as numbers, and gives the numbers of `simulate` to
    round-off. Inputs are the start `q`, `v`, `w`, and every array and floating-point number of
    system, formulation and controller, named by its place: `system.mass` is `system_mass`.
    Everything else is fixed: functions, integers, settings of solver and step control, the number
    of steps and of rows, the choice of a solve for the constraints, and the direction of time. The
    code does not check a start: one off the constraints is integrated as it is.

    - `"x86-64-v2"`, `-v3`, `-v4` and `"aarch64"`: `NAME.o`, an object file (ELF) ready for the
      linker, and `NAME.h`. It needs no library and keeps no memory but its stack.
    - `"wasm32"`: `NAME.wasm` and `NAME.js`, a module for pages that names inputs and results.

    - `"fmi3"` and `"fmi2"`: `NAME.fmu`, a Functional Mock-up Unit (FMI 3.0 or 2.0) for model
      exchange and co-simulation, with the equations of motion, one step of the solver of length
      `dt`, and derivatives of both: `df = A dx + B du + C dp` by `GetDirectionalDerivative`, and
      its transpose by `GetAdjointDerivative` of FMI 3.0 (Modelica Association, Functional Mock-up
      Interface Specification). It has a library for this machine, and C sources.

    WebAssembly needs the linker of the extra `export`, an FMU a C compiler, which that brings too.

    Args:
        system: what moves.
        formulation: how its constraints are enforced.
        state: start; the code takes others of its precision and shapes.
        directory: folder for the files, which is made.
        name: of the function and the files, an identifier of C.
        target: the machine, or the version of FMI.
        t0: start time [s].
        t1: end time [s]; of an FMU that of the experiment which it proposes.
        dt: step [s], as of `simulate`; of an FMU the longest step in co-simulation.
        solver: an explicit Runge-Kutta method of diffrax, or `jaxdae.solvers.RK4`.
        stepsize_controller: `diffrax.PIDController`, the default where there is no `dt`.
        saveat: which states are saved, as of `simulate`; the end is given in any case.
        controller: `u = controller(t, q, v, w)`, as of `simulate`.
        inputs: in place of a controller: the control input `u` as the system takes it, which
            becomes an input with these values at first, and stays as it is during a run or step.
        start_tolerance: largest constraint residual of the start given here, as of `simulate`. An
            FMU holds its own starts to it.
        max_steps: largest number of adaptive steps.
        quantities: what each state has beside `q`, `v`, `w`: `"u"`, `"multipliers"`, `"phi"` and
            `"phi_dot"` (residuals of the constraints), `"energy"`, `"kinetic_energy"`,
            `"potential_energy"`.
        events: none; runs with events are refused.

    Returns:
        The files.

    Raises:
        BackendError: for a run that cannot be a kernel or has events, or where llvmlite is not
            installed.
        ValueError: for a target, name or quantity that does not exist, or arguments that `simulate`
            refuses.
        ImportError: where the linker or compiler is not installed.
        OSError: where the files cannot be written.
    """
    from jaxdae.kernels.export import objects

    refuse_events("export", events)
    fmi = {"fmi2": 2, "fmi3": 3}.get(target)
    machine = None if fmi else objects.export_target(target)
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in _RESERVED.split():
        raise ValueError(
            f"name is {name!r}; a function of C has letters, digits and underscores, begins with a "
            "letter, and is no word of the language or function that moves its memory."
        )
    controller = _with_inputs(controller, inputs)
    check_quantities(quantities, controller)
    if machine is None:
        _check_mockup(target, dt, saveat, stepsize_controller)
        saveat = diffrax.SaveAt(t1=True)
    else:
        objects.check_linker(machine)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    problem, method = prepare(
        system, formulation, state, t0=t0, t1=t1 if fmi is None else t0 + dt, dt=dt,  # pyright: ignore
        solver=solver, stepsize_controller=stepsize_controller, saveat=saveat,
        controller=controller, adjoint=None, backend="plain", progress=False, throw=False,
        work=False, start_tolerance=start_tolerance, max_steps=max_steps,
    )  # fmt: skip
    try:
        reason = machine_code.without_llvm() or unsuited(problem.formulation, method)
        if reason is not None:
            raise backends.UnsuitedError(reason)
        if machine is None:
            from jaxdae.exports.functional_mockup import mockup
            from jaxdae.kernels.export.functional_mockup import archive

            model = mockup(
                problem, method, state, name, tuple(quantities), float(dt), (t0, t1),  # pyright: ignore
                start_tolerance, _about_system(problem, method),
            )  # fmt: skip
            path = folder / f"{name}.fmu"
            replace_file(path, archive(model, fmi))  # pyright: ignore
            return ExportedFiles(path, path)
        exported = exported_run(problem, method, state, name, tuple(quantities))
    except backends.UnsuitedError as error:
        raise backends.BackendError(
            "the run cannot be exported, because no kernel can be made of it: "
            f"{str(error).rstrip('.')}."
        ) from None
    contents = objects.files(exported, machine, _about(problem, method), statuses())
    paths = {suffix: folder / f"{name}.{suffix}" for suffix in contents}
    for suffix, content in contents.items():
        replace_file(paths[suffix], content)
    return ExportedFiles(*paths.values())


def _with_inputs(controller, inputs: Any):
    """The controller, or one that hands on inputs."""
    if inputs is None:
        return controller
    if controller is not None:
        raise ValueError(
            "export is given a controller and inputs, and the control input can be one of both "
            "only: add the inputs within the controller, as fields of it, or leave one out."
        )
    return HeldInput(jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), inputs))


def _check_mockup(target: str, dt, saveat, stepsize_controller) -> None:
    """That an FMU can hold a run with these settings."""
    from jaxdae.kernels.export.functional_mockup import check_compiler

    if dt is None or stepsize_controller is not None:
        raise backends.BackendError(
            f"target {target!r} holds steps of one length, for co-simulation, and the run has "
            "adaptive steps: give dt and no stepsize_controller. In model exchange the importer's "
            "solver chooses its own steps."
        )
    if saveat is not None:
        raise ValueError(
            f"target {target!r} saves nothing: whoever runs an FMU chooses when to read its "
            "outputs. Leave saveat out."
        )
    if not 0.0 < dt < float("inf"):
        raise ValueError(f"target {target!r} runs forward in time, and dt is {dt:g} s.")
    check_compiler()


def check_quantities(quantities: Sequence[str], controller) -> None:
    """That a state has these quantities beside coordinates, velocities and actuator states."""
    for name in quantities:
        if name not in _READ or name in STATE_QUANTITIES:
            known = [x for x in _READ if x not in STATE_QUANTITIES]
            raise ValueError(unknown_name("quantity", str(name), known))
        if name == "u" and controller is None:
            raise ValueError("there is no control input u without a controller; give one.")


def statuses() -> dict[str, int]:
    """How runs end, by name."""
    from jaxdae.kernels.export.entry import INVALID_TIMES

    known: Any = diffrax.RESULTS
    ends = (known.successful, known.max_steps_reached, known.nonfinite, known.dt_min_reached)
    names = ("successful", "max_steps_reached", "nonfinite", "dt_min_reached")
    codes = {x: int(end._value) for x, end in zip(names, ends, strict=True)}
    return codes | {"invalid_times": INVALID_TIMES}


def _about_system(problem: Problem, method: Method) -> str:
    inner = getattr(problem.system, "inner", problem.system)
    return (
        f"{type(inner).__name__}, {type(problem.formulation).__name__}, steps of "
        f"{type(parts_of(method.solver).method).__name__}, by jaxdae {__version__}."
    )


def _about(problem: Problem, method: Method) -> list[str]:
    system, formulation, *_ = problem
    steps = "adaptive" if problem.times.grid is None else f"{len(problem.times.grid) - 1} fixed"
    return [
        f"A run of {type(system).__name__}, {type(formulation).__name__}, with {steps} steps of "
        f"{type(parts_of(method.solver).method).__name__}, by jaxdae {__version__}.",
        "",
        "The start is integrated as it is: whether it satisfies the constraints is not checked.",
        "All arrays are row-major. Times are in seconds, other units those of the declaration.",
    ]


class Inputs(NamedTuple):
    """What an exported run takes of each member."""

    start: State
    parts: tuple

    @classmethod
    def of(cls, problem: Problem, state: State) -> "Inputs":
        """Those of a problem whose start was declared as a state."""
        system, controller = problem.system, problem.controller
        if problem.state.w.size != state.w.size:
            system, controller = system.inner, system.controller  # pyright: ignore
        return cls(state, (system, problem.formulation, controller))

    def fields(self) -> list[StructureField]:
        """All arrays, by their places."""
        named = [("q", self.start.q), ("v", self.start.v), ("w", self.start.w)]
        for label, part in zip(("system", "formulation", "controller"), self.parts, strict=True):
            leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(part, eqx.is_array))
            # A run backward in time has the inputs of one forward (`InDirection`).
            place = lambda path: re.sub(r"(\.stabilization)+", r"\1", jax.tree_util.keystr(path))  # noqa: E731
            head = "" if isinstance(part, HeldInput) else label
            named += [(head + place(path), x) for path, x in leaves]
        names = identifiers(label for label, _ in named)
        return [
            StructureField(name, label, x.shape, np.asarray(x))
            for name, (label, x) in zip(names, named, strict=True)
        ]

    def replaced(self, arrays) -> "Inputs":
        """The same with other arrays."""
        q, v, w, *leaves = arrays
        some, static = eqx.partition(self.parts, eqx.is_array)
        parts = jax.tree.unflatten(jax.tree.structure(some), leaves)
        return Inputs(State(q, v, w), eqx.combine(parts, static))


def time_fields(times: Times, saved) -> list[StructureField]:
    """Times as numbers that a run takes."""
    if times.grid is None:
        ends = ("t0", "start [s]", times.start), ("t1", "end [s]", times.end)
        fields = [StructureField(name, about, (), x) for name, about, x in ends]
    else:
        grid = np.asarray(times.grid)
        fields = [StructureField("grid", "ends of the steps [s]", grid.shape, grid)]
    if times.first_step is not None:
        fields.append(StructureField("dt0", "first step [s]", (), times.first_step))
    if saved is not None and np.size(saved):
        saved = np.asarray(saved)
        fields.append(
            StructureField("saved", "times that are saved [s], in order", saved.shape, saved)
        )
    return fields


def refuse_events(who: str, events: Any) -> None:
    """Refuse events, which end or change a run between two steps."""
    if events is None or (isinstance(events, tuple | list) and not events):
        return
    raise backends.BackendError(
        f"{who} makes no runs with events: each is searched for them and goes on behind them in "
        "parts, and their functions hold parameters of their own, which would not be those of a "
        "call. Use jax.jit of simulate(..., events=..., throw=False)."
    )


class PlannedRun(NamedTuple):
    """A run with its kernel, which is not made yet.

    Args:
        problem: what is integrated, with the rank of its constraints held.
        plan: the kernel.
        saved: times that are saved, or `None`.
    """

    problem: Problem
    plan: KernelPlan
    saved: Any


def planned_run(problem: Problem, method: Method) -> PlannedRun:
    """The kernel of a run that is called with other starts and parameters.

    Raises:
        UnsuitedError: for a run that no kernel can be.
    """
    times = problem.times
    formulation = holding_rank(problem.formulation, problem.system, times.start, problem.state)
    problem = problem._replace(formulation=formulation)
    sub: Any = diffrax.SubSaveAt(ts=times.saved) if method.saveat is None else method.saveat.subs
    y0 = (formulation.init(problem.system, times.start, problem.state), None)
    if isinstance(method.solver, SampledEnds):
        raise backends.UnsuitedError(SAMPLED)
    plan, _ = planned(problem, method, sub, y0)
    if plan.step_ends:
        raise backends.UnsuitedError(
            "adaptive steps end at times known beforehand, for which compiled runs have no argument"
        )
    return PlannedRun(problem, plan, sub.ts if plan.saving.times else None)


def exported_run(problem: Problem, method: Method, state: State, name: str, quantities):
    """A run as a kernel, and programs of what surrounds it."""
    from jaxdae.kernels.export.entry import Exported
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError

    problem, plan, saved = planned_run(problem, method)
    run, inputs = plan.integration(counted=False), Inputs.of(problem, state)
    projection = between_steps(method.solver)
    names = (*STATE_QUANTITIES, *quantities)
    try:
        begin = _begin(inputs, plan, method)
        read_end = row_program("read_end", names, plan, None)
        between = projection is not None and plan.saving.times
        read_row = row_program("read_row", names, plan, projection) if between else read_end
    except UnsupportedOperationError as error:
        raise backends.UnsuitedError(
            f"the start or the states of {type(problem.formulation).__name__} cannot be computed by a "
            f"kernel: {error}"
        ) from None
    given = time_fields(problem.times, saved)
    shapes = jax.eval_shape(lambda *x: read_quantities(names, plan, None, *x), *of_a_state(plan))
    states = [StructureField(x, _READ[x][0], y.shape) for x, y in zip(names, shapes, strict=True)]
    interface = Interface(
        name, np.dtype(plan.dtype), structure("inputs", inputs.fields()),
        structure("times", given), structure("state", states), plan.rows,
    )  # fmt: skip
    direction = 1 if method.direction is None else method.direction
    return Exported(interface, run, begin, read_row, read_end, direction)


def _begin(inputs: Inputs, plan: KernelPlan, method: Method):
    """From times and inputs to start and parameters of the integration."""
    from jaxdae.kernels.tracing.subprograms import Subprogram
    from jaxdae.kernels.tracing.trace import scalarize

    shapes = [jax.ShapeDtypeStruct(x.shape, x.value.dtype) for x in inputs.fields()]
    given = [x for x in shapes if x.size]

    def begin(t0, t1, *some):
        each = iter(some)
        arrays = [next(each) if x.size else jnp.zeros(x.shape, x.dtype) for x in shapes]
        start, (system, formulation, controller) = inputs.replaced(arrays)
        system, start, controller, _ = closed_loop(system, controller, start, t0)
        y0 = formulation.init(system, t0, start)
        parts = (system, formulation, controller)
        control = step_control(method.stepsize_controller, Times(t0, t1)) if plan.adaptive else None
        leaves = jax.tree.leaves(eqx.filter((parts, control), eqx.is_array))
        return [ravel_pytree(y0)[0].astype(plan.dtype), *plan.packing.packed(leaves)]

    time = jax.ShapeDtypeStruct((), plan.dtype)
    return Subprogram("begin_run", scalarize(begin, time, time, *given, loops=True, signed=True))


class _Parts(NamedTuple):
    """Of a run, what quantities are read by."""

    system: Any
    formulation: Any
    controller: Any


def of_a_state(plan: KernelPlan) -> list[jax.ShapeDtypeStruct]:
    """Time, a state of the integration, and its parameters."""
    shapes = (), (plan.states,)
    return [*(jax.ShapeDtypeStruct(x, plan.dtype) for x in shapes), *plan.shapes]


def read_quantities(names, plan: KernelPlan, projection, t, y, *parameters) -> list[jax.Array]:
    """Quantities of a state, which a projection may take onto the constraints before."""
    parts = _Parts(*plan.combined(plan.packing.unpacked(parameters))[0])
    tree = plan.unravel(y)
    if projection is not None:
        tree = projection.project(t, tree, tuple(parts))
    each = ([*map(jnp.asarray, jax.tree.leaves(_READ[x][1](parts, t, tree[0])))] for x in names)
    return [x[0] if len(x) == 1 else jnp.concatenate([y.ravel() for y in x]) for x in each]


def row_program(name: str, names, plan: KernelPlan, projection):
    """The same as a program of a kernel; `None` where quantities are what is integrated."""
    from jaxdae.kernels.tracing.subprograms import Subprogram
    from jaxdae.kernels.tracing.trace import scalarize

    def read(*x):
        values = read_quantities(names, plan, projection, *x)
        return [jnp.concatenate([y.ravel().astype(plan.dtype) for y in values])]

    program = scalarize(read, *of_a_state(plan), loops=True, signed=True)
    same = np.arange(1, 1 + plan.states)  # nodes of the inputs come first
    return None if np.array_equal(program.outputs, same) else Subprogram(name, program)
