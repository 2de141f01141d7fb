"""Networks and long loops: kernels that stay short, and a word where they would not."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.backends import BackendError
from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.solvers import RK4

X = jax.ShapeDtypeStruct((300,), np.float64)


def sines(x):
    """As many sines as a table of all pairs has entries."""
    return jnp.sin(x[:, None] + x[None, :]).sum()


def turns(x):
    return jax.lax.fori_loop(0, 10**9, lambda _, y: jnp.sin(y) + y * jnp.cos(y), x)


def sums(x):
    """A loop whose turns are known, and none of which is an operation of the kernel."""
    total = jax.lax.while_loop(lambda s: s[0] < 10**9, lambda s: (s[0] + 1, s[1] + s[0]), (0, 0))
    return x * total[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (sines, "its scalar operations are more than 40000, which would take too long to compile"),
        (turns, "the equations of its loops, turn by turn, are more than 60000"),
        (sums, "the equations of its loops, turn by turn, are more than 60000"),
    ],
)
def test_what_would_take_too_long_is_refused_at_once(function, message):
    began = time.process_time()
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(function, X)
    # Some seconds at most: all of it would be hours, and a slow machine is not ten times slower.
    assert time.process_time() - began < 20


class Cart(jaxdae.System):
    """Two carts."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w
        return u - q


class Pairs(eqx.Module):
    """A controller of more operations than a kernel may have."""

    gain: jax.Array

    def __call__(self, t, q, v, w):
        del t, v, w
        return -sines(self.gain * jnp.arange(1.0, 301.0)) * q


def test_the_plain_program_steps_in_for_what_is_too_long():
    start, controller = State([0.1, 0.2], [0.0, 0.0]), Pairs(jnp.array(1e-3))
    settings = {"t1": 0.2, "dt": 0.1, "solver": RK4(), "controller": controller}
    found = simulate(Cart(), Multipliers(), start, **settings)
    assert found.backend == "plain"
    assert "its scalar operations are more than 40000" in str(found.why_not_native)
    with pytest.raises(BackendError, match="its scalar operations are more than 40000"):
        simulate(Cart(), Multipliers(), start, backend="native", **settings)
