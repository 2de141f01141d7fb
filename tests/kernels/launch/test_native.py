"""Native kernels: the numbers of JAX, for every size of batch, with derivatives."""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.spring import Spring
from jaxdae.kernels import native
from jaxdae.kernels.tracing.trace import UnsupportedOperationError
from jaxdae.models.two_link import TwoLinkManipulator


def rhs(system):
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))

    def function(t, q, v):
        rate = formulation.vector_field(system, t, jaxdae.State(q, v), None)
        return rate.q, rate.v

    return function


@pytest.fixture(scope="module")
def case():
    """A right-hand side, its kernel, and a batch of states."""
    system = TwoLinkManipulator()
    q, v = system.start()
    function = rhs(system)
    kernel = native(function, jnp.zeros(()), q, v)
    keys = jax.random.split(jax.random.key(3))
    qs = q + 1e-2 * jax.random.normal(keys[0], (37, q.size))
    vs = v + jax.random.normal(keys[1], (37, q.size))
    return function, kernel, (jnp.linspace(0, 0.3, 37), qs, vs)


@pytest.mark.slow
def test_batches_of_every_size_are_what_jax_computes(case):
    """Whole and broken blocks of a vector register."""
    function, kernel, batch = case
    expected = jax.jit(jax.vmap(function))(*batch)
    for count in (1, 2, 7, 8, 9, 37):
        found = jax.vmap(kernel)(*(x[:count] for x in batch))
        for one, other in zip(found, expected, strict=True):
            # Round-off of the solution of ill-conditioned equations, condition 1e3.
            np.testing.assert_allclose(one, other[:count], rtol=0, atol=1e-12 * np.abs(other).max())


def test_a_single_state_and_nested_batches(case):
    _, kernel, batch = case
    one = [x[0] for x in batch]
    np.testing.assert_allclose(kernel(*one)[1], jax.vmap(kernel)(*batch)[1][0], rtol=1e-10)
    grid = jax.vmap(jax.vmap(kernel, in_axes=(None, 0, None)), in_axes=(0, None, 1))
    q, v = batch[1][:3], batch[2][:2].T
    found = grid(batch[0][:2], q, v)[1]
    expected = jnp.stack(
        [kernel(batch[0][i], q[j], v[:, i])[1] for i in range(2) for j in range(3)]
    )
    # Compiled for one member and for many, sums may be fused differently.
    size = np.abs(expected).max()
    np.testing.assert_allclose(found.reshape(6, -1), expected, rtol=0, atol=1e-12 * size)


@pytest.mark.slow
def test_derivatives_are_those_of_jax(case):
    """Forward and reverse, alone and in a batch."""
    function, kernel, batch = case
    one = [x[0] for x in batch]

    def energy(f):
        return lambda t, q, v: jnp.sum(jnp.tanh(1e-3 * f(t, q, v)[1]))

    plain, own, every = energy(function), energy(kernel), (0, 1, 2)
    batch = [x[:5] for x in batch]
    expected = jax.jit(jax.vmap(jax.grad(plain, every)))(*batch)
    for derivative in (jax.grad, jax.jacfwd):
        for a, b in zip(jax.jit(derivative(own, every))(*one), expected, strict=True):
            np.testing.assert_allclose(a, b[0], rtol=1e-9, atol=1e-9 * np.abs(b[0]).max())
    lanes = jax.jit(jax.vmap(jax.grad(own, 1)))(*batch)
    np.testing.assert_allclose(lanes, expected[1], rtol=0, atol=1e-9 * np.abs(expected[1]).max())


def mixed(x, a, unused):
    """Two results, one of which does not depend on `a`, and neither on `unused`."""
    return jnp.sin(a[0] * x) * a[1], jnp.stack([x[0] * x[1], jnp.exp(x[1])])


