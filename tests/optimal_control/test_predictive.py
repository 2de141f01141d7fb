"""Predictive control of a cart with a pendulum, against SciPy's optimum in minimal coordinates."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.cart_pole import CartPole
from jaxdae import BackendError, Baumgarte, export, mpc, Multipliers, simulate, State
from jaxdae.control import Sampled
from oracles import cart_pole

LAW = Multipliers(Baumgarte(K_D=20.0, K_P=100.0))
SYSTEM = CartPole()
BOUND = 4.0
LEANING = SYSTEM.at(0.0, 0.25)


def parts(state):
    return state.q, state.v, state.w


def residuals(t, q, v, w, u):
    """Of the upright at rest: places, heights, speeds, and a little of the input."""
    return jnp.concatenate([q - jnp.array([0.0, 0.0, 0.5]), 0.1 * v, 0.1 * u])


def summed(t, q, v, w, u):
    return jnp.sum(residuals(t, q, v, w, u) ** 2)


def last(t, q, v, w):
    return 2.0 * residuals(t, q, v, w, jnp.zeros(1))


def last_summed(t, q, v, w):
    return jnp.sum(last(t, q, v, w) ** 2)


def policy_of(cost=residuals, **settings):
    default = {"horizon": 0.4, "nodes": 4, "bounds": (-BOUND, BOUND), "iterations": 3}
    return mpc(SYSTEM, LAW, cost, **(default | settings))


@pytest.fixture(scope="module")
def optimum():
    def cost(y, u):
        x, a, x_dot, a_dot = y
        s, c = 0.5 * np.sin(a), 0.5 * np.cos(a)
        place = x**2 + (x + s) ** 2 + (c - 0.5) ** 2
        speed = x_dot**2 + (x_dot + c * a_dot) ** 2 + (s * a_dot) ** 2
        return place + 0.01 * speed + 0.01 * u**2

    return cart_pole.optimum([0.0, 0.25, 0.0, 0.0], cost, lambda y: 4 * cost(y, 0.0), 0.1, 4, BOUND)


def test_rows_are_the_derivatives_of_what_is_foreseen():
    """Of costs that depend on time, of the end, and of a limit that some nodes exceed."""

    def cost(t, q, v, w, u):
        return jnp.concatenate([jnp.cos(t) * q, q[:1] * v[:1] + u**2])

    policy = policy_of(
        cost, terminal=last, limits=lambda t, q, v, w: q[2:] - 0.482 + 0.02 * t, dt=0.05
    )
    inputs = jnp.array([[3.0], [-1.0], [0.5], [2.0]])
    model = policy.prediction

    def value(inputs):
        return model.foreseen(0.1, LEANING, inputs).residuals

    found, rows = jax.jit(lambda u: model.linearized(0.1, LEANING, u))(inputs)
    np.testing.assert_allclose(found.residuals, jax.jit(value)(inputs), rtol=1e-12, atol=1e-14)
    assert 0 < int((found.residuals[-4:] != 0).sum()) < 4
    violation = model.foreseen(0.1, LEANING, inputs).violation
    np.testing.assert_allclose(found.violation, violation, rtol=1e-12)
    h = 1e-5
    for row, direction in zip(rows, jnp.eye(4).reshape(4, 4, 1), strict=True):
        change = jax.jit(value)(inputs + h * direction) - jax.jit(value)(inputs - h * direction)
        # Differences have errors of h^2, and of the round-off divided by h.
        np.testing.assert_allclose(row, change / (2 * h), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"terminal": last, "iterations": 40},
        pytest.param(
            {"cost": summed, "terminal": last_summed, "method": "projected-gradient",
             "iterations": 300}, marks=pytest.mark.slow,
        ),
    ],
    ids=["gauss-newton", "projected-gradient"],
)  # fmt: skip
def test_inputs_are_the_optimum_of_scipy_in_minimal_coordinates(settings, optimum):
    """Steps of 5 ms leave errors below 1e-8; the first input is at its bound."""
    policy = policy_of(dt=0.005, **settings)
    u, plan = policy(0.0, *parts(LEANING), policy.memory)
    inputs, cost = optimum
    assert abs(inputs[0]) == BOUND
    assert plan.failed == 0
    np.testing.assert_allclose(plan.inputs[:, 0], inputs, atol=1e-6)
    np.testing.assert_allclose(plan.cost, cost, rtol=1e-8)
    np.testing.assert_array_equal(u, plan.inputs[0])


@pytest.fixture(scope="module")
def policy():
    return policy_of(terminal=last)


def test_a_vector_of_residuals_may_be_descended_along_its_gradient(policy):
    """It is the cost that Gauss-Newton sees; each search only lowers it."""
    steepest = policy_of(terminal=last, method="projected-gradient")
    _, found = steepest(0.0, *parts(LEANING), steepest.memory)
    cost = lambda x: policy.predicted_cost(0.0, *parts(LEANING), x)  # noqa: E731
    np.testing.assert_allclose(found.cost, cost(found.inputs), rtol=1e-12)
    assert found.cost < cost(steepest.guess)


def test_gradients_of_the_predicted_cost_agree_in_both_modes_and_with_differences(policy):
    cost = lambda x: policy.predicted_cost(0.0, *parts(LEANING), x)  # noqa: E731
    at = jnp.array([[1.0], [-2.0], [0.5], [0.0]])
    reverse, forward = jax.jit(jax.grad(cost))(at), jax.jit(jax.jacfwd(cost))(at)
    np.testing.assert_allclose(reverse, forward, rtol=1e-10)
    h = 1e-5
    differences = [
        (cost(at.at[i, 0].add(h)) - cost(at.at[i, 0].add(-h))) / (2 * h) for i in range(4)
    ]
    # Central differences: h^2 in truncation, 1e-16 / h in round-off.
    np.testing.assert_allclose(reverse[:, 0], differences, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_the_input_is_differentiated_by_the_state_through_the_search():
    free = policy_of(terminal=last, bounds=(-100.0, 100.0))
    u = jax.jit(lambda q: free(0.0, q, LEANING.v, LEANING.w, free.memory)[0][0])
    reverse, forward = jax.jit(jax.grad(u))(LEANING.q), jax.jit(jax.jacfwd(u))(LEANING.q)
    np.testing.assert_allclose(reverse, forward, rtol=1e-8)
    h = 1e-5
    steps = h * jnp.eye(3)
    differences = [(u(LEANING.q + e) - u(LEANING.q - e)) / (2 * h) for e in steps]
    # Inputs change by tens for each meter.
    np.testing.assert_allclose(reverse, differences, atol=1e-5)


def test_batches_of_states_beside_one_that_is_no_number(policy):
    angles = jnp.array([0.25, jnp.nan, -0.1])
    states = jax.vmap(lambda a: SYSTEM.at(0.0, a))(angles)
    memory = policy.memory._replace(inputs=jnp.full((4, 1), 0.5))
    ask = lambda q, v: policy(0.0, q, v, jnp.zeros(0), memory)  # noqa: E731
    u, plan = jax.vmap(ask)(states.q, states.v)
    np.testing.assert_array_equal(plan.failed, [0.0, 1.0, 0.0])
    for i in (0, 2):
        alone, own = ask(states.q[i], states.v[i])
        np.testing.assert_allclose(u[i], alone, rtol=0, atol=1e-9)
        np.testing.assert_allclose(plan.cost[i], own.cost, rtol=1e-10)
    # What failed keeps the plan of before.
    np.testing.assert_array_equal(plan.inputs[1], memory.inputs)
    np.testing.assert_array_equal(u[1], [0.5])
    assert plan.cost[1] == np.finfo(float).max


PLANT = CartPole(cart=0.8, bob=0.24)
PERIOD = 0.05


@pytest.fixture(scope="module")
def closed_loop():
    """Masses 20 % off, from a pendulum that leans by half a radian."""
    policy = policy_of(horizon=1.0, nodes=10, terminal=last, bounds=(-2.0, 2.0))
    controller = Sampled(policy, PERIOD, memory=policy.memory)
    start = SYSTEM.at(0.0, 0.5)
    run = simulate(PLANT, LAW, start, t1=2.5, dt=0.025, controller=controller)
    return policy, run


def test_a_plant_that_is_not_the_model_comes_upright_within_the_bounds(closed_loop):
    policy, run = closed_loop
    plans = policy.plans(run.w)
    np.testing.assert_allclose(run.q[-1, 1:], [run.q[-1, 0], 0.5], atol=1e-2)
    assert jnp.max(jnp.abs(run.u)) == jnp.max(jnp.abs(plans.inputs)) == 2.0
    assert not plans.failed.any()
    # Every sample by its own time, its number, and the input that is held.
    np.testing.assert_allclose(plans.time[:-1:2], run.ts[:-1:2], atol=1e-12)
    np.testing.assert_array_equal(plans.samples[:-1:2], np.arange(1, 51))
    np.testing.assert_array_equal(run.u, plans.inputs[:, 0])


def test_a_run_around_predictions_is_plain_and_says_so(closed_loop):
    _, run = closed_loop
    assert run.backend == "plain"
    words = "native_integration cannot be made part of a kernel: it is a kernel itself"
    assert words in str(run.why_not_native)


def test_a_compiled_policy_gives_what_the_run_had(closed_loop):
    """At the samples, from the state there and the plan before."""
    policy, run = closed_loop
    plans, step = policy.plans(run.w), policy.compile(LEANING)
    for k in (2, 20, 60):
        before = [np.asarray(x[k - 1]) for x in plans]
        u, plan = step(float(run.ts[k]), run.q[k], run.v[k], (), type(plans)(*before))
        assert isinstance(u, np.ndarray)
        np.testing.assert_allclose(u, run.u[k], atol=1e-8)
        np.testing.assert_allclose(plan.inputs, plans.inputs[k], atol=1e-8)
        assert plan.samples == plans.samples[k]
    first, _ = step(0.0, run.q[0], run.v[0])
    np.testing.assert_allclose(first, run.u[0], atol=1e-8)
    assert repr(step) == "CompiledPolicy(10 nodes, 1 inputs)"
    with pytest.raises(ValueError, match=r"an argument has shape \(2,\), must be \(3,\)"):
        step(0.0, np.zeros(2), np.zeros(3))


class Mass(jaxdae.System):
    """A unit mass on a line that is pushed, also by what depends on time."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return jnp.cos(3 * t) - 0.2 * v + (0.0 if u is None else u)


