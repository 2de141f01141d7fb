"""A function of one member, applied to all: what one is, how they are split, what is refused."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import batch_process
from jaxdae.parallel import BatchError, map_batch, stack

EPS = np.finfo(np.float64).eps


class Spring(eqx.Module):
    """A number of each kind that a batch may have: arrays, plain numbers, settings, functions."""

    stiffness: Any
    rest_length: float
    name: str = eqx.field(static=True)
    law: Any = jnp.tanh

    def force(self, x):
        return self.stiffness * self.law(x - self.rest_length)


def spring_forces(member):
    spring, x = member
    return {"force": spring.force(x), "energy": {"kinetic": jnp.sum(x) ** 2}}


def test_it_is_the_function_of_each_member(rng):
    stiffness, x = rng.normal(size=7), rng.normal(size=(7, 3))
    spring = Spring(jnp.asarray(stiffness), 0.3, "s")
    found = map_batch(spring_forces, (spring, x), block_size=2)
    # One rounding of each of the three operations in another order of evaluation.
    force = stiffness[:, None] * np.tanh(x - 0.3)
    np.testing.assert_allclose(found["force"], force, rtol=8 * EPS)
    np.testing.assert_allclose(found["energy"]["kinetic"], x.sum(1) ** 2, rtol=1e-13)
    assert isinstance(found["force"], np.ndarray)


def test_axes_are_those_of_vmap(rng):
    x, y, z = rng.normal(size=(3, 7)), rng.normal(size=(7, 2, 3)), rng.normal(size=3)

    def function(member):
        return member["x"] * member["deep"][0][0] + member["deep"][1]

    batch = {"x": x, "deep": (y, z), "nothing": None}
    axes = {"x": 1, "deep": (0, None), "nothing": None}
    found = map_batch(function, batch, in_axes=axes, block_size=3)
    expected = jax.vmap(function, in_axes=(axes,))(jax.tree.map(jnp.asarray, batch))
    np.testing.assert_array_equal(found, expected)  # two exact roundings, in whatever order
    last = map_batch(function, {"x": x.T, "deep": (y, z)}, in_axes={"x": -2, "deep": (-3, None)})
    np.testing.assert_array_equal(last, expected)


def test_random_keys_are_members_like_others():
    keys = jax.random.split(jax.random.key(3), 5)
    shared = jax.random.key(4)

    def function(member):
        return jax.random.normal(member[0]) + jax.random.normal(member[1])

    found = map_batch(function, (keys, shared), in_axes=(0, None), block_size=2)
    expected = [function((key, shared)) for key in keys]
    np.testing.assert_allclose(found, expected, rtol=4 * EPS)  # one sum


def test_arrays_of_a_function_are_shared_and_may_change_without_compiling():
    traced = []

    class Scaled(eqx.Module):
        factor: jax.Array

        def __call__(self, x):
            traced.append(None)
            return self.factor * x

    x = np.arange(5.0)
    np.testing.assert_array_equal(map_batch(Scaled(jnp.array(2.0)), x), 2 * x)
    count = len(traced)
    np.testing.assert_array_equal(map_batch(Scaled(jnp.array(3.0)), x), 3 * x)
    assert len(traced) == count


def test_systems_of_one_shape_are_stacked():
    springs = [Spring(np.array([1.0, 2.0]) + i, 0.1 * i, "s") for i in range(3)]
    batch = stack(springs)
    found = map_batch(lambda spring: spring.force(jnp.ones(2)), batch)
    expected = [spring.force(jnp.ones(2)) for spring in springs]
    np.testing.assert_allclose(found, expected, rtol=8 * EPS)


@pytest.mark.parametrize(
    "other",
    [
        Spring(np.ones(3), 0.1, "s"),
        Spring(np.ones(2), 0.1, "other"),
        Spring(np.ones(2), 0.1, "s", jnp.sin),
    ],
)
def test_systems_of_another_shape_are_not_stacked(other):
    with pytest.raises(
        ValueError, match="member 1 differs from member 0 in more than the values of"
    ):
        stack([Spring(np.ones(2), 0.1, "s"), other])
    with pytest.raises(ValueError, match="there are no members; give one at least"):
        stack([])


def counting_function(computed):
    """A loop as long as its member says; `computed` notes each member in each of its rounds."""

    def note(steps):
        computed.append(int(steps))

    def function(steps):
        def step(count):
            jax.debug.callback(note, steps)
            return count + 1

        return jax.lax.while_loop(lambda count: count < steps, step, 0)

    return function


def test_a_member_waits_for_the_slowest_of_its_own_block_only():
    steps = np.ones(18, np.int32)
    steps[5] = 50
    computed = []
    found = map_batch(counting_function(computed), steps, block_size=4, chunk_size=16)
    jax.effects_barrier()
    np.testing.assert_array_equal(found, steps)
    # Of five blocks of four members the second goes round 50 times; in one block all 18 would. The
    # places of the second chunk behind member 17 are filled to one block and not computed beyond.
    assert len(computed) == 4 * (1 + 50 + 1 + 1 + 1)


def test_a_progress_bar_counts_members(capsys):
    map_batch(jnp.sin, np.arange(10.0), block_size=2, chunk_size=4, progress=True)
    assert "10/10" in capsys.readouterr().err
    map_batch(jnp.sin, np.arange(10.0), block_size=2, chunk_size=4)
    assert capsys.readouterr().err == ""


def test_a_member_that_fails_is_a_value():
    found = map_batch(batch_process.iterate, batch_process.starts(), block_size=8)
    assert list(np.flatnonzero(~found["ok"])) == [13]
    assert np.isnan(found["x"][13]).any()
    assert np.isfinite(np.delete(found["x"], 13, axis=0)).all()


def test_a_function_that_raises_ends_the_batch_with_its_members_and_a_remedy():
    def function(x):
        return eqx.error_if(x, x > 6, "too large")

    message = (
        r"members 4 to 7: the function raised \(too large\); a member's failure must be a value .*"
        "Nothing is kept; give a directory"
    )
    with pytest.raises(BatchError, match=message):
        map_batch(function, np.arange(9.0), block_size=2, chunk_size=4)


def test_too_little_memory_is_said_with_a_remedy():
    def function(x):
        return jnp.sort(jnp.full((10**13,), x))[3]

    message = r"members 0 to 1: out of memory \(RESOURCE_EXHAUSTED.*; give a smaller chunk_size, or"
    with pytest.raises(BatchError, match=message):
        map_batch(function, np.arange(2.0))
    message = (
        r"results of 2 members do not fit into memory \(.*PiB.*\); give a directory, or return"
    )
    with pytest.raises(BatchError, match=message):
        map_batch(lambda x: jnp.full((10**14,), x), np.arange(2.0))


ONES = np.ones(3)
# A function, or none where it does not matter; arguments; the error and its words.
REFUSED = [
    ((ONES, np.ones(2)), {}, ValueError, r"batch\[0\] and batch\[1\] have 3 and 2 members; give"),
    ((ONES, np.array(1.0)), {}, ValueError, r"batch\[1\] of shape \(\) has no axis 0 of members;"),
    (ONES, {"in_axes": 1}, ValueError, r"leaf batch of shape \(3,\) has no axis 1 of members"),
    ({"mass": 1.0}, {}, ValueError, "no array with an axis of members: there is nothing to map"),
    (np.ones((0, 3)), {}, ValueError, "the batch has 0 members; give one at least"),
    ((ONES,), {"in_axes": (0, 0)}, ValueError, r"in_axes \(0, 0\) does not fit the b"),
    (ONES, {"block_size": 0}, ValueError, "block_size is 0; give 1 at least"),
    (ONES, {"devices": []}, ValueError, "devices is empty; give one at least, or None"),
    (ONES, {"in_axes": "first"}, TypeError, "in_axes: 'first' is no axis; give an integer, or N"),
    (ONES, {"chunk_size": 2.5}, TypeError, "chunk_size is 2.5; give an integer, 1 at least"),
    (
        ONES,
        {"function": lambda x: {"name": (x, "text")}},
        TypeError,
        r"result \['name'\]\[1\] of a member is 'text'; return arrays",
    ),
    (
        ONES,
        {"function": lambda _: jax.random.key(0)},
        TypeError,
        "of a member is of type key<fry>; return arrays of floats",
    ),
    (
        ONES,
        {"function": lambda _: None},
        TypeError,
        "the function returns no array; return what you want to know",
    ),
]


@pytest.mark.parametrize(("batch", "more", "error", "message"), REFUSED)
def test_what_cannot_be_mapped_is_refused(batch, more, error, message):
    with pytest.raises(error, match=message):
        map_batch(**{"function": lambda member: member, "batch": batch} | more)
