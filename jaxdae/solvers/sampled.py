"""Steps under a controller that is asked at multiples of a period."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known, fails
from jaxdae.solvers.base import refuse_memory
from jaxdae.solvers.dense_output import AbstractDenseOutput
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.wrapped import AbstractAroundController, AbstractChangedEnds

# Of the time, in units of its round-off: what a multiple of a period may be off.
_ROUND_OFF = 64


class Sampled(AbstractChangedEnds):
    """A solver of whose steps some end at samples, where a controller renews its memory.

    The memory is the last part of the actuator state `w`. It is held along a step: dense output
    does not smooth its jumps, and has at the end of a step what it is after the sample.

    Args:
        solver: any diffrax solver, or `Projected`.
        size: numbers of the memory.
    """

    solver: diffrax.AbstractSolver  # pyright: ignore[reportIncompatibleVariableOverride]
    size: int = eqx.field(static=True)

    def __check_init__(self):
        refuse_memory(self.solver, "A controller that is sampled")

    def finish(self, t, y, args):
        if isinstance(self.solver, AbstractChangedEnds):
            y = self.solver.finish(t, y, args)
        inner, work = y
        system, formulation, output = args
        controller, k = output.controller, output.actuators
        state = formulation.recover(system, t, inner)
        period = jnp.asarray(controller.period, inner.w.dtype)
        c = inner.w[k:]
        renewed = controller.sample(t, state.q, state.v, state.w[:k], c)
        held = jnp.where(is_sample(t, period), renewed, c)
        return eqx.tree_at(lambda x: x.w, inner, jnp.concatenate([inner.w[:k], held])), work

    def dense(self, y0, y1, dense):
        if isinstance(self.solver, AbstractChangedEnds):
            dense = self.solver.dense(y0, y1, dense)
        return {"inner": dense, "before": self._memory(y0), "after": self._memory(y1)}

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output."""
        return eqx.Partial(_Held, self.solver.interpolation_cls)

    def between(self, t1, t, y0, y1, y):
        """A state on a step, with the memory as it is there.

        Args:
            t1: end of the step [s].
            t: time of the state [s].
            y0: state at the beginning.
            y1: state at the end, after the sample.
            y: state at `t` by the dense output of the solver.
        """
        return _held(t1, t, self._memory(y0), self._memory(y1), y)

    def _memory(self, y):
        w = y[0].w
        return w[w.size - self.size :]


class _Held(AbstractDenseOutput):
    """Dense output of a step along which the memory is held.

    Args:
        make: makes that of the solver.
        t0: beginning of the step [s].
        t1: its end [s].
        inner: what dense output of the solver is made of.
        before: memory along the step.
        after: memory at its end.
    """

    make: Callable
    t0: Any
    t1: Any
    inner: dict[str, Any]
    before: Any
    after: Any

    def at(self, t):
        y = self.make(t0=self.t0, t1=self.t1, **self.inner).evaluate(t)
        return _held(self.t1, t, self.before, self.after, y)


def _held(t1, t, before, after, y):
    memory = jnp.where(t >= t1 - _tolerance(t1), after, before)
    w = y[0].w
    return eqx.tree_at(lambda x: x[0].w, y, jnp.concatenate([w[: w.size - memory.size], memory]))


def _tolerance(t):
    """What two computations of one time may differ by."""
    return _ROUND_OFF * jnp.finfo(t.dtype).eps * jnp.abs(t)


def is_sample(t, period):
    """Whether a time is a multiple of a period, but for round-off.

    Args:
        t: time [s].
        period: [s].
    """
    return jnp.abs(t - jnp.round(t / period) * period) <= _tolerance(t)


def next_sample(t, period):
    """The next multiple of a period behind a time.

    Args:
        t: time [s]; a multiple, but for round-off, counts as one.
        period: [s].
    """
    nearest = jnp.round(t / period)
    behind = jnp.where(is_sample(t, period), nearest, jnp.floor(t / period)) + 1
    return behind * period


def sampled_grid(t0: float, t1: float, dt: float, period: float) -> np.ndarray:
    """Ends of fixed steps, none longer than `dt`, of which some are all multiples of a period.

    Between two samples the steps are of one length.

    Args:
        t0: start [s].
        t1: end, behind the start [s].
        dt: step [s].
        period: [s].
    """
    first, last = np.floor(t0 / period), np.ceil(t1 / period)
    samples = np.arange(first, last + 1) * period
    near = _ROUND_OFF * np.finfo(np.float64).eps * max(abs(t0), abs(t1))
    ends = np.array([t0, *samples[(samples > t0 + near) & (samples < t1 - near)], t1])
    counts = np.ceil(np.diff(ends) / dt * (1 - 1e-12)).astype(int)
    pieces = zip(ends[:-1], ends[1:], np.maximum(counts, 1), strict=True)
    parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in pieces]
    return np.concatenate([*parts, ends[-1:]])


class SampleSteps(AbstractAroundController):
    """A step size controller whose steps end at multiples of a period.

    Args:
        controller: what chooses the steps between these.
        period: [s]; `None` until `with_period` has given it.
    """

    controller: Any
    period: Any

    def __init__(self, controller: diffrax.AbstractAdaptiveStepSizeController, period: Any = None):
        self.controller, self.period = controller, period

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self._limited(t0, end), state

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        keep, begin, end, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        return keep, begin, self._limited(begin, end), jumped, state, result

    def _limited(self, begin, end):
        return jnp.minimum(end, next_sample(begin, jnp.asarray(self.period, begin.dtype)))


def with_samples(controller):
    """A step size controller that ends steps at the samples, too; times it knows by itself stay."""
    if type(controller) is diffrax.ClipStepSizeController:
        return eqx.tree_at(lambda x: x.controller, controller, with_samples(controller.controller))
    return SampleSteps(controller)


def with_period(controller, output):
    """A step size controller with the period of the controller that is sampled.

    Args:
        controller: of the steps.
        output: `u = output(t, q, v, w)` of a run.
    """
    if type(controller) is diffrax.ClipStepSizeController:
        inner = with_period(controller.controller, output)
        return eqx.tree_at(lambda x: x.controller, controller, inner)
    if not isinstance(controller, SampleSteps):
        return controller
    return SampleSteps(controller.controller, output.controller.period)


def check(controller, t0, t1, dt, control) -> None:
    """A period, and steps that can end at its multiples.

    Args:
        controller: that is sampled.
        t0: start [s].
        t1: end [s].
        dt: fixed step [s], or `None`.
        control: step size controller, or `None`.

    Raises:
        ValueError: saying which of them does not fit.
    """
    period = controller.period
    name = type(controller).__name__
    if fails(lambda x: np.ndim(x) == 0 and 0 < float(x) < np.inf, period):
        raise ValueError(
            f"the period of {name} must be a positive number of seconds; got {period}."
        )
    if fails(lambda t0, t1: not t1 < t0, t0, t1):
        raise ValueError(
            f"{name} keeps a memory, which a run backward in time cannot give back: t1 = {t1} s is "
            f"before t0 = {t0} s."
        )
    fixed = isinstance(control, diffrax.ConstantStepSize) or (control is None and dt is not None)
    if isinstance(control, diffrax.StepTo | Grid):
        raise ValueError(
            f"steps of {type(control).__name__} end at their own times, not at the samples of "
            f"{name}; give dt, or an adaptive stepsize_controller."
        )
    if fixed and not are_known(t0, t1, dt, period):
        raise ValueError(
            f"fixed steps that end at the samples of {name} are counted before the run: t0, t1, dt "
            "and the period have to be plain numbers. Leave dt out, and steps are adaptive."
        )
