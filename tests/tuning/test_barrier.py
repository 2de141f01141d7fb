"""The barrier at the step limit."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdae import Baumgarte, LinearStabilization, Multipliers, State
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.stability.stability_functions import step_matrix as step_matrix_of
from jaxdae.tuning import (
    Conditions,
    IntegratedViolation,
    perturbed_states,
    Positive,
    SimulationObjective,
    StepBarrier,
    tune,
)
from jaxdae.tuning.barrier import _radius, step_matrix

PENDULUM = CartesianPendulum()
STARTS = perturbed_states(State(*PENDULUM.start()), jax.random.key(0), 2, 1e-2, 1e-2)


def objective(**settings):
    usual: dict[str, Any] = {"system": PENDULUM, "solver": RK4(), "t1": 0.1, "dt": 0.02}
    return SimulationObjective(IntegratedViolation(), STARTS, **(usual | settings))


def gains(x) -> Any:
    return Multipliers(Baumgarte(x[0], x[1]))


@pytest.mark.parametrize("solver", [RK4(), diffrax.Heun(), diffrax.Kvaerno3()])
def test_the_step_matrix_is_that_of_the_tableau(solver, rng):
    H = rng.normal(size=(3, 3))
    # Sums of the same products in another order.
    np.testing.assert_allclose(step_matrix(solver, jnp.asarray(H)), step_matrix_of(H, 1.0, solver))


def test_the_bound_is_just_above_the_spectral_radius(rng):
    for matrix in (
        *rng.normal(size=(6, 4, 4)),
        np.array([[0.5, 1.0], [0.0, 0.5]]),
        0.3 * np.eye(2),
    ):
        radius = np.abs(np.linalg.eigvals(matrix)).max()
        assert radius <= _radius(jnp.asarray(matrix)) * (1 + 1e-12)
        # (condition of the modes)^(1/64), or 64^(1/64) where roots coincide.
        assert _radius(jnp.asarray(matrix)) < 1.1 * radius
    nilpotent = jnp.array([[0.0, 1.0], [0.0, 0.0]])
    assert _radius(nilpotent) < 0.1
    assert np.isfinite(jax.jit(jax.grad(_radius))(nilpotent)).all()


@pytest.mark.slow
def test_the_bound_is_that_of_all_steps():
    """Gains for the long step damp less in the short one."""
    steps = Conditions(dt=(0.005, 0.02), t1=0.02)
    several = StepBarrier(objective(conditions=steps, t1=None, dt=None), 1e-3, theta=0.5)
    alone = StepBarrier(objective(dt=0.02, t1=0.02), 1e-3, theta=0.5)
    short = StepBarrier(objective(dt=0.005, t1=0.02), 1e-3, theta=0.5)
    theory = Multipliers(Baumgarte.for_step(RK4(), 0.02))
    assert alone.bound(theory) < 0.5 < several.bound(theory)
    np.testing.assert_allclose(several.bound(theory), short.bound(theory), rtol=1e-12)


@pytest.mark.slow
def test_gradients_agree_three_ways_also_where_roots_coincide():
    x = jnp.array([40.0, 400.0])
    forward, reverse = (
        StepBarrier(objective(mode=mode), 1e-3, theta=0.95) for mode in ("forward", "reverse")
    )
    by_forward = jax.jit(jax.jacfwd(lambda x: forward(gains(x))))(x)
    by_reverse = jax.jit(jax.grad(lambda x: reverse(gains(x))))(x)
    steps = 1e-5 * jnp.diag(x)
    values = jax.jit(jax.vmap(lambda x: forward(gains(x))))(jnp.concatenate([x + steps, x - steps]))
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-9)
    # Truncation (1e-5)^2 times a curvature of some hundreds, round-off 1e-16 / 1e-5.
    np.testing.assert_allclose((values[:2] - values[2:]) / (2 * jnp.diag(steps)), by_forward, 1e-6)


@pytest.mark.slow
def test_long_steps_of_an_optimizer_do_not_leave_the_region():
    """Full matrices and all: beyond the limit there is nothing to step to."""
    barrier = StepBarrier(objective(), 1e-6, theta=0.9)
    start = Multipliers(Baumgarte(Positive(20.0), Positive(100.0)))
    found = tune(barrier, start, steps=15, optimizer=optax.adam(1.0))
    assert found.skipped > 0
    known = found.certificate
    assert known.stability[0].factor < 0.9
    assert known.step_margin > 1
    assert "steps that damp by 0.9" in found.budget


@pytest.mark.slow
def test_beyond_the_limit_the_value_is_nan_and_without_gains_there_is_no_bound():
    barrier = StepBarrier(objective(), 1e-3)
    assert np.isnan(barrier(gains(jnp.array([300.0, 100.0]))))
    assert barrier.bound(Multipliers()) == 0.0
    growing = Multipliers(LinearStabilization(K10=4.0, K11=-1.0))
    assert barrier.bound(growing) > 1
    assert barrier.mode == "forward"


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {"weight": 1.0, "theta": 1.5}, r"theta is 1\.5, must be in \(0, 1\]"),
        ({}, {"weight": 0.0}, r"weight is 0\.0, must be positive"),
        ({"dt": None, "solver": None, "max_steps": 9}, {"weight": 1.0}, "steps are adaptive"),
        ({"solver": diffrax.LeapfrogMidpoint()}, {"weight": 1.0}, "has no Butcher tableau"),
    ],
)
def test_a_barrier_that_makes_no_sense_is_refused(settings, arguments, message):
    with pytest.raises(ValueError, match=message):
        StepBarrier(objective(**settings), **arguments)
