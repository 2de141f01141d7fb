"""Runs of diffrax that an event may end within a step, not only between two ends of steps."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.derivatives.perturbation import stopped
from jaxdae.solvers.base import time_of
from jaxdae.solvers.event import HALVING, lowest, Watch
from jaxdae.solvers.wrapped import AbstractAroundController, AbstractAroundSolver


class Misfit(NamedTuple):
    """Where functions of events were least like the cubics that steps take them for.

    Args:
        size: the largest `Watch.misfit` of all steps.
        which: number of the function.
        time: where the step begins [s].
    """

    size: Any
    which: Any
    time: Any


class _Seen(NamedTuple):
    """What is integrated besides a state: what was seen in the step before it.

    Args:
        time: where a function is at or below zero, or the end of the step, in the order of time.
        low: the least value of functions there.
        misfit: of all steps so far.
    """

    time: Any
    low: Any
    misfit: Misfit


# Not as a program of its own, which JAX would keep a trace of: it is part of one.
_diffeqsolve: Any = inspect.unwrap(diffrax.diffeqsolve)


def solve_until(event: Any, sign, terms, solver, t0, t1, dt0, y0, **how) -> Any:
    """`diffrax.diffeqsolve`, ended where functions fall to zero, within steps too.

    Args:
        event: what ends the run, a `jaxdae.events.crossings.FirstCrossing` or `None`.
        sign: 1 forward in time, -1 backward.
        terms: as diffrax has them, and so is what follows.
        solver: of the steps.
        t0: start [s].
        t1: end [s].
        dt0: first step [s], or `None`.
        y0: the formulation's own state, and works or `None`.
        how: everything else, by its name.

    Returns:
        The solution, and a `Misfit`, or `None` without an event.
    """
    if event is None:
        return _diffeqsolve(terms, solver, t0, t1, dt0, y0, **how), None
    fixed = stopped((event, how["args"]))
    zero = jnp.zeros((), jnp.result_type(t0))
    first = jax.lax.stop_gradient(event.value(t0, y0, how["args"]))
    begin = jax.lax.stop_gradient(jnp.asarray(t0))
    seen = _Seen(sign * begin, first, Misfit(zero, zero, begin))

    def ahead(t, y, args, **kwargs):
        """Positive up to the event."""
        state, seen = y
        # Of the default precision, as what diffrax puts in its place where it does not count.
        here = event.value(sign * t, state, args)
        return jnp.where(t > seen.time, seen.low, here).astype(float)

    control = how["stepsize_controller"]
    if isinstance(control, diffrax.AbstractAdaptiveStepSizeController):
        control = _OfStates(control)
    last = diffrax.SubSaveAt(t1=True, fn=lambda t, y, args: y[1].misfit)
    saveat = jax.tree.map(_of_state, how["saveat"].subs, is_leaf=_is_sub)
    saveat = eqx.tree_at(
        lambda s: s.subs, how["saveat"], (saveat, last), is_leaf=lambda x: x is None
    )
    settings = how | {
        "stepsize_controller": control,
        "saveat": saveat,
        "event": diffrax.Event(ahead, HALVING, direction=False),
    }
    monitored = _Monitored(solver, fixed)
    found = _diffeqsolve(_Terms(terms), monitored, t0, t1, dt0, (y0, seen), **settings)
    (ts, _), (ys, misfit) = found.ts, found.ys  # pyright: ignore[reportGeneralTypeIssues]
    misfit = jax.tree.map(lambda x: x[0], misfit)
    return eqx.tree_at(lambda s: (s.ts, s.ys), found, (ts, ys)), misfit


def _is_sub(x) -> bool:
    return isinstance(x, diffrax.SubSaveAt)


def _of_state(sub):
    """What is saved of a state, of one with what was seen."""
    return eqx.tree_at(lambda s: s.fn, sub, lambda t, y, args, fn=sub.fn: fn(t, y[0], args))


class _Terms(diffrax.AbstractTerm):
    """Terms of a state, for diffrax to find nothing wrong with where it has more to integrate."""

    terms: Any

    def vf(self, t, y, args):
        return y

    def contr(self, t0, t1, **kwargs):
        return t1 - t0

    def prod(self, vf, control):
        return jax.tree.map(lambda x: control * x, vf)


def _of_solver(terms) -> Any:
    """Terms of the solver, with the direction of time that diffrax has put around all of them."""
    one = lambda x: isinstance(x, diffrax.AbstractTerm) and not isinstance(x, diffrax.MultiTerm)  # noqa: E731
    wrap = lambda x: type(terms)(x, terms.direction)  # noqa: E731
    if isinstance(terms, _Terms):
        return terms.terms
    return jax.tree.map(wrap, terms.term.terms, is_leaf=one)


class _Monitored(AbstractAroundSolver):
    """Steps of a solver, each searched for functions of events that fall within it.

    It integrates a state and a `_Seen`; the event and arguments of the vector field are `fixed`,
    without derivatives.
    """

    solver: diffrax.AbstractSolver  # pyright: ignore[reportIncompatibleVariableOverride]
    fixed: Any
    term_structure: ClassVar[Any] = diffrax.AbstractTerm

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(_of_solver(terms), t0, t1, y0[0], args)

    def func(self, terms, t0, y0, args):
        # Step size controllers alone ask for it, and are given states.
        return self.solver.func(_of_solver(terms), t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        state, before = y0
        y1, error, dense, solver_state, result = self.solver.step(
            _of_solver(terms), t0, t1, state, args, solver_state, made_jump
        )
        seen = self._seen(terms, t0, t1, dense, before)
        none = jax.tree.map(jnp.zeros_like, seen)
        dense = {"inner": dense, "seen": seen}
        return (y1, seen), (error, none), dense, solver_state, result

    def _seen(self, terms, t0, t1, dense, before: _Seen) -> _Seen:
        (event, args), (t0, t1, dense) = self.fixed, stopped((t0, t1, dense))
        between = self.solver.interpolation_cls(t0=t0, t1=t1, **dense)
        watch: Watch = lowest(
            lambda t: event.values(time_of(terms, t), between.evaluate(t), args), t0, t1
        )
        worse = watch.misfit > before.misfit.size
        misfit = Misfit(watch.misfit, watch.which, time_of(terms, t0))
        misfit = jax.tree.map(lambda a, b: jnp.where(worse, a, b), misfit, before.misfit)
        return _Seen(watch.time, watch.low, misfit)

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output, along which what was seen is that of the step."""
        return eqx.Partial(_Between, self.solver.interpolation_cls)


class _Between(diffrax.AbstractLocalInterpolation):
    """Dense output of a step, with what was seen in it.

    Args:
        make: makes that of the solver.
        t0: beginning of the step [s].
        t1: its end [s].
        inner: what dense output of the solver is made of.
        seen: in the step.
    """

    make: Callable
    t0: Any
    t1: Any
    inner: dict[str, Any]
    seen: _Seen

    def evaluate(self, t0, t1=None, left=True):
        found = self.make(t0=self.t0, t1=self.t1, **self.inner).evaluate(t0, t1, left)
        seen = self.seen if t1 is None else jax.tree.map(jnp.zeros_like, self.seen)
        return found, seen


class _OfStates(AbstractAroundController):
    """A step size controller that is given states without what was seen."""

    controller: Any

    def __init__(self, controller: Any):
        self.controller = controller

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return super().init(terms, t0, t1, y0[0], dt0, args, func, error_order)

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        error: Any = None if y_error is None else y_error[0]
        return self.controller.adapt_step_size(
            t0, t1, y0[0], y1_candidate[0], args, error, error_order, controller_state
        )
