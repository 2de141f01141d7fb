"""Policies that are sampled, in kernels: asked where a sample is due, and nowhere else."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, Sampled, simulate, State
from jaxdae.solvers import RK4

STARTS = jnp.linspace(0.2, 0.9, 11)


class Spring(jaxdae.System):
    """A unit mass on a spring."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 2.0 * q @ q

    def force(self, t, q, v, w, u):
        return u


class Layers(eqx.Module):
    """Two layers, of which the memory is the first one."""

    first: jax.Array
    second: jax.Array
    bias: jax.Array

    def __call__(self, t, q, v, w, memory):
        inputs = jnp.concatenate([q, v, memory])
        memory = jnp.tanh(self.first @ inputs)
        return (self.second @ jnp.tanh(self.bias + memory[:1] * self.second.T))[:, 0], memory


def layers(units: int, hidden: int) -> Layers:
    shapes = ((units, 2 + units), (1, hidden), (hidden, 1))
    keys = jax.random.split(jax.random.key(units), 3)
    made = [0.5 * jax.random.normal(k, x) for k, x in zip(keys, shapes, strict=True)]
    return Layers(*made)


def end(policy, start, period=0.1, *, backend, memory=None, **settings):
    """A number of the end of a run."""
    memory = jnp.zeros(policy.first.shape[0]) if memory is None else memory
    controller = Sampled(policy, period, memory=memory)
    run = simulate(
        Spring(), Multipliers(), State(jnp.stack([start]), jnp.zeros(1)), t1=0.5,
        controller=controller, backend=backend, throw=False,
        saveat=diffrax.SaveAt(t1=True), **settings,
    )  # fmt: skip
    return run.q[-1, 0] + 0.5 * run.v[-1, 0]


FIXED = {"dt": 0.03, "solver": RK4()}
ADAPTIVE = {
    "solver": diffrax.Dopri5(),
    "stepsize_controller": diffrax.PIDController(rtol=1e-8, atol=1e-8),
    "max_steps": 256,
}
# Sums in another order, of numbers of size one; adaptive steps magnify it by their choice.
RTOL, ATOL = 1e-9, 1e-11


def assert_same(found, expected):
    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=RTOL, atol=ATOL)

    jax.tree.map(close, found, expected)


@pytest.mark.parametrize("sizes", [(10, 96), pytest.param((9, 101), marks=pytest.mark.slow)])
def test_derivatives_by_shared_weights_with_a_failed_member_beside(sizes):
    """They are sums over members, of which the last lanes have none; layers fill vectors or not."""
    policy = layers(*sizes)

    def mean(backend):
        def loss(policy, starts):
            each = jax.vmap(lambda x: end(policy, x, backend=backend, **FIXED))(starts)
            return jnp.sum(jnp.where(jnp.isfinite(each), each, 0.0) ** 2)

        return jax.jit(jax.grad(loss))

    expected = mean("plain")(policy, STARTS)
    assert_same(mean("native")(policy, STARTS), expected)
    failed = jnp.concatenate([STARTS[:3], jnp.array([1e308]), STARTS[3:]])
    assert_same(mean("native")(policy, failed), expected)


@pytest.mark.slow
def test_members_whose_samples_are_at_different_steps():
    """Each has a period and weights of its own, and adaptive steps."""
    policies = jax.vmap(lambda x: jax.tree.map(lambda y: x * y, layers(10, 96)))(
        jnp.linspace(0.5, 1.0, 11)
    )
    periods = jnp.linspace(0.07, 0.13, 11)
    directions = jax.tree.map(jnp.ones_like, policies)

    def ends(backend):
        every = jax.vmap(lambda p, x, h: end(p, x, h, backend=backend, **ADAPTIVE))

        def both(policies):
            value, pull = jax.vjp(lambda p: every(p, STARTS, periods), policies)
            return value, pull(jnp.ones_like(value))[0]

        def along(policies):
            return jax.jvp(lambda p: every(p, STARTS, periods), (policies,), (directions,))[1]

        return jax.jit(both), jax.jit(along)

    (reverse, forward), (plain, _) = ends("native"), ends("plain")
    (value, gradient), expected = reverse(policies), plain(policies)
    assert_same((value, gradient), expected)
    summed = sum(jnp.sum(x.reshape(11, -1), 1) for x in jax.tree.leaves(gradient))
    assert_same(forward(policies), summed)


class Asked(eqx.Module):
    """A gain, and a root that is real at samples alone."""

    gain: jax.Array

    def __call__(self, t, q, v, w, memory):
        other = jnp.sin(jnp.pi * t / 0.1) ** 2
        return -self.gain * q * jnp.sqrt(1.0 - 1e9 * other), memory + self.gain


@pytest.mark.parametrize(
    "settings", [FIXED, pytest.param(ADAPTIVE, marks=pytest.mark.slow)], ids=["fixed", "adaptive"]
)
def test_what_a_policy_is_at_other_times_does_not_matter(settings):
    """Neither its value nor its derivatives, of which the second are those of the first."""

    def value(gain, start):
        return end(Asked(gain), start, backend="native", memory=jnp.zeros(()), **settings)

    slope = jax.jit(jax.vmap(jax.value_and_grad(value), (None, 0)))
    at, h = jnp.array(0.7), 1e-5
    values, slopes = slope(at, STARTS)
    assert np.isfinite(values).all()
    above, below = slope(at + h, STARTS), slope(at - h, STARTS)
    # Differences have errors of h^2, and of the round-off divided by h.
    np.testing.assert_allclose(slopes, (above[0] - below[0]) / (2 * h), rtol=1e-6, atol=1e-9)
    second = jax.vmap(jax.grad(jax.grad(value)), (None, 0))(at, STARTS)
    np.testing.assert_allclose(second, (above[1] - below[1]) / (2 * h), rtol=1e-6, atol=1e-9)
