"""Batches of simulations: each member as if it ran alone, failures among them."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers import batch_process
from helpers.figures import legend
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.parallel import (
    as_trajectory,
    load_batch,
    map_batch,
    simulate_batch,
    stack,
    StoredBatchError,
)
from jaxdae.plotting import plot_batch, plot_histories
from jaxdae.solvers import RK4


class Pushed(CartesianPendulum):
    """A pendulum with a horizontal force."""

    def force(self, t, q, v, w, u):
        return jnp.zeros(2) if u is None else jnp.stack([u[0], jnp.zeros_like(u[0])])


class Push(eqx.Module):
    """A constant force [N]."""

    size: jax.Array

    def __call__(self, t, q, v, w):
        return self.size[None]


def members(dtype):
    """Three systems with their starts, gains and controllers."""
    lengths = [0.8, 1.0, 1.3]
    system = stack([Pushed(length=length) for length in lengths])
    rates, sizes = jnp.array([5.0, 8.0, 10.0], dtype), jnp.array([0.3, -0.2, 0.0], dtype)
    gains = jax.vmap(lambda rate: jaxdae.Multipliers(jaxdae.Baumgarte.critical(rate)))(rates)
    q = jnp.array([[length, 0.0] for length in lengths], dtype)
    return system, gains, jaxdae.State(q, jnp.zeros_like(q)), jax.vmap(Push)(sizes)


def one(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_every_member_runs_as_if_alone(dtype):
    system, gains, states, pushes = members(dtype)
    options = {"t1": 0.5, "dt": 0.05, "solver": diffrax.Heun()}
    runs = simulate_batch(system, gains, states, controller=pushes, block_size=2, **options)
    assert {k: v.shape for k, v in runs.items() if v is not None} == {
        "ts": (3, 11),
        "q": (3, 11, 2),
        "v": (3, 11, 2),
        "u": (3, 11, 1),
        "success": (3,),
        "final_time": (3,),
        "num_steps": (3,),
    }
    assert runs["success"].all()
    assert (runs["num_steps"] == 10).all()
    assert runs["q"].dtype == runs["u"].dtype == dtype
    alone = jaxdae.simulate(
        one(system, 1), one(gains, 1), one(states, 1), controller=one(pushes, 1), **options
    )
    # Ten steps of some hundred operations, of numbers up to 10, rounded in another order.
    close = {"rtol": 0, "atol": 1e3 * float(jnp.finfo(dtype).eps)}
    np.testing.assert_allclose(runs["q"][1], alone.q, **close)
    np.testing.assert_allclose(runs["v"][1], alone.v, **close)
    np.testing.assert_array_equal(runs["u"][1], alone.u)


@pytest.fixture(scope="module")
def pendulums():
    arguments, options = batch_process.pendulums()
    return arguments, options, simulate_batch(*arguments, **options, block_size=4)


@pytest.mark.slow
def test_batches_of_implicit_methods_of_the_plain_backend():
    """Their iterations are diffrax's, whose linear solves compare types of arrays."""
    states = jaxdae.State(jnp.array([[1.0, 0.0], [jnp.nan, 0.0]]), jnp.zeros((2, 2)))
    method = jaxdae.Multipliers(jaxdae.Baumgarte.critical(5.0))
    settings = {"t1": 0.2, "solver": diffrax.Kvaerno3()}
    ends = simulate_batch(CartesianPendulum(), method, states, backend="plain", **settings)["q"]
    alone = jaxdae.simulate(CartesianPendulum(), method, one(states, 0), **settings)
    # By a kernel, which makes the same steps: to the tolerance of their iterations.
    np.testing.assert_allclose(ends[0, -1], alone.q[-1], rtol=0, atol=1e-8)
    assert np.isnan(ends[1, -1]).all()


def test_a_run_that_fails_is_a_value_of_its_member(pendulums):
    _, _, runs = pendulums
    assert list(np.flatnonzero(~runs["success"])) == [9]
    assert runs["num_steps"][9] == 2000
    assert 0 < runs["final_time"][9] == runs["ts"][9, 0] < 0.5
    assert np.isfinite(runs["q"]).all()
    assert (runs["final_time"][:9] == 0.5).all()
    assert runs["w"] is None
    assert runs["u"] is None


def test_runs_are_stored_with_their_failures(pendulums, tmp_path):
    arguments, options, runs = pendulums
    found = simulate_batch(*arguments, **options, block_size=4, directory=tmp_path)
    stored = load_batch(tmp_path)
    for name in ("ts", "q", "v", "success", "final_time", "num_steps"):
        assert np.load(tmp_path / f"{name}.npy").tobytes() == runs[name].tobytes()
        np.testing.assert_array_equal(stored.results[name], found[name])


