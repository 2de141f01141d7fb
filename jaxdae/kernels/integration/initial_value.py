"""Initial value problems as scalar programs: right-hand side, projection, steps, derivatives."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.perturbation import excited, with_error_of_perturbation
from jaxdae.derivatives.primitives import replaced
from jaxdae.derivatives.user_rules import OwnRule
from jaxdae.kernels.graph.array_calls import LARGE
from jaxdae.kernels.integration.arguments import StepCounts
from jaxdae.kernels.tracing.invariants import split_invariants
from jaxdae.kernels.tracing.product_parts import assembled, factored, Pieces
from jaxdae.kernels.tracing.reverse import reverse
from jaxdae.kernels.tracing.subprograms import call, ConditionalCall, Shared, Subprogram
from jaxdae.kernels.tracing.trace import scalarize, subprogram, UnsupportedOperationError

# States of up to this many numbers are kept in registers.
_IN_REGISTERS = 8
# Dense output of so many numbers is gone through in a loop.
_LOOPED = 128
# Of states with their derivatives. A kernel keeps some fifty arrays of them on the stack: at eight
# lanes of eight bytes this many take 3.5 MB of the usual 8.
_MOST_STATES = 1024


class StepResult(NamedTuple):
    """What a step gives, as `jaxdae.solvers.base.Step` does.

    Args:
        y1: state at its end.
        error: estimates the error of `y1`.
        carry: what the next step is given.
        dense: makes what its dense output is made of.
        counts: what its iterations took, or `None`.
    """

    y1: Any
    error: Callable[[], Any]
    carry: Any
    dense: Callable[[], Any]
    counts: Any = None


class _Parted(NamedTuple):
    """A function of time, state and parameters in two programs.

    Args:
        first: what depends on the parameters alone, computed once for each batch member.
        rest: everything else, which takes what the first gives behind the parameters.
        pieces: what its results are given by.
        rules: derivatives that users have written, of functions in it.
    """

    first: Subprogram
    rest: Subprogram
    pieces: tuple[Pieces, ...]
    rules: tuple[OwnRule, ...]

    def __call__(self, varying, parameters, prepared, wanted=None) -> list[jax.Array]:
        """Results of a call in a function that is traced.

        Where a boolean says that they are not `wanted`, the first result is the last of the
        arguments that vary, and all others are zero.
        """
        arguments = (*varying, *parameters, prepared)
        if wanted is None:
            return assembled(call(self.rest, *arguments), self.pieces)
        others = (None,) * (len(self.rest.results) - 1)
        where = ConditionalCall(self.rest, (len(varying) - 1, *others))
        number = jnp.asarray(wanted).astype(varying[-1].dtype)
        return assembled(call(where, number, *arguments), self.pieces)


class _Entries:
    """Some of the entries of vectors.

    Args:
        chosen: whether each is one of them.
    """

    def __init__(self, chosen: np.ndarray):
        self.count = int(chosen.sum())
        self._all = bool(chosen.all())
        ends = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), chosen.size]
        self._runs = [(a, b, bool(chosen[a])) for a, b in pairwise(ends)]

    def of(self, x) -> jax.Array:
        """These entries of arrays, of their last axis."""
        if self._all:
            return x
        return jnp.concatenate([x[..., a:b] for a, b, chosen in self._runs if chosen], -1)

    def among(self, some, others) -> jax.Array:
        """All entries, from these and arrays that have the others."""
        if self._all:
            return some
        parts, at = [], 0
        for a, b, chosen in self._runs:
            parts.append(some[..., at : at + b - a] if chosen else others[..., a:b])
            at += (b - a) * chosen
        return jnp.concatenate(parts, -1)

    def alone(self, some) -> jax.Array:
        """All entries, where the others are zero."""
        size = self._runs[-1][1]
        return self.among(some, jnp.zeros((*some.shape[:-1], size), some.dtype))


class _Rate(NamedTuple):
    """`dy/dt = rate(t, y)` with the parameters that it was given."""

    function: Callable
    parameters: tuple

    def __call__(self, t, y) -> Any:
        return self.function(t, y, *self.parameters)


class ChangedEnd(NamedTuple):
    """Something that is done to the ends of steps.

    Args:
        function: `y = function(t, y, *parameters)`.
        due: `due(t, *parameters)`, whether it is done at a time; `None` where it always is.
    """

    function: Callable
    due: Callable | None = None


class FallToZero(NamedTuple):
    """A run ends where a function falls from a positive value to zero.

    Args:
        values: `g(t, y, *parameters)`, the functions, shape (k,).
        fall: `fall(function, before, after)`, where a function of time falls between two of them.
        lowest: `lowest(functions, before, after)`, what functions do within a step:
            a `jaxdae.solvers.event.Watch`.
    """

    values: Callable
    fall: Callable
    lowest: Callable


class InitialValueProblem:
    """`dy/dt = f(t, y, parameters)` and a method that steps it.

    Args:
        rhs: `f(t, y, *parameters)`, with `t` of shape (), `y` of shape (n,); shape (n,).
        states: n.
        parameters: shapes of the parameters, each of the type of the states.
        method: what a step is, a `jaxdae.solvers.base.AbstractStepMethod`.
        controller: the step size controller, from the parameters; `None` for fixed steps.
        unravel: the states as the pytree on which the controller's norm is taken.
        dtype: float64 or float32.
        primal: where states are followed by their derivatives, the problem without these: its part
            of the states, which comes first, controls the steps.
        ends: what is done to the ends of steps, one after the other.
        between: `y = between(t1, t, y0, y1, y)`, done to dense output at `t` in the step from `y0`
            to `y1` at `t1`, linear in the states; `None` for nothing.
        event: where a run ends before its time; `None` for its time alone.
        timing: numbers of the parameters by which times of steps move, not only their ends.
    """

    def __init__(
        self,
        rhs: Callable,
        states: int,
        parameters: tuple[jax.ShapeDtypeStruct, ...],
        method: Any,
        controller: Callable[..., Any] | None,
        unravel: Callable[[jax.Array], Any],
        dtype,
        primal: "InitialValueProblem | None" = None,
        ends: tuple[ChangedEnd, ...] = (),
        between: Callable | None = None,
        event: FallToZero | None = None,
        timing: tuple[int, ...] = (),
    ):
        self.rhs, self.states, self.parameters = rhs, states, parameters
        self.method, self.unravel = method, unravel
        self.controller: Any = controller
        self.dtype, self.ends, self.between = np.dtype(dtype), ends, between
        self.event, self.timing = event, timing
        self.primal = self if primal is None else primal
        # Entries of the perturbation behind all others.
        self.perturbing = 0
        self._made: dict[Any, Any] = {}
        self._subprograms: dict[str, Subprogram] = {}

    def once(self, key, make: Callable[[], Any]) -> Any:
        """What was made before under a key, or is made now."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @property
    def carried(self) -> int:
        """Numbers that one step leaves to the next one; none where its end is moved."""
        return 0 if self.ends or self._is_forced else self.method.carried(self.states)

    @property
    def _is_forced(self) -> bool:
        """Whether the perturbation is moved at the ends of steps."""
        return self.perturbing > 0 and self.method.evaluates_only

    @property
    def remembered(self) -> int:
        """Those of them on which a step depends: derivatives go through them as through states."""
        return self.carried if self.method.remembers else 0

    @property
    def moving(self) -> "_Entries":
        """Those states whose rate is not known to be zero, which are all that steps change."""
        return self.once("moving", self._moving)

    def _moving(self) -> "_Entries":
        moves = np.ones(self.states, bool)
        if self.method.evaluates_only:
            rate = self._forward()[0].rest.program
            zero = [rate.graph.value(int(x)) for x in rate.outputs[: self.states]]
            moves = np.array([x is None or x != 0 for x in zero])
        return _Entries(moves if moves.any() else np.ones(self.states, bool))

    @property
    def dense(self) -> int:
        """Numbers that dense output of a step is made of."""
        return int(np.prod(self.method.dense_shape(self.states)))

    @property
    def counted(self) -> int:
        """Numbers of `StepCounts` that the state of the step size controller ends with, or none."""
        return len(StepCounts._fields) if self.method.counts else 0

    @property
    def own_rules(self) -> tuple[OwnRule, ...]:
        """Rules of derivatives that users have written, of functions in it."""
        return tuple(rule for one in self.primal._forward() for rule in one.rules)

    # States beside their derivatives.

    def varied(self, active: tuple[int, ...], directions: int) -> "InitialValueProblem":
        """The problem of the states and their derivatives in some directions.

        States are followed by their derivatives in each direction; parameters by the directions
        `(directions, ...)` of those with numbers in `active`.

        Raises:
            UnsupportedOperationError: for more states and directions than a kernel has room for,
                or a method that asks for derivatives itself.
        """
        numbers = self.states + self.remembered
        if numbers * (1 + directions) > _MOST_STATES:
            raise UnsupportedOperationError(
                f"{numbers} states with derivatives in {directions} directions are more than "
                f"the {_MOST_STATES} numbers of a kernel."
            )
        key = ("varied", active, directions)
        return self.once(key, lambda: self._varied(active, directions))

    def _varied(self, active, directions: int) -> "InitialValueProblem":
        n, count = self.states, len(self.parameters)

        def beside(function: Callable) -> Callable:
            def varied(t, y, *arguments):
                parameters, tangents = arguments[:count], arguments[count:]
                rows = y.reshape(1 + directions, n)

                def along(row, *moves):
                    still = [jnp.zeros_like(p) for p in parameters]
                    primals = (rows[0], *parameters)
                    tangent = (row, *replaced(still, active, moves))
                    return jax.jvp(lambda y, *p: function(t, y, *p), primals, tangent)[1]

                rates = jax.vmap(along)(rows[1:], *tangents)
                return jnp.concatenate([function(t, rows[0], *parameters), rates.ravel()])

            return varied

        def each_row(t1, t, *states):
            assert self.between is not None
            rows = (x.reshape(1 + directions, n) for x in states)
            return jax.vmap(partial(self.between, t1, t))(*rows).ravel()

        moves = [self.parameters[i] for i in active]
        # A step that is more than evaluations is differentiated at once.
        method = (
            self.method if self.method.evaluates_only else _StepsAlong(self, active, directions)
        )
        more = [jax.ShapeDtypeStruct((directions, *x.shape), x.dtype) for x in moves]
        return InitialValueProblem(
            beside(self.rhs), n * (1 + directions), (*self.parameters, *more), method,
            self.controller, self.unravel, self.dtype, self.primal,
            tuple(x._replace(function=beside(x.function)) for x in self.ends),
            None if self.between is None else each_row, timing=self.timing,
        )  # fmt: skip

    def perturbed(self) -> "InitialValueProblem":
        """The problem of the states and, behind them, a perturbation that controls steps, too.

        Derivatives of the states that are among them have no part in the perturbation.

        Raises:
            UnsupportedOperationError: for more states than a kernel has room for, or a method that
                asks for derivatives itself.
        """
        numbers = self.states + self.primal.states
        if numbers > 2 * _MOST_STATES:
            raise UnsupportedOperationError(
                f"{self.states} states with a perturbation are more than the {2 * _MOST_STATES} "
                "numbers of a kernel."
            )
        return self.once("perturbed", self._perturbed)

    def _perturbed(self) -> "InitialValueProblem":
        primal, size, n = self.primal, self.states, self.primal.states
        count = len(primal.parameters)

        def beside(function: Callable, own: Callable) -> Callable:
            def perturbed(t, y, *parameters):
                one = lambda state: own(t, state, *parameters[:count])  # noqa: E731
                moved = jax.jvp(one, (y[:n],), (y[size:],))[1]
                return jnp.concatenate([function(t, y[:size], *parameters), moved])

            return perturbed

        def between(t1, t, y0, y1, y):
            assert self.between is not None
            return jnp.concatenate(
                [self.between(t1, t, *(x[:size] for x in (y0, y1, y))), y[size:]]
            )

        ends = (
            one._replace(function=beside(one.function, own.function))
            for one, own in zip(self.ends, primal.ends, strict=True)
        )
        result = InitialValueProblem(
            beside(self.rhs, primal.rhs), size + n, self.parameters,
            self.method if self.method.evaluates_only else _StepsPerturbed(self),
            self.controller, self.unravel, self.dtype, primal, tuple(ends),
            None if self.between is None else between, timing=self.timing,
        )  # fmt: skip
        result.perturbing = n
        return result

    # What changes with state and time, and what is made of the parameters alone.

    def preparations(self, active: tuple[int, ...] | None = None) -> list[Subprogram]:
        """Programs of what is the same in all steps: from the parameters, once for each member.

        Programs of steps take what they give behind the parameters. With the numbers of `active`
        parameters also those of the adjoint, whose programs take what all of them give.
        """
        return [x.first for x in (*self._forward(), *self._backward(active))]

    def arguments(self, active: tuple[int, ...] | None = None) -> list[jax.ShapeDtypeStruct]:
        """Parameters, and what is prepared of them."""
        prepared = (x for one in self.preparations(active) for x in one.results)
        return [*self.parameters, *prepared]

    def _functions(self) -> dict[str, Callable]:
        """What steps call, by the names of its programs."""
        if not self.method.evaluates_only:
            return {}
        ends = {f"end_{i}_{self.states}": x.function for i, x in enumerate(self.ends)}
        return {f"rhs_{self.states}": self.rhs, **ends}

    def _forward(self) -> list[_Parted]:
        """Right-hand side, and what is done to the ends of steps."""
        kinds = ("t", "y", *self.parameters)
        return [self._parted(name, f, kinds, 2, True) for name, f in self._functions().items()]

    def _backward(self, active: tuple[int, ...] | None) -> list[_Parted]:
        """The same of their derivatives in reverse mode, by the state and active parameters."""
        if active is None:
            return []
        kinds = ("t", "y", "y", *self.parameters)

        def transposed(function: Callable, used: tuple[int, ...]) -> Callable:
            def pulled(t, y, bar, *parameters):
                def varied(y, *some):
                    return function(t, y, *replaced(parameters, used, some))

                return jax.vjp(varied, y, *(parameters[i] for i in used))[1](bar)

            return pulled

        result = []
        for number, (name, function) in enumerate(self._functions().items()):
            used = self._used(number, active)
            by = "_".join(map(str, used))
            back = transposed(function, used)
            tape = lambda f=function, u=used: reverse(f, self.shapes("t", "y", *self.parameters), u)  # noqa: E731
            result.append(self._parted(f"{name}_transposed_by_{by}", back, kinds, 3, tape=tape))
        return result

    def moved_by(self, active: tuple[int, ...]) -> set[int]:
        """Those of some parameters that rates and ends of steps depend on, or may."""
        if not self.method.evaluates_only:
            return set(active)
        return {i for number in range(1 + len(self.ends)) for i in self._used(number, active)}

    def _used(self, number: int, active: tuple[int, ...]) -> tuple[int, ...]:
        """Those of some parameters that one of these functions depends on."""
        one, count = self._forward()[number], len(self.parameters)
        first, rest = (x.program.depends() for x in (one.first, one.rest))
        return tuple(i for i in active if first[i] or rest[len(rest) - 1 - count + i])

    def _parted(
        self, name: str, function: Callable, kinds, varying: int, signed=False, tape=None
    ) -> _Parted:
        def make() -> _Parted:
            shapes = self.shapes(*kinds)
            try:
                traced = None if tape is None else tape()
            except UnsupportedOperationError:  # JAX goes back over it
                traced = None
            if traced is None:
                traced = scalarize(function, *shapes, varying=varying, loops=True, signed=signed)
            program, pieces = factored(
                traced, first=1
            )  # the first result is a state or its cotangent
            first, rest = split_invariants(program, varying)
            numbers = tuple(range(len(self.parameters)))
            return _Parted(
                Subprogram(f"prepare_{name}", first, parameters=numbers),
                Subprogram(name, rest, parameters=(*[None] * varying, *numbers, None)),
                pieces,
                traced.own_rules,
            )

        return self.once(name, make)

    def function(self, number: int) -> Callable:
        """Right-hand side (0) or a change of ends (from 1 on), without derivatives.

        It takes `(wanted, t, y, *arguments())`. Where it is not wanted, it is `y`; `None` is
        everywhere.
        """
        count, one = len(self.parameters), self._forward()[number]

        def value(wanted, t, y, *arguments):
            return one((t, y), arguments[:count], arguments[count + number], wanted)[0]

        return value

    def derivable(self, number: int, active: tuple[int, ...]) -> Callable:
        """The same of `arguments(active)`, with a derivative by state and active parameters.

        Before these it takes its value, where that is known, or `None`.
        """
        count, ahead, value = len(self.parameters), len(self._forward()), self.function(number)
        transposed, used = self._backward(active)[number], self._used(number, active)

        def forward(known, wanted, *arguments):
            result = value(wanted, *arguments) if known is None else known
            return result, (known, wanted, *arguments)

        def backward(arguments, bar):
            known, wanted, t, y, *operands = arguments
            prepared = operands[count + ahead + number]
            bars = transposed((t, y, bar), operands[:count], prepared, wanted)
            zeros = [jnp.zeros_like(x) for x in operands]
            none = [None if x is None else jnp.zeros_like(x) for x in (known, wanted)]
            return *none, jnp.zeros_like(t), bars[0], *replaced(zeros, used, bars[1:])

        derivable = jax.custom_vjp(lambda *x: forward(*x)[0])
        derivable.defvjp(forward, backward)
        return derivable

    def due(self, number: int) -> Callable:
        """Whether a change of ends is done at a time, 1 or 0, of `(t, *arguments())`."""
        primal, function = self.primal, self.ends[number - 1].due
        assert function is not None

        def asked(t, *parameters):
            return jnp.asarray(function(t, *parameters)).astype(self.dtype)

        kinds = ("t", *primal.parameters)
        numbers, shapes = primal._numbers(kinds), primal.shapes(*kinds)
        made, count = primal._subprograms, len(primal.parameters)
        called = subprogram(f"due_{number}", asked, *shapes, made=made, parameters=numbers)
        return lambda t, *arguments: jax.lax.stop_gradient(called(t, *arguments[:count])[0])

    def undivided_rate(self) -> Callable:
        """`f(t, y, *parameters)`, which prepares nothing."""
        name = f"whole_rhs_{self.states}"  # that of a varied problem may be called beside its own
        kinds = ("t", "y", *self.parameters)
        numbers, shapes = self._numbers(kinds), self.shapes(*kinds)
        called = subprogram(name, self.rhs, *shapes, made=self._subprograms, parameters=numbers)
        return lambda t, y, *p: called(t, y, *p)[0]

    # Programs of a kernel.

    def each(self, name: str, function: Callable, *arguments, wrt: tuple[int, ...]):
        """A function of single entries, done for each.

        Few entries are scalars; many are gone through in a loop, which compiles at once.
        """
        entries = self.moving.count
        if entries <= _IN_REGISTERS:
            return function(*arguments)
        name, made = f"{name}_{entries}", self._subprograms
        each = subprogram(name, function, *arguments, wrt=wrt, entries=entries, made=made)
        return each(*arguments)[0]

    def program(self, name: str, function: Callable, *kinds, open_ended=False) -> Subprogram:
        """A function as a program; of each argument its shape, or its letter (`shapes`)."""
        shapes = self.shapes(*kinds)
        if self.method.evaluates_only and not open_ended:
            program = scalarize(function, *shapes, loops=True)
        else:
            program = scalarize(function, *shapes, loops=True, open_ended=True)
        return Subprogram(name, program, parameters=self._numbers(kinds))

    def _numbers(self, kinds) -> tuple[int | None, ...]:
        """Of arguments that are parameters, their numbers."""
        known = {id(x): i for i, x in enumerate(self.parameters)}
        return tuple(known.get(id(x)) for x in kinds)

    def shared(self, ranks: tuple[int, ...]) -> Shared:
        """Large parameters that all members share, which kernels read where they are."""
        sizes = [int(np.prod(x.shape)) for x in self.parameters]
        pairs = zip(sizes, ranks[1 : 1 + len(sizes)], strict=True)
        return frozenset(i for i, (size, rank) in enumerate(pairs) if size >= LARGE and not rank)

    def shapes(self, *kinds) -> list[jax.ShapeDtypeStruct]:
        """Shapes of a time "t", a state "y", a carry "c", what dense output is made of "d"."""
        known: dict[str, Callable[[], tuple[int, ...]]] = {
            "t": lambda: (),
            "y": lambda: (self.states,),
            "c": lambda: (self.carried,),
            # To know it takes a trace of a step.
            "d": lambda: self.method.dense_shape(self.states),
        }
        return [
            jax.ShapeDtypeStruct(known[x](), self.dtype) if isinstance(x, str) else x for x in kinds
        ]


