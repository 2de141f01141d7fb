"""Values are checked where they are known, in all transformations; what is traced passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.checks import fails, is_eager, where_known


def positive(x) -> bool:
    return bool(np.all(x > 0))


TRANSFORMED = {
    "jit": lambda f: jax.jit(f)(jnp.ones(2)),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x)))(jnp.ones(2)),
}


def test_a_condition_fails_of_known_values_alone():
    assert fails(positive, -1.0)
    assert fails(positive, jnp.array([1.0, -1.0]))
    assert fails(positive, np.nan)
    assert not fails(positive, 2.0)
    assert fails(lambda a, b: a < b, 2, jnp.array(1))
    assert not fails(lambda x: isinstance(x["a"], jax.Array), {"a": jnp.ones(1)})  # as it is
    assert not fails(lambda x: isinstance(x, np.ndarray), jnp.ones(1))


@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=list(TRANSFORMED))
def test_what_is_traced_passes_and_what_is_known_beside_it_does_not(transformed):
    known = jnp.array(-1.0)
    read = where_known(lambda x, also=None: float(np.asarray(x)) if also is None else 0.0)
    seen = []

    def look(x):
        seen.append((fails(positive, -x), fails(positive, known), fails(positive, known, {"x": x})))
        seen.append((read(x), read(known), read(known, also=x)))
        seen.append((is_eager(x), is_eager(known, x)))
        return x

    transformed(look)
    assert seen == [(False, True, False), (None, -1.0, None), (False, False)]


def test_operations_are_computed_at_once_where_their_values_take_no_part():
    """In a gradient those on other values are; in a compiled program none is."""
    found = []

    def look(x):
        found.append(is_eager(jnp.ones(1)))
        return x

    jax.grad(look)(1.0)
    jax.jit(look)(1.0)
    assert found == [True, False]
    assert is_eager(jnp.ones(1), 2.0)
