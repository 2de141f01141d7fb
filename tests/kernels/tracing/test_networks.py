"""Networks and long loops: kernels that stay short, and a word where they would not."""

import time
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.kernels.tracing.product_parts import factored, Rank
from jaxdae.simulation.backends import BackendError
from jaxdae.solvers import RK4

X = jax.ShapeDtypeStruct((300,), np.float64)


def sines(x):
    """As many sines as a table of all pairs has entries."""
    return jnp.sin(x[:, None] + x[None, :]).sum()


def turns(x):
    return jax.lax.fori_loop(0, 10**9, lambda _, y: jnp.sin(y) + y * jnp.cos(y), x)


def sums(x):
    """A loop whose turns are known, and none of which is an operation of the kernel."""
    total = jax.lax.while_loop(lambda s: s[0] < 10**9, lambda s: (s[0] + 1, s[1] + s[0]), (0, 0))
    return x * total[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (sines, "its scalar operations are more than 120000, which would take too long to compile"),
        (
            lambda x: sines(x[:200]),
            "its scalar operations are more than 40000, which would take too long to compile",
        ),
        (turns, "the equations of its loops, turn by turn, are more than 60000"),
        (sums, "the equations of its loops, turn by turn, are more than 60000"),
    ],
)
def test_what_would_take_too_long_is_refused_at_once(function, message):
    began = time.process_time()
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(function, X)
    # Some seconds at most: all of it would be hours, and a slow machine is not ten times slower.
    assert time.process_time() - began < 20


def counting(x):
    """A loop that hands on how often something was true."""

    def turn(state, _):
        y, count = state
        return (jnp.sin(y) + 0.1 * x, count + (y[0] > 0)), None

    return jax.lax.scan(turn, (x, 0), None, length=3000)[0][1] * x


def test_long_loops_that_count_by_results_are_refused():
    message = "3000 turns of a loop that hands on integers would be written out, more than"
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(counting, X, loops=True)


class Cart(jaxdae.System):
    """Two carts."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return u - q


class Pairs(eqx.Module):
    """A controller of more operations than a kernel may have."""

    gain: jax.Array

    def __call__(self, t, q, v, w):
        return -sines(self.gain * jnp.arange(1.0, 301.0)) * q


@pytest.mark.slow
def test_the_plain_program_steps_in_for_what_is_too_long():
    start, controller = State([0.1, 0.2], [0.0, 0.0]), Pairs(jnp.array(1e-6))
    settings = {"t1": 0.2, "dt": 0.1, "solver": RK4(), "controller": controller}
    found = simulate(Cart(), Multipliers(), start, **settings)
    assert found.backend == "plain"
    assert "its scalar operations are more than 120000" in str(found.why_not_native)
    with pytest.raises(BackendError, match="its scalar operations are more than 120000"):
        simulate(Cart(), Multipliers(), start, backend="native", **settings)


# A network of 24 units a layer: its products are loops.

WIDTH, STEPS = 24, 3


def network(key=0, dtype=jnp.float64):
    made = eqx.nn.MLP(4, 2, WIDTH, 2, jnp.tanh, dtype=dtype, key=jax.random.key(key))
    return jaxdae.control.NeuralFeedback(made, State(jnp.zeros(2, dtype), jnp.zeros(2, dtype)))


def by_kernel(controller, q, v):
    settings = {"t1": 0.3, "dt": 0.1, "solver": RK4(), "backend": "native", "throw": False}
    found = simulate(Cart(), Multipliers(), State(q, v), controller=controller, **settings)
    return jnp.concatenate([found.q[-1], found.v[-1]])


def by_hand(controller, q, v):
    """The same steps of the same motion, `a = u - q`."""
    net = controller.network
    return steps(lambda y: net(y) - net(jnp.zeros_like(y)), q, v)


def steps(control, q, v, count=STEPS):
    """Steps of the classical Runge-Kutta method, written out."""

    def rate(y):
        return jnp.concatenate([y[2:], control(y) - y[:2]])

    y, h = jnp.concatenate([q, v]), 0.1
    for _ in range(count):
        k1 = rate(y)
        k2 = rate(y + h / 2 * k1)
        k3 = rate(y + h / 2 * k2)
        k4 = rate(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def assert_close(found, expected, rtol=1e-12):
    """Equal to rounding: some hundred additions, in other orders."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = max(float(jnp.abs(other).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)


STARTS = jnp.array(np.random.default_rng(0).normal(size=(2, 11, 2)))


def weighted(run):
    """A number that all members and all of their results enter, by the weights and the starts."""

    def loss(weights, q, v):
        controller = eqx.combine(weights, eqx.partition(network(), eqx.is_array)[1])
        found = jax.vmap(lambda q, v: run(controller, q, v))(q, v)
        return jnp.sum(found * jnp.arange(1.0, found.size + 1).reshape(found.shape))

    return jax.value_and_grad(loss, (0, 1, 2))


@pytest.mark.slow
def test_a_batch_with_one_network_and_its_gradient_by_the_weights():
    """Eleven members, which no width of vectors divides; summed over by the gradient."""
    weights = eqx.filter(network(), eqx.is_array)
    found, expected = (jax.jit(weighted(x))(weights, *STARTS) for x in (by_kernel, by_hand))
    assert_close(found, expected)


