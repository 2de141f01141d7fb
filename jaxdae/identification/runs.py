"""The runs that explain the data: experiments and their intervals, in batches of one kind."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation
from jaxdae.identification.starts import moved, projected
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.simulation.run import run
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance


class Settings(Module):
    """How runs are simulated; as for `simulate`."""

    dt: float | None
    solver: diffrax.AbstractSolver | None
    stepsize_controller: diffrax.AbstractStepSizeController | None
    max_steps: int = eqx.field(static=True)
    backend: Any = eqx.field(static=True)


class Span(NamedTuple):
    """Times of one run [s], from an origin of their own.

    Args:
        start: where it starts.
        end: where it ends.
        samples: where the channels are read; the last is the end.
        origin: what is added to them; zero where the system or its input depends on time.
    """

    start: Any
    end: Any
    samples: Any
    origin: Any


class Start(NamedTuple):
    """How one run begins.

    Args:
        guess: the state; of starts that are functions of the system, what they give at first.
        tangent: independent coordinates of what may be moved.
    """

    guess: Any
    tangent: Any


class Template(NamedTuple):
    """The longest run of a batch, for what is decided when a program is made.

    Args:
        start: where it starts [s].
        end: where it ends [s].
        steps: number of fixed steps, or `None`.
        samples: number of samples.
    """

    start: float
    end: float
    steps: int | None
    samples: int

    @property
    def dt(self) -> float | None:
        """Length of fixed steps; above the quotient by round-off, not to make a step more."""
        return None if self.steps is None else (self.end - self.start) / self.steps * (1 + 1e-9)

    @property
    def ts(self) -> np.ndarray:
        """Times of as many samples."""
        return np.linspace(self.start, self.end, self.samples)


class Batch(Module):
    """Runs of one kind; every array has a leading axis of runs.

    Args:
        spans: times.
        starts: how they begin.
        given: controllers and conditions.
        values: samples, shape `(runs, channels, times)`; zero where there is none.
        weights: one over the noise, zero where there is no sample.
        channels: which channels these are.
        function: the start as a function of the system, if it is one.
        project: whether starts are brought onto the constraints.
        members: experiment and interval of each run.
    """

    spans: Span
    starts: Start
    given: Any
    values: Float[Array, "runs channels times"]
    weights: Float[Array, "runs channels times"]
    channels: tuple[int, ...] = eqx.field(static=True)
    function: Callable | None = eqx.field(static=True)
    project: bool = eqx.field(static=True)
    members: tuple[tuple[int, int], ...] = eqx.field(static=True)
    template: Template = eqx.field(static=True)


class Readings(NamedTuple):
    """What the model says of the runs of a batch.

    Args:
        values: of the channels, shape `(runs, channels, times)`; NaN where a run failed.
        first: states at the starts.
        states: at the samples.
    """

    values: Any
    first: State
    states: State

    @property
    def last(self) -> State:
        """States at the ends."""
        return jax.tree.map(lambda x: x[:, -1], self.states)


class Model(Module):
    """From parameters to what the channels show.

    Args:
        build: maps resolved parameters to `(system, formulation)` or `(…, controller)`.
        channels: functions of a trajectory.
        settings: how runs are simulated.
    """

    build: Callable
    channels: tuple[Callable, ...]
    settings: Settings

    def parts(self, params, given) -> tuple[Any, Any, Any]:
        """System, formulation, controller of a run."""
        controller, conditions = given
        made = self.build(params) if conditions is None else self.build(params, conditions)
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise TypeError(
                f"identify: build returned a {type(made).__name__}, must return (system, "
                "formulation), or (system, formulation, controller)."
            )
        system, formulation, own = (*made, None)[:3]
        check_instance("identify: build returned a system that", system, System, "a System first")
        check_instance(
            "identify: build returned a formulation that", formulation, AbstractFormulation,
            "a formulation, such as jaxdae.Multipliers(), second",
        )  # fmt: skip
        if own is not None and controller is not None:
            raise ValueError(
                "identify: build returns a controller and an experiment has one as well; keep one."
            )
        return system, formulation, controller if own is None else own

    def readings(self, params, batch: Batch, z: Float[Array, "runs d"]) -> Readings:
        """Channels, and states at both ends, of all runs of a batch.

        Args:
            params: resolved parameters.
            batch: the runs.
            z: independent coordinates of their starts.
        """

        def one(span, start, given, z):
            system, formulation, controller = self.parts(params, given)
            state = self._start(system, span.start, batch, start, z)
            parts = (system, formulation, controller)
            trajectory = self._simulated(parts, state, span, batch.template)
            values = jnp.stack([_read(self.channels[c], trajectory) for c in batch.channels])
            # Fixed steps may go on past the end of a run, and fail there.
            values = jnp.where(jnp.isfinite(trajectory.ts), values, jnp.nan)
            return Readings(values, state, trajectory.states)

        return eqx.filter_vmap(one)(batch.spans, batch.starts, batch.given, z)

    def _start(self, system, t, batch: Batch, start: Start, z) -> State:
        guess = start.guess if batch.function is None else batch.function(system)
        state = moved(guess, start.tangent, z)
        return projected(system, t, state) if batch.project else state

    def _simulated(self, parts, state: State, span: Span, template: Template) -> Trajectory:
        """One run at its own times, of which the program knows only how many they are."""
        (system, formulation, controller), settings = parts, self.settings
        problem, method = prepare(
            system, formulation, state, t0=template.start, t1=template.end, dt=template.dt,
            solver=settings.solver, stepsize_controller=settings.stepsize_controller,
            saveat=diffrax.SaveAt(ts=jnp.asarray(template.ts)), controller=controller,
            adjoint=diffrax.ForwardMode(), backend=settings.backend, progress=False, throw=False,
            work=False, start_tolerance=None, max_steps=settings.max_steps,
        )  # fmt: skip
        cast = lambda x: jnp.asarray(x, state.q.dtype)  # noqa: E731
        if problem.times.grid is None:
            times = problem.times._replace(start=cast(span.start), end=cast(span.end))
            problem = problem._replace(times=times)
        saveat = eqx.tree_at(lambda s: s.subs.ts, method.saveat, cast(span.samples))
        method = method._replace(saveat=saveat)
        trajectory = Trajectory.of(problem, method, run(problem, method))
        return eqx.tree_at(lambda x: x.ts, trajectory, trajectory.ts + cast(span.origin))


def _read(channel: Callable, trajectory: Trajectory):
    values = channel(trajectory)
    shape = None if values is None else np.shape(values)
    if shape != trajectory.ts.shape:
        found = "is None" if shape is None else f"has shape {shape}"
        raise ValueError(
            f"identify: a channel's reading {found}, must have one number at each "
            f"of the {trajectory.ts.size} times, such as lambda run: run.q[:, 0]."
        )
    return jnp.asarray(values)
