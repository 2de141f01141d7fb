"""A run as a function of NumPy arrays, called as machine code and without JAX's dispatch."""

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxdae.control.base import AbstractDynamicController, closed_loop
from jaxdae.diagnosis.failure import SimulationError
from jaxdae.exports.run_programs import (
    check_quantities,
    exported_run,
    Inputs,
    refuse_events,
    SAMPLED,
    statuses,
    time_fields,
)
from jaxdae.formulations import AbstractFormulation
from jaxdae.kernels.export.interface import Interface, structure, StructureField
from jaxdae.kernels.integration.arguments import StepSummary
from jaxdae.names import unknown_name
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.simulation import backends
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.problem import MAX_STEPS, Method, Problem, START_TOLERANCE
from jaxdae.simulation.run import backend_of, run as integrate
from jaxdae.simulation.saving import is_end, is_plain
from jaxdae.solvers.sampled import SampledEnds
from jaxdae.systems import State, System

_RESULT = StepSummary._fields.index("result")


class RunResult:
    """What one call of a compiled run gives, as NumPy arrays.

    Attributes:
        numbers: all of it, as the machine code has written it.
        interface: where what lies in it.
    """

    __slots__ = ("interface", "numbers")

    def __init__(self, numbers: np.ndarray, interface: Interface):
        self.numbers, self.interface = numbers, interface

    @property
    def ts(self) -> Float[np.ndarray, "*batch times"]:
        """Times of the rows [s], `inf` in those that were not reached."""
        return self.interface.outputs.part(self.numbers, "ts")

    @property
    def q(self) -> Float[np.ndarray, "*batch times n"]:
        """Coordinates at these times [m or rad], shape `(times, n)`."""
        return self["q"]

    @property
    def v(self) -> Float[np.ndarray, "*batch times n"]:
        """Velocities at these times, shape `(times, n)`."""
        return self["v"]

    @property
    def w(self) -> Float[np.ndarray, "*batch times k"]:
        """Actuator states at these times, shape `(times, k)`."""
        return self["w"]

    def __getitem__(self, quantity: str) -> np.ndarray:
        """A quantity at the saved times: `q`, `v`, `w`, or one that the run was compiled with."""
        known = self.interface.state.names
        if quantity not in known and quantity != "w":
            raise KeyError(unknown_name("quantity", quantity, known))
        states = self.interface.outputs.part(self.numbers, "states")
        if self.interface.rows == 0:
            states = np.zeros((*states.shape, self.interface.state.size), states.dtype)
        return self.interface.state.part(states, quantity)

    def final(self, quantity: str) -> np.ndarray:
        """The same at the end time, or where the run stopped."""
        final = self.interface.outputs.part(self.numbers, "final")
        return self.interface.state.part(final, quantity)

    @property
    def final_time(self) -> np.ndarray:
        """The last time reached with a finite state [s]."""
        return self.numbers[..., 0]

    @property
    def num_steps(self) -> np.ndarray:
        """Number of steps, rejected ones among them."""
        return self.numbers[..., StepSummary._fields.index("steps")].astype(int)

    @property
    def status(self) -> np.ndarray:
        """How the run ended; 0 where it reached its end."""
        return self.numbers[..., _RESULT].astype(int)

    @property
    def success(self) -> np.ndarray:
        """Whether the run reached its end."""
        return self.numbers[..., _RESULT] == 0.0

    def __repr__(self) -> str:
        rows = f"{self.interface.rows} rows"
        batch = self.numbers.shape[:-1]
        if batch:
            failed = int(np.sum(~self.success))
            return f"RunResult({batch[0]} runs, {rows}, {failed} failed)"
        ended = "reached" if self.success else "FAILED after"
        return f"RunResult({rows}, {ended} t = {float(self.final_time):.6g} s)"


