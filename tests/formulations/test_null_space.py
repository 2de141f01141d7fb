"""The null-space formulation: projection, bases, derivatives, and agreement with multipliers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, evaluate, Multipliers, State
from jaxdae.formulations.null_space import NullSpace
from jaxdae.models import CartesianPendulum

# Solves with fewer than ten unknowns and condition numbers below 1e3.
ROUND_OFF: Any = {"rtol": 1e-10, "atol": 1e-10}
GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


@pytest.mark.slow
def test_motion_and_multipliers_are_those_of_multipliers_off_the_constraints(everything, flow, rng):
    """One rheonomic, one velocity constraint not affine in v, actuator, control, stabilization."""
    state = State(*(jnp.asarray(rng.normal(size=k)) for k in (3, 3, 1)))
    _, motion, lam = flow(everything, NullSpace(GAINS), state, 0.3, 1.5)
    _, expected, reaction = flow(everything, Multipliers(GAINS), state, 0.3, 1.5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **ROUND_OFF), motion, expected)
    np.testing.assert_allclose(lam, reaction, **ROUND_OFF)
    assert np.abs(lam).min() > 0.1


@pytest.mark.slow
def test_no_constraint_and_no_freedom_are_the_two_ends(double_pendulum, led_point, flow):
    """m = 0: M a = f. m = n: the constraints alone give the motion."""
    state = State([0.4, -0.9], [1.0, 2.0])
    _, motion, lam = flow(double_pendulum, NullSpace(), state)
    d = jax.jit(evaluate)(double_pendulum, 0.0, state.q, state.v)
    np.testing.assert_allclose(d.mass @ motion.v, d.force, **ROUND_OFF)
    assert lam.shape == (0,)
    led = led_point(0.5)
    _, motion, _ = flow(led, NullSpace(), led.start())
    # y = sqrt(1 - t^2/4): y'' = -1/4 on top.
    np.testing.assert_allclose(motion.v, [0.0, -0.25], atol=1e-14)


def test_dependent_constraints_give_nan_not_finite_garbage(repeated_rod, flow):
    """Rows equal up to round-off: nothing finite comes out."""
    system = repeated_rod((1.0, 0.3))
    _, motion, lam = flow(system, NullSpace(), State([0.6, 0.8], [0.8, -0.6]))
    assert not np.isfinite(np.concatenate([motion.v, lam])).any()


@pytest.mark.slow
def test_derivatives_to_second_order_are_those_of_multipliers(rng):
    """The basis drops out of every derivative: forward, reverse, and forward over reverse."""
    system = CartesianPendulum(1.3, 0.8)
    x, weights, turn = (jnp.asarray(rng.normal(size=4)) for _ in range(3))

    def value(formulation):
        def scalar(x):
            y = State(x[:2], x[2:])
            rate = formulation.vector_field(system, 0.3, y, None)
            lam = formulation.multipliers(system, 0.3, y, None)
            return weights[:3] @ jnp.concatenate([rate.v, lam])

        slope = lambda x: jax.jvp(scalar, (x,), (turn,))[1]  # noqa: E731
        return jax.jit(lambda x: (slope(x), jax.grad(scalar)(x), jax.grad(slope)(x)))(x)

    got, expected = value(NullSpace(GAINS)), value(Multipliers(GAINS))
    # Second derivatives reach 1e4.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-8), got, expected)
    np.testing.assert_allclose(got[0], got[1] @ turn, rtol=1e-9)


def test_more_constraints_than_coordinates_are_refused(repeated_rod, flow):
    """No basis of ker J has a negative number of columns."""
    with pytest.raises(ValueError, match="3 constraints on 2 coordinates cannot be independent"):
        flow(repeated_rod((1.0, 2.0, 3.0)), NullSpace(), State([1.0, 0.0], [0.0, 1.0]))
