"""One run: what is simulated, how, and what comes out of the integration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known, EXAMINATION
from jaxdae.control.base import control_input
from jaxdae.events.crossings import FirstCrossing
from jaxdae.events.declaration import Event
from jaxdae.events.records import Events
from jaxdae.formulations import AbstractFormulation
from jaxdae.simulation.field import field, vector_field
from jaxdae.simulation.split import explicit_field, implicit_field
from jaxdae.solvers.constrained_term import term
from jaxdae.solvers.projected import between_steps
from jaxdae.systems import constraint_residuals, State, System

# What `simulate` does where it is not asked for anything else: largest residual of a start, largest
# number of steps, saved times of an adaptive run.
START_TOLERANCE = 1e-4
MAX_STEPS = 2**16
DEFAULT_TIMES = 201
MAX_EVENTS = 100
# A residual above this power of the machine epsilon is not round-off: 5e-7 in double precision.
ROUND_OFF = 0.4


def default_tolerance(dtype) -> float:
    """Relative, and absolute, tolerance of adaptive steps where none is given."""
    return 1e-8 if jnp.finfo(dtype).eps < 1e-12 else 1e-5


class Times(NamedTuple):
    """Times of a run [s], arrays of its precision or `None`.

    Args:
        start: where it starts.
        end: where it ends.
        first_step: length of the first adaptive step, or of all where they are counted as it runs.
        grid: ends of fixed steps.
        saved: times that are saved where the run asks for none.
    """

    start: Any
    end: Any
    first_step: Any = None
    grid: Any = None
    saved: Any = None


class Problem(NamedTuple):
    """What is simulated: a pytree, of which arrays are arguments of the compiled program.

    Args:
        system: what moves.
        formulation: how its constraints are enforced.
        controller: `u = controller(t, q, v, w)`, or `None`.
        state: start.
        times: from when to when.
        event: what ends it before, of the parts of a run with events; `None` for all others.
        events: that the user has declared.
    """

    system: System
    formulation: AbstractFormulation
    controller: Callable | None
    state: State
    times: Times
    event: FirstCrossing | None = None
    events: tuple[Event, ...] = ()

    @property
    def parts(self) -> tuple[System, AbstractFormulation, Callable | None]:
        """What the vector field depends on."""
        return self.system, self.formulation, self.controller

    def needs(self, solver) -> AbstractFormulation:
        """What backends ask of a formulation."""
        return self.formulation

    @staticmethod
    def has_no_rate() -> bool:
        """Whether solvers are given equations alone."""
        return False

    @property
    def motion(self) -> "Problem":
        """The same without a start and times."""
        return self._replace(state=None, times=None, event=None)

    @staticmethod
    def rate(t, y, parts) -> Any:
        """`dy/dt` of what is integrated."""
        return field(t, y, parts)

    def slope(self, t, y) -> Any:
        """The same, of these parts."""
        return field(t, y, self.parts)

    def state_of(self, t, y) -> State:
        """The state as events have it, of what is integrated."""
        return self.formulation.recover(self.system, t, y[0])

    def own_state(self, t, state: State, like) -> Any:
        """The formulation's own state, of the kind of another."""
        return self.formulation.init(self.system, t, state, like=like)

    def on_constraints(self, t, y, solver) -> Any:
        """What is integrated, as a solver that enforces the constraints keeps it."""
        projection = between_steps(solver)
        return y if projection is None else projection.project(t, y, self.parts)

    def behind(self, t, state: State) -> State:
        """A state that a reset has returned, as the run goes on from it."""
        return state

    def off_constraints(self, t, before: State, given: State) -> tuple[Any, Any, Any] | None:
        """Residuals before a reset, of what it returned, and what they are relative to."""
        if not self.formulation.capabilities.enforces_constraints:
            return None
        old, new = (self._residual(t, x) for x in (before, given))
        return old, new, 1 + jnp.max(jnp.abs(jnp.concatenate([given.q, given.v])))

    def _residual(self, t, state: State):
        """The largest constraint residual, at both levels."""
        found = constraint_residuals(self.system, t, state.q, state.v)
        return jnp.max(jnp.abs(jnp.concatenate([found.phi, found.phi_dot])), initial=0.0)

    @staticmethod
    def term_of(solver) -> diffrax.AbstractTerm:
        """What a solver steps."""
        return term(solver, vector_field, control_input, (explicit_field, implicit_field))

    @staticmethod
    def kernel_term_of(solver) -> diffrax.AbstractTerm:
        """What kernels step."""
        return term(solver, field, control_input)


