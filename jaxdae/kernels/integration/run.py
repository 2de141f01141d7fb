"""Integrations from start to end as native kernels that JAX can compile and batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdae.derivatives.batch_axes import Axes
from jaxdae.derivatives.device_axes import results
from jaxdae.derivatives.functions import Function
from jaxdae.derivatives.primitives import primitive
from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.integration.initial_value import InitialValueProblem
from jaxdae.kernels.integration.saving import Saving, Summary
from jaxdae.kernels.integration.step_programs import (
    adaptive_step_programs,
    fixed_step_programs,
)
from jaxdae.kernels.launch.platforms import on_platforms, Platform, Work
from jaxdae.kernels.llvm.batch_loops import Lanes
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.tracing.subprograms import called, Subprogram

AT_EVENTS = "of a run that an event ends, times depend on what is differentiated by."
TIMES = "derivatives by times (t0, t1, dt, SaveAt(ts=...)) are those of the plain program."


class Run(NamedTuple):
    """What is compiled: an initial value problem and what its runs save.

    Args:
        problem: what is integrated.
        saving: what is saved.
        rows: rows that are saved; of a run with adaptive steps the largest number.
        max_steps: largest number of adaptive steps.
        given_first: whether the length of the first adaptive step is given.
        step_ends: whether there are times at which adaptive steps end.
        plain: the same run by JAX, for derivatives that no kernel has.
        strict: whether a derivative that no kernel has is refused instead.
        once: whether no kernel has its derivative, as it is computed beside one.
    """

    problem: InitialValueProblem
    saving: Saving
    rows: int
    max_steps: int
    given_first: bool
    step_ends: bool = False
    plain: Function | None = None
    strict: bool = False
    once: bool = False

    @property
    def own_rule(self) -> str | None:
        """A rule of derivatives that a user has written, whose own derivative no kernel has."""
        result = self.problem.own_rules
        return f"{result[0]}, whose derivative is that of the plain program." if result else None

    def beside_derivative(self) -> "Run":
        """Itself, computed where its derivative is wanted, too."""
        if not any(x.one_way for x in self.problem.own_rules):
            return self
        plain = None if self.plain is None else self.plain.beside_derivative()
        return self._replace(plain=plain, once=True)

    @property
    def adaptive(self) -> bool:
        """Whether the steps are adaptive."""
        return self.problem.controller is not None

    @property
    def times(self) -> int:
        """Arguments that are times."""
        first = 3 + self.given_first + self.step_ends if self.adaptive else 1
        return first + self.saving.times

    def programs(self) -> list[Subprogram]:
        """What the loops over steps call."""
        if self.adaptive:
            return adaptive_step_programs(
                self.problem, self.given_first, self.saving.times, self.step_ends
            )
        return fixed_step_programs(self.problem, self.saving.times)

    def results(self) -> list[tuple[int, ...]]:
        """Shapes of the results: rows, final state; of adaptive steps times and a `Summary`."""
        n = self.problem.states
        more = [(self.rows,), (len(Summary._fields),)] if self.adaptive else []
        return [(self.rows, n), (n,), *more]


class _Varied(NamedTuple):
    """A run by JAX of states with their derivatives in some directions.

    Args:
        plain: the run of the states alone.
        states: their number.
        parameters: their number.
        active: numbers of the parameters that vary.
        directions: how many there are.
    """

    plain: Function
    states: int
    parameters: int
    active: tuple[int, ...]
    directions: int

    def __call__(self, mode: str, y, *arguments) -> list[jax.Array]:
        first, last = self.parameters, self.parameters + len(self.active)
        rows = y.reshape(1 + self.directions, self.states)
        primals = (rows[0], *arguments[:first], *arguments[last:])
        along = self.plain.along((0, *(1 + i for i in self.active)))
        push = lambda *moves: along.in_mode(mode, *primals, *moves)[:2]  # noqa: E731
        primal_rows, pushed = (
            self.plain.in_mode(mode, *primals),
            jax.vmap(push)(rows[1:], *arguments[first:last]),
        )
        saved, final = (
            jnp.concatenate([a, *b], -1) for a, b in zip(primal_rows, pushed, strict=False)
        )
        return [saved, final, *primal_rows[2:]]


def varied(run: Run, active: tuple[int, ...], directions: int) -> Run:
    """The run of states with their derivatives in some directions."""
    problem, plain = run.problem.varied(active, directions), run.plain
    more = run._replace(problem=problem, plain=None)
    if plain is None:
        return more
    with_directions = _Varied(
        plain, run.problem.states, len(run.problem.parameters), active, directions
    )
    shapes = tuple(jax.ShapeDtypeStruct(x, problem.dtype) for x in more.results())
    return more._replace(plain=Function(with_directions, shapes, pushed=True))


def work(programs, loops: list[Definition], lanes: Lanes, axes: Axes, run: Run) -> Work:
    """What is launched: loops, and the programs that they call."""
    shared = run.problem.shared(axes.ranks())
    functions = library(programs, lanes.width, lanes.dtype, lanes.register_width, shared)
    every = dict.fromkeys(x for one in programs for x in (*called(one.program), one))
    content = [f"{x.name} {x.entries}\n{x.program.content()}" for x in every]
    numbers = (run.rows, run.max_steps, run.given_first, run.step_ends)
    about = f"{run.saving} {numbers} {axes.batched}"
    text = "\n".join([about, *content])
    return Work([*functions, *loops], axes, text, lanes.width)


# The run itself.


def _shapes(*arguments, run: Run, axes: Axes):
    return results([(*axes.shape, *x) for x in run.results()], run.problem.dtype, arguments)


def lowered(platform: Platform, ctx, *arguments, run: Run, axes: Axes):
    """A run on a platform, by the context of its lowering: what the platform makes of it."""
    if run.adaptive:
        from jaxdae.kernels.integration.adaptive_steps import adaptive_steps as loops
    else:
        from jaxdae.kernels.integration.fixed_steps import fixed_steps as loops
    lanes = platform.writer(run.problem.dtype, axes, ctx)
    body = loops(run, lanes, axes.ranks(), axes.rank)
    return platform.launch(ctx, arguments, work(run.programs(), [body], lanes, axes, run))


native_integration = primitive("native_integration", _shapes, lowerings=on_platforms(lowered))