class CompiledRun:
    """A run as a function of NumPy arrays; made by `compile_run`.

    It may be called by several threads at once, and releases Python's lock while it computes.

    Attributes:
        parameters: those that calls may change, by name, with the values of the compilation.
        backend: `"native"` for machine code, `"plain"` for a program of XLA.
        why_not_native: what kept the native backend from serving, or `None`.
    """

    def __init__(self, interface: Interface, program: Any, why_not_native: str | None):
        self._interface, self._program = interface, program
        self.backend = program.backend
        self.why_not_native = why_not_native
        inputs = interface.inputs
        self._inputs = inputs.values(interface.dtype)
        self._times = interface.times.values(interface.dtype)
        self._parameters = {x.name: x for x in inputs.fields if x.name not in ("q", "v", "w")}
        # The start comes first: what a call does is counted in microseconds.
        self._sizes = {name: inputs.length(name) for name in ("q", "v", "w")}
        n, self._n = self._sizes["q"], self._sizes["q"] + self._sizes["v"]
        self._coordinates, self._velocities = slice(n), slice(n, self._n)
        self._state = self._n + self._sizes["w"]
        self._q_shape, self._v_shape = (n,), (self._sizes["v"],)
        self._room = threading.local()

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Parameters that calls may change, by name, with the values of the compilation."""
        return {name: np.asarray(x.value) for name, x in self._parameters.items()}

    def __call__(self, q, v, w=None, *, times=None, throw: bool = True, **parameters) -> RunResult:
        """Integrate one run. The start is taken as it is: whether it is consistent is not checked.

        Args:
            q: coordinates at the start [m or rad], shape `(n,)`.
            v: velocities there, shape `(n,)`.
            w: actuator states there, shape `(k,)`; by default those of the compilation.
            times: first and last time [s]; steps and saved times divide them as those of the
                compilation. By default these.
            throw: whether a run that fails is an error.
            **parameters: others than those of the compilation, by the names in `parameters`.

        Returns:
            `RunResult`.

        Raises:
            SimulationError: when the run fails and `throw` is true.
            ValueError: for shapes that do not fit.
            TypeError: for parameters that there are not.
        """
        inputs, outputs, call = self._buffers()
        if type(q) is not np.ndarray or q.shape != self._q_shape:
            q = self._start("q", q, ())
        if type(v) is not np.ndarray or v.shape != self._v_shape:
            v = self._start("v", v, ())
        inputs[self._coordinates] = q
        inputs[self._velocities] = v
        if w is not None:
            inputs[self._n : self._state] = self._start("w", w, ())
        if parameters:
            self._set(inputs, parameters, ())
        if times is None:
            call()
        else:
            self._program.bound(inputs, self._times_of(times), outputs)()
        if w is not None or parameters:
            inputs[self._n :] = self._inputs[self._n :]
        result = RunResult(outputs.copy(), self._interface)
        if outputs[_RESULT] != 0.0 and throw:
            codes = {code: name for name, code in statuses().items()}
            name = codes.get(int(result.status), f"status {result.status}").replace("_", " ")
            raise SimulationError(
                f"the run stopped at t = {float(result.final_time):.6g} s ({name}); "
                "jaxdae.simulate with this start and these parameters says why."
            )
        return result

    def batch(self, q, v, w=None, *, times=None, **parameters) -> RunResult:
        """Integrate several runs, some in the lanes of a vector register at once, in one thread.

        A run that fails is a value: `RunResult.success` is false for it.

        Args:
            q: coordinates at the starts [m or rad], shape `(members, n)`.
            v: velocities there, shape `(members, n)`.
            w: actuator states there, shape `(members, k)` or `(k,)`.
            times: first and last time [s] of all.
            **parameters: arrays with a leading axis of members, or one value for all.

        Returns:
            `RunResult`, whose arrays have the members first.

        Raises:
            ValueError: for shapes that do not fit.
            TypeError: for parameters that there are not.
        """
        q = np.asarray(q, self._interface.dtype)
        if q.ndim != 2:
            raise ValueError(f"q has shape {q.shape}, must be (members, {self._sizes['q']}).")
        count = (q.shape[0],)
        inputs = np.tile(self._inputs, (*count, 1))
        inputs[:, self._coordinates] = self._start("q", q, count)
        inputs[:, self._velocities] = self._start("v", v, count)
        if w is not None:
            inputs[:, self._n : self._state] = self._start("w", w, count)
        self._set(inputs, parameters, count)
        outputs = np.empty((*count, self._interface.outputs.size), self._interface.dtype)
        self._program.batch(
            inputs, self._times if times is None else self._times_of(times), outputs
        )
        return RunResult(outputs, self._interface)

    def _buffers(self) -> tuple[np.ndarray, np.ndarray, Callable[[], None]]:
        """Of this thread: inputs, outputs, and a call with the times of the compilation."""
        try:
            return self._room.buffers
        except AttributeError:
            inputs = self._inputs.copy()
            outputs = np.empty(self._interface.outputs.size, self._interface.dtype)
            call = self._program.bound(inputs, self._times, outputs)
            self._room.buffers = inputs, outputs, call
            return self._room.buffers

    def _start(self, name: str, value, count: tuple) -> np.ndarray:
        value = np.asarray(value, self._interface.dtype)
        shape = (self._sizes[name],)
        if value.shape not in (shape, (*count, *shape)) or (
            name == "q" and value.shape[:-1] != count
        ):
            raise ValueError(f"{name} has shape {value.shape}, must be {(*count, *shape)}.")
        return value

    def _set(self, inputs: np.ndarray, parameters: dict[str, Any], count: tuple) -> None:
        for name, value in parameters.items():
            if name not in self._parameters:
                raise TypeError(unknown_name("parameter", name, self._parameters))
            shape, first = self._parameters[name].shape, self._interface.inputs.offset(name)
            value = np.asarray(value, self._interface.dtype)
            if value.shape not in (shape, (*count, *shape)):
                or_each = f" or {(*count, *shape)}" if count else ""
                raise ValueError(f"{name} has shape {value.shape}, must be {shape}{or_each}.")
            place = slice(first, first + self._parameters[name].size)
            inputs[..., place] = value.reshape(*value.shape[: value.ndim - len(shape)], -1)

    def _times_of(self, times) -> np.ndarray:
        """Times from a first to a last one that are divided as those of the compilation."""
        (t0, t1), of_times = times, self._interface.times
        fractions = self._interface.fractions(self._times)
        result = np.asarray(t0 + fractions * (t1 - t0), self._interface.dtype)
        result[fractions == 1.0] = t1
        if "dt0" in of_times.names:
            place = of_times.offset("dt0")
            result[place] = self._times[place]
        return result

    def __repr__(self) -> str:
        return f"CompiledRun({', '.join(self._interface.inputs.names)}; {self.backend} backend)"


class _MachineCode:
    """Functions `NAME(inputs, times, outputs)` and `NAME_batch(count, …)` in memory."""

    backend = "native"

    def __init__(self, one: int, several: int):
        self._one = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(one)
        kinds = [ctypes.c_int64, *[ctypes.c_void_p] * 3]
        self._several = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(several)

    def bound(self, inputs, times, outputs) -> Callable[[], None]:
        one, places = self._one, [x.ctypes.data for x in (inputs, times, outputs)]
        first, second, third = (ctypes.c_void_p(x) for x in places)
        # The arrays live as long as the call.
        return lambda _arrays=(inputs, times, outputs): one(first, second, third)

    def batch(self, inputs, times, outputs) -> None:
        self._several(len(inputs), *(x.ctypes.data for x in (inputs, times, outputs)))


class _Program:
    """The same by a program of XLA."""

    backend = "plain"

    def __init__(self, function: Callable):
        self._one = jax.jit(function)
        self._several = jax.jit(jax.vmap(function, (0, None)))

    def bound(self, inputs, times, outputs) -> Callable[[], None]:
        def call():
            outputs[...] = self._one(inputs, times)

        return call

    def batch(self, inputs, times, outputs) -> None:
        outputs[...] = self._several(inputs, times)


def compile_run(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    t0: float = 0.0,
    t1: float,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | AbstractDynamicController | None = None,
    backend: Backend = "auto",
    start_tolerance: float | None = START_TOLERANCE,
    max_steps: int = MAX_STEPS,
    quantities: Sequence[str] = (),
    events: Any = (),
) -> CompiledRun:
    """Compile a run of `simulate` as a function of NumPy arrays.

    A call costs little beside the integration itself: no dispatch by JAX, no checks, no warnings.
    For loops of control, sampling and search on a processor; what is differentiated or runs on a
    GPU calls `simulate`.

        run = jaxdae.compile_run(system, formulation, state, t1=1.0, dt=0.01)
        run(q, v).q                             # coordinates at all steps
        run(q, v, system_length=2.0).final("q")  # with another length

    Inputs are the start and every array and floating-point number of system, formulation and
    controller, named by its place: `system.length` is `system_length`. Everything else is fixed:
    functions, integers, settings of solver and step control, numbers of steps and of rows, the
    choice of a solve for the constraints, the direction of time.

    Args:
        system: what moves.
        formulation: how its constraints are enforced.
        state: start, checked as by `simulate`; calls give their own.
        t0: start time [s].
        t1: end time [s].
        dt: step [s], as of `simulate`.
        solver: as of `simulate`.
        stepsize_controller: as of `simulate`.
        saveat: which states are saved, as of `simulate`, without functions and dense output; the
            end is given in any case, by `RunResult.final`.
        controller: `u = controller(t, q, v, w)`, as of `simulate`.
        backend: `"native"` for machine code, `"plain"` for a program of XLA, whose calls JAX
            dispatches; `"auto"` takes machine code where it can serve.
        start_tolerance: largest constraint residual of the start given here, as of `simulate`.
        max_steps: largest number of steps.
        quantities: what each saved state has beside `q`, `v`, `w`: `"u"`, `"multipliers"`, `"phi"`,
            `"phi_dot"`, `"energy"`, `"kinetic_energy"`, `"potential_energy"`.
        events: none; runs with events are refused.

    Returns:
        `CompiledRun`.

    Raises:
        BackendError: when the native backend is asked for and cannot serve, and for events.
        ValueError: for arguments that `simulate` refuses, and quantities that do not exist.
    """
    refuse_events("compile_run", events)
    check_quantities(quantities, controller)
    problem, method = prepare(
        system, formulation, state, t0=t0, t1=t1, dt=dt, solver=solver,
        stepsize_controller=stepsize_controller, saveat=saveat, controller=controller,
        adjoint=None, backend="plain", progress=False, throw=False, work=False,
        start_tolerance=start_tolerance, max_steps=max_steps,
    )  # fmt: skip
    if saveat is not None and (saveat.dense or not is_plain(saveat)):
        raise ValueError(
            "compile_run saves states at times: give SaveAt(ts=…), SaveAt(steps=True) or "
            "SaveAt(t1=True), without fn, subs or dense."
        )
    if isinstance(method.solver, SampledEnds):
        raise backends.BackendError(f"{SAMPLED}; use jax.jit of simulate.")
    why_not = backend_of("native").obstacle(problem.formulation, method)
    if backends.choose(backend, why_not) == "native":
        try:
            return _native(problem, method, state, tuple(quantities))
        except backends.UnsuitedError as reason:
            if backend == "native":
                raise backends.refused(reason) from None
            why_not = str(reason)
    return _plain(problem, method, state, tuple(quantities), why_not)


def _native(problem: Problem, method: Method, state: State, quantities) -> CompiledRun:
    from jaxdae.kernels.export.objects import host_module
    from jaxdae.kernels.llvm import machine_code

    exported = exported_run(problem, method, state, "run_of_user", quantities)
    module = host_module(exported)
    names = exported.interface.name, f"{exported.interface.name}_batch"
    return CompiledRun(
        exported.interface, _MachineCode(*machine_code.functions(module, names)), None
    )


def _plain(problem: Problem, method: Method, state: State, quantities, why_not) -> CompiledRun:
    inputs, dtype = Inputs.of(problem, state), np.dtype(state.q.dtype)
    only_end = is_end(method.saveat)
    if method.saveat is not None and not only_end:  # the end is given in any case
        method = method._replace(
            saveat=eqx.tree_at(lambda x: x.subs.t1, method.saveat, replace=False)
        )
    sub: Any = None if method.saveat is None else method.saveat.subs
    fields = inputs.fields()
    times = time_fields(problem.times, problem.times.saved if sub is None else sub.ts)
    names = ("q", "v", "w", *quantities)

    def trajectory(numbers, ts) -> Trajectory:
        start, (system, formulation, controller) = inputs.replaced(_parts(numbers, fields))
        altered, changed = _with_times(problem, method, _parts(ts, times), times)
        system, start, controller, _ = closed_loop(system, controller, start, altered.start)
        one = Problem(system, formulation, controller, start, altered)
        return Trajectory.of(one, changed, integrate(one, changed))

    def flat(numbers, ts):
        run = trajectory(numbers, ts)
        end = eqx.tree_at(
            lambda x: (x.ts, x.saved),
            run,
            jax.tree.map(lambda x: x[None], (run.final_time, run.final)),
        )
        steps = [run.stats[f"num_{x}steps"] for x in ("", "accepted_")]
        code, reached = jax.tree.leaves(run.result_code)[0], jnp.sum(jnp.isfinite(run.ts))
        summary = [run.final_time, code, *steps, reached]
        rows = [] if only_end else [run.ts, _states(run, names)]
        parts = [*map(jnp.asarray, summary), _states(end, names), *rows]
        return jnp.concatenate([x.ravel().astype(dtype) for x in parts])

    def quantities_of(numbers, ts):
        run = trajectory(numbers, ts)
        return run.ts, [_quantity(run, x) for x in names]

    number = lambda fields: jax.ShapeDtypeStruct((sum(x.size for x in fields),), dtype)  # noqa: E731
    saved, each = jax.eval_shape(quantities_of, number(fields), number(times))
    states = [StructureField(name, name, x.shape[1:]) for name, x in zip(names, each, strict=True)]
    interface = Interface(
        "run", dtype, structure("inputs", fields), structure("times", times),
        structure("state", states), 0 if only_end else saved.shape[0],
    )  # fmt: skip
    return CompiledRun(interface, _Program(flat), why_not)


def _parts(numbers, fields: list[StructureField]) -> list:
    """Arrays from the numbers in all of them."""
    each = jnp.split(numbers, np.cumsum([x.size for x in fields])[:-1])
    return [x.reshape(field.shape) for x, field in zip(each, fields, strict=True)]


def _quantity(run: Trajectory, name: str):
    """Of a run: one that `compile_run` can be asked for."""
    return getattr(run.violation if name in ("phi", "phi_dot") else run, name)


def _states(run: Trajectory, names) -> Any:
    """All quantities of each row."""
    count = run.ts.shape[0]
    each = [_quantity(run, x) for x in names]
    return jnp.concatenate([x.reshape(count, math.prod(x.shape[1:])) for x in each], axis=1)


def _with_times(problem: Problem, method: Method, arrays: list, fields: list[StructureField]):
    """Times and method of a run with other numbers in these fields."""
    values = {x.name: array for x, array in zip(fields, arrays, strict=True)}
    grid, saved, sub = values.get("grid"), values.get("saved"), method.saveat
    start, end = (values["t0"], values["t1"]) if grid is None else (grid[0], grid[-1])
    times = problem.times._replace(
        start=start, end=end, grid=grid, first_step=values.get("dt0"),
        saved=saved if sub is None else problem.times.saved,
    )  # fmt: skip
    if sub is None or saved is None:
        return times, method
    return times, method._replace(saveat=eqx.tree_at(lambda x: x.subs.ts, sub, saved))