REST = State(jnp.zeros(1), jnp.zeros(1))


def toward(t, q, v, w, u):
    return jnp.concatenate([q - 1.0, 0.1 * v, 0.1 * u])


def policy_of_mass(cost=toward, **settings):
    default = {"horizon": 1.0, "nodes": 4, "bounds": (-2.0, 2.0), "iterations": 2}
    return mpc(Mass(), Multipliers(), cost, **(default | settings))


def test_predictions_have_the_time_of_the_sample():
    """A motion that begins later, and the cost of its times."""
    policy = policy_of_mass(lambda t, q, v, w, u: q - jnp.sin(t))
    inputs = jnp.array([[1.0], [0.0], [-1.0], [2.0]])
    run = policy.predict(1.3, *parts(REST), inputs)
    held = lambda t, q, v, w: inputs[jnp.minimum((t - 1.3) // 0.25, 3).astype(int)]  # noqa: E731
    wanted = simulate(Mass(), Multipliers(), REST, t0=1.3, t1=1.5, controller=held)
    each = policy.prediction.interval
    first = policy_of_mass(horizon=0.2, nodes=1).predict(1.3, *parts(REST), inputs[:1])
    # A step of Runge and Kutta of 0.2 s leaves 1e-5.
    np.testing.assert_allclose(first.q[-1], wanted.q[-1], atol=2e-5)
    cost = each * jnp.sum((run.q[:4, 0] - jnp.sin(1.3 + run.ts[:4])) ** 2)
    np.testing.assert_allclose(policy.predicted_cost(1.3, *parts(REST), inputs), cost, rtol=1e-12)


def test_a_plan_goes_on_by_the_time_between_samples():
    """Kept as it is by a search whose predictions fail: a node later, and half of one."""
    policy = policy_of_mass(
        lambda t, q, v, w, u: jnp.where(t < 1.0, toward(t, q, v, w, u), jnp.nan)
    )
    _, plan = policy(0.0, *parts(REST), policy.memory)
    assert (plan.failed, plan.samples) == (0, 1)
    before = plan.inputs[:, 0]
    _, moved = policy(0.25, *parts(REST), plan._replace(time=jnp.asarray(0.0)))
    assert moved.failed == 1
    np.testing.assert_allclose(moved.inputs[:, 0], before[jnp.array([1, 2, 3, 3])], atol=1e-14)
    _, moved = policy(2.0, *parts(REST), plan._replace(time=jnp.asarray(1.875)))
    np.testing.assert_allclose(moved.inputs[:-1, 0], (before[:-1] + before[1:]) / 2, atol=1e-14)
    assert jnp.all(jnp.isfinite(jnp.concatenate([jnp.ravel(x) for x in moved])))


def test_a_plan_that_fails_gives_way_to_the_guess():
    policy = policy_of_mass(
        lambda t, q, v, w, u: jnp.where(u > 1.5, jnp.nan, toward(t, q, v, w, u))
    )
    before = policy.memory._replace(inputs=jnp.full((4, 1), 1.9))
    _, plan = policy(0.0, *parts(REST), before)
    assert plan.failed == 0
    assert plan.cost <= policy.predicted_cost(0.0, *parts(REST), policy.guess)


def test_what_is_beyond_limits_is_said_and_shrinks_with_the_penalty():
    violations = []
    for penalty in (1.0, 1e4):
        policy = policy_of_mass(
            limits=lambda t, q, v, w: 0.05 - q, penalty=penalty, iterations=20, nodes=4
        )
        _, plan = policy(0.0, *parts(REST), policy.memory)
        run = policy.predict(0.0, *parts(REST), plan.inputs)
        np.testing.assert_allclose(plan.violation, max(jnp.max(run.q[1:] - 0.05), 0.0), atol=1e-12)
        violations.append(plan.violation)
    assert violations[0] > 1e-2
    assert violations[1] < 1e-2 * violations[0]
    scalar = policy_of_mass(
        lambda *x: jnp.sum(toward(*x) ** 2), limits=lambda t, q, v, w: 0.05 - q, penalty=1e4,
        method="projected-gradient",
    )  # fmt: skip
    np.testing.assert_allclose(
        scalar.predicted_cost(0.0, *parts(REST), plan.inputs), plan.cost, rtol=1e-12
    )


def test_predictions_of_the_plain_backend():
    """Complex numbers have no place in kernels; the plain program has forward derivatives, too."""

    class Transformed(Mass):
        def force(self, t, q, v, w, u):
            small = 1e-30 * jnp.real(jnp.fft.fft(jnp.concatenate([q, v])))[:1]
            return super().force(t, q, v, w, u) + small

    policy, plain = policy_of_mass(), mpc(
        Transformed(), Multipliers(), toward, horizon=1.0, nodes=4, bounds=(-2.0, 2.0), iterations=2
    )  # fmt: skip
    assert plain.predict(0.0, *parts(REST), plain.guess).backend == "plain"
    _, found = plain(0.0, *parts(REST), plain.memory)
    _, wanted = policy(0.0, *parts(REST), policy.memory)
    np.testing.assert_allclose(found.inputs, wanted.inputs, atol=1e-9)


def test_single_precision():
    policy = policy_of_mass()
    start = State(*(x.astype(jnp.float32) for x in parts(REST)))
    u, plan = policy(0.0, *parts(start), policy.memory)
    assert u.dtype == plan.cost.dtype == jnp.float32
    np.testing.assert_allclose(u, policy(0.0, *parts(REST), policy.memory)[0], atol=1e-4)
    assert policy.compile(start)(0.0, *parts(start))[0].dtype == np.float32


def test_steps_that_are_too_long_for_the_gains_are_warned_of():
    policy = mpc(
        SYSTEM, Multipliers(Baumgarte(60.0, 900.0)), residuals, horizon=1.0, nodes=10,
        bounds=(-1.0, 1.0), iterations=1,
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="step"):
        policy.compile(LEANING)
    with pytest.warns(RuntimeWarning, match="step"):
        policy(0.0, *parts(LEANING), policy.memory)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy_of().compile(LEANING)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": (1.0, -1.0)}, "bounds cross"),
        ({"bounds": (np.nan, 1.0)}, "bounds cross, or are no numbers"),
        ({"bounds": ([-1.0, -1.0], [1.0] * 3)}, r"of shapes \(2,\), \(3,\); each must be"),
        ({"bounds": ([-1.0, -1.0], 1.0), "guess": np.zeros(3)}, "one entry for each input"),
        ({"bounds": 1.0}, r"bounds is 1.0; give \(lower, upper\)"),
        ({"bounds": None}, "the number of inputs is not known"),
        ({"guess": np.zeros((3, 1))}, r"guess has shape \(3, 1\); give \(s,\) or \(nodes, s\)"),
        ({"guess": np.full(1, np.nan)}, "guess is not finite"),
        ({"horizon": 0.0}, "horizon is 0.0; it must be a positive number"),
        ({"horizon": -1.0}, "horizon is -1.0; it must be a positive number"),
        ({"dt": np.nan}, "dt is nan; it must be a positive number"),
        ({"nodes": 0}, "nodes is 0; it must be an integer, one at least"),
        ({"iterations": 2.5}, "iterations is 2.5; it must be an integer"),
        ({"method": "newton"}, "method is 'newton'; give 'gauss-newton' or 'projected-gradient'"),
        ({"penalty": -1.0}, "penalty is -1.0; it must be a number, not negative"),
        ({"cost": lambda q, v: q}, r"cost is declared with the parameters \(q, v\)"),
        ({"terminal": lambda q, v: q}, r"terminal is declared with the parameters \(q, v\)"),
        ({"limits": 3}, r"limits is 3; it must be a function of \(t, q, v, w\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_refused_when_it_is_declared(settings, message):
    with pytest.raises(ValueError, match=message):
        policy_of(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost": summed}, "Gauss-Newton knows no residuals"),
        ({"cost": lambda t, q, v, w, u: jnp.outer(q, v)}, r"cost returned shape \(3, 3\); it must"),
        ({"cost": lambda t, q, v, w, u: q @ u}, "cost failed with TypeError"),
        ({"terminal": last_summed}, r"terminal returned shape \(\); it must return a vector"),
        ({"cost": summed, "terminal": last, "method": "projected-gradient"},
         r"terminal returned shape \(7,\); it must return a scalar"),
        ({"limits": lambda t, q, v, w: q[0]}, r"limits returned shape \(\); it must return a vec"),
    ],
)  # fmt: skip
def test_costs_of_the_wrong_shape_are_refused_before_the_run(settings, message):
    policy = policy_of(**settings)
    controller = Sampled(policy, PERIOD, memory=policy.memory)
    with pytest.raises(ValueError, match=message):
        simulate(SYSTEM, LAW, LEANING, t1=1.0, dt=0.05, controller=controller)


def test_arguments_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="system is the class CartPole; give an instance"):
        mpc(CartPole, LAW, residuals, horizon=1.0, nodes=4, bounds=(-1, 1))  # pyright: ignore
    with pytest.raises(TypeError, match="formulation is"):
        mpc(SYSTEM, "law", residuals, horizon=1.0, nodes=4, bounds=(-1, 1))  # pyright: ignore
    with pytest.raises(TypeError, match="solver is 'rk4'; give"):
        policy_of(solver="rk4")
    traced = lambda x: policy_of(horizon=x).guess  # noqa: E731
    with pytest.raises(ValueError, match="horizon must be a plain number"):
        jax.jit(traced)(1.0)
    with pytest.raises(ValueError, match=r"inputs have shape \(3, 1\), must be \(nodes, s\)"):
        policy_of().predict(0.0, *parts(LEANING), jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="w has 3 columns, and the plan of this policy 10 numbers"):
        policy_of().plans(jnp.zeros((5, 3)))


@pytest.mark.slow
def test_closed_loops_in_batches_and_their_gradients():
    """Two samples of a mass: members are as they are alone, and differences agree."""
    policy = policy_of_mass(nodes=2)
    controller = Sampled(policy, 0.1, memory=policy.memory)

    def end(place):
        start = State(jnp.reshape(place, 1), jnp.zeros(1))
        run = simulate(
            Mass(), Multipliers(), start, t1=0.2, dt=0.05, controller=controller, throw=False
        )
        return run.q[-1, 0] + run.v[-1, 0]

    places = jnp.array([-0.2, jnp.nan, 0.3])
    ends, slopes = jax.jit(jax.vmap(jax.value_and_grad(end)))(places)
    alone = jax.jit(end)
    np.testing.assert_allclose(ends, [alone(-0.2), jnp.nan, alone(0.3)], atol=1e-12)
    h = 1e-5
    differences = [(alone(x + h) - alone(x - h)) / (2 * h) for x in (-0.2, 0.3)]
    # The search is smooth here: no input is at its bound.
    np.testing.assert_allclose(slopes[jnp.array([0, 2])], differences, atol=1e-8)


def test_a_loop_around_predictions_is_not_exported(tmp_path):
    policy = policy_of_mass()
    controller = Sampled(policy, 0.1, memory=policy.memory)
    with pytest.raises(BackendError, match="controller that is sampled"):
        export(Mass(), Multipliers(), REST, t1=0.2, dt=0.1, controller=controller,
               directory=tmp_path, name="loop")  # fmt: skip
