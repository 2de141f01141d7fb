import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdae.tuning import (
    Interval,
    Positive,
    PositiveDefinite,
    resolve,
    tune,
)

PARAMS = {
    "gain": Positive(jnp.array([20.0, 10.0])),
    "matrix": PositiveDefinite(jnp.eye(2)),
    "bounded": Interval(0.3, 0.0, 1.0),
    "plain": jnp.array(3.0),
    "held": 2.0,
}


def distance(p):
    matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    gain = jnp.sum((jnp.log(p["gain"]) - jnp.log(5.0)) ** 2)
    rest = (p["bounded"] - 0.8) ** 2 + p["held"] * (p["plain"] - 2.5) ** 2
    return gain + jnp.sum((p["matrix"] - matrix) ** 2) + rest


@pytest.fixture(scope="module")
def reverse():
    return tune(distance, PARAMS, steps=400)


@pytest.mark.slow
def test_the_minimum_is_found_and_told(reverse):
    # The minimum is smooth and round: what is left of the distance is the root of the loss's 1e-13.
    assert reverse.loss < 1e-10 * reverse.initial_loss
    np.testing.assert_allclose(reverse.params["gain"], 5.0, rtol=1e-5)
    np.testing.assert_allclose(reverse.params["plain"], 2.5, rtol=1e-5)
    assert reverse.loss == reverse.history.loss.min()
    # The same operations in another program: fused differently, round-off of a sum of eight.
    np.testing.assert_allclose(distance(resolve(reverse.raw)), reverse.loss, rtol=1e-10)
    np.testing.assert_allclose(reverse.initial_loss, distance(resolve(PARAMS)), rtol=1e-12)
    assert (reverse.steps, reverse.history.loss.shape) == (400, (401,))
    assert reverse.histories.loss.shape == (401, 1)
    text = reverse.summary()
    assert f"{reverse.initial_loss:.6g} -> {reverse.loss:.6g}" in text
    assert "400 (0 skipped), 401 evaluations\n" in text
    assert "stopped     steps: all steps were made" in text
    assert "Adam with a falling rate, because the objective has no residuals" in text
    assert "['gain']: [20, 10] -> " in text
    assert "held" not in text


def test_forward_and_reverse_mode_take_the_same_way(reverse):
    forward = tune(distance, PARAMS, steps=20, mode="forward")
    # Round-off of the two gradients, carried through twenty steps of a contraction.
    np.testing.assert_allclose(forward.history.loss, reverse.history.loss[:21], rtol=1e-9)
    norms = reverse.history.gradient_norm[:21]
    np.testing.assert_allclose(forward.history.gradient_norm, norms, rtol=1e-9)


def test_the_way_does_not_depend_on_the_scale_of_a_small_loss():
    def small(scale):
        return tune(lambda p: scale * (p - 1.0) ** 2, jnp.array(1.3), steps=30).history.loss

    # Adam is invariant to the scale of the loss but for its eps, which is 1e-16 here beside
    # gradients of 1e-9 and more.
    np.testing.assert_allclose(small(1e-8) / 1e-8, small(1.0), rtol=1e-5, atol=1e-10)


def test_the_best_loss_is_exact_in_the_precision_of_the_objective():
    result = tune(lambda p: jnp.float32(0.1) * p**2, jnp.array(1.3, jnp.float32), steps=5)
    assert result.loss == result.history.loss[-1] == jnp.float32(result.loss)


def wall(x):
    """Falls towards 2, but is NaN beyond 1.5."""
    return jnp.where(x > 1.5, jnp.nan, (x - 2.0) ** 2)


def kink(x):
    """Falls towards 2; beyond 1.5 the value is finite and the gradient is NaN."""
    return (x - 2.0) ** 2 + jnp.sqrt(jnp.where(x > 1.5, 0.0 * x, 1.0))


