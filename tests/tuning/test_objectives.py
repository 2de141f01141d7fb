from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdae
from helpers.spring import Spring
from jaxdae import Baumgarte, Multipliers, State
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import Projected, RK4
from jaxdae.tuning import (
    IntegratedViolation,
    Logarithm,
    perturbed_states,
    Positive,
    SimulationObjective,
    TrackingError,
    tune,
)

PENDULUM = CartesianPendulum()
START = State(*PENDULUM.start())
FIXED: dict[str, Any] = {"t1": 0.3, "dt": 0.01, "solver": RK4()}


@pytest.fixture(scope="module")
def starts():
    return perturbed_states(START, jax.random.key(0), 4, 1e-2, 1e-2)


def gains(x):
    return Multipliers(Baumgarte(K_D=x[0], K_P=x[1]))


def objective(starts, cost=None, **settings):
    usual: dict[str, Any] = {"system": PENDULUM} | FIXED
    cost = IntegratedViolation() if cost is None else cost
    return SimulationObjective(cost, starts, **(usual | settings))


# Times of steps are beside the computed ends of the steps by round-off. A backward pass that
# repeats steps may put such a row on the other side and lose it: 5 % of the gradient in this case.
STEP_TIMES = (0.01 * jnp.arange(46)).at[-1].set(0.45)


