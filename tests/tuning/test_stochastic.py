"""Training on fresh draws: the steps of a loop by hand, the best by a validation, draws resumed."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.tuning import (
    CheckpointError,
    gradient_growth,
    LeastSquares,
    parameter_average,
    Positive,
    Stochastic,
    tune,
)

pytestmark = pytest.mark.optimized

KEY = jax.random.key(7)
GOAL = jnp.array([1.0, -2.0])


def noisy(x, key):
    """A quadratic whose minimum is another one in each draw."""
    return jnp.sum((x - GOAL - 0.3 * jax.random.normal(key, x.shape)) ** 2)


def distance(x):
    return jnp.sum((x - GOAL) ** 2)


def run(objective=None, params=None, **settings) -> Any:
    usual: dict[str, Any] = {"optimizer": optax.adam(0.2), "steps": 20, "key": KEY}
    objective = Stochastic(noisy) if objective is None else objective
    return tune(objective, jnp.zeros(2) if params is None else params, **(usual | settings))


def by_hand(steps, optimizer):
    """Points, losses and states of the optimizer of the loop that the documentation promises."""
    training, _ = jax.random.split(KEY)
    point, points, losses, states = jnp.zeros(2), [], [], []
    state = optimizer.init(point)
    for step in range(steps + 1):
        loss, slope = jax.value_and_grad(noisy)(point, jax.random.fold_in(training, step))
        points.append(point)
        losses.append(loss)
        states.append(state)
        update, state = optimizer.update(slope, state, point)
        point = optax.apply_updates(point, update)
    return np.stack(points), np.stack(losses), [*states[1:], state]


def test_steps_are_those_of_a_loop_by_hand_and_the_last_parameters_are_returned():
    """Schedules and clipping are any of optax's."""
    rate = optax.cosine_decay_schedule(0.2, 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    result, (points, losses, _) = run(optimizer=optimizer), by_hand(20, optimizer)
    # The same operations, compiled in one program and in many.
    np.testing.assert_allclose(result.history.loss, losses, rtol=1e-12)
    np.testing.assert_allclose(result.params, points[-1], rtol=1e-12)
    assert result.loss == result.history.loss[-1] > result.history.loss.min()
    first, last = losses[:2].mean(), losses[-2:].mean()
    words = f"the mean loss of draws fell from {first:.4g} in the first 2 to {last:.4g} in the last"
    assert (result.stop_reason, result.ending) == ("steps", words)


def test_starts_are_given_the_same_draws():
    both = run(starts=2, spread=0.0)
    np.testing.assert_array_equal(both.histories.loss[:, 0], both.histories.loss[:, 1])
    np.testing.assert_allclose(both.histories.loss[:, 0], run().history.loss, rtol=1e-12)


def test_the_default_optimizer_does_not_depend_on_losses():
    result = run(optimizer=None, steps=3)
    assert result.method == (
        "Adam with a rate that falls with the steps, because the objective is drawn anew in each "
        "step"
    )
    assert run(optimizer="adam", steps=3).history.loss.tobytes() == result.history.loss.tobytes()


def test_the_best_by_a_validation_is_kept_and_patience_ends_the_run():
    optimizer = optax.adam(0.4)
    result = run(
        optimizer=optimizer, steps=200, validation=distance, validation_every=4, patience=5
    )
    points, *_ = by_hand(result.steps, optimizer)
    wanted = np.sum((points - GOAL) ** 2, axis=1)
    asked = np.arange(0, result.steps + 1, 4)
    np.testing.assert_allclose(result.history.validation[asked], wanted[asked], rtol=1e-9)
    assert np.isnan(np.delete(result.history.validation, asked)).all()
    best = asked[np.argmin(wanted[asked])]
    np.testing.assert_allclose(result.params, points[best], rtol=1e-9)
    assert (result.initial_loss, result.loss) == (5.0, result.history.validation[best])
    assert result.steps == best + 5 * 4 < 200
    words = (
        f"the best validation was {wanted[best]:.4g} at step {best}, the last of {asked.size} is "
        f"{wanted[asked[-1]]:.4g}"
    )
    assert (result.stop_reason, result.ending) == ("patience", words)


def test_a_fixed_objective_is_validated_too_and_a_callback_sees_it():
    seen = []
    result = run(
        lambda x: jnp.sum(x**2), GOAL, validation=distance, validation_every=8, callback=seen.append
    )
    assert result.loss == 0.0
    assert [np.isfinite(x.validation[0]) for x in seen] == [x % 8 == 0 for x in range(21)]
    last = result.history.validation[16]
    words = f"; the best validation was 0 at step 0, the last of 3 is {last:.4g}"
    assert result.ending.endswith(words)


def test_the_progress_bar_shows_both_losses_and_the_throughput(capsys):
    result = run(validation=distance, validation_every=4, progress=True)
    said = f"loss={result.history.loss[-1]:.4g}, skipped=0, validation={result.loss:.4g}]"
    last = capsys.readouterr().err.rstrip().rpartition("\r")[2]
    assert last.startswith("100%")
    assert "20/20 [" in last
    assert "step/s, " in last
    assert last.endswith(said)


def test_validations_that_are_never_finite_are_told_of():
    with pytest.warns(UserWarning, match="no validation was finite: the initial parameters are"):
        result = run(validation=lambda x: jnp.nan * jnp.sum(x), steps=5)
    np.testing.assert_array_equal(result.params, jnp.zeros(2))


def test_a_validation_that_is_drawn_has_the_same_draws_each_time():
    kept = run(optimizer=optax.sgd(0.0), validation=Stochastic(noisy), validation_every=1, steps=3)
    assert len(set(kept.history.validation)) == 1
    assert len(set(kept.history.loss)) == 4


def test_an_average_of_parameters_is_returned_and_validated():
    optimizer = optax.chain(parameter_average(0.8), optax.adam(0.2))
    points, *_ = by_hand(20, optax.adam(0.2))
    weights = 0.8 ** np.arange(20, -1, -1)
    wanted = weights @ points / weights.sum()
    result = run(optimizer=optimizer, validation=distance, validation_every=20)
    np.testing.assert_allclose(
        result.history.validation[20], np.sum((wanted - GOAL) ** 2), rtol=1e-9
    )
    np.testing.assert_allclose(run(optimizer=optimizer).params, wanted, rtol=1e-12)
    with pytest.raises(ValueError, match=r"decay is 1\.0, must be at least 0 and below 1"):
        parameter_average(1.0)


@pytest.mark.slow
def test_a_schedule_free_optimizer_gives_what_it_recommends():
    optimizer = optax.contrib.schedule_free_adamw(0.3, warmup_steps=2)
    points, _, states = by_hand(20, optimizer)
    wanted = optax.contrib.schedule_free_eval_params(states[-1], jnp.asarray(points[-1]))
    np.testing.assert_allclose(run(optimizer=optimizer).params, wanted, rtol=1e-9)


def assert_same_numbers(x, y):
    """Bit for bit, NaN included."""
    np.testing.assert_array_equal(x.params, y.params)
    for name in ("loss", "gradient_norm", "skipped", "validation"):
        assert getattr(x.histories, name).tobytes() == getattr(y.histories, name).tobytes()
    assert (x.loss, x.steps, x.stop_reason, x.ending) == (y.loss, y.steps, y.stop_reason, y.ending)


TRAINING: dict[str, Any] = {
    "objective": Stochastic(
        lambda x, key, t: noisy(x, key) * t, horizon=optax.linear_schedule(0.5, 2.0, 9)
    ),
    "optimizer": optax.chain(optax.adam(0.5), parameter_average(0.7)),
    "validation": Stochastic(lambda x, key, t: noisy(x, key) * t, horizon=[1.0]),
    "validation_every": 2,
    "patience": 6,
    "steps": 60,
}


def test_what_a_kill_leaves_is_resumed_to_the_same_numbers(tmp_path):
    """The file as it is on the disk in the middle: that of the last regular save."""
    path, left = tmp_path / "run.ckpt", tmp_path / "left.ckpt"

    def copy(info):
        if info.step == 8:
            left.write_bytes(path.read_bytes())

    whole = run(**TRAINING, checkpoint=path, checkpoint_every=3, callback=copy)
    assert whole.stop_reason == "patience"
    resumed = run(**TRAINING, checkpoint=left, checkpoint_every=3, resume=True)
    assert resumed.evaluations == whole.evaluations - 7  # rows 0 to 6 were in the file
    assert_same_numbers(resumed, whole)
    # The file of a run that patience has ended is read, and nothing evaluated.
    again = run(**TRAINING, checkpoint=left, resume=True)
    assert (again.evaluations, again.compile_seconds) == (0, 0.0)
    assert_same_numbers(again, whole)
    for changed, message in (
        ({"key": jax.random.key(8)}, r"key: \[0, 7\] in the file, \[0, 8\] here"),
        ({"validation": distance}, "validation: Stochastic in the file, distance here"),
        ({"validation_every": 3}, "validation_every: 2 in the file, 3 here"),
    ):
        with pytest.raises(CheckpointError, match=message):
            run(**(TRAINING | changed), checkpoint=left, resume=True)


def test_horizons_are_one_program_and_hold_on_at_their_end():
    traces, still = [], optax.sgd(0.0)

    def at(x, key, horizon):
        traces.append(None)
        return horizon + jax.random.normal(key) * jnp.sum(x)

    listed = run(Stochastic(at, horizon=[1.0, 2.0, 4.0]), optimizer=still, steps=4)
    np.testing.assert_array_equal(listed.history.loss, [1.0, 2.0, 4.0, 4.0, 4.0])
    assert len(traces) == 1
    growing = run(
        Stochastic(at, horizon=optax.linear_schedule(1.0, 3.0, 4)), optimizer=still, steps=5
    )
    np.testing.assert_allclose(growing.history.loss, [1.0, 1.5, 2.0, 2.5, 3.0, 3.0], rtol=1e-12)


@pytest.mark.slow
def test_runs_to_a_traced_horizon_are_those_to_a_known_one():
    """As the page has it: one program for all horizons, and its gradient."""
    law = Multipliers(Baumgarte(20.0, 100.0))
    start = State(jnp.array([1.0, 0.0]), jnp.zeros(2))

    def last(mass, horizon, **how):
        run = simulate(
            CartesianPendulum(mass=mass), law, start, t1=horizon, dt=0.05, solver=RK4(),
            throw=False, **how,
        )  # fmt: skip
        return run.q[-1, 0] * mass

    def traced(mass, horizon):
        times = diffrax.SaveAt(ts=horizon * jnp.linspace(0, 1, 5))
        return last(mass, horizon, max_steps=21, saveat=times)

    both = jax.jit(jax.value_and_grad(traced))
    for horizon in (0.3, 1.0):
        value, slope = both(1.0, horizon)
        wanted = last(1.0, horizon)
        # The angle does not depend on the mass.
        np.testing.assert_allclose([value, slope], [wanted, wanted], rtol=1e-9)


def test_draws_that_are_not_finite_are_not_taken_and_counted():
    def sometimes(x, key):
        return jnp.where(jax.random.uniform(key) < 0.3, jnp.nan, noisy(x, key))

    with pytest.warns(UserWarning, match=r"of 41 draws made no step, as their losses or gradients"):
        result = run(Stochastic(sometimes), steps=40)
    count = int(np.isnan(result.history.loss).sum())
    assert 0 < count == result.skipped < 40
    assert result.ending.endswith(f"; {count} of 41 were not finite")
    assert np.isfinite(result.params).all()


def test_gradients_that_explode_are_told_of():
    def steep(x, key):
        return jnp.sum(x) * jnp.where(jax.random.uniform(key) < 0.1, 1e7, 1.0)

    with pytest.warns(
        UserWarning, match=r"norm at step \d+ is 1.41e\+07, 1.0e\+07 times the median"
    ):
        run(Stochastic(steep), optimizer=optax.sgd(1e-9), steps=30)


def test_the_growth_of_gradients_is_that_of_the_motion():
    """Of `x' = 3 x` it is known; single precision has digits to lose."""

    def unstable(p, key, t):
        return p["gain"] * jnp.exp(3 * t) * (1 + jax.random.uniform(key))

    params = {"gain": Positive(jnp.float32(2.0))}
    growth = gradient_growth(Stochastic(unstable, horizon=[1.0]), params, [1.0, 2.0, 4.0])
    assert growth.rate == pytest.approx(3.0, rel=1e-5)
    assert growth.digits_lost == pytest.approx(9 / np.log(10), rel=1e-5)
    assert growth.summary().endswith(
        "as exp(3 t): 3.9 of 6.9 digits are lost. Train on shorter runs, or begin with them: "
        "Stochastic(…, horizon=…)"
    )
    short = gradient_growth(unstable, params, [0.5, 1.0])
    assert short.summary().endswith("0.7 of 6.9 digits are lost")
    assert "; it is not finite at 40 s." in gradient_growth(unstable, params, [1, 2, 40]).summary()
    for horizons, message in (
        ([1.0], "give two or more positive times, rising"),
        ([2.0, 1.0], "give two or more positive times, rising"),
        ([40.0, 50.0], r"norms of the gradient are \[.*; two of them must be positive and finite"),
    ):
        with pytest.raises(ValueError, match=message):
            gradient_growth(unstable, params, horizons)


def never(x, *_):
    raise AssertionError(f"evaluated at {x}")


REFUSED = [
    ({"objective": Stochastic(lambda x, _: jnp.sum(x))}, "does not use its key, so that all steps"),
    ({"validation": lambda x: x}, r"the validation returned float64\[2\], needs a real"),
    ({"validation": lambda _: None}, "the validation returned nothing; end it with"),
    ({"validation": lambda p, k: p}, r"declared with the parameters \(p, k\)"),
    ({"validation": 1.0}, "validation is 1.0, must be a function of the parameters"),
    ({"objective": Stochastic(lambda x, _: x)}, r"the objective returned float64\[2\], needs a"),
    ({"optimizer": "l-bfgs"}, "L-BFGS with backtracking compares losses, and those of different"),
    ({"optimizer": "slsqp"}, "SLSQP of SciPy compares losses"),
    (
        {"objective": LeastSquares(lambda x: x), "optimizer": "lm", "validation": never},
        "Levenberg-Marquardt chooses the best parameters by the objective, not by a validation",
    ),
    ({"patience": 3}, "`patience` counts validations: give `validation`"),
    ({"validation": never, "patience": 0}, "patience is 0, must be at least 1"),
    ({"validation": never, "validation_every": 0}, "validation_every is 0, must be at least 1"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_a_call_that_makes_no_sense_is_refused(settings, message):
    evaluated = []
    with pytest.raises(ValueError, match=message):
        run(**settings, callback=evaluated.append)
    assert evaluated == []


def test_declarations_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"parameters \(x\); it must take \(params, key\)"):
        Stochastic(lambda x: x)
    with pytest.raises(ValueError, match=r"it must take \(params, key, horizon\)"):
        Stochastic(noisy, horizon=[1.0])
    with pytest.raises(ValueError, match="all times must be positive and finite"):
        Stochastic(never, horizon=[1.0, -1.0])
    text: Any = "long"
    with pytest.raises(TypeError, match="horizon is 'long'; give times"):
        Stochastic(never, horizon=text)
    for key, words in ((jnp.ones(2), r"float64\[2\]"), (jax.random.split(KEY), r"key<fry>\[2\]")):
        with pytest.raises(TypeError, match=f"key is an array {words}; give one key"):
            run(key=key)
    with pytest.raises(TypeError, match=r"key is 0; give jax.random.key\(0\)"):
        run(key=0)