@pytest.mark.parametrize("objective", [wall, kink])
def test_a_step_that_is_not_finite_is_halved_until_it_is(objective, capfd):
    # The gradient at 0 is -4: the step is refused at 4 and 2, and taken at 1.
    result = tune(objective, jnp.array(0.0), steps=3, optimizer=optax.sgd(1.0), progress=True)
    shown = capfd.readouterr().err
    assert f"loss={result.loss:.4g}, skipped=2" in shown
    assert "3/3" in shown
    assert result.history.skipped.tolist() == [False, True, True, False]
    assert result.skipped == 2
    assert result.params == 1.0


def test_a_refused_gradient_does_not_enter_the_memory_of_the_optimizer():
    momentum = optax.sgd(0.3, momentum=0.9)
    result = tune(kink, jnp.array(0.0), steps=40, optimizer=momentum)
    first = int(np.argmax(result.history.skipped))
    assert np.isnan(result.history.gradient_norm[first])
    # A NaN in the momentum would make every later step NaN, too.
    assert not result.history.skipped[first:].all()
    assert 1.4 < result.params <= 1.5


def test_where_the_optimizer_overflows_a_short_gradient_step_is_taken():
    # The step is finite at first, and infinite from its second call on.
    schedule = optax.scale_by_schedule(lambda count: jnp.where(count == 0, -0.1, jnp.inf))
    result = tune(lambda x: x**2, jnp.array(1.0), steps=12, optimizer=schedule)
    assert result.history.skipped.tolist() == [False] + 12 * [True]
    # By 0.2 at first; then by 0.05 where the gradient 2 x is above 1, else by 0.05 of it.
    points = np.array([1.0, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.405, 0.3645])
    np.testing.assert_allclose(result.history.loss[:11], points**2, rtol=1e-13)
    assert result.params < 0.3645


def two_wells(x):
    return (x**2 - 1.0) ** 2 + 0.3 * x


def test_several_starts_find_the_deeper_well():
    single = tune(two_wells, jnp.array(1.0), steps=60)
    several = tune(two_wells, jnp.array(1.0), steps=60, starts=8, spread=1.5)
    assert single.params > 0 > several.params
    assert several.loss < single.loss
    assert several.best_start > 0
    assert several.initial_loss == two_wells(1.0)
    # Start 0 is the unperturbed one; vectorized arithmetic may round differently.
    np.testing.assert_allclose(several.histories.loss[:, 0], single.history.loss, rtol=1e-9)
    np.testing.assert_array_equal(
        several.history.loss, several.histories.loss[:, several.best_start]
    )


@pytest.mark.slow
def test_an_objective_that_does_not_depend_on_the_parameters_is_pointed_out():
    """One evaluation shows it; a start beside it goes on, and is the same as without it."""
    with pytest.warns(UserWarning, match="all derivatives of the loss, which is 1, are zero"):
        result = tune(lambda _: jnp.asarray(1.0), jnp.ones(2), starts=2)
    assert (result.stop_reason, result.evaluations, result.steps) == ("stalled", 2, 0)

    def plateau(x):
        return jnp.where(x == 1.0, 2.0, x**2)

    both = tune(plateau, jnp.array(1.0), starts=2, steps=7)
    assert np.isfinite(both.histories.loss[0]).all()
    assert np.isnan(both.histories.loss[1:, 0]).all()
    assert np.isfinite(both.histories.loss[1:, 1]).all()
    assert (both.best_start, both.evaluations, both.skipped) == (1, 9, 0)


@pytest.mark.slow
def test_all_steps_of_adam_are_said_to_be_too_few():
    """A quadratic of two parameters that L-BFGS solves, and Adam has not, is not silent."""

    def line(p):
        x = jnp.linspace(0.0, 1.0, 5)
        return jnp.sum((p[0] * x + p[1] - 2.0 * x - 0.5) ** 2)

    slow = tune(line, jnp.array([-20.0, 30.0]), steps=100)
    assert slow.stop_reason == "steps"
    assert slow.loss > 1.0
    fall = 100 * (1 - slow.history.loss[-1] / slow.history.loss[-11])
    slope = slow.history.gradient_norm[-1] / slow.history.gradient_norm.max()
    expected = (
        f"all steps were made; the loss fell by {fall:.2g} % in the last 10, and the gradient at "
        f"the best is {slope:.2g} of the largest: not converged, take more steps, or "
        'optimizer="l-bfgs" where the loss is smooth'
    )
    assert slow.ending == expected
    assert f"steps: {expected}\n" in slow.summary()
    assert tune(line, jnp.array([-20.0, 30.0]), optimizer="l-bfgs").loss < 1e-20


