"""A run as a kernel that is called with other starts and parameters, and programs around it."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.control.base import closed_loop
from jaxdae.exports.held_input import HeldInput
from jaxdae.exports.variables import Described, entries_in_words, in_declaration
from jaxdae.formulations.base import holding_rank
from jaxdae.kernels.export.interface import identifiers, Interface, structure, StructureField
from jaxdae.names import unknown_name
from jaxdae.results import derived_quantities
from jaxdae.simulation import backends
from jaxdae.simulation.kernel_plan import KernelPlan, planned
from jaxdae.simulation.plain import step_control
from jaxdae.simulation.problem import Method, Problem, Times
from jaxdae.solvers.projected import between_steps
from jaxdae.solvers.sampled import SampledEnds
from jaxdae.systems import State

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
_START = {x: _READ[x][0] for x in STATE_QUANTITIES}


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
        """All arrays, by their places, with what their declaration says of them."""
        system = self.parts[0]
        named = [
            (name, x, entries_in_words(f"{name}, {words} at the start", system, name, x.size))
            for (name, words), x in zip(_START.items(), self._start, strict=True)
        ]
        for label, part in zip(("system", "formulation", "controller"), self.parts, strict=True):
            leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(part, eqx.is_array))
            # A run backward in time has the inputs of one forward (`InDirection`).
            place = lambda path: re.sub(r"(\.stabilization)+", r"\1", jax.tree_util.keystr(path))  # noqa: E731
            head = "" if isinstance(part, HeldInput) else label
            for path, x in leaves:
                words = "control input"
                if not head:
                    words = entries_in_words(words, system, "u", x.size)
                else:
                    words = Described(*in_declaration(label, part, path)).words
                where = head + place(path)
                named.append((where, x, f"{where}: {words}" if words else where))
        names = identifiers(label for label, *_ in named)
        return [
            StructureField(name, about, x.shape, np.asarray(x))
            for name, (_, x, about) in zip(names, named, strict=True)
        ]

    @property
    def _start(self) -> tuple:
        return self.start.q, self.start.v, self.start.w

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


def _words(name: str, system, sizes: dict[str, int], value) -> str:
    """What is said of a quantity of a state, with labels and units of the system."""
    words = _READ[name][0]
    if name in sizes:
        words = entries_in_words(words, system, name, sizes[name])
        own = value.size - sizes[name]
        return f"{words}; the last {own} are those of the controller" if own else words
    return entries_in_words(words, system, name, value.size) if name == "u" else words


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
        name_of = type(problem.formulation).__name__
        raise backends.UnsuitedError(
            f"the start or the states of {name_of} cannot be computed by a kernel: {error}"
        ) from None
    given = time_fields(problem.times, saved)
    shapes = jax.eval_shape(lambda *x: read_quantities(names, plan, None, *x), *of_a_state(plan))
    sizes, system = {"q": state.q.size, "v": state.v.size, "w": state.w.size}, inputs.parts[0]
    states = [
        StructureField(x, _words(x, system, sizes, y), y.shape)
        for x, y in zip(names, shapes, strict=True)
    ]
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
