"""Loops whose turns read and replace rows of an array, as recursions over a tree do."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.kernels import scalarize
from jaxdae.kernels.tracing import loops
from jaxdae.solvers import RK4

LINKS = 60
NUMBERS = np.arange(1, LINKS + 1, dtype=np.int32)
RANDOM = np.random.default_rng(7)
PARENTS = np.array([RANDOM.integers(max(0, i - 3), i + 1) for i in range(LINKS)], np.int32)


WEIGHTS = RANDOM.standard_normal((LINKS, 2)), RANDOM.standard_normal((4, LINKS))


@pytest.fixture(autouse=True)
def _short_loops_stay(monkeypatch):
    """The same is done in loops of many operations, which would take longer here."""
    monkeypatch.setattr(loops, "_FEWEST_OF_LONG", 0)
    monkeypatch.setattr(loops, "_LONG", 0)


def rows_of(x):
    """A row for each link."""
    return WEIGHTS[0] * x[:2] + jnp.flip(WEIGHTS[0], 0) * x[2:]


def row(table, i):
    return jax.lax.dynamic_index_in_dim(table, i, 0, keepdims=False, allow_negative_indices=False)


def replaced(table, new, i):
    return jax.lax.dynamic_update_index_in_dim(table, new, i, 0, allow_negative_indices=False)


def down(table, rows):
    """What parents have, and an own number."""

    def turn(table, given):
        i, parent, own = given
        return replaced(table, jnp.sin(row(table, parent)) + own, i), None

    return jax.lax.scan(turn, table, (NUMBERS, PARENTS, rows))[0]


def up(table):
    """Sums over children, and a number of each turn."""

    def turn(table, given):
        i, parent = given
        own = row(table, i)
        more = row(table, parent) + 0.5 * jnp.cos(own) * own[::-1]
        return replaced(table, more, parent), own[0] * own[1]

    return jax.lax.scan(turn, table, (NUMBERS, PARENTS), reverse=True)


def recursion(x):
    table, kept = up(down(jnp.zeros((LINKS + 1, 2)).at[0].set(x[:2]), rows_of(x)))
    return WEIGHTS[1] @ (table[1:, 0] + kept)


def counted(x):
    """The number of a turn is what the loop counts, not a row."""

    def turn(i, table):
        return replaced(table, jnp.sin(row(table, i)) * x[:2] + jnp.cos(x[2:4]) / 3, i + 1)

    table = jnp.zeros((LINKS + 1, 2)).at[0].set(x[:2])
    return WEIGHTS[1] @ jax.lax.fori_loop(0, LINKS, turn, table)[1:, 0]


def also_summed(x):
    """Each turn wants all of the array, too."""

    def turn(table, given):
        i, parent, own = given
        new = jnp.sin(row(table, parent)) + own + 0.01 * jnp.sum(table)
        return replaced(table, new, i), None

    table = jnp.zeros((LINKS + 1, 2)).at[0].set(x[:2])
    return WEIGHTS[1] @ jax.lax.scan(turn, table, (NUMBERS, PARENTS, rows_of(x)))[0][1:, 0]


def sometimes_one(x):
    """Two of its rows are one in some turns, and two in others."""
    others = np.where(NUMBERS % 3 == 0, PARENTS, NUMBERS).astype(np.int32)

    def turn(table, given):
        i, parent, other, own = given
        table = replaced(table, jnp.sin(row(table, parent)) + own, i)
        return replaced(table, row(table, other) * 0.9, i), None

    table, rows = jnp.ones((LINKS + 1, 2)) * x[:2], (NUMBERS, PARENTS, others, rows_of(x))
    return WEIGHTS[1] @ jax.lax.scan(turn, table, rows)[0][1:, 0]


def moved_inside(x):
    """Places beyond the last row are that row."""

    def turn(table, given):
        i, own = given
        return replaced(table, jnp.sin(row(table, i)) + own, i + 1), None

    table = jnp.zeros((LINKS, 2)).at[0].set(x[:2])
    return WEIGHTS[1] @ jax.lax.scan(turn, table, (NUMBERS, rows_of(x)))[0][:, 1]


def side_by_side(x):
    """Rows of a batch are along another axis."""
    return jnp.array([1.0, 0.3]) @ jax.vmap(recursion)(jnp.stack([x, 0.7 * x[::-1]]))


def within(x):
    """A loop in each turn reads the array of the loop around it, and has one of its own."""

    def turn(table, given):
        i, parent, own = given

        def inner(k, own_table):
            return replaced(own_table, row(own_table, k) * 0.9 + row(table, parent), k + 1)

        last = jax.lax.fori_loop(0, 60, inner, jnp.ones((61, 2)) * own)
        return replaced(table, jnp.sin(last[-1]), i), None

    table, few = jnp.ones((LINKS + 1, 2)) * x[:2], slice(0, 3)
    rows = NUMBERS[few], PARENTS[few], rows_of(x)[few]
    return WEIGHTS[1] @ jax.lax.scan(turn, table, rows)[0][1:, 0]


def tables(function):
    """How many arrays each loop of a program has by rows."""
    program = scalarize(function, jax.ShapeDtypeStruct((4,), float), loops=True)
    callees = program.graph.callees(program.outputs)
    return [len(x.tables.arrays) for x in callees if isinstance(x, loops.Loop)]


@pytest.mark.parametrize("function", [recursion, side_by_side])
def test_arrays_stay_in_memory_and_so_do_their_cotangents(function):
    assert tables(function) == [1, 1]

    def pulled(x):
        return jax.vjp(function, x)[1](jnp.arange(4.0))[0]

    assert tables(pulled) == [1, 1, 1, 1]


def test_arrays_of_which_more_is_wanted_are_handed_on_as_others_are():
    assert tables(also_summed) == tables(sometimes_one) == [0]


class Driven(jaxdae.System):
    """Unit masses, and forces by a function of all coordinates."""

    function: Callable = eqx.field(static=True)
    scale: jax.Array | float = 1.1

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return self.function(self.scale * q) - q


@pytest.mark.parametrize(
    "function",
    [
        recursion,
        counted,
        side_by_side,
        # Without rows in memory these are long.
        *(pytest.param(x, marks=pytest.mark.slow) for x in (also_summed, sometimes_one)),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (moved_inside, within)),
    ],
)
def test_loops_are_those_of_jax_with_derivatives_in_both_modes(function):
    start, h = jnp.asarray(RANDOM.standard_normal(4)), 0.01

    def end(scale, q):
        run = simulate(
            Driven(function, scale), Multipliers(), State(q, jnp.zeros_like(q)), t1=h, dt=h,
            solver=RK4(), backend="native", throw=False,
        )  # fmt: skip
        return jnp.sum(jnp.sin(run.q[-1] + run.v[-1]) * jnp.arange(1.0, 5))

    def by_hand(scale, q):
        """A step of the method of Runge and Kutta."""

        def rate(y):
            return jnp.concatenate([y[4:], function(scale * y[:4]) - y[:4]])

        y = jnp.concatenate([q, jnp.zeros(4)])
        slopes = [rate(y)]
        for part in (0.5, 0.5, 1.0):
            slopes.append(rate(y + part * h * slopes[-1]))
        y = y + h / 6 * (slopes[0] + 2 * slopes[1] + 2 * slopes[2] + slopes[3])
        return jnp.sum(jnp.sin(y[:4] + y[4:]) * jnp.arange(1.0, 5))

    point = jnp.array(1.1), start
    (value, by), (expected, exact) = (
        jax.jit(jax.value_and_grad(f, (0, 1)))(*point) for f in (end, by_hand)
    )
    # Sums are in another order.
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(by[0], exact[0], rtol=1e-9)
    np.testing.assert_allclose(by[1], exact[1], rtol=1e-9)
    along = jax.jit(lambda x, dx: jax.jvp(lambda x: end(x, start), (x,), (dx,)))
    np.testing.assert_allclose(along(point[0], jnp.ones(()))[1], exact[0], rtol=1e-9)


def test_members_beside_one_that_fails():
    def end(scale):
        run = simulate(
            Driven(recursion, scale), Multipliers(), State(jnp.arange(4.0), jnp.zeros(4)), t1=0.01,
            dt=0.01, solver=RK4(), backend="native", throw=False,
        )  # fmt: skip
        return jnp.sum(run.v[-1])

    scales = jnp.array([1.1, jnp.nan, 0.7])
    values, slopes = jax.vmap(jax.value_and_grad(end))(scales)
    alone = [jax.value_and_grad(end)(x) for x in scales[::2]]
    assert not np.isfinite(values[1])
    # Sums of products may be fused otherwise in vectors of another width.
    np.testing.assert_allclose(values[::2], [x for x, _ in alone], rtol=1e-12)
    np.testing.assert_allclose(slopes[::2], [x for _, x in alone], rtol=1e-9)
