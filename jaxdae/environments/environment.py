"""A system as an environment of reinforcement learning: episodes, samples, rewards."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdae.checks import fails
from jaxdae.formulations import AbstractFormulation
from jaxdae.reprs import Module
from jaxdae.runs import simulate
from jaxdae.solvers.grid import Grid
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance


class Episode(NamedTuple):
    """Where an episode is.

    Args:
        state: of the system.
        made: number of its samples.
        key: random key of the episodes that follow.
    """

    state: State
    made: Int[Array, ""]
    key: Array


class Transition(NamedTuple):
    """What a sample leads to.

    Args:
        episode: where it is now.
        observation: of its state, finite, shape (o,).
        reward: of the sample, finite.
        terminated: whether the episode has ended: by `terminal`, or as the motion failed.
        truncated: whether it has made all of its samples.
        success: false where the motion has failed, or an action was not finite: the state and the
            observation are those before, and the reward is `failure_reward`.
    """

    episode: Episode
    observation: Float[Array, " o"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    success: Bool[Array, ""]


class Environment(Module):
    r"""Episodes of a system, whose input is held from one sample to the next.

    All methods are functions of arrays: `jax.jit`, `jax.vmap` over keys, episodes and actions, and
    `jax.lax.scan` take them, gradients pass through, and batches run in kernels.

    Args:
        system: what moves.
        formulation: how its constraints are enforced.
        starts: `starts(key) -> State`, a random consistent start; a `State` for one that is fixed.
        reward: `reward(t, q, v, w, u)`, of a sample, at its end and with the input of it.
        period: between samples [s].
        samples: of an episode at most.
        inputs: pair of bounds of the inputs, each shape (s,), finite; actions are clipped to them.
        observe: `observe(t, q, v, w) -> (o,)`; by default `q, v, w` one after the other.
        terminal: `terminal(t, q, v, w)`, whether an episode ends; by default it does not.
        failure_reward: reward of a sample in which the motion fails.
        steps: integration steps of a sample.
        solver: step method; by default `diffrax.Dopri5()`.
        t0: time at which episodes begin [s].
        backend: as `simulate` has it.

    Raises:
        ValueError: for a period, numbers of samples or steps, or bounds that cannot be.
    """

    system: System
    formulation: AbstractFormulation
    starts: Callable[[Array], State] | State
    reward: Callable
    period: Any
    samples: int
    inputs: tuple[Any, Any]
    observe: Callable | None = None
    terminal: Callable | None = None
    failure_reward: float = 0.0
    steps: int = 1
    solver: diffrax.AbstractSolver = diffrax.Dopri5()
    t0: float = 0.0
    backend: Any = "auto"

    def __check_init__(self):
        if fails(lambda x: np.ndim(x) == 0 and 0 < float(x) < np.inf, self.period):
            raise ValueError(f"period must be a positive number of seconds, not {self.period}.")
        for name in ("samples", "steps"):
            value = getattr(self, name)
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a positive integer, not {value}.")
        low, high = self.inputs
        shapes = [np.shape(x) for x in self.inputs]
        if len(shapes[0]) != 1 or shapes[0] != shapes[1] or fails(_are_bounds, low, high):
            raise ValueError(
                "inputs must be two finite vectors, the lower bounds and the upper ones, which do "
                f"not cross; they are {low} and {high}."
            )

    def reset(self, key: Array) -> tuple[Episode, Float[Array, " o"]]:
        """A new episode and its first observation.

        Args:
            key: random key.

        Returns:
            The episode, and the observation of its start.
        """
        first, following = jax.random.split(key)
        state = self.starts if isinstance(self.starts, State) else self.starts(first)
        check_instance("the start of an episode", state, State, "jaxdae.State(q, v)")
        episode = Episode(state, jnp.zeros((), int), following)
        return episode, self.observation(episode)

    def observation(self, episode: Episode) -> Float[Array, " o"]:
        """What is observed of an episode."""
        t, state = self._time(episode.made), episode.state
        if self.observe is None:
            return jnp.concatenate([state.q, state.v, state.w])
        return jnp.ravel(self.observe(t, state.q, state.v, state.w))

    def step(self, episode: Episode, action: Float[Array, " s"]) -> Transition:
        """Hold an input until the next sample.

        Args:
            episode: where it is.
            action: the input, shape (s,); clipped to its bounds.

        Returns:
            `Transition`. An episode that has ended goes on if it is asked to: see `step_or_reset`.

        Raises:
            ValueError: for an action of another shape.
        """
        state, dtype = episode.state, episode.state.q.dtype
        low, high = (jnp.asarray(x, dtype) for x in self.inputs)
        action = jnp.asarray(action, dtype)
        if action.shape != low.shape:
            raise ValueError(
                f"the action has shape {action.shape}; it must be {low.shape}, one number for each "
                "input. Actions of many members are mapped over by jax.vmap."
            )
        # Of what is not a number nothing is simulated: the motion of a middle input is dropped.
        usable = jnp.all(jnp.isfinite(action))
        u = jnp.clip(jnp.where(usable, action, 0.5 * (low + high)), low, high)
        begin, end = self._time(episode.made), self._time(episode.made + 1)
        grid = begin + (end - begin) * jnp.linspace(0.0, 1.0, self.steps + 1, dtype=dtype)
        run = simulate(
            self.system, self.formulation, state, t0=grid[0], t1=grid[-1],
            stepsize_controller=Grid(grid, 1), solver=self.solver, controller=_HeldInput(u),
            saveat=diffrax.SaveAt(t1=True), throw=False, start_tolerance=None,
            max_steps=self.steps + 1, backend=self.backend,
        )  # fmt: skip
        reached = State(run.q[-1], run.v[-1], run.w[-1])
        after = Episode(reached, episode.made + 1, episode.key)
        observation = self.observation(after)
        parts = reached.q, reached.v, reached.w
        reward = jnp.reshape(jnp.asarray(self.reward(end, *parts, u), dtype), ())
        ended = jnp.zeros((), bool)
        if self.terminal is not None:
            ended = jnp.reshape(jnp.asarray(self.terminal(end, *parts), bool), ())
        finite = [*parts, observation, reward]
        good = run.success & usable & jnp.stack([jnp.isfinite(x).all() for x in finite]).all()
        kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), reached, state)
        return Transition(
            after._replace(state=kept),
            jnp.where(good, observation, self.observation(episode)),
            jnp.where(good, reward, self.failure_reward),
            ended | ~good,
            after.made >= self.samples,
            good,
        )

    def step_or_reset(
        self, episode: Episode, action: Float[Array, " s"]
    ) -> tuple[Transition, Float[Array, " o"]]:
        """A sample, after the last of which a new episode begins.

        Args:
            episode: where it is.
            action: the input, shape (s,).

        Returns:
            `Transition`, whose episode is a new one where the old one has ended, and the
            observation to act on next; that of the transition is the last of the old one.
        """
        found = self.step(episode, action)
        fresh, first = self.reset(episode.key)
        over = found.terminated | found.truncated

        def chosen(new, old):
            return jnp.where(over, new, old)

        following = jax.tree.map(chosen, fresh, found.episode)
        return found._replace(episode=following), chosen(first, found.observation)

    def _time(self, made):
        """Times are multiples of the period, without sums of rounded ones."""
        return self.t0 + self.period * made


def _are_bounds(low, high) -> bool:
    low, high = np.asarray(low, float), np.asarray(high, float)
    return bool((np.isfinite(low) & np.isfinite(high) & (low <= high)).all())


class _HeldInput(Module):
    """One input for all times.

    Args:
        u: shape (s,).
    """

    u: Float[Array, " s"]

    def __call__(self, t, q, v, w):
        del t, q, v, w
        return self.u
