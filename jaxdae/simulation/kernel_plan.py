"""What kernel a run is: everything about it but its numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.flatten_util import ravel_pytree

from jaxdae.formulations.structure import used_leaves
from jaxdae.kernels.integration.arguments import Saving
from jaxdae.memory import Memory
from jaxdae.simulation.backends import UnsuitedError
from jaxdae.simulation.packing import Packing, packing
from jaxdae.simulation.plain import step_control
from jaxdae.simulation.problem import Method, Problem, Structure
from jaxdae.solvers.event import fall, lowest
from jaxdae.solvers.grid import known_ends
from jaxdae.solvers.implicit_stages import with_tolerances
from jaxdae.solvers.kernel_steps import ConstrainedEquations, step_method
from jaxdae.solvers.perturbed import suits
from jaxdae.solvers.projected import changes_ends, stepping
from jaxdae.solvers.sampled import SampledEnds, with_clocks

# Derivatives by so many states take seconds to trace to scalars, whatever zeros they have.
MOST_STATES = 1024

# The same of vectors as of trees.
_NORMS = (optimistix.rms_norm, optimistix.max_norm, optimistix.two_norm)

# Initial value problems of this many systems, formulations and methods are kept.
_PROBLEMS = Memory(64)


class KernelPlan(NamedTuple):
    """A kernel to be made or found.

    Args:
        kind: class of the problem, which has its rate and its term.
        solver: the step method.
        direction: of time; `None` where the last parameter says it.
        saving: what is saved.
        rows: how many of them.
        adaptive: whether the steps are.
        first_given: whether the length of the first adaptive step is.
        step_ends: whether there are times at which adaptive steps end.
        max_steps: largest number of adaptive steps.
        strict: whether derivatives that no kernel has are refused.
        static: all of system, formulation, controller, step control and event but their arrays.
        structure: of those arrays.
        packing: of them into the parameters of the kernel.
        shapes: of the parameters.
        start_structure: of the start.
        start_shapes: of its parts.
        states: entries of the start in all.
        dtype: of all numbers.
        unravel: from the start as one vector to its structure.
        structure_of_system: see `Method.structure`.
    """

    kind: Any
    solver: Any
    direction: int | None
    saving: Saving
    rows: int
    adaptive: bool
    first_given: bool
    step_ends: bool
    max_steps: int
    strict: bool
    static: Any
    structure: Any
    packing: Packing
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    start_structure: Any
    start_shapes: tuple
    states: int
    dtype: Any
    unravel: Callable
    structure_of_system: tuple[Structure, ...] = ()

    def key(self) -> tuple:
        """What it is remembered by."""
        pieces, shape = jax.tree.flatten(self.static)
        # `unravel` follows from the rest.
        kinds = tuple((x.shape, str(x.dtype)) for x in self.shapes)
        rest = self._replace(static=None, shapes=(), unravel=tuple)
        return rest, tuple(pieces), shape, kinds

    def integration(self, *, counted: bool = True):
        """The integration as a kernel.

        Args:
            counted: whether it says what its iterations took, if there are any.

        Raises:
            UnsuitedError: for an operation that kernels do not have.
        """
        from jaxdae.kernels.integration.run import KernelRun
        from jaxdae.kernels.tracing.trace import UnsupportedOperationError
        from jaxdae.simulation.native_derivatives import plain_run

        # Runs that save other rows have the same programs, which take longest to trace.
        saving = Saving(start=False, every=0, times=False)
        alone = self._replace(
            saving=saving, rows=0, first_given=False, step_ends=False, max_steps=0, strict=False
        )
        declared = (self.static, self.solver)
        initial_value = _PROBLEMS.get(alone.key(), declared, self._initial_value)
        run = KernelRun(
            initial_value, self.saving, self.rows, self.max_steps, self.first_given,
            step_ends=self.step_ends, strict=self.strict, counted=counted,
        )  # fmt: skip
        try:
            run.programs()
        except UnsupportedOperationError as error:
            raise UnsuitedError(str(error)) from None
        how = self.kind.term_of, self.solver, self.plain_parts, self._sign
        suited = suits(self.solver) and not self.kind.has_no_rate()
        return run._replace(
            plain=plain_run(run, *how, perturbed=suited),
            by_times=plain_run(run, *how, perturbed=False), suited=suited,
        )  # fmt: skip

    def _initial_value(self):
        from jaxdae.kernels.integration.initial_value import FallToZero, InitialValueProblem

        direction = [] if self.direction is not None else [jax.ShapeDtypeStruct((), self.dtype)]
        solver = stepping(self.solver)
        parameters = (*self.shapes, *direction)
        method = step_method(
            solver,
            ConstrainedEquations(
                self._equations, parameters, self.unravel, self.kind.has_no_rate()
            ),
        )
        ends = FallToZero(self._event_values, fall, lowest) if self._has_event() else None
        return InitialValueProblem(
            self._rate, self.states, parameters, method,
            self._control if self.adaptive else None,
            self.unravel, self.dtype, ends=self._ends(),
            between=self._between if isinstance(self.solver, SampledEnds) else None,
            event=ends,
            timing=self._timing(),
        )  # fmt: skip

    def _timing(self) -> tuple[int, ...]:
        """Numbers of the parameters that times of a sampled controller are made of."""
        if not (self.adaptive and isinstance(self.solver, SampledEnds)):
            return ()

        def times(*parameters):
            clocks = self._args(parameters)[2].controller.clocks
            return [jnp.asarray(x) for x in jax.tree.leaves(clocks)]

        return tuple(i for i, used in enumerate(used_leaves(times, *self.shapes)) if used)

    def _between(self, t1, t, *states):
        trees = (self.unravel(y) for y in states)
        return ravel_pytree(self.solver.between(t1, t, *trees))[0]

    def _declared(self, parameters):
        return self.combined(self.packing.unpacked(parameters))

    def combined(self, leaves):
        """System, formulation and controller; step control; event; from all their arrays."""
        return eqx.combine(jax.tree.unflatten(self.structure, leaves), self.static)

    def _args(self, parameters):
        """Arguments of the vector field."""
        known = dict(self.structure_of_system)
        arrays = list(parameters)
        for k, group in enumerate(self.packing.groups):
            if any(i in known for i in group):
                numbers = [self._known(known.get(i), i) for i in group]
                values = np.concatenate(numbers).reshape(self.shapes[k].shape)
                arrays[k] = _constant_where_known(values, arrays[k])
        return self._declared(arrays)[0]

    def _known(self, numbers: bytes | None, leaf: int) -> np.ndarray:
        """Entries of an array that are known, NaN where they are not."""
        if numbers is None:
            return np.full(int(np.prod(self.packing.shapes[leaf])), np.nan, self.dtype)
        return np.frombuffer(numbers, self.dtype)

    def _control(self, *parameters):
        """The step size controller."""
        parts, control, _ = self._declared(parameters)
        return with_clocks(control, parts[2])

    def _has_event(self) -> bool:
        numbers = range(len(self.packing.shapes))
        return bool(self.combined(list(numbers))[2])

    def _event(self, parameters):
        return self._declared(parameters)[2]

    def _event_values(self, t, y, *parameters):
        t = self._sign(parameters) * t
        return self._event(parameters).values(t, self.unravel(y), self._args(parameters))

    def plain_parts(self, parameters):
        """What the plain backend takes: arguments of the field, step control and event."""
        return self._args(parameters), self._control(*parameters), self._event(parameters)

    def _sign(self, parameters):
        """1 or -1: kernels take times as increasing."""
        return parameters[-1] if self.direction is None else self.direction

    def _rate(self, t, y, *parameters):
        args, sign = self._args(parameters), self._sign(parameters)

        def rate(s):
            # Constants of double precision may stand in a system of single precision.
            return ravel_pytree(self.kind.rate(s, self.unravel(y), args))[0].astype(self.dtype)

        return rate(t) if isinstance(sign, int) and sign == 1 else sign * rate(sign * t)

    def _equations(self, parameters):
        """The term of a solver of motions, its arguments, and the sign of times."""
        term = self.kind.kernel_term_of(stepping(self.solver))
        return term, self._args(parameters), self._sign(parameters)

    def _ends(self) -> tuple:
        """What is done to the ends of steps: on the constraints, a controller is sampled."""
        from jaxdae.kernels.integration.initial_value import ChangedEnd

        solver = self.solver
        if not isinstance(solver, SampledEnds):
            return (ChangedEnd(partial(self._finish, solver)),) if changes_ends(solver) else ()
        inner = solver.solver
        projected = (ChangedEnd(partial(self._finish, inner)),) if changes_ends(inner) else ()
        return *projected, ChangedEnd(partial(self._finish, solver), self._is_due)

    def _finish(self, solver, t, y, *parameters):
        args, t = self._args(parameters), self._sign(parameters) * t
        return ravel_pytree(solver.finish(t, self.unravel(y), args))[0]

    def _is_due(self, t, *parameters):
        return self.solver.is_due(self._sign(parameters) * t, self._args(parameters))


class Numbers(NamedTuple):
    """What a kernel takes beside times.

    Args:
        start: shape (n,).
        parameters: arrays.
    """

    start: Any
    parameters: list


def planned(problem: Problem, method: Method, sub, y0) -> tuple[KernelPlan, Numbers]:
    """The kernel of a run.

    Args:
        problem: what is simulated.
        method: how.
        sub: what is saved.
        y0: the formulation's own state at the start, and works.

    Raises:
        UnsuitedError: for arrays of integers, and more states or steps than kernels take.
    """
    times = problem.times
    adaptive = times.grid is None
    ends = known_ends(method.stepsize_controller)
    control = step_control(ends.controller, times) if adaptive else None
    solver = _with_iteration(method.solver, control)
    declared = (problem.parts, control, problem.event)
    arrays, static = eqx.partition(declared, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    if any(not jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
        raise UnsuitedError("a parameter is an array that holds no floating-point numbers")
    packs = packing(arrays)
    parameters = packs.packed(leaves)
    start, unravel = ravel_pytree(y0)
    if start.size > MOST_STATES:
        raise UnsuitedError(
            f"{start.size} states are more than {MOST_STATES}, too many to take apart."
        )
    if adaptive and method.max_steps * jnp.finfo(start.dtype).eps > 1:
        raise UnsuitedError(f"{method.max_steps} steps cannot be counted in {start.dtype}.")
    starts, start_structure = jax.tree.flatten(y0)
    saving, rows = _saving(sub, method.max_steps if adaptive else len(times.grid) - 1)
    plan = KernelPlan(
        type(problem), solver, method.direction, saving, rows, adaptive,
        times.first_step is not None,
        adaptive and ends.has_any, method.max_steps, method.strict, static, structure,
        packs, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parameters),
        start_structure, tuple((x.shape, str(x.dtype)) for x in starts), start.size, start.dtype,
        unravel, method.structure,
    )  # fmt: skip
    sign = jnp.where(times.start <= times.end, 1.0, -1.0).astype(times.start.dtype)
    return plan, Numbers(start, [*parameters, *([sign] if method.direction is None else [])])


def _constant_where_known(known: np.ndarray, values):
    """An array with the entries that are known as constants; derivatives by them are kept."""

    @jax.custom_jvp
    def with_constants(values):
        return jnp.where(np.isnan(known), values, known)

    @with_constants.defjvp
    def _(primals, tangents):
        return with_constants(*primals), tangents[0]

    return with_constants(values)


def _with_iteration(solver, control):
    """A solver with the tolerances of its iteration, if it has one.

    Raises:
        UnsuitedError: for tolerances that are arrays, and a norm of a user, which takes trees.
    """
    solver = with_tolerances(solver, control)
    finder = getattr(solver, "root_finder", None)
    if any(map(eqx.is_array, jax.tree.leaves(solver))):
        raise UnsuitedError("tolerances of the iteration of its solver are arrays")
    if finder is not None and finder.norm not in _NORMS:
        raise UnsuitedError("the iteration of its solver has a norm that is none of optimistix's")
    return solver


def _saving(sub: diffrax.SubSaveAt, steps: int) -> tuple[Saving, int]:
    """What the kernel saves, and in how many rows; the state at the end is added afterwards."""
    rows = int(sub.t0) + (steps // sub.steps if sub.steps else 0)
    rows += 0 if sub.ts is None else int(np.size(sub.ts))
    return Saving(sub.t0, sub.steps, sub.ts is not None and np.size(sub.ts) > 0), rows
