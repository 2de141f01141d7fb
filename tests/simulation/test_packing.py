"""Many small parameters are few arrays of a kernel: what runs and derivatives give is the same."""

from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import Body, Hinge, Multibody
from jaxdae.simulation import packing as packings
from jaxdae.simulation.packing import packing
from jaxdae.solvers import RK4

LINKS = 3
END = diffrax.SaveAt(t1=True)


@pytest.fixture
def packed(monkeypatch):
    """As if few parameters were many."""
    monkeypatch.setattr(packings, "_FEW", 4)


def chain(masses):
    """Links of unlike masses, each of which is a parameter."""
    return Multibody([
        Body(
            f"b{i}", Hinge(f"h{i}", axis=[0, 1, 0], damping=0.1), f"b{i - 1}" if i else None,
            position=[0, 0, -1.0 if i else 0.0], mass=masses[i], inertia=[0.1, 0.1, 0.1],
            centre=[0, 0, -0.5],
        )
        for i in range(LINKS)
    ])  # fmt: skip


MASSES = jnp.array([1.0, 1.5, 0.7])
START = jnp.array([1.0, 0.3, -0.2])


def end(masses, q, backend):
    """Angles after a few steps."""
    state = jaxdae.State(q, jnp.zeros(LINKS))
    run = jaxdae.simulate(
        chain(masses), jaxdae.Multipliers(), state, t1=0.2, dt=0.01, solver=RK4(), saveat=END,
        backend=backend, throw=False,
    )  # fmt: skip
    return run.q[-1]


def test_what_has_one_place_in_a_declaration_is_one_array(packed):
    del packed
    arrays = eqx.filter(chain(MASSES), eqx.is_array)
    leaves = jax.tree.leaves(arrays)
    how = packing(arrays)
    few = how.packed(leaves)
    assert len(few) <= len(leaves) / LINKS + 3
    # Each number has one place, and comes back to where it was.
    assert sorted(i for group in how.groups for i in group) == list(range(len(leaves)))
    for before, after in zip(leaves, how.unpacked(few), strict=True):
        np.testing.assert_array_equal(before, after)
        assert np.shape(before) == np.shape(after)


def test_few_parameters_and_large_ones_stay_as_they_are():
    few = [np.ones(3), np.ones(2)]
    assert packing(few).groups == ((0,), (1,))
    many = [np.ones(3)] * packings._FEW + [np.ones(packings._SMALL + 1), np.ones(0)]
    count = packings._FEW
    assert packing(many).groups == (tuple(range(count)), (count,), (count + 1,))


def test_numbers_of_several_precisions_are_not_mixed(packed):
    del packed
    tree = [np.ones(2), np.ones(2, np.float32)] * 3
    assert packing(tree).groups == ((0, 2, 4), (1, 3, 5))


def test_runs_and_derivatives_are_those_of_the_plain_program(packed):
    del packed
    native = partial(end, backend="native")
    along = (jnp.array([0.3, -1.0, 0.2]), jnp.array([1.0, 0.5, -2.0]))
    weights, h = jnp.array([1.0, -1.0, 2.0]), 1e-5

    @jax.jit
    def everything():
        value, push = jax.jvp(native, (MASSES, START), along)
        pull = jax.vjp(native, MASSES, START)[1](weights)
        moved = [native(MASSES + s * along[0], START + s * along[1]) for s in (h, -h)]
        return value, push, pull, (moved[0] - moved[1]) / (2 * h)

    value, push, pull, difference = everything()
    plain = jax.jit(partial(end, backend="plain"))(MASSES, START)
    # Both round-offs are of some hundred operations a step.
    np.testing.assert_allclose(value, plain, rtol=1e-9, atol=1e-11)
    product = sum(a @ b for a, b in zip(pull, along, strict=True))
    np.testing.assert_allclose(weights @ push, product, rtol=1e-9)
    # The error of central differences is of the order h^2, their round-off of 1e-16 / h.
    np.testing.assert_allclose(push, difference, rtol=1e-6, atol=1e-8)


def test_a_batch_by_one_of_the_parameters_of_an_array(packed):
    del packed
    lightest = jnp.array([0.5, jnp.nan, 2.0])

    def one(mass, backend):
        return end(MASSES.at[1].set(mass), START, backend)

    together = jax.jit(jax.vmap(lambda x: one(x, "native")))(lightest)
    # A failed member is NaN and leaves the others alone.
    assert not np.isfinite(together[1]).any()
    for i in (0, 2):
        np.testing.assert_allclose(together[i], one(lightest[i], "plain"), rtol=1e-9, atol=1e-11)
