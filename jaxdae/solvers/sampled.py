"""Steps under a controller that is asked at samples."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from optimistix import rms_norm

from jaxdae.checks import are_known, fails
from jaxdae.solvers.base import refuse_memory
from jaxdae.solvers.clocks import (
    Listed,
    listed_times,
    Multiples,
    relative_tolerance,
    time_tolerance,
)
from jaxdae.solvers.dense_output import AbstractDenseOutput
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.wrapped import AbstractAroundController, AbstractChangedEnds


class SampledEnds(AbstractChangedEnds):
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
        inner, work = y
        system, formulation, output = args
        controller, k = output.controller, output.actuators
        state = formulation.recover(system, t, inner)
        t = jnp.asarray(t, inner.w.dtype)
        c = controller.renew(t, state.q, state.v, state.w[:k], inner.w[k:])
        return eqx.tree_at(lambda x: x.w, inner, jnp.concatenate([inner.w[:k], c])), work

    def is_due(self, t, args):
        t = jnp.asarray(t)
        return jnp.any(jnp.stack([x.is_due(t) for x in args[2].controller.clocks]))

    def dense(self, y0, y1, dense):
        if isinstance(self.solver, AbstractChangedEnds):
            dense = self.solver.dense(y0, y1, dense)
        return {"inner": dense, "before": self._memory(y0), "after": self._memory(y1)}

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output."""
        return eqx.Partial(_HeldOutput, self.solver.interpolation_cls)

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


class _HeldOutput(AbstractDenseOutput):
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
    memory = jnp.where(t >= t1 - time_tolerance(t1), after, before)
    w = y[0].w
    return eqx.tree_at(lambda x: x[0].w, y, jnp.concatenate([w[: w.size - memory.size], memory]))


class SampleSteps(AbstractAroundController):
    """A step size controller whose steps end at the times of clocks.

    What is held has no error; a mean over all entries is one over the others.

    Args:
        controller: what chooses the steps between these.
        size: numbers that are held.
        clocks: `None` until `with_clocks` has given them; times that are listed are no matter of
            this controller.
    """

    controller: Any
    size: int = eqx.field(static=True)
    clocks: Any

    def __init__(
        self,
        controller: diffrax.AbstractAdaptiveStepSizeController,
        size: int,
        clocks: Any = None,
    ):
        self.controller, self.size, self.clocks = controller, size, clocks

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self._limited(t0, end), state

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        if self.norm is rms_norm:
            entries = sum(x.size for x in jax.tree.leaves(y_error))
            larger = (entries / max(entries - self.size, 1)) ** 0.5
            y_error = jax.tree.map(lambda x: larger * x, y_error)
        keep, begin, end, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        return keep, begin, self._limited(begin, end), jumped, state, result

    def _limited(self, begin, end):
        for clock in self.clocks:
            end = jnp.minimum(end, clock.following(begin))
        return end


def with_samples(controller, clocks, size: int):
    """A step size controller that ends steps at the samples, too; times it knows by itself stay.

    Args:
        controller: of the steps.
        clocks: of the controller that is sampled.
        size: numbers that it keeps.
    """
    listed = listed_times(clocks)
    if type(controller) is diffrax.ClipStepSizeController:
        others = [x for x in clocks if not isinstance(x, Listed)]
        inner = with_samples(controller.controller, others, size)
        if listed is not None and controller.step_ts is not None:
            listed = jnp.sort(jnp.concatenate([controller.step_ts, listed]))
        steps = controller.step_ts if listed is None else listed
        # Tree surgery keeps what is done with steps that were rejected.
        return eqx.tree_at(
            lambda x: (x.controller, x.step_ts), controller, (inner, steps),
            is_leaf=lambda x: x is None,
        )  # fmt: skip
    controller = SampleSteps(controller, size)
    return controller if listed is None else diffrax.ClipStepSizeController(controller, listed)


def with_clocks(controller, output):
    """A step size controller with the clocks of the controller that is sampled.

    Args:
        controller: of the steps.
        output: `u = output(t, q, v, w)` of a run.
    """
    if type(controller) is diffrax.ClipStepSizeController:
        inner = with_clocks(controller.controller, output)
        return eqx.tree_at(lambda x: x.controller, controller, inner)
    if not isinstance(controller, SampleSteps):
        return controller
    clocks = tuple(x for x in output.controller.clocks if not isinstance(x, Listed))
    return SampleSteps(controller.controller, controller.size, clocks)


