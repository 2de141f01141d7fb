import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdae.storage import checkpoints
from jaxdae.tuning import CheckpointError, Positive, resumption, tune
from jaxdae.tuning.optimizers import choose

pytestmark = pytest.mark.optimized

START = {"a": Positive(jnp.array([3.0, 5.0])), "b": jnp.array(2.0)}


def bowl(p):
    # The walls at a = 3.05 make some steps of the run be refused: they must resume, too.
    loss = jnp.sum((jnp.log(p["a"]) - 0.5) ** 2) + jnp.cos(3 * p["b"]) + 0.1 * p["b"] ** 2
    return jnp.where(p["a"][0] > 3.05, jnp.nan, loss)


def run(path=None, params=START, objective=bowl, **settings):
    usual: dict[str, Any] = {"steps": 24, "starts": 3, "checkpoint_every": 1}
    return tune(objective, params, checkpoint=path, **(usual | settings))


def assert_same_numbers(x, y):
    """Bit for bit, NaN included."""
    numbers = [(r.params, r.raw, r.loss, r.initial_loss, r.steps, r.skipped) for r in (x, y)]
    jax.tree.map(np.testing.assert_array_equal, *numbers)
    for name in ("loss", "gradient_norm", "skipped"):
        a, b = (getattr(r.histories, name) for r in (x, y))
        assert a.tobytes() == b.tobytes()
    assert x.stop_reason == y.stop_reason


@pytest.fixture(scope="module")
def uninterrupted():
    result = run()
    assert result.histories.skipped.any()
    return result


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Of a file left by a run that stopped after seven steps."""
    path = tmp_path_factory.mktemp("stopped") / "folder" / "run.ckpt"
    run(path, callback=lambda info: info.step == 7)
    return path.read_bytes()


@pytest.fixture
def stopped(content, tmp_path):
    """Such a file."""
    path = tmp_path / "folder" / "run.ckpt"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


@pytest.mark.slow
def test_a_finished_run_resumes_to_the_same_result_without_compiling(stopped, uninterrupted):
    run(stopped, resume=True)
    again = run(stopped, resume=True)
    assert_same_numbers(again, uninterrupted)
    assert again.compile_seconds == 0.0


def test_an_interruption_saves_what_is_finished(tmp_path, uninterrupted):
    path = tmp_path / "run.ckpt"

    def interrupt(info):
        if info.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, callback=interrupt, checkpoint_every=100)
    assert json.loads(path.read_bytes().split(b"\n")[0])["rows"] == 8
    assert_same_numbers(run(path, resume=True, checkpoint_every=100), uninterrupted)


def test_a_second_run_on_one_file_is_refused_while_the_first_goes_on(tmp_path, uninterrupted):
    path = tmp_path / "run.ckpt"
    refusal = rf"another run writes the checkpoint .*run\.ckpt \(process {os.getpid()} on"

    def begin_another(info):
        for how in ("resume", "overwrite") if info.step == 5 else ():
            with pytest.raises(CheckpointError, match=refusal):
                run(path, **{how: True})

    assert_same_numbers(run(path, resume=True, callback=begin_another), uninterrupted)
    assert list(tmp_path.iterdir()) == [path]
    run(path, resume=True)  # it is free again


def test_a_save_that_is_cut_off_leaves_the_old_file(stopped, monkeypatch, uninterrupted):
    before = stopped.read_bytes()

    def fail(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space left"):
            run(stopped, resume=True)
    assert stopped.read_bytes() == before
    assert_same_numbers(run(stopped, resume=True), uninterrupted)
    assert os.listdir(stopped.parent) == [stopped.name]


def assert_refused(path, message, **settings):
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=message) as caught:
        run(path, resume=True, **settings)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_every_flipped_bit_and_a_cut_are_noticed(stopped, content, rng):
    places = [*rng.integers(len(content), size=9), 0, content.index(b"\n")]
    damaged = [bytearray(content) for _ in places]
    for one, place in zip(damaged, places, strict=True):
        one[place] ^= 1 << rng.integers(8)
    for one in [*damaged, b"", content[:99], content[:-9]]:
        stopped.write_bytes(one)
        assert_refused(stopped, "truncated or corrupt|not a tuning checkpoint")


def test_another_format_version_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(checkpoints, "VERSION", 99)
    assert_refused(stopped, "format version is 1, this program reads 99; use the version that")


class Shifted:
    budget = "RK4, h = 0.02 s"

    def __call__(self, p):
        return bowl(p)


OTHER_RUNS = [
    (
        {"params": START | {"b": jnp.ones(2)}},
        r"trained parameters: \['b'\]: float64\[\] in the",
    ),
    ({"params": START | {"b": jnp.array(2.5)}}, "initial values: "),
    ({"params": START | {"c": 1.0}}, "structure of the parameters: "),
    ({"optimizer": optax.sgd(0.1)}, "optimizer state: .* in the file, None here"),
    ({"objective": Shifted()}, "objective: bowl in the file, Shifted RK4, h = 0.02 s here"),
    ({"spread": 0.25}, "spread: 0.5 in the file, 0.25 here"),
    ({"key": jax.random.key(5)}, r"key: \[0, 0\] in the file, \[0, 5\] here"),
    ({"mode": "forward"}, "mode: reverse in the file, forward here"),
]


@pytest.mark.parametrize(("settings", "message"), OTHER_RUNS)
def test_a_checkpoint_of_another_run_is_refused(stopped, settings, message):
    assert_refused(stopped, f"belongs to another run; .*{message}", **settings)


SGD = optax.sgd(0.1)


def test_arrays_in_an_objective_and_what_the_optimizer_computes_count():
    def prints(optimizer=SGD, data=1.0):
        objective = jax.tree_util.Partial(lambda x, p: p * x, jnp.array(data))
        chosen = choose(objective, jnp.ones(2), optimizer, "reverse")
        assert chosen.method is not None
        state = chosen.method.initial_state(chosen.problem, 1, 0.0, jax.random.key(0))
        return resumption.fingerprint(jnp.ones(2), chosen, state, {})

    def scaled(*factors):  # by an array in a compiled function
        table = np.array(factors)
        return optax.stateless(lambda g, _: jax.jit(lambda g: jnp.sum(table) * g)(g))

    assert prints() == prints() != prints(data=2.0)
    pairs = [(optax.adam(0.1), optax.adam(10.0)), (optax.adam(0.1), optax.nadam(0.1))]
    for one, other in [*pairs, (scaled(1.0, 2.0), scaled(1.0, 3.0))]:
        first, second = prints(one), prints(other)
        assert [name for name in first if first[name] != second[name]] == ["optimizer"]


def test_an_existing_file_is_not_replaced_unasked(stopped, uninterrupted):
    before = stopped.read_bytes()
    with pytest.raises(FileExistsError, match=r"resume=True.*overwrite=True"):
        run(stopped)
    assert stopped.read_bytes() == before
    assert_same_numbers(run(stopped, overwrite=True), uninterrupted)
