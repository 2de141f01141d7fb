"""A run as a Functional Mock-up Unit: its equations, one step, and their derivatives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.control.base import closed_loop
from jaxdae.exports import variables
from jaxdae.exports.held_input import HeldInput
from jaxdae.exports.run_programs import (
    Inputs,
    planned_run,
    PlannedRun,
    read_quantities,
    row_program,
    STATE_QUANTITIES,
)
from jaxdae.exports.variables import Described
from jaxdae.kernels.export import functional_mockup as unit
from jaxdae.kernels.export.functional_mockup import MockupModel, MockupVariable
from jaxdae.kernels.graph.expressions import INPUT
from jaxdae.simulation import backends
from jaxdae.simulation.problem import Method, Problem
from jaxdae.systems import State

_ENERGIES = ("energy", "kinetic_energy", "potential_energy")


class MockupPrograms:
    """A run as functions of vectors: time, states, parameters.

    Args:
        run: with its kernel.
        inputs: start and parameters.
        quantities: what is calculated of states.
    """

    def __init__(self, run: PlannedRun, inputs: Inputs, quantities: tuple[str, ...]):
        self.problem, self.plan, _ = run
        self.inputs, self.quantities = inputs, quantities
        fields = inputs.fields()
        self.start_fields, self.fields = fields[:3], fields[3:]
        self.integration = self.plan.integration(counted=False)

    def _arrays(self, p, fields) -> list:
        sizes = [x.size for x in fields]
        ends = np.cumsum([0, *sizes]).tolist()
        return [p[a:b].reshape(x.shape) for a, b, x in zip(ends, ends[1:], fields, strict=False)]

    def _declared(self, t, p, start: State) -> tuple:
        """System, start and controller with these parameters, as they are integrated."""
        given = [start.q, start.v, start.w, *self._arrays(p, self.fields)]
        start, (system, formulation, controller) = self.inputs.replaced(given)
        system, start, controller, _ = closed_loop(system, controller, start, t)
        return start, (system, formulation, controller)

    def packed(self, p) -> list:
        """Parameters of the integration."""
        t = jnp.zeros((), self.plan.dtype)
        _, parts = self._declared(t, p, self.inputs.start)
        leaves = jax.tree.leaves(eqx.filter((parts, None), eqx.is_array))
        return self.plan.packing.packed(leaves)

    def start(self, t, s, p):
        """States at a start."""
        start = State(*self._arrays(s, self.start_fields))
        start, (system, formulation, _) = self._declared(t, p, start)
        return ravel_pytree((formulation.init(system, t, start), None))[0].astype(self.plan.dtype)

    def rate(self, t, x, p):
        """Derivatives of the states, and outputs."""
        packed = self.packed(p)
        rate = self.integration.problem.rhs(t, x, *packed)
        return rate, self.read(self.quantities, t, x, packed)

    def read(self, quantities, t, x, packed):
        """Quantities of states, one after the other."""
        values = read_quantities(quantities, self.plan, None, t, x, *packed)
        flat = [y.ravel().astype(self.plan.dtype) for y in values]
        return jnp.concatenate([jnp.zeros(0, self.plan.dtype), *flat])

    def residual(self, t, x, p):
        """Residuals of the constraints, of positions and of velocities."""
        return self.read(("phi", "phi_dot"), t, x, self.packed(p))

    def sizes(self) -> dict[str, int]:
        """Of each quantity."""
        kinds = [*(jax.ShapeDtypeStruct(x, self.plan.dtype) for x in ((), (self.plan.states,)))]
        names = (*STATE_QUANTITIES, *self.quantities, "phi", "phi_dot")
        shapes = jax.eval_shape(
            lambda *x: read_quantities(names, self.plan, None, *x), *kinds, *self.plan.shapes
        )
        return {x: int(np.prod(y.shape)) for x, y in zip(names, shapes, strict=True)}


def mockup(
    problem: Problem, method: Method, state: State, name: str, quantities: tuple[str, ...],
    step_size: float, ends: tuple[float, float], tolerance: float | None, about: str,
    *, arrays: bool = False,
) -> MockupModel:  # fmt: skip
    """What a Functional Mock-up Unit of a run is made of.

    Args:
        problem: a run of one step.
        method: how.
        state: start.
        name: of the unit.
        quantities: outputs beside coordinates, velocities and actuator states.
        step_size: of the steps in co-simulation [s].
        ends: first and last time of the experiment [s].
        tolerance: largest residual of a start, or `None`.
        about: description of the unit.
        arrays: whether numbers with indices are entries of arrays.

    Raises:
        UnsuitedError: for a run that no kernel can be, or whose step depends on earlier ones.
    """
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError

    run = planned_run(problem, method)
    if run.plan.dtype != np.float64:
        raise backends.UnsuitedError(
            f"FMUs calculate in double precision, and the start has {run.plan.dtype}; declare "
            "system and start in float64"
        )
    inputs = Inputs.of(run.problem, state)
    own = row_program("read_state", STATE_QUANTITIES, run.plan, None)
    names = quantities if own is None else (*STATE_QUANTITIES, *quantities)
    programs = MockupPrograms(run, inputs, names)
    if programs.integration.problem.remembered:
        raise backends.UnsuitedError(
            f"steps of {type(method.solver).__name__} depend on those before, and an FMU steps "
            "from a state alone; give a one-step method, such as jaxdae.solvers.RK4()"
        )
    try:
        model = _model(programs, own is None, name, step_size, ends, tolerance, about)
        return model._replace(arrays=arrays)
    except UnsupportedOperationError as error:
        raise backends.UnsuitedError(f"its equations or their derivatives: {error}") from None


def _model(
    programs: MockupPrograms, direct: bool, name: str, step_size: float,
    ends: tuple[float, float], tolerance: float | None, about: str,
) -> MockupModel:  # fmt: skip
    from jaxdae.kernels.export.entry import step_functions
    from jaxdae.kernels.tracing.subprograms import Subprogram
    from jaxdae.kernels.tracing.trace import scalarize

    plan, sizes = programs.plan, programs.sizes()
    n, dtype = plan.states, plan.dtype
    count = sum(x.size for x in programs.fields)
    outputs = sum(sizes[x] for x in programs.quantities)
    starts = sum(x.size for x in programs.start_fields)
    residuals = sizes["phi"] + sizes["phi_dot"]
    vector = lambda k: jax.ShapeDtypeStruct((k,), dtype)  # noqa: E731
    t, x, p, s, y = jax.ShapeDtypeStruct((), dtype), *map(vector, (n, count, starts, outputs))
    empty = jnp.zeros(0, dtype)

    made: dict[str, Any] = {}

    def program(key: str, function, *arguments) -> None:
        """One of a function of vectors; those that are empty are left out."""
        some = [z for z in arguments if z.size]

        def filled(*given):
            each = iter(given)
            results = function(*(next(each) if z.size else empty for z in arguments))
            results = results if isinstance(results, tuple | list) else (results,)
            return [z for z in results if z.size] if key != "pack" else list(results)

        made[key] = Subprogram(f"model_{key}", scalarize(filled, *some, loops=True, signed=True))

    def pulled(function):
        def pull(*arguments):
            primals, bars = arguments[:3], arguments[3:]
            value, back = jax.vjp(function, *primals)
            return back(tuple(bars) if isinstance(value, tuple) else bars[0])

        return pull

    def pushed(function):
        return lambda *z: jax.jvp(function, z[:3], z[3:])[1]

    program("start", programs.start, t, s, p)
    program("rate", programs.rate, t, x, p)
    program("directional", pushed(programs.rate), t, x, p, t, x, p)
    program("adjoint", pulled(programs.rate), t, x, p, x, y)
    program("start_directional", pushed(programs.start), t, s, p, t, s, p)
    program("start_adjoint", pulled(programs.start), t, s, p, x)
    if residuals:
        program("residual", programs.residual, t, x, p)
    if count:
        program("pack", programs.packed, p)
    states, start_places, start_variables = _states(programs, direct, made["start"], count, outputs)
    return MockupModel(
        name, about, states, _outputs(programs, sizes), _parameters(programs), start_variables,
        start_places, made, [int(np.prod(z.shape)) for z in plan.shapes],
        step_functions(programs.integration), _dependencies(made["rate"], n, outputs),
        _constraints(programs, sizes), sizes["phi"],
        programs.inputs.start.q.size + programs.inputs.start.v.size if direct else n,
        0.0 if tolerance is None else float(tolerance), step_size, ends,
    )  # fmt: skip


# Variables.


def _as_variables(described: list[Described], values, kind) -> list[MockupVariable]:
    flat = np.ravel(np.asarray(values, np.float64))
    return [
        MockupVariable(x.name, x.about, x.unit, kind, float(value))
        for x, value in zip(described, flat, strict=True)
    ]


def _states(programs: MockupPrograms, direct: bool, start, count: int, outputs: int):
    """Variables of states, value references of what they start from, and variables of these.

    A state that is a part of the start as it is given is set itself; what others are calculated
    from are parameters.
    """
    n, problem = programs.plan.states, programs.problem
    start_of = programs.inputs.start
    system, given = programs.inputs.parts[0], (start_of.q, start_of.v, start_of.w)
    of = {q: variables.of_system(system, q, x.size) for q, x in zip("qvw", given, strict=True)}
    of_start = [y for x in programs.start_fields for y in of[x.name]]
    values = np.concatenate([np.ravel(np.asarray(x)) for x in given])
    first = 1  # the start's numbers come behind time among the inputs of the program
    where = {int(node): i for i, node in enumerate(start.program.outputs)}
    exact = {k: where.get(first + k) for k in range(len(of_start))}
    taken = {i: k for k, i in exact.items() if i is not None}
    init, t0 = problem.formulation.init, problem.times.start
    own = ravel_pytree((init(problem.system, t0, problem.state), None))[0]
    named = _own_states(programs, of, direct)
    states = []
    for i in range(n):
        kind = unit.CALCULATED if i not in taken else unit.EXACT_STATE
        states.append(MockupVariable(*named[i], kind, float(own[i])))
    behind = 1 + 2 * n + outputs + count
    places, more = [], []
    for k, x in enumerate(of_start):
        i = exact[k]
        if i is None:
            places.append(behind + len(more))
            more.append(MockupVariable(f"start.{x.name}", f"{x.about} at the start", x.unit,
                                 unit.START, float(values[k])))  # fmt: skip
        else:
            places.append(1 + i)
    return states, places, more


def _own_states(programs: MockupPrograms, of, direct: bool) -> list[Described]:
    """What is integrated: coordinates, velocities, actuator states; or what a formulation has."""
    n, inner = programs.plan.states, programs.problem.state.w.size - programs.inputs.start.w.size
    if direct:
        more = [
            Described(f"controller.state[{i}]", "state of the controller") for i in range(inner)
        ]
        return variables.distinct([*of["q"], *of["v"], *of["w"], *more])
    tree = programs.plan.unravel(jnp.zeros(n, programs.plan.dtype))[0]
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = []
    for path, x in leaves:
        word = "".join(str(getattr(k, "name", getattr(k, "idx", ""))) for k in path) or "state"
        one = Described(
            f"state.{variables.part_name(word)}", f"own state {word} of the formulation"
        )
        named += variables.entries(one, x.shape)
    return variables.distinct(named)


def _parameters(programs: MockupPrograms) -> list[MockupVariable]:
    """Of all arrays of system, formulation and controller."""
    roots, result, kinds, values = ("system", "formulation", "controller"), [], [], []
    system = programs.inputs.parts[0]
    for root, part in zip(roots, programs.inputs.parts, strict=True):
        held = isinstance(part, HeldInput)
        for path, x in jax.tree_util.tree_leaves_with_path(eqx.filter(part, eqx.is_array)):
            if held:
                single = len(path) == 1 and x.ndim <= 1
                each = (
                    _inputs(system, x)
                    if single
                    else variables.entries(
                        Described(
                            variables.in_declaration("u", part.u, path[1:])[0], "control input"
                        ),
                        x.shape,
                    )
                )
            else:
                one = Described(*variables.in_declaration(root, part, path))
                each = variables.entries(one, x.shape)
            result += each
            kinds += [unit.INPUT if held else unit.TUNABLE] * len(each)
            values += np.ravel(np.asarray(x, np.float64)).tolist()
    named = variables.distinct(result)
    found = zip(named, kinds, values, strict=True)
    return [MockupVariable(*x, kind, value) for x, kind, value in found]


def _inputs(system, u) -> list[Described]:
    """Entries of a control input that is a number or a vector."""
    each = variables.of_system(system, "u", u.size)
    if u.ndim == 0 and each[0].name == "u[0]":
        return [each[0]._replace(name="u", about="control input")]
    return each


def _outputs(programs: MockupPrograms, sizes: dict[str, int]) -> list[MockupVariable]:
    """Of quantities that are calculated of states."""
    system, result = programs.inputs.parts[0], []
    for name in programs.quantities:
        count = sizes[name]
        if name in _ENERGIES:
            each = [Described(name, name.replace("_", " "), "J")]
        elif name in ("multipliers", "phi", "phi_dot"):
            each = variables.of_constraints(system, name, count, sizes["phi"])
        else:
            each = variables.of_system(system, name, count)
        result += each
    named = variables.distinct(result)
    return _as_variables(named, np.zeros(len(named)), unit.CALCULATED)


def _constraints(programs: MockupPrograms, sizes: dict[str, int]) -> list[str]:
    labels = programs.inputs.parts[0].labels()
    each = (*range(sizes["phi"]), *range(sizes["phi_dot"]))
    return [labels.constraint(i) for i in each]


def _dependencies(rate, n: int, outputs: int) -> list[list[int]]:
    """Value references of what each derivative and each output depends on."""
    graph, wanted = rate.program.graph, rate.program.outputs
    sets: dict[int, int] = {}
    for node in graph.needed(wanted):
        if graph.nodes[node].operation == INPUT:
            sets[node] = 1 << graph.nodes[node].arguments[0]
        else:
            total = 0
            for x in graph.operands(node):
                total |= sets[x]
            sets[node] = total
    shift = lambda i: i if i <= n else i + n + outputs  # noqa: E731
    result = []
    for node in wanted.tolist():
        bits = sets[int(node)]
        result.append([shift(i) for i in range(bits.bit_length()) if bits >> i & 1])
    return result
