"""Objectives over steps and variations, in one batch."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.systems import Blowup
from jaxdae import Multipliers, State
from jaxdae.solvers import RK4
from jaxdae.tuning import Conditions, CVaR, SimulationObjective, TrackingError, tune

START = State(jnp.zeros((2, 1)), jnp.array([[1.0], [0.8]]))
AT_ZERO = TrackingError(lambda _t, q, _v: q, lambda _t: 0.0)
# Steps of which one does not divide the time, and a factor on the growth.
SOME = Conditions(dt=(0.05, 0.11), variations=jnp.array([0.5, 1.0, 1.2]))


def risen(rate, factor):
    return Blowup(rate * factor), Multipliers(), None


def objective(cost: Any = AT_ZERO, states: Any = START, **settings: Any):
    usual: dict[str, Any] = {"build": risen, "solver": RK4(), "conditions": SOME, "t1": 0.4}
    return SimulationObjective(cost, states, **(usual | settings))


RATE = jnp.array(1.0)


def compiled(function):
    """By `jax.jit`, which takes no modules with arrays and none of their methods."""
    return jax.jit(lambda *arguments: function(*arguments))


def test_a_batch_of_conditions_is_native():
    assert objective(backend="native").backend_of(RATE)[0] == "native"


@pytest.mark.slow
def test_members_have_the_costs_of_objectives_of_their_own():
    made = objective()
    costs = compiled(made.costs)(RATE).reshape(made.members.shape)
    assert costs.shape == (2, 3, 2)
    for i, k in ((0, 0), (1, 2)):
        assert SOME.dt is not None
        one = objective(
            build=lambda x, k=k: risen(x, SOME.variations[k]),
            conditions=Conditions(),
            dt=SOME.dt[i],
        )
        # The same steps: rounding of compiled sums in another order.
        np.testing.assert_allclose(costs[i, k], compiled(one.costs)(RATE), rtol=1e-13)


def faster(rate, state, factor):
    """A start that depends on what is tuned and on the plant."""
    return State(state.q, rate * factor * state.v, state.w)


@pytest.mark.slow
def test_a_run_begins_where_parameters_and_variation_say():
    """As from starts that have been made by hand, in value and in slope."""
    factors = (0.5, 1.2)
    made = objective(start=faster, conditions=Conditions(dt=0.05, variations=jnp.array(factors)))
    (values,), (slopes,) = jax.jit(
        lambda x: jax.jvp(lambda y: (made.costs(y),), (x,), (jnp.ones_like(x),))
    )(RATE)
    h, differences = 1e-5, []
    for factor in factors:

        def by_hand(rate, factor=factor):
            # Traced starts are those of a user's own loop.
            states = State(START.q, rate * factor * START.v, START.w)
            one = objective(
                states=states, build=lambda x: risen(x, factor), conditions=Conditions(), dt=0.05,
            )  # fmt: skip
            return one.costs(rate)

        run = jax.jit(by_hand)
        differences.append((run(RATE), (run(RATE + h) - run(RATE - h)) / (2 * h)))
    expected, expected_slopes = (np.concatenate(x) for x in zip(*differences, strict=True))
    np.testing.assert_allclose(values, expected, rtol=1e-13)  # sums in another order
    # Central differences: h^2 times third derivatives of order one.
    np.testing.assert_allclose(slopes, expected_slopes, rtol=1e-7)


def test_a_start_that_is_no_state_is_refused():
    made = objective(start=lambda _rate, state, _factor: (state.q, state.v))
    with pytest.raises(TypeError, match=r"what start returned is \(.*; give State\(q, v, w\)"):
        jax.eval_shape(made.costs, RATE)


def test_a_start_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"start is State.*\(params, state, variation\).*`states`"):
        objective(start=START)


def test_the_budget_tells_conditions_and_risk():
    many = objective(risk=CVaR(0.1))
    assert many.budget == (
        "RK4, h = 0.05, 0.1 s, to t = 0.4 s, 3 variations, 2 starts: 12 runs, mean of the "
        "worst 10 %"
    )
    some = {"solver": None, "conditions": Conditions(), "max_steps": 50}
    adaptive = objective(build=lambda x: risen(x, 1.0), risk="worst", **some)
    assert adaptive.budget == "Dopri8, adaptive, at most 50 steps in 0.4 s, 2 starts, the worst"


@pytest.mark.parametrize(
    ("t1", "dt", "made", "text"),
    [
        (1.0, 0.3, (0.25,), "h = 0.25 s, 4 steps"),
        (1.0, (0.25, 0.25), (0.25, 0.25), "h = 0.25, 0.25 s, to t = 1 s"),
        (-1.0, -0.3, (0.25,), "h = 0.25 s, 4 steps"),
    ],
)
def test_the_budget_states_the_steps_that_are_made(t1, dt, made, text):
    """They divide the time: a `dt` that does not is an upper bound."""
    one = objective(build=lambda x: risen(x, 1.0), conditions=Conditions(dt=dt), t1=t1)
    np.testing.assert_allclose(one.steps_made, made, rtol=1e-15)
    assert one.largest_step == max(one.steps_made, key=abs)
    assert one.budget.startswith(f"RK4, {text}, 2 starts")


@pytest.mark.slow
@pytest.mark.newest
def test_gradients_agree_three_ways_and_under_vmap():
    """Of the risk, whose members of longer steps wait for those of shorter ones."""
    rates, h = jnp.array([0.7, 1.0]), 1e-5
    forward, reverse = (objective(risk=CVaR(0.3), mode=mode) for mode in ("forward", "reverse"))
    by_forward = compiled(jax.vmap(jax.jacfwd(forward)))(rates)
    by_reverse = compiled(jax.vmap(jax.grad(reverse)))(rates)
    values = compiled(jax.vmap(forward))(jnp.concatenate([rates + h, rates - h]))
    np.testing.assert_allclose(by_reverse, by_forward, rtol=1e-12)
    # Truncation h^2 and round-off 1e-16 / h, of numbers of order one.
    np.testing.assert_allclose((values[:2] - values[2:]) / (2 * h), by_forward, rtol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost": lambda run: run.q[0, 0]}, "<lambda> is no sum of squares"),
        ({"risk": CVaR(0.5)}, "mean of the worst 50 % is no sum of squares over all members"),
    ],
)
def test_residuals_only_where_the_objective_is_a_sum_of_squares(settings, message):
    made = objective(**settings)
    assert not hasattr(made, "residuals")
    with pytest.raises(AttributeError, match=message):
        _ = made.residuals
    with pytest.raises(ValueError, match=f"needs residuals, and .*{message}"):
        tune(made, RATE, optimizer="lm")


# The third variation is beyond the range of numbers after two steps.
FAILING = Conditions(dt=(0.05, 0.1), variations=jnp.array([0.5, 1.0, 1e120]))
# By a method that compiles quickly.
QUICK: Any = {"conditions": FAILING, "solver": diffrax.Heun(), "t1": 0.5}


@pytest.mark.slow
def test_an_objective_is_the_sum_of_its_squared_residuals_and_nan_with_a_member_that_fails():
    made = objective(**QUICK)
    costs, value, residuals = compiled(lambda x: (made.costs(x), made(x), made.residuals(x)))(RATE)
    failed = np.isnan(costs).reshape(made.members.shape)
    assert failed[:, 2].all()
    assert not failed[:, :2].any()
    assert np.isnan(value)
    squares = np.sum(residuals.reshape(costs.size, -1) ** 2, axis=1)
    assert np.isnan(squares)[np.isnan(costs)].all()
    good = np.isfinite(costs)
    # Sums of positive terms in another order.
    np.testing.assert_allclose(costs.size * squares[good], costs[good], rtol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dt": ()}, ValueError, "of dt there are no values"),
        ({"dt": (1.0, np.inf)}, ValueError, "of dt there is one that is not finite"),
        ({"dt": "0.1"}, TypeError, "dt is one number or several; got '0.1'"),
        ({"dt": True}, TypeError, "dt is one number or several; got True"),
        ({"dt": ((1.0, 2.0), 3.0)}, TypeError, "dt is one number or several"),
        ({"variations": {"a": jnp.ones(2), "b": jnp.ones(3)}}, ValueError, r"are: \(2,\), \(3,\)"),
        ({"variations": "none"}, ValueError, "their shapes are: none"),
        ({"variations": jnp.ones((0, 2))}, ValueError, r"at least 1.* are: \(0, 2\)"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Conditions(**arguments)


def test_traced_steps_are_refused():
    with pytest.raises(TypeError, match="cannot be traced; make the conditions outside of jit"):
        compiled(lambda dt: objective(conditions=Conditions(dt=dt))(RATE))(0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conditions": Conditions(dt=(0.1, -0.1))}, r"dt = -0\.1 does not lead from"),
        ({"build": None, "system": Blowup(1.0)}, "variations are the second argument of `build"),
        (
            {"stepsize_controller": diffrax.PIDController(1e-6, 1e-6), "max_steps": 9},
            "conditions give steps, but adaptive runs choose theirs",
        ),
        (
            {"saveat": diffrax.SaveAt(t0=True, steps=2)},
            "one step of 2, and rows are then at other times",
        ),
        ({"risk": "best"}, 'risk is .best., must be "mean"'),
    ],
)
def test_what_does_not_fit_conditions_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        objective(**settings)


@pytest.mark.parametrize("returned", [(Blowup(1.0), Multipliers()), Blowup(1.0)])
def test_what_build_returns_has_three_parts(returned):
    with pytest.raises(
        TypeError, match=r"build returned .* must return \(system, formulation, con"
    ):
        objective(build=lambda _rate, _variation: returned)(RATE)
