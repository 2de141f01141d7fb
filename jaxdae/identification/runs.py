"""The runs that explain the data, in batches of one kind, and what channels show of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation
from jaxdae.identification.starts import moved
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.simulation.run import run
from jaxdae.systems import consistent_state, State, System
from jaxdae.systems.calls import check_instance


class Settings(Module):
    """How runs are simulated; as for `simulate`."""

    dt: float | None
    solver: diffrax.AbstractSolver | None
    stepsize_controller: diffrax.AbstractStepSizeController | None
    max_steps: int = eqx.field(static=True)
    backend: Any = eqx.field(static=True)

    @property
    def fixed_step(self) -> float | None:
        """Length of fixed steps; of adaptive ones `dt` is the first."""
        asked = self.stepsize_controller
        return self.dt if asked is None or isinstance(asked, diffrax.ConstantStepSize) else None


class Runs(NamedTuple):
    """How runs are made, with a leading axis of runs.

    Args:
        start: time where it starts [s], from `origin`.
        end: where it ends [s].
        samples: where the channels are read; the last is the end.
        origin: what is added to these times; zero where system or input depends on time.
        guess: state at the start; of starts that are functions of the system, what they give.
        moves: from independent coordinates to changes of it.
        prior: from these coordinates to what the guess's own noise makes of them.
        given: controller and conditions.
    """

    start: Any
    end: Any
    samples: Any
    origin: Any
    guess: Any
    moves: Any
    prior: Any
    given: Any


class Batch(Module):
    """Runs of one kind; every array has a leading axis of runs.

    Args:
        runs: how they are made.
        values: samples, shape `(runs, channels, times)`; zero where there is none.
        weights: one over the noise, zero where there is no sample.
        channels: which channels these are.
        function: the start as a function of the system, if it is one.
        project: whether starts are brought onto the constraints.
        members: experiment and interval of each run.
        longest: start, end [s] and fixed step (or `None`) of the longest run, for what is decided
            when a program is made.
    """

    runs: Runs
    values: Float[Array, "runs channels times"]
    weights: Float[Array, "runs channels times"]
    channels: tuple[int, ...] = eqx.field(static=True)
    function: Callable | None = eqx.field(static=True)
    project: bool = eqx.field(static=True)
    members: tuple[tuple[int, int], ...] = eqx.field(static=True)
    longest: tuple[float, float, float | None] = eqx.field(static=True)

    def member(self, tree: Any, index: int) -> Any:
        """One run of a tree; what is no array all runs share."""
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, tree)


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
        """Channels and states of all runs of a batch, whose starts have the coordinates `z`."""

        def one(member: Runs, z):
            parts = self.parts(params, member.given)
            guess = member.guess if batch.function is None else batch.function(parts[0])
            state = moved(guess, member.moves, z)
            if batch.project:
                state = consistent_state(parts[0], state.q, state.v, member.start, w=state.w)
            trajectory = self._simulated(parts, state, member, batch.longest)
            values = jnp.stack([_read(self.channels[c], trajectory) for c in batch.channels])
            # Fixed steps may go on past the end of a run, and fail there.
            values = jnp.where(jnp.isfinite(trajectory.ts), values, jnp.nan)
            return Readings(values, state, trajectory.states)

        return eqx.filter_vmap(one)(batch.runs, z)

    def _simulated(self, parts, state: State, member: Runs, longest) -> Trajectory:
        """One run at its own times, of which the program knows only how many they are."""
        (system, formulation, controller), settings = parts, self.settings
        t0, t1, dt = longest
        ts = jnp.asarray(np.linspace(t0, t1, member.samples.shape[0]))
        problem, method = prepare(
            system, formulation, state, t0=t0, t1=t1, dt=dt,
            solver=settings.solver, stepsize_controller=settings.stepsize_controller,
            saveat=diffrax.SaveAt(ts=ts), controller=controller,
            adjoint=diffrax.ForwardMode(), backend=settings.backend, progress=False, throw=False,
            work=False, start_tolerance=None, max_steps=settings.max_steps,
        )  # fmt: skip
        cast = lambda x: jnp.asarray(x, state.q.dtype)  # noqa: E731
        if problem.times.grid is None:
            times = problem.times._replace(start=cast(member.start), end=cast(member.end))
            problem = problem._replace(times=times)
        saveat = eqx.tree_at(lambda s: s.subs.ts, method.saveat, cast(member.samples))
        method = method._replace(saveat=saveat)
        trajectory = Trajectory.of(problem, method, run(problem, method))
        return eqx.tree_at(lambda x: x.ts, trajectory, trajectory.ts + cast(member.origin))


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
