"""Rows of large tables by an index that depends on the inputs: one call, not a comparison each."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import Spring
from jaxdae import Multipliers, simulate, State
from jaxdae.kernels.graph.array_calls import OntoRow, Row
from jaxdae.kernels.tracing.trace import scalarize
from jaxdae.solvers import RK4

TABLE = jax.random.normal(jax.random.key(0), (500, 2))


def row(t, table):
    return table[jnp.clip((t / 0.01).astype(int), 0, 499)]


def column(t, columns):
    start = jnp.clip((t / 0.01).astype(int), 0, 600)
    return jax.lax.dynamic_slice(columns, (0, start), (2, 1))[:, 0]


def taken(t, table):
    return jnp.take(table, jnp.floor(t / 0.01).astype(int), axis=0, mode="clip")


@pytest.mark.parametrize("function", [row, taken])
def test_reading_and_its_transpose_are_calls(function):
    def calls(function, *arguments):
        program = scalarize(function, *arguments, loops=True)
        return program.graph.callees(program.outputs), len(program.graph.nodes)

    t, bar = jnp.array(0.3), jnp.ones(2)
    found, size = calls(function, t, TABLE)
    assert found == [Row(500, 2)]
    assert size < 1100

    def transposed(t, table, bar):
        return jax.vjp(lambda x: function(t, x), table)[1](bar)[0]

    found, size = calls(transposed, t, TABLE, bar)
    assert found == [OntoRow(500, 2)]
    assert size < 2200


class Push(eqx.Module):
    """What a table says of the time, from before its first row to behind its last."""

    read: Callable = eqx.field(static=True)
    table: jax.Array

    def __call__(self, t, q, v, w):
        return jnp.sum(jnp.sin(self.read(3 * t - 0.2, self.table)))


def end(read, table, backend, q=0.3):
    state = State(jnp.reshape(q, 1), jnp.zeros(1))
    found = simulate(
        Spring(4.0), Multipliers(), state, t1=2.0, dt=0.013, solver=RK4(), backend=backend,
        controller=Push(read, table), adjoint=diffrax.DirectAdjoint(),
    )  # fmt: skip
    assert found.backend == backend
    return found.q[-1, 0]


@pytest.mark.parametrize(
    ("read", "table"),
    [
        (row, TABLE),
        pytest.param(taken, TABLE, marks=pytest.mark.slow),
        pytest.param(column, TABLE.T, marks=pytest.mark.slow),
    ],
)
def test_both_backends_read_the_same(read, table):
    values = [end(read, table, x) for x in ("plain", "native")]
    np.testing.assert_allclose(*values, rtol=1e-12)
    starts = jnp.linspace(0.0, 1.0, 9)
    shared, own = ((None, 0), (0, 0))
    for axes, tables in ((shared, table), (own, table * starts[:, None, None])):
        values = [
            jax.vmap(lambda x, q, to=to: end(read, x, to, q), axes)(tables, starts)
            for to in ("plain", "native")
        ]
        np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("read", "table"), [(row, TABLE), (column, TABLE.T)])
def test_derivatives_in_both_modes(read, table):
    direction = jnp.cos(jnp.arange(1000.0)).reshape(table.shape)
    both = jnp.stack([direction, 2 * direction])
    for derivative in (
        lambda f: jax.grad(f)(table),
        lambda f: jax.vmap(lambda d: jax.jvp(f, (table,), (d,))[1])(both),
    ):
        values = [derivative(lambda x, to=to: end(read, x, to)) for to in ("plain", "native")]
        np.testing.assert_allclose(*values, rtol=1e-10, atol=1e-13)
