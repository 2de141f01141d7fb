"""Batches on disk as trajectories: members by index, pictures of one and of all."""

import numpy as np
import pytest

from helpers.figures import legend
from jaxdae import Multipliers, State
from jaxdae.models import CartesianPendulum
from jaxdae.parallel import as_trajectory, map_batch, simulate_batch, StoredBatchError
from jaxdae.plotting import plot_batch, plot_histories
from jaxdae.solvers import RK4


@pytest.mark.slow
def test_a_member_of_a_stored_batch_is_drawn(tmp_path):
    """From the directory as from what is returned; only the member is read."""
    system = CartesianPendulum()
    q, v = system.start()
    starts = State(q + np.zeros((3, 1)), v + np.array([0.0, 1.0, 2.0])[:, None])
    how = {"t1": 0.5, "dt": 0.125, "solver": RK4(), "in_axes": {"state": 0}}
    batch = simulate_batch(system, Multipliers(), starts, directory=tmp_path / "runs", **how)
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


def test_results_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="the batch has no v; a trajectory needs ts, q, v"):
        as_trajectory({"ts": np.ones((2, 3)), "q": np.ones((2, 3, 1)), "v": None})


def test_an_unfinished_batch_is_refused(tmp_path):
    map_batch(lambda x: {"q": x}, np.arange(3.0), directory=tmp_path, block_size=1)
    (tmp_path / "finished").rename(tmp_path / "gone")
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "000000000-000000001").touch()
    with pytest.raises(StoredBatchError, match="1 of 3 members are finished; make the same call"):
        as_trajectory(tmp_path)
