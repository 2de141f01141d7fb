"""Linear systems, factorizations and choices of entries inside of scalar programs."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular

from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.linalg.held_rank import split_columns
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import FullRankSolve

RNG = np.random.default_rng(60221)
SQUARE = jnp.asarray(RNG.normal(size=(4, 4)))
# Its first two pivots are below the diagonal, where structure puts zeros on it.
SADDLE = jnp.block([[jnp.zeros((2, 2)), SQUARE[:2, :2]], [SQUARE[:2, :2].T, jnp.eye(2)]])
SPD = SQUARE @ SQUARE.T + jnp.eye(4)
TALL = jnp.asarray(RNG.normal(size=(5, 3)))
RHS, COLUMNS = jnp.asarray(RNG.normal(size=4)), jnp.asarray(RNG.normal(size=(4, 2)))
BATCH = jnp.stack([SPD, SPD + jnp.eye(4), 2 * SPD, SPD + jnp.diag(RHS**2)])
ANGLES = jnp.asarray([0.3, -1.2, 2.0, 0.3, 0.7])


def lineax_solve(solver):
    def function(a, b):
        return lx.linear_solve(lx.MatrixLinearOperator(a), b, solver, throw=False).value

    return function


def sensitivity(a, b):
    """Forward and reverse derivatives of a solution."""
    _, forward = jax.jvp(jnp.linalg.solve, (a, b), (jnp.cos(a), jnp.sin(b)))
    return forward, jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a, b) ** 2))(a)


def with_triangles(a, b):
    return [
        solve_triangular(a, b, lower=lower, trans=trans, unit_diagonal=unit)
        for lower in (False, True)
        for trans in (0, 1)
        for unit in (False, True)
    ]


def from_the_right(a, b):
    def solve(lower, transpose):
        return jax.lax.linalg.triangular_solve(a, b.T, lower=lower, transpose_a=transpose)

    return [solve(lower, transpose) for lower in (False, True) for transpose in (False, True)]


CASES = {
    "solve": (jnp.linalg.solve, SQUARE, RHS),
    "solve of columns": (jnp.linalg.solve, SQUARE, COLUMNS),
    "saddle point": (jnp.linalg.solve, SADDLE, RHS),
    "inverse": (jnp.linalg.inv, SQUARE),
    "determinant": (lambda a: (jnp.linalg.det(a), *jnp.linalg.slogdet(a)), SQUARE),
    "sensitivity": (sensitivity, SQUARE, RHS),
    "factors": (lambda a: jax.lax.linalg.lu(a)[0], SQUARE),
    "factors, more columns": (lambda a: jax.lax.linalg.lu(a)[0], TALL.T),
    "cholesky": (jnp.linalg.cholesky, SPD),
    "cholesky, solve": (lambda a, b: cho_solve(cho_factor(a), b), SPD, COLUMNS),
    "triangles": (with_triangles, SQUARE, COLUMNS),
    "triangles from the right": (from_the_right, SQUARE, COLUMNS),
    "QR": (jnp.linalg.qr, TALL),
    "complete QR": (lambda a: jnp.linalg.qr(a, mode="complete"), TALL),
    "derivative of QR": (lambda a: jax.jvp(jnp.linalg.qr, (a,), (jnp.sin(a),))[1], TALL),
    "lineax LU": (lineax_solve(lx.LU()), SQUARE, RHS),
    "lineax QR": (lineax_solve(lx.QR()), TALL, TALL[:, 0] + 1),
    "batch of solutions": (jnp.linalg.solve, BATCH, jnp.tile(RHS[:, None], (4, 1, 1))),
    "columns split": (lambda a: [a[:, i] for i in split_columns(a)], TALL.T),
    "sorted": (lambda x: (jnp.sort(x), x[jnp.argsort(x)], jnp.median(x)), ANGLES),
    "extremes": (lambda x: (x[jnp.argmax(x)], x[jnp.argmin(x)], x[jnp.argmax(x > 0)]), ANGLES),
    "written": (lambda x: x.at[jnp.argmax(x)].set(7.0).at[jnp.argmin(x)].add(x[0]), ANGLES),
    "counted": (lambda x: x[jnp.sum(x > 0.5) - 1] + jnp.cumsum(x > 0) * 1.0, ANGLES),
    "switched": (
        lambda x: jax.lax.switch(jnp.sum(x > 0.5), [jnp.sin, jnp.cos, jnp.tanh, jnp.exp], x),
        ANGLES,
    ),
    "sliced": (lambda x: jax.lax.dynamic_slice(x, (jnp.argmax(x),), (2,)), ANGLES),
    "overwritten": (
        lambda x: jax.lax.dynamic_update_slice(x, x[:2] * 3, (jnp.sum(x > -3),)),
        ANGLES,
    ),
    "rounded": (lambda x: x[jnp.clip(jnp.round(x), 0, 4).astype(int)], ANGLES),
    "cut": (lambda x: jnp.clip(4 * x, -3.5, 9).astype(int) * x, ANGLES),
    "cast, then clipped": (
        lambda x: (
            x[jnp.clip((2e12 * x).astype(int), 0, 3)] + x[jnp.clip((4 * x).astype(int), 1, 2)]
        ),
        ANGLES,
    ),
    "cast, and taken": (lambda x: jnp.take(x, (3 * x).astype(int), mode="clip"), ANGLES),
    "floor of what is cast": (lambda x: x[jnp.clip(jnp.floor(2 * x).astype(int), 0, 2)], ANGLES),
    "remainder of what is cast": (lambda x: x * ((9 * x).astype(int) % 3), ANGLES),
    "beyond": (lambda x: x.at[jnp.sum(x > -3)].get(mode="fill", fill_value=jnp.nan), ANGLES),
    "dropped": (lambda x: x.at[jnp.sum(x > -3) + jnp.arange(2)].set(1.0, mode="drop"), ANGLES),
}


@pytest.mark.parametrize("name", CASES)
def test_scalars_give_what_lapack_gives(name, in_numpy):
    function, *arguments = CASES[name]
    program = scalarize(lambda *x: jax.tree.leaves(function(*x)), *arguments)
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for one, other in zip(in_numpy(program, *arguments), expected, strict=True):
        # Condition numbers up to 1e2, in both; a derivative multiplies by one once more.
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_pivots_are_those_of_the_largest_entries(seed, in_numpy):
    """One program for all matrices, whatever rows it exchanges; ties go to the first."""
    whole = np.random.default_rng([55, seed]).integers(-2, 3, size=(4, 4))
    matrix = jnp.asarray(whole, float) + (0 if seed % 2 else 1e-3 * SQUARE)

    def function(a):
        factors, _, order = jax.lax.linalg.lu(a)
        return factors, order.astype(float)

    program = scalarize(function, matrix)
    for one, other in zip(in_numpy(program, matrix), function(matrix), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def test_a_matrix_that_is_not_positive_definite_has_no_factor(in_numpy):
    program = scalarize(jnp.linalg.cholesky, SPD)
    for bad in (SPD.at[3, 3].set(-1.0), -SPD):
        # Above the diagonal zeros are structural.
        found = in_numpy(program, bad)[0][np.tril_indices(4)]
        assert np.isnan(found).all()


@pytest.mark.parametrize("column", [0, 3])
def test_a_singular_matrix_has_no_finite_solution(column, in_numpy):
    """The same entries are not finite as with LAPACK."""
    program, matrix = scalarize(jnp.linalg.solve, SQUARE, RHS), SQUARE.at[:, column].set(0.0)
    found = np.isfinite(in_numpy(program, matrix, RHS)[0])
    assert not found.all()
    np.testing.assert_array_equal(found, np.isfinite(jnp.linalg.solve(matrix, RHS)))


def mechanism(n, c):
    """`M` of bodies of two coordinates each, and `J` that couples neighbours."""
    rng = np.random.default_rng(n)
    bodies = np.kron(np.eye((n + 1) // 2), np.ones((2, 2)))[:n, :n]
    root = 0.2 * rng.normal(size=(n, n))
    mass = np.where(bodies, root + root.T, 0.0) + 2 * np.eye(n)
    near = [[2 * (j // 2) in (2 * i, 2 * i - 2) for j in range(n)] for i in range(c)]
    jac = np.where(near, rng.normal(size=(c, n)), 0.0)
    numbers = mass, rng.normal(size=n), jac, rng.normal(size=c)
    return tuple(jnp.asarray(x) for x in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [None, (0, 0, 0, 0), (None, 0, None, None), (None, None, 0, None)])
@pytest.mark.parametrize("size", [(4, 2), (20, 9)], ids=str)
def test_the_whole_saddle_point_system_is_eliminated(size, axes, in_numpy):
    """By its entries alone, for one system and for each of a batch, as large as a system or not."""
    given, mask = mechanism(*size), [np.asarray(x) != 0 for x in mechanism(*size)]
    count = size[0] if axes else 1
    scale = jnp.linspace(1.1, 1.5, count)

    def function(scale):
        own = [x * jnp.where(m, 1.0, 0.0) for x, m in zip(given, mask, strict=True)]
        one = [x * scale[0] for x in own]
        if axes is None:
            return FullRankSolve()(*one)
        many = [x[None] * scale.reshape(-1, *[1] * x.ndim) for x in own]
        pick = [x if a is None else m for x, m, a in zip(one, many, axes, strict=True)]
        return jax.vmap(FullRankSolve(), axes)(*pick)

    program = scalarize(function, scale)
    for one, other in zip(in_numpy(program, scale), function(scale), strict=True):
        # Condition below 1e3.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    # One pivot for each unknown of each member that has a matrix of its own.
    matrices = {None: 1, (0, 0, 0, 0): count, (None, 0, None, None): 1}.get(axes)
    if matrices is not None:
        divisions = sum(x.operation == "div" for x in program.graph.nodes)
        assert divisions == matrices * sum(size)


@pytest.mark.parametrize("seed", range(20))
def test_any_pattern_is_eliminated(seed, in_numpy):
    """With multipliers between coordinates, too, where that is cheaper."""
    given = sparse(seed)
    mask = [np.asarray(x) != 0 for x in given]

    def function(mass, force, jac, rhs):
        mass, force, jac, rhs = (
            x * jnp.where(m, 1.0, 0.0) for x, m in zip((mass, force, jac, rhs), mask, strict=True)
        )
        return FullRankSolve()(mass, force, jac, rhs)

    mass, force, jac, rhs = map(np.asarray, given)
    c = len(rhs)
    matrix = np.block([[mass, jac.T], [jac, np.zeros((c, c))]])
    wanted = np.linalg.solve(matrix, np.concatenate([force, rhs]))
    found = np.concatenate(in_numpy(scalarize(function, *given), *given))
    # In units of what any stable method may lose: a hundred roundings times the condition.
    bound = 1e2 * np.finfo(float).eps * np.linalg.cond(matrix) * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def sparse(seed):
    """A mechanism of random pattern, its constraints independent."""
    rng = np.random.default_rng(seed)
    n, density = int(rng.integers(2, 9)), rng.uniform(0.1, 1.0)
    c = int(rng.integers(1, n + 1))
    coupled = np.triu(rng.uniform(size=(n, n)) < density, 1)
    mass = np.where(coupled, rng.uniform(-0.5, 0.5, (n, n)), 0.0)
    mass = mass + mass.T
    mass += np.diag(0.5 + np.abs(mass).sum(axis=0))
    jac = np.where(rng.uniform(size=(c, n)) < density, rng.uniform(-0.3, 0.3, (c, n)), 0.0)
    jac[np.arange(c), rng.permutation(n)[:c]] = 2.0
    numbers = mass, rng.normal(size=n), jac, rng.normal(size=c)
    return tuple(jnp.asarray(x) for x in numbers)


def test_tangents_and_cotangents_share_the_elimination():
    """One pivot for each unknown, whatever is differentiated."""

    def function(d):
        jac = jnp.stack([jnp.cos(d), jnp.sin(d)])
        a, lam = FullRankSolve()(jnp.diag(d), jnp.sin(d), jac, jnp.cos(d[:2]))
        return jnp.sum(a) + jnp.sum(lam)

    d = jnp.arange(1.0, 5.0)
    for derivative in (jax.jacfwd(function), jax.grad(function), jax.hessian(function)):
        graph = (program := scalarize(derivative, d)).graph
        divisions = [x for x in graph.needed(program.outputs) if graph.nodes[x].operation == "div"]
        assert len(divisions) == 6


@pytest.mark.parametrize("what", ["mass", "constraints"])
def test_no_number_comes_of_a_saddle_point_that_is_none(what, in_numpy):
    mass, force, jac, rhs = mechanism(4, 2)
    program = scalarize(FullRankSolve(), mass, force, jac, rhs)
    if what == "mass":
        mass = mass - 3 * jnp.eye(4)
    else:
        jac = jac.at[1].set(2 * jac[0])
        # Exactly dependent: what is left of the second pivot is exactly zero.
        mass = jnp.eye(4)
    found = in_numpy(program, mass, force, jac, rhs)
    assert not np.isfinite(np.concatenate(found)).all()


@pytest.mark.parametrize(
    ("outer", "inner"),
    [((2, 1), (1, 0)), ((None, 1), (0, 0)), ((1, None), (2, 1)), ((0, 0), (None, 1))],
)
def test_axes_of_batches_are_known_where_all_sizes_are_the_same(outer, inner, in_numpy):
    """Four times four systems of four unknowns, with the axes of both batches anywhere."""
    rng = np.random.default_rng(3)
    given = []
    for core, first, second in zip(((4, 4), (4,)), outer, inner, strict=True):
        one = rng.uniform(-0.3, 0.3, (1 if first is None else 4, 1 if second is None else 4, *core))
        given.append(one + one.swapaxes(-1, -2) + 3 * np.eye(4) if len(core) == 2 else one)
    wanted = np.linalg.solve(given[0], given[1][..., None])[..., 0]

    def placed(x, first, second):
        x = x[:, 0] if second is None else np.moveaxis(x, 1, 1 + second)
        return jnp.asarray(x[0] if first is None else np.moveaxis(x, 0, first))

    function = jax.vmap(jax.vmap(solve_positive_definite, inner), outer)
    arguments = [placed(*x) for x in zip(given, outer, inner, strict=True)]
    program = scalarize(function, *arguments)
    # Condition below 1e1.
    np.testing.assert_allclose(in_numpy(program, *arguments)[0], wanted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(function(*arguments), wanted, rtol=0, atol=1e-14)
    divisions = sum(x.operation == "div" for x in program.graph.nodes)
    assert divisions == 4 * given[0].shape[0] * given[0].shape[1]


def test_nan_is_sorted_and_found_as_jax_does(in_numpy):
    def function(x):
        order = jnp.argsort(x)
        return jnp.sort(x), order * 1.0, jnp.argmax(x) * 1.0, jnp.argmin(x) * 1.0

    x = jnp.array([1.0, jnp.nan, -jnp.inf, 0.0, -0.0, jnp.nan])
    program = scalarize(function, x)
    for one, other in zip(in_numpy(program, x), function(x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: jnp.linalg.solve(jnp.diag(x), x), "lu cannot .* more than 16"),
        (lambda x: jnp.sort(jnp.tile(x, 4)), "sort cannot .* more than 64 entries"),
        (lambda x: jnp.linalg.eigh(jnp.outer(x, x))[0], "eigh cannot .* iterates until"),
        (lambda x: x * jnp.argmax(x) ** 2, "integer_pow .*powers of integers"),
        (lambda x: x * (jnp.argmax(x) + 2**30), "integers beyond 16777216"),
        (lambda x: (x, jnp.asarray(2**30)), "a result cannot .*integers beyond 16777216"),
        (lambda x: x * (jnp.argmax(x).astype("int8") + jnp.int8(120)), "int8 could overflow"),
    ],
)
def test_what_would_not_be_exact_is_refused(function, message):
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(function, jnp.arange(1.0, 18.0))
