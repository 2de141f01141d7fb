"""What is known while a kernel is traced is computed by NumPy, and as JAX computes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.kernels.tracing import known_numbers
from jaxdae.kernels.tracing.known_numbers import computed
from jaxdae.kernels.tracing.trace import scalarize
from jaxdae.multibody import Ball, Body, Hinge, Multibody

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(4, 5, 6)), RNG.normal(size=(6, 4, 5))
INTEGERS, AT = RNG.integers(0, 9, size=(3, 4)), np.array([0, 3, -1, 7, 2])
PAIRS = np.array([0, 1, 4, 2])


def by_numpy(program, arguments):
    """Results of a program, equation by equation."""
    values = dict(zip(program.jaxpr.invars, arguments, strict=True))
    values |= dict(zip(program.jaxpr.constvars, map(np.asarray, program.consts), strict=True))
    read = lambda x: np.asarray(x.val, x.aval.dtype) if hasattr(x, "val") else values[x]  # noqa: E731
    for equation in program.jaxpr.eqns:
        inputs = [read(x) for x in equation.invars]
        calls = equation.primitive.name in ("jit", "pjit")
        found = by_numpy(equation.params["jaxpr"], inputs) if calls else computed(equation, inputs)
        for variable, value in zip(equation.outvars, found, strict=True):
            assert (value.shape, value.dtype) == (variable.aval.shape, variable.aval.dtype)
            values[variable] = value
    return [read(x) for x in program.jaxpr.outvars]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda a, b: jnp.einsum("ijk,kil->ijl", a, b), (A, B)),
        (lambda a: a.sum((0, 2)), (A,)),
        (lambda a: a @ a.T, (INTEGERS,)),
        (lambda a: jnp.zeros((0, 5)) @ a, (A[0],)),
        (jnp.sqrt, (A**2,)),
        (lambda a, i: a[:, i], (A, AT)),
        (lambda a, i: a[i % 4, :, i % 6], (A, AT)),
        (lambda a, i: jnp.take(a, i, axis=1, mode="clip"), (A, AT)),
        (lambda a, i: jnp.take(a, i, axis=1, mode="fill", fill_value=3.0), (A, AT)),
        (lambda a, i: jnp.take(a, i, axis=1, mode="fill"), (INTEGERS, AT)),
        (lambda a: a[np.array([], int)], (A,)),
        (lambda a, i: a.at[i].set(1.5), (A, AT)),
        (lambda a, i, b: a.at[i].add(b), (A, AT, RNG.normal(size=(5, 5, 6)))),
        (lambda a, b: jax.lax.dynamic_update_slice(a, b, (2, 3, 5)), (A, B[:2, :2, :2])),
        (lambda a: jax.lax.dynamic_slice(a, (3, -1, 5), (2, 2, 2)), (A,)),
        (jax.vmap(lambda a, i: a[i]), (A, PAIRS)),
        (jax.vmap(lambda a, i: a.at[i].set(0.0)), (A, PAIRS)),
        (jax.grad(lambda a: jnp.sum(a[AT % 4] ** 2)), (A,)),
    ],
)
def test_numpy_computes_what_jax_does(function, arguments):
    arrays = [jnp.asarray(x) for x in arguments]
    found = by_numpy(jax.make_jaxpr(function)(*arrays), arguments)
    # Sums of at most thirty products of order one, in any order.
    np.testing.assert_allclose(found[0], function(*arrays), rtol=1e-13, atol=1e-14)


def test_a_mechanism_is_traced_without_compiling_anything(monkeypatch):
    """With all of its numbers known, from quaternions to tables of parents."""
    base = Body("base", Ball("base"), None, (0, 0, 1), (1, 2, 3, 4), 1.0, (0, 0, 0.1), (1, 2, 2.5))
    arm = Body("arm", Hinge("arm", (1, 1, 0)), "base", (0.2, 0, 0), mass=1.0, inertia=(1, 1, 1))
    system = Multibody([base, Body("tip", (), "base", (0, 1, 0), mass=0.1), arm])
    monkeypatch.setattr(known_numbers, "_by_jax", lambda *_: pytest.fail("compiled by JAX"))
    shapes = [jax.ShapeDtypeStruct(x, jnp.result_type(float)) for x in ((5,), (4,))]
    found = scalarize(lambda q, v: system.forward_dynamics(0.0, q, v, v).acceleration, *shapes)
    assert found.results[0].shape == (4,)
