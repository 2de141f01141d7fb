"""Initial value problems and the steps of explicit Runge-Kutta methods, as scalar programs."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.kernels.graph.dense_products import LARGE
from jaxdae.kernels.tracing.common_factors import regrouped
from jaxdae.kernels.tracing.invariants import parted
from jaxdae.kernels.tracing.product_parts import assembled, factored, Pieces
from jaxdae.kernels.tracing.subprograms import call, Shared, Subprogram, subprogram
from jaxdae.kernels.tracing.trace import scalarize, UnsupportedOperationError
from jaxdae.kernels.tracing.user_rules import OwnRule

# States of up to this many numbers are kept in registers.
_TAKEN_APART = 8
# Programs of more numbers are those of large networks: regrouping takes long and wins nothing.
_MOST_REGROUPED = 20_000
# Of states with their derivatives. A kernel keeps some fifty arrays of them on the stack: at eight
# lanes of eight bytes this many take 3.5 MB of the usual 8.
_MOST_STATES = 1024


class InitialValueProblem:
    """`dy/dt = f(t, y, parameters)` and an explicit Runge-Kutta method for it.

    Args:
        rhs: `f(t, y, *parameters)`, with `t` of shape (), `y` of shape (n,); shape (n,).
        states: n.
        parameters: shapes of the parameters, each of the type of the states.
        solver: an explicit Runge-Kutta solver of diffrax, whose tableau and dense output are used.
        controller: the step size controller, from the parameters; `None` where the steps are given.
        primal: where states are followed by their derivatives, the problem without these: its part
            of the states, which comes first, controls the steps.
        unravel: the states as the pytree on which the controller's norm is taken.
        dtype: float64 or float32.
        project: `y = project(t, y, *parameters)`, done to the end of each step; `None` for nothing.
    """

    def __init__(
        self,
        rhs: Callable,
        states: int,
        parameters: tuple[jax.ShapeDtypeStruct, ...],
        solver: diffrax.AbstractERK,
        controller: Callable[..., diffrax.PIDController] | None,
        unravel: Callable[[jax.Array], Any],
        dtype,
        primal: "InitialValueProblem | None" = None,
        project: Callable | None = None,
    ):
        self.rhs, self.states, self.parameters = rhs, states, parameters
        self.solver, self.controller, self.unravel = solver, controller, unravel
        self.dtype, self.project = np.dtype(dtype), project
        self.primal = self if primal is None else primal
        self._variations: dict[tuple, InitialValueProblem] = {}
        self._made: dict[Any, list[Subprogram]] = {}
        self._subprograms: dict[str, Subprogram] = {}
        self._parts: dict[str, tuple[Subprogram, Subprogram]] = {}
        self._rules: dict[str, tuple[OwnRule, ...]] = {}
        # What their results are given by.
        self._pieces: dict[str, tuple[Pieces, ...]] = {}
        self._transposed: dict[tuple, tuple[Pieces, ...]] = {}

    @property
    def tableau(self) -> diffrax.ButcherTableau:
        """The method's coefficients."""
        found: Any = self.solver.tableau
        return found

    @property
    def stages(self) -> int:
        """Stages of a step."""
        return self.tableau.num_stages

    @property
    def kept(self) -> int:
        """Rates of change that one step leaves to the next one."""
        return self.states if self._hands_over else 0

    @property
    def _hands_over(self) -> bool:
        """Whether the last stage of a step is the first one of the next."""
        return self.tableau.fsal and self.project is None

    @property
    def own_rules(self) -> tuple[OwnRule, ...]:
        """Rules of derivatives that users have written, of functions in it."""
        primal = self.primal
        primal._forward()
        return tuple(rule for name in primal._functions() for rule in primal._rules[name])

    def varied(self, active: tuple[int, ...], directions: int) -> "InitialValueProblem":
        """The problem of the states and their derivatives in some directions.

        States are followed by their derivatives in each direction; parameters by the directions
        `(directions, ...)` of those with numbers in `active`.
        """
        self.check_room(directions)
        key = (active, directions)
        if key not in self._variations:
            self._variations[key] = self._varied(active, directions)
        return self._variations[key]

    def check_room(self, directions: int) -> None:
        """Refuse more derivatives than a kernel has room for.

        Raises:
            UnsupportedOperationError: for too many states and directions.
        """
        if self.states * (1 + directions) > _MOST_STATES:
            raise UnsupportedOperationError(
                f"{self.states} states with derivatives in {directions} directions are more than "
                f"the {_MOST_STATES} numbers of a kernel."
            )

    def _varied(self, active, directions: int) -> "InitialValueProblem":
        n, count = self.states, len(self.parameters)

        def beside(function: Callable) -> Callable:
            def varied(t, y, *given):
                parameters, tangents = given[:count], given[count:]
                rows = y.reshape(1 + directions, n)

                def along(row, *moves):
                    moved = dict(zip(active, moves, strict=True))
                    every = [moved.get(i, jnp.zeros_like(p)) for i, p in enumerate(parameters)]
                    primals = (rows[0], *parameters)
                    return jax.jvp(lambda y, *p: function(t, y, *p), primals, (row, *every))[1]

                rates = jax.vmap(along)(rows[1:], *tangents)
                return jnp.concatenate([function(t, rows[0], *parameters), rates.ravel()])

            return varied

        moves = [self.parameters[i] for i in active]
        more = [jax.ShapeDtypeStruct((directions, *x.shape), x.dtype) for x in moves]
        return InitialValueProblem(
            beside(self.rhs), n * (1 + directions), (*self.parameters, *more), self.solver,
            self.controller, self.unravel, self.dtype, self.primal,
            None if self.project is None else beside(self.project),
        )  # fmt: skip

    # What the loops over steps call.

    def preparations(self, active: tuple[int, ...] | None = None) -> list[Subprogram]:
        """Programs of what is the same in all steps: from the parameters, once for each member.

        `step`, `start` and `advance` take what they give behind the parameters. With the numbers of
        `active` parameters also those of the adjoint, whose programs take what all of them give.
        """
        return [first for first, _ in [*self._forward(), *self._backward(active)]]

    def _functions(self) -> dict[str, Callable]:
        """What changes with state and time, by the names of their programs."""
        own = {f"rhs_{self.states}": self.rhs, f"project_{self.states}": self.project}
        return {name: x for name, x in own.items() if x is not None}

    def _forward(self) -> list[tuple[Subprogram, Subprogram]]:
        """Right-hand side and projection: what depends on the parameters alone, and the rest."""
        kinds = ("t", "y", *self.parameters)
        return [self._parted(name, f, kinds, 2, True) for name, f in self._functions().items()]

    def _backward(self, active: tuple[int, ...] | None) -> list[tuple[Subprogram, Subprogram]]:
        """The same of their derivatives in reverse mode, by the state and active parameters."""
        if active is None:
            return []
        kinds, by = ("t", "y", "y", *self.parameters), "_".join(map(str, active))

        def transposed(function: Callable) -> Callable:
            def pulled(t, y, bar, *parameters):
                def varied(y, *some):
                    return function(t, y, *_replaced(parameters, active, some))

                return jax.vjp(varied, y, *(parameters[i] for i in active))[1](bar)

            return pulled

        return [
            self._parted(f"{name}_transposed_by_{by}", transposed(f), kinds, 3)
            for name, f in self._functions().items()
        ]

    def _parted(self, name: str, function: Callable, kinds, varying: int, signed: bool = False):
        """A program in two: the part of the parameters alone, and the rest."""
        if name not in self._parts:
            shapes = self._shapes(*kinds)
            program = scalarize(function, *shapes, varying=varying, loops=True, signed=signed)
            self._rules[name] = program.own_rules
            program, self._pieces[name] = factored(program)
            few = sum(x.size for x in program.inputs) < _MOST_REGROUPED
            shared = regrouped(program) if few and self.dtype == np.float64 else program
            first, rest = parted(shared, varying)
            own = tuple(range(len(self.parameters)))
            self._parts[name] = (
                Subprogram(f"prepare_{name}", first, parameters=own),
                Subprogram(name, rest, parameters=(*[None] * varying, *own, None)),
            )
        return self._parts[name]

    def _given(self, active: tuple[int, ...] | None = None) -> list[jax.ShapeDtypeStruct]:
        """Parameters, and what is prepared of them."""
        prepared = (x for one in self.preparations(active) for x in one.results)
        return [*self.parameters, *prepared]

    def _rhs(self, active: tuple[int, ...] | None = None) -> Callable:
        """`f(t, y, *given)`; with `active` parameters `_derivable`."""
        return self._called(0) if active is None else self._derivable(0, active)

    def _projection(self, active: tuple[int, ...] | None = None) -> Callable:
        if self.project is None:
            return _unprojected
        if active is None:
            return self._called(1)
        derivable = self._derivable(1, active)
        return lambda *x: derivable(None, *x)

    def _called(self, number: int) -> Callable:
        count = len(self.parameters)
        program = self._forward()[number][1]

        def value(t, y, *given):
            parts = call(program, t, y, *given[:count], given[count + number])
            return assembled(parts, self._pieces[program.name])[0]

        return value

    def _derivable(self, number: int, active: tuple[int, ...]) -> Callable:
        """The same with a derivative by state and active parameters.

        Its first argument is its value, where that is known, or `None`.
        """
        count, ahead, value = len(self.parameters), len(self._forward()), self._called(number)
        program = self._backward(active)[number][1]

        def forward(known, *arguments):
            return value(*arguments) if known is None else known, (known, *arguments)

        def backward(arguments, bar):
            known, t, y, *given = arguments
            parts = call(program, t, y, bar, *given[:count], given[count + ahead + number])
            found = assembled(parts, self._pieces[program.name])
            zeros = [jnp.zeros_like(x) for x in given]
            none = None if known is None else jnp.zeros_like(known)
            return none, jnp.zeros_like(t), found[0], *_replaced(zeros, active, found[1:])

        derivable = jax.custom_vjp(lambda *x: forward(*x)[0])
        derivable.defvjp(forward, backward)
        return derivable

    def steps(self, dense: bool) -> list[Subprogram]:
        """Programs of a run with fixed steps: `step`, and `interpolate` for dense output."""

        def make():
            inner = self._step(self._rhs(), self._projection())

            def step(*arguments):
                h, y1, f1, rates, _ = inner(*arguments)
                return y1, f1, *self._dense(h, rates, dense)

            kinds = ("t", "t", "y", "f", *self._given())
            own = self._program("step", step, *kinds)
            return [*self.preparations(), own, *self._interpolation(dense)]

        return self._once(("steps", dense), make)

    def _once(self, key, make: Callable[[], list[Subprogram]]) -> list[Subprogram]:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def adaptive_steps(self, given_first: bool, dense: bool) -> list[Subprogram]:
        """Programs of a run with adaptive steps: `start`, `advance` and `interpolate`."""
        key = ("adaptive", given_first, dense)
        return self._once(key, lambda: self._adaptive_steps(given_first, dense))

    def _adaptive_steps(self, given_first: bool, dense: bool) -> list[Subprogram]:
        first = ["t"] if given_first else []
        control, given = self._control(), self._given()
        return [
            *self.preparations(),
            self._program("start", self._start(given_first), "t", "t", *first, "y", *given),
            self._program(
                "advance", self._advance(dense), "t", "t", "t", "t", control, "y", "f", *given
            ),
            *self._interpolation(dense),
        ]

    def transposed_steps(self, active: tuple[int, ...], dense: bool) -> list[Subprogram]:
        """Programs of the adjoint: `plain_step`, `transposed_step`, `transposed_interpolation`.

        The first gives the state at the end of a step and the rates of its first stages, which the
        second takes; this one gives `transposed_pieces`.
        """
        key = ("transposed", active, dense)
        return self._once(key, lambda: self._transposed_steps(active, dense))

    def _transposed_steps(self, active: tuple[int, ...], dense: bool) -> list[Subprogram]:
        rhs, projected = self._rhs(active), self._projection(active)
        count, used = len(self._given(active)), self.rates_of_adjoint(dense)

        def transposed_step(t0, t1, y, *rest):
            given, rates, bars = rest[:count], rest[count], rest[count + 1 :]
            # They need not be computed again: a stage of which nothing depends has none.
            known = iter([*rates, *[jnp.zeros_like(y)] * (self.stages - used)])
            step = self._step(lambda *x: rhs(next(known), *x), projected, first_given=False)

            def run(y, *some):
                h, y1, _, rates, _ = step(t0, t1, y, None, *_replaced(given, active, some))
                return (y1, *self._dense(h, rates, dense))

            _, pull = jax.vjp(run, y, *(given[i] for i in active))
            return pull(bars)

        def plain_step(t0, t1, y, *given):
            step = self._step(lambda *x: rhs(None, *x), projected, first_given=False)
            _, y1, _, rates, _ = step(t0, t1, y, None, *given)
            return y1, jnp.stack(rates[:used])

        kinds = ("t", "t", "y", *self._given(active))
        rates = jax.ShapeDtypeStruct((used, self.states), self.dtype)
        transposed = self._program(
            "transposed_step", transposed_step, *kinds, rates, "y", *["k"] * dense
        )
        transposed.program, self._transposed[active, dense] = factored(transposed.program)
        return [
            *self.preparations(active),
            self._program("plain_step", plain_step, *kinds),
            transposed,
            *([self._transposed_interpolation()] if dense else []),
        ]

    def rates_of_adjoint(self, dense: bool) -> int:
        """How many rates of a step, the first ones, its solution or its dense output depends on."""
        tableau = self.tableau
        rows = [*tableau.a_lower, *([] if tableau.ssal else [tableau.b_sol])]
        used = (i + 1 for row in rows for i, x in enumerate(row) if x != 0)
        return self.stages if dense else max(used)

    def transposed_pieces(self, active: tuple[int, ...], dense: bool) -> tuple[Pieces, ...]:
        """What `transposed_step` gives of the cotangents of the state and of active parameters."""
        self.transposed_steps(active, dense)
        return self._transposed[active, dense]

    def _transposed_interpolation(self) -> Subprogram:
        """Dense output, transposed: from a saved state's cotangent to those of `y0`, `y1`, `k`."""
        example = self._shapes("y", "y", "k")

        def transposed(t0, t1, t, y_bar):
            def dense(y0, y1, k):
                return self._interpolated(t0, t1, y0, y1, k, t)

            pull = jax.linear_transpose(dense, *example)
            return pull(y_bar)

        return self._program("transposed_interpolation", transposed, "t", "t", "t", "y")

    def _whole_rate(self) -> Callable:
        """`f(t, y, *parameters)`, which prepares nothing."""
        name = f"whole_rhs_{self.states}"  # that of a varied problem may be called beside its own
        kinds = ("t", "y", *self.parameters)
        own, shapes = self._numbers(kinds), self._shapes(*kinds)
        called = subprogram(name, self.rhs, *shapes, made=self._subprograms, parameters=own)
        return lambda t, y, *p: called(t, y, *p)[0]

    def _program(self, name: str, function: Callable, *kinds) -> Subprogram:
        program = scalarize(function, *self._shapes(*kinds), loops=True)
        return Subprogram(name, program, parameters=self._numbers(kinds))

    def _numbers(self, kinds) -> tuple[int | None, ...]:
        """Of arguments that are parameters, their numbers."""
        known = {id(x): i for i, x in enumerate(self.parameters)}
        return tuple(known.get(id(x)) for x in kinds)

    def shared(self, ranks: tuple[int, ...]) -> Shared:
        """Large parameters that all members share, which kernels read where they are.

        Args:
            ranks: axes of the batch in the state, and in each parameter.
        """
        sizes = [int(np.prod(x.shape)) for x in self.parameters]
        pairs = zip(sizes, ranks[1 : 1 + len(sizes)], strict=True)
        return frozenset(i for i, (size, rank) in enumerate(pairs) if size >= LARGE and not rank)

    def _shapes(self, *kinds) -> list[jax.ShapeDtypeStruct]:
        known = {
            "t": (),
            "y": (self.states,),
            "f": (self.kept,),
            "k": (self.stages, self.states),
        }
        return [
            jax.ShapeDtypeStruct(known[x], self.dtype) if isinstance(x, str) else x for x in kinds
        ]

    def _step(
        self, rhs: Callable, projected: Callable, first_given: bool | None = None
    ) -> Callable:
        """One step: its length, state, kept rate, rates of all stages, estimate of the error."""
        tableau = self.tableau
        first_given = self._hands_over if first_given is None else first_given

        def step(t0, t1, y0, f0, *parameters):
            h = t1 - t0
            f = f0 if first_given else rhs(t0, y0, *parameters)
            rates, y = [f], y0
            for i, (row, c) in enumerate(zip(tableau.a_lower, tableau.c, strict=True)):
                y = self._combined(f"stage_{i}", h, y0, row, rates)
                f = rhs(t1 if c == 1 else t0 + float(c) * h, y, *parameters)
                rates.append(f)
            if not tableau.ssal:
                y = self._combined("solution", h, y0, tableau.b_sol, rates)
            y1 = projected(t1, y, *parameters)
            return h, y1, f[: self.kept], rates, self._error(h, rates)

        return step

    def _combined(self, name: str, h, y, coefficients, rates):
        """`y + sum_j (c_j h) f_j` of the coefficients that are not zero."""
        coefficients, rates = _used(coefficients, rates)

        def combination(h, y, *rates):
            return sum(((c * h) * f for c, f in zip(coefficients, rates, strict=True)), y)

        return self._each(name, combination, h, y, *rates, wrt=tuple(range(1, len(rates) + 2)))

    def _error(self, h, rates):
        """`h sum_j e_j f_j`: products with `h` are rounded apart, and would not cancel as well."""
        coefficients, rates = _used(self.tableau.b_error, rates)

        def estimate(h, *rates):
            return h * sum(c * f for c, f in zip(coefficients, rates, strict=True))

        return self._each("error", estimate, h, *rates, wrt=tuple(range(1, len(rates) + 1)))

    def _dense(self, h, rates, dense: bool) -> list:
        """The increments `h f`, as one array, where dense output wants them."""
        if not dense:
            return []
        times = lambda h, f: h * f  # noqa: E731
        return [jnp.stack([self._each("increment", times, h, f, wrt=(1,)) for f in rates])]

    def _each(self, name: str, function: Callable, *arguments, wrt: tuple[int, ...]):
        """A function of single entries, done for each.

        Few entries are taken apart; many are gone through in a loop, which compiles at once.
        """
        if self.states <= _TAKEN_APART:
            return function(*arguments)
        each = subprogram(
            name, function, *arguments, wrt=wrt, entries=self.states, made=self._subprograms
        )
        return each(*arguments)[0]

    def _interpolation(self, dense: bool) -> list[Subprogram]:
        kinds = ("t", "t", "y", "y", "k", "t")
        return [self._program("interpolate", self._interpolated, *kinds)] if dense else []

    def _interpolated(self, t0, t1, y0, y1, k, t):
        dense: Any = self.solver.interpolation_cls
        return dense(t0=t0, t1=t1, y0=y0, y1=y1, k=k).evaluate(t)

    def _start(self, given_first: bool) -> Callable:
        """End of the first step, state of the controller, first rate."""
        rhs = self._rhs()

        def start(t0, end, *rest):
            dt, (y, *parameters) = (rest[0], rest[1:]) if given_first else (None, rest)
            t1, state = self._started(t0, end, dt, y, parameters)
            kept = rhs(t0, y, *parameters)[: self.kept] if self.kept else jnp.zeros(0, self.dtype)
            return jnp.minimum(t1, end), _packed(state, self.dtype), kept

        return start

    def _started(self, t0, end, dt, y, parameters):
        primal = self.primal
        n, count = primal.states, len(primal.parameters)
        own = parameters[:count]
        # Of a varied problem the first states alone decide; their rate is had by its own program.
        rate = primal._whole_rate()
        controller = self._controller(*own)
        flat = lambda tree: ravel_pytree(tree)[0]  # noqa: E731

        def field(t, tree, args):
            del args
            return self.unravel(rate(t, flat(tree), *own))

        term = diffrax.ODETerm(field)
        order = self.solver.error_order(term)
        func = lambda terms, t, y, args: terms.vf(t, y, args)  # noqa: E731
        # diffrax, too, hands over a wrapped term.
        wrapped = diffrax.MultiTerm(term)
        return controller.init(wrapped, t0, end, self.unravel(y[:n]), dt, None, func, order)

    def _controller(self, *parameters) -> diffrax.PIDController:
        if self.controller is None:
            raise ValueError("this problem has fixed steps, and no controller.")
        return self.controller(*parameters)

    def _control(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(jax.tree.leaves(self._state_shapes())),), self.dtype)

    def _state_shapes(self):
        primal = self.primal

        def state(t0, t1, y, *parameters):
            return primal._started(t0, t1, t1, y, parameters)[1]

        return jax.eval_shape(state, *primal._shapes("t", "t", "y", *primal.parameters))

    def _advance(self, dense: bool) -> Callable:
        """One adaptive step.

        From its two ends, the end of the run, the time from which on a step reaches that end, the
        controller's state, the state and its rate: whether it is kept (1 or 0) and the controller's
        result code; the ends of the next step; the controller's state; and what a step gives.
        """
        step = self._step(self._rhs(), self._projection())
        shapes = self._state_shapes()
        n = self.primal.states
        count = len(self.primal.parameters)

        def advance(t0, t1, end, floor, control, y0, f0, *parameters):
            h, y1, f1, rates, error = step(t0, t1, y0, f0, *parameters)
            error = jnp.where(jnp.isnan(error), jnp.inf, error)
            trees = [self.unravel(x[:n]) for x in (y0, y1, error)]
            controller = self._controller(*parameters[:count])
            order: Any = self.solver.error_order(diffrax.ODETerm(self.rhs))
            keep, t_next0, t_next1, _, state, result = controller.adapt_step_size(
                t0, t1, trees[0], trees[1], None, trees[2], order, _unpacked(control, shapes)
            )
            t_next0 = jnp.minimum(t_next0, end)
            clipped = jnp.where(keep, end, t_next0 + 0.5 * (end - t_next0))
            t_next1 = jnp.where(t_next1 > floor, clipped, t_next1)
            code = jnp.asarray(result._value).astype(self.dtype)
            summary = (jnp.asarray(keep).astype(self.dtype), code, t_next0, t_next1)
            return (*summary, _packed(state, self.dtype), y1, f1, *self._dense(h, rates, dense))

        return advance


def _replaced(values, at, others) -> list:
    """Values, some of them replaced by others."""
    own = dict(zip(at, others, strict=True))
    return [own.get(i, x) for i, x in enumerate(values)]


def _used(coefficients, rates) -> tuple[list[float], list]:
    """Coefficients that are not zero, and their rates."""
    pairs = [(float(c), f) for c, f in zip(coefficients, rates, strict=False) if c != 0]
    return [c for c, _ in pairs], [f for _, f in pairs]


def _unprojected(t, y, *parameters):
    del t, parameters
    return y


def _packed(state, dtype):
    leaves = [jnp.asarray(x).astype(dtype) for x in jax.tree.leaves(state)]
    return jnp.stack(leaves) if leaves else jnp.zeros(0, dtype)


def _unpacked(packed, shapes):
    leaves, structure = jax.tree.flatten(shapes)
    found = [
        packed[i] != 0 if x.dtype == np.bool_ else packed[i].astype(x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, found)
