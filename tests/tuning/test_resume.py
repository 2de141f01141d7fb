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


# Half of them compile for seconds.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("lm", "gauss-newton", "l-bfgs")]


@pytest.mark.parametrize("name", [*SLOW, "adam", "slsqp", "trust-constr"])
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