class _StepsAlong(NamedTuple):
    """Steps of states with their derivatives: those of a method, each differentiated at once."""

    base: InitialValueProblem
    active: tuple[int, ...]
    directions: int

    @property
    def solver(self) -> Any:
        """Of the steps themselves."""
        return self.base.method.solver

    @property
    def evaluates_only(self) -> bool:
        """Whether steps evaluate the rate and nothing else: these do not."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what the last one left: derivatives carry nothing else."""
        return True

    def carried(self, states: int) -> int:
        """What steps depend on, and its derivatives."""
        del states
        return (1 + self.directions) * self.base.remembered

    def dense_shape(self, states: int) -> tuple[int, ...]:
        """Shape of what dense output is made of."""
        del states
        return (1 + self.directions, *self.base.method.dense_shape(self.base.states))

    def beside(self, function: Callable, arguments, *states) -> Any:
        """Results of a function of the base problem, and behind each its derivatives.

        Args:
            function: `(parameters, *states)`, such as a step.
            arguments: parameters, and the directions of those that vary.
            states: those of the function, and behind them their derivatives.
        """
        count = len(self.base.parameters)
        parameters, moves = arguments[:count], arguments[count:]
        rows = [x.reshape(1 + self.directions, x.size // (1 + self.directions)) for x in states]

        def one(some, *states):
            return function(replaced(parameters, self.active, some), *states)

        primals = ([parameters[i] for i in self.active], *(x[0] for x in rows))
        along = lambda *x: jax.jvp(one, primals, x)[1]  # noqa: E731
        try:
            moved = jax.vmap(along)(list(moves), *(x[1:] for x in rows))
        except TypeError as error:  # of a function with a rule for the reverse mode alone
            raise UnsupportedOperationError(
                f"steps of {type(self.solver).__name__} have no derivative along directions: "
                f"{str(error).splitlines()[0]}"
            ) from error
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), one(*primals), moved)

    def interpolate(self, t0, t1, y0, y1, dense, t) -> Any:
        """Dense output of a step at time `t`."""
        before, after = (x.reshape(1 + self.directions, self.base.states) for x in (y0, y1))
        one = lambda y0, y1, k: self.base.method.interpolate(t0, t1, y0, y1, k, t)  # noqa: E731
        return jax.vmap(one)(before, after, dense).ravel()

    @property
    def counts(self) -> bool:
        """Whether steps tell what their iterations took: nobody asks these."""
        return False

    def evaluations(self, dense: bool) -> int:
        """Evaluations that are kept for an adjoint: none."""
        del dense
        return 0

    def error_order(self) -> Any:
        """Order of the error estimate."""
        return self.base.method.error_order()