class Method(NamedTuple):
    """How it is simulated: settings that decide what is compiled.

    Args:
        solver: the step method.
        stepsize_controller: what chooses adaptive steps; `None` for the default, or fixed steps.
        saveat: what is saved; `None` for the default.
        adjoint: how the plain backend differentiates.
        meter: progress meter.
        max_steps: largest number of steps.
        work: whether works are integrated along with the motion.
        backend: name of the backend to try.
        strict: whether it must be that one.
        why_not: why it is not the native one, or what that one leaves to the plain one, in words.
        direction: 1 forward in time, -1 backward, `None` where that is not known yet.
        only_end: whether only the end is asked for, and rows are saved to monitor the run.
        start_is_known: whether the start is known to suit the formulation.
        picked: numbers of the rows that are asked for, among more that monitor the run; `None` for
            all.
        times_are_known: whether times are numbers, by which nothing is differentiated.
        max_events: largest number of events.
        reset_tolerance: largest constraint residual behind a reset, relative to
            `1 + max |q|, |v|`; `None` allows any.
        structure: zeros and ones of the system that kernels may take for constants.
        perturbed: whether adaptive steps suit derivatives of the motion as well, as they do where
            it is differentiated (`derivatives/perturbation.py`).
    """

    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController | None
    saveat: diffrax.SaveAt | None
    adjoint: diffrax.AbstractAdjoint
    meter: diffrax.AbstractProgressMeter
    max_steps: int
    work: bool
    backend: str = "native"
    strict: bool = False
    why_not: str | None = None
    direction: int | None = None
    only_end: bool = False
    start_is_known: bool = False
    picked: Any = None
    times_are_known: bool = True
    max_events: int = MAX_EVENTS
    reset_tolerance: Any = None
    structure: tuple["Structure", ...] = ()
    perturbed: bool = False


def as_examined(method: Method) -> Method:
    """A method as an examination of derivatives asks for it, if there is one."""
    asked = EXAMINATION.value
    return method if asked is None or not asked.perturbed else method._replace(perturbed=True)


class Structure(NamedTuple):
    """Entries of an array of a system that are known to be 0, 1 or -1.

    Args:
        leaf: number of the array among those of the system.
        numbers: of all entries, as bytes; NaN where they are others.
    """

    leaf: int
    numbers: bytes


def structure_of(system: System) -> tuple[Structure, ...]:
    """Zeros and ones in the vectors and matrices of a system that says they are its structure.

    Kernels are made for them, and others for other ones; numbers that are traced have none.
    """
    if not system.zeros_are_structure:
        return ()
    arrays = [x for x in jax.tree.leaves(system) if eqx.is_array(x)]
    found = []
    for i, x in enumerate(arrays):
        if np.ndim(x) and are_known(x):
            values = np.asarray(x)
            simple = (values == 0) | (np.abs(values) == 1)
            if simple.any():
                found.append(Structure(i, np.where(simple, values, np.nan).tobytes()))
    return tuple(found)


class Integration(NamedTuple):
    """What a backend gives.

    Args:
        backend: that made it, by which saved states are read as well.
        ts: times of the rows, in the structure of `SaveAt.subs`.
        rows: what is saved there.
        end_time: time that was reached [s].
        end: the formulation's own state there.
        stats: numbers of steps.
        result: diffrax's result code.
        interpolation: dense output, or `None`.
        why_not: what of the run or its derivatives is not native, in words, or `None`.
        misfit: how far functions of an event are from what steps take them for, a
            `jaxdae.solvers.monitored.Misfit`; `None` without one.
    """

    backend: Any
    ts: Any
    rows: Any
    end_time: Any
    end: Any
    stats: dict[str, Any]
    result: diffrax.RESULTS
    interpolation: Any = None
    why_not: str | None = None
    misfit: Any = None


class Solution(NamedTuple):
    """What a run gives: arrays, and what is needed to read them.

    Args:
        ts: times of the rows [s], `inf` in those that were not reached.
        saved: the formulation's own states there, or what `SaveAt(fn=…)` has made of them.
        final_time: the last time reached with a finite state [s].
        final: the formulation's own state there.
        result: diffrax's result code; `event_occurred` where an event has ended the run,
            `nonfinite` where fixed steps went on through NaN.
        stats: numbers of steps.
        interpolation: dense output, or `None`.
        work: works at the rows, or `None`.
        plain: whether states were saved at times.
        start: time and the formulation's own state at the start.
        monitored: times, states and works of rows on the way, where fewer are asked for.
        formulation: the one that was integrated, holding the ranks of the start.
        backend: that made the run, by which saved states are read as well.
        why_not: what of the run or its derivatives is not native, in words, or `None`.
        dependent: whether constraints depend on each other at the start, so that it failed; `None`
            where that was known or does not matter.
        events: that happened, or `None` for a run without.
    """

    ts: Any
    saved: Any
    final_time: Any
    final: Any
    result: diffrax.RESULTS
    stats: dict[str, Any]
    interpolation: Any
    work: Any
    plain: bool
    start: Any
    monitored: Any
    formulation: AbstractFormulation
    backend: Any
    why_not: str | None
    dependent: Any = None
    events: Events | None = None
