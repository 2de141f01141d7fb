"""Functions as scalar programs: the same numbers, nothing computed twice, refusals by name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import Symbols
from jaxdae.kernels.tracing.trace import evaluate
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.primitives.parameters import check, Refusal


def counts(program):
    """How often each operation is needed."""
    graph = program.graph
    totals: dict[str, int] = {}
    for node in graph.needed(program.outputs):
        name = graph.nodes[node].operation
        totals[name] = totals.get(name, 0) + 1
    return totals


@pytest.fixture
def assert_agreement(in_numpy):
    """`assert_agreement(function, *arguments)`: the program gives what the function gives."""

    def check(function, *arguments, rtol=1e-14):
        program = scalarize(lambda *x: jax.tree.leaves(function(*x)), *arguments)
        expected = jax.tree.leaves(jax.jit(function)(*arguments))
        for one, other in zip(in_numpy(program, *arguments), expected, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-15)
        return program

    return check


def test_equal_expressions_are_one(assert_agreement):
    def function(x):
        return jnp.sin(x[0] * x[1]) + jnp.sin(x[1] * x[0]) * x[0], jnp.sin(x[0] * x[1])

    assert counts(assert_agreement(function, jnp.array([0.3, 1.7])))["sin"] == 1


def test_structural_zeros_cost_nothing(assert_agreement):
    """The Hessian of a diagonal energy has a diagonal, and nothing else is computed."""
    weights = jnp.array([2.0, 3.0, 5.0])

    def mass(v):
        return jax.hessian(lambda v: jnp.sum(weights * jnp.cos(v)))(v)

    program = assert_agreement(mass, jnp.array([0.1, 0.2, 0.3]))
    assert counts(program)["cos"] == 3
    assert counts(program)["mul"] <= 6


@pytest.mark.parametrize("size", [3, 20], ids=["elimination", "LAPACK"])
def test_a_sparse_matrix_is_solved_by_its_entries_alone(size, assert_agreement):
    """An arrow matrix, its point last: no fill, a number of operations linear in its size."""

    def solve(d, e):
        matrix = jnp.diag(d).at[-1, :-1].set(e).at[:-1, -1].set(e)
        return solve_positive_definite(matrix, jnp.ones_like(d))

    d, e = 3.0 + jnp.arange(1.0, size + 1), jnp.linspace(0.1, 0.5, size - 1)
    totals = counts(assert_agreement(solve, d, e, rtol=1e-12))
    assert totals["div"] == size
    assert totals["mul"] + totals["sub"] < 8 * size


def branched(x):
    return jax.lax.cond(x[0] > 0, lambda x: x * 2, lambda x: jnp.exp(x), x)


def looped(x):
    def body(i, x):
        return x * jnp.cos(x) + i

    return jax.lax.fori_loop(0, 4, body, x)


def scanned(x):
    def step(carry, row):
        return carry + row, carry * row

    return jax.lax.scan(step, jnp.zeros_like(x[0]), x.reshape(-1, 1)[:, 0], reverse=True)


def network(x):
    net = eqx.nn.MLP(3, 2, 4, 2, jnp.tanh, key=jax.random.key(0))
    return net(x)


def counted(turns, x):
    """A loop that turns more often for some members of a batch than for others."""
    turn = lambda s: (s[0] + 1, s[1] * x + 1.0)  # noqa: E731
    return jax.lax.while_loop(lambda s: s[0] < turns, turn, (0, x))[1]


FUNCTIONS = {
    "branch": branched,
    "loop": looped,
    "scan": scanned,
    "scan over nothing": lambda x: jax.lax.scan(lambda c, r: (c + r, c), x, jnp.zeros((0, 3))),
    "network": network,
    "indices": lambda x: x[jnp.array([2, 0, 0])] * x.at[1].set(7.0).at[2].add(x[0]),
    "out of bounds": lambda x: jnp.take(x, jnp.array([0, 5]), fill_value=jnp.nan),
    "products": lambda x: jnp.einsum("ij,jk->ik", jnp.outer(x, x), jnp.ones((3, 2)) * x[:, None]),
    "batched products": lambda x: jax.vmap(lambda a, b: a @ b)(jnp.outer(x, x), jnp.outer(x, x)),
    "powers": lambda x: (x**2, x**-3, x**0, x**2.5, jnp.sqrt(x), jax.lax.rsqrt(x), 2.0**x),
    "choices": lambda x: (jnp.where(x > 0.5, x, -x), jnp.maximum(x, 0.5), jnp.clip(x, 0.3, 0.6)),
    "logic": lambda x: jnp.where((x > 0.1) & ~(x > 0.6) | jnp.isfinite(x / 0.0), x, 0.0),
    "reductions": lambda x: (x.sum(), x.prod(), x.max(), x.min(), jnp.cumsum(x), x.mean()),
    "rounding": lambda x: (jnp.floor(9 * x), jnp.ceil(9 * x), jnp.round(9 * x), x % 0.2),
    "signs": lambda x: (jnp.sign(x), jnp.abs(-x), jnp.sign(0.0 * x)),
    "angles": lambda x: (jnp.arctan2(x, 1 - x), jnp.arcsin(x), jnp.arccos(x), jnp.tan(x)),
    "hyperbolic": lambda x: (jnp.sinh(x), jnp.cosh(x), jnp.tanh(x), jnp.arctanh(x)),
    "logarithms": lambda x: (jnp.log(x), jnp.log1p(x), jnp.expm1(x), jnp.logaddexp(x, 1 - x)),
    "polynomials": lambda x: (jnp.polyval(x, x), jnp.polyval(x[:1], x), jnp.log2(x)),
    "one less a square": jax.grad(lambda x: jnp.sum(jnp.arctanh(x))),
    "in place": lambda x: x.at[0].multiply(3.0).at[1].min(0.1).at[2].max(x[0]).at[0].subtract(x[1]),
    "special": lambda x: (jax.scipy.special.erf(x), jax.nn.sigmoid(x), jnp.cbrt(x)),
    "shapes": lambda x: jnp.concatenate([x[None], x[::-1][None]]).T.reshape(3, 2)[1:, :],
    "jacobian": lambda x: jax.jacfwd(jax.grad(lambda x: jnp.prod(jnp.sin(x))))(x),
    "truth": lambda x: (x > 0.5).astype(x.dtype) + jnp.any(x > 0.5) + jnp.all(x > 2.0),
    "booleans compared": lambda x: jnp.where((x > 0.5) == (x < 0.7), x, (x > 0.3).max() * 2.0),
    "random numbers": lambda x: x * jax.random.normal(jax.random.split(jax.random.key(3))[1], (3,)),
    "loop of a batch": lambda x: jax.vmap(counted)(np.arange(3), x),
    "constant": lambda x: jnp.arange(3.0) + 0 * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_agree_with_the_functions_they_are_made_of(name, assert_agreement):
    # Elementary functions of JAX compiled in other company differ in the last digits.
    assert_agreement(FUNCTIONS[name], jnp.array([0.2, 0.55, 0.9]), rtol=1e-12)


def dynamic_loop(x):
    return jax.lax.while_loop(lambda x: x[0] < 1.0, lambda x: x * 2, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (dynamic_loop, r"while cannot .*: how often its loop turns depends on the inputs"),
        (lambda x: jnp.fft.rfft(x).real, r"fft cannot be made .*: there is no rule for it\. It"),
        (lambda x: x.astype(jnp.int8), r"convert_element_type .* integer would depend on"),
        (lambda x: (x.astype(int) + 1) * 1.0, r"could overflow .* jnp.clip keeps"),
        (lambda x: jnp.linalg.svd(x.reshape(1, 3))[1], r"svd .* iterates until it converges"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_its_place(function, message):
    with pytest.raises(UnsupportedOperationError, match=message) as caught:
        scalarize(function, jnp.array([0.5, 0.2, 0.1]))
    assert "test_scalar_programs.py:" in str(caught.value)


def test_what_is_refused_is_no_error_where_it_is_not_needed(in_numpy):
    def function(x, needed):
        values = jnp.linalg.svd(jnp.outer(x, x))[1]
        return x + jnp.sum(values) if needed else x * 2

    program = scalarize(lambda x: function(x, False), jnp.ones(2))
    np.testing.assert_array_equal(in_numpy(program, jnp.ones(2))[0], [2.0, 2.0])
    with pytest.raises(UnsupportedOperationError, match="svd"):
        scalarize(lambda x: function(x, True), jnp.ones(2))


def test_effects_are_refused_although_nobody_reads_them():
    def function(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(UnsupportedOperationError, match=r"debug_.*cannot be made part"):
        scalarize(function, jnp.ones(2))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("integer_pow", {}, "gives it no parameter y, which its rule reads"),
        ("scan", {"jaxpr": 0, "length": 3}, "no parameter reverse"),
        ("jit", {}, "no parameter jaxpr"),
        ("reduce_sum", {"axes": (0,), "where": 1}, "its rule knows no parameter where"),
        ("reshape", {"new_sizes": (), "dimensions": None, "order": "F"}, "knows no .* order"),
    ],
)
def test_what_another_release_says_otherwise_is_refused(name, params, message):
    with pytest.raises(Refusal, match=message):
        check(name, params)


def test_a_scan_that_does_not_say_what_it_hands_on_is_refused():
    closed = jax.make_jaxpr(scanned)(jnp.ones(3))
    (equation,) = (x for x in closed.eqns if x.primitive.name == "scan")
    hidden = ("ft_in", "ft_out", "num_consts", "num_carry")
    params = {name: x for name, x in equation.params.items() if name not in hidden}
    unsaid = closed.jaxpr.replace(
        eqns=[x.replace(params=params) if x is equation else x for x in closed.eqns]
    )
    graph = Graph()
    inputs = np.array([graph.input(i) for i in range(3)])
    refusal = evaluate(graph, unsaid, [Symbols(inputs)])[0]
    assert "does not say which of its arguments are handed on" in refusal.reason


def test_arguments_on_which_results_depend():
    """Of a system without numbers what is made of its parameters is a program of no argument."""
    x = jax.ShapeDtypeStruct((2,), jnp.float64)
    program = scalarize(lambda a, b, c: (a[0] * c[1], a + 1.0), x, x, x)
    assert program.depends() == (True, False, True)
    assert scalarize(lambda: jnp.ones(2)).depends() == ()
