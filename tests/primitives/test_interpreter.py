"""Programs by NumPy: the numbers of XLA's, and a word where there are none."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import compiled
from jaxdae.compiled import jit
from jaxdae.diagnosis.diagnose import read_row
from jaxdae.models.registry import get_model, MODELS
from jaxdae.primitives import interpreter
from jaxdae.primitives.interpreter import interpreted, NotInterpretedError
from jaxdae.systems import State

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3))
# Zeros of both signs, infinities and NaN among them.
ODD = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 0.5])


def agree(function, *arguments, tolerance=1e-14):
    """Both, and their types and shapes."""
    traced = jax.jit(function).trace(*arguments)
    found = interpreted(traced.jaxpr, jax.tree.leaves(arguments))
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        zeros = np.asarray(other) == 0
        if other.dtype == np.float64:
            np.testing.assert_array_equal(np.signbit(one)[zeros], np.signbit(other)[zeros])


@pytest.mark.parametrize(
    "function",
    [
        jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.sinh, jnp.exp, jnp.expm1, jnp.log1p, jnp.arctan,
        jnp.sign, jnp.abs, jnp.square, jnp.floor, jnp.ceil, jnp.isfinite, jax.nn.sigmoid, jnp.sqrt,
        jax.lax.rsqrt, jnp.cbrt, lambda x: x**-3, lambda x: x**5, lambda x: jnp.clip(x, -1.0, 2.0),
        lambda x: jnp.arctan2(x, 2.0), lambda x: jnp.power(jnp.abs(x), 1.5),
        lambda x: jnp.max(x, initial=1.0), jnp.min, jnp.prod, jnp.sum, jnp.any,
        lambda x: jnp.where(x > 0, x, -x), lambda x: jnp.fmod(x, 0.7), jnp.cumsum,
        lambda x: jax.lax.cummax(x, reverse=True), lambda x: x[::-1],
        lambda x: jnp.concatenate([x, x]), lambda x: jnp.pad(x, (2, 1)),
        lambda x: x.at[1].set(7.0), lambda x: x.at[jnp.array([2, 2])].add(x[:2]),
        lambda x: x[jnp.array([0, 5, -1])], lambda x: jax.lax.dynamic_slice(x, (6,), (4,)),
        lambda x: jnp.outer(x, jnp.ones(3)), lambda x: jnp.asarray(x, jnp.float32),
        lambda x: x.astype(bool), lambda x: (jnp.max(x > 1), jnp.min(x > 1)),
        lambda x: sum(jnp.unstack(x)), lambda x: jnp.stack([x, 2 * x]).T,
    ],
)  # fmt: skip
def test_primitives_are_those_of_xla(function):
    agree(function, ODD)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.T,
        lambda x: jnp.einsum("ij,kj->ik", x, x),
        lambda x: jax.vmap(jnp.dot)(x, x),
        lambda x: jnp.tensordot(x, x, ((0, 1), (0, 1))),
        lambda x: jnp.max(x, axis=0) + jnp.min(x, axis=(0, 1)),
        lambda x: jnp.max(jnp.zeros((0, 3)), axis=0, initial=-jnp.inf),
        lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True),
        lambda x: jax.lax.scan(lambda c, row: (c + row, c), x[0], x[:0]),
        lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 9.0, lambda y: y + jnp.abs(x), x),
        jax.vmap(lambda x: jax.lax.while_loop(lambda y: y @ y < 9.0, lambda y: 1.7 * y, x)),
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.switch(jnp.int32(7), [jnp.sin, jnp.cos, jnp.exp], x),
        lambda x: jax.jvp(jax.nn.softplus, (x,), (x,)),
        jax.grad(lambda x: jnp.linalg.norm(x @ jnp.ones(3))),
        jax.vmap(jax.hessian(lambda x: jnp.prod(jnp.sin(x)))),
        jax.checkpoint(lambda x: jnp.sin(x) * x),
        jax.vmap(eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))),
    ],
)  # fmt: skip
def test_products_loops_and_derivatives_are_those_of_xla(function):
    agree(function, X)


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_models_are_those_of_xla(name):
    system = get_model(name).system()
    labels = system.labels()
    n, r = len(labels.coordinates), len(labels.actuators)
    q = jnp.asarray(RNG.uniform(0.2, 0.8, (5, n)))
    states = State(q, q[:, ::-1][:, : len(labels.velocities) or n], jnp.zeros((5, r)))
    control = (lambda *_: jnp.ones(len(labels.inputs))) if labels.inputs else None
    rows = jax.vmap(lambda t, state: read_row(system, control, t, state))
    agree(rows, jnp.arange(5.0), states, tolerance=1e-10)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (jnp.linalg.inv, "no counterpart of lu"),
        (lambda x: jax.random.normal(jax.random.key(0), x.shape), "no counterpart of"),
        (lambda x: jax.pure_callback(np.sin, x, x), "pure_callback"),
        (lambda x: jax.debug.print("{}", x) or x, "has effects"),
        (lambda x: jax.lax.fori_loop(0, 50_000, lambda i, y: y + i, x), "more than 60000"),
        (lambda x: jax.lax.while_loop(lambda y: True, lambda y: y + 1, x), "more than 60000"),
    ],
)  # fmt: skip
def test_what_is_left_to_xla(function, words):
    traced = jax.jit(function).trace(jnp.eye(3))
    with pytest.raises(NotInterpretedError, match=words):
        interpreted(traced.jaxpr, [np.eye(3)])


def test_remainders_of_integers_and_zero_are_those_of_xla():
    numbers = np.array([0, 1, -7, 3, -(2**31)], np.int32)
    pairs = np.stack(np.meshgrid(numbers, numbers)).reshape(2, -1)
    agree(lambda x: jax.lax.rem(x[0], x[1]), pairs)


def test_limits_of_other_kinds_of_numbers_are_left_to_xla():
    x = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(NotInterpretedError, match="no limits of bfloat16"):
        interpreted(jax.jit(jnp.max).trace(x).jaxpr, [x])


def test_keys_of_random_numbers_are_left_to_xla():
    key = jax.random.key(0)
    traced = jax.jit(jax.random.normal).trace(key)
    with pytest.raises(NotInterpretedError, match="keys of random numbers"):
        interpreted(traced.jaxpr, [key])


@pytest.fixture
def compilations(monkeypatch):
    """Grows by one whenever a program is compiled."""
    made, compile_it = [], compiled._compile

    def counted(*arguments):
        made.append(1)
        return compile_it(*arguments)

    monkeypatch.setattr(compiled, "_compile", counted)
    return made


def test_first_calls_are_not_compiled(compilations):
    twice = jit(lambda x, y=2.0: {"sum": x + y, "same": x}, interpreted=2)
    for count in (0, 0, 1, 1):
        x = jnp.arange(3.0) + count
        found = twice(x)
        np.testing.assert_array_equal(found["sum"], x + 2.0)
        assert isinstance(found["sum"], jax.Array)
        assert found["same"] is x
        assert len(compilations) == count
    # Another shape is another program.
    twice(jnp.arange(4.0))
    assert len(compilations) == 1


def test_what_numpy_does_not_know_is_compiled_at_once(compilations):
    inverse = jit(jnp.linalg.inv, interpreted=2)
    np.testing.assert_allclose(inverse(2 * jnp.eye(2)), 0.5 * jnp.eye(2))
    assert len(compilations) == 1


def test_a_search_for_numbers_that_are_none_looks_into_programs():
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jit(jnp.log, interpreted=2)(-jnp.ones(2))


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        agree(lambda x: jnp.sin(x) @ x + 1.0, X.T[0].astype(np.float32), tolerance=1e-6)


def test_the_counter_is_of_one_call():
    """A program may be called as often as anyone likes."""
    traced = jax.jit(lambda x: jax.lax.fori_loop(0, 9000, lambda i, y: y + 1, x)).trace(0.0)
    for _ in range(2):
        assert interpreted(traced.jaxpr, [0.0])[0] == 9000
    assert interpreter._MOST < 2 * 9000 * 4
