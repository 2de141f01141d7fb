"""Control loops in one another, against loops that are written as one."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import Spring
from jaxdae import Held, Multipliers, PID, Sampled, simulate, State
from jaxdae.control import AbstractHybridController, Cascade
from jaxdae.solvers.clocks import Multiples

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
START = State(jnp.array([0.3]), jnp.zeros(1))
BACKENDS = pytest.mark.parametrize("backend", ["plain", "native"])


def moved(controller, backend: Any = "native", **settings):
    return simulate(
        Spring(4.0), Multipliers(), START, t1=2.0, controller=controller, backend=backend,
        stepsize_controller=TIGHT, **settings,
    )  # fmt: skip


def wanted_position(t, q, v, w, memory):
    """The outer law: where the inner loop is to go; the memory is the last position."""
    del t, w
    return 0.5 + 0.3 * (memory - q[0]) - 0.2 * v[0], q[0]


def outer():
    return Sampled(wanted_position, 0.31, memory=jnp.zeros(()))


class Both(AbstractHybridController):
    """The same outer law and an integral, written as one: integral, reference, memory."""

    @property
    def clocks(self):
        return (Multiples(0.31),)

    def initial(self, t, state):
        reference, memory = wanted_position(t, state.q, state.v, state.w, jnp.zeros(()))
        return jnp.stack([jnp.zeros(()), reference, memory])

    def renew(self, t, q, v, w, c):
        reference, memory = wanted_position(t, q, v, w, c[2])
        return jnp.where(Multiples(0.31).is_due(t), jnp.stack([c[0], reference, memory]), c)

    def moving(self, t, state):
        del t, state
        return 1

    def rate(self, t, q, v, w, c):
        del t, v, w
        return jnp.stack([c[1] - q[0], 0.0, 0.0])

    def output(self, t, q, v, w, c):
        del t, w
        return 3.0 * (c[1] - q) + 2.0 * c[0] - 1.0 * v


@BACKENDS
def test_a_continuous_loop_in_a_sampled_one(backend):
    cascade = Cascade(outer(), lambda r: PID(lambda t, q: r - q, K_P=3.0, K_I=2.0, K_D=1.0))
    found, one = moved(cascade, backend), moved(Both(), backend)
    assert found.backend == backend
    np.testing.assert_allclose(found.q, one.q, rtol=0, atol=1e-10)
    # The integral goes on between samples, the reference does not.
    np.testing.assert_allclose(found.w[:, 0], one.w[:, 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.w[:, 1], one.w[:, 1], rtol=0, atol=1e-10)
    assert len(np.unique(found.w[:, 1])) == 7 < len(np.unique(found.w[:, 0]))


@BACKENDS
def test_a_sampled_loop_in_a_sampled_one(backend):
    """Periods of 0.3 and 0.1: as one law at 0.1, which asks the outer one each third time."""

    def inner_law(r):
        def law(t, q, v, w, memory):
            del t, w
            total = memory + 0.1 * (r - q[0])
            return 3.0 * (r - q) + total - v, total

        return law

    cascade = Cascade(
        Sampled(wanted_position, 0.3, memory=jnp.zeros(())),
        lambda r: Sampled(inner_law(r), 0.1, memory=jnp.zeros(()), delay=0.05),
    )

    def law(t, q, v, w, memory):
        count, r, last, total = memory
        following = wanted_position(t, q, v, w, last)
        asked = jnp.abs(jnp.round(count / 3) - count / 3) < 1e-9
        r, last = (jnp.where(asked, x, y) for x, y in zip(following, (r, last), strict=True))
        u, total = inner_law(r)(t, q, v, w, total)
        return u, (count + 1.0, r, last, total)

    found = moved(cascade, backend)
    one = moved(Sampled(law, 0.1, memory=(jnp.zeros(()),) * 4, delay=0.05), backend)
    assert found.backend == backend
    np.testing.assert_allclose(found.q, one.q, rtol=0, atol=1e-10)


def test_a_law_without_a_state_in_an_input_on_a_grid():
    references = Held(np.array([0.0, 0.7, 1.2]), np.array([0.5, -0.2, 0.1]))
    cascade = Cascade(references, lambda r: lambda t, q, v, w: 3.0 * (r - q) - v)
    direct = lambda t, q, v, w: 3.0 * (references(t) - q) - v  # noqa: E731
    found = moved(cascade)
    clipped = diffrax.ClipStepSizeController(TIGHT, jump_ts=jnp.array([0.7, 1.2]))
    wanted = simulate(
        Spring(4.0), Multipliers(), START, t1=2.0, controller=direct, stepsize_controller=clipped
    )
    # Rows are between different steps.
    np.testing.assert_allclose(found.q, wanted.q, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_derivatives_by_gains_of_both_loops():
    class Inner(eqx.Module):
        gain: jax.Array

        def __call__(self, r):
            return PID(lambda t, q: r - q, K_P=self.gain, K_I=2.0, K_D=1.0)

    class Outer(eqx.Module):
        gain: jax.Array

        def __call__(self, t, q, v, w, memory):
            u, memory = wanted_position(t, q, v, w, memory)
            return self.gain * u, memory

    def end(gains, backend="native"):
        outer = Sampled(Outer(gains[0]), 0.31, memory=jnp.zeros(()))
        found = moved(
            Cascade(outer, Inner(gains[1])), backend, max_steps=200,
            adjoint=diffrax.DirectAdjoint(),
        )  # fmt: skip
        return found.q[-1, 0]

    at = jnp.array([1.0, 3.0])
    found = [jax.grad(end)(at), jax.jacfwd(end)(at), jax.grad(lambda x: end(x, "plain"))(at)]
    differences = [(end(at + h) - end(at - h)) / 2e-5 for h in 1e-5 * jnp.eye(2)]
    for one in found:
        # Steps are adaptive, and differences are of values that are off by their tolerance.
        np.testing.assert_allclose(one, differences, rtol=0, atol=1e-6)


def test_loops_that_cannot_be_nested_are_refused():
    pid = PID(lambda t, q: -q, K_P=1.0, K_I=1.0, K_D=1.0)
    with pytest.raises(TypeError, match="outer"):
        Cascade(pid, lambda r: r)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="inner is declared with the parameters"):
        Cascade(outer(), lambda a, b: a)
    with pytest.raises(ValueError, match=r"PID.initial returned shape \(\); the state of an inner"):
        moved(Cascade(outer(), lambda r: PID(lambda t, q: r - q[0], K_P=1.0, K_I=1.0, K_D=1.0)))
    with pytest.raises(ValueError, match="must keep all of its state from sample to sample"):
        moved(Cascade(Cascade(outer(), lambda r: pid), lambda r: pid))