@pytest.mark.slow
def test_derivatives_by_what_members_share():
    """A shared argument has one cotangent, the sum over members; so say JAX and the kernel."""
    x, a, unused = jnp.linspace(0.1, 2.2, 22).reshape(11, 2), jnp.array([0.7, -1.3]), jnp.ones(3)
    kernel = native(mixed, x[0], a, unused)

    def total(f):
        def mean(x, a, unused):
            one, two = jax.vmap(f, in_axes=(0, None, None))(x, a, unused)
            return jnp.mean(one**2) + jnp.sum(jnp.tanh(one[:, 0] * two[:, 1]))

        return mean

    every = (0, 1, 2)
    designs = jnp.stack([a, 2 * a, -a])

    @partial(jax.jit, static_argnums=(0, 1))
    def derivatives(function, modes):
        second = lambda x, a: function(x, a, unused)[1].sum()  # noqa: E731
        return (
            [mode(total(function), every)(x, a, unused) for mode in modes],
            # Of one result only, and of designs that are batched themselves.
            [jax.vmap(jax.grad(second, by), (0, None))(x, a) for by in (0, 1)],
            jax.vmap(jax.grad(total(function), 1), (None, 0, None))(x, designs, unused),
        )

    own, plain = derivatives(kernel, (jax.grad, jax.jacfwd)), derivatives(mixed, (jax.grad,))
    for found in own[0]:
        for one, other in zip(found, plain[0][0], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    for one, other in zip(own[1], plain[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    np.testing.assert_allclose(own[2], plain[2], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_second_derivatives_in_every_order_of_modes():
    def function(x, a):
        return jnp.sin(a * x[0]) * x[1] ** 3

    x, a = jnp.array([[0.3, 1.2], [0.1, -0.4]]), jnp.array(0.8)
    kernel = native(function, x[0], a)

    def second(f, outer, inner):
        return jax.vmap(outer(inner(f, argnums=(0, 1)), argnums=(0, 1)), (0, None))(x, a)

    expected = jax.jit(lambda: second(function, jax.jacfwd, jax.jacrev))()
    orders = list(itertools.product((jax.jacfwd, jax.jacrev), repeat=2))
    for found in jax.jit(lambda: [second(kernel, *order) for order in orders])():
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_single_precision_stays_single():
    def function(x):
        return jnp.sin(x) * jnp.exp(-x) + jnp.where(x > 0, x, 0.5) / (1 + x * x)

    x = jnp.linspace(-3, 3, 101, dtype=jnp.float32)
    kernel = native(function, x[0])
    found = jax.vmap(kernel)(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, function(x.astype(jnp.float64)), atol=3e-7)


def test_a_kernel_works_inside_a_loop_of_jax():
    kernel = native(lambda x: 0.5 * (x + 2.0 / x), jnp.zeros(()))
    root = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, x: kernel(x), x))(1.0)
    np.testing.assert_allclose(root, np.sqrt(2), rtol=1e-15)


def test_kernels_and_their_derivatives_run_where_jit_is_switched_off():
    kernel, x = native(jnp.sin, jnp.zeros(3)), jnp.arange(3.0)
    with jax.disable_jit():
        np.testing.assert_allclose(kernel(x), np.sin(x), rtol=1e-15)
        for derivative in (jax.jacfwd, jax.jacrev):
            found = derivative(kernel)(x)
            np.testing.assert_allclose(found, np.diag(np.cos(x)), rtol=1e-15)


def test_what_devices_share_has_the_sum_of_their_cotangents():
    """Results differ between devices where one argument does; sums over devices follow from it."""
    mesh = jax.sharding.AbstractMesh((2,), ("lanes",), (jax.sharding.AxisType.Auto,))
    own, shared = jax.P("lanes"), jax.P()

    def gradient(function):
        mapped = jax.shard_map(
            jax.vmap(function, (0, None)), mesh=mesh, in_specs=(own, shared), out_specs=own
        )
        cost = jax.grad(lambda x, a: jnp.sum(mapped(x, a)), 1)
        return str(jax.make_jaxpr(cost)(jnp.ones(4), jnp.ones(())))

    def end(x, a):
        start, formulation = jaxdae.State(x[None], x[None]), jaxdae.Multipliers()
        made = jaxdae.simulate(
            Spring(a), formulation, start, t1=0.1, dt=0.1, backend="native", throw=False
        )
        return made.final_state.q[0]

    for function in (native(lambda x, a: x * jnp.sin(a), jnp.ones(()), jnp.ones(())), end):
        operations = gradient(function)
        assert "psum" in operations
        results = re.findall(r"(.*)= native_\w+\[", operations)
        assert len(results) > 1
        assert all("{V:lanes}" in x for x in results)


def test_many_members_are_shared_among_threads():
    x = jnp.linspace(0, 1, 100_003)
    np.testing.assert_allclose(jax.vmap(native(jnp.sin, x[0]))(x), np.sin(x), rtol=1e-15, atol=0)


def test_arguments_that_do_not_fit_are_refused():
    kernel = native(lambda x: 2 * x, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"made for float64\[2\], got float64\[3\]"):
        kernel(jnp.zeros(3))
    with pytest.raises(ValueError, match=r"made for float64\[2\], got float32\[2\]"):
        kernel(jnp.zeros(2, jnp.float32))
    with pytest.raises(ValueError, match="the kernel takes"):
        kernel(jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(TypeError, match=r"arrays of one type, .*got \['float64', 'float32'\]"):
        native(lambda x, y: x + y, jnp.zeros(()), jnp.zeros((), jnp.float32))
    with pytest.raises(TypeError, match=r"\['float64'\] and \['bool'\]"):
        native(lambda x: x > 0, jnp.zeros(()))
    with pytest.raises(TypeError, match="needs one argument and one result"):
        native(lambda: jnp.zeros(2))


def test_calls_outside_of_transformations_compile_once(caplog):
    kernel, x, y = native(lambda x: jnp.sin(x) * x, jnp.zeros(3)), jnp.arange(3.0), jnp.ones(3)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        jax.block_until_ready(kernel(x))
        assert [r for r in caplog.records if "Compiling" in r.getMessage()]
        caplog.clear()
        jax.block_until_ready(kernel(y))
    assert not [r for r in caplog.records if "Compiling" in r.getMessage()]


def test_a_derivative_that_cannot_be_a_kernel_is_told_with_the_remedy():
    @jax.custom_jvp
    def function(x):
        return 2 * x

    @function.defjvp
    def _(primals, tangents):
        shape = jax.ShapeDtypeStruct((), jnp.float64)
        called = jax.pure_callback(lambda x: 2 * np.asarray(x), shape, tangents[0])
        return function(*primals), called

    kernel = native(function, jnp.zeros(()))
    assert kernel(1.5) == 3
    message = (
        "a native kernel, but not its derivative: .*pure_callback.*without jaxdae.kernels.native"
    )
    with pytest.raises(UnsupportedOperationError, match=message):
        jax.jvp(kernel, (1.5,), (1.0,))
