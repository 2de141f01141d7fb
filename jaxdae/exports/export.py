"""Runs as code for programs without Python: object files with C headers, WebAssembly, FMUs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp

from jaxdae.control.base import AbstractDynamicController, ControlledSystem
from jaxdae.exports.functional_mockup import mockup
from jaxdae.exports.held_input import HeldInput
from jaxdae.exports.run_programs import check_quantities, exported_run, refuse_events, statuses
from jaxdae.formulations import AbstractFormulation
from jaxdae.kernels.llvm import machine_code
from jaxdae.runs import prepare
from jaxdae.simulation import backends
from jaxdae.simulation.native import unsuited
from jaxdae.simulation.problem import MAX_STEPS, Method, Problem, START_TOLERANCE
from jaxdae.solvers.projected import parts_of
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
    arrays: bool = False,
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
        arrays: of `"fmi3"`: whether numbers with indices, such as `q[0]` and `q[1]`, are one array
            variable, `q`, as FMI 3.0 has it and not every importer reads. Coordinates with labels
            have names of their own, and stay numbers.

    Returns:
        The files.

    Raises:
        BackendError: for a run that cannot be a kernel or has events, or where llvmlite is not
            installed.
        ValueError: for a target, name or quantity that does not exist, arrays of another target
            than `"fmi3"`, or arguments that `simulate` refuses.
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
    if arrays and fmi != 3:
        raise ValueError(f"arrays=True is of target 'fmi3', and the target is {target!r}.")
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
            from jaxdae.kernels.export.functional_mockup import archive

            model = mockup(
                problem, method, state, name, tuple(quantities), float(dt), (t0, t1),  # pyright: ignore
                start_tolerance, _about_system(problem, method), arrays=arrays,
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


def _names(problem: Problem) -> str:
    """Of the classes of system and formulation."""
    system = problem.system
    inner = system.inner if isinstance(system, ControlledSystem) else system
    return f"{type(inner).__name__}, {type(problem.formulation).__name__}"


def _about_system(problem: Problem, method: Method) -> str:
    return (
        f"{_names(problem)}, steps of "
        f"{type(parts_of(method.solver).method).__name__}, by jaxdae {__version__}."
    )


def _about(problem: Problem, method: Method) -> list[str]:
    steps = "adaptive" if problem.times.grid is None else f"{len(problem.times.grid) - 1} fixed"
    return [
        f"A run of {_names(problem)}, with {steps} steps of "
        f"{type(parts_of(method.solver).method).__name__}, by jaxdae {__version__}.",
        "",
        "The start is integrated as it is: whether it satisfies the constraints is not checked.",
        "All arrays are row-major. Times are in seconds, other units those of the declaration.",
    ]
