"""Rules of derivatives that users have written are kept, in every order of both modes."""

import itertools
from functools import partial
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

import jaxdae
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.derivatives.user_rules import own_rules
from jaxdae.simulation.backends import BackendError
from jaxdae.simulation.reverse_only import reverse_only
from jaxdae.solvers import RK4

MODES = {"f": jax.jacfwd, "r": jax.jacrev}
X = np.array([0.7, -0.4])


@jax.custom_vjp
def clipped(x):
    """A sine whose derivative is clipped, and differentiated by what it keeps."""
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (bar * jnp.tanh(3 * jnp.cos(x)),))


@jax.custom_jvp
def smoothed(x):
    """Two numbers; the slopes by them are those of no function."""
    return x[0] * x[1]


@smoothed.defjvp
def _smoothed_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return smoothed(x), x[1] ** 2 * dx[0] + x[0] * dx[1]


@eqx.filter_custom_jvp
def wrapped(x):
    return x


@wrapped.def_jvp
def _wrapped_jvp(primals, tangents):
    return wrapped(*primals), 2 * tangents[0]


def root(x):
    """A library's function, by the rule that the library has for it."""
    x = eqx.error_if(x, x > 9, "too large")
    cube = optimistix.root_find(lambda y, x: y**3 - x, optimistix.Newton(1e-8, 1e-8), x, x)
    return cube.value + jax.nn.relu(x) + jnp.logaddexp(x, 1.0) + jax.nn.silu(x)


def nested(x):
    turns = jax.lax.scan(lambda c, _: (clipped(c), None), x, None, length=2)[0]
    return jax.lax.cond(x > 0, lambda x: smoothed(jnp.stack([x, x])), root, turns) + wrapped(x)


def test_rules_of_users_are_found_wherever_they_stand_and_those_of_libraries_are_none():
    assert own_rules(jax.make_jaxpr(jax.vmap(root))(X)) == ()
    found = own_rules(jax.make_jaxpr(jax.vmap(nested))(X))
    assert [x.kind for x in found] == ["jax.custom_vjp", "jax.custom_jvp", "jax.custom_jvp"]
    assert [x.one_way for x in found] == [True, False, False]
    for rule, name in zip(found, ("clipped at ", "smoothed at ", "nested at "), strict=True):
        assert name in str(rule)
        assert f"{__file__}:" in str(rule)


@pytest.mark.parametrize("orders", ["fr", "rr", "ffr", "frr"])
def test_a_shielded_function_is_differentiated_as_it_is_itself(orders):
    """What is wanted of a `custom_vjp` in reverse mode first, to every order."""

    def function(x):
        return clipped(x[0] * x[1]) * x[0] + smoothed(x) ** 2

    def both(x):
        bare, covered = function, lambda x: with_nan_safe_derivative(function, jnp.zeros(()), x)
        for mode in orders[::-1]:
            bare, covered = MODES[mode](bare), MODES[mode](covered)
        return bare(x), covered(x)

    bare, covered = jax.jit(both)(X)
    # Sums of some ten terms of size one, in another order.
    np.testing.assert_allclose(covered, bare, rtol=1e-13, atol=1e-14)


class Spring(jaxdae.System):
    """One mass and a force with rules of its own."""

    stiffness: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return -self.stiffness * (clipped(q) + smoothed(jnp.stack([q[0], self.stiffness])))


def run(x, **settings: Any):
    start = jaxdae.State(x[1:], jnp.array([0.3]))
    settings = {"t1": 0.6, "dt": 0.3, "solver": RK4(), **settings}
    return jaxdae.simulate(Spring(x[0]), jaxdae.Multipliers(), start, **settings)


def by_hand(x):
    """The last state by the classical method's formulas."""
    system = Spring(x[0])
    rate = lambda y: jnp.append(y[1], system.force(0, y[:1], y[1:], None, None))  # noqa: E731
    y = jnp.stack([x[1], 0.3])
    for _ in itertools.repeat(0.3, 2):
        k1 = rate(y)
        k2 = rate(y + 0.15 * k1)
        k3 = rate(y + 0.15 * k2)
        y = y + 0.05 * (k1 + 2 * k2 + 2 * k3 + rate(y + 0.3 * k3))
    return y @ y


@pytest.mark.slow
def test_second_derivatives_of_native_runs_keep_them():
    """Not symmetric, as the rules are the derivatives of no function."""

    def energy(x):
        found = run(x)
        assert found.backend == "native"
        assert "only second derivatives are not native" in str(found.why_not_native)
        return found.q[-1] @ found.q[-1] + found.v[-1] @ found.v[-1]

    x = jnp.array([2.0, 0.7])

    @partial(jax.jit, static_argnums=0)
    def derivatives(function, x):
        return jax.grad(function)(x), jax.jacfwd(jax.jacrev(function))(x)

    first, expected = derivatives(by_hand, x)
    found = derivatives(energy, x)
    # Sums of some ten terms of size one, in another order.
    np.testing.assert_allclose(found[0], first, rtol=1e-12)
    np.testing.assert_allclose(found[1], expected, rtol=1e-12)
    assert abs(expected[0, 1] - expected[1, 0]) > 0.1


def test_the_native_backend_refuses_them_by_name():
    last = lambda x: run(x, backend="native").q[-1, 0]  # noqa: E731
    with pytest.raises(BackendError, match=r"not this derivative: clipped at .*custom_vjp.*auto"):
        jax.eval_shape(jax.hessian(last), jnp.array([2.0, 0.7]))


# The plain program, by default.

PLAIN: dict[str, Any] = {"backend": "plain", "solver": diffrax.Bosh3()}


def saved(t, y, args):
    return y.q


@pytest.mark.parametrize(
    ("derivative", "settings", "message"),
    [
        (jax.hessian, PLAIN, r"no second derivatives\. Give .*adjoint=diffrax.DirectAdjoint\(\)"),
        (jax.jacfwd, PLAIN, r"no derivative in forward mode\. .*DirectAdjoint.*ForwardMode"),
        (
            jax.hessian,
            {"saveat": diffrax.SaveAt(t1=True, fn=saved)},
            r"no second derivatives, as it is plain \(SaveAt asks for more .*\)\. Give",
        ),
    ],
)
def test_a_plain_run_names_the_remedy_for_derivatives_that_it_has_not(
    derivative, settings, message
):
    def last(x):
        found = run(x, **settings)
        return jnp.sum(found.saved if "saveat" in settings else found.q[-1])

    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(derivative(last), jnp.array([2.0, 0.7]))


@pytest.mark.slow
def test_one_direction_of_a_plain_run_names_it_too():
    last = lambda x: run(x, **PLAIN).q[-1]  # noqa: E731
    x = jnp.array([2.0, 0.7])
    with pytest.raises(NotImplementedError, match="no derivative in forward mode"):
        jax.jvp(last, (x,), (x,))


def test_plain_runs_have_gradients_under_checkpoint():
    """There `jax.checkpoint` computes derivatives along what does not move, too."""

    still = jnp.array([0.7, -0.4])

    @jax.checkpoint
    def value(x):
        return jax.jit(lambda *y: jnp.prod(jnp.stack(reverse_only(y, diffrax.Euler(), None))))(
            x, still
        )

    np.testing.assert_allclose(jax.grad(value)(jnp.array([2.0, 3.0])), [-0.84, -0.56], rtol=1e-14)
