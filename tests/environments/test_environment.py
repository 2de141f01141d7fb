"""Episodes against runs of `simulate`, and Gymnasium's own checks."""

import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import jaxdae
from helpers.cart_pole import CartPole
from jaxdae.environments import Environment, gymnasium_env, gymnasium_vector_env

CART = CartPole()
LAW = jaxdae.Multipliers(jaxdae.Baumgarte(20.0, 100.0))
FORCE = np.array([-5.0]), np.array([5.0])


def start(key):
    x, angle = 0.1 * jax.random.normal(key, (2,))
    return CART.at(x, angle)


def upright(t, q, v, w, u):
    return q[2] - 0.01 * u[0] ** 2


def fallen(t, q, v, w):
    return q[2] < 0.3


GIVEN = {"starts": start, "reward": upright, "period": 0.02, "samples": 50, "inputs": FORCE}


def environment(**changes) -> Environment:
    return Environment(**{"system": CART, "formulation": LAW, "steps": 4} | GIVEN | changes)


def test_samples_make_the_run_of_simulate_with_held_inputs():
    """Of equal steps both make the same, to the round-off of a hundred of them."""
    made = environment()
    episode, seen = made.reset(jax.random.key(1))
    inputs = 2.0 * np.sin(np.arange(25.0))[:, None]

    def act(episode, u):
        found = made.step(episode, u)
        return found.episode, found

    last, found = jax.jit(lambda e, u: jax.lax.scan(act, e, u))(episode, inputs)
    held = jaxdae.Held(0.02 * np.arange(25), inputs)
    run = jaxdae.simulate(
        CART, LAW, episode.state, t1=0.5, dt=0.005, solver=made.solver, controller=held
    )
    np.testing.assert_allclose(last.state.q, run.q[-1], atol=1e-12)
    np.testing.assert_allclose(last.state.v, run.v[-1], atol=1e-11)
    np.testing.assert_allclose(seen, np.concatenate([episode.state.q, episode.state.v]))
    np.testing.assert_allclose(found.reward, run.q[4::4, 2] - 0.01 * inputs[:, 0] ** 2, atol=1e-12)
    assert not found.terminated.any()
    assert found.success.all()


def test_members_of_a_batch_are_single_ones_and_failures_stay_alone():
    made = environment(terminal=fallen, failure_reward=-7.0)
    keys = jax.random.split(jax.random.key(2), 4)
    episodes, seen = jax.vmap(made.reset)(keys)
    actions = jnp.array([[1.0], [jnp.nan], [-2.0], [40.0]])
    found = jax.jit(jax.vmap(made.step))(episodes, actions)
    np.testing.assert_array_equal(found.success, [True, False, True, True])
    np.testing.assert_array_equal(found.terminated, [False, True, False, False])
    assert float(found.reward[1]) == -7.0
    np.testing.assert_array_equal(found.observation[1], seen[1])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found._replace(episode=())))
    for i, action in ((0, 1.0), (3, 5.0)):  # the last one is clipped
        single = made.step(jax.tree.map(lambda x, i=i: x[i], episodes), jnp.array([action]))
        np.testing.assert_allclose(found.observation[i], single.observation, atol=1e-14)


def test_episodes_end_and_begin_anew():
    made = environment(samples=3)
    episode, first = made.reset(jax.random.key(3))

    def go_on(episode, action):
        found, seen = made.step_or_reset(episode, action)
        return found.episode, (found, seen)

    episode, (found, seen) = jax.lax.scan(go_on, episode, jnp.zeros((3, 1)))
    np.testing.assert_array_equal(found.truncated, [False, False, True])
    assert int(episode.made) == 0
    seen = seen[-1]
    np.testing.assert_array_equal(seen, made.observation(episode))
    assert not np.array_equal(seen, first)
    assert not np.array_equal(seen, found.observation[-1])
    falling = environment(terminal=lambda t, q, v, w: q[2] < 10.0)
    assert bool(falling.step(*falling.reset(jax.random.key(0))[:1], jnp.zeros(1)).terminated)


