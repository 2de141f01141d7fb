"""Environments as Gymnasium has them: one, and many at once."""

from typing import Any

import jax
import numpy as np

from jaxdae.environments.environment import Environment


def gymnasium_env(environment: Environment) -> Any:
    """One environment for Gymnasium.

    Args:
        environment: whose episodes it makes.

    Returns:
        A `gymnasium.Env`. A motion that fails terminates the episode, with `info["success"]` false.

    Raises:
        ImportError: without the package gymnasium.
    """
    gymnasium = _gymnasium()
    action, observation = _spaces(gymnasium, environment)
    reset = jax.jit(lambda key: environment.reset(key))
    step = jax.jit(lambda episode, action: environment.step(episode, action))

    class SystemEnv(gymnasium.Env):
        """Episodes of a constrained mechanical system."""

        metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
        action_space, observation_space = action, observation

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            self._episode, seen = reset(_key(self.np_random))
            return np.asarray(seen), {}

        def step(self, action):
            found = step(self._episode, np.asarray(action))
            self._episode = found.episode
            return (
                np.asarray(found.observation), float(found.reward), bool(found.terminated),
                bool(found.truncated), {"success": bool(found.success)},
            )  # fmt: skip

    return SystemEnv()


def gymnasium_vector_env(environment: Environment, count: int) -> Any:
    """Many environments at once for Gymnasium, in one program.

    Args:
        environment: whose episodes it makes.
        count: number of them.

    Returns:
        A `gymnasium.vector.VectorEnv` that begins new episodes in the step in which old ones end;
        `info["final_obs"]` has their last observations, and `info["success"]` which motions have
        not failed.

    Raises:
        ImportError: without the package gymnasium.
        ValueError: for a number that is not positive.
    """
    gymnasium = _gymnasium()
    if int(count) != count or count < 1:
        raise ValueError(f"count must be a positive integer, not {count}.")
    from gymnasium.vector.utils import batch_space

    action, observation = _spaces(gymnasium, environment)
    reset = jax.jit(jax.vmap(lambda key: environment.reset(key)))
    step = jax.jit(jax.vmap(lambda episode, action: environment.step_or_reset(episode, action)))

    class SystemVectorEnv(gymnasium.vector.VectorEnv):
        """Episodes of as many constrained mechanical systems."""

        metadata: dict[str, Any] = {  # noqa: RUF012
            "render_modes": [],
            "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP,
        }
        num_envs = int(count)
        single_action_space, single_observation_space = action, observation
        action_space, observation_space = (batch_space(x, count) for x in (action, observation))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed, options=options)
            keys = jax.random.split(_key(self.np_random), self.num_envs)
            self._episodes, seen = reset(keys)
            return np.asarray(seen), {}

        def step(self, actions):
            found, seen = step(self._episodes, np.asarray(actions))
            self._episodes = found.episode
            terminated, truncated = np.asarray(found.terminated), np.asarray(found.truncated)
            info: dict[str, Any] = {"success": np.asarray(found.success)}
            if (terminated | truncated).any():
                info["final_obs"] = np.asarray(found.observation)
                info["_final_obs"] = terminated | truncated
            return np.asarray(seen), np.asarray(found.reward), terminated, truncated, info

    return SystemVectorEnv()


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(
            "Environments of Gymnasium need the package gymnasium: pip install 'jaxdae[gymnasium]'."
        ) from error
    return gymnasium


def _spaces(gymnasium, environment: Environment) -> tuple[Any, Any]:
    """Of actions, between their bounds, and of observations, which have none."""
    seen = jax.eval_shape(environment.reset, jax.random.key(0))[1]
    low, high = (np.asarray(x, seen.dtype) for x in environment.inputs)
    action = gymnasium.spaces.Box(low, high, dtype=seen.dtype)
    return action, gymnasium.spaces.Box(-np.inf, np.inf, seen.shape, seen.dtype)


def _key(random: np.random.Generator):
    """A key of JAX from NumPy's generator, which Gymnasium seeds."""
    return jax.random.key(int(random.integers(2**31)))