@pytest.mark.slow
@pytest.mark.newest
def test_gradients_agree_in_forward_and_reverse_mode_and_with_differences(starts):
    x = jnp.array([8.0, 30.0])
    cost = TrackingError(lambda _t, q, _v: q, lambda _t: jnp.array([2.0, 1.0]))
    saveat = diffrax.SaveAt(ts=STEP_TIMES)
    forward, reverse = (
        objective(starts, cost, saveat=saveat, mode=m, t1=0.45) for m in ("forward", "reverse")
    )
    by_forward = jax.jit(jax.jacfwd(lambda x: forward(gains(x))))(x)
    by_reverse = jax.jit(jax.grad(lambda x: reverse(gains(x))))(x)
    loss = jax.jit(lambda x: forward(gains(x)))
    steps = 1e-4 * jnp.diag(x)
    differences = jnp.stack([(loss(x + s) - loss(x - s)) / (2 * s.sum()) for s in steps])
    # Round-off of two orders of evaluation of the same sums.
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-9)
    # Central differences: truncation (1e-4)^2 and round-off 1e-16 / 1e-4 over the derivative.
    np.testing.assert_allclose(differences, by_forward, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_step_to_where_an_objective_is_not_positive_is_refused_under_a_logarithm(value):
    def loss(x):
        return jnp.where(x > 1.0, value, 2.0 - x)

    logarithm = Logarithm(loss)
    assert not np.isfinite(logarithm(jnp.array(1.5)))
    # The slope of log(2 - x) at 0 is -1/2: 2 is refused, then 1 is reached.
    result = tune(logarithm, jnp.array(0.0), steps=2, optimizer=optax.sgd(4.0))
    assert result.history.skipped.tolist() == [False, True, False]
    assert result.params == 1.0
    with pytest.raises(ValueError, match="first evaluation failed"):
        tune(logarithm, jnp.array(3.0), steps=2)


def test_a_budget_names_what_a_solver_wraps_and_a_logarithm_has_that_of_its_objective(starts):
    """A checkpoint is continued where the budget is the same."""
    plain = objective(starts, solver=Projected(RK4()), mode="reverse")
    assert plain.budget.startswith("Projected(RK4, 2 iterations), h")
    assert Logarithm(plain).mode == "reverse"
    assert Logarithm(plain).budget == plain.budget
    with pytest.raises(ValueError, match='objective is built for "reverse"'):
        tune(Logarithm(plain), 1.0, mode="forward")


@pytest.mark.slow
def test_an_adaptive_run_has_a_work_budget(starts):
    adaptive = {"dt": None, "solver": diffrax.Tsit5()}
    enough, too_few = (objective(starts, **adaptive, max_steps=n) for n in (200, 5))
    assert enough.budget == "Tsit5, adaptive, at most 200 steps in 0.3 s, 4 starts"
    costs = enough.costs(gains([5.0, 20.0]))
    assert np.isfinite(costs).all()
    np.testing.assert_allclose(enough(gains([5.0, 20.0])), np.mean(costs), rtol=1e-12)
    assert np.isnan(too_few.costs(gains([5.0, 20.0]))).all()


@pytest.mark.slow
def test_a_parameter_of_the_system_can_be_tuned():
    # Position cos(3 t) belongs to the stiffness 9.
    cost = TrackingError(lambda _t, q, _v: q[0], lambda t: jnp.cos(3.0 * t))
    start = State(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    made = SimulationObjective(
        cost, start, build=lambda k: (Spring(k), Multipliers(), None), t1=2.0, dt=0.05, solver=RK4()
    )
    result = tune(made, Positive(7.0), steps=60)
    # Adam at a rate of five per cent comes to within a fraction of its steps.
    np.testing.assert_allclose(result.params, 9.0, rtol=0.01)


def test_the_motions_can_be_looked_at(starts):
    motions = objective(starts).trajectories(gains([5.0, 20.0]))
    assert motions.q.shape[0] == 4
    np.testing.assert_array_equal(motions.q[:, 0], starts.q)


def test_perturbed_states_leave_the_constraints_by_the_amount_asked_for():
    states = perturbed_states(START, jax.random.key(1), 4000, 1e-3, jnp.array([1e-2, 0.0]))
    assert states.q.shape == states.v.shape == (4000, 2)
    assert states.w.shape == (4000, 0)
    # The standard deviation of 4000 samples is known to 1 / sqrt(8000) = 1.1 %; five sigma.
    np.testing.assert_allclose(np.std(states.q - START.q, axis=0), 1e-3, rtol=0.056)
    np.testing.assert_allclose(np.std(states.v[:, 0]), 1e-2, rtol=0.056)
    np.testing.assert_array_equal(states.v[:, 1], START.v[1])


@pytest.mark.slow
def test_perturbed_states_of_a_system_are_consistent():
    states = perturbed_states(START, jax.random.key(1), 5, system=PENDULUM)
    phi_dot = lambda s: jaxdae.evaluate(PENDULUM, 0.0, s.q, s.v).phi_dot  # noqa: E731
    residuals = jax.jit(jax.vmap(phi_dot))(states)
    np.testing.assert_allclose(np.sum(states.q**2, axis=1), 1.0, rtol=1e-10)
    np.testing.assert_allclose(residuals, 0.0, atol=1e-10)
    assert np.all(np.abs(states.q - START.q).max(axis=1) > 1e-6)


@pytest.mark.slow
def test_perturbed_states_that_cannot_be_projected_are_an_error(led_point):
    # The leader is at x = speed t = 2, off the unit circle.
    system = led_point(0.5)
    with pytest.raises(ValueError, match=r"3 of 3 starts \(the first is number 0\) could not be"):
        perturbed_states(system.start(), jax.random.key(0), 3, system=system, t=4.0)


REFUSED = [
    ({"build": lambda p: p}, "exactly one of `build` and `system`"),
    ({"dt": 0.0}, r"dt = 0\.0 does not lead from t0 = 0\.0 to t1"),
    ({"system": None}, "exactly one of `build` and `system`"),
    ({"system": None, "build": abs, "controller": abs}, "leave `controller` out"),
    ({"mode": "both"}, 'mode is "both", must be'),
    ({"dt": None}, "adaptive run has no work budget.*give max_steps"),
    ({"starts": START}, r"shape \(2,\), needs \(starts, n\)"),
    ({"starts": State(jnp.full((2, 2), jnp.nan), jnp.ones((2, 2)))}, "a start is not finite"),
    ({"stepsize_controller": diffrax.PIDController(rtol=1e-6, atol=1e-6)}, "no work budget"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_an_objective_that_makes_no_sense_is_refused(starts, settings, message):
    with pytest.raises(ValueError, match=message):
        objective(**{"starts": starts} | settings)