def check(controller, t0, t1, dt, control, dtype, *, goes_on: bool = False) -> None:
    """Times of samples, and steps that can end there.

    Args:
        controller: that is sampled.
        t0: start [s].
        t1: end [s].
        dt: fixed step [s], or `None`.
        control: step size controller, or `None`.
        dtype: of the run.
        goes_on: whether outputs may be on their way at the start.

    Raises:
        ValueError: saying which of them does not fit.
    """
    name, clocks = controller.name, controller.clocks
    for clock in clocks:
        _check_clock(clock, name)
        _check_apart(clock, name, t0, t1, dtype)
        late = clock.delay, t0, t1
        if not goes_on and fails(lambda x, t0, t1: x == 0 or t1 <= t0 or x < t1 - t0, *late):
            raise ValueError(
                f"the delay of {name}, {clock.delay} s, is as long as the run, from {t0} to {t1} "
                "s: no output would take effect."
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
    if fixed and not are_known(t0, t1, dt, clocks):
        raise ValueError(
            f"fixed steps that end at the samples of {name} are counted before the run: t0, t1, dt "
            "and the period have to be plain numbers. Leave dt out, and steps are adaptive."
        )


def _check_clock(clock, name: str) -> None:
    if isinstance(clock, Multiples):
        if fails(lambda x: np.ndim(x) == 0 and 0 < float(x) < np.inf, clock.period):
            raise ValueError(
                f"the period of {name} must be a positive number of seconds; got {clock.period}."
            )
    elif fails(_are_times, clock.times):
        raise ValueError(
            f"the times of {name} must be finite and increasing, shape (times,); got {clock.times}."
        )
    if fails(lambda x: np.ndim(x) == 0 and 0 <= float(x) < np.inf, clock.delay):
        raise ValueError(
            f"the delay of {name} must be zero or a positive number of seconds; got {clock.delay}."
        )


def _check_apart(clock, name: str, t0, t1, dtype) -> None:
    """Refuse samples so close to each other that round-off of the time makes them one."""
    part = relative_tolerance(dtype)

    def are_apart(clock, t0, t1):  # by NumPy: operations of JAX are traced, also of what is known
        if isinstance(clock, Multiples):
            size = max(abs(float(t0)), abs(float(t1))) + float(clock.delay)
            return 2 * part * size < float(clock.period)
        times = clock.between(t0, t1)
        times = times[(times >= float(t0)) & (times <= float(t1))].astype(dtype)
        return bool((np.diff(times) > part * np.abs(times[1:])).all())

    if fails(are_apart, clock, t0, t1):
        raise ValueError(
            f"samples of {name} are too close to each other for times up to {t1} s in {dtype}: "
            "round-off would make one of several. Begin at t0 = 0, or use double precision."
        )


def _are_times(times) -> bool:
    times = np.asarray(times)
    return (
        times.ndim == 1
        and times.size > 0
        and bool(np.all(np.isfinite(times)) and np.all(np.diff(times) > 0))
    )


def wrong_clocks(clocks) -> dict[str, Any]:
    """What is wrong with clocks that are known only when the program runs.

    By what is wrong in words, whether it is so.
    """
    found = {}
    for clock in clocks:
        if isinstance(clock, Multiples):
            period = jnp.asarray(clock.period)
            words = "the period of a controller that is sampled must be a positive number."
            found[words] = ~((period > 0) & jnp.isfinite(period)) | found.get(words, False)
        else:
            times = jnp.asarray(clock.times)
            ordered = jnp.all(jnp.isfinite(times)) & jnp.all(jnp.diff(times) > 0)
            words = "the times of a controller that is sampled must be finite and increasing."
            found[words] = ~ordered | found.get(words, False)
        delay = jnp.asarray(clock.delay)
        words = "the delay of a controller that is sampled must be zero or positive."
        found[words] = ~((delay >= 0) & jnp.isfinite(delay)) | found.get(words, False)
    return found
