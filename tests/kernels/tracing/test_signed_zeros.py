"""Zeros keep their signs where these are read: NumPy's numbers, operation by operation."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.kernels import native, scalarize
from jaxdae.kernels.tracing.invariants import split_invariants
from jaxdae.models import TwoLinkManipulator
from jaxdae.results.derived_quantities import with_positive_zeros
from jaxdae.solvers import RK4

ZEROS = np.array(list(product([0.0, -0.0, 1.5, -2.0], repeat=2)))


def loop(xp, x):
    if xp is np:
        return 0.0 - (0.0 - (0.0 - x))
    return jax.lax.fori_loop(0, 3, lambda i, s: 0.0 - s, x)


def called(xp, x):
    return 0.0 - x if xp is np else jax.jit(lambda x: 0.0 - x)(x)


def branched(xp, x):
    if xp is np:
        return 0.0 - x if x[1] > 0 else 0.0 * x
    return jax.lax.cond(x[1] > 0, lambda x: 0.0 - x, lambda x: 0.0 * x, x)


def in_place(xp, x):
    if xp is np:
        return 0.0 + x
    return jnp.zeros(2).at[jnp.arange(2)].add(x)


def added(xp, x):
    """NumPy's own sums need not begin with zero."""
    return 0.0 + x[0] + x[1] if xp is np else jnp.sum(x)


# Each is read by whether it is a positive zero or a negative one.
CASES = {
    "difference": lambda xp, x: xp.zeros(2) - x,
    "from negative zero": lambda xp, x: -0.0 - x,
    "less zero": lambda xp, x: x - 0.0,
    "less negative zero": lambda xp, x: x - xp.array([-0.0, -0.0]),
    "sum": lambda xp, x: x + xp.zeros(2),
    "product": lambda xp, x: 0.0 * x,
    "negative product": lambda xp, x: -0.0 * x,
    "quotient": lambda xp, x: 0.0 / (x + 7.0),
    "matrix": lambda xp, x: 0.0 + -x if xp is np else -jnp.eye(2) @ x,
    "one term": lambda xp, x: 0.0 * x[:1] if xp is np else jnp.array([[0.0]]) @ x[:1],
    "terms": lambda xp, x: added(xp, 0.0 * x),
    "stacked": lambda xp, x: xp.stack([0.0 - x, x * 0.0]).reshape(-1),
    "chosen": lambda xp, x: xp.where(x > 0.5, 0.0 - x, 0.0 * x),
    "odd power": lambda xp, x: (0.0 - x) ** 3,
    "root": lambda xp, x: xp.sqrt(0.0 * x),
    "odd function": lambda xp, x: xp.sin(0.0 - x),
    "sign": lambda xp, x: xp.where(x == 0, 0.0 - x, xp.sign(0.0 - x)),
    "remainder": lambda xp, x: xp.fmod(0.0 - x, 3.0),
    "product of entries": lambda xp, x: (0.0 - x)[0] * (0.0 - x)[1],
    "loop": loop,
    "call": called,
    "branch": branched,
    "in place": in_place,
}
READERS = {
    "angle": lambda xp, y: xp.arctan2(y, xp.full_like(y, -1.0)),
    "other side": lambda xp, y: xp.arctan2(xp.zeros_like(y), y),
    "inverse": lambda xp, y: 1.0 / y,
    "bounded": lambda xp, y: xp.tanh(1.0 / (y * 3.0)),
    "power": lambda xp, y: y**-3,
}


def everything(xp, x):
    return [
        xp.ravel(read(xp, xp.asarray(case(xp, x))))
        for case in CASES.values()
        for read in READERS.values()
    ]


def inverses(xp, x):
    return [xp.ravel(READERS["inverse"](xp, xp.asarray(case(xp, x)))) for case in CASES.values()]


def test_zeros_keep_their_signs_where_these_are_read(in_numpy):
    program = scalarize(lambda x: everything(jnp, x), np.zeros(2))
    names = list(product(CASES, READERS))
    for x in ZEROS:
        with np.errstate(all="ignore"):
            expected = everything(np, x)
        for name, one, other in zip(names, in_numpy(program, x), expected, strict=True):
            # Powers are products here, and roundings of a few units there.
            np.testing.assert_allclose(one, other, rtol=1e-14, err_msg=f"{name} {x}")


@pytest.mark.slow
def test_machine_code_keeps_them_too():
    kernel = native(lambda x: jnp.concatenate(inverses(jnp, x)), np.zeros(2))
    found = np.asarray(jax.jit(jax.vmap(kernel))(ZEROS))
    for x, own in zip(ZEROS, found, strict=True):
        with np.errstate(all="ignore"):
            expected = np.concatenate(inverses(np, x))
        # The sine of LLVM and that of NumPy differ in the last digit.
        np.testing.assert_allclose(own, expected, rtol=1e-14)


def test_results_keep_them_where_they_are_wanted(in_numpy):
    """As a state that starts at a negative zero does, for which forces are zeros of both signs."""
    signed = scalarize(
        lambda x: [case(jnp, x) for case in CASES.values()], np.zeros(2), signed=True
    )
    for x in ZEROS:
        with np.errstate(all="ignore"):
            expected = [np.asarray(case(np, x)) for case in CASES.values()]
        for name, one, other in zip(CASES, in_numpy(signed, x), expected, strict=True):
            np.testing.assert_array_equal(np.signbit(one), np.signbit(other), err_msg=f"{name} {x}")


class Resting(jaxdae.System):
    """Four coordinates at rest, by forces that are zeros of both signs."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        d = jnp.zeros(4) - q
        return jnp.stack([d[0], 0.0 * t - d[1], -d[2], jnp.sin(d[3])])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "plain"])
def test_derived_quantities_have_positive_zeros_alone(backend):
    """Angles by `arctan2` are then the same for both backends, also of negative zeros at first."""
    q = jnp.array([0.0, -0.0, -0.0, 0.0])
    start = jaxdae.State(q, -q)
    run = jaxdae.simulate(
        Resting(), jaxdae.Multipliers(), start, t1=0.2, dt=0.1, solver=RK4(), backend=backend
    )
    for found in (run.q, run.v, run.energy, run.final_state.q, run.final_state.v):
        np.testing.assert_array_equal(found, 0.0)
        assert not np.signbit(found).any()
    slopes = jax.jacfwd(with_positive_zeros)(q)
    np.testing.assert_array_equal(slopes, np.eye(4))


# What it costs.


def operations(program) -> int:
    return len(program.graph.needed(program.outputs))


@pytest.mark.slow
def test_equations_of_motion_cost_what_they_cost_without(monkeypatch):
    """Masses and Jacobians keep their structural zeros: linear solves have no readers."""
    system = TwoLinkManipulator()
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte(2.0, 3.0))
    q, v, *_ = system.start()
    arrays, static = eqx.partition(system, eqx.is_inexact_array_like)
    leaves, structure = jax.tree.flatten(arrays)

    def rates(t, q, v, *leaves):
        own = eqx.combine(jax.tree.unflatten(structure, leaves), static)
        return formulation.vector_field(own, t, jaxdae.State(q, v), None).v

    given = jnp.array(0.0), q, v, *(jnp.asarray(x, float) for x in leaves)
    found = scalarize(rates, *given, varying=3, signed=True)
    monkeypatch.setattr("jaxdae.kernels.tracing.zero_signs.readers", lambda *_, **__: {})
    without = scalarize(rates, *given, varying=3)
    assert operations(found) <= 1.01 * operations(without)
    parts = [split_invariants(x, varying=3).rest for x in (found, without)]
    assert operations(parts[0]) <= 1.01 * operations(parts[1])
