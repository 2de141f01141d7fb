"""Adaptive steps of runs that are differentiated suit derivatives, not only the motion."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.derivatives.perturbation import (
    excited,
    perturbation,
    tolerances,
    with_error_of_perturbation,
)

FORMULATION = jaxdae.Multipliers(jaxdae.Baumgarte(1.0))
RATE, END = 20.0, 3.0


class Oscillator(jaxdae.System):
    """`q'' = -rate^2 q - 2 damping q'`: at rest nothing moves, and steps of a motion grow."""

    rate: Any = RATE
    damping: Any = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * self.rate**2 * q @ q

    def force(self, t, q, v, w, u):
        return -2 * self.damping * v


def end(start, system=None, **how):
    """Position and velocity at the end, from those at the start."""
    state = jaxdae.State(start[:1], start[1:])
    system = Oscillator() if system is None else system
    settings = {"t1": END, "saveat": diffrax.SaveAt(t1=True)} | how
    run = jaxdae.simulate(system, FORMULATION, state, **settings)
    return jnp.concatenate([run.final_state.q, run.final_state.v]), run.stats["num_steps"]


EXACT = np.array(
    [
        [np.cos(RATE * END), np.sin(RATE * END) / RATE],
        [-RATE * np.sin(RATE * END), np.cos(RATE * END)],
    ]
)


def jacobians(**how):
    """By both modes, at rest."""
    reverse = jax.jacrev(lambda x: end(x, **how)[0])(jnp.zeros(2))
    forward = how
    if how.get("backend") == "plain":
        forward = how | {"adjoint": diffrax.ForwardMode()}
    return reverse, jax.jacfwd(lambda x: end(x, **forward)[0])(jnp.zeros(2))


@pytest.mark.parametrize(
    "how",
    [
        {"backend": "native"},
        {"backend": "native", "solver": jaxdae.solvers.Rodas5P()},
        pytest.param({"backend": "plain"}, marks=pytest.mark.slow),
        pytest.param({"backend": "native", "solver": diffrax.Kvaerno5()}, marks=pytest.mark.slow),
    ],
)
def test_derivatives_at_rest_are_those_of_the_oscillation(how):
    """Steps that suit a motion at rest are as long as the run: `R(20 i h)` is no cosine."""
    reverse, forward = jacobians(**how)
    size = np.array([[1.0, 1 / RATE], [RATE, 1.0]])
    # The tolerance is 1e-8 in each of some hundred steps.
    np.testing.assert_allclose(reverse / size, EXACT / size, atol=1e-5)
    np.testing.assert_allclose(forward / size, EXACT / size, atol=1e-5)
    # Both go through the same steps: they are transposes to round-off.
    np.testing.assert_allclose(forward, reverse, atol=1e-10)


def test_a_run_that_is_not_differentiated_has_the_steps_of_the_motion():
    steps = end(jnp.zeros(2))[1]
    assert steps < 20
    _, differentiated = jax.vjp(end, jnp.zeros(2))[0]
    assert differentiated > 2 * steps


def test_a_perturbation_that_dies_out_is_not_amplified():
    """An explicit method beyond its limit of stability: `exp(-1000 t)`, not growth without end."""
    stiff = Oscillator(rate=jnp.array(100.0), damping=jnp.array(500.0))
    how: dict[str, Any] = {"t1": 1.0, "backend": "native"}
    by_start, steps = jax.jacrev(lambda x: end(x, stiff, **how), has_aux=True)(jnp.zeros(2))
    # The slow mode, of rate 10.1, is left; a unit of velocity is a thousandth of one of position.
    slow, fast = (500 - np.sqrt(500.0**2 - 100.0**2)), (500 + np.sqrt(500.0**2 - 100.0**2))
    kept = np.exp(-slow) / (fast - slow)
    exact = kept * np.array([[fast, 1.0], [-slow * fast, -slow]])
    np.testing.assert_allclose(by_start, exact, atol=1e-8)
    # Steps of Dopri8 decay for `-6 < h lambda < 0`: these are not much shorter.
    assert fast / 6 / 2 < steps < 2.5 * fast / 6


def test_members_have_their_own_steps_and_one_that_fails_is_alone():
    starts = jnp.array([[0.0, 0.0], [jnp.nan, 0.0], [0.3, -1.0]])

    def total(starts):
        ends = jax.vmap(lambda x: end(x, throw=False, start_tolerance=None)[0])(starts)
        return jnp.sum(jnp.where(jnp.isfinite(ends), ends, 0.0))

    gradient = jax.grad(total)(starts)
    one = EXACT.sum(0)
    np.testing.assert_allclose(gradient[0], one, atol=2e-4)
    np.testing.assert_allclose(gradient[2], one, atol=2e-4)
    np.testing.assert_array_equal(gradient[1], 0.0)


def test_backward_in_time_and_second_derivatives():
    backward = jax.jacrev(lambda x: end(x, t1=-END)[0])(jnp.zeros(2))
    np.testing.assert_allclose(backward, np.linalg.inv(EXACT), atol=2e-4)

    def half_square(rate):
        return 0.5 * jnp.sum(end(jnp.array([0.1, 0.0]), Oscillator(rate), t1=0.5)[0][:1] ** 2)

    # q = 0.1 cos(rate / 2): 0.005 cos^2, whose second derivative is -0.0025 cos(rate).
    second = jax.hessian(half_square)(jnp.array(RATE))
    np.testing.assert_allclose(second, -0.0025 * np.cos(RATE), atol=1e-7)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"max_steps": 20}, "maximum number of solver steps was reached, max_steps = 20"),
        ({"dtmin": 0.1, "force_dtmin": False}, "minimum step size was reached.*smaller dtmin"),
    ],
)
def test_steps_that_a_gradient_needs_and_does_not_get_are_an_error(how, words):
    """The run itself, at rest, has fewer and longer steps."""
    limits = {x: how.pop(x) for x in ("dtmin", "force_dtmin") if x in how}
    control = diffrax.PIDController(rtol=1e-8, atol=1e-8, **limits)
    with pytest.raises(RuntimeError, match=f"(?s){words}.*differentiated suit its derivatives"):
        jax.grad(lambda x: end(x, stepsize_controller=control, **how)[0].sum())(jnp.zeros(2))


def test_saved_steps_and_their_derivatives_are_of_one_run():
    """The times of rows at steps are those of the values: `q = q0 cos(rate t)` at each."""
    saveat = diffrax.SaveAt(steps=True)

    def rows(x):
        state = jaxdae.State(x[:1], x[1:])
        run = jaxdae.simulate(Oscillator(), FORMULATION, state, t1=0.5, saveat=saveat)
        return run.q[:, 0], run.ts

    (_, ts), back = jax.vjp(rows, jnp.array([0.1, 0.0]))
    made = np.isfinite(ts)
    for number in (3, made.sum() - 1):
        bar = np.zeros(ts.size)
        bar[number] = 1.0
        (gradient,) = back((jnp.asarray(bar), jnp.zeros_like(ts)))
        np.testing.assert_allclose(gradient[0], np.cos(RATE * ts[number]), atol=1e-6)


def test_the_perturbation_has_no_symmetry():
    entries = perturbation(500, np.float64)
    assert np.unique(entries).size == 500
    assert np.abs(entries).min() > 0.3
    assert np.abs(entries).max() < 1.0
    np.testing.assert_array_equal(entries.astype(np.float32), perturbation(500, np.float32))


def test_the_error_is_the_larger_one_in_units_of_the_state():
    control = diffrax.PIDController(rtol=1e-6, atol=1e-8)
    before = after = np.array([2.0, 0.0])
    error = np.array([1e-7, 1e-7])
    moved = np.array([3e-6, 0.0]), np.array([1.0, 1.0]), np.array([3.0, 1.0])
    found = with_error_of_perturbation(error, before, after, moved, control)
    # 3e-6 of 3 is the tolerance itself: as much as 1e-8 + 1e-6 * 2 of the state.
    np.testing.assert_allclose(found, [2.01e-6, 1e-7], rtol=1e-12)
    nothing = tuple(np.full(2, np.nan) for _ in range(3))
    found = with_error_of_perturbation(error, before, after, nothing, control)
    np.testing.assert_array_equal(found, error)


def test_an_absolute_tolerance_is_one_of_large_states():
    """A metre in a million kilometres is no tolerance of a perturbation of size one."""
    control = diffrax.PIDController(rtol=1e-7, atol=1.0)
    before = after = np.array([1e9, 0.0])
    moved = np.array([1e-6, 1e-6]), np.ones(2), np.ones(2)
    found = with_error_of_perturbation(np.zeros(2), before, after, moved, control)
    # Ten times `1e-7`, of which the state has 101; a thousandth of `1e-3`, of which it has 1.
    np.testing.assert_allclose(found, [1010.0, 1e-3], rtol=1e-12)


def test_a_perturbation_that_is_moved_stays_within_bounds():
    """Moved by a part of its size in each of many steps it would grow beyond all numbers."""
    control = diffrax.PIDController(rtol=1e-3, atol=1e-3)
    still = jnp.zeros(2, jnp.float32)
    once = lambda _, moved: excited(still, still, (moved, moved), control)  # noqa: E731
    # Without bounds this would be `(1 + 0.01 g)^30000`, beyond single precision.
    moved = jax.lax.fori_loop(0, 30000, once, still + 1)
    assert 1e-3 < jnp.abs(moved).max() < 2e6


def test_controllers_without_tolerances_choose_as_they_do():
    assert tolerances(diffrax.ConstantStepSize()) is None
    assert tolerances(diffrax.ClipStepSizeController(diffrax.PIDController(1e-3, 1e-6))) == (
        1e-3, 1e-6,
    )  # fmt: skip


def test_a_derivative_whose_steps_would_differ_is_refused():
    """By a parameter, whose steps suit derivatives, and then by a time, whose steps do not."""

    def last(k, t1):
        run = jaxdae.simulate(
            Oscillator(k), FORMULATION, jaxdae.State([0.1], [0.0]), t1=t1, max_steps=64,
            saveat=diffrax.SaveAt(steps=True), throw=False,
        )  # fmt: skip
        return run.q[0, 0]

    with pytest.raises(jaxdae.BackendError, match=r"states at adaptive steps, by a time"):
        jax.grad(jax.grad(last), argnums=1)(jnp.array(2.0), jnp.array(0.5))


def test_a_tolerance_may_be_differentiated_by():
    """It chooses the steps alone, which are held fixed."""

    def position(rtol):
        control = diffrax.PIDController(rtol=rtol, atol=1e-8)
        return end(jnp.array([0.1, 0.0]), t1=0.5, stepsize_controller=control)[0][0]

    assert jax.grad(position)(1e-8) == 0.0