def test_what_is_kept_of_a_run_is_the_users_choice(pendulums):
    arguments, options, runs = pendulums
    found = simulate_batch(
        *arguments, quantities=lambda run: (run.energy[-1], run.q), block_size=4, **options
    )
    np.testing.assert_array_equal(found[1], runs["q"])
    q, v = runs["q"][:9, -1], runs["v"][:9, -1]
    # A sum of two products of numbers up to 10.
    np.testing.assert_allclose(found[0][:9], (v**2).sum(1) / 2 + 9.81 * q[:, 1], atol=1e-13)


def test_what_does_not_fit_is_refused():
    (system, gains, states), options = batch_process.pendulums()
    with pytest.raises(ValueError, match="takes no throw: a failure is the value of its member"):
        simulate_batch(system, gains, states, throw=True, **options)
    options["in_axes"] = {"start": 0}
    message = "in_axes names 'start'; it may name system, formulation, state, controller"
    with pytest.raises(ValueError, match=message):
        simulate_batch(system, gains, states, **options)
    options["in_axes"] = 0
    shared = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=jnp.array(2.0), K_P=jnp.array(1.0)))
    message = r"batch\['formulation'\].stabilization.K_D of shape \(\) has no axis 0 of members"
    with pytest.raises(ValueError, match=message):
        simulate_batch(system, shared, states, **options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'duration'"):
        simulate_batch(system, gains, states, duration=1.0, **batch_process.pendulums()[1])


def test_what_makes_no_trajectory_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the batch has no v; a trajectory needs ts, q, v"):
        as_trajectory({"ts": np.ones((2, 3)), "q": np.ones((2, 3, 1)), "v": None})
    map_batch(lambda x: {"q": x}, np.arange(3.0), directory=tmp_path, block_size=1, chunk_size=1)
    (tmp_path / "finished" / "000000000-000000001").unlink()
    with pytest.raises(StoredBatchError, match="2 of 3 members are finished; make the same call"):
        as_trajectory(tmp_path)


@pytest.mark.slow
def test_another_value_of_a_plain_number_compiles_nothing():
    """Of system and gains; the numbers are those of the call all the same."""
    traced = []

    def kept(run):
        traced.append(None)
        return run.multipliers[-1]

    states = jaxdae.State(jnp.array([[1.0, 0.0], [0.0, -1.0]]), jnp.zeros((2, 2)))
    options = {"t1": 0.1, "dt": 0.05, "quantities": kept}
    counts, ends = [], []
    for mass, rate in ((1.0, 5.0), (3.0, 6.0)):
        gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(rate))
        traced.clear()
        ends.append(simulate_batch(CartesianPendulum(mass=mass), gains, states, **options))
        counts.append(len(traced))
    # Shape of the results and program are there the second time.
    assert counts[0] > 0
    assert counts[1] == 0
    np.testing.assert_allclose(ends[1], 3 * ends[0], rtol=1e-4)  # gains act on errors of the steps


@pytest.mark.slow
def test_a_member_of_a_stored_batch_is_drawn(tmp_path):
    """From the directory as from what is returned; only the member is read."""
    system = CartesianPendulum()
    q, v = system.start()
    starts = jaxdae.State(q + np.zeros((3, 1)), v + np.array([0.0, 1.0, 2.0])[:, None])
    how = {"t1": 0.5, "dt": 0.125, "solver": RK4(), "in_axes": {"state": 0}}
    batch = simulate_batch(system, jaxdae.Multipliers(), starts, directory=tmp_path / "runs", **how)
    speeds = [0.0, 1.0, 2.0]
    for runs in (
        as_trajectory(batch, system, speed=speeds),
        as_trajectory(str(tmp_path / "runs"), system, speed=speeds),
    ):
        assert isinstance(runs.q, np.memmap)
        assert (runs.batch_shape, runs.about.model) == ((3,), "CartesianPendulum")
        member = runs[2]
        np.testing.assert_array_equal(member.q, batch["q"][2])
        assert float(member.known["varied.speed"]) == 2.0
        assert legend(plot_histories(member).axes[0]) == ["x", "y"]
        assert len(plot_batch(runs).axes) == 4
        np.testing.assert_array_equal(runs.success, [True] * 3)
        with pytest.raises(ValueError, match="energy was not stored with this trajectory"):
            _ = member.energy