@pytest.mark.slow
def test_networks_of_their_own_and_a_direction():
    """Each member has other weights; derivatives along a direction of all of them."""
    _, static = eqx.partition(network(), eqx.is_array)
    each = [eqx.filter(network(key), eqx.is_array) for key in range(3)]
    weights = jax.tree.map(lambda *x: jnp.stack(x), *each)
    moves = jax.tree.map(jnp.cos, weights)

    def along(run):
        def every(weights):
            one = lambda w, q, v: run(eqx.combine(w, static), q, v)  # noqa: E731
            return jax.vmap(one)(weights, *STARTS[:, :3])

        return jax.jit(lambda w, m: jax.jvp(every, (w,), (m,)))

    assert_close(along(by_kernel)(weights, moves), along(by_hand)(weights, moves))


# The same with all weights in one array.


class InOne(eqx.Module):
    """A network of two layers: matrices by rows, each followed by its bias."""

    numbers: jax.Array

    def __call__(self, t, q, v, w):
        return layered(self.numbers, jnp.concatenate([q, v]))


LAYERS = (4, 36, 33, 2)
NUMBERS = 0.3 * np.random.default_rng(1).normal(size=sum((m + 1) * n for m, n in pairwise(LAYERS)))


def layered(numbers, x):
    """Its value, by JAX."""
    for m, n in pairwise(LAYERS):
        W, b, numbers = jnp.split(numbers, (m * n, m * n + n))
        x = W.reshape(n, m) @ x + b
        x = jnp.tanh(x) if numbers.size else x
    return x


def gradient_in_one(run, members):
    """Of a number that members enter, by all weights and their starts."""

    def loss(numbers, q, v):
        found = jax.vmap(run, (None, 0, 0))(numbers, q, v)
        scale = members[:, None] * jnp.arange(1.0, found.size + 1).reshape(found.shape)
        return jnp.sum(jnp.where(scale == 0, 0.0, found * scale))

    return jax.jit(jax.grad(loss, (0, 1)))


@pytest.mark.slow
def test_weights_in_one_array_with_a_failed_member_beside():
    """The others' gradients are those without it."""
    members = (np.arange(11) != 3) * 1.0
    q, v = STARTS
    numbers = jnp.array(NUMBERS)
    failed = q.at[3].set(jnp.nan)
    found = gradient_in_one(lambda p, q, v: by_kernel(InOne(p), q, v), members)(numbers, failed, v)
    by_layers = lambda p, q, v: steps(lambda y: layered(p, y), q, v)  # noqa: E731
    assert_close(found, gradient_in_one(by_layers, members)(numbers, q, v))


def test_derivatives_by_weights_stay_factors_wherever_they_stand():
    def pulled(numbers, x, bar):
        return jax.vjp(layered, numbers, x)[1](bar)

    shapes = [jax.ShapeDtypeStruct((n,), np.float64) for n in (NUMBERS.size, 4, 2)]
    program, pieces = factored(scalarize(pulled, *shapes, loops=True))
    assert pieces[0].parts == (Rank(0, 36, 1, 4), Rank(180, 33, 1, 36))
    assert pieces[0].rest == [(144, 180), (1368, NUMBERS.size)]
    nodes = map(program.graph.nodes.__getitem__, program.graph.needed(program.outputs))
    assert not [x for x in nodes if x.operation == "tanh"]


# Loops with many turns.

TURNS = 600


class Turning(eqx.Module):
    """A controller of long loops, one of them backwards, with counters, choices and a matrix."""

    gain: jax.Array

    def __call__(self, t, q, v, w):

        def turn(state, row):
            (x, before), (scale, even) = state, row
            pull = jnp.where(before, scale, x[1] ** 2)
            x = x + 0.01 * (self.gain @ jnp.sin(x) + q - x * pull)
            return (x, x[0] > 0.1), (jnp.where(even, x[0], x[1]), x[0] > x[1])

        rows = (jnp.linspace(0.5, 1.0, TURNS), jnp.arange(TURNS) % 2 == 0)
        (x, last), (ys, above) = jax.lax.scan(turn, (v, v[0] > 0.1), rows, reverse=True)
        z = jax.lax.fori_loop(0, TURNS, lambda i, z: z + 1e-3 * jnp.cos(z * i) * q[0], q)
        return x + z + jnp.mean(ys**2) + 0.1 * above[3] + 0.2 * last


@pytest.mark.slow
def test_long_loops_and_their_derivatives():
    """A run of three members, and its gradient by starts and gains, which goes through them too."""

    def by_kernel(gain, q, v):
        settings = {"t1": 0.1, "dt": 0.1, "solver": RK4(), "backend": "native"}
        found = simulate(Cart(), Multipliers(), State(q, v), controller=Turning(gain), **settings)
        return jnp.concatenate([found.q[-1], found.v[-1]])

    def by_hand(gain, q, v):
        return steps(lambda y: Turning(gain)(None, y[:2], y[2:], None), q, v, 1)

    def gradient(run):
        def loss(gain, q, v):
            found = jax.vmap(run, (None, 0, 0))(gain, q, v)
            return jnp.sum(found * jnp.arange(1.0, 13.0).reshape(3, 4))

        gain = jnp.array([[0.1, 0.2], [-0.3, 0.4]])
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(gain, *STARTS[:, :3])

    assert_close(gradient(by_kernel), gradient(by_hand))
