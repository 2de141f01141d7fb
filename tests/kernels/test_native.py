"""Native kernels: the numbers of JAX, for every size of batch, with derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.kernels import native
from jaxdae.kernels.vector_math import LIBRARY, VECTOR_FUNCTIONS
from jaxdae.models.andrews import AndrewsMechanism
from jaxdae.models.two_link import TwoLinkManipulator

FUNCTIONS = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "exp": jnp.exp,
    "log": jnp.log,
    "tanh": jnp.tanh,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "expm1": jnp.expm1,
    "log1p": jnp.log1p,
    "cbrt": jnp.cbrt,
    "erf": jax.scipy.special.erf,
}
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1.0, -1.0, 1e300, -1e300, 710.0, -746.0]
)
# From the smallest numbers to angles beyond every reduction.
SIZES = np.concatenate([10.0 ** np.arange(-300, 300, 7.3), np.linspace(0, 30, 4001)])


def exact(name, x):
    """To 30 digits, rounded to double."""
    wide = np.longdouble(x)
    # The longdouble functions of the C library have eleven bits more than double precision.
    known = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
    known |= {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}
    return getattr(np, str(known.get(name, name)))(wide)


def compiled(function, x):
    kernel = native(lambda x: function(x), jnp.zeros((), x.dtype))
    return np.asarray(jax.jit(jax.vmap(kernel))(jnp.asarray(x)))


@pytest.mark.parametrize("name", VECTOR_FUNCTIONS)
def test_own_functions_are_exact_to_two_units_in_the_last_place(name, rng):
    near = np.nextafter(np.arange(1, 400) * (np.pi / 2), rng.choice([-1e3, 1e3], 399))
    x = np.concatenate([SIZES, -SIZES, near, 1 + rng.normal(size=2000) * 1e-3])
    if name == "log":
        x = np.abs(x)
    found = compiled(FUNCTIONS[name], x)
    with np.errstate(all="ignore"):
        expected = exact(name, x)
        unit = np.spacing(np.abs(expected).astype(float))
        error = np.abs((found - expected) / unit)
    finite = np.isfinite(expected.astype(float))
    assert error[finite].max() <= 2.0
    np.testing.assert_array_equal(found[~finite], expected[~finite].astype(float))


@pytest.mark.parametrize("name", [*VECTOR_FUNCTIONS, *(x for x in LIBRARY if LIBRARY[x] == 1)])
def test_special_values_are_those_of_jax(name):
    found, expected = compiled(FUNCTIONS[name], SPECIAL), np.asarray(FUNCTIONS[name](SPECIAL))
    # XLA takes subnormal numbers for zero; where it does, the kernel may keep them.
    # Its hyperbolic sine loses two digits where it is largest.
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-300)
    normal = np.abs(SPECIAL) != 5e-324
    zeros = (expected == 0) & normal & (np.abs(SPECIAL) != 1e-310)
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("name", ["atan2", "pow"])
def test_functions_of_two_arguments_have_the_special_values_of_jax(name):
    function = {"atan2": jnp.arctan2, "pow": jnp.power}[name]
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    # XLA takes subnormal numbers for zero.
    normal = np.minimum(np.abs(x), np.abs(y)) != 5e-324
    normal &= (np.abs(x) != 1e-310) & (np.abs(y) != 1e-310)
    x, y = x[normal], y[normal]
    kernel = native(lambda a, b: function(a, b), jnp.zeros(()), jnp.zeros(()))
    np.testing.assert_allclose(jax.vmap(kernel)(x, y), function(x, y), rtol=1e-14)


def rhs(system):
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))

    def function(t, q, v):
        rate = formulation.vector_field(system, t, jaxdae.State(q, v), None)
        return rate.q, rate.v

    return function


@pytest.fixture(scope="module", params=["two-link", "Andrews"])
def case(request):
    """A right-hand side, its kernel, and a batch of states."""
    system = TwoLinkManipulator() if request.param == "two-link" else AndrewsMechanism()
    q, v = system.start()
    function = rhs(system)
    kernel = native(function, jnp.zeros(()), q, v)
    keys = jax.random.split(jax.random.key(3))
    qs = q + 1e-2 * jax.random.normal(keys[0], (37, q.size))
    vs = v + jax.random.normal(keys[1], (37, q.size))
    return function, kernel, (jnp.linspace(0, 0.3, 37), qs, vs)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 37])
def test_batches_of_every_size_are_what_jax_computes(case, count):
    """Whole and broken blocks of a vector register."""
    function, kernel, batch = case
    part = [x[:count] for x in batch]
    for one, other in zip(jax.vmap(kernel)(*part), jax.jit(jax.vmap(function))(*part), strict=True):
        size = np.abs(other).max()
        # Round-off of the solution of ill-conditioned equations, condition 1e3.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * size)


def test_a_single_state_and_nested_batches(case):
    function, kernel, batch = case
    one = [x[0] for x in batch]
    np.testing.assert_allclose(kernel(*one)[1], jax.jit(function)(*one)[1], rtol=1e-10)
    grid = jax.vmap(jax.vmap(kernel, in_axes=(None, 0, None)), in_axes=(0, None, 1))
    q, v = batch[1][:3], batch[2][:2].T
    found = grid(batch[0][:2], q, v)[1]
    expected = jnp.stack(
        [kernel(batch[0][i], q[j], v[:, i])[1] for i in range(2) for j in range(3)]
    )
    # Compiled for one member and for many, sums may be fused differently.
    size = np.abs(expected).max()
    np.testing.assert_allclose(found.reshape(6, -1), expected, rtol=0, atol=1e-12 * size)


@pytest.mark.parametrize("case", ["two-link"], indirect=True)
def test_derivatives_are_those_of_jax(case):
    """Forward and reverse, alone and in a batch."""
    function, kernel, batch = case
    one = [x[0] for x in batch]

    def energy(f):
        return lambda t, q, v: jnp.sum(jnp.tanh(1e-3 * f(t, q, v)[1]))

    plain, own = energy(function), energy(kernel)
    expected = jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(*one)
    for derivative in (jax.grad, jax.jacfwd):
        for a, b in zip(derivative(own, argnums=(0, 1, 2))(*one), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
    lanes = jax.vmap(jax.grad(own, argnums=1))(*(x[:5] for x in batch))
    expected = jax.jit(jax.vmap(jax.grad(plain, argnums=1)))(*(x[:5] for x in batch))
    np.testing.assert_allclose(lanes, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_second_derivatives_are_those_of_jax():
    kernel = native(lambda x: jnp.sin(x[0]) * x[1] ** 3, jnp.zeros(2))
    x = jnp.array([0.3, 1.2])
    expected = jax.hessian(lambda x: jnp.sin(x[0]) * x[1] ** 3)(x)
    np.testing.assert_allclose(jax.hessian(kernel)(x), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(jax.jacrev(kernel))(x), expected, rtol=1e-14)


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