class _StepsPerturbed(NamedTuple):
    """Steps of states and a perturbation of them: those of a problem, and one differentiated.

    Args:
        problem: of the states alone, with derivatives behind them or without.
    """

    problem: InitialValueProblem

    @property
    def solver(self) -> Any:
        """Of the steps themselves."""
        return self.problem.method.solver

    @property
    def evaluates_only(self) -> bool:
        """Whether steps evaluate the rate and nothing else: these do not."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether a step depends on what the last one left."""
        return self.problem.method.remembers

    def carried(self, states: int) -> int:
        """What steps of the problem are given; derivatives of what those of states depend on."""
        del states
        return self.problem.carried + self.problem.primal.remembered

    def dense_shape(self, states: int) -> tuple[int, ...]:
        """Shape of what dense output is made of: that of the states alone."""
        del states
        return self.problem.method.dense_shape(self.problem.states)

    def along(self, function: Callable, parameters, states, moves) -> Any:
        """The derivative of a function `(parameters, *states)` of the primal along the states."""
        some = parameters[: len(self.problem.primal.parameters)]
        try:
            return jax.jvp(lambda *x: function(some, *x), tuple(states), tuple(moves))[1]
        except TypeError as error:  # of a function with a rule for the reverse mode alone
            raise UnsupportedOperationError(
                f"steps of {type(self.solver).__name__} have no derivative along directions: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def begun(self, t0, y0, arguments) -> Any:
        """What the first step is given."""
        problem = self.problem
        primal, size = problem.primal, problem.states
        begun = _begun(problem, t0, y0[:size], arguments)
        if not primal.remembered:
            return begun
        one = lambda some, y: _begun(primal, t0, y, some)  # noqa: E731
        moved = self.along(one, arguments, [y0[: primal.states]], [y0[size:]])
        return jnp.concatenate([begun, moved])

    def step(self, t0, t1, y0, carry, arguments) -> StepResult:
        """A step of the states, and of the perturbation."""
        problem = self.problem
        primal, size = problem.primal, problem.states
        own = problem.carried
        result = _step(problem, t0, t1, y0[:size], carry[:own], arguments)

        def one(some, y, *carried):
            step = _step(primal, t0, t1, y, carried[0] if carried else None, some)
            return step.y1, step.error(), step.carry[: primal.remembered]

        states, moves = [y0[: primal.states]], [y0[size:]]
        if primal.remembered:
            states.append(carry[: primal.remembered])
            moves.append(carry[own:])
        y1, error, left = self.along(one, arguments, states, moves)
        return StepResult(
            jnp.concatenate([result.y1, y1]),
            lambda: jnp.concatenate([jnp.broadcast_to(result.error(), (size,)), error]),
            jnp.concatenate([result.carry, left]),
            result.dense,
            result.counts,
        )

    def interpolate(self, t0, t1, y0, y1, dense, t) -> Any:
        """Dense output of a step at time `t`; the perturbation is that of its end."""
        size = self.problem.states
        y = self.problem.method.interpolate(t0, t1, y0[:size], y1[:size], dense, t)
        return jnp.concatenate([y, y1[size:]])

    @property
    def counts(self) -> bool:
        """Whether steps tell what their iterations took."""
        return self.problem.method.counts

    def evaluations(self, dense: bool) -> int:
        """Evaluations that are kept for an adjoint: none."""
        del dense
        return 0

    def error_order(self) -> Any:
        """Order of the error estimate."""
        return self.problem.method.error_order()


# Programs of steps, which the loops over steps call by their names.


def fixed_step_programs(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    """Programs of a run with fixed steps: `begin`, `step`, and `interpolate` for dense output."""

    def step(t0, t1, y0, carry, *arguments):
        result = _step(problem, t0, t1, y0, carry, arguments)
        return result.y1, result.carry, *_dense(result, dense)

    return problem.once(
        ("fixed", dense),
        lambda: [
            *problem.preparations(),
            *_beginning(problem),
            problem.program("step", step, "t", "t", "y", "c", *problem.arguments()),
            *_interpolation(problem, dense),
        ],
    )


def _beginning(problem: InitialValueProblem) -> list[Subprogram]:
    """What a step that follows no other one takes over from a step before, as a program."""
    if not problem.carried:
        return []

    def begin(t0, y0, *arguments):
        return _begun(problem, t0, y0, arguments)

    return problem.once(
        "begin", lambda: [problem.program("begin", begin, "t", "y", *problem.arguments())]
    )


def adaptive_step_programs(
    problem: InitialValueProblem, given_first: bool, dense: bool, step_ends: bool = False
) -> list[Subprogram]:
    """Programs of a run with adaptive steps: `start`, `advance` and `interpolate`.

    Where steps end at given times also `begin`, as after these the right-hand side may have jumped;
    where an event may end the run, its `value`, and for a step what its functions do in it,
    `watch`, and `fall`, which locates it.
    """
    kept = dense or problem.event is not None

    def make():
        times, control = ["t"] * (2 + given_first), control_shape(problem)
        arguments = problem.arguments()
        start, advance = _start(problem, given_first), _advance(problem, kept)
        return [
            *problem.preparations(),
            problem.program("start", start, *times, "y", *arguments),
            problem.program("advance", advance, *"tttt", control, "y", "c", *arguments),
            *(_beginning(problem) if step_ends else []),
            *_interpolation(problem, dense),
            *_event(problem),
        ]

    return problem.once(("adaptive", given_first, dense, step_ends), make)


def _event(problem: InitialValueProblem) -> list[Subprogram]:
    """Value of the function of an event; from what a step gives, time and state where it falls."""
    event, count = problem.event, len(problem.parameters)
    if event is None:
        return []

    def values(t, y, *arguments):
        return jnp.asarray(event.values(t, y, *arguments[:count]), problem.dtype)

    def value(t, y, *arguments):
        return jnp.min(values(t, y, *arguments))

    def watch(t0, t1, y0, y1, dense, *arguments):
        state = partial(_between, problem, t0, t1, y0, y1, dense)
        found = event.lowest(lambda t: values(t, state(t), *arguments), t0, t1)
        return tuple(jnp.asarray(x, problem.dtype) for x in found)

    def fall(t0, t1, y0, y1, dense, until, *arguments):
        state = partial(_between, problem, t0, t1, y0, y1, dense)
        t = event.fall(lambda t: value(t, state(t), *arguments), t0, until)
        return t, state(t)

    arguments = problem.arguments()
    return [
        problem.program("value", value, "t", "y", *arguments),
        problem.program("watch", watch, *"ttyyd", *arguments, open_ended=True),
        problem.program("fall", fall, *"ttyydt", *arguments, open_ended=True),
    ]


def adjoint_programs(
    problem: InitialValueProblem, active: tuple[int, ...], dense: bool
) -> tuple[list[Subprogram], tuple[Pieces, ...]]:
    """Programs of the adjoint: `plain_step`, `transposed_step`, `transposed_interpolation`.

    The first gives the state at the end of a step and the rates of its first evaluations, which the
    second takes; this one gives pieces of the cotangents of the state and of active parameters,
    which are returned, too. Where steps depend on what the last one left, that stands behind their
    states, and there are `begin` and `transposed_begin`, which gives cotangents of state and
    parameters.
    """
    key = ("adjoint", active, dense)
    return problem.once(key, lambda: _adjoint(problem, active, dense))


def _adjoint(problem: InitialValueProblem, active: tuple[int, ...], dense: bool):
    used, arguments = problem.method.evaluations(dense), problem.arguments(active)
    n, count = problem.states, len(arguments)
    extended = jax.ShapeDtypeStruct((n + problem.remembered,), problem.dtype)

    def whole_step(t0, t1, start, arguments, *how):
        """A step from its state and what it depends on to those at its end."""
        if not problem.remembered:
            result = _step(problem, t0, t1, start, None, arguments, *how)
            return result.y1, result
        result = _step(problem, t0, t1, start[:n], start[n:], arguments, *how)
        return jnp.concatenate([result.y1, result.carry]), result

    def plain_step(t0, t1, start, *arguments):
        rates = []

        def rate(*x):
            rates.append(_rate(problem, arguments)(*x))
            return rates[-1]

        end, _ = whole_step(t0, t1, start, arguments, rate if used else None)
        kept = problem.moving.of(jnp.stack(rates[:used])) if used else start[:0]
        return end, jnp.reshape(kept, (used, problem.moving.count))

    def transposed_step(t0, t1, start, *rest):
        arguments, rates, bars = rest[:count], rest[count], rest[count + 1 :]

        def run(start, *some):
            # They need not be computed again: an evaluation of which nothing depends has none.
            known, given_now = iter(problem.moving.alone(rates)), replaced(arguments, active, some)
            rate = _derivable_rate(problem, active, given_now, known)
            end, result = whole_step(t0, t1, start, given_now, rate, active)
            return (end, *_dense(result, dense))

        _, pull = jax.vjp(run, start, *(arguments[i] for i in active))
        return pull(bars)

    def transposed_begin(t0, y, *rest):
        *arguments, bar = rest

        def begin(y, *some):
            return _begun(problem, t0, y, replaced(arguments, active, some))

        return jax.vjp(begin, y, *(arguments[i] for i in active))[1](bar)

    rates = jax.ShapeDtypeStruct((used, problem.moving.count), problem.dtype)
    kinds = ("t", "t", extended, *arguments)
    transposed = problem.program(
        "transposed_step", transposed_step, *kinds, rates, extended, *"d" * dense
    )
    transposed.program, pieces = factored(transposed.program, first=1)
    programs = [
        *problem.preparations(active),
        problem.program("plain_step", plain_step, *kinds),
        transposed,
        *([_transposed_interpolation(problem)] if dense else []),
    ]
    if problem.remembered:
        beginning = problem.program("transposed_begin", transposed_begin, "t", "y", *arguments, "c")
        programs += [*_beginning(problem), beginning]
    return programs, pieces


def _rate(problem: InitialValueProblem, arguments) -> Callable:
    """`rate(t, y)` from parameters and what is prepared of them."""
    if problem.method.evaluates_only:
        function = problem.function(0)
        return lambda t, y: function(None, t, y, *arguments)
    return _Rate(problem.rhs, arguments[: len(problem.parameters)])


def _derivable_rate(problem: InitialValueProblem, active, arguments, known) -> Callable:
    """The same with a derivative; `known` are the values of the first evaluations."""
    if not problem.method.evaluates_only:
        return _rate(problem, arguments)
    function = problem.derivable(0, active)
    return lambda t, y: function(next(known, jnp.zeros_like(y)), None, t, y, *arguments)


def _begun(problem: InitialValueProblem, t0, y0, arguments) -> jax.Array:
    """What a step is given that follows no other one."""
    if isinstance(problem.method, _StepsPerturbed):
        return problem.method.begun(t0, y0, arguments)
    if not isinstance(problem.method, _StepsAlong):
        return problem.method.init(_rate(problem, arguments), t0, y0)
    base = problem.method.base
    begun = lambda parameters, y: _begun(base, t0, y, parameters)  # noqa: E731
    return problem.method.beside(begun, arguments, y0).ravel()


def _step(
    problem: InitialValueProblem, t0, t1, y0, carry, arguments, rate=None, active=None
) -> Any:
    """A step, at the end of which there is done what the problem says."""
    if isinstance(problem.method, _StepsPerturbed):
        return problem.method.step(t0, t1, y0, carry, arguments)
    if isinstance(problem.method, _StepsAlong):
        base = problem.method.base

        def base_step(parameters, y, *carry):
            result = _step(base, t0, t1, y, carry[0] if carry else None, parameters)
            return result.y1, result.error(), result.carry[: base.remembered], result.dense()

        states = (y0, carry) if base.remembered else (y0,)
        y1, error, carry, dense = problem.method.beside(base_step, arguments, *states)
        return StepResult(y1.ravel(), lambda: error.ravel(), carry.ravel(), lambda: dense)
    rate = _rate(problem, arguments) if rate is None else rate
    carry = carry if problem.carried else None
    result = _moved(problem, rate, t0, t1, y0, carry)
    y1 = _changed(problem, active, t1, result.y1, arguments)
    return result._replace(y1=y1, carry=result.carry[: problem.carried])


def _moved(problem: InitialValueProblem, rate, t0, t1, y0, carry) -> Any:
    """A step of the method, which leaves alone what has no rate."""
    method, moving = problem.method, problem.moving
    if not method.evaluates_only or moving.count == problem.states:
        return method.step(rate, t0, t1, y0, carry, problem.each)
    some = None if carry is None else moving.of(carry)
    rate_of = lambda t, y: moving.of(rate(t, moving.among(y, y0)))  # noqa: E731
    result = method.step(rate_of, t0, t1, moving.of(y0), some, problem.each)
    return StepResult(
        moving.among(result.y1, y0),
        lambda: moving.alone(jnp.broadcast_to(result.error(), (moving.count,))),
        moving.alone(result.carry) if result.carry.size else result.carry,
        lambda: moving.alone(result.dense()),
        result.counts,
    )


def _dense(result, wanted: bool) -> list:
    return [result.dense()] if wanted else []


def _changed(problem: InitialValueProblem, active, t, y, arguments):
    """The end of a step with all that is done to it."""
    for number, one in enumerate(problem.ends, 1):
        wanted = None if one.due is None else problem.due(number)(t, *arguments)
        if not problem.method.evaluates_only:  # its programs are traced as wholes
            after = one.function(t, y, *arguments[: len(problem.parameters)])
            y = after if wanted is None else jnp.where(wanted, after, y)
        elif active is None:
            y = problem.function(number)(wanted, t, y, *arguments)
        else:
            y = problem.derivable(number, active)(None, wanted, t, y, *arguments)
    return y


def _interpolation(problem: InitialValueProblem, dense: bool) -> list[Subprogram]:
    if not dense:
        return []
    between = _between_by_entries if _in_entries(problem) else _between
    return [problem.program("interpolate", lambda *x: between(problem, *x), *"ttyydt")]


def _in_entries(problem: InitialValueProblem) -> bool:
    """Whether dense output is the same function of each entry, of so many that a loop is worth it.

    A loop takes as long to compile for a thousand entries as for ten.
    """
    moving = problem.moving.count
    by_entry = problem.method.evaluates_only and len(problem.method.dense_shape(moving)) == 2
    return by_entry and problem.between is None and moving == problem.states >= _LOOPED


def _between_by_entries(problem: InitialValueProblem, t0, t1, y0, y1, dense, t):
    """State at a time in a step, entry by entry."""

    def one(t0, t1, t, y0, y1, *rates):
        column = jnp.stack(rates)[:, None]
        return problem.method.interpolate(t0, t1, y0[None], y1[None], column, t)[0]

    return problem.each("between", one, t0, t1, t, y0, y1, *dense, wrt=())


def _between(problem: InitialValueProblem, t0, t1, y0, y1, dense, t):
    """State at a time in a step."""
    y = problem.method.interpolate(t0, t1, y0, y1, dense, t)
    return y if problem.between is None else problem.between(t1, t, y0, y1, y)


def _transposed_interpolation(problem: InitialValueProblem) -> Subprogram:
    """Dense output, transposed: from a saved state's cotangent to those of what it is made of."""

    def transposed(t0, t1, t, y_bar):
        def interpolate(y0, y1, dense):
            return _between(problem, t0, t1, y0, y1, dense, t)

        return jax.linear_transpose(interpolate, *problem.shapes(*"yyd"))(y_bar)

    return problem.program("transposed_interpolation", transposed, *"ttty")


def control_shape(problem: InitialValueProblem) -> jax.ShapeDtypeStruct:
    """Of the state of the step size controller and counts behind it, as one array."""
    leaves = jax.tree.leaves(_control_states(problem))
    return jax.ShapeDtypeStruct((len(leaves) + problem.counted,), problem.dtype)


def _control_states(problem: InitialValueProblem):
    primal = problem.primal

    def state(t0, t1, y, *parameters):
        return _started(primal, t0, t1, t1, y, parameters)[1]

    return jax.eval_shape(state, *primal.shapes(*"tty", *primal.parameters))


def _start(problem: InitialValueProblem, given_first: bool) -> Callable:
    """End of the first step, state of the controller, what the first step is given."""

    def start(t0, end, *rest):
        dt, (y, *arguments) = (rest[0], rest[1:]) if given_first else (None, rest)
        t1, state = _started(problem, t0, end, dt, y, arguments)
        none = jnp.zeros(0, problem.dtype)
        carry = _begun(problem, t0, y, arguments) if problem.carried else none
        counts = jnp.zeros(problem.counted, problem.dtype)
        control = jnp.concatenate([_packed(state, problem.dtype), counts])
        return jnp.minimum(t1, end), control, carry

    return start


def _started(problem: InitialValueProblem, t0, end, dt, y, arguments):
    # Of a varied problem the first states alone decide; their rate is had by its own program.
    primal = problem.primal
    parameters, rate = arguments[: len(primal.parameters)], primal.undivided_rate()

    def field(t, tree, args):
        del args
        return problem.unravel(rate(t, ravel_pytree(tree)[0], *parameters))

    func = lambda terms, t, y, args: terms.vf(t, y, args)  # noqa: E731
    # Diffrax, too, hands over a wrapped term.
    wrapped, y0 = diffrax.MultiTerm(diffrax.ODETerm(field)), problem.unravel(y[: primal.states])
    order = problem.method.error_order()
    return problem.controller(*parameters).init(wrapped, t0, end, y0, dt, None, func, order)


def _advance(problem: InitialValueProblem, dense: bool) -> Callable:
    """One adaptive step.

    From its two ends, the end of the run, the time from which on a step reaches that end, the
    controller's state, the state and its carry: whether it is kept (1 or 0) and the controller's
    result code; the ends of the next step; the controller's state; and what a step gives.
    """
    shapes, n = _control_states(problem), problem.primal.states
    count, dtype = len(problem.primal.parameters), problem.dtype
    own = len(jax.tree.leaves(shapes))

    def advance(t0, t1, end, floor, control, y0, carry, *arguments):
        outcome = _step(problem, t0, t1, y0, carry, arguments)
        error = jnp.broadcast_to(outcome.error(), y0.shape)
        controller, order = problem.controller(*arguments[:count]), problem.method.error_order()
        size = problem.states - problem.perturbing
        moved = tuple(x[size:] for x in (error, y0, outcome.y1))
        before, after, error = (x[:n] for x in (y0, outcome.y1, error))
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        if problem.perturbing:
            error = with_error_of_perturbation(error, before, after, moved, controller)
        if problem._is_forced:
            end_moved = excited(before, after, moved[1:], controller)
            outcome = outcome._replace(y1=jnp.concatenate([outcome.y1[:size], end_moved]))
        before, after, error = map(problem.unravel, (before, after, error))
        keep, t_next0, t_next1, _, state, result = controller.adapt_step_size(
            t0, t1, before, after, None, error, order, _unpacked(control[:own], shapes)
        )
        t_next0 = jnp.minimum(t_next0, end)
        clipped = jnp.where(keep, end, t_next0 + 0.5 * (end - t_next0))
        t_next1 = jnp.where(t_next1 > floor, clipped, t_next1)
        code, kept = (jnp.asarray(x).astype(dtype) for x in (result._value, keep))
        summary, control = (
            (kept, code, t_next0, t_next1),
            _counted(problem, state, control, outcome),
        )
        return (*summary, control, outcome.y1, outcome.carry, *_dense(outcome, dense))

    return advance


def _counted(problem: InitialValueProblem, state, control, outcome):
    """The state of the step size controller, and counts with those of a step."""
    packed = _packed(state, problem.dtype)
    if not problem.counted:
        return packed
    took = outcome.counts
    more = StepCounts(took.iterations, took.factorizations, 1 - took.converged)
    return jnp.concatenate([packed, control[packed.size :] + jnp.stack(more)])


def _packed(state, dtype):
    leaves = [jnp.asarray(x).astype(dtype) for x in jax.tree.leaves(state)]
    return jnp.stack(leaves) if leaves else jnp.zeros(0, dtype)


def _unpacked(packed, shapes):
    leaves, structure = jax.tree.flatten(shapes)
    results = [
        packed[i] != 0 if x.dtype == np.bool_ else packed[i].astype(x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, results)