def test_gradients_by_actions_are_those_of_differences():
    made = environment(starts=CART.at(jnp.asarray(0.0), jnp.asarray(0.3)))

    def total(actions):
        episode, _ = made.reset(jax.random.key(0))
        act = lambda e, u: (lambda x: (x.episode, x.reward))(made.step(e, u))  # noqa: E731
        return jnp.sum(jax.lax.scan(act, episode, actions)[1])

    actions = jnp.linspace(-1.0, 1.0, 5)[:, None]
    slope, h = jax.grad(total)(actions), 1e-6
    direction = jnp.cos(jnp.arange(5.0))[:, None]
    measured = (total(actions + h * direction) - total(actions - h * direction)) / (2 * h)
    np.testing.assert_allclose(jnp.vdot(slope, direction), measured, rtol=1e-7)


EXPECTED = ("infinity", "spec", "normalized space")


def test_gymnasium_finds_nothing_wrong():
    env = gymnasium_env(environment(terminal=fallen))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    # Observations without limits and inputs in newtons are what they are; nothing else is said.
    said = [str(x.message) for x in said]
    assert [x for x in said if not any(y in x for y in EXPECTED)] == []
    first, _ = env.reset(seed=5)
    again, _ = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    _, _, terminated, _, info = env.step(np.array([np.nan]))
    assert terminated
    assert not info["success"]


def test_many_at_once_for_gymnasium():
    env = gymnasium_vector_env(environment(samples=2), 8)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    seen, _ = env.reset(seed=1)
    assert seen.shape == env.observation_space.shape == (8, 6)
    actions = env.action_space.sample()
    seen, reward, terminated, truncated, info = env.step(actions)
    assert reward.shape == (8,)
    assert not (terminated | truncated).any()
    assert "final_obs" not in info
    following, _, _, truncated, info = env.step(actions)
    assert truncated.all()
    assert info["_final_obs"].all()
    assert not np.array_equal(info["final_obs"], following)
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(again, gymnasium_vector_env(environment(), 8).reset(seed=1)[0])
    with pytest.raises(ValueError, match="count must be a positive integer, not 0"):
        gymnasium_vector_env(environment(), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period": 0.0}, "period must be a positive number of seconds, not 0.0"),
        ({"period": np.nan}, "period must be a positive number of seconds, not nan"),
        ({"samples": 0}, "samples must be a positive integer, not 0"),
        ({"steps": 1.5}, "steps must be a positive integer, not 1.5"),
        ({"inputs": (np.ones(1), -np.ones(1))}, "which do not cross"),
        ({"inputs": (-np.ones(1), np.ones(2))}, "inputs must be two finite vectors"),
        ({"inputs": (np.full(1, -np.inf), np.ones(1))}, "inputs must be two finite vectors"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        environment(**changes)


def test_actions_and_starts_of_another_kind_are_refused():
    """An action of a whole batch, say, is not one of which the first entries are taken."""
    made = environment()
    episode, _ = made.reset(jax.random.key(0))
    for action in (np.ones(3), np.ones((4, 1)), 0.5):
        with pytest.raises(ValueError, match=r"it must be \(1,\), one number for each input"):
            made.step(episode, jnp.asarray(action))
    with pytest.raises(TypeError, match=r"the start of an episode is .*give jaxdae.State"):
        environment(starts=lambda key: (np.zeros(3), np.zeros(3))).reset(jax.random.key(0))


def test_an_environment_is_made_where_its_period_is_traced():
    begin = environment().reset(jax.random.key(0))[0]

    def reward(period):
        return environment(period=period).step(begin, jnp.ones(1)).reward

    assert float(jax.jit(reward)(0.02)) == pytest.approx(float(reward(0.02)), abs=1e-14)


def test_without_gymnasium_it_is_said_how_it_comes(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdae\[gymnasium\]'"):
        gymnasium_env(environment())
