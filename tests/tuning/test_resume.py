"""Every kind of optimizer goes on from its checkpoint, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.tuning import CheckpointError, LeastSquares, Positive, tune

pytestmark = pytest.mark.optimized

START = {"a": Positive(2.0), "b": jnp.array(1.0)}


def residuals(p):
    return jnp.stack([10 * (p["b"] - p["a"] ** 2), 1 - p["a"], 0.1 * p["b"]])


def run(name, path=None, **settings):
    usual = {"steps": 14, "starts": 2, "checkpoint_every": 1, "optimizer": name}
    return tune(LeastSquares(residuals), START, checkpoint=path, **(usual | settings))


class KilledError(Exception):
    pass


def kill(info):
    if info.step == 5:
        raise KilledError


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "l-bfgs"])
def test_a_run_that_is_cut_off_goes_on_as_if_it_had_not_been(tmp_path, name):
    path = tmp_path / "run.ckpt"
    with pytest.raises(KilledError):
        run(name, path, callback=kill)
    resumed, uninterrupted = run(name, path, resume=True), run(name)
    for x in ("loss", "gradient_norm", "skipped"):
        a, b = (getattr(r.histories, x) for r in (resumed, uninterrupted))
        assert a.tobytes() == b.tobytes()
    jax.tree.map(np.testing.assert_array_equal, resumed.params, uninterrupted.params)
    assert resumed.ending == uninterrupted.ending
    # Those read from the file are not counted again.
    assert 0 < resumed.evaluations < uninterrupted.evaluations


@pytest.mark.slow
def test_more_steps_continue_the_run_that_they_would_have_been(tmp_path):
    path = tmp_path / "run.ckpt"
    run("lm", path, steps=4)
    longer, at_once = run("lm", path, resume=True, steps=9), run("lm", steps=9)
    assert longer.histories.loss.tobytes() == at_once.histories.loss.tobytes()


class Changing:
    """An objective of the same name and data, whose code is another after a change."""

    power, shift = 2, 0.0

    def __call__(self, p):
        a = jnp.abs(p["a"] - 0.5) ** self.power
        return a + (p["b"] - 2.0 + self.shift) ** 2

    def residuals(self, p):
        return jnp.stack([jnp.abs(p["a"] - 0.5) ** (self.power / 2), p["b"] - 2.0 + self.shift])


def changing(name, path, steps, **settings):
    return tune(
        Changing(), START, optimizer=name, checkpoint=path, steps=steps, starts=2, spread=0.1,
        checkpoint_every=1, **settings,
    )  # fmt: skip


def test_a_function_that_has_changed_is_refused_with_both_numbers(tmp_path, monkeypatch):
    name, path = "adam", tmp_path / "run.ckpt"
    changing(name, path, 1)
    content = path.read_bytes()
    # Loss 3.25 becomes 3.25 + 2 * 1e-4; the next has the same loss and another slope.
    loss = "its loss at the initial parameters of start 0 was 3.25.*, and is 3.249.* here"
    monkeypatch.setattr(Changing, "shift", 1e-4)
    with pytest.raises(
        CheckpointError, match=f"another function, or random: {loss}.*overwrite=True"
    ):
        changing(name, path, 3, resume=True)
    assert path.read_bytes() == content
    # Steps that are all made already are read: nothing is evaluated, and nothing compared.
    assert changing(name, path, 1, resume=True).evaluations == 0
    monkeypatch.setattr(Changing, "shift", 1e-12)
    assert changing(name, path, 3, resume=True).evaluations > 0