def test_a_callback_sees_each_evaluation_and_may_stop_and_the_objective_is_traced_once():
    seen, traces = [], []

    def counting(x):
        traces.append(None)
        return x**2

    def stop_at_three(info):
        seen.append(info)
        return info.step == 3

    result = tune(counting, Positive(1.0), steps=50, callback=stop_at_three)
    assert len(traces) == 1
    assert (result.stop_reason, result.ending) == ("callback", "the callback returned True")
    assert [info.step for info in seen] == [0, 1, 2, 3]
    assert seen[-1].best_loss == result.loss
    assert seen[-1].params == result.params
    np.testing.assert_array_equal(seen[-1].loss, result.histories.loss[3])


def test_no_steps_evaluate_once():
    result = tune(lambda x: x**2, jnp.array(3.0), steps=0)
    assert result.loss == result.initial_loss == 9.0
    assert (result.steps, result.stop_reason) == (0, "steps")


class Moded:
    mode = "forward"

    def __call__(self, x):
        return x**2


def never(x):
    raise AssertionError(f"evaluated at {x}")


REFUSED = [
    (lambda x: x**2, 1.0, {}, r"nothing to train.*Positive\(20.0\)"),
    (lambda x: x, jnp.ones(2), {}, r"objective returned float64\[2\], needs a real"),
    (jnp.abs, jnp.array(1.0 + 1.0j), {}, "a trained leaf is complex"),
    (lambda x: x**2, jnp.array(1.0), {"steps": -1}, "steps is -1, must be at least 0"),
    (lambda x: x**2, jnp.array(1.0), {"starts": 0}, "starts is 0, must be at least 1"),
    (lambda x: x**2, jnp.array(1.0), {"mode": "both"}, 'mode is "both", must be'),
    (lambda x: x**2, jnp.array(1.0), {"resume": True}, "need the file: give `checkpoint`"),
    (never, jnp.array(1.0), {"checkpoint": "x", "resume": True, "overwrite": True}, "contradict"),
    (never, jnp.array(1.0), {"tolerance": -1e-8}, "tolerance is -1e-08, must be between 0 and 1"),
    (Moded(), jnp.array(1.0), {"mode": "reverse"}, 'objective is built for "forward"'),
    (
        never,
        jnp.array(1.0),
        {"optimizer": "adm"},
        "No optimizer is named 'adm'. Did you mean 'adam'",
    ),
    (never, jnp.array(1.0), {"optimizer": optax.adam}, r"optimizer is adam.*optax.adam\(0.05\)"),
    (never, jnp.array(1.0), {"steps": 10.0}, r"steps is 10.0, must be an integer; round it"),
    (never, jnp.array(1.0), {"callback": True}, "callback is a bool, must be a function"),
    (jnp.array(1.0), lambda x: x, {}, r"objective is a .*must be a function.*another order"),
    (lambda x: x * jnp.nan, jnp.array(1.0), {"starts": 3}, r"failed at all 3 starts \(loss nan"),
]


@pytest.mark.parametrize(("objective", "params", "settings", "message"), REFUSED)
def test_a_call_that_makes_no_sense_is_refused(objective, params, settings, message):
    with pytest.raises(ValueError, match=message):
        tune(objective, params, **settings)


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"is a folder; give the name of a file.*run\.ckpt"):
        tune(never, jnp.array(1.0), checkpoint=tmp_path)
