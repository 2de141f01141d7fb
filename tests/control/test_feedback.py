"""Feedback laws: the decay they promise, internal state, and that all of it can be tuned."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaxdae
from helpers.systems import Actuated, Forced
from jaxdae.control import AbstractDynamicController, attach, NeuralFeedback, PD, PID, StateFeedback
from jaxdae.control.base import ControlledSystem
from jaxdae.models import CartesianPendulum
from jaxdae.plotting import shapes
from jaxdae.solvers import RK4
from jaxdae.tuning import (
    ControlEffort,
    perturbed_states,
    SimulationObjective,
    TrackingError,
    WeightedSum,
)

FREE = jaxdae.Multipliers()
ORIGIN = jaxdae.State([0.0], [0.0])
START = jaxdae.State([0.5], [0.2])


def network(reference, key, **options):
    """A perceptron with random weights."""
    net = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jax.random.key(key))
    return NeuralFeedback(net, reference, **options)


def error(t, q):
    return jnp.sin(t) - q


def law(t, q, u):
    """An unstable spring, and a control."""
    return 2.0 * q[0] + u[0]


def pushed(t, q, u):
    """The same with a constant disturbance."""
    return law(t, q, u) + 0.7


@pytest.fixture(scope="module")
def plant():
    return Forced(law)


def run(plant, controller, start=START, **options):
    options = {"t1": 2.0, "saveat": diffrax.SaveAt(ts=jnp.linspace(0, 2, 6))} | options
    return jaxdae.simulate(plant, FREE, start, controller=controller, **options)


@pytest.mark.slow
def test_state_feedback_gives_the_closed_loop_matrix(plant):
    """About the origin; along a trajectory with the exact feedforward `q'' - 2 q`."""
    K = jnp.array([[5.0, 4.0]])
    sol = run(plant, StateFeedback(K, ORIGIN, feedforward=jnp.zeros(1)))
    matrix = np.array([[0.0, 1.0], [2.0 - 5.0, -4.0]])
    for t, q, v in zip(sol.ts, sol.q, sol.v, strict=True):
        # solver tolerance 1e-8
        np.testing.assert_allclose([q[0], v[0]], expm(matrix * float(t)) @ [0.5, 0.2], atol=1e-7)

    def reference(t):
        return jaxdae.State(jnp.sin(t)[None], jnp.cos(t)[None])

    feedback = StateFeedback(K, reference, lambda t: -3 * jnp.sin(t)[None])
    sol = run(plant, feedback, jaxdae.State([0.0], [1.0]))
    np.testing.assert_allclose(sol.q[:, 0], np.sin(sol.ts), atol=1e-7)


@pytest.mark.slow
def test_the_reference_is_given_and_not_tuned():
    start = jaxdae.State([0.3], [-0.4])
    linear = StateFeedback(jnp.array([[5.0, 4.0]]), start)
    for controller in (linear, network(start, 0)):

        @eqx.filter_grad
        def slope(controller):
            return jnp.sum(controller(0.0, jnp.array([1.0]), jnp.array([2.0]), jnp.zeros(0)))

        found = slope(controller)
        assert not np.any(np.asarray(found.reference.q))
        assert not np.any(np.asarray(found.reference.v))
        gains = eqx.tree_at(lambda c: c.reference, found, None)
        assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gains)) > 0.1


@pytest.mark.parametrize("feedforward", [None, jnp.array([0.25]), lambda t: 0.1 * t[None]])
def test_pd_is_state_feedback_on_the_error(feedforward):
    pd = PD(error, K_P=3.0, K_D=jnp.array([2.0]), feedforward=feedforward)
    t, q, v = jnp.asarray(0.4), jnp.array([0.1]), jnp.array([-0.6])
    add = 0.0 if feedforward is None else (0.04 if callable(feedforward) else 0.25)
    expected = 3.0 * (np.sin(0.4) - 0.1) + 2.0 * (np.cos(0.4) + 0.6) + add
    np.testing.assert_allclose(pd(t, q, v, None), [expected], rtol=1e-14)


@pytest.mark.slow
def test_pid_removes_the_offset_that_pd_leaves():
    """Stationary: with PD `q = 0.7 / (K_P - 2)`, with PID zero and `c = -0.7 / K_I`."""
    system = Forced(pushed)
    options = {"t1": 30.0, "saveat": diffrax.SaveAt(t1=True)}

    def rest(t, q):
        return -q

    pd = run(system, PD(rest, 9.0, 4.0), **options)
    assert float(pd.q[-1, 0]) == pytest.approx(0.1, abs=1e-7)
    pid = PID(rest, K_P=9.0, K_I=5.0, K_D=4.0)
    sol = run(system, pid, **options)
    # the slowest root is -0.92: e^-27, below the solver's tolerance
    np.testing.assert_allclose(sol.q[-1], 0.0, atol=1e-7)
    np.testing.assert_allclose(sol.w[-1], [-0.7 / 5.0], atol=1e-7)
    np.testing.assert_allclose(sol.u[-1], [-0.7], atol=1e-6)


class Filter(AbstractDynamicController):
    """Two internal states whose rates depend on all there is."""

    gain: float = 2.0

    def initial(self, t, state):
        return jnp.stack([t + state.q[0], state.w[0]])

    def rate(self, t, q, v, w, c):
        return jnp.stack([c[1] - t * q[0], w[0] - c[0] * v[0]])

    def output(self, t, q, v, w, c):
        return -self.gain * jnp.stack([q[0] + c[0], q[1] + c[1] + w[0]])


@pytest.mark.slow
def test_gradients_by_gains_of_an_internal_state_agree_with_finite_differences(plant):
    def cost(p):
        system, start, controller = attach(plant, PID(error, 5.0, 2.0 * p, 4.0), START)
        options = {"t1": 1.0, "dt": 0.1, "solver": RK4(), "saveat": None}
        sol = run(system, controller, start, **options)
        return jnp.sum(sol.q**2) + jnp.sum(sol.u**2)

    p, h = jnp.asarray(1.1), 1e-4
    value_and_slope = jax.jit(jax.value_and_grad(cost))
    reverse = float(value_and_slope(p)[1])
    difference = float((value_and_slope(p + h)[0] - value_and_slope(p - h)[0]) / (2 * h))
    # truncation h^2, round-off / h
    assert difference == pytest.approx(reverse, rel=1e-6)
    assert abs(reverse) > 1e-3


@pytest.mark.slow
def test_internal_state_joined_to_the_actuators_is_the_coupled_system():
    """`attach` against the equations of plant and controller written next to each other."""
    plant, controller, t = Actuated((0, 1)), Filter(), 0.3
    state = plant.state()
    joint, start, output = attach(plant, controller, state, t)
    c = controller.initial(t, state)
    u = controller.output(t, state.q, state.v, state.w, c)
    np.testing.assert_array_equal(output(t, start.q, start.v, start.w), u)
    found, expected = FREE.vector_field(joint, t, start, u), FREE.vector_field(plant, t, state, u)
    rate = controller.rate(t, state.q, state.v, state.w, c)
    np.testing.assert_array_equal(found.v, expected.v)
    np.testing.assert_array_equal(found.w, jnp.concatenate([expected.w, rate]))


def test_a_controlled_system_declares_what_the_inner_one_does(everything):
    joint, _, _ = attach(everything, Filter(), jaxdae.State(jnp.ones(3), jnp.ones(3), jnp.ones(1)))
    t, q, v = jnp.asarray(0.3), jnp.array([0.4, -0.2, 0.9]), jnp.array([0.1, 0.5, -0.7])
    w, u = jnp.array([0.2, 0.3, 0.4]), 0.6
    found = jaxdae.evaluate(joint, t, q, v, w, u)
    inner = jaxdae.evaluate(everything, t, q, v, w[:1], u)
    jax.tree.map(np.testing.assert_array_equal, found, inner)
    assert joint.labels() == everything.labels()


@pytest.mark.slow
def test_a_run_under_a_controller_with_a_state_is_drawn():
    pid = PID(lambda t, q: 1.0 - q + 0.0 * t, K_P=12.0, K_I=8.0, K_D=6.0)
    system = CartesianPendulum()
    start = jaxdae.State(*system.start())
    run = jaxdae.simulate(system, FREE, start, t1=0.5, dt=0.25, controller=pid)
    assert isinstance(run.system, ControlledSystem)
    for found in (shapes.along(run, run.ts), shapes.along(run.stored(), run.ts)):
        np.testing.assert_array_equal(found.places["mass"], run.q)


def test_a_network_vanishes_at_its_reference_and_adds_to_its_base():
    base = StateFeedback(jnp.array([[5.0, 4.0]]), START)
    net = network(START, 1, scale=0.3, base=base)
    np.testing.assert_array_equal(net(0.0, START.q, START.v, START.w), [0.0])
    alone = eqx.tree_at(lambda n: n.base, net, None, is_leaf=lambda x: x is None)
    args = (0.0, jnp.array([1.0]), jnp.array([-1.0]), jnp.zeros(0))
    assert abs(float(alone(*args)[0])) > 1e-3
    np.testing.assert_allclose(net(*args), alone(*args) + base(*args), rtol=1e-14)


@pytest.mark.slow
def test_a_network_on_a_pd_law_is_tuned_through_the_simulation(plant):
    """From two starts; all of its gains and weights take part."""
    law = PD(error, jaxdae.tuning.Positive(5.0), jaxdae.tuning.Positive(4.0))
    tuned = network(ORIGIN, 1, base=law)
    objective = SimulationObjective(
        WeightedSum(((1.0, TrackingError(lambda t, q, v: q[0], jnp.sin)), (1e-3, ControlEffort()))),
        perturbed_states(START, jax.random.key(2), 2, 0.1, 0.1),
        build=lambda controller: (plant, FREE, controller),
        t1=1.0,
        dt=0.1,
        solver=RK4(),
    )
    result = jaxdae.tune(objective, tuned, steps=4)
    assert result.loss < 0.98 * result.history.loss[0]
    before, after = (jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (tuned, result.params))
    moved = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    # All but the three arrays of the network's reference, which is what is wanted, and the bias of
    # its last layer, which cancels.
    assert sum(moved) == len(moved) - 4


@pytest.mark.slow
def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"K has shape \(2,\); it must be a matrix \(s, 2n \+ k\)"):
        StateFeedback(jnp.ones(2), ORIGIN)
    with pytest.raises(ValueError, match=r"K has 3 columns; the state \(q, v, w\) has 2 entries"):
        StateFeedback(jnp.ones((1, 3)), ORIGIN)
    with pytest.raises(ValueError, match=r"feedforward has shape \(2,\); K has 1 rows"):
        StateFeedback(jnp.ones((1, 2)), ORIGIN, jnp.ones(2))

    class Bad(Filter):  # a test may break the rule of final classes
        def initial(self, t, state):
            return jnp.zeros(3)

    message = r"Bad\.initial returned shape \(3,\), Bad\.rate \(2,\); both must be vectors of one"
    with pytest.raises(ValueError, match=message):
        attach(Actuated((0, 1)), Bad(), Actuated((0, 1)).state())
