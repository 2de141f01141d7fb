"""Every kind of optimizer goes on from its checkpoint, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.tuning import CheckpointError, Equality, LeastSquares, Positive, tune

pytestmark = pytest.mark.optimized

START = {"a": Positive(2.0), "b": jnp.array(1.0)}


def residuals(p):
    return jnp.stack([10 * (p["b"] - p["a"] ** 2), 1 - p["a"], 0.1 * p["b"]])


def run(name, path=None, **settings):
    constrained = name in ("slsqp", "trust-constr")
    unit = Equality(lambda p: p["a"] + p["b"] - 1.5, "sum")
    usual = {"steps": 14, "starts": 2, "checkpoint_every": 1, "optimizer": name}
    usual |= {"constraints": unit} if constrained else {}
    return tune(LeastSquares(residuals), START, checkpoint=path, **(usual | settings))


class KilledError(Exception):
    pass


def kill(info):
    if info.step == 5:
        raise KilledError


# Most of them compile for seconds.
SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("lm", "gauss-newton", "l-bfgs", "adam")
]


@pytest.mark.parametrize("name", [*SLOW, "slsqp", "trust-constr"])
@pytest.mark.filterwarnings("ignore:tune")
def test_a_run_that_is_cut_off_goes_on_as_if_it_had_not_been(tmp_path, name):
    path = tmp_path / "run.ckpt"
    with pytest.raises(KilledError):
        run(name, path, callback=kill)
    resumed, uninterrupted = run(name, path, resume=True), run(name)
    for x in ("loss", "gradient_norm", "skipped"):
        a, b = (getattr(r.histories, x) for r in (resumed, uninterrupted))
        assert a.tobytes() == b.tobytes()
    jax.tree.map(np.testing.assert_array_equal, resumed.params, uninterrupted.params)
    assert (resumed.ending, resumed.violations) == (uninterrupted.ending, uninterrupted.violations)
    # Those read from the file are not counted again.
    assert 0 < resumed.evaluations < uninterrupted.evaluations


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "lm", "slsqp"])
@pytest.mark.filterwarnings("ignore:tune")
def test_more_steps_continue_the_run_that_they_would_have_been(tmp_path, name):
    path = tmp_path / "run.ckpt"
    run(name, path, steps=4)
    longer, at_once = run(name, path, resume=True, steps=9), run(name, steps=9)
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


@pytest.mark.parametrize("name", ["adam", "slsqp", pytest.param("lm", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:tune")
def test_a_function_that_has_changed_is_refused_with_both_numbers(tmp_path, monkeypatch, name):
    path = tmp_path / "run.ckpt"
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


def test_another_slope_at_the_same_loss_is_another_function(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"

    class Objective:
        power = 2

        def __call__(self, p):
            return 2.0 ** (2 - self.power) * p["a"] ** self.power + p["b"]

    tune(Objective(), START, checkpoint=path, steps=0)
    monkeypatch.setattr(Objective, "power", 1)  # 2^2 becomes 2 * 2
    with pytest.raises(CheckpointError, match="gradient norm at the initial parameters of start 0"):
        tune(Objective(), START, checkpoint=path, steps=1, resume=True)


OTHERS = [
    ({"optimizer": "gauss-newton"}, "optimizer state: "),
    ({"tolerance": 1e-4}, "tolerance: .* in the file, 0.0001 here"),
    ({"optimizer": "slsqp", "constraints": Equality(lambda p: p["b"], "b")}, "optimizer state: "),
]


@pytest.mark.parametrize(("settings", "message"), OTHERS)
def test_another_optimizer_tolerance_or_constraint_is_another_run(tmp_path, settings, message):
    path = tmp_path / "run.ckpt"
    run("lm", path, steps=2)
    with pytest.raises(CheckpointError, match=f"belongs to another run; {message}"):
        run("lm", path, resume=True, **settings)


@pytest.mark.filterwarnings("ignore:tune")
def test_another_constraint_is_another_run(tmp_path):
    path = tmp_path / "run.ckpt"
    run("slsqp", path, steps=2)
    other = Equality(lambda p: p["a"] + p["b"] - 1.5, "total")
    with pytest.raises(CheckpointError, match=r"constraints: \['Equality sum'\] in the file"):
        run("slsqp", path, resume=True, constraints=other)


@pytest.mark.filterwarnings("ignore:tune")
def test_evaluations_at_other_points_are_refused(tmp_path, monkeypatch):
    """As another release of SciPy would ask for, which the file cannot serve."""
    path = tmp_path / "run.ckpt"
    run("slsqp", path, steps=4)
    from jaxdae.tuning import search

    original = search.minimize
    moved = lambda settings, x, update, ask: original(settings, x + 1e-9, update, ask)  # noqa: E731
    monkeypatch.setattr("jaxdae.tuning.scipy_runs.minimize", moved)
    with pytest.raises(CheckpointError, match="evaluation 0 is at another point than SciPy"):
        run("slsqp", path, resume=True)
